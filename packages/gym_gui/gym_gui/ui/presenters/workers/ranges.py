"""Ranges of a sweep as a form has them: a kind and a few texts; suggestions for a parameter. No Qt."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mosaic_wire.sweep_ranges import check_ranges, range_from_text, read_ranges
from mosaic_wire.worker_spec import AlgorithmSpec, FieldSpec

from gym_gui.ui.workers.words import PRESENTERS, QT_TRANSLATE_NOOP

FLOAT, LOG, INT, LOG_INT, CHOICE = "float", "log", "int", "logint", "choice"
KINDS = {
    FLOAT: QT_TRANSLATE_NOOP(PRESENTERS, "number"),
    LOG: QT_TRANSLATE_NOOP(PRESENTERS, "number, log"),
    INT: QT_TRANSLATE_NOOP(PRESENTERS, "whole number"),
    LOG_INT: QT_TRANSLATE_NOOP(PRESENTERS, "whole number, log"),
    CHOICE: QT_TRANSLATE_NOOP(PRESENTERS, "choices"),
}
"""The words of `mosaic sweep --param`, and what a form calls them"""


@dataclass(frozen=True)
class RangeText:
    """A range as it stands in a form."""

    kind: str = FLOAT
    low: str = ""
    high: str = ""
    step: str = ""
    choices: str = ""

    @property
    def has_step(self) -> bool:
        return self.kind in (FLOAT, INT)

    def document(self, name: str, known: FieldSpec | None = None) -> dict[str, Any]:
        """As a config has it; ValueError with words for people when it is none."""
        if self.kind == CHOICE:
            words = ",".join(part.strip() for part in self.choices.split(",") if part.strip())
            text = f"{CHOICE}:{words}"
        else:
            step = f":{self.step.strip()}" if self.has_step and self.step.strip() else ""
            missing = [end for end, value in (("from", self.low), ("to", self.high)) if not value.strip()]
            if missing:
                raise ValueError(f"a number is missing: {' and '.join(missing)}")
            text = f"{self.kind}:{self.low.strip()}:{self.high.strip()}{step}"
        try:
            return range_from_text(name, text, known)
        except ValueError as error:
            raise ValueError(str(error).removeprefix(f"{name}: ")) from None

    def problem(self, name: str, algorithm: AlgorithmSpec | None) -> str:
        """What is wrong with it, also for this algorithm; empty when nothing is."""
        known = algorithm.field(name) if algorithm is not None else None
        try:
            document = self.document(name, known)
        except ValueError as error:
            return str(error)
        found: list[Any] = []
        ranges = read_ranges({name: document}, found)
        if algorithm is not None and not found:
            found += check_ranges(ranges, algorithm)
        hints = [f" Did you mean {problem.suggestion}?" if problem.suggestion else "" for problem in found]
        return "; ".join(f"{problem.message}{hint}" for problem, hint in zip(found, hints, strict=True))


def text_of(entry: Mapping[str, Any]) -> RangeText:
    """A range of a config as a form shows it."""
    kind = entry.get("kind")
    if kind == "categorical":
        choices = entry.get("choices")
        return RangeText(CHOICE, choices=", ".join(map(_written, choices if isinstance(choices, list) else [])))
    words = {("int", True): LOG_INT, ("int", False): INT, ("float", True): LOG}
    chosen = words.get((str(kind), entry.get("log") is True), FLOAT)
    step = entry.get("step")
    return RangeText(chosen, _written(entry.get("low")), _written(entry.get("high")), _written(step) if step else "")


def suggested(field: FieldSpec) -> RangeText:
    """Where to begin: around the default, within what the algorithm takes."""
    if field.choices:
        return RangeText(CHOICE, choices=", ".join(map(_written, field.choices)))
    if field.kind == "bool":
        return RangeText(CHOICE, choices="true, false")
    if field.kind not in ("int", "float") or not isinstance(field.default, int | float):
        return RangeText(CHOICE, choices=_written(field.default) if field.default else "")
    value = field.default
    if field.kind == "int":
        low, high = max(1, value // 4) if value > 0 else value, value * 4 if value > 0 else value + 10
        kind = LOG_INT if value >= 64 else INT
    elif 0 < value <= 0.05:
        low, high, kind = value / 10, value * 10, LOG
    elif 0.5 <= value < 1:  # a discount: close to 1, and never above
        low, high, kind = 1 - (1 - value) * 4, 1 - (1 - value) / 4, FLOAT
    else:
        low, high, kind = (0.0, value * 2, FLOAT) if value >= 0 else (value * 2, 0.0, FLOAT)
        if value == 0:
            high = 0.1
    low = max(low, field.minimum) if field.minimum is not None else low
    high = min(high, field.maximum) if field.maximum is not None else high
    if kind in (LOG, LOG_INT) and low <= 0:
        kind = FLOAT if kind == LOG else INT
    return RangeText(kind, _written(low), _written(high))


def _written(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else str(value)
    return str(value)
