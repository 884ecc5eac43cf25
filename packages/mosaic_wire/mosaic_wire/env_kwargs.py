"""Arguments of an environment as text: a JSON object, or `is_slippery=false,map_name=8x8`."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

_PAIR = r"\s*[A-Za-z_]\w*\s*=[^=,{}\[\]\"']*"
_PAIRS = re.compile(f"{_PAIR}(,{_PAIR})*")
_CONSTANTS = {"True": True, "False": False, "None": None}


def parse_env_kwargs(text: str) -> dict[str, Any]:
    """Return arguments of an environment, or raise ValueError with what is wrong."""
    try:
        value = json.loads(text or "{}")
    except ValueError as error:
        if _PAIRS.fullmatch(text):
            pairs = (pair.partition("=") for pair in text.split(","))
            return {name.strip(): _value(written.strip()) for name, _, written in pairs}
        raise ValueError(
            f"is not JSON: {error}; write e.g. '{{\"is_slippery\": false}}' or is_slippery=false"
        ) from error
    if not isinstance(value, dict):
        raise ValueError(f"must be a JSON object, not {type(value).__name__}")
    return value


def _value(text: str) -> Any:
    """Return a number, true, false, null or a plain text."""
    with suppress(ValueError):
        return _CONSTANTS[text] if text in _CONSTANTS else json.loads(text)
    return text
