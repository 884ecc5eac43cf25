"""Why an agent acted: parts that a reasoning worker sends with a step, shown without knowing the worker.

telemetry.step(…, info=reasoning_info([Part("Plan", "+!tick : state(3)"), Part("Beliefs", items=("+at(3)",))]))
parts = reasoning_of(json.loads(step.info_json))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

KEY = "reasoning"
"""Where the parts are in a step's `info`"""
MAX_TEXT = 8 << 10
"""Characters of a part; what is longer is truncated, because every step is stored"""
MAX_ITEMS = 100


class Part(NamedTuple):
    """One titled piece of reasoning: a text, or a list of short items."""

    title: str
    text: str = ""
    items: tuple[str, ...] = ()


def reasoning_info(parts: Iterable[Part]) -> dict[str, Any]:
    """Return the `info` of a step with these parts, bounded in size."""
    return {KEY: [_to_json(part) for part in parts if part.text or part.items]}


def reasoning_of(info: Mapping[str, Any] | None) -> tuple[Part, ...]:
    """Return the parts of a step's `info`; what is malformed is left out."""
    parts = info.get(KEY) if isinstance(info, Mapping) else None
    if not isinstance(parts, list):
        return ()
    return tuple(_from_json(part) for part in parts if isinstance(part, dict) and isinstance(part.get("title"), str))


def _to_json(part: Part) -> dict[str, Any]:
    if not part.items:
        return {"title": part.title, "text": _truncated(part.text, MAX_TEXT)}
    if len(part.items) <= MAX_ITEMS and sum(map(len, part.items)) <= MAX_TEXT:  # nearly always
        return {"title": part.title, "items": list(part.items)}
    kept, room = [], MAX_TEXT
    for item in part.items[:MAX_ITEMS]:
        kept.append(_truncated(item, room))
        room -= len(kept[-1])
        if room <= 0:
            break
    if left_out := len(part.items) - len(kept):
        kept.append(f"… {left_out} more")
    return {"title": part.title, "items": kept}


def _from_json(part: Mapping[str, Any]) -> Part:
    items, text = part.get("items"), part.get("text")
    shown = tuple(map(str, items[: MAX_ITEMS + 1])) if isinstance(items, list) else ()
    return Part(part["title"], text if isinstance(text, str) else "", shown)


def _truncated(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} more characters)"
