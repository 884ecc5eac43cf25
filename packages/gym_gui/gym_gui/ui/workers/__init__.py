"""What the window knows about workers."""
