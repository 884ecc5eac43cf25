"""What a custom script says about itself, in comments of its first 30 lines.

# @description: warm up on 5x5, then 8x8
# @env_family: minigrid
# @phases: warm-up, main
# @total_timesteps: 600000
"""

from __future__ import annotations

import re
from typing import Any

SCRIPT_SUFFIXES = (".sh", ".py")
HEADER_LINES = 30
HEADER_KEYS = ("description", "env_family", "phases", "total_timesteps")

_FACT = re.compile(r"^\s*#\s*@(\w+)\s*:\s*(.*?)\s*$")
_MOST_DIGITS = 15


def read_script_header(text: str) -> dict[str, Any]:
    """The facts that are there; `total_timesteps` is a number, or left out when it is none."""
    facts: dict[str, Any] = {}
    for line in text.splitlines()[:HEADER_LINES]:
        match = _FACT.match(line)
        if match is not None and match[1] in HEADER_KEYS and match[2]:
            facts.setdefault(match[1], match[2])
    if "total_timesteps" in facts:
        digits = re.sub(r"[_,\s]", "", facts.pop("total_timesteps"))
        if digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS and int(digits) > 0:
            facts["total_timesteps"] = int(digits)
    return facts
