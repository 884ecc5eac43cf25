"""Runs, numbers and times as people read them; what the command and the window have in common."""
