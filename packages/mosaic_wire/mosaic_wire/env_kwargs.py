"""Arguments of an environment as text: a JSON object, or `is_slippery=false,map_name=8x8`."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Mapping
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


def mistyped_switch(spec: Any, kwargs: Mapping[str, Any]) -> str:
    """Return which argument is a text where the environment takes true or false (every text is true), or "".

    `spec` is gymnasium's.
    """
    creator = spec.entry_point
    if isinstance(creator, str):
        module, _, name = creator.partition(":")
        creator = getattr(importlib.import_module(module), name, None)
    try:
        parameters: Mapping[str, Any] = inspect.signature(creator).parameters
    except (TypeError, ValueError):
        return ""
    for name, value in kwargs.items():
        default = spec.kwargs.get(name, parameters[name].default if name in parameters else None)
        if isinstance(default, bool) and isinstance(value, str):
            return f"{name} is true or false, not {value!r}"
    return ""
