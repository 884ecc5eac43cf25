"""The worker's side of a run: register, report progress, obey commands, and record the ending.

    with WorkerSession.from_environment(run_id, folder, capabilities=…, target=target) as session:
        session.install_signal_handlers()
        session.open()
        session.started({…})
        …  session.progress(step, total)  …  session.next_command()  …
        session.finish(ExitOutcome.COMPLETED, exit_code=0)

An event is written to `lifecycle.jsonl` before it is sent. The daemon may stop and restart at any time; the worker
keeps running and resumes its heartbeats. Without a target there is no daemon.
"""

from __future__ import annotations

import _thread
import io
import math
import os
import queue
import secrets
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from mosaic_wire import env
from mosaic_wire.capabilities import Lane, WorkerCapabilities
from mosaic_wire.errors import SessionError, SessionStopped
from mosaic_wire.exit_record import BAD_INPUT, ExitOutcome, ExitRecord
from mosaic_wire.ids import check_run_id
from mosaic_wire.lifecycle import LAST_STATISTICS, LifecycleKind, LifecycleSpool, RunLifecycleEvent, shortened
from mosaic_wire.limits import MAX_REASON
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder
from mosaic_wire.redaction import is_secret_key, redact_document, redact_text, secret_values, spellings_of
from mosaic_wire.worker_config import WorkerConfig, run_folder_of

if TYPE_CHECKING:  # a worker without a daemon does not import grpc
    from mosaic_wire.bridge import MetricBridge
    from mosaic_wire.child_runs import ChildRuns
    from mosaic_wire.daemon_link import WorkerLink
    from mosaic_wire.event_records import EventBatch
    from mosaic_wire.system_metrics import SystemSampler
    from mosaic_wire.telemetry import TelemetryPublisher


class CommandKind(IntEnum):
    """Commands of the daemon to a running worker; numbers as in `ControlCommand.Kind` of trainer.proto."""

    PAUSE = 1
    RESUME = 2
    RELEASE = 3


_LAST_HEARTBEAT_S = 2.0
"""How long an ending waits for the daemon's acknowledgement; the file states it anyway"""

_ENDING_EVENTS = {
    ExitOutcome.COMPLETED: LifecycleKind.RUN_COMPLETED,
    ExitOutcome.FAILED: LifecycleKind.RUN_FAILED,
    ExitOutcome.CANCELLED: LifecycleKind.RUN_CANCELLED,
    ExitOutcome.RELEASED: LifecycleKind.PAUSED,
}


class Progress:
    """The progress of a run, written by the training loop and read by the heartbeat thread."""

    def __init__(self) -> None:
        self.step, self.total = 0, 0
        self.episodic_return: float | None = None
        self.sps: float | None = None
        self.moved_at = time.monotonic()

    def update(self, step: int, total: int, episodic_return: float | None, sps: float | None) -> None:
        """Update the progress (cheap enough for every step); None keeps an earlier value."""
        if step != self.step:
            self.step, self.moved_at = step, time.monotonic()
        self.total = total
        if episodic_return is not None:
            self.episodic_return = episodic_return
        if sps is not None:
            self.sps = sps

    @property
    def seconds_since_step(self) -> float:
        """Return the seconds since the step changed."""
        return time.monotonic() - self.moved_at


class WorkerSession:
    """One run of one worker process. Every method may be called from any thread."""

    def __init__(
        self,
        run_id: str,
        run_dir: Path,
        *,
        capabilities: WorkerCapabilities,
        algo: str = "",
        env_id: str = "",
        extras: Mapping[str, Any] | None = None,
        target: str | None,
        run_token: str = "",
        attempt: int = 1,
        heartbeat_s: float = 5.0,
    ) -> None:
        self.run_id, self.attempt = check_run_id(run_id), attempt
        self.run_folder = RunFolder(run_dir)
        self.stop_requested = threading.Event()
        self._capabilities, self._algo, self._env_id = capabilities, algo, env_id
        self._extras = dict(extras or {})
        self._target, self._run_token, self._heartbeat_s = target, run_token, heartbeat_s
        self._instance = os.environ.get(env.MOSAIC_NODE_INSTANCE) or secrets.token_hex(16)
        self._progress = Progress()
        self._spool: LifecycleSpool | None = None
        self._lock = threading.Lock()
        self._link: WorkerLink | None = None
        self._bridge: MetricBridge | None = None
        self._sampler: SystemSampler | None = None
        self._telemetry: TelemetryPublisher | None = None
        # SimpleQueue, because a signal handler may put into it at any moment.
        self._commands: queue.SimpleQueue[CommandKind | None] = queue.SimpleQueue()
        self._earlier_handlers: dict[int, Any] = {}
        known_secrets = secret_values(self._extras) | _environment_secrets()
        self._secrets = spellings_of(known_secrets | ({run_token} if run_token else set()))

    @classmethod
    def from_environment(cls, run_id: str, run_dir: Path, **options: Any) -> Self:
        """Return a session with token and attempt from the environment; `options` are the constructor's.

        The token is removed from the environment, so that no child process inherits it.
        """
        token = os.environ.pop(env.MOSAIC_RUN_TOKEN, "")
        attempt = os.environ.get(env.MOSAIC_RUN_ATTEMPT, "")
        number = int(attempt) if attempt.isascii() and attempt.isdigit() else 1
        return cls(run_id, run_dir, run_token=token, attempt=number, **options)

    @classmethod
    def of(cls, config: WorkerConfig, capabilities: WorkerCapabilities, target: str | None) -> Self:
        """Return a session for the run of a worker config."""
        return cls.from_environment(
            config.run_id,
            run_folder_of(config.run_id).root,
            capabilities=capabilities,
            algo=config.algo,
            env_id=config.env_id,
            extras=config.extras,
            target=target,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- beginning

    def install_signal_handlers(self) -> None:
        """Let SIGTERM and Ctrl-C set `stop_requested` (main thread only); a second Ctrl-C interrupts at once."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._earlier_handlers[number] = signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.stop_requested.is_set():
            raise KeyboardInterrupt
        # In a thread, and without the locks that starting a `Thread` takes: the main thread may have been interrupted
        # in `stop_requested.wait`, where it holds the lock that `set` needs.
        _thread.start_new_thread(self._request_stop, ())

    def _request_stop(self) -> None:
        self.stop_requested.set()
        self._commands.put(None)  # wakes a worker that waits for a command while it is paused

    def open(self, timeout_s: float = 60) -> None:
        """Register with the daemon, then open the lifecycle file.

        Retry until `timeout_s` while the daemon is unreachable. Raise RegistrationRefused with the daemon's message,
        SessionError when no daemon answered, SessionStopped after SIGTERM. Nothing is written unless it succeeds.
        """
        if self._target is not None:
            from mosaic_wire.daemon_link import WorkerLink

            self._link = WorkerLink(self._target, self.run_id, self._progress, self._commands, self._heartbeat_s)
            self._link.register(
                run_token=self._run_token,
                attempt=self.attempt,
                instance=self._instance,
                capabilities=self._capabilities.to_json(),
                algo=self._algo,
                env_id=self._env_id,
                extras=redact_document(self._extras, self._secrets),
                timeout_s=timeout_s,
                stop=self.stop_requested,
            )
        self.run_folder.root.mkdir(parents=True, exist_ok=True)
        self.run_folder.exit_record.unlink(missing_ok=True)  # it may be an earlier attempt's
        self._spool = LifecycleSpool(self.run_folder.lifecycle, self.run_id, attempt=self.attempt)
        if self._link is not None:
            self._link.start(lifecycle_seq=self._spool.seq)

    def open_or_explain(self) -> int | None:
        """Install the signal handlers and open the session; return the exit code when that is not possible."""
        self.install_signal_handlers()
        try:
            self.open()
        except SessionStopped:
            return ExitOutcome.CANCELLED.exit_code
        except SessionError as error:
            self.print_error(str(error))
            return BAD_INPUT
        return None

    def started(self, payload: Mapping[str, Any] | None = None) -> RunLifecycleEvent:
        """Report that the run has started; `payload` extends the session's own values."""
        known = {"worker_type": self._capabilities.worker_type, "algo": self._algo, "env_id": self._env_id}
        return self.emit(LifecycleKind.RUN_STARTED, {**known, **(payload or {})})

    # -- while it runs

    def follow_metrics(self, events: Path) -> None:
        """Publish every scalar in the event files of this folder until the session ends.

        With the run's own folder `tensorboard`, event files elsewhere in the run folder are read, too. The resource
        usage of the run is written there as well (`system/`). With `extras.minimal_telemetry`, episodes among the
        scalars are also sent to the telemetry lane.
        """
        if self._link is not None and self._bridge is None:
            from mosaic_wire.bridge import MetricBridge
            from mosaic_wire.system_metrics import SystemSampler

            self._sampler = SystemSampler(self.run_folder.root, events, lambda: self._progress.step)
            self._sampler.start()
            beside = events == self.run_folder.tensorboard
            self._bridge = MetricBridge(
                self.run_id, events, self._link, beside=beside, on_accepted=self._episode_rows()
            )
            self._bridge.start()

    def _episode_rows(self) -> Callable[[Sequence[EventBatch]], None] | None:
        """Return a callback that sends episodes in event files to the telemetry lane, if the run requests that."""
        if self._extras.get("minimal_telemetry") is not True or self._capabilities.lane != Lane.ANALYTICS:
            return None
        from mosaic_wire.telemetry import send_episodes

        telemetry = self.telemetry(steps=False)
        return None if telemetry is None else lambda batches: send_episodes(telemetry, batches)

    def telemetry(self, *, steps: bool = True, thin: bool = False) -> TelemetryPublisher | None:
        """Return the telemetry lane, or None without a daemon; raise TelemetryRefused for an analytics worker.

        With `extras.minimal_telemetry` such a worker may send episodes (`steps=False`).
        """
        if self._link is None or self._telemetry is not None:
            return self._telemetry
        from mosaic_wire.telemetry import TelemetryPublisher

        telemetry = TelemetryPublisher(self.run_id, self._link, steps=steps, thin=thin)
        telemetry.start()
        self._link.on_credits = telemetry.grant
        self._telemetry = telemetry
        return telemetry

    def child_runs(self) -> ChildRuns | None:
        """Return an interface to submit runs, for workers with `submits_runs`; None without a daemon."""
        if self._link is None:
            return None
        from mosaic_wire.child_runs import ChildRuns

        return ChildRuns(self._link, self.run_id, self.stop_requested)

    def emit(self, kind: LifecycleKind, payload: Mapping[str, Any] | None = None) -> RunLifecycleEvent:
        """Append an event without secrets to the lifecycle file, print it, and send a heartbeat."""
        if self._spool is None:
            raise RuntimeError("the session is not open")
        clean = redact_document(payload or {}, self._secrets)
        with self._lock:
            event = self._spool.append(LifecycleKind(kind), clean)
            _print(event.to_line())
            if self._link is not None:
                self._link.request_heartbeat(event.seq)
        return event

    def progress(self, step: int, total: int, episodic_return: float | None = None, sps: float | None = None) -> None:
        """Report progress with the next heartbeat."""
        self._progress.update(step, total, episodic_return, sps)

    @property
    def is_interrupted(self) -> bool:
        """Return whether a command or a signal waits to be obeyed."""
        return self.stop_requested.is_set() or not self._commands.empty()

    def next_command(self, timeout_s: float = 0) -> CommandKind | None:
        """Return the next PAUSE, RESUME or RELEASE within `timeout_s`; None when there is none or on SIGTERM.

        A repeated command is not returned again.
        """
        try:
            return self._commands.get_nowait() if timeout_s <= 0 else self._commands.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def pause(self, payload: Mapping[str, Any] | None = None, *, reason: str = "") -> CommandKind | None:
        """Emit `paused` and return the next RESUME (after emitting `resumed`) or RELEASE; None on SIGTERM.

        Write a checkpoint before calling this; after RELEASE, finish with ExitOutcome.RELEASED. `reason`: that of a
        worker which pauses by itself, without a PAUSE.
        """
        if reason and self._link is not None:
            self._link.pauses_itself()
        self.emit(LifecycleKind.PAUSED, {**(payload or {}), **({"reason": reason} if reason else {})})
        command = None
        while command not in (CommandKind.RESUME, CommandKind.RELEASE) and not self.stop_requested.is_set():
            command = self.next_command(timeout_s=60)
        if self.stop_requested.is_set():
            return None
        if command is CommandKind.RESUME:
            self.emit(LifecycleKind.RESUMED, payload)
        return command

    # -- ending

    def _last_statistics(self) -> dict[str, Any]:
        """Return step and return at the end, which heartbeats may not have reported."""
        progress = self._progress
        statistics: dict[str, Any] = {"step": progress.step} if progress.step else {}
        if progress.episodic_return is not None and math.isfinite(progress.episodic_return):
            statistics["episodic_return"] = float(progress.episodic_return)
        return {LAST_STATISTICS: statistics} if statistics else {}

    def finish(
        self,
        outcome: ExitOutcome,
        *,
        reason: str = "",
        payload: Mapping[str, Any] | None = None,
        exit_code: int | None = None,
        manifest: AnalyticsManifest | None = None,
    ) -> int:
        """Record the ending (event, final manifest if given, exit.json, a last heartbeat); return its exit code.

        Raise OSError if the event of a COMPLETED or RELEASED run cannot be written; the caller then finishes as FAILED.
        Other endings report failed writes on stderr.
        """
        exit_code = outcome.exit_code if exit_code is None else exit_code
        if self._sampler is not None:
            self._sampler.stop()
        if self._bridge is not None:
            self._bridge.stop()
        if self._telemetry is not None and (lost := self._telemetry.close()):
            self.print_error(f"{lost} steps or episodes could not be sent to the daemon")
        reason = shortened(redact_text(reason, self._secrets), MAX_REASON)
        facts = {**self._last_statistics(), **(payload or {})}
        if outcome is ExitOutcome.RELEASED:
            facts["release"] = True
        elif reason:
            facts.setdefault("error" if outcome is ExitOutcome.FAILED else "reason", reason)
        problems: list[OSError] = []
        try:
            self.emit(_ENDING_EVENTS[outcome], facts)
        except OSError as error:
            if outcome in (ExitOutcome.COMPLETED, ExitOutcome.RELEASED):
                raise
            problems.append(error)
        try:
            if manifest is not None:
                final = replace(manifest, outcome=str(outcome), reason=reason, finalised_by="worker")
                final.write(self.run_folder.manifest)
            ExitRecord.now(
                self.run_id, self.attempt, outcome, reason=reason, exit_code=exit_code, last_seq=self._last_seq
            ).write(self.run_folder.exit_record)
        except OSError as error:
            problems.append(error)
        for problem in problems:
            self.print_error(f"the run's ending could not be written: {problem}")
        if self._link is not None:
            self._link.wait_until_acknowledged(self._last_seq, timeout_s=_LAST_HEARTBEAT_S)
        return exit_code

    def fail(self, error: Exception, facts: Mapping[str, Any], manifest: AnalyticsManifest | None = None) -> int:
        """End the run as failed because of an unexpected exception; return the exit code."""
        self.print_error("".join(traceback.format_exception(error)))
        kind = type(error).__name__
        payload = {"error_type": kind, **facts}
        return self.finish(ExitOutcome.FAILED, reason=f"{kind}: {error}", payload=payload, manifest=manifest)

    @property
    def _last_seq(self) -> int:
        return self._spool.seq if self._spool is not None else 0

    def print_error(self, text: str) -> None:
        """Print to stderr without this run's secrets; ignore failures."""
        with suppress(OSError, ValueError):
            print(self.redact(text), file=sys.stderr, flush=True)  # noqa: T201 - the worker's only output channel

    def redact(self, text: str) -> str:
        """Return the text without this run's secrets."""
        return redact_text(text, self._secrets)

    def close(self) -> None:
        """Stop the threads, close channel and file, and restore signal handlers; may be called twice."""
        if self._sampler is not None:
            self._sampler.stop()
        if self._bridge is not None:
            self._bridge.stop(timeout_s=0)
        if self._telemetry is not None:
            self._telemetry.close(timeout_s=0)
        if self._link is not None:
            self._link.close()
        with self._lock:
            if self._spool is not None:
                self._spool.close()
                self._spool = None
        while self._earlier_handlers:
            number, handler = self._earlier_handlers.popitem()
            signal.signal(number, handler)


def _environment_secrets() -> set[str]:
    """Return secrets in environment variables, except paths such as SSH_AUTH_SOCK."""
    return {
        value
        for name, value in os.environ.items()
        if is_secret_key(name) and len(value) >= 8 and not os.path.exists(value)
    }


def _print(line: str) -> None:
    """Write to standard output, ignoring a full disk or a closed pipe.

    This bypasses Python's buffer, whose content after a failed write makes the interpreter exit with 120.
    """
    try:
        sys.stdout.flush()
        os.write(sys.stdout.fileno(), line.encode())
    except io.UnsupportedOperation:  # not a file (a notebook, a test that captures)
        sys.stdout.write(line)
    except (OSError, ValueError):
        pass
