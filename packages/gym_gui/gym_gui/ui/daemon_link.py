"""The window's one connection to the daemon: gRPC in its own threads, results and updates as Qt signals.

    link = DaemonLink(connect, background)              connect: () -> TrainerClient, may start a daemon
    link.runs_changed.connect(model.update)
    link.call(lambda client: client.pause(run_id), owner=self, done=…)            one call
    link.stream(lambda client: client.metrics(run_id, follow=True), self.add, owner=self)   a stream, in batches

When the daemon is lost, `state_changed` is emitted and the link reconnects by itself; streams are resumed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Generic, TypeVar

from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.worker_spec import EXTRAS, WorkerSpec
from PySide6.QtCore import QObject, QTimer, Signal, Slot
from shiboken6 import isValid

from gym_gui.services.trainer.client import RpcStream, TrainerClient
from gym_gui.services.trainer.errors import DaemonUnreachable, TrainerError
from gym_gui.services.trainer.records import DELETED
from gym_gui.ui.background import Background

M = TypeVar("M")
T = TypeVar("T")


class DecodedStream(RpcStream[T]):
    """Applies `decode` to each message of another stream."""

    def __init__(self, stream: RpcStream[M], decode: Callable[[M], T]) -> None:
        self._stream: RpcStream[Any] = stream
        self._next: Callable[[], T] = lambda: decode(next(stream))

    def __next__(self) -> T:
        return self._next()

    def cancel(self) -> None:
        self._stream.cancel()


BATCH_MS = 100
"""Interval of updates of runs: the window cannot show more, and 200 live runs must not flood its event queue"""
_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.2, 2.0


class LinkPhase(Enum):
    CONNECTING = "connecting"
    CONNECTED = "connected"
    LOST = "lost"


@dataclass(frozen=True)
class LinkState:
    phase: LinkPhase
    detail: str = ""
    """Why the connection was lost, in a message for users"""
    target: str = ""


class Subscription(QObject, Generic[T]):
    """A stream that is read in its own thread until it ends or `cancel` is called."""

    def __init__(
        self,
        link: DaemonLink,
        open_stream: Callable[[TrainerClient], RpcStream[T]],
        on_batch: Callable[[list[T]], Any],
        *,
        owner: QObject,
        ended: Callable[[str], Any] | None,
        every_ms: int,
        keep_last: int | None,
    ) -> None:
        super().__init__(owner)
        self._link = link
        self._open = open_stream
        self._on_batch = on_batch
        self._ended = ended
        self._every_ms = every_ms
        self._waiting: deque[T] = deque(maxlen=keep_last)
        self.skipped = 0
        """Number of messages skipped because the window was slower than the stream (only with `keep_last`)."""
        self._flush_is_due = False
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._stream: RpcStream[T] | None = None
        self._thread = threading.Thread(target=self._read, name="mosaic-stream", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Cancel the stream; nothing is delivered afterwards."""
        self._stopped.set()
        if self._stream is not None:
            self._stream.cancel()
        self._link.forget_subscription(self)

    def join(self, timeout_s: float = 5) -> None:
        self._thread.join(timeout_s)

    def _read(self) -> None:
        text = ""
        while not self._stopped.is_set():
            client = self._link.wait_for_client(self._stopped)
            if client is None:
                return
            try:
                self._stream = self._open(client)
                if self._stopped.is_set():  # cancelled before there was a stream to cancel
                    self._stream.cancel()
                for message in self._stream:
                    self._enqueue(message)
                    if self._stopped.is_set():
                        return
            except DaemonUnreachable:
                self._link.lose(client)
                continue
            except TrainerError as error:
                text = str(error)
            break
        if not self._stopped.is_set():
            self._link.background.in_window(lambda: self._end(text), owner=self)

    def _enqueue(self, message: T) -> None:
        with self._lock:
            if self._waiting.maxlen is not None and len(self._waiting) == self._waiting.maxlen:
                self.skipped += 1
            self._waiting.append(message)
            if self._flush_is_due:
                return
            self._flush_is_due = True
        self._link.background.in_window(self._flush, owner=self)

    def _flush(self) -> None:
        """Deliver the collected messages in the window's thread, at most every `every_ms`."""
        with self._lock:
            batch = list(self._waiting)
            self._waiting.clear()
            self._flush_is_due = bool(batch)
        if batch and not self._stopped.is_set():
            QTimer.singleShot(self._every_ms, self, self._flush)
            self._on_batch(batch)

    def _end(self, text: str) -> None:
        self._flush()
        self._link.forget_subscription(self)
        if self._ended is not None:
            self._ended(text)


class DaemonLink(QObject):
    """Calls and streams of one daemon, and its updates of all runs."""

    state_changed = Signal(object)  # LinkState
    runs_loaded = Signal(object)  # tuple[pb.Run, ...]: everything, after each (re)connection
    runs_changed = Signal(object)  # tuple[pb.Run, ...]: at most every BATCH_MS, each run once
    runs_removed = Signal(object)  # tuple[str, ...]: ids of runs that the user deleted, in this or another client
    events_arrived = Signal(object)  # tuple[pb.StoryEvent, ...]: new ones only
    problem = Signal(str)  # error of a call without a `failed` callback

    def __init__(self, connect: Callable[[], TrainerClient], background: Background, parent: QObject | None = None):
        super().__init__(parent)
        self.background = background
        self.state = LinkState(LinkPhase.CONNECTING)
        self._connect = connect
        self._client: TrainerClient | None = None
        self._client_ready = threading.Condition()
        self._stopped = threading.Event()
        self._watch_stream: RpcStream[pb.RunUpdate] | None = None
        self._last_client: TrainerClient | None = None
        self.connect_options = ""
        """Options with which `mosaic` reaches this daemon from a terminal; empty for the home's own"""
        self.is_home_here = True
        """Whether the files of runs are on this machine; behind a loopback address may be a tunnel"""
        self._problem_of_files = ""
        self._subscriptions: set[Subscription[Any]] = set()
        self._pending: dict[str, pb.Run] = {}
        self._events: list[pb.StoryEvent] = []
        self._removed: list[str] = []
        self._pending_lock = threading.Lock()
        self._flush_is_due = False
        self._thread = threading.Thread(target=self._watch, name="mosaic-link", daemon=True)

    # -- lifecycle

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Disconnect from the daemon (it continues); return when every thread of this link has ended."""
        self._stopped.set()
        with self._client_ready:
            self._client_ready.notify_all()
        for subscription in list(self._subscriptions):
            subscription.cancel()
            subscription.join()
        if self._watch_stream is not None:
            self._watch_stream.cancel()
        if self._client is not None:
            self._client.close()
        if self._thread.is_alive():
            self._thread.join(15)

    @property
    def is_connected(self) -> bool:
        return self.state.phase is LinkPhase.CONNECTED

    # -- for widgets

    def client(self) -> TrainerClient:
        """Return the client of the present connection, for a job in a thread; raise DaemonUnreachable without one."""
        if (client := self._client) is None:
            raise DaemonUnreachable(self.state.detail or "not connected to the trainer daemon yet")
        return client

    def call(
        self,
        function: Callable[[TrainerClient], T],
        *,
        owner: QObject,
        done: Callable[[T], Any] | None = None,
        failed: Callable[[str], Any] | None = None,
    ) -> None:
        """Run one or several RPCs in a thread; `failed` gets a message for users (default: the signal `problem`)."""

        def run() -> T:
            return function(self.client())

        def on_error(error: Exception) -> None:
            if not isinstance(error, TrainerError | OSError | ValueError):
                raise error
            (failed or self.problem.emit)(str(error))

        self.background.run(run, owner=owner, done=done, failed=on_error)

    def local(self, run: pb.Run, *patterns: str, listed: Sequence[str] = ()) -> pb.Run:
        """Return the run with folders on this machine (`TrainerClient.local`); call it in a thread, it may wait.

        While the daemon cannot be reached, the copies are returned as they are; the banner says that it cannot.
        """
        client = self._client
        if client is None:
            return self.moved(run)
        try:
            return client.local(run, *patterns, listed=listed)
        except (DaemonUnreachable, ValueError):  # it was lost meanwhile, or closed
            pass
        except TrainerError as error:
            if str(error) != self._problem_of_files:  # tabs ask every few seconds
                self._problem_of_files = str(error)
                self.problem.emit(str(error))
        return client.copies.moved(run)

    def startable(self, spec: WorkerSpec) -> WorkerSpec:
        """Return the worker with a command that can be started here: on another machine the daemon starts it."""
        client = self._client or self._last_client
        return spec if client is None or self.is_home_here else replace(spec, argv=client.program(spec))

    def extras_program(self, spec: WorkerSpec) -> tuple[str, ...]:
        """Return the command that installs the worker's requirement sets where the daemon runs."""
        client = self._client or self._last_client
        return spec.extras_program if client is None or self.is_home_here else client.program(spec, EXTRAS)

    def moved(self, run: pb.Run) -> pb.Run:
        """Return the run with the folders in which `local` puts its files, as they are."""
        client = self._client or self._last_client
        return run if client is None or self.is_home_here else client.copies.moved(run)

    def fetched(self, run: pb.Run, path: Path) -> Path:
        """Return a file of a run that is listed here after fetching its content; call it in a thread."""
        client = self._client or self._last_client
        if client is not None and not self.is_home_here:
            self.local(run, client.copies.name_of(run.run_id, path))
        return path

    def stream(
        self,
        open_stream: Callable[[TrainerClient], RpcStream[T]],
        on_batch: Callable[[list[T]], Any],
        *,
        owner: QObject,
        ended: Callable[[str], Any] | None = None,
        every_ms: int = BATCH_MS,
        keep_last: int | None = None,
    ) -> Subscription[T]:
        """Read a stream in a thread and deliver its messages in batches; `keep_last` limits the backlog.

        After a reconnection `open_stream` is called again and should request only what is missing. `ended` is called
        with "" at the end of the stream, or with a message for users. The subscription ends with `owner`.
        """
        subscription = Subscription(
            self, open_stream, on_batch, owner=owner, ended=ended, every_ms=every_ms, keep_last=keep_last
        )
        self._subscriptions.add(subscription)
        stopped = subscription._stopped  # `destroyed` is emitted after the object was deleted
        subscription.destroyed.connect(lambda: stopped.set())
        return subscription

    # -- for subscriptions

    def wait_for_client(self, given_up: threading.Event) -> TrainerClient | None:
        """Wait for the connection and return the client; None when the link was stopped."""
        with self._client_ready:
            while self._client is None and not self._stopped.is_set() and not given_up.is_set():
                self._client_ready.wait(0.5)
            return None if self._stopped.is_set() or given_up.is_set() else self._client

    def lose(self, client: TrainerClient) -> None:
        """Report a client that does not answer, so that the connection thread reconnects now."""
        if client is self._client and self._watch_stream is not None:
            self._watch_stream.cancel()
        self._stopped.wait(_FIRST_RETRY_S)

    def forget_subscription(self, subscription: Subscription[Any]) -> None:
        self._subscriptions.discard(subscription)

    # -- the connection thread

    def _watch(self) -> None:
        retry_s = _FIRST_RETRY_S
        while not self._stopped.is_set():
            client: TrainerClient | None = None
            try:
                client = self._connect()
                listing = client.list(include_archived=True)
                retry_s = _FIRST_RETRY_S
                self._serve(client, listing)
                text = "the trainer daemon has ended its connection"
            except TrainerError as error:
                text = str(error)
            except OSError as error:
                text = f"cannot reach the trainer daemon: {error}"
            with self._client_ready:
                self._client = None
            if client is not None:
                client.close()
            if not self._stopped.is_set():
                self._set_state(LinkState(LinkPhase.LOST, text))
                self._stopped.wait(retry_s)
                retry_s = min(2 * retry_s, _LONGEST_RETRY_S)

    def _serve(self, client: TrainerClient, listing: pb.ListRunsResponse) -> None:
        """Publish all runs, then every change, until the stream breaks."""
        runs = tuple(listing.runs)
        with self._pending_lock:
            self._pending.clear()
            self._removed.clear()
        self.is_home_here = client.copies.is_here
        self._watch_stream = client.watch(since_seq=listing.last_seq)
        with self._client_ready:
            self._client = self._last_client = client
            self._client_ready.notify_all()
        if self._stopped.is_set():  # stopped before there was a stream to cancel
            self._watch_stream.cancel()
            return
        connected = LinkState(LinkPhase.CONNECTED, target=client.target)

        def announce() -> None:  # together: receivers may use the new client at once
            self.state = connected
            self.runs_loaded.emit(runs)
            self.state_changed.emit(connected)

        self._in_window(announce)
        for update in self._watch_stream:
            self._note(update)

    def _set_state(self, state: LinkState) -> None:
        def change() -> None:
            self.state = state
            self.state_changed.emit(state)

        self._in_window(change)

    def _note(self, update: pb.RunUpdate) -> None:
        with self._pending_lock:
            if update.event.kind == DELETED:
                self._pending.pop(update.run.run_id, None)
                self._removed.append(update.run.run_id)
            else:
                self._pending[update.run.run_id] = update.run
                if update.HasField("event"):
                    self._events.append(update.event)
            if self._flush_is_due:
                return
            self._flush_is_due = True
        self._in_window(self._flush)

    @Slot()
    def _flush(self) -> None:
        with self._pending_lock:
            runs, events, removed = tuple(self._pending.values()), tuple(self._events), tuple(self._removed)
            self._pending.clear()
            self._events.clear()
            self._removed.clear()
            self._flush_is_due = bool(runs or removed)
        if runs or removed:
            QTimer.singleShot(BATCH_MS, self, self._flush)
        if runs:
            self.runs_changed.emit(runs)
        if removed:
            self.runs_removed.emit(removed)
        if events:
            self.events_arrived.emit(events)

    def _in_window(self, function: Callable[[], Any]) -> None:
        if isValid(self):
            self.background.in_window(function, owner=self)
