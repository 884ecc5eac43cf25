"""The `run` an algorithm is given: event files, progress, checkpoints, and whether to go on."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mosaic_wire import env
from mosaic_wire.files import write_bytes_atomically
from mosaic_wire.manifest import CheckpointEntry
from mosaic_wire.paths import RunFolder

from cleanrl_worker.env_kwargs import read_env_kwargs
from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.training.channel import Channel, Command
from cleanrl_worker.training.checkpoint import load_state, save_state
from cleanrl_worker.training.envs import VectorEnvs, make_envs
from cleanrl_worker.training.events import EventWriter
from cleanrl_worker.training.foreign_model import ForeignModel, read_foreign_model
from cleanrl_worker.training.state import TrainingState
from cleanrl_worker.training.tracking import FINISH_S, HURRIED_FINISH_S, WandbTracker
from cleanrl_worker.wrappers.schedule import Schedule

_REPORT_EVERY_S = 0.5
_POLL_PAUSED_S = 0.5

Snapshot = Callable[[], TrainingState]


class Stop(StrEnum):
    """Why training ended before its steps were used up."""

    CANCELLED = "cancelled"
    RELEASED = "released"


class RunContext:
    """What surrounds an algorithm. Control is obeyed in `should_stop`, the algorithm's one safe point."""

    def __init__(
        self,
        algo: str,
        folder: Path,
        channel: Channel,
        *,
        tensorboard: Path | None = None,
        resume: Path | None = None,
        curriculum: Schedule | None = None,
        track: bool = False,
    ) -> None:
        self.algo = algo
        self.folder = RunFolder(folder)
        self._channel = channel
        self.checkpoint: TrainingState | None = None
        self.model: ForeignModel | None = None
        """A file with weights to begin from; nothing else of that training is known"""
        if resume is not None and resume.is_file():
            self.model = read_foreign_model(resume)
        elif resume is not None:
            self.checkpoint = load_state(resume, algo)
        self._resumed_from = resume
        self.curriculum = curriculum
        self._tracker = WandbTracker() if track else None
        writes_events = os.environ.get(env.TRACK_TENSORBOARD) != "0"
        self.writer = EventWriter(
            (tensorboard or self.folder.tensorboard) if writes_events else None,
            resume_at=self.checkpoint.step if self.checkpoint is not None else -1,
            mirror=self._tracker.log if self._tracker is not None else None,
        )
        self.stopped: Stop | None = None
        self._asked_to_stop = False
        self._saved_at = -1
        self._due_from = 0
        self._first_step = self._step = self._total = 0
        self._episodic_return: float | None = None
        self._started_at = time.monotonic()
        self._reported_at = -_REPORT_EVERY_S

    # -- around the loop

    def make_envs(self, args: Any) -> VectorEnvs:
        """The environments to train in: copies of one, or those of the curriculum; its stages are told as they come."""
        env_id, num_envs, env_kwargs = args.env_id, args.num_envs, read_env_kwargs(args.env_kwargs)
        if self.curriculum is None:
            if self.checkpoint is not None and self.checkpoint.environments().values.get("curriculum"):
                raise BadInput(
                    "the checkpoint is of a curriculum and this run has no curriculum_schedule; give it the same one, "
                    "or begin from the weights alone (the run's .cleanrl_model)"
                )
            return make_envs(env_id, num_envs, env_kwargs)
        from cleanrl_worker.wrappers.curriculum import CurriculumEnvs  # only this mode needs it

        return CurriculumEnvs(self.curriculum, num_envs, env_kwargs, on_stage=self._tell_stage)

    def weights(self) -> Mapping[str, np.ndarray]:
        """The network's weights to begin from, of a checkpoint or a file; empty: training begins from scratch."""
        if self.model is not None:
            return self.model.single_network(self.algo)
        return self.checkpoint.part("agent") if self.checkpoint is not None else {}

    def env_to_evaluate(self, env_id: str) -> str:
        """Where the trained policy is judged: of a curriculum, its last environment."""
        return env_id if self.curriculum is None else self.curriculum.stages[-1].env_id

    def _tell_stage(self, facts: Mapping[str, Any]) -> None:
        figures = {f"curriculum/{name}": float(facts[name]) for name in ("stage", "total_episodes")}
        self.writer.add_scalars(figures, facts["step"])
        self._channel.tell("stage_changed", facts)

    def begin(self, step: int, total: int, args: Any) -> None:
        """Say where training starts and where it is to end."""
        self._first_step, self._step, self._total, self._started_at = step, step, total, time.monotonic()
        if self.checkpoint is None:
            rows = "\n".join(f"|{name}|{value}|" for name, value in asdict(args).items())
            self.writer.add_text("hyperparameters", f"|param|value|\n|-|-|\n{rows}")
        if self._tracker is not None:
            self._tracker.start(args)
        self._tell_progress()

    def loaded(self, environments: str) -> None:
        """Say that the checkpoint was taken over, and how exactly the environments go on."""
        assert self.checkpoint is not None
        assert self._resumed_from is not None
        self._due_from = self.checkpoint.step
        if self._resumed_from.resolve().is_relative_to(self.folder.checkpoints.resolve()):
            self._saved_at = self.checkpoint.step  # it is this run's already
        facts = {"step": self.checkpoint.step, "environments": environments, "weights_only": False}
        self._channel.tell("checkpoint_loaded", {"path": str(self._resumed_from), **facts})

    def loaded_weights(self) -> None:
        """Say that training begins from the weights of a file, and with nothing else of theirs."""
        assert self.model is not None
        note = "only the weights: optimiser, step count and environments begin anew"
        facts = {"step": 0, "weights_only": True, "note": note, "sha256": self.model.sha256, "shape": self.model.shape}
        self._channel.tell("checkpoint_loaded", {"path": str(self.model.path), **facts})

    def steps_per_second(self, step: int) -> float:
        return (step - self._first_step) / max(time.monotonic() - self._started_at, 1e-9)

    def report(self, step: int, episodic_return: float | None) -> None:
        """Tell the worker how far training is; cheap enough for every iteration."""
        self._step, self._episodic_return = step, episodic_return
        if time.monotonic() - self._reported_at >= _REPORT_EVERY_S:
            self._tell_progress()

    def _tell_progress(self) -> None:
        self._reported_at = time.monotonic()
        sps = self.steps_per_second(self._step) if self._step > self._first_step else None
        message = {"step": self._step, "total": self._total, "episodic_return": self._episodic_return, "sps": sps}
        self._channel.tell("progress", message, must_arrive=False)
        self._tell_tracking()

    def _tell_tracking(self) -> None:
        if self._tracker is not None and (facts := self._tracker.news()):
            self._channel.tell("wandb", facts)

    # -- control

    def request_stop(self) -> None:
        """Ask for a stop at the next safe point; safe to call from a signal handler."""
        self._asked_to_stop = True

    def should_stop(self, step: int, snapshot: Snapshot) -> bool:
        """The safe point: obey what was asked for; holds here while paused."""
        return self._obey(lambda: self._save(step, snapshot, "last"))

    def stop_requested(self) -> bool:
        """The same after training, where everything worth saving has been saved (a long evaluation)."""
        if time.monotonic() - self._reported_at >= _REPORT_EVERY_S:
            self._reported_at = time.monotonic()
            self._channel.tell("alive", {}, must_arrive=False)
        return self._obey(lambda: None)

    def _obey(self, save: Callable[[], None]) -> bool:
        commands = self._channel.poll()
        while commands and not self._asked_to_stop and self.stopped is None:
            command = commands.pop(0)
            if command is Command.STOP:
                self._asked_to_stop = True
            elif command is Command.RELEASE:
                self.stopped = Stop.RELEASED
            elif command is Command.PAUSE:
                save()
                commands = self._hold(commands)
        if self._asked_to_stop and self.stopped is None:
            self.stopped = Stop.CANCELLED
        return self.stopped is not None

    def _hold(self, commands: list[Command]) -> list[Command]:
        """Wait until told otherwise; return the commands to go on with."""
        self.writer.flush()
        self._channel.tell("paused", {"step": self._step})
        paused_at = time.monotonic()
        while not self._asked_to_stop:
            while commands:
                command = commands.pop(0)
                if command is Command.RESUME:
                    self._started_at += time.monotonic() - paused_at  # a pause is not slow training
                    self._channel.tell("resumed", {"step": self._step})
                    return commands
                if command is not Command.PAUSE:
                    return [command, *commands]
            commands = self._channel.poll(_POLL_PAUSED_S)
        return []

    # -- what stays

    def save_if_due(self, step: int, every: int, snapshot: Snapshot) -> None:
        """Write a periodic checkpoint when a multiple of `every` steps was passed since the last."""
        if every and step // every > self._due_from // every:
            self._due_from = step
            self._save(step, snapshot, "periodic")

    def save_last(self, step: int, snapshot: Snapshot) -> None:
        """Write the checkpoint that a resumed or extended run goes on from."""
        self._save(step, snapshot, "last")

    def _save(self, step: int, snapshot: Snapshot, kind: str) -> None:
        if step == self._saved_at:
            return
        entry = save_state(self.folder, self.algo, snapshot(), kind)
        self._saved_at = step
        self._tell_saved(entry)

    def _tell_saved(self, entry: CheckpointEntry) -> None:
        message = {"path": entry.path, "step": entry.step, "sha256": entry.sha256, "checkpoint_kind": entry.kind}
        self._channel.tell("checkpoint_saved", message)

    def save_policy(self, model: Any, name: str) -> None:
        """Write the bare weights for people who load them elsewhere, as CleanRL does: a state dict or several."""
        weights = _on_the_cpu(model)
        buffer = io.BytesIO()
        torch.save(weights, buffer)
        try:
            write_bytes_atomically(self.folder.root / name, buffer.getvalue())
        except OSError as error:
            raise TrainingStopped(f"the policy {name} could not be written: {error.strerror or error}") from error
        self._channel.tell("policy", {"path": name})

    def finish_tracking(self, *, failed: bool) -> None:
        """Let W&B have the rest, within bounds; harmless when nothing is tracked or it is done already."""
        if self._tracker is not None:
            in_a_hurry = failed or self.stopped is not None
            self._tracker.finish(HURRIED_FINISH_S if in_a_hurry else FINISH_S, exit_code=int(failed))
            self._tell_tracking()

    def end(self, result: Mapping[str, Any]) -> None:
        """Say how it ended; the training process has nothing to do after this but to let W&B finish."""
        self.writer.close()
        self._tell_progress()
        self._channel.tell("ended", {"outcome": str(self.stopped or "completed"), "step": self._step, **result})
        self.finish_tracking(failed=False)


def _on_the_cpu(model: Any) -> Any:
    """Tensors of a state dict (or of a tuple of them) in memory of their own: views would drag their block along."""
    if isinstance(model, tuple):
        return tuple(_on_the_cpu(part) for part in model)
    if isinstance(model, Mapping):
        return {key: _on_the_cpu(value) for key, value in model.items()}
    return model.detach().cpu().clone() if isinstance(model, torch.Tensor) else model
