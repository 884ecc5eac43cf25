"""Presenters that several parts of the window share; no widgets."""
