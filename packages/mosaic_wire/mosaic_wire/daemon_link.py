"""The connection of a worker session to its daemon: one channel, a heartbeat thread and a control thread.

Part of `mosaic_wire.session`, and apart from it only because importing grpc costs time that `--describe` and runs
without a daemon need not spend.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

# This module handles lost connections; gRPC's own messages about them do not belong in the worker's log.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc

from mosaic_wire import PROTOCOL_VERSION
from mosaic_wire.errors import RegistrationRefused, SessionError, SessionStopped, TelemetryRefused
from mosaic_wire.limits import registration_problem
from mosaic_wire.proto import trainer_pb2 as messages
from mosaic_wire.proto.trainer_pb2_grpc import TrainerServiceStub
from mosaic_wire.session import CommandKind, Progress

RUN_TOKEN_HEADER = "x-mosaic-run-token"
SESSION_TOKEN_HEADER = "x-mosaic-session-token"

FIRST_RETRY_S, LONGEST_RETRY_S = 0.1, 2.0
_CALL_S = 10.0
"""Deadline of one call; a frozen daemon must not hold the heartbeat thread for longer."""

AWAY = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)
"""The daemon is unreachable, or its disk is full; both may pass"""
_AWAY = AWAY | {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}
"""Temporary failures; every other status is a refusal"""

CHANNEL_OPTIONS = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_http_proxy", 0),  # the daemon is on this machine
    # Read the control stream in the waiting thread; the default wakes two threads ten times a second.
    ("SingleThreadedUnaryStream", 1),  # grpc.experimental.ChannelOptions has the name
)


class WorkerLink:
    """Registers once, then runs two daemon threads that reconnect silently until the worker ends."""

    def __init__(
        self,
        target: str,
        run_id: str,
        progress: Progress,
        commands: queue.SimpleQueue[CommandKind | None],
        heartbeat_s: float,
    ) -> None:
        self._target, self._run_id = target, run_id
        self._progress, self._commands, self._heartbeat_s = progress, commands, heartbeat_s
        self._channel = grpc.insecure_channel(target, options=CHANNEL_OPTIONS)
        self.stub = TrainerServiceStub(self._channel)
        """For further calls (`mosaic_wire.child_runs`)"""
        self.metadata: tuple[tuple[str, str], ...] = ()
        """Metadata of calls of this session; empty before the registration"""
        self._commanded = CommandKind.RESUME
        self._control_call: Any = None
        self._threads: list[threading.Thread] = []
        self._closing = False
        self._away = False
        self._seq = self._acknowledged_seq = 0
        self.on_credits: Callable[[int], None] = lambda credits: None
        """Called when the daemon grants telemetry credits"""
        self._changed = threading.Condition()  # guards the four above

    # -- registration

    def register(
        self,
        *,
        run_token: str,
        attempt: int,
        instance: str,
        capabilities: Mapping[str, Any],
        algo: str,
        env_id: str,
        extras: Mapping[str, Any],
        timeout_s: float,
        stop: threading.Event,
    ) -> None:
        """Request a session token until the daemon answers; requests with the same `instance` may be repeated."""
        request = messages.RegisterWorkerRequest(
            run_id=self._run_id,
            attempt=attempt,
            protocol_version=PROTOCOL_VERSION,
            instance=instance,
            pid=os.getpid(),
            capabilities_json=json.dumps(capabilities),
            algo=algo,
            env_id=env_id,
            extras_json=json.dumps(extras, default=str),
        )
        if problem := registration_problem(request.capabilities_json, request.extras_json, algo, env_id, instance):
            raise RegistrationRefused(f"this worker cannot register: {problem}")
        deadline = time.monotonic() + timeout_s
        pause_s = FIRST_RETRY_S
        while True:
            left_s = deadline - time.monotonic()
            call = self.stub.RegisterWorker.future(
                request,
                metadata=((RUN_TOKEN_HEADER, run_token),),
                timeout=max(0.1, min(left_s, _CALL_S)),
                wait_for_ready=True,
            )
            try:
                response = _result_unless(stop, call)
                break
            except grpc.RpcError as error:
                if error.code() not in _AWAY:
                    raise RegistrationRefused(f"the daemon refused this worker: {error.details()}") from None
                details = error.details()
                if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:  # its disk is full, or its registry locked
                    deadline = time.monotonic() + timeout_s
            if time.monotonic() + pause_s >= deadline:
                raise SessionError(
                    f"no trainer daemon let run {self._run_id} register at {self._target} within {timeout_s:g} s "
                    f"({details}); `mosaic daemon status` shows whether one runs"
                )
            if stop.wait(pause_s):
                raise SessionStopped("stopped before the daemon answered")
            pause_s = min(2 * pause_s, LONGEST_RETRY_S)
        self.metadata = ((SESSION_TOKEN_HEADER, response.session_token),)
        if response.heartbeat_s > 0:
            self._heartbeat_s = response.heartbeat_s

    # -- threads

    def start(self, *, lifecycle_seq: int) -> None:
        """Start heartbeats and receive commands."""
        self._seq = lifecycle_seq
        for name, work in (("mosaic-heartbeat", self._beat), ("mosaic-control", self._listen)):
            thread = threading.Thread(target=work, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def request_heartbeat(self, seq: int) -> None:
        """Send a heartbeat now, because the lifecycle file has grown to `seq`."""
        with self._changed:
            self._seq = seq
            self._changed.notify_all()

    def wait_until_acknowledged(self, seq: int, *, timeout_s: float) -> bool:
        """Wait until the daemon acknowledged this number; return at once while it is unreachable."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._acknowledged_seq >= seq or self._away or self._closing, timeout=timeout_s
            )
            return self._acknowledged_seq >= seq

    def close(self) -> None:
        """Stop both threads and close the channel."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._control_call is not None:
            self._control_call.cancel()
        self._channel.close()
        for thread in self._threads:
            thread.join(timeout=1)

    def _rest(self, seconds: float) -> bool:
        """Sleep; return True when the session closes meanwhile."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closing, timeout=seconds)

    def _beat(self) -> None:
        pause_s = 0.0
        while not self._rest(pause_s):
            with self._changed:
                seq = self._seq
            if self._send_heartbeat(seq):
                pause_s = 0.0
                with self._changed:
                    self._away, self._acknowledged_seq = False, max(self._acknowledged_seq, seq)
                    self._changed.notify_all()
                    self._changed.wait_for(self._has_something_to_send, timeout=self._heartbeat_s)
            else:
                pause_s = min(2 * pause_s or FIRST_RETRY_S, LONGEST_RETRY_S)
                with self._changed:
                    self._away = True
                    self._changed.notify_all()

    def _has_something_to_send(self) -> bool:
        return self._closing or self._seq > self._acknowledged_seq

    def _send_heartbeat(self, seq: int) -> bool:
        progress = self._progress
        request = messages.HeartbeatRequest(
            run_id=self._run_id,
            step=progress.step,
            total=progress.total,
            episodic_return=progress.episodic_return,
            sps=progress.sps,
            seconds_since_step=progress.seconds_since_step,
            lifecycle_seq=seq,
        )
        try:
            self.stub.Heartbeat(request, metadata=self.metadata, timeout=_CALL_S)
        except (grpc.RpcError, ValueError):  # ValueError: the channel was closed meanwhile
            return False
        return True

    def publish_metrics(self, request: messages.PublishRunMetricsRequest) -> messages.PublishRunMetricsResponse | None:
        """Send a batch of the metric bridge; return None while the daemon is unreachable or throttles."""
        try:
            return self.stub.PublishRunMetrics(request, metadata=self.metadata, timeout=_CALL_S)
        except (grpc.RpcError, ValueError):
            return None

    def publish_steps(self, request: messages.PublishRunStepsRequest) -> messages.PublishTelemetryResponse | None:
        """Send steps; return None while the daemon is unreachable."""
        return self._publish(self.stub.PublishRunSteps, request)

    def publish_episodes(self, request: messages.PublishRunEpisodesRequest) -> messages.PublishTelemetryResponse | None:
        """Send episodes; return None while the daemon is unreachable."""
        return self._publish(self.stub.PublishRunEpisodes, request)

    def _publish(self, method: Any, request: Any) -> messages.PublishTelemetryResponse | None:
        try:
            response: messages.PublishTelemetryResponse = method(request, metadata=self.metadata, timeout=_CALL_S)
        except (grpc.RpcError, ValueError) as error:
            if isinstance(error, grpc.RpcError) and error.code() not in _AWAY:
                raise TelemetryRefused(error.details() or "the daemon refused telemetry") from None
            return None
        return response

    def _listen(self) -> None:
        pause_s = FIRST_RETRY_S
        request = messages.ControlStreamRequest(run_id=self._run_id)
        while not self._closing:
            opened_at = time.monotonic()
            try:
                self._control_call = self.stub.ControlStream(request, metadata=self.metadata, wait_for_ready=True)
                for command in self._control_call:
                    if command.kind == messages.ControlCommand.CREDITS:
                        self.on_credits(command.credits)
                    else:
                        self._obey(command.kind)
            except (grpc.RpcError, ValueError):
                pass  # after a reconnect the daemon sends pending commands again
            lasted = time.monotonic() - opened_at > LONGEST_RETRY_S
            pause_s = FIRST_RETRY_S if lasted else min(2 * pause_s, LONGEST_RETRY_S)
            if self._rest(pause_s):
                return

    def pauses_itself(self) -> None:
        """Accept the RESUME of a pause that no command asked for."""
        if self._commanded is CommandKind.RESUME:
            self._commanded = CommandKind.PAUSE

    def _obey(self, kind: int) -> None:
        """Queue a command, except repeated ones and any after RELEASE."""
        if kind in tuple(CommandKind) and self._commanded not in (kind, CommandKind.RELEASE):
            self._commanded = CommandKind(kind)
            self._commands.put(self._commanded)


def _result_unless(stop: threading.Event, call: Any) -> messages.RegisterWorkerResponse:
    """Wait for an answer in small steps: the main thread handles signals only between them."""
    done = threading.Event()
    call.add_done_callback(lambda _: done.set())
    while not done.wait(0.1):
        if stop.is_set():
            call.cancel()
            raise SessionStopped("stopped before the daemon answered")
    response: messages.RegisterWorkerResponse = call.result()
    return response
