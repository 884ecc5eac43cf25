"""What `mosaic doctor` finds, one line each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One line of the report: fine, worth knowing, or broken with its cure."""

    name: str
    state: str
    """ok | note | broken"""
    text: str
    cure: str = ""
