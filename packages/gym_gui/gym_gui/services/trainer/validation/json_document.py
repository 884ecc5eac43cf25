"""A submitted document before its meaning is checked: JSON, an object, of a sane size and depth."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from mosaic_wire.errors import Problem
from mosaic_wire.run_request import json_type

from gym_gui.services.trainer.errors import InvalidConfig

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_KEYS = 500
"""In one object. Each unknown key is compared with the known ones, which costs time"""
MAX_KEY_CHARACTERS = 200
_INT64 = 2**63


class _NotJson(ValueError):
    pass


def read_config_text(text: str | bytes) -> dict[str, Any]:
    """Parse JSON text into an object that may be walked without fear; raise InvalidConfig."""
    size = len(text) if isinstance(text, bytes) else len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise InvalidConfig([Problem("", f"the config is larger than {MAX_BYTES} bytes")])
    try:
        document = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_without_repeated_keys)
    except RecursionError:
        raise InvalidConfig([Problem("", f"nested deeper than {MAX_DEPTH} levels")]) from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InvalidConfig([Problem("", f"not valid JSON: {error.msg} ({where})")]) from None
    except UnicodeDecodeError:
        raise InvalidConfig([Problem("", "not valid JSON: it must be UTF-8 text")]) from None
    except ValueError as error:  # a constant, a repeated key, or a number of thousands of digits
        message = str(error) if isinstance(error, _NotJson) else "a number has too many digits"
        raise InvalidConfig([Problem("", f"not valid JSON: {message}")]) from None
    if not isinstance(document, dict):
        raise InvalidConfig([Problem("", f"expected a JSON object, got {json_type(document)}")])
    return checked_document(document)


def checked_document(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a plain JSON object; raise InvalidConfig with everything that is not JSON or too large."""
    problems: list[Problem] = []
    copy = _copy(document, "", 0, problems)
    if problems:
        raise InvalidConfig(problems)
    if not isinstance(copy, dict):
        raise InvalidConfig([Problem("", f"expected a JSON object, got {json_type(copy)}")])
    # Checked again, because numbers may be longer in Python's notation than in the text.
    if len(json.dumps(copy, ensure_ascii=False, separators=(",", ":")).encode()) > 2 * MAX_BYTES:
        raise InvalidConfig([Problem("", f"the config is larger than {MAX_BYTES} bytes")])
    return copy


def join(path: str, key: str) -> str:
    """Return the JSON path of a key below `path`."""
    return f"{path}.{key}" if path else key


def _copy(value: Any, path: str, depth: int, problems: list[Problem]) -> Any:
    if depth > MAX_DEPTH:
        problems.append(Problem(path, f"nested deeper than {MAX_DEPTH} levels"))
        return None
    if isinstance(value, Mapping):
        return _copy_object(value, path, depth, problems)
    if isinstance(value, list | tuple):
        return [_copy(item, f"{path}[{index}]", depth + 1, problems) for index, item in enumerate(value)]
    if (wrong := _problem_with_scalar(value)) is not None:
        problems.append(Problem(path, wrong))
        return None
    return value


def _copy_object(value: Mapping[Any, Any], path: str, depth: int, problems: list[Problem]) -> dict[str, Any]:
    if len(value) > MAX_KEYS:
        problems.append(Problem(path, f"has {len(value)} keys, more than {MAX_KEYS}"))
        return {}
    copy: dict[str, Any] = {}
    for key, item in value.items():
        if not isinstance(key, str) or _problem_with_text(key) or len(key) > MAX_KEY_CHARACTERS:
            shown = repr(key)[:80]
            problems.append(Problem(path, f"key {shown} must be text of at most {MAX_KEY_CHARACTERS} characters"))
            continue
        copy[key] = _copy(item, join(path, key), depth + 1, problems)
    return copy


def _problem_with_scalar(value: Any) -> str | None:
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str):
        return _problem_with_text(value)
    if isinstance(value, int):
        return None if -_INT64 <= value < _INT64 else "the number does not fit into 64 bits"
    if isinstance(value, float):
        return None if math.isfinite(value) else "expected a finite number"
    return f"expected a JSON value, got {type(value).__name__}"


def _problem_with_text(text: str) -> str | None:
    if "\0" in text:
        return "text must not contain a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "text must be valid Unicode (it contains half of a surrogate pair)"
    return None


def _refuse_constant(name: str) -> Any:
    raise _NotJson(f"{name} is not a JSON number")


def _without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        repeated = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise _NotJson(f"the key {repeated[:80]!r} is repeated in one object")
    return document
