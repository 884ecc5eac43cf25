"""What `Args` declares, checked in the training process: the same ranges and rules a dry run reads as text."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from cleanrl_worker.errors import BadInput
from cleanrl_worker.ranges import Range
from cleanrl_worker.rules import Rule, broken_rules


def check_args(args: Any, rules: Sequence[Rule]) -> None:
    """Refuse values that no run can be made of, all at once."""
    values = asdict(args)
    wrong = range_problems(type(args), values)
    problems = [f"--{name.replace('_', '-')} {message}" for name, message in wrong.items()]
    problems += broken_rules(rules, values, leaving_out=wrong)
    if problems:
        raise BadInput("; ".join(problems))


def range_problems(args_type: type[Any], values: Mapping[str, Any]) -> dict[str, str]:
    """Field name → what is wrong with its value."""
    problems = {}
    for name, limits in _ranges(args_type).items():
        value = values[name]
        if value is not None:
            if limits.minimum is not None and value < limits.minimum:
                problems[name] = f"must be at least {limits.minimum:g}, got {value}"
            elif limits.maximum is not None and value > limits.maximum:
                problems[name] = f"must be at most {limits.maximum:g}, got {value}"
    return problems


def _ranges(args_type: type[Any]) -> dict[str, Range]:
    """The range of every field that has one; a preset that only changes a default keeps its parent's."""
    found: dict[str, Range] = {}
    for parent in reversed(args_type.__mro__[:-1]):
        for name, hint in typing.get_type_hints(parent, include_extras=True).items():
            if name in vars(parent).get("__annotations__", {}):
                limits = [extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, Range)]
                found |= dict.fromkeys([name], limits[0]) if limits else {}
    return found
