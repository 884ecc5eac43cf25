"""The values that a parameter of a sweep may take: written, read, and checked against the algorithm that takes them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mosaic_wire.errors import Problem
from mosaic_wire.worker_spec import AlgorithmSpec, FieldSpec, nearest

KINDS = ("float", "int", "categorical")
NOT_SEARCHED = ("env_id", "seed", "total_timesteps")
_MOST_PARAMETERS, _MOST_CHOICES = 100, 1_000
_NUMBER_KEYS = {"kind", "low", "high", "log", "step"}
_RANGE_KEYS = {"float": _NUMBER_KEYS, "int": _NUMBER_KEYS, "categorical": {"kind", "choices"}}


@dataclass(frozen=True)
class ParameterRange:
    """The values one parameter may take."""

    name: str
    kind: str
    low: float = 0
    high: float = 0
    log: bool = False
    step: float | None = None
    choices: tuple[Any, ...] = ()

    def to_json(self) -> dict[str, Any]:
        if self.kind == "categorical":
            return {"kind": self.kind, "choices": list(self.choices)}
        document = {"kind": self.kind, "low": self.low, "high": self.high}
        return document | ({"log": True} if self.log else {}) | ({"step": self.step} if self.step is not None else {})

    def __str__(self) -> str:
        """As people write it on the command line."""
        if self.kind == "categorical":
            return "choice:" + ",".join(text if isinstance(text, str) else json.dumps(text) for text in self.choices)
        kind = {("float", True): "log", ("int", True): "logint"}.get((self.kind, self.log), self.kind)
        return ":".join([kind, *(f"{end:g}" for end in (self.low, self.high, self.step) if end is not None)])

    def values(self) -> tuple[Any, ...] | None:
        """Every value there is, for a grid; None: without end."""
        if self.kind == "categorical":
            return self.choices
        step = self.step or (1 if self.kind == "int" else None)
        if step is None or (self.log and self.kind == "float"):
            return None
        count = math.floor((self.high - self.low) / step + 1e-9) + 1
        if count > _MOST_CHOICES:
            return None
        found = [self.low + index * step for index in range(count)]
        return tuple(int(value) for value in found) if self.kind == "int" else tuple(found)


def read_ranges(document: Any, problems: list[Problem], *, path: str = "parameters") -> list[ParameterRange]:
    """The ranges of `parameters`; what is wrong is added to the problems."""
    if not isinstance(document, Mapping) or not document:
        problems.append(Problem(path, "which parameters? Give at least one range"))
        return []
    if len(document) > _MOST_PARAMETERS:
        problems.append(Problem(path, f"at most {_MOST_PARAMETERS} parameters can be searched for"))
        return []
    ranges = []
    for name, entry in document.items():
        where = f"{path}.{name}"
        if not isinstance(entry, Mapping) or entry.get("kind") not in KINDS:
            problems.append(Problem(where, f"expected an object with `kind`, one of {', '.join(KINDS)}"))
        elif wrong := _wrong_range(entry):
            problems.append(Problem(where, wrong))
        elif entry["kind"] == "categorical":
            ranges.append(ParameterRange(str(name), "categorical", choices=tuple(entry["choices"])))
        else:
            step = entry.get("step")
            is_log = entry.get("log") is True
            ranges.append(ParameterRange(str(name), entry["kind"], entry["low"], entry["high"], is_log, step))
    return ranges


def _wrong_range(entry: Mapping[str, Any]) -> str:
    """What is wrong with one range; empty: nothing."""
    kind = entry["kind"]
    if unknown := [str(key) for key in entry if key not in _RANGE_KEYS[kind]]:
        return f"a range of kind {kind} has no {', '.join(unknown)}"
    return _wrong_choices(entry.get("choices")) if kind == "categorical" else _wrong_ends(entry)


def _wrong_choices(choices: Any) -> str:
    if not isinstance(choices, list) or not 0 < len(choices) <= _MOST_CHOICES:
        return f"expected a list of 1 to {_MOST_CHOICES} choices"
    if any(isinstance(value, list | dict) or not _is_finite(value) for value in choices):
        return "a choice is text, a finite number, true, false or null"
    if len({(type(value), value) for value in choices}) != len(choices):
        return "a choice is named twice"
    return ""


def _wrong_ends(entry: Mapping[str, Any]) -> str:
    low, high, log, step = entry.get("low"), entry.get("high"), entry.get("log", False), entry.get("step")
    whole = entry["kind"] == "int"
    for name, value in (("low", low), ("high", high), ("step", step)):
        if value is None and name == "step":
            continue
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value)
        if not is_number or (whole and not isinstance(value, int)):
            return f"{name} must be a {'whole' if whole else 'finite'} number, got {value!r:.40}"
    if not isinstance(log, bool):
        return f"log must be true or false, got {log!r:.40}"
    assert low is not None
    assert high is not None
    if low >= high:
        return f"low must be below high, got {low:g} and {high:g}"
    if log and low <= 0:
        return f"on a logarithmic scale low must be above 0, got {low:g}"
    if step is not None and (log or step <= 0 or step > high - low):
        return "a step must be above 0 and within the range, and goes without log"
    return ""


def _is_finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def check_ranges(
    ranges: Sequence[ParameterRange], algorithm: AlgorithmSpec, *, path: str = "parameters"
) -> list[Problem]:
    """Everything an algorithm would not take of these ranges: names, types, limits."""
    problems = []
    for each in ranges:
        where, name = f"{path}.{each.name}", each.name.replace("-", "_")
        known = algorithm.field(name)
        if name in NOT_SEARCHED:
            problems.append(Problem(where, f"{name} is not searched for: every trial has the same"))
        elif known is None:
            if not algorithm.open_flags:
                names = [field.name for field in algorithm.fields if field.name not in NOT_SEARCHED]
                told = f"{algorithm.name!r} has no parameter {each.name!r}"
                problems.append(Problem(where, told, nearest(each.name, names)))
        elif wrong := _misfit(each, known):
            problems.append(Problem(where, wrong))
    return problems


def _misfit(each: ParameterRange, known: FieldSpec) -> str:
    if each.kind == "categorical":
        wrong = [told for value in each.choices if (told := known.problem_with(value)) is not None]
        return "; ".join(wrong[:3])
    if known.kind not in ("int", "float") or known.choices:
        words = ",".join(map(str, known.choices)) or ("true,false" if known.kind == "bool" else "a,b")
        return f"takes {known.kind}, not a range of numbers; give choices: choice:{words}"
    if known.kind == "int" and each.kind == "float":
        return f"takes whole numbers: {'logint' if each.log else 'int'}:{math.ceil(each.low)}:{math.floor(each.high)}"
    return "; ".join(told for end in (each.low, each.high) if (told := known.problem_with(end)) is not None)


def range_from_text(name: str, text: str, known: FieldSpec | None = None) -> dict[str, Any]:
    """A range as people type it: `log:1e-5:1e-2`, `int:32:256[:32]`, `logint:1:64`, `float:0:1[:0.1]`, `choice:a,b`.

    `known` tells how choices are read; without it what looks like a number, true, false or null is one. Raises
    ValueError with a sentence for the user.
    """
    word, _, rest = text.partition(":")
    if word in ("choice", "categorical"):
        if not rest:
            raise ValueError(f"{name}: which choices? {name}=choice:a,b,c")
        return {"kind": "categorical", "choices": [_choice(part.strip(), known) for part in rest.split(",")]}
    if word not in ("float", "int", "log", "logint"):
        raise ValueError(
            f"{name}: {text!r} is no range; write log:LOW:HIGH, float:LOW:HIGH[:STEP], int:LOW:HIGH[:STEP], "
            "logint:LOW:HIGH or choice:A,B,…"
        )
    kind, is_log = ("int" if word.endswith("int") else "float"), word.startswith("log")
    ends = rest.split(":") if rest else []
    if len(ends) not in ((2,) if is_log else (2, 3)):
        raise ValueError(f"{name}: {text!r} needs {word}:LOW:HIGH" + ("" if is_log else f" or {word}:LOW:HIGH:STEP"))
    numbers = [_number(name, end, kind) for end in ends]
    document: dict[str, Any] = {"kind": kind, "low": numbers[0], "high": numbers[1]}
    if is_log:
        document["log"] = True
    if len(numbers) == 3:
        document["step"] = numbers[2]
    if wrong := _wrong_ends(document):
        raise ValueError(f"{name}: {wrong}")
    return document


def _number(name: str, text: str, kind: str) -> int | float:
    try:
        value = float(text.replace("_", ""))
    except ValueError:
        raise ValueError(f"{name}: {text!r} is not a number") from None
    if kind == "float":
        return value
    if not value.is_integer():
        raise ValueError(f"{name}: {text!r} is not a whole number")
    return int(value)


def _choice(text: str, known: FieldSpec | None) -> Any:
    if known is not None:
        try:
            return known.parse(text)
        except ValueError:
            return text  # what is wrong with it is told with everything else
    lowered = text.lower()
    if lowered in ("true", "false", "null", "none"):
        return {"true": True, "false": False}.get(lowered)
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text
