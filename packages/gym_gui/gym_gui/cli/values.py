"""Option values as people write them: several seeds, durations, big numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from gym_gui.wording.values import parse_minutes, parse_seeds, parse_steps

T = TypeVar("T")


def _read(
    kind: click.ParamType[T], parse: Callable[[str], T], value: Any, param: click.Parameter | None, ctx: Any
) -> T:
    try:
        return parse(str(value))
    except ValueError as error:
        kind.fail(str(error), param, ctx)


class Steps(click.ParamType[int]):
    """A number of steps: 500000, 500_000, 5e5 or 500k."""

    name = "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return value if isinstance(value, int) else _read(self, parse_steps, value, param, ctx)


class Minutes(click.ParamType[float]):
    """A time: a plain number is minutes; 90m, 2h, 1.5h, 30s, 1d."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return _read(self, parse_minutes, value, param, ctx)


class Seeds(click.ParamType[list[int]]):
    """Seeds: 1-5, 1,3,7 or a mixture."""

    name = "SEEDS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        return value if isinstance(value, list) else _read(self, parse_seeds, value, param, ctx)


def listed_problems(problems: Sequence[str]) -> str:
    """Return one message that names every problem."""
    return problems[0] if len(problems) == 1 else "\n  ".join(["invalid arguments:", *problems])
