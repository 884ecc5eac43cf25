"""What a parameter of a study was drawn from, read from the JSON that Optuna writes; every version's names."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    FLOAT = "float"
    INT = "int"
    CATEGORICAL = "categorical"


@dataclass(frozen=True)
class Distribution:
    """A range of numbers, or a list of choices. Storages keep a choice as its place in that list."""

    kind: Kind
    low: float = math.nan
    high: float = math.nan
    step: float | None = None
    log: bool = False
    choices: tuple[Any, ...] = ()

    def __hash__(self) -> int:  # a choice may be a list, which has no hash
        return hash((self.kind, self.low, self.high, self.step, self.log, len(self.choices)))

    def holds(self, internal: float) -> bool:
        """Whether a stored number means a value at all; damaged files have others."""
        if self.kind is Kind.CATEGORICAL:
            return 0 <= internal < len(self.choices)
        return math.isfinite(internal)

    def external(self, internal: float) -> Any:
        """A stored number as the value people know."""
        if self.kind is Kind.CATEGORICAL:
            return self.choices[int(internal)]
        return int(internal) if self.kind is Kind.INT else float(internal)

    def internal(self, external: Any) -> float:
        """The number under which a value is stored; ValueError when it is not among the choices."""
        return float(self.choices.index(external)) if self.kind is Kind.CATEGORICAL else float(external)

    @property
    def is_single(self) -> bool:
        """Nothing to choose: one value only."""
        if self.kind is Kind.CATEGORICAL:
            return len(self.choices) == 1
        if self.step is not None:
            return self.high - self.low < self.step
        return self.low == self.high


_OLD_NAMES = {
    # Until Optuna 2 each shape had a class of its own.
    "UniformDistribution": (Kind.FLOAT, False), "LogUniformDistribution": (Kind.FLOAT, True),
    "DiscreteUniformDistribution": (Kind.FLOAT, False), "IntUniformDistribution": (Kind.INT, False),
    "IntLogUniformDistribution": (Kind.INT, True),
}  # fmt: skip
_NAMES = {"FloatDistribution": Kind.FLOAT, "IntDistribution": Kind.INT, "CategoricalDistribution": Kind.CATEGORICAL}


def distribution_of(text: str) -> Distribution:
    """Read Optuna's JSON, also its short form; ValueError when it is neither."""
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError(f"no distribution: {text[:80]}")
    name = document.get("name", "")
    attributes = document.get("attributes") if name else document
    if not isinstance(attributes, dict):
        raise ValueError(f"no distribution: {text[:80]}")
    if name in _OLD_NAMES:
        kind, is_log = _OLD_NAMES[name]
        return _range(kind, {**attributes, "log": is_log, "step": attributes.get("q", attributes.get("step"))})
    try:
        kind = _NAMES[name] if name else Kind(str(document.get("type")))
    except (KeyError, ValueError):
        raise ValueError(f"unknown distribution {name or document.get('type')!r}") from None
    if kind is Kind.CATEGORICAL:
        choices = attributes.get("choices")
        if not isinstance(choices, list):
            raise ValueError(f"no choices: {text[:80]}")
        return Distribution(kind, choices=tuple(choices))
    return _range(kind, attributes)


def _range(kind: Kind, attributes: Mapping[str, Any]) -> Distribution:
    low, high, step = attributes.get("low"), attributes.get("high"), attributes.get("step")
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        raise ValueError(f"a range without its ends: {dict(attributes)}")
    if step is None and kind is Kind.INT:
        step = 1
    return Distribution(kind, float(low), float(high), None if step is None else float(step), bool(attributes["log"]))


class Distributions:
    """Thousands of trials write the same few texts: each is read once."""

    def __init__(self) -> None:
        self._known: dict[str, Distribution] = {}

    def __getitem__(self, text: str) -> Distribution:
        found = self._known.get(text)
        if found is None:
            found = self._known[text] = distribution_of(text)
        return found
