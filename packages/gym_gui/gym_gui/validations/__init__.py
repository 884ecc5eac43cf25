"""Checks that forms run before they submit anything."""
