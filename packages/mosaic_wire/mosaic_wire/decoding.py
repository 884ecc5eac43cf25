"""Dataclasses from JSON objects, checked against their annotations. Does without pydantic: workers load this."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
_EXPECTED = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
_Converter = Callable[[Any, str], Any]


def from_json(kind: type[T], document: Any, path: str = "") -> T:
    """Build a dataclass; raise TypeError or ValueError naming the key that is missing or wrong.

    A key with null counts as left out, and keys of a newer writer are ignored.
    """
    if not isinstance(document, Mapping):
        raise TypeError(f"{path or kind.__name__} must be an object, not {document!r:.80}")
    values = {}
    prefix = f"{path}." if path else ""
    for name, convert, is_required in _plan(cast(Any, kind)):
        value = document.get(name)
        if value is not None:
            values[name] = convert(value, prefix + name)
        elif is_required:
            raise TypeError(f"{prefix}{name} is missing")
    return kind(**values)


@cache
def _plan(kind: Any) -> list[tuple[str, _Converter, bool]]:
    hints = get_type_hints(kind)
    return [
        (each.name, _converter(hints[each.name]), each.default is MISSING and each.default_factory is MISSING)
        for each in fields(kind)
    ]


def _converter(hint: Any) -> _Converter:
    if hint is Any:
        return lambda value, path: value
    arguments, origin = get_args(hint), get_origin(hint)
    if origin is UnionType:
        return _converter(arguments[0])  # X | None
    if origin in (tuple, Sequence):
        return _tuple_of(_converter(arguments[0]))
    if origin is not None:  # Mapping[str, X]
        return _checked(dict, "an object")
    if is_dataclass(hint) or issubclass(hint, Enum):
        return _one_of(hint) if issubclass(hint, Enum) else lambda value, path: from_json(hint, value, path)
    return _checked((int, float) if hint is float else hint, _EXPECTED[hint])


def _checked(types: Any, expected: str) -> _Converter:
    def convert(value: Any, path: str) -> Any:
        if not isinstance(value, types) or (isinstance(value, bool) and types is not bool):
            raise TypeError(f"{path} must be {expected}, not {value!r:.80}")
        return value

    return convert


def _tuple_of(convert: _Converter) -> _Converter:
    def convert_all(value: Any, path: str) -> Any:
        if not isinstance(value, list | tuple):
            raise TypeError(f"{path} must be a list, not {value!r:.80}")
        return tuple([convert(item, f"{path}[]") for item in value])

    return convert_all


def _one_of(kind: type[Enum]) -> _Converter:
    def convert(value: Any, path: str) -> Any:
        if value not in [each.value for each in kind]:
            raise ValueError(f"{path} must be one of {', '.join(str(each.value) for each in kind)}, not {value!r:.80}")
        return kind(value)

    return convert
