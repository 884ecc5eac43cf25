"""Option values as people write them: several seeds, durations, big numbers."""

from __future__ import annotations

import re
from typing import Any

import click

MOST_SEEDS = 1000


class Steps(click.ParamType[int]):
    """A number of steps: 500000, 500_000, 5e5 or 500k."""

    name = "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).replace("_", "").replace(",", "").lower()
        scale = {"k": 1_000, "m": 1_000_000, "g": 1_000_000_000}.get(text[-1:], 1)
        try:
            number = float(text[:-1] if scale > 1 else text) * scale
        except ValueError:
            self.fail(f"expected a number of steps such as 500000, 500k or 5e5, not {value!r}", param, ctx)
        if not 0 < number < 2**53 or number != int(number):
            self.fail(f"expected a whole number of steps above 0, not {value!r}", param, ctx)
        return int(number)


class Minutes(click.ParamType[float]):
    """A time: a plain number is minutes; 90m, 2h, 1.5h, 30s, 1d."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", str(value).strip().lower())
        if match is None or float(match[1]) == 0:
            self.fail(f"expected a time such as 90 (minutes), 30s, 2h or 1d, not {value!r}", param, ctx)
        return float(match[1]) * {"s": 1 / 60, "": 1, "m": 1, "h": 60, "d": 1440}[match[2]]


class Seeds(click.ParamType[list[int]]):
    """Seeds: 1-5, 1,3,7 or a mixture."""

    name = "SEEDS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        if isinstance(value, list):
            return value
        seeds: list[int] = []
        for part in str(value).split(","):
            match = re.fullmatch(r"\s*(\d{1,10})(?:\s*(?:-|\.\.)\s*(\d{1,10}))?\s*", part)
            if match is None:
                self.fail(f"expected seeds such as 1-5 or 1,3,7, not {value!r}", param, ctx)
            first, last = int(match[1]), int(match[2] or match[1])
            if last < first or last - first >= MOST_SEEDS:
                self.fail(f"{part.strip()!r} is empty or more than {MOST_SEEDS} seeds", param, ctx)
            seeds.extend(range(first, last + 1))
        return list(dict.fromkeys(seeds))
