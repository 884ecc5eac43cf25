"""Widgets without policy."""
