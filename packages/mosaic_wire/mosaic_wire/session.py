"""The worker's side of a run: register, tell how it goes, obey, and leave an honest ending.

    with WorkerSession.from_environment(run_id, folder, capabilities=…, target=target) as session:
        session.install_signal_handlers()
        session.open()
        session.started({…})
        …  session.progress(step, total)  …  session.next_command()  …
        session.finish(ExitOutcome.COMPLETED, exit_code=0)

Files come first: an event is in `lifecycle.jsonl` before anybody is told. The daemon may vanish and return at any time;
the worker goes on and notices it only as a heartbeat that is sent again. Without a target there is no daemon at all.
"""

from __future__ import annotations

import io
import math
import os
import queue
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from mosaic_wire import env
from mosaic_wire.capabilities import Lane, WorkerCapabilities
from mosaic_wire.exit_record import ExitOutcome, ExitRecord
from mosaic_wire.ids import check_run_id
from mosaic_wire.lifecycle import LAST_FIGURES, LifecycleKind, LifecycleSpool, RunLifecycleEvent, shortened
from mosaic_wire.limits import MAX_REASON
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder
from mosaic_wire.redaction import is_secret_key, redact_document, redact_text, secret_values, spellings_of

if TYPE_CHECKING:  # a worker without a daemon does not pay for grpc
    from mosaic_wire.bridge import MetricBridge
    from mosaic_wire.child_runs import ChildRuns
    from mosaic_wire.daemon_link import DaemonLink
    from mosaic_wire.event_batch import EventBatch
    from mosaic_wire.system_metrics import SystemSampler
    from mosaic_wire.telemetry import TelemetryPublisher


class CommandKind(IntEnum):
    """What the daemon may ask of a running worker; numbers as in `ControlCommand.Kind` of trainer.proto."""

    PAUSE = 1
    RESUME = 2
    RELEASE = 3


_LAST_HEARTBEAT_S = 2.0
"""How long an ending waits until the daemon has heard of it; the file tells it anyway."""

_ENDING_EVENTS = {
    ExitOutcome.COMPLETED: LifecycleKind.RUN_COMPLETED,
    ExitOutcome.FAILED: LifecycleKind.RUN_FAILED,
    ExitOutcome.CANCELLED: LifecycleKind.RUN_CANCELLED,
    ExitOutcome.RELEASED: LifecycleKind.PAUSED,
}


class Progress:
    """The headline of a run; written by the training loop, read by the heartbeat thread."""

    def __init__(self) -> None:
        self.step, self.total = 0, 0
        self.episodic_return: float | None = None
        self.sps: float | None = None
        self.moved_at = time.monotonic()

    def update(self, step: int, total: int, episodic_return: float | None, sps: float | None) -> None:
        """Cheap enough for every step. None keeps what was told before."""
        if step != self.step:
            self.step, self.moved_at = step, time.monotonic()
        self.total = total
        if episodic_return is not None:
            self.episodic_return = episodic_return
        if sps is not None:
            self.sps = sps

    @property
    def seconds_since_step(self) -> float:
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
        self._instance = secrets.token_hex(16)
        self._progress = Progress()
        self._spool: LifecycleSpool | None = None
        self._lock = threading.Lock()
        self._link: DaemonLink | None = None
        self._bridge: MetricBridge | None = None
        self._sampler: SystemSampler | None = None
        self._telemetry: TelemetryPublisher | None = None
        # SimpleQueue, because a signal handler may put into it at any moment.
        self._commands: queue.SimpleQueue[CommandKind | None] = queue.SimpleQueue()
        self._earlier_handlers: dict[int, Any] = {}
        known_secrets = secret_values(self._extras) | _secrets_of_the_environment()
        self._secrets = spellings_of(known_secrets | ({run_token} if run_token else set()))

    @classmethod
    def from_environment(
        cls,
        run_id: str,
        run_dir: Path,
        *,
        capabilities: WorkerCapabilities,
        algo: str = "",
        env_id: str = "",
        extras: Mapping[str, Any] | None = None,
        target: str | None,
        heartbeat_s: float = 5.0,
    ) -> Self:
        """A session with the token and the attempt the daemon put into the environment.

        The token is taken out of it, so that no child of this process inherits it.
        """
        token = os.environ.pop(env.MOSAIC_RUN_TOKEN, "")
        attempt = os.environ.get(env.MOSAIC_RUN_ATTEMPT, "")
        return cls(
            run_id, run_dir, capabilities=capabilities, algo=algo, env_id=env_id, extras=extras, target=target,
            run_token=token, attempt=int(attempt) if attempt.isascii() and attempt.isdigit() else 1,
            heartbeat_s=heartbeat_s,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- beginning

    def install_signal_handlers(self) -> None:
        """Let SIGTERM and Ctrl-C set `stop_requested` (main thread only); a second Ctrl-C interrupts at once."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._earlier_handlers[number] = signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.stop_requested.is_set():
            raise KeyboardInterrupt
        self.stop_requested.set()
        self._commands.put(None)  # wakes a worker that waits for a command while it is paused

    def open(self, timeout_s: float = 60) -> None:
        """Register with the daemon, then open the lifecycle file.

        Tries until `timeout_s` while the daemon is away. Raises RegistrationRefused with the daemon's words,
        SessionError when nobody answered, SessionStopped after SIGTERM. Nothing is written unless it succeeds.
        """
        if self._target is not None:
            from mosaic_wire.daemon_link import DaemonLink

            self._link = DaemonLink(self._target, self.run_id, self._progress, self._commands, self._heartbeat_s)
            self._link.register(
                run_token=self._run_token, attempt=self.attempt, instance=self._instance,
                capabilities=self._capabilities.to_json(), algo=self._algo, env_id=self._env_id,
                extras=redact_document(self._extras, self._secrets), timeout_s=timeout_s, stop=self.stop_requested,
            )  # fmt: skip
        self.run_folder.root.mkdir(parents=True, exist_ok=True)
        self.run_folder.exit_record.unlink(missing_ok=True)  # an earlier attempt's ending is not this one's
        self._spool = LifecycleSpool(self.run_folder.lifecycle, self.run_id, attempt=self.attempt)
        if self._link is not None:
            self._link.start(lifecycle_seq=self._spool.seq)

    def started(self, payload: Mapping[str, Any] | None = None) -> RunLifecycleEvent:
        """Tell that the run has started; `payload` adds to what the session knows anyway."""
        known = {"worker_type": self._capabilities.worker_type, "algo": self._algo, "env_id": self._env_id}
        return self.emit(LifecycleKind.RUN_STARTED, {**known, **(payload or {})})

    # -- while it runs

    def follow_metrics(self, events: Path) -> None:
        """Tell the daemon every scalar that appears in the event files of this folder, until the session ends.

        With the run's own folder `tensorboard`, those that lie elsewhere in the run folder are read, too.

        What the run takes of its machine is written there, too (`system/`). With `extras.minimal_telemetry` the
        episodes among them are sent as rows of the telemetry lane as well.
        """
        if self._link is not None and self._bridge is None:
            from mosaic_wire.bridge import MetricBridge
            from mosaic_wire.system_metrics import SystemSampler

            self._sampler = SystemSampler(self.run_folder.root, events, lambda: self._progress.step)
            self._sampler.start()
            beside = events == self.run_folder.tensorboard
            self._bridge = MetricBridge(self.run_id, events, self._link, beside=beside, on_taken=self._episode_rows())
            self._bridge.start()

    def _episode_rows(self) -> Callable[[Sequence[EventBatch]], None] | None:
        """What sends the episodes that appear in event files as rows of the telemetry lane, where the run asked so."""
        if self._extras.get("minimal_telemetry") is not True or self._capabilities.lane != Lane.ANALYTICS:
            return None
        from mosaic_wire.telemetry import send_episodes

        telemetry = self.telemetry(steps=False)
        return None if telemetry is None else lambda batches: send_episodes(telemetry, batches)

    def telemetry(self, *, steps: bool = True, thin: bool = False) -> TelemetryPublisher | None:
        """The telemetry lane; None without a daemon, TelemetryRefused for a worker of the analytics lane.

        With `extras.minimal_telemetry` such a worker may send episodes: `steps=False`.
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
        """The runs that this worker asks for, if its capabilities say `submits_runs`; None without a daemon."""
        if self._link is None:
            return None
        from mosaic_wire.child_runs import ChildRuns

        return ChildRuns(self._link, self.run_id, self.stop_requested)

    def emit(self, kind: LifecycleKind, payload: Mapping[str, Any] | None = None) -> RunLifecycleEvent:
        """Append an event to the lifecycle file, print it, and poke the daemon. Secrets are removed first."""
        if self._spool is None:
            raise RuntimeError("the session is not open")
        clean = redact_document(payload or {}, self._secrets)
        with self._lock:
            event = self._spool.append(LifecycleKind(kind), clean)
            _print(event.to_line())
            if self._link is not None:
                self._link.poke(event.seq)
        return event

    def progress(self, step: int, total: int, episodic_return: float | None = None, sps: float | None = None) -> None:
        """Say how far the run is; the next heartbeat carries it."""
        self._progress.update(step, total, episodic_return, sps)

    def next_command(self, timeout_s: float = 0) -> CommandKind | None:
        """The next PAUSE, RESUME or RELEASE, waiting up to `timeout_s`; None when there is none or on SIGTERM.

        A command that repeats the one before is never returned.
        """
        try:
            return self._commands.get_nowait() if timeout_s <= 0 else self._commands.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def hold(self, payload: Mapping[str, Any] | None = None) -> CommandKind | None:
        """Obey PAUSE: emit `paused`, wait for RESUME (emits `resumed`) or RELEASE; None when SIGTERM came instead.

        Write the checkpoint before you call it; after RELEASE, finish with ExitOutcome.RELEASED.
        """
        self.emit(LifecycleKind.PAUSED, payload)
        command = None
        while command not in (CommandKind.RESUME, CommandKind.RELEASE) and not self.stop_requested.is_set():
            command = self.next_command(timeout_s=60)
        if self.stop_requested.is_set():
            return None
        if command is CommandKind.RESUME:
            self.emit(LifecycleKind.RESUMED, payload)
        return command

    # -- ending

    def _last_figures(self) -> dict[str, Any]:
        """How far the run came: heartbeats may not have told it, if no daemon listened."""
        progress = self._progress
        figures: dict[str, Any] = {"step": progress.step} if progress.step else {}
        if progress.episodic_return is not None and math.isfinite(progress.episodic_return):
            figures["episodic_return"] = float(progress.episodic_return)
        return {LAST_FIGURES: figures} if figures else {}

    def finish(
        self,
        outcome: ExitOutcome,
        *,
        reason: str = "",
        payload: Mapping[str, Any] | None = None,
        exit_code: int,
        manifest: AnalyticsManifest | None = None,
    ) -> None:
        """Leave the ending: its event, the final manifest (if given), exit.json, one last heartbeat.

        A COMPLETED or RELEASED run whose event cannot be written raises OSError: the caller then finishes as FAILED.
        The other endings do as much as they can and say on stderr what they could not.
        """
        if self._sampler is not None:
            self._sampler.stop()
        if self._bridge is not None:
            self._bridge.stop()
        if self._telemetry is not None and (lost := self._telemetry.close()):
            self.complain(f"{lost} steps or episodes could not be handed to the daemon")
        reason = shortened(redact_text(reason, self._secrets), MAX_REASON)
        facts = {**self._last_figures(), **(payload or {})}
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
            self.complain(f"the run's ending could not be written: {problem}")
        if self._link is not None:
            self._link.wait_until_heard(self._last_seq, timeout_s=_LAST_HEARTBEAT_S)

    @property
    def _last_seq(self) -> int:
        return self._spool.seq if self._spool is not None else 0

    def complain(self, text: str) -> None:
        """Write to stderr, without this run's secrets; where there is no room for words the run's end matters more."""
        with suppress(OSError, ValueError):
            print(self.redact(text), file=sys.stderr, flush=True)  # noqa: T201 - all that is left

    def redact(self, text: str) -> str:
        """The text without this run's secrets, for whatever the worker prints or stores itself."""
        return redact_text(text, self._secrets)

    def close(self) -> None:
        """Stop the threads, close channel and file, give the signals back. Harmless when called twice."""
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


def _secrets_of_the_environment() -> set[str]:
    """Keys the daemon or the user handed over by environment variable (SSH_AUTH_SOCK and the like are paths)."""
    return {
        value
        for name, value in os.environ.items()
        if is_secret_key(name) and len(value) >= 8 and not os.path.exists(value)
    }


def _print(line: str) -> None:
    """Write to standard output; a full disk or a reader that left must not hurt the run.

    Past Python's buffer: what stays in there after a failed write makes the interpreter exit with 120.
    """
    try:
        sys.stdout.flush()
        os.write(sys.stdout.fileno(), line.encode())
    except io.UnsupportedOperation:  # not a file (a notebook, a test that captures)
        sys.stdout.write(line)
    except (OSError, ValueError):
        pass
