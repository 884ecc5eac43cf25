"""Log codes that operators know, and how a coded line is written and read."""
