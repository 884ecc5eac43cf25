"""One tab or dock of the window is one module."""
