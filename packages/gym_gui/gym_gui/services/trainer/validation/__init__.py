"""Checks on what clients submit."""
