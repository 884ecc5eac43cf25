"""Services that run without a window."""
