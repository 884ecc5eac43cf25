"""Everything that crosses a process boundary between MOSAIC's daemon, its clients and its workers."""

PROTOCOL_VERSION = 1
"""Version of the worker protocol: the RPCs a worker calls and the files it leaves."""

__version__ = "0.1.0"
