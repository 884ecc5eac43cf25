"""What tests of MOSAIC and of third-party workers share: waiting, a daemon to play with, a worker process to watch."""

from __future__ import annotations

import json
import os
import queue
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import grpc

from mosaic_wire import env
from mosaic_wire.daemon_link import RUN_TOKEN_HEADER, SESSION_TOKEN_HEADER
from mosaic_wire.exit_record import ExitRecord
from mosaic_wire.ids import new_run_id
from mosaic_wire.lifecycle import LifecycleReader, RunLifecycleEvent
from mosaic_wire.paths import Home, RunFolder
from mosaic_wire.proto import trainer_pb2 as messages
from mosaic_wire.proto.trainer_pb2_grpc import TrainerServiceServicer, add_TrainerServiceServicer_to_server
from mosaic_wire.session import CommandKind

GENEROUS_S = 60.0
"""How long a test waits for something that takes a moment on an idle machine."""


def wait_until(predicate: Callable[[], object], *, timeout_s: float = GENEROUS_S, poll_s: float = 0.02) -> bool:
    """Poll until the predicate holds; False when it did not within the time (assert on it)."""
    deadline = time.monotonic() + timeout_s
    while not predicate():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll_s)
    return True


class PlayDaemon:
    """A real gRPC server on a unix socket that plays the trainer daemon's part towards workers, and remembers.

    `stop()` makes it vanish, `start()` brings it back on the same socket with the same sessions, as a restarted daemon
    would. `refusal` (a status code and a message) turns every registration away.
    """

    def __init__(self, *, run_token: str = "", heartbeat_s: float = 0.1) -> None:
        self.run_token, self.heartbeat_s = run_token, heartbeat_s
        self.refusal: tuple[grpc.StatusCode, str] | None = None
        self.registrations: list[messages.RegisterWorkerRequest] = []
        self.heartbeats: list[messages.HeartbeatRequest] = []
        self.metrics: list[messages.PublishRunMetricsRequest] = []
        self.steps: list[messages.RunStep] = []
        self.episodes: list[messages.RunEpisode] = []
        self.strangers: list[str] = []
        """Names of the calls that came with a wrong token"""
        self.control_streams = 0
        """How many control streams were opened so far"""
        # Not under pytest's tmp_path: a unix socket's path may have 108 bytes only.
        self._folder = Path(tempfile.mkdtemp(prefix="mosaic-play-"))
        self._session_tokens: dict[str, str] = {}
        self._instances: dict[tuple[str, int], str] = {}
        self._outboxes: list[queue.SimpleQueue[CommandKind | None]] = []
        self._lock = threading.Lock()
        self._server: grpc.Server | None = None

    @property
    def target(self) -> str:
        """What a worker gets as `--grpc-target`."""
        return f"unix:{self._folder}/daemon.sock"

    def start(self) -> Self:
        """Listen on the socket, again if it was stopped."""
        self._server = grpc.server(ThreadPoolExecutor(16, thread_name_prefix="play-daemon"))
        calls = _WorkerCalls(self)  # type: ignore[abstract]  # the base class answers UNIMPLEMENTED to all others
        add_TrainerServiceServicer_to_server(calls, self._server)
        self._server.add_insecure_port(self.target)
        self._server.start()
        return self

    def stop(self) -> None:
        """Vanish: every connection breaks."""
        if self._server is not None:
            self._close_outboxes()
            self._server.stop(grace=None).wait()
            self._server = None

    def close(self) -> None:
        """Vanish for good."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, kind: CommandKind) -> None:
        """Send a control command to every worker that listens."""
        with self._lock:
            for outbox in self._outboxes:
                outbox.put(kind)

    def is_listened_to(self) -> bool:
        """Return whether a worker has its control stream open now."""
        with self._lock:
            return bool(self._outboxes)

    def _close_outboxes(self) -> None:
        with self._lock:
            for outbox in self._outboxes:
                outbox.put(None)

    # -- what the servicer asks

    def _register(self, request: messages.RegisterWorkerRequest, token: str) -> str | tuple[grpc.StatusCode, str]:
        with self._lock:
            self.registrations.append(request)
            if self.refusal is not None:
                return self.refusal
            if token != self.run_token:
                self.strangers.append("RegisterWorker")
                return grpc.StatusCode.UNAUTHENTICATED, "the run token is wrong"
            known = self._instances.setdefault((request.run_id, request.attempt), request.instance)
            if known != request.instance:
                return grpc.StatusCode.ALREADY_EXISTS, "another worker of this attempt has registered"
            return self._session_tokens.setdefault(request.run_id, secrets.token_hex(16))

    def _knows(self, run_id: str, token: str, call: str) -> bool:
        with self._lock:
            if self._session_tokens.get(run_id) == token:
                return True
            self.strangers.append(call)
            return False


class _WorkerCalls(TrainerServiceServicer):
    """The calls a worker makes."""

    def __init__(self, daemon: PlayDaemon) -> None:
        self._daemon = daemon

    def RegisterWorker(self, request: messages.RegisterWorkerRequest, context: Any) -> messages.RegisterWorkerResponse:
        answer = self._daemon._register(request, _header(context, RUN_TOKEN_HEADER))
        if not isinstance(answer, str):
            context.abort(*answer)
        return messages.RegisterWorkerResponse(session_token=str(answer), heartbeat_s=self._daemon.heartbeat_s)

    def Heartbeat(self, request: messages.HeartbeatRequest, context: Any) -> messages.HeartbeatResponse:
        self._check_session(request.run_id, context, "Heartbeat")
        self._daemon.heartbeats.append(request)
        return messages.HeartbeatResponse()

    def PublishRunMetrics(
        self, request: messages.PublishRunMetricsRequest, context: Any
    ) -> messages.PublishRunMetricsResponse:
        self._check_session(request.run_id, context, "PublishRunMetrics")
        self._daemon.metrics.append(request)
        return messages.PublishRunMetricsResponse(accepted=True, position_json=request.after_json, credits=50_000)

    def PublishRunSteps(
        self, request: messages.PublishRunStepsRequest, context: Any
    ) -> messages.PublishTelemetryResponse:
        self._check_session(request.run_id, context, "PublishRunSteps")
        self._daemon.steps.extend(request.steps)
        return messages.PublishTelemetryResponse(stored_seq=len(self._daemon.steps), credits=10_000)

    def PublishRunEpisodes(
        self, request: messages.PublishRunEpisodesRequest, context: Any
    ) -> messages.PublishTelemetryResponse:
        self._check_session(request.run_id, context, "PublishRunEpisodes")
        self._daemon.episodes.extend(request.episodes)
        return messages.PublishTelemetryResponse(stored_seq=len(self._daemon.episodes), credits=10_000)

    def ControlStream(self, request: messages.ControlStreamRequest, context: Any) -> Iterator[messages.ControlCommand]:
        self._check_session(request.run_id, context, "ControlStream")
        daemon = self._daemon
        outbox: queue.SimpleQueue[CommandKind | None] = queue.SimpleQueue()
        with daemon._lock:
            daemon._outboxes.append(outbox)
            daemon.control_streams += 1
        if not context.add_callback(lambda: outbox.put(None)):
            outbox.put(None)  # the worker has left already
        try:
            while (kind := outbox.get()) is not None:
                yield messages.ControlCommand(kind=int(kind))  # type: ignore[arg-type]  # the same numbers
        finally:
            with daemon._lock:
                daemon._outboxes.remove(outbox)

    def _check_session(self, run_id: str, context: Any, call: str) -> None:
        if not self._daemon._knows(run_id, _header(context, SESSION_TOKEN_HEADER), call):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "the session token is wrong")


def _header(context: Any, name: str) -> str:
    return next((str(value) for key, value in context.invocation_metadata() if key == name), "")


class WorkerProcess:
    """A worker started as the daemon would start it, in a home of its own; `close` leaves no process behind."""

    def __init__(
        self,
        argv: Sequence[str],
        config: Mapping[str, Any] | str,
        home: Home,
        *,
        run_id: str | None = None,
        daemon: PlayDaemon | None = None,
        run_token: str | None = None,
        flags: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        attempt: int = 1,
    ) -> None:
        self.home = home
        self.run_id = run_id or new_run_id()
        self.folder: RunFolder = home.run_folder(self.run_id)
        self.mark = f"{self.run_id}.{attempt}.{secrets.token_hex(4)}"
        self.daemon = daemon
        logs = home.run_logs(self.run_id)
        for folder in (home.configs, self.folder.root, logs):
            folder.mkdir(parents=True, exist_ok=True)
        self.stdout_file, self.stderr_file = logs / "stdout.log", logs / "stderr.log"
        self.config_file = home.worker_config_file(self.run_id)
        text = config if isinstance(config, str) else json.dumps({**config, "run_id": self.run_id})
        self.config_file.write_text(text)
        command = [*argv, "--config", str(self.config_file), "--run-id", self.run_id, *flags]
        if daemon is not None:
            command += ["--grpc", "--grpc-target", daemon.target]
        token = run_token if run_token is not None else (daemon.run_token if daemon else "")
        variables = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            env.MOSAIC_HOME: str(home.root),
            env.MOSAIC_RUN_ID: self.run_id,
            env.MOSAIC_RUN_DIR: str(self.folder.root),
            env.MOSAIC_RUN_ATTEMPT: str(attempt),
            env.MOSAIC_RUN_TOKEN: token,
            env.MOSAIC_RUN_MARK: self.mark,
            env.MOSAIC_CONFIG_FILE: str(self.config_file),
            env.MOSAIC_CHECKPOINT_DIR: str(self.folder.checkpoints),
            env.MOSAIC_GRACE_S: "30",
            env.CUDA_VISIBLE_DEVICES: "",
            **(environment or {}),
        }
        with self.stdout_file.open("ab") as out, self.stderr_file.open("ab") as err:
            self.process = subprocess.Popen(
                command,
                env=variables,
                cwd=self.folder.root,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self, timeout_s: float = GENEROUS_S) -> int:
        """Return the exit code; raise with the end of the worker's output if it does not exit."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"the worker did not end within {timeout_s:g} s; stderr: {self.stderr()[-2000:]}"
            ) from None

    def events(self) -> list[RunLifecycleEvent]:
        """Its lifecycle so far."""
        return LifecycleReader(self.folder.lifecycle).read()

    def event_names(self) -> list[str]:
        """Return the kinds of its lifecycle events."""
        return [str(event.event) for event in self.events()]

    def exit_record(self) -> ExitRecord | None:
        """Return its exit.json, if it is there."""
        return ExitRecord.read(self.folder.exit_record)

    def stdout(self) -> str:
        """Return what it has printed."""
        return self.stdout_file.read_text(errors="replace")

    def stderr(self) -> str:
        """Return what it has written to stderr."""
        return self.stderr_file.read_text(errors="replace")

    def survivors(self) -> list[int]:
        """Pids of the live processes that carry this run's mark."""
        return [pid for pid in _live_pids() if self._is_marked(pid)]

    def _is_marked(self, pid: int) -> bool:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False
        return f"{env.MOSAIC_RUN_MARK}={self.mark}".encode() in environment.split(b"\0")

    def close(self) -> None:
        """Kill what is left of it, children included."""
        for _ in range(100):  # a process may fork between being listed and being killed
            left = self.survivors()
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self.process.poll() is not None and not left:
                return
            wait_until(lambda: self.process.poll() is not None, timeout_s=0.1)


def _live_pids() -> list[int]:
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if _state(pid) not in ("", "Z", "X")]


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
