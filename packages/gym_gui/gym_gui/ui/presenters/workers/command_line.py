"""The `mosaic train …` that does what a form does, for people who want to do it again without the form."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mosaic_wire.worker_spec import AlgorithmSpec

from gym_gui.ui.presenters.workers.order import FastLaneChoice, TrainOrder

PREFERRED_WORKER = "cleanrl"
"""Whose algorithm `mosaic train` takes when several workers have one of that name"""
_LINE_CHARACTERS = 56
"""So that a line is read without scrolling beside a form"""


@dataclass(frozen=True)
class CommandLine:
    """The words, and what of the form no word says."""

    argv: tuple[str, ...]
    only_in_json: tuple[str, ...] = ()
    """Names of settings that `mosaic train` has no flag for: the saved JSON and `mosaic submit` carry them"""

    @property
    def text(self) -> str:
        """Over several lines, as it can be pasted into a shell."""
        lines, line = [], " ".join(self.argv[:2])
        words = list(self.argv[2:])
        while words:
            piece = shlex.quote(words.pop(0))
            if piece.startswith("--") and words and not words[0].startswith("--"):
                piece += f" {shlex.quote(words.pop(0))}"
            if len(line) + len(piece) > _LINE_CHARACTERS:
                lines.append(line)
                line = " "
            line += f" {piece}"
        return " \\\n".join([*lines, line])


def command_of(order: TrainOrder, algorithm: AlgorithmSpec | None) -> CommandLine:
    """Only what differs from what `mosaic train` does by itself."""
    words = ["mosaic", "train", order.algo, order.env_id, "--total-timesteps", str(order.total_timesteps)]
    words += _seeds(order.seeds)
    for flag, value, usual in (
        ("--cpus", order.cpus, 1),
        ("--gpus", order.gpus, 0),
        ("--memory-mb", order.memory_mb, None),
        ("--max-wallclock", order.max_wallclock_minutes, None),
        ("--priority", order.priority, 0),
        ("--retries", order.retries, 0),
        ("--name", order.run_name, ""),
        ("--notes", order.notes, ""),
    ):
        if value != usual:
            words += _flag(flag, value)
    for tag in order.tags:
        words += ["--tag", tag]
    if order.install_missing:
        words.append("--install-missing")
    parameters = {**order.parameters, **order.wandb.parameters()}
    if order.wandb.enabled and (algorithm is None or algorithm.field("track") is not None):
        parameters["track"] = True
    for name, value in parameters.items():
        words += _parameter(name, value)
    if order.worker_type not in ("", PREFERRED_WORKER):
        words += ["--worker", order.worker_type]
    return CommandLine(tuple(words), _unsaid(order))


def _seeds(seeds: Sequence[int | None]) -> list[str]:
    known = [seed for seed in seeds if seed is not None]
    if not known:
        return []
    return ["--seed", str(known[0])] if len(known) == 1 else ["--seeds", seeds_text(known)]


def seeds_text(seeds: Sequence[int]) -> str:
    """1,2,3,7 → 1-3,7"""
    parts: list[list[int]] = []
    for seed in seeds:
        if parts and seed == parts[-1][-1] + 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def _flag(flag: str, value: Any) -> list[str]:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return [f"{flag}={text}"] if text.startswith("-") else [flag, text]


def _parameter(name: str, value: Any) -> list[str]:
    flag = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    if value is None:
        return [flag, "none"]
    text = value if isinstance(value, str) else json.dumps(value)
    return [f"{flag}={text}"] if text.startswith("-") or not text else [flag, text]


def _unsaid(order: TrainOrder) -> tuple[str, ...]:
    wandb = order.wandb
    said: Mapping[str, bool] = {
        "agent_id": bool(order.agent_id),
        "worker_id": bool(order.worker_id),
        "gpus.mandatory": order.gpus_mandatory not in (order.gpus, 0) or bool(order.gpus and not order.gpus_mandatory),
        "requirements": bool(order.requirements),
        "fastlane": order.fastlane != FastLaneChoice(),
        "minimal_telemetry": order.minimal_telemetry,
        "tensorboard": not order.tensorboard,
        "wandb_run_name": wandb.enabled and bool(wandb.run_name),
        "wandb_email": wandb.enabled and bool(wandb.email),
        "wandb_api_key": wandb.enabled and bool(wandb.api_key),
        "wandb_proxy": wandb.enabled and wandb.use_proxy,
        **dict.fromkeys(order.other_extras, True),
    }
    return tuple(name for name, is_said in said.items() if is_said)
