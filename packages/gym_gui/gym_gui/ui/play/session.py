"""A game that is played: a run of the daemon, and the socket it listens on. Commands out, answers in, as signals.

    session = PlaySession(link, parent)
    session.start(config)                       a run config whose worker serves the interactive protocol
    session.greeted → session.reset(seed=3) → session.ready → session.step(1) → session.stepped …

The environment lives in another process: whatever happens to it arrives here as `ended`, with words for people. One
command at a time is under way; a step that is asked for meanwhile is not sent (`is_busy`).
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
from PySide6.QtCore import QByteArray, QObject, QTimer, Signal
from PySide6.QtGui import QImage
from PySide6.QtNetwork import QLocalSocket

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.ui.daemon_link import DaemonLink

_RETRY_MS = 150
_PATIENCE_MS = 5000
"""How long a game may take to end by itself; one that hangs in a step is cancelled"""
_LONGEST_ANSWER = 64 << 20
_QUEUED = ("INIT",)
_STARTING = ("HSHK", "RDY")


class PlayState(Enum):
    IDLE = "idle"
    STARTING = "starting"
    PLAYING = "playing"
    """The game answers"""
    PAUSED = "paused"
    ENDED = "ended"


class PlaySession(QObject):
    """One game at a time; the next `start` begins another."""

    state_changed = Signal(object)  # PlayState
    progress = Signal(str)  # what it waits for, while it starts
    greeted = Signal(object)  # the init message
    ready = Signal(object)  # an episode has begun
    stepped = Signal(object)
    episode_done = Signal(object)
    picture = Signal(QImage)
    problem = Signal(str)  # a command that was not obeyed; the game goes on
    ended = Signal(str, bool)  # why (empty: as it was meant to), and whether that was a failure

    def __init__(self, link: DaemonLink, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._link = link
        self.state = PlayState.IDLE
        self.run: pb.Run | None = None
        self.run_id = ""
        self.is_busy = False
        self._place = ""
        self._is_asking = False
        self._said_stop = False
        self._failure = ""
        self._unread = QByteArray()
        self._serial = 0
        self._socket = QLocalSocket(self)
        self._socket.connected.connect(self._on_connected)
        self._socket.readyRead.connect(self._on_data)
        self._socket.disconnected.connect(self._on_disconnected)
        self._socket.errorOccurred.connect(self._on_socket_error)
        self._retry = QTimer(self)
        self._retry.setSingleShot(True)
        self._retry.setInterval(_RETRY_MS)
        self._retry.timeout.connect(self._connect)
        self._patience = QTimer(self)
        self._patience.setSingleShot(True)
        self._patience.setInterval(_PATIENCE_MS)
        self._patience.timeout.connect(lambda: self._cancel(self.run_id))
        link.runs_changed.connect(self._on_runs)
        link.runs_loaded.connect(self._on_runs)

    # ------------------------------------------------------------------ what a panel asks for

    @property
    def is_playing(self) -> bool:
        return self.state in (PlayState.PLAYING, PlayState.PAUSED)

    @property
    def is_active(self) -> bool:
        return self.state in (PlayState.STARTING, PlayState.PLAYING, PlayState.PAUSED)

    def start(self, config: Mapping[str, Any]) -> None:
        """Queue the run and connect to it as soon as it listens."""
        if self.is_active:
            return
        self._serial += 1
        serial = self._serial
        self.run, self.run_id, self._place = None, "", ""
        self._is_asking = self._said_stop = self.is_busy = False
        self._failure = ""
        self._unread = QByteArray()
        self._set_state(PlayState.STARTING)
        self.progress.emit(self.tr("Asking the daemon for a run …"))

        def submitted(run: pb.Run) -> None:
            if serial != self._serial or self.state is not PlayState.STARTING:
                self._cancel(run.run_id)  # nobody wants it any more
                return
            self.run_id = run.run_id
            self._take(run)
            # What happened to it before its id was known here has been told to nobody.
            self._link.call(lambda client: client.get(run.run_id), owner=self, done=lambda now: self._on_runs((now,)))

        self._link.call(
            lambda client: client.submit(config).run,
            owner=self,
            done=submitted,
            failed=lambda words: self._end(words, failed=True) if serial == self._serial else None,
        )

    def reset(self, seed: int | None = None) -> bool:
        """Begin an episode; one that is under way is left."""
        return self._send({"cmd": "reset", "frames": "shm", **({} if seed is None else {"seed": seed})})

    def step(self, action: Any = None) -> bool:
        """Take a step; without an action it is the policy's. False when the answer to another command is awaited."""
        return self._send({"cmd": "step", **({} if action is None else {"action": action})})

    def end_episode(self) -> bool:
        """Leave the episode."""
        return self._send({"cmd": "end"})

    def stop(self) -> None:
        """End the game and its run, whatever it is doing."""
        if not self.is_active:
            return
        self._said_stop = True
        connected = self._socket.state() == QLocalSocket.LocalSocketState.ConnectedState
        if connected and self.state is PlayState.PLAYING:
            self._write({"cmd": "stop"})
            self._socket.flush()  # the window may be about to close
            self._patience.start()
        elif self.run_id:
            self._cancel(self.run_id)
        else:
            self._end("", failed=False)

    def _cancel(self, run_id: str) -> None:
        # It may be over by then, which is what was wanted.
        self._link.call(lambda client: client.cancel(run_id), owner=self, failed=lambda words: None)

    # ------------------------------------------------------------------ the run

    def _on_runs(self, runs: Iterable[pb.Run]) -> None:
        if self.is_active and self.run_id:
            for run in runs:
                if run.run_id == self.run_id:
                    self._take(run)

    def _take(self, run: pb.Run) -> None:
        self.run = run
        if run.status == "TERM":
            self._end(self._words_of(run), failed=run.outcome == "failed")
        elif run.status == "PAUSE":
            self._set_state(PlayState.PAUSED)
        elif self.state is PlayState.PAUSED and run.status == "EXEC":
            self._set_state(PlayState.PLAYING)
        elif self.state is PlayState.STARTING:
            if run.status == "EXEC":
                self._ask_for_the_place()
            elif run.status in _QUEUED:
                self.progress.emit(run.queue_reason or self.tr("The run is queued …"))
            elif run.status in _STARTING:
                self.progress.emit(self.tr("Starting the environment …"))

    def _words_of(self, run: pb.Run) -> str:
        """Why it is over; what the environment itself said comes first."""
        if self._said_stop or run.outcome == "completed":
            return "" if run.outcome != "failed" else run.reason
        if self._failure:
            return self._failure
        return run.reason or self.tr("the run was {outcome}").format(outcome=run.outcome)

    def _ask_for_the_place(self) -> None:
        if self._is_asking or self._place:
            return
        self._is_asking = True
        run_id, serial = self.run_id, self._serial

        def look(client: TrainerClient) -> str:
            for event in client.story(run_id):
                payload = json.loads(event.payload_json) if event.kind == "started" and event.payload_json else {}
                if isinstance(payload.get("interactive"), dict):
                    return str(payload["interactive"].get("socket") or "")
            return ""

        def found(place: str) -> None:
            self._is_asking = False
            if serial != self._serial or self.state is not PlayState.STARTING:
                return
            if not place:
                self._fail(self.tr("the run does not say where it listens: its worker cannot be played"))
            elif not Path(place).parent.is_dir():
                self._fail(self.tr("the run is on another machine; a game can be played only where its daemon runs"))
            else:
                self._place = place
                self.progress.emit(self.tr("Connecting to the environment …"))
                self._connect()

        def failed(words: str) -> None:
            self._is_asking = False
            if serial == self._serial:
                self.problem.emit(words)

        self._link.call(look, owner=self, done=found, failed=failed)

    def _fail(self, words: str) -> None:
        """The run cannot be used: it must not stay behind."""
        self._cancel(self.run_id)
        self._end(words, failed=True)

    # ------------------------------------------------------------------ the socket

    def _connect(self) -> None:
        if self.state is PlayState.STARTING and self._place:
            self._socket.abort()
            self._socket.connectToServer(self._place)

    def _on_connected(self) -> None:
        self._unread = QByteArray()

    def _on_socket_error(self, error: QLocalSocket.LocalSocketError) -> None:
        # It does not listen yet: a worker that loads torch first takes seconds. If it never will, its run ends.
        if self.state is PlayState.STARTING and self._place:
            self._retry.start()

    def _on_disconnected(self) -> None:
        self.is_busy = False
        # The daemon knows why, and says so a moment later by the end of the run.
        if self.is_playing and not self._said_stop:
            self.progress.emit(self.tr("The environment has gone; asking the daemon why …"))

    def _send(self, command: Mapping[str, Any]) -> bool:
        if self.state is not PlayState.PLAYING or self.is_busy or self._said_stop:
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
                self._hear(message)
        if self._unread.size() > _LONGEST_ANSWER:
            self._unread = QByteArray()

    def _hear(self, message: dict[str, Any]) -> None:
        kind = message.get("type")
        if kind == "init":
            self._set_state(PlayState.PLAYING)
            self.greeted.emit(message)
        elif kind in ("ready", "step"):
            self.is_busy = False
            if (image := read_frame(message.get("render_payload"))) is not None:
                self.picture.emit(image)
            (self.ready if kind == "ready" else self.stepped).emit(message)
        elif kind == "episode_done":
            self.is_busy = False
            self.episode_done.emit(message)
        elif kind == "error":
            self.is_busy = False
            words = str(message.get("message", ""))
            if message.get("fatal"):
                self._failure = words
            else:
                self.problem.emit(words)

    # ------------------------------------------------------------------ the end

    def _end(self, words: str, *, failed: bool) -> None:
        if not self.is_active:
            return
        self._retry.stop()
        self._patience.stop()
        self.is_busy = False
        self._set_state(PlayState.ENDED)
        self._socket.abort()
        self.ended.emit(words, failed)

    def _set_state(self, state: PlayState) -> None:
        if state is not self.state:
            self.state = state
            self.state_changed.emit(state)


def read_frame(payload: Any) -> QImage | None:
    """The picture an answer names. Shared memory: reading it takes no longer than drawing it."""
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


def human_config(
    env_id: str, *, env_kwargs: Mapping[str, Any], seed: int | None, name: str = "", tags: Iterable[str] = ()
) -> dict[str, Any]:
    """The run config of a game a person plays. It asks for no CPU: nobody wants to queue behind a training."""
    extras: dict[str, Any] = {"mode": "interactive"}
    if env_kwargs:
        extras["env_kwargs"] = dict(env_kwargs)
    worker_config = {
        "algo": "human", "env_id": env_id, "total_timesteps": 1, "extras": extras,
        **({} if seed is None else {"seed": seed}),
    }  # fmt: skip
    return {
        "run_name": name or f"play {env_id}",
        "tags": list(tags),
        "resources": {"cpus": {"requested": 0}},
        "metadata": {"worker": {"type": "human", "module": "human_worker.cli", "config": worker_config}},
    }
