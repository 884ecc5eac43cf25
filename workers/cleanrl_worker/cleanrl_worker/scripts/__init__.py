"""Single-file scripts that run unmodified: read as text, started in a process of their own, followed from outside."""
