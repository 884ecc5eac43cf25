"""The worker process of a run: reports, obeys, supervises one training process. It never imports torch."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from mosaic_wire import env
from mosaic_wire.errors import RegistrationRefused, SessionError, SessionStopped
from mosaic_wire.exit_record import ExitOutcome
from mosaic_wire.paths import RunFolder
from mosaic_wire.session import WorkerSession

from cleanrl_worker import get_worker_metadata
from cleanrl_worker.analytics import build_manifest
from cleanrl_worker.config import CleanRLWorkerConfig, flags_of
from cleanrl_worker.description import MODULE
from cleanrl_worker.disk_reserve import DiskReserve, is_disk_full
from cleanrl_worker.no_progress import ProgressWatch
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY, AlgorithmEntry, resolve
from cleanrl_worker.telemetry import LifecycleEmitter
from cleanrl_worker.training_process import TrainingProcess, signal_name

__all__ = ["DEFAULT_ALGO_REGISTRY", "CleanRLWorkerRuntime"]

logger = logging.getLogger(__name__)

EXIT_DONE, EXIT_FAILED, EXIT_BAD_INPUT, EXIT_CANCELLED = 0, 1, 2, 130

_POLL_S = 0.25
_DEFAULT_GRACE_S = 30.0
_SHARE_OF_GRACE = 0.8
"""The part of the grace training may use for its last checkpoint; the rest is for the worker's own ending"""


@dataclass(frozen=True)
class Ending:
    """How a run ended, ready for `session.finish`."""

    outcome: ExitOutcome
    exit_code: int
    reason: str = ""
    payload: dict[str, Any] = field(default_factory=dict)


class CleanRLWorkerRuntime:
    """Runs one config from registration to exit code."""

    def __init__(self, config: CleanRLWorkerConfig, folder: RunFolder, *, target: str | None) -> None:
        self._config, self._folder, self._target = config, folder, target
        self._entry: AlgorithmEntry = resolve(config.algo)
        self._stop_deadline: float | None = None

    # -- what will run

    @cached_property
    def command(self) -> list[str]:
        """The training process' argv."""
        resume = self._config.resume_from
        resumed = ["--resume-from", str(resume.absolute())] if resume is not None else []
        flags = flags_of(self._values)
        return [sys.executable, "-m", "cleanrl_worker.launcher", *resumed, self._entry.name, *flags]

    @cached_property
    def _values(self) -> dict[str, Any]:
        return self._config.values_for(self._entry.spec())

    def _value(self, name: str) -> Any:
        known = self._entry.spec().field(name)
        return self._values.get(name, known.default if known is not None else None)

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
            env.TRACK_TENSORBOARD: "1",
            env.TRACK_WANDB: "0",
            "PYTHONUNBUFFERED": "1",
            # More threads than the algorithm asked for only fight each other.
            **dict.fromkeys(env.THREAD_COUNTS, threads),
        }

    def summary(self) -> dict[str, Any]:
        """What a dry run shows."""
        return {
            "run_id": self._config.run_id,
            "algo": self._config.algo,
            "env_id": self._config.env_id,
            "total_timesteps": self._config.total_timesteps,
            "seed": self._value("seed"),
            "module": self._entry.module,
            "argv": self.command,
            "environment": self.variables,
            "run_dir": str(self._folder.root),
            "tensorboard_dir": str(self._config.tensorboard_folder(self._folder)),
            "checkpoint_dir": str(self._folder.checkpoints),
            "resume_from": str(self._config.resume_from) if self._config.resume_from is not None else None,
        }

    # -- running it

    def run(self) -> int:
        """Register, train, end; return the exit code."""
        config = self._config
        with WorkerSession.from_environment(
            config.run_id, self._folder.root, capabilities=get_worker_metadata(), algo=config.algo,
            env_id=config.env_id, extras=config.extras, target=self._target,
        ) as session:  # fmt: skip
            session.install_signal_handlers()
            try:
                session.open()
            except RegistrationRefused as error:
                logger.error("%s", error)
                return EXIT_BAD_INPUT
            except SessionStopped:
                return EXIT_CANCELLED
            except SessionError as error:
                logger.error("%s", error)
                return EXIT_FAILED
            return self._run_registered(session)

    def _run_registered(self, session: WorkerSession) -> int:
        manifest = build_manifest(
            self._config, self._folder, argv=self.command, requirements=self._entry.requirement_sets,
            threads=int(self.variables[env.THREAD_COUNTS[0]]), attempt=session.attempt,
        )  # fmt: skip
        emitter = LifecycleEmitter(session, manifest)
        reserve = DiskReserve(self._folder.root)
        try:
            emitter.write_manifest()
            session.started({
                "seed": self._value("seed"), "total_timesteps": self._config.total_timesteps, "module": MODULE,
                "mode": self._config.extras.get("mode", "train"),
            })  # fmt: skip
            ending = self._supervise(session, emitter)
            reserve.give_back()
            session.finish(
                ending.outcome, reason=ending.reason, payload=ending.payload, exit_code=ending.exit_code,
                manifest=emitter.manifest,
            )  # fmt: skip
        except Exception as error:  # the boundary of the process: whatever happened, the run gets an ending
            logger.exception("the worker failed")
            failure = {"error": str(error), "error_type": type(error).__name__}
            reason = f"the worker failed: {error or type(error).__name__}"
            if is_disk_full(error):
                reason = failure["error"] = f"no space left on the disk of {self._folder.root}"
            reserve.give_back()
            session.finish(
                ExitOutcome.FAILED, reason=reason, payload=failure, exit_code=EXIT_FAILED, manifest=emitter.manifest
            )
            return EXIT_FAILED
        return ending.exit_code

    def _supervise(self, session: WorkerSession, emitter: LifecycleEmitter) -> Ending:
        """Carry messages both ways until the training process is gone."""
        environ = {**os.environ, **self.variables}
        training = TrainingProcess(self.command, environ, cwd=self._folder.root, logs=self._folder.logs)
        watch = ProgressWatch(self._config.extras)
        try:
            while not training.at_end:
                ended = training.returncode is not None
                messages = training.messages(0 if ended else _POLL_S)
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
                self._stop_deadline = time.monotonic() + _grace_s() * _SHARE_OF_GRACE
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
        return _grace_s()

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
        for line in tail:  # the daemon quotes the worker's own stderr when it tells people what happened
            sys.stderr.write(f"{line}\n")
        exit_code = EXIT_BAD_INPUT if known.get("error_type") == "BadInput" else EXIT_FAILED
        return Ending(ExitOutcome.FAILED, exit_code, error, payload)


def _grace_s() -> float:
    try:
        return max(1.0, float(os.environ[env.MOSAIC_GRACE_S]))
    except (KeyError, ValueError):
        return _DEFAULT_GRACE_S


def render_summary(summary: dict[str, Any]) -> str:
    """A dry run's result for people."""
    lines = [
        f"{name:16} {value if isinstance(value, str | int) else json.dumps(value)}" for name, value in summary.items()
    ]
    return "\n".join(lines)
