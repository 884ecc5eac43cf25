"""Maximal lengths of what a worker reports: enforced by the session that sends it and the daemon that receives it."""

from __future__ import annotations

MAX_METRIC_TAG = 512
"""Characters of a curve's name, its folder included"""
MAX_EXTRAS_BYTES = 2 << 20
"""Of the extras of a registration, as JSON: what the largest config may hold"""
MAX_CAPABILITIES_BYTES = 64 << 10
MAX_NAME = 1024
"""Characters of an algorithm's, an environment's or an instance's name at registration"""
MAX_REASON = 16 << 10
"""Characters of the reason for an ending"""
MAX_POSITION_BYTES = 4 << 20
"""Of a position in event files, as JSON"""
MAX_STEP = 1 << 53
"""Beyond it neighboring steps are the same number to everything that draws or stores curves"""


def too_long(what: str, length: int, most: int, unit: str = "characters") -> str:
    """Return the message about something that is longer than MOSAIC takes."""
    return f"{what} has {length} {unit}, {most} are the most that MOSAIC takes"


def registration_problem(capabilities: str, extras: str, *names: str) -> str:
    """Return what is too long in a registration, or an empty text."""
    sizes = (("capabilities", capabilities, MAX_CAPABILITIES_BYTES), ("extras", extras, MAX_EXTRAS_BYTES))
    for what, text, most in sizes:
        if len(text) > most:  # ASCII: JSON escapes the rest
            return too_long(f"{what} (as JSON)", len(text), most, "bytes")
    longest = max(names, key=len, default="")
    return too_long(f"the name {longest[:40]!r}…", len(longest), MAX_NAME) if len(longest) > MAX_NAME else ""
