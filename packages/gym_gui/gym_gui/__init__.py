"""MOSAIC: the trainer daemon, the `mosaic` command and the desktop window."""

__version__ = "0.1.0"
