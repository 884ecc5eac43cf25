"""What `Args` declares, checked in the training process: the same ranges and rules a dry run reads as text."""

from __future__ import annotations

import os
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from cleanrl_worker.errors import BadInput
from cleanrl_worker.ranges import Range
from cleanrl_worker.rules import Rule, broken_rules
from cleanrl_worker.training.common_args import ReplayArgs

COMPUTED: Mapping[str, Callable[[Mapping[str, Any]], int]] = {
    "num_envs": lambda own: own["local_num_envs"] * (own["world_size"] or int(os.environ.get("WORLD_SIZE", "1"))),
    "local_batch_size": lambda own: own["local_num_envs"] * own["num_steps"],
    "local_minibatch_size": lambda own: own["local_batch_size"] // own["num_minibatches"],
    "batch_size": lambda own: own["num_envs"] * own["num_steps"],
    "minibatch_size": lambda own: own["batch_size"] // own["num_minibatches"],
    "num_iterations": lambda own: own["total_timesteps"] // own["batch_size"],
    "num_phases": lambda own: own["num_iterations"] // own["n_iteration"],
    "aux_batch_rollouts": lambda own: own["num_envs"] * own["n_iteration"],
}
"""Flags that follow from others in algorithms whose default for them is 0; each may use those before it"""


def effective_values(args: Any) -> dict[str, Any]:
    """Every flag with the value that training uses; the algorithm's own first."""
    common = {field.name for field in fields(ReplayArgs)}
    values = dict(sorted(asdict(args).items(), key=lambda item: item[0] in common))
    defaults = {field.name: field.default for field in fields(args)}
    for name, compute in COMPUTED.items():
        if defaults.get(name) == 0:
            values[name] = compute(values)
    return values


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
