"""The worker process of a run: reports, obeys, supervises one training process. It never imports torch."""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mosaic_wire import env
from mosaic_wire.capabilities import WorkerCapabilities
from mosaic_wire.exit_record import ExitOutcome
from mosaic_wire.interactive_lines import socket_of
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder, find_home
from mosaic_wire.session import WorkerSession

from cleanrl_worker.analytics import build_manifest
from cleanrl_worker.config import CleanRLWorkerConfig, flags_of
from cleanrl_worker.description import MODULE
from cleanrl_worker.fastlane import fastlane_variables
from cleanrl_worker.modes import interactive, policy_eval
from cleanrl_worker.modes import training as training_mode
from cleanrl_worker.modes.table import EVALUATE, INTERACTIVE, RESUME, TRAINING
from cleanrl_worker.no_progress import ProgressWatch
from cleanrl_worker.preflight import Preflight
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY, AlgorithmEntry, resolve
from cleanrl_worker.requirement_sets import hold, interpreter_for
from cleanrl_worker.requirement_sets.errors import RequirementSetError
from cleanrl_worker.telemetry import LifecycleEmitter
from cleanrl_worker.training_process import TrainingProcess, signal_name
from cleanrl_worker.wandb_settings import WandbSettings, wandb_settings
from cleanrl_worker.worker_run import (
    EXIT_BAD_INPUT,
    EXIT_CANCELLED,
    EXIT_DONE,
    EXIT_FAILED,
    POLL_S,
    SHARE_OF_GRACE,
    Ending,
    WorkerRun,
    drawing_variables,
    grace_s,
    print_tail,
)

__all__ = [
    "DEFAULT_ALGO_REGISTRY",
    "EXIT_BAD_INPUT",
    "EXIT_CANCELLED",
    "EXIT_DONE",
    "EXIT_FAILED",
    "CleanRLWorkerRuntime",
    "Ending",
]

logger = logging.getLogger(__name__)

Terminal = tuple[int, int]
"""Descriptors that somebody plays through: input, output"""


class CleanRLWorkerRuntime(WorkerRun):
    """A run of one of our algorithms, in whatever mode."""

    def __init__(
        self,
        config: CleanRLWorkerConfig,
        folder: RunFolder,
        *,
        target: str | None,
        found: Preflight | None = None,
        terminal: Terminal | None = None,
    ) -> None:
        super().__init__(config, folder, target=target)
        self._found, self._terminal = found or Preflight(), terminal
        self._entry: AlgorithmEntry = resolve(config.algo)
        self._stop_deadline: float | None = None

    def capabilities(self) -> WorkerCapabilities:
        """Only training leaves a checkpoint that its resources could be released with."""
        return replace(super().capabilities(), supports_checkpointing=self._config.mode in TRAINING)

    # -- what will run

    @cached_property
    def command(self) -> list[str]:
        """The training process' argv."""
        options, flags = self._mode_options(), flags_of(self._values)
        return [str(self._found.python), "-m", "cleanrl_worker.launcher", *options, self._entry.name, *flags]

    def _mode_options(self) -> list[str]:
        extras = self._config.extras
        if self._config.mode == EVALUATE:
            summary = find_home().evaluation_folder(self._config.run_id) / policy_eval.SUMMARY_FILE
            return policy_eval.launcher_options(extras, summary)
        if self._config.mode == INTERACTIVE:
            return interactive.launcher_options(extras, self._place)
        return training_mode.launcher_options(extras)

    @cached_property
    def _place(self) -> dict[str, Any]:
        """Where somebody plays."""
        if self._terminal is not None:
            return {"input": self._terminal[0], "output": self._terminal[1]}
        return {"socket": str(socket_of(self._folder))}

    @cached_property
    def _values(self) -> dict[str, Any]:
        return self._config.values_for(self._entry.spec())

    def _value(self, name: str) -> Any:
        known = self._entry.spec().field(name)
        return self._values.get(name, known.default if known is not None else None)

    @cached_property
    def _wandb(self) -> WandbSettings | None:
        """How the run talks to W&B; None when it does not."""
        if not self._config.is_tracked:
            return None
        is_resumed = self._config.mode == RESUME or os.environ.get(env.MOSAIC_RUN_ATTEMPT, "1") not in ("", "1")
        return wandb_settings(
            self._config.run_id, self._folder.root, self._config.extras, os.environ, is_resumed=is_resumed,
            project=self._wandb_name("wandb_project_name", env.WANDB_PROJECT),
            entity=self._wandb_name("wandb_entity", env.WANDB_ENTITY),
        )  # fmt: skip

    def _wandb_name(self, field: str, variable: str) -> str:
        """What the config says, else the variable, else the algorithm's default."""
        return str(self._values.get(field) or os.environ.get(variable) or self._value(field) or "")

    @cached_property
    def variables(self) -> dict[str, str]:
        """What the training process finds in its environment, besides the worker's own."""
        config, folder = self._config, self._folder
        threads = str(max(1, int(self._value("torch_threads") or 1)))
        return {
            env.MOSAIC_RUN_ID: config.run_id,
            env.MOSAIC_RUN_DIR: str(folder.root),
            env.MOSAIC_CHECKPOINT_DIR: str(folder.checkpoints),
            env.CLEANRL_RUN_ID: config.run_id,
            env.CLEANRL_RUN_DIR: str(folder.root),
            env.CLEANRL_TENSORBOARD_DIR: str(config.tensorboard_folder(folder)),
            env.CLEANRL_WORKER_ID: config.worker_id or "",
            env.CLEANRL_AGENT_ID: str(config.extras.get("agent_id") or ""),
            env.CLEANRL_SEED: str(self._value("seed")),
            env.CLEANRL_NUM_ENVS: str(self._value("num_envs")),
            env.TRACK_TENSORBOARD: "1" if config.writes_events else "0",
            env.TRACK_WANDB: "1" if config.is_tracked else "0",
            **({env.WANDB_RESUME: "allow"} if config.mode == RESUME else {}),
            **(self._wandb.variables if self._wandb is not None else {}),
            **drawing_variables(),
            **fastlane_variables(config.extras),
            "PYTHONUNBUFFERED": "1",
            # More threads than the algorithm asked for only fight each other.
            **dict.fromkeys(env.THREAD_COUNTS, threads),
        }

    def summary(self) -> dict[str, Any]:
        """What a dry run shows."""
        config, wandb = self._config, self._wandb
        return {
            "run_id": self._config.run_id,
            "mode": self._config.mode,
            "algo": self._config.algo,
            "env_id": self._config.env_id,
            "total_timesteps": self._config.total_timesteps,
            "seed": self._value("seed"),
            "module": self._entry.module,
            "argv": self.command,
            "environment": self.variables,
            "run_dir": str(self._folder.root),
            "tensorboard_dir": str(config.tensorboard_folder(self._folder)) if config.writes_events else None,
            "wandb": f"{wandb.mode}: {wandb.reason}".removesuffix(": ") if wandb is not None else "off",
            "checkpoint_dir": str(self._folder.checkpoints),
            "resume_from": str(self._config.resume_from) if self._config.resume_from is not None else None,
        }

    # -- running it

    def first_manifest(self, session: WorkerSession) -> AnalyticsManifest:
        manifest = build_manifest(
            self._config, self._folder, argv=self.command, requirements=self._found.sets or ("base",),
            versions=self._found.versions, threads=int(self.variables[env.THREAD_COUNTS[0]]), attempt=session.attempt,
        )  # fmt: skip
        if self._wandb is None:
            return manifest
        project = self._wandb_name("wandb_project_name", env.WANDB_PROJECT) or None
        entity = self._wandb_name("wandb_entity", env.WANDB_ENTITY) or None
        return replace(
            manifest, wandb_run_id=self._config.run_id, wandb_project=project, wandb_entity=entity,
            wandb_run_path=f"{entity}/{project}/{self._config.run_id}" if entity and project else None,
            extra={**manifest.extra, "wandb_mode": self._wandb.mode},
        )  # fmt: skip

    def started_facts(self) -> dict[str, Any]:
        facts = {
            "seed": self._value("seed"), "total_timesteps": self._config.total_timesteps, "module": MODULE,
            "mode": self._config.mode,
        }  # fmt: skip
        return {**facts, "interactive": self._place} if self._config.mode == INTERACTIVE else facts

    def supervise(self, session: WorkerSession, emitter: LifecycleEmitter) -> Ending:
        """Carry messages both ways until the training process is gone."""
        try:
            held = hold(self._interpreter())
        except RequirementSetError as error:
            return Ending(ExitOutcome.FAILED, EXIT_BAD_INPUT, str(error), {"error_type": type(error).__name__})
        try:
            return self._follow(session, emitter, (*held, *(self._terminal or ())))
        finally:
            for descriptor in held:
                os.close(descriptor)

    def _interpreter(self) -> Path:
        """The one of the run's requirement sets; a joint one of several is made now."""
        return interpreter_for(find_home(), self._found.sets) if self._found.sets else self._found.python

    def _follow(self, session: WorkerSession, emitter: LifecycleEmitter, keep_open: tuple[int, ...]) -> Ending:
        inherited = self._wandb.apply_to(os.environ) if self._wandb is not None else os.environ
        environ = {**inherited, **self.variables}
        training = TrainingProcess(
            self.command, environ, cwd=self._folder.root, logs=self._folder.logs, keep_open=keep_open
        )
        watch = ProgressWatch(self._config.extras)
        try:
            while not training.at_end:
                ended = training.returncode is not None
                messages = training.messages(0 if ended else POLL_S)
                for message in messages:
                    emitter.receive(message)
                    watch.hear(message)
                if ended and not messages:
                    break  # a child of an environment may still hold the pipe open
                self._forward_commands(session, training)
                if (stuck := watch.reason_to_end()) and not ended and self._stop_deadline is None:
                    emitter.failure = {"error": stuck, "error_type": "NoProgress"}
                    training.kill()
            returncode = training.wait(self._remaining_s())
            if returncode is None:
                returncode = training.kill()
            return self._ending(session, emitter, training, returncode)
        finally:
            training.close()

    def _forward_commands(self, session: WorkerSession, training: TrainingProcess) -> None:
        if session.stop_requested.is_set():
            if self._stop_deadline is None:
                self._stop_deadline = time.monotonic() + grace_s() * SHARE_OF_GRACE
                training.send("stop")
            elif time.monotonic() > self._stop_deadline:
                logger.warning("training reached no safe point within the grace; it is killed")
                training.kill()
            return
        while (kind := session.next_command()) is not None:
            training.send(kind.name.lower())

    def _remaining_s(self) -> float:
        if self._stop_deadline is not None:
            return max(0.0, self._stop_deadline - time.monotonic())
        return grace_s()

    # -- how it ended

    def _ending(
        self, session: WorkerSession, emitter: LifecycleEmitter, training: TrainingProcess, returncode: int
    ) -> Ending:
        outcome = (emitter.ending or {}).get("outcome")
        if outcome == ExitOutcome.COMPLETED and returncode == 0:
            return Ending(ExitOutcome.COMPLETED, EXIT_DONE, payload=emitter.result())
        if outcome == ExitOutcome.RELEASED and returncode == 0:
            return Ending(ExitOutcome.RELEASED, EXIT_DONE, payload=emitter.result())
        # The signal goes to the whole tree; training may be gone before this process has seen its own.
        if outcome == ExitOutcome.CANCELLED or session.stop_requested.wait(1.0 if returncode in (-15, 130) else 0):
            at = f" at step {emitter.ending['step']}" if emitter.ending else " before training reached a safe point"
            return Ending(ExitOutcome.CANCELLED, EXIT_CANCELLED, f"cancelled{at}", emitter.result())
        return self._failure(session, emitter, training, returncode)

    def _failure(
        self, session: WorkerSession, emitter: LifecycleEmitter, training: TrainingProcess, returncode: int
    ) -> Ending:
        known = emitter.failure or {}
        tail = [session.redact(line) for line in training.stderr_tail()]
        error = str(known.get("error") or f"the training process ended with {signal_name(returncode)}")
        payload = {
            "error": error,
            "error_type": known.get("error_type") or "TrainingProcessDied",
            "return_code": returncode,
            "command": self.command,
            "stderr_log": str(training.stderr_log.relative_to(self._folder.root)),
            "stderr_tail": tail,
        }
        if emitter.manifest.checkpoints:
            payload["checkpoint"] = emitter.manifest.checkpoints[-1].path  # what a resume would go on from
        print_tail(tail)
        exit_code = EXIT_BAD_INPUT if known.get("error_type") == "BadInput" else EXIT_FAILED
        return Ending(ExitOutcome.FAILED, exit_code, error, payload)


def render_summary(summary: dict[str, Any]) -> str:
    """A dry run's result for people."""
    lines = [
        f"{name:16} {value if isinstance(value, str | int) else json.dumps(value)}"
        for name, value in summary.items()
        if name != "notes"
    ]
    lines += [f"{'note':16} {note}" for note in summary.get("notes", ())]
    return "\n".join(lines)
