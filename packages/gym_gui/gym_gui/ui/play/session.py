"""A running game: a run of the daemon and the socket it listens on. Sends commands, emits answers as signals.

    session = PlaySession(link, parent)
    session.start(config)                       a run config whose worker serves the interactive protocol
    session.initialized → session.reset(seed=3) → session.ready → session.step(1) → session.stepped …

The environment lives in another process: its failures arrive as `ended` with a message for users. Only one command is
pending at a time; a step requested meanwhile is not sent (`is_busy`).
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from mosaic_wire.frames import LARGEST_SIDE
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_request import Mode, run_request
from mosaic_wire.run_status import RunOutcome, RunStatus
from PySide6.QtCore import QByteArray, QObject, Signal
from PySide6.QtGui import QImage
from PySide6.QtNetwork import QLocalSocket

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.widgets.parts import timer

_RETRY_MS = 150
_CANCEL_AFTER_MS = 5000
"""A game that does not end within this time is cancelled"""
_LONGEST_ANSWER = 64 << 20
_QUEUED = (RunStatus.INIT,)
_STARTING = (RunStatus.HSHK, RunStatus.RDY)


class PlayState(Enum):
    IDLE = "idle"
    STARTING = "starting"
    PLAYING = "playing"
    """The game is connected"""
    PAUSED = "paused"
    ENDED = "ended"


class PlaySession(QObject):
    """Runs one game at a time; `start` starts another one."""

    state_changed = Signal(object)  # PlayState
    progress = Signal(str)  # what the start is waiting for
    initialized = Signal(object)  # the init message
    ready = Signal(object)  # an episode has begun
    stepped = Signal(object)
    episode_done = Signal(object)
    frame_received = Signal(QImage)
    problem = Signal(str)  # a command that failed; the game continues
    ended = Signal(str, bool)  # reason (empty: as requested), and whether it is a failure

    def __init__(self, link: DaemonLink, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._link = link
        self.state = PlayState.IDLE
        self.run: pb.Run | None = None
        self.run_id = ""
        self.is_busy = False
        self._place = ""
        self._is_asking = False
        self._stop_sent = False
        self._failure = ""
        self._unread = QByteArray()
        self._serial = 0
        self._socket = QLocalSocket(self)
        self._socket.connected.connect(self._on_connected)
        self._socket.readyRead.connect(self._on_data)
        self._socket.disconnected.connect(self._on_disconnected)
        self._socket.errorOccurred.connect(self._on_socket_error)
        self._retry = timer(self, self._connect, _RETRY_MS, single_shot=True)
        self._cancel_timer = timer(self, lambda: self._cancel(self.run_id), _CANCEL_AFTER_MS, single_shot=True)
        link.runs_changed.connect(self._on_runs)
        link.runs_loaded.connect(self._on_runs)

    # ------------------------------------------------------------------ commands

    @property
    def is_playing(self) -> bool:
        return self.state in (PlayState.PLAYING, PlayState.PAUSED)

    @property
    def is_active(self) -> bool:
        return self.state in (PlayState.STARTING, PlayState.PLAYING, PlayState.PAUSED)

    def start(self, config: Mapping[str, Any]) -> None:
        """Submit the run and connect to it as soon as it listens."""
        if self.is_active:
            return
        self._serial += 1
        serial = self._serial
        self.run, self.run_id, self._place = None, "", ""
        self._is_asking = self._stop_sent = self.is_busy = False
        self._failure = ""
        self._unread = QByteArray()
        self._set_state(PlayState.STARTING)
        self.progress.emit(self.tr("Submitting a run …"))

        def submitted(run: pb.Run) -> None:
            if serial != self._serial or self.state is not PlayState.STARTING:
                self._cancel(run.run_id)  # the game was stopped meanwhile
                return
            self.run_id = run.run_id
            self._on_run(run)
            # Updates that arrived before its id was known were ignored.
            self._link.call(lambda client: client.get(run.run_id), owner=self, done=lambda now: self._on_runs((now,)))

        self._link.call(
            lambda client: client.submit(config).run,
            owner=self,
            done=submitted,
            failed=lambda text: self._end(text, failed=True) if serial == self._serial else None,
        )

    def reset(self, seed: int | None = None) -> bool:
        """Start an episode; a running one is abandoned."""
        return self._send({"cmd": "reset", "frames": "shm", **({} if seed is None else {"seed": seed})})

    def step(self, action: Any = None) -> bool:
        """Take a step; without an action, the policy's. Return False while another command is pending."""
        return self._send({"cmd": "step", **({} if action is None else {"action": action})})

    def end_episode(self) -> bool:
        """End the episode."""
        return self._send({"cmd": "end"})

    def stop(self) -> None:
        """End the game and its run, whatever its state."""
        if not self.is_active:
            return
        self._stop_sent = True
        connected = self._socket.state() == QLocalSocket.LocalSocketState.ConnectedState
        if connected and self.state is PlayState.PLAYING:
            self._write({"cmd": "stop"})
            self._socket.flush()  # the window may be about to close
            self._cancel_timer.start()
        elif self.run_id:
            self._cancel(self.run_id)
        else:
            self._end("", failed=False)

    def _cancel(self, run_id: str) -> None:
        # It may have ended already, which is fine.
        self._link.call(lambda client: client.cancel(run_id), owner=self, failed=lambda text: None)

    # ------------------------------------------------------------------ the run

    def _on_runs(self, runs: Iterable[pb.Run]) -> None:
        if self.is_active and self.run_id:
            for run in runs:
                if run.run_id == self.run_id:
                    self._on_run(run)

    def _on_run(self, run: pb.Run) -> None:
        self.run = run
        if run.status == RunStatus.TERM:
            self._end(self._outcome_text(run), failed=run.outcome == RunOutcome.FAILED)
        elif run.status == RunStatus.PAUSE:
            self._set_state(PlayState.PAUSED)
        elif self.state is PlayState.PAUSED and run.status == RunStatus.EXEC:
            self._set_state(PlayState.PLAYING)
        elif self.state is PlayState.STARTING:
            if run.status == RunStatus.EXEC:
                self._request_socket()
            elif run.status in _QUEUED:
                self.progress.emit(run.queue_reason or self.tr("The run is queued …"))
            elif run.status in _STARTING:
                self.progress.emit(self.tr("Starting the environment …"))

    def _outcome_text(self, run: pb.Run) -> str:
        """Return why the game ended, preferably as the environment states it."""
        if self._stop_sent or run.outcome == RunOutcome.COMPLETED:
            return "" if run.outcome != RunOutcome.FAILED else run.reason
        if self._failure:
            return self._failure
        return run.reason or self.tr("the run was {outcome}").format(outcome=run.outcome)

    def _request_socket(self) -> None:
        if self._is_asking or self._place:
            return
        self._is_asking = True
        run_id, serial = self.run_id, self._serial

        def poll(client: TrainerClient) -> str:
            for event in client.history(run_id):
                payload = json.loads(event.payload_json) if event.kind == "started" and event.payload_json else {}
                if isinstance(payload.get("interactive"), dict):
                    return str(payload["interactive"].get("socket") or "")
            return ""

        def found(place: str) -> None:
            self._is_asking = False
            if serial != self._serial or self.state is not PlayState.STARTING:
                return
            if not place:
                self._fail(self.tr("the run does not name its socket: its worker is not interactive"))
            elif not Path(place).parent.is_dir():
                self._fail(self.tr("the run is on another machine; a game can be played only where its daemon runs"))
            else:
                self._place = place
                self.progress.emit(self.tr("Connecting to the environment …"))
                self._connect()

        def failed(text: str) -> None:
            self._is_asking = False
            if serial == self._serial:
                self.problem.emit(text)

        self._link.call(poll, owner=self, done=found, failed=failed)

    def _fail(self, text: str) -> None:
        """End the session and cancel the unusable run."""
        self._cancel(self.run_id)
        self._end(text, failed=True)

    # ------------------------------------------------------------------ the socket

    def _connect(self) -> None:
        if self.state is PlayState.STARTING and self._place:
            self._socket.abort()
            self._socket.connectToServer(self._place)

    def _on_connected(self) -> None:
        self._unread = QByteArray()

    def _on_socket_error(self, error: QLocalSocket.LocalSocketError) -> None:
        # It does not listen yet: a worker that loads torch takes seconds. If it never listens, its run ends.
        if self.state is PlayState.STARTING and self._place:
            self._retry.start()

    def _on_disconnected(self) -> None:
        self.is_busy = False
        # The daemon reports the reason with the end of the run.
        if self.is_playing and not self._stop_sent:
            self.progress.emit(self.tr("The environment has exited; asking the daemon why …"))

    def _send(self, command: Mapping[str, Any]) -> bool:
        if self.state is not PlayState.PLAYING or self.is_busy or self._stop_sent:
            return False
        self.is_busy = True
        self._write(command)
        return True

    def _write(self, command: Mapping[str, Any]) -> None:
        self._socket.write(json.dumps(command).encode() + b"\n")

    def _on_data(self) -> None:
        self._unread.append(self._socket.readAll())
        while (end := self._unread.indexOf(b"\n")) >= 0:
            line = bytes(self._unread.left(end).data())
            self._unread.remove(0, end + 1)
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if isinstance(message, dict):
                self._on_message(message)
        if self._unread.size() > _LONGEST_ANSWER:
            self._unread = QByteArray()

    def _on_message(self, message: dict[str, Any]) -> None:
        kind = message.get("type")
        if kind == "init":
            self._set_state(PlayState.PLAYING)
            self.initialized.emit(message)
        elif kind in ("ready", "step"):
            self.is_busy = False
            if (image := read_frame(message.get("render_payload"))) is not None:
                self.frame_received.emit(image)
            (self.ready if kind == "ready" else self.stepped).emit(message)
        elif kind == "episode_done":
            self.is_busy = False
            self.episode_done.emit(message)
        elif kind == "error":
            self.is_busy = False
            text = str(message.get("message", ""))
            if message.get("fatal"):
                self._failure = text
            else:
                self.problem.emit(text)

    # ------------------------------------------------------------------ the end

    def _end(self, text: str, *, failed: bool) -> None:
        if not self.is_active:
            return
        self._retry.stop()
        self._cancel_timer.stop()
        self.is_busy = False
        self._set_state(PlayState.ENDED)
        self._socket.abort()
        self.ended.emit(text, failed)

    def _set_state(self, state: PlayState) -> None:
        if state is not self.state:
            self.state = state
            self.state_changed.emit(state)


def read_frame(payload: Any) -> QImage | None:
    """Return the frame of an answer, read from shared memory."""
    if not isinstance(payload, dict) or payload.get("encoding") != "raw":
        return None
    width, height, path = payload.get("width"), payload.get("height"), payload.get("path")
    if not (type(width) is int and type(height) is int and 0 < width <= LARGEST_SIDE and 0 < height <= LARGEST_SIDE):
        return None
    try:
        descriptor = os.open(str(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
            return None
        pixels = os.pread(descriptor, 3 * width * height, 0)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    if len(pixels) != 3 * width * height:
        return None
    return QImage(pixels, width, height, 3 * width, QImage.Format.Format_RGB888).copy()


def human_config(env_id: str, *, env_kwargs: Mapping[str, Any], seed: int | None) -> dict[str, Any]:
    """Return the run config of a game that is played by hand; without a CPU, so that it does not queue."""
    return run_request(
        "human",
        module="human_worker.cli",
        algo="human",
        env_id=env_id,
        total_timesteps=1,
        seed=seed,
        extras={"mode": Mode.INTERACTIVE, "env_kwargs": dict(env_kwargs) or None},
        run_name=f"play {env_id}",
        resources={"cpus": {"requested": 0}},
    )
