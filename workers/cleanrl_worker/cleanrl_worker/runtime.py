"""The worker process of a run, from registration to exit code; it supervises a training process and never loads torch.

`SupervisedRun` is what every run has, `CleanRLWorkerRuntime` runs one of our algorithms, `ScriptRun` a script.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import select
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mosaic_extras.errors import RequirementSetError
from mosaic_extras.overlays import holding, interpreter_for
from mosaic_wire import env
from mosaic_wire.capabilities import WorkerCapabilities
from mosaic_wire.errors import RegistrationRefused, SessionError, SessionStopped
from mosaic_wire.exit_record import ExitOutcome
from mosaic_wire.frames import remove_frames
from mosaic_wire.interactive import socket_of
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder, find_home
from mosaic_wire.run_request import Mode
from mosaic_wire.session import WorkerSession

from cleanrl_worker import get_worker_metadata
from cleanrl_worker.analytics import build_manifest
from cleanrl_worker.config import CleanRLWorkerConfig, flags_of
from cleanrl_worker.fastlane import fastlane_variables
from cleanrl_worker.modes import SUMMARY_FILE, TRAINING, launcher_options
from cleanrl_worker.preflight import Preflight
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY, MODULE, resolve
from cleanrl_worker.telemetry import LifecycleEmitter
from cleanrl_worker.wandb_settings import WandbSettings, wandb_settings

__all__ = ["DEFAULT_ALGO_REGISTRY", "CleanRLWorkerRuntime"]

logger = logging.getLogger(__name__)

EXIT_DONE, EXIT_FAILED, EXIT_BAD_INPUT, EXIT_CANCELLED = 0, 1, 2, 130

POLL_S = 0.25
_DEFAULT_GRACE_S = 30.0
_SHARE_OF_GRACE = 0.8
"""The part of the grace that the training process may use; the rest is for the worker's own ending"""


# ------------------------------------------------------------------ any run


@dataclass(frozen=True)
class Ending:
    """How a run ended, ready for `session.finish`."""

    outcome: ExitOutcome
    exit_code: int
    reason: str = ""
    payload: dict[str, Any] = field(default_factory=dict)


class SupervisedRun(ABC):
    """Run one config from registration to exit code; subclasses do the work in between."""

    def __init__(
        self, config: CleanRLWorkerConfig, folder: RunFolder, *, target: str | None, found: Preflight | None = None
    ) -> None:
        self._config, self._folder, self._target, self._found = config, folder, target, found or Preflight()
        self._stop_deadline: float | None = None

    def capabilities(self) -> WorkerCapabilities:
        """Return what the daemon may request of this run."""
        return get_worker_metadata()

    @cached_property
    @abstractmethod
    def command(self) -> list[str]:
        """The argv of the training process."""

    @cached_property
    @abstractmethod
    def variables(self) -> dict[str, str]:
        """The environment variables of the training process, besides the worker's own."""

    @abstractmethod
    def supervise(self, session: WorkerSession, emitter: LifecycleEmitter) -> Ending:
        """Start the training process and follow it to its end."""

    @property
    def _seed(self) -> Any:
        return self._config.seed

    @property
    def _total_timesteps(self) -> int:
        return self._config.total_timesteps

    def summary(self) -> dict[str, Any]:
        """Return what a dry run shows."""
        config = self._config
        return {
            "run_id": config.run_id,
            "mode": config.mode,
            "algo": config.algo,
            "env_id": config.env_id,
            "total_timesteps": config.total_timesteps,
            "seed": self._seed,
            "argv": self.command,
            "environment": self.variables,
            "run_dir": str(self._folder.root),
        }

    def first_manifest(self, session: WorkerSession) -> AnalyticsManifest:
        """Return the manifest at the start."""
        threads = {**os.environ, **self.variables}.get(env.THREAD_COUNTS[0]) or os.cpu_count() or 1
        return build_manifest(
            self._config,
            self._folder,
            argv=self.command,
            requirements=self._found.sets or ("base",),
            versions=self._found.versions,
            threads=int(threads),
            attempt=session.attempt,
        )

    def started_facts(self) -> dict[str, Any]:
        """Return the payload of `run_started`."""
        facts = {"seed": self._seed, "total_timesteps": self._total_timesteps}
        return {**facts, "module": MODULE, "mode": self._config.mode}

    def run(self) -> int:
        """Register, work, end; return the exit code."""
        config = self._config
        with WorkerSession.from_environment(
            config.run_id,
            self._folder.root,
            capabilities=self.capabilities(),
            algo=config.algo,
            env_id=config.env_id,
            extras=config.extras,
            target=self._target,
        ) as session:
            session.install_signal_handlers()
            try:
                session.open()
            except SessionStopped:
                return EXIT_CANCELLED
            except SessionError as error:
                logger.error("%s", error)
                return EXIT_BAD_INPUT if isinstance(error, RegistrationRefused) else EXIT_FAILED
            try:
                return self._run_registered(session)
            finally:
                remove_frames(config.run_id)  # a training process that failed or was killed leaves them

    def _run_registered(self, session: WorkerSession) -> int:
        emitter = LifecycleEmitter(session, self.first_manifest(session))
        reserve = DiskReserve(self._folder.root)

        def finish(ending: Ending) -> int:
            reserve.release()
            return session.finish(
                ending.outcome,
                reason=ending.reason,
                payload=ending.payload,
                exit_code=ending.exit_code,
                manifest=emitter.manifest,
            )

        try:
            emitter.write_manifest()
            session.started(self.started_facts())
            session.follow_metrics(self._folder.tensorboard)
            return finish(self.supervise(session, emitter))
        except RequirementSetError as error:
            failure = {"error_type": type(error).__name__}
            return finish(Ending(ExitOutcome.FAILED, EXIT_BAD_INPUT, str(error), failure))
        except Exception as error:  # the boundary of the process: whatever happened, the run gets an ending
            logger.exception("the worker failed")
            failure = {"error": str(error), "error_type": type(error).__name__}
            reason = f"the worker failed: {error or type(error).__name__}"
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                reason = failure["error"] = f"no space left on the disk of {self._folder.root}"
            return finish(Ending(ExitOutcome.FAILED, EXIT_FAILED, reason, failure))

    def _stop_if_requested(
        self, session: WorkerSession, training: TrainingProcess, request: Callable[[], None]
    ) -> bool:
        """Pass a stop on with `request`, and kill the process when the grace is over; return whether it is stopping."""
        if not session.stop_requested.is_set():
            return False
        if self._stop_deadline is None:
            self._stop_deadline = time.monotonic() + grace_s() * _SHARE_OF_GRACE
            request()
        elif time.monotonic() > self._stop_deadline:
            logger.warning("the training process did not end within the grace; it is killed")
            training.kill()
        return True

    def _failure(
        self,
        session: WorkerSession,
        training: TrainingProcess,
        error: str,
        error_type: str,
        exit_code: int = EXIT_FAILED,
        **facts: Any,
    ) -> Ending:
        tail = [session.redact(line) for line in training.stderr_tail()]
        for line in tail:  # the daemon quotes the worker's own stderr in its reason
            sys.stderr.write(f"{line}\n")
        payload = {
            "error": error,
            "error_type": error_type,
            "return_code": training.returncode,
            "command": self.command,
            "stderr_log": str(training.stderr_log.relative_to(self._folder.root)),
            "stderr_tail": tail,
            **facts,
        }
        return Ending(ExitOutcome.FAILED, exit_code, error, payload)


def is_retried() -> bool:
    """Return whether this is not the run's first attempt."""
    return os.environ.get(env.MOSAIC_RUN_ATTEMPT, "1") not in ("", "1")


def grace_s() -> float:
    """Return how long after SIGTERM this worker has until the daemon kills it."""
    try:
        return max(1.0, float(os.environ[env.MOSAIC_GRACE_S]))
    except (KeyError, ValueError):
        return _DEFAULT_GRACE_S


def training_variables(
    config: CleanRLWorkerConfig, folder: RunFolder, *, seed: Any, num_envs: Any, is_tracked: bool
) -> dict[str, str]:
    """Return the variables of a training process, whether it runs an algorithm of ours or a script."""
    variables = {
        env.MOSAIC_RUN_ID: config.run_id,
        env.MOSAIC_RUN_DIR: str(folder.root),
        env.CLEANRL_RUN_ID: config.run_id,
        env.CLEANRL_RUN_DIR: str(folder.root),
        env.CLEANRL_TENSORBOARD_DIR: str(config.tensorboard_folder(folder)),
        env.CLEANRL_WORKER_ID: config.worker_id or "",
        env.CLEANRL_AGENT_ID: str(config.extras.get("agent_id") or ""),
        env.CLEANRL_SEED: "" if seed is None else str(seed),
        env.CLEANRL_NUM_ENVS: "" if num_envs is None else str(num_envs),
        env.TRACK_WANDB: "1" if is_tracked else "0",
    }
    if not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        # Without a screen frames are drawn in memory, unless the user has chosen otherwise.
        variables["SDL_VIDEODRIVER"] = os.environ.get("SDL_VIDEODRIVER", "dummy")
        variables["MUJOCO_GL"] = os.environ.get("MUJOCO_GL", "egl")
    return variables | fastlane_variables(config.extras)


def with_wandb(
    manifest: AnalyticsManifest, settings: WandbSettings, project: str | None, entity: str | None
) -> AnalyticsManifest:
    """Return the manifest with the W&B run of a tracked run."""
    return replace(
        manifest,
        wandb_run_id=manifest.run_id,
        wandb_project=project,
        wandb_entity=entity,
        wandb_run_path=f"{entity}/{project}/{manifest.run_id}" if entity and project else None,
        extra={**manifest.extra, "wandb_mode": settings.mode},
    )


# ------------------------------------------------------------------ the process below


class TrainingProcess:
    """Start `argv` and keep it until it is reaped. Its output goes to files, never through this process.

    `keep_open` are descriptors it inherits besides its pipes. With `own_group` it has no pipes but a process group of
    its own, which is signaled as a whole, and what is left of the group ends with it.
    """

    _READ_BYTES, _MAX_LINE_BYTES = 65536, 1 << 20
    _TAIL_BYTES, _TAIL_LINES = 8192, 20

    def __init__(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        *,
        cwd: Path,
        logs: Path,
        keep_open: Sequence[int] = (),
        own_group: bool = False,
    ) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self.stderr_log, self._own_group = logs / "stderr.log", own_group
        self._stderr_start = self.stderr_log.stat().st_size if self.stderr_log.exists() else 0
        control_read, self._control = os.pipe()
        self._progress, progress_write = os.pipe()
        inherited = [control_read, progress_write]
        pipes = dict(zip((env.CLEANRL_CONTROL_FD, env.CLEANRL_PROGRESS_FD), map(str, inherited), strict=True))
        try:
            with (logs / "stdout.log").open("ab") as stdout, self.stderr_log.open("ab") as stderr:
                self._process = subprocess.Popen(
                    argv,
                    env={**environ} if own_group else {**environ, **pipes},
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    pass_fds=keep_open if own_group else (*inherited, *keep_open),
                    start_new_session=own_group,
                )
        finally:
            os.close(control_read)
            os.close(progress_write)
        self._unread = b""
        self.at_end = False
        """Nothing more will be reported: every writer of the pipe has exited"""

    @property
    def returncode(self) -> int | None:
        """The exit code once the process has exited; negative: the signal that killed it."""
        return self._process.poll()

    def send(self, command: str) -> None:
        """Request pause, resume, release or stop at the next safe point."""
        try:
            os.write(self._control, json.dumps({"command": command}).encode() + b"\n")
        except BrokenPipeError:
            logger.debug("the training process exited before %s could be sent", command)

    def messages(self, timeout_s: float) -> list[dict[str, Any]]:
        """Return the messages of the training process, waiting at most this long for the first one."""
        if self.at_end or not select.select([self._progress], [], [], timeout_s)[0]:
            return []
        data = os.read(self._progress, self._READ_BYTES)
        self.at_end = not data
        *lines, self._unread = (self._unread + data).split(b"\n")
        self._unread = self._unread[: self._MAX_LINE_BYTES]
        return [message for line in lines if (message := _parse(line)) is not None]

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the exit; None when it did not come in time."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def signal(self, number: int) -> None:
        """Send it a signal; harmless when it has exited."""
        if self._own_group:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
        else:
            self._process.send_signal(number)

    def kill(self) -> int:
        """End it at once and reap it."""
        self.signal(signal.SIGKILL)
        return self._process.wait()

    def stderr_tail(self) -> list[str]:
        """Return the last lines this process wrote to stderr."""
        with self.stderr_log.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(self._stderr_start, size - self._TAIL_BYTES))
            text = stream.read(self._TAIL_BYTES).decode(errors="replace")
        return text.splitlines()[-self._TAIL_LINES :]

    def close(self) -> None:
        """Close the pipes; a process that still runs is ended first."""
        if self._own_group or self._process.poll() is None:
            self.kill()
        os.close(self._control)
        os.close(self._progress)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        logger.warning("a line of the progress pipe is not a message: %.200r", line)
        return None
    return message


def signal_name(returncode: int) -> str:
    """Return an exit code as text: `exit code 3` or `SIGKILL`."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"


class ProgressWatch:
    """Notice when the training process has made no step for too long (`extras.no_progress`)."""

    _LIMIT_S = 300.0
    _STOPPED_S = 10.0
    """An iteration of the worker's loop that takes this long was a stop (SIGSTOP), not slow training"""

    def __init__(self, extras: Mapping[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._kills = extras.get("no_progress") == "kill"
        self._limit_s = float(extras.get("no_progress_s") or self._LIMIT_S)
        self._clock = clock
        self._moved_at = self._ticked_at = clock()
        self._step: Any = None
        self._is_paused = False

    def on_message(self, message: Mapping[str, Any]) -> None:
        """Count any message as a sign of life, except a report of the same step."""
        kind = message.get("kind")
        if kind == "progress" and message.get("step") == self._step:
            return
        self._step = message.get("step", self._step)
        self._is_paused = kind == "paused" or (self._is_paused and kind != "resumed")
        self._moved_at = self._clock()

    def reason_to_end(self) -> str:
        """Return why the training process should be ended now; empty: it should not."""
        now = self._clock()
        if now - self._ticked_at > self._STOPPED_S or self._is_paused:
            self._moved_at += now - self._ticked_at
        self._ticked_at = now
        if self._kills and now - self._moved_at > self._limit_s:
            return f"no step for more than {self._limit_s:g} s (extras.no_progress says: kill)"
        return ""


RESERVE_BYTES = 128 << 10
"""Enough for the last event, the manifest and exit.json"""


class DiskReserve:
    """Reserve `RESERVE_BYTES` of the run's disk, so that a run which fills it can still report how it ended."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / ".reserve"
        try:
            descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
            finally:
                os.close(descriptor)
        except OSError as error:  # a run that starts on a full disk soon reports that itself
            logger.debug("no disk space could be reserved: %s", error)

    def release(self) -> None:
        """Free the space; harmless when called twice."""
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)


# ------------------------------------------------------------------ a run of one of our algorithms

Terminal = tuple[int, int]
"""Descriptors of an interactive client: input, output"""


class CleanRLWorkerRuntime(SupervisedRun):
    """A run of one of our algorithms, in any mode but custom_script."""

    def __init__(
        self,
        config: CleanRLWorkerConfig,
        folder: RunFolder,
        *,
        target: str | None,
        found: Preflight | None = None,
        terminal: Terminal | None = None,
    ) -> None:
        super().__init__(config, folder, target=target, found=found)
        self._entry, self._terminal = resolve(config.algo), terminal

    def capabilities(self) -> WorkerCapabilities:
        """Return what the daemon may request; only training leaves a checkpoint to release its resources with."""
        return replace(super().capabilities(), supports_checkpointing=self._config.mode in TRAINING)

    @cached_property
    def command(self) -> list[str]:
        """The argv of the training process."""
        summary = find_home().evaluation_folder(self._config.run_id) / SUMMARY_FILE
        options = launcher_options(self._config.extras, summary=summary, endpoint=self._endpoint)
        flags = flags_of(self._values)
        return [str(self._found.python), "-m", "cleanrl_worker.launcher", *options, self._entry.name, *flags]

    @cached_property
    def _endpoint(self) -> dict[str, Any]:
        """Where clients of an interactive run connect."""
        if self._terminal is not None:
            return {"input": self._terminal[0], "output": self._terminal[1]}
        return {"socket": str(socket_of(self._folder))}

    @cached_property
    def _values(self) -> dict[str, Any]:
        return self._config.values_for(self._entry.spec())

    def _value(self, name: str) -> Any:
        known = self._entry.spec().field(name)
        return self._values.get(name, known.default if known is not None else None)

    @property
    def _seed(self) -> Any:
        return self._value("seed")

    @cached_property
    def _wandb(self) -> WandbSettings | None:
        """How the run logs to W&B; None when it does not."""
        if not self._config.is_tracked:
            return None
        return wandb_settings(
            self._config.run_id,
            self._folder.root,
            self._config.extras,
            os.environ,
            is_resumed=self._config.mode == Mode.RESUME or is_retried(),
            project=self._wandb_name("wandb_project_name", env.WANDB_PROJECT),
            entity=self._wandb_name("wandb_entity", env.WANDB_ENTITY),
        )

    def _wandb_name(self, field: str, variable: str) -> str:
        """Return the name from the config, else the variable, else the algorithm's default."""
        return str(self._values.get(field) or os.environ.get(variable) or self._value(field) or "")

    @cached_property
    def variables(self) -> dict[str, str]:
        """The environment variables of the training process, besides the worker's own."""
        config = self._config
        common = training_variables(
            config, self._folder, seed=self._seed, num_envs=self._value("num_envs"), is_tracked=config.is_tracked
        )
        return {
            **common,
            env.MOSAIC_CHECKPOINT_DIR: str(self._folder.checkpoints),
            env.TRACK_TENSORBOARD: "1" if config.writes_events else "0",
            **({env.WANDB_RESUME: "allow"} if config.mode == Mode.RESUME else {}),
            **(self._wandb.variables if self._wandb is not None else {}),
            "PYTHONUNBUFFERED": "1",
            # More threads than the algorithm requests only compete with each other.
            **dict.fromkeys(env.THREAD_COUNTS, str(max(1, int(self._value("torch_threads") or 1)))),
        }

    def summary(self) -> dict[str, Any]:
        """Return what a dry run shows."""
        config = self._config
        return {
            **super().summary(),
            "module": self._entry.module,
            "tensorboard_dir": str(config.tensorboard_folder(self._folder)) if config.writes_events else None,
            "wandb": str(self._wandb) if self._wandb is not None else "off",
            "checkpoint_dir": str(self._folder.checkpoints),
            "resume_from": str(config.resume_from) if config.resume_from is not None else None,
        }

    def first_manifest(self, session: WorkerSession) -> AnalyticsManifest:
        """Return the manifest at the start, with the W&B run of a tracked run."""
        manifest = super().first_manifest(session)
        if self._wandb is None:
            return manifest
        project = self._wandb_name("wandb_project_name", env.WANDB_PROJECT) or None
        return with_wandb(manifest, self._wandb, project, self._wandb_name("wandb_entity", env.WANDB_ENTITY) or None)

    def started_facts(self) -> dict[str, Any]:
        """Return the payload of `run_started`."""
        facts = super().started_facts()
        return {**facts, "interactive": self._endpoint} if self._config.mode == Mode.INTERACTIVE else facts

    def supervise(self, session: WorkerSession, emitter: LifecycleEmitter) -> Ending:
        """Carry messages both ways until the training process has exited."""
        # A joint interpreter of several requirement sets is made now.
        sets, python = self._found.sets, self._found.python
        with holding(interpreter_for(find_home(), sets) if sets else python) as held:
            environ = self._wandb.apply_to(os.environ) if self._wandb is not None else os.environ
            training = TrainingProcess(
                self.command,
                {**environ, **self.variables},
                cwd=self._folder.root,
                logs=self._folder.logs,
                keep_open=(*held, *(self._terminal or ())),
            )
            try:
                self._follow(session, emitter, training)
                return self._ending(session, emitter, training)
            finally:
                training.close()

    def _follow(self, session: WorkerSession, emitter: LifecycleEmitter, training: TrainingProcess) -> None:
        watch = ProgressWatch(self._config.extras)
        while not training.at_end:
            ended = training.returncode is not None
            messages = training.messages(0 if ended else POLL_S)
            for message in messages:
                emitter.receive(message)
                watch.on_message(message)
            if ended and not messages:
                break  # a child of an environment may still hold the pipe open
            if not self._stop_if_requested(session, training, lambda: training.send("stop")):
                while (kind := session.next_command()) is not None:
                    training.send(kind.name.lower())
            if (stuck := watch.reason_to_end()) and not ended and self._stop_deadline is None:
                emitter.failure = {"error": stuck, "error_type": "NoProgress"}
                training.kill()
        deadline = self._stop_deadline
        if training.wait(grace_s() if deadline is None else max(0.0, deadline - time.monotonic())) is None:
            training.kill()

    def _ending(self, session: WorkerSession, emitter: LifecycleEmitter, training: TrainingProcess) -> Ending:
        returncode = training.returncode
        assert returncode is not None
        outcome = (emitter.ending or {}).get("outcome")
        if outcome in (ExitOutcome.COMPLETED, ExitOutcome.RELEASED) and returncode == 0:
            return Ending(ExitOutcome(outcome), EXIT_DONE, payload=emitter.result())
        # The signal goes to the whole tree; training may exit before this process has seen its own.
        if outcome == ExitOutcome.CANCELLED or session.stop_requested.wait(1.0 if returncode in (-15, 130) else 0):
            at = f" at step {emitter.ending['step']}" if emitter.ending else " before training reached a safe point"
            return Ending(ExitOutcome.CANCELLED, EXIT_CANCELLED, f"cancelled{at}", emitter.result())
        known = emitter.failure or {}
        error_type = str(known.get("error_type") or "TrainingProcessDied")
        facts = {}
        if emitter.manifest.checkpoints:
            facts["checkpoint"] = emitter.manifest.checkpoints[-1].path  # where a resume would continue
        return self._failure(
            session,
            training,
            str(known.get("error") or f"the training process ended with {signal_name(returncode)}"),
            error_type,
            EXIT_BAD_INPUT if error_type == "BadInput" else EXIT_FAILED,
            **facts,
        )
