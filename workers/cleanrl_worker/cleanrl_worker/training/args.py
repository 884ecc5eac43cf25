"""Flags of every algorithm, what they may be, and which follow from others. Nothing here imports torch."""

from __future__ import annotations

import os
import typing
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, Literal, NamedTuple

from cleanrl_worker.declarations import declaration_of
from cleanrl_worker.errors import BadInput


class Range(NamedTuple):
    """The smallest and the largest value; None: no limit. Write it with literals, it is read as text."""

    minimum: float | None = None
    maximum: float | None = None


@dataclass(frozen=True)
class CommonArgs:
    """What CleanRL's scripts have in common, then what MOSAIC adds to all of them."""

    exp_name: str = ""
    """the name of this experiment"""
    seed: Annotated[int, Range(0)] = 1
    """seed of the network, of action sampling and of the environments"""
    torch_deterministic: bool = True
    """choose deterministic GPU kernels"""
    cuda: bool = True
    """use the GPU if one is reserved for the run"""
    track: bool = False
    """log to Weights & Biases"""
    wandb_project_name: str = "cleanRL"
    """W&B project"""
    wandb_entity: str | None = None
    """W&B team"""
    capture_video: bool = False
    """record videos of the agent"""

    env_kwargs: str = "{}"
    """arguments of the environment, a JSON object: {"is_slippery": false}"""
    env_backend: Literal["auto", "native", "sync", "async", "ale", "envpool"] = "auto"
    """how the environments are stepped (auto: the cheapest way that gives the same transitions)"""
    eval_episodes: Annotated[int, Range(0)] = 0
    """episodes of an evaluation: after training, and during it with eval_freq"""
    eval_freq: Annotated[int, Range(0)] = 0
    """steps between evaluations during training; 0: none"""
    eval_deterministic: bool = True
    """evaluate the best action instead of sampling as in training"""
    stop_at_return: float | None = None
    """end training once the last 100 episodes average this return"""
    checkpoint_freq: Annotated[int, Range(0)] = 0
    """steps between checkpoints; 0: only one at the end"""
    keep_checkpoints: Annotated[int, Range(1)] = 3
    """how many periodic checkpoints stay; the best and the last one always do"""
    torch_threads: Annotated[int, Range(1, 1024)] = 1
    """CPU threads; for small networks more than one costs time"""
    compile: bool = False
    """let torch.compile speed the update up; it takes a minute to warm up"""


@dataclass(frozen=True)
class ModelArgs(CommonArgs):
    """For names whose CleanRL script has flags about its model file."""

    save_model: bool = False
    """accepted because CleanRL has it; the model is always written"""
    upload_model: bool = False
    """not offered: nothing is sent to a hub"""
    hf_entity: str = ""
    """accepted because CleanRL has it; without effect"""


@dataclass(frozen=True)
class ReplayArgs(ModelArgs):
    """For algorithms that learn from a replay buffer."""

    checkpoint_replay: Literal["full", "none"] = "full"
    """whether checkpoints hold the replay buffer: without it a resumed run has to fill it anew"""
    replay_storage: Literal["memory", "disk"] = "memory"
    """where the replay buffer lies; on disk it is a memory-mapped file in the run's folder"""


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
    """Return every flag with the value that training uses; the algorithm's own first."""
    common = {field.name for field in fields(ReplayArgs)}
    values = dict(sorted(asdict(args).items(), key=lambda item: item[0] in common))
    defaults = {field.name: field.default for field in fields(args)}
    for name, compute in COMPUTED.items():
        if defaults.get(name) == 0:
            values[name] = compute(values)
    return values


def check_args(args: Any) -> None:
    """Refuse values that no run can be made of, all at once."""
    values = asdict(args)
    wrong = range_problems(type(args), values)
    problems = [f"--{name.replace('_', '-')} {message}" for name, message in wrong.items()]
    problems += declaration_of(args).problems(values, leaving_out=wrong)
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
    """Return the range of every field that has one; a preset that only changes a default keeps its parent's."""
    found: dict[str, Range] = {}
    for parent in reversed(args_type.__mro__[:-1]):
        for name, hint in typing.get_type_hints(parent, include_extras=True).items():
            if name in vars(parent).get("__annotations__", {}):
                limits = [extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, Range)]
                found |= dict.fromkeys([name], limits[0]) if limits else {}
    return found
