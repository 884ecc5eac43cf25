"""Messages between a training process and the worker that started it: JSON lines over two inherited pipes.

worker → training   {"command": "pause" | "resume" | "release" | "stop"}
training → worker   {"kind": "progress" | "checkpoint_saved" | "checkpoint_removed" | "checkpoint_loaded" | "best"
                             | "paused" | "resumed" | "policy" | "alive" | "stage_changed" | "video" | "wandb" | "note"
                             | "parameters" | "ended" | "failed", …}
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import threading
import time
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Protocol

_PATIENCE_S = 20.0
"""How long a message that must arrive waits for a worker that does not read (its process may be stopped)"""


class Command(StrEnum):
    """What the worker may request; handled at the next safe point."""

    PAUSE = "pause"
    RESUME = "resume"
    RELEASE = "release"
    STOP = "stop"


class Channel(Protocol):
    """Sends messages to the worker and receives its commands."""

    def send(self, kind: str, message: Mapping[str, Any], *, must_arrive: bool = True) -> None:
        """Send one message."""

    def poll(self, timeout_s: float = 0) -> list[Command]:
        """Return the commands that have arrived."""


class PipeChannel:
    """The pipes of a worker. After the worker exited, `poll` returns STOP."""

    def __init__(self, control_fd: int, progress_fd: int) -> None:
        self._control_fd, self._progress_fd = control_fd, progress_fd
        os.set_blocking(control_fd, False)
        # A worker that does not read must not block training.
        os.set_blocking(progress_fd, False)
        self._unread = b""
        self._worker_exited = False
        self._one_line = threading.Lock()

    def send(self, kind: str, message: Mapping[str, Any], *, must_arrive: bool = True) -> None:
        """Send one line; without `must_arrive` it is dropped if the pipe is full. Called from several threads."""
        line = json.dumps({"kind": kind, **message}, separators=(",", ":")).encode() + b"\n"
        if self._one_line.acquire(blocking=must_arrive):
            try:
                self._send(line, must_arrive=must_arrive)
            finally:
                self._one_line.release()

    def _send(self, line: bytes, *, must_arrive: bool) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while line:
            try:
                line = line[os.write(self._progress_fd, line) :]
            except BlockingIOError:
                # Writes of short lines to a pipe are atomic, so nothing of it was written.
                if not must_arrive or time.monotonic() > deadline:
                    return
                select.select([], [self._progress_fd], [], 1.0)
            except BrokenPipeError:
                self._worker_exited = True
                return

    def poll(self, timeout_s: float = 0) -> list[Command]:
        """Return the commands that have arrived, waiting at most this long for the first."""
        if self._worker_exited:
            return [Command.STOP]
        ready, _, _ = select.select([self._control_fd], [], [], timeout_s)
        if not ready:
            return []
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._control_fd, 65536)
            if not data:
                self._worker_exited = True
                return [Command.STOP]
            self._unread += data
        *lines, self._unread = self._unread.split(b"\n")
        return [Command(json.loads(line)["command"]) for line in lines]


class ConsoleChannel:
    """For an algorithm that runs alone: prints messages to the terminal, has no commands."""

    def send(self, kind: str, message: Mapping[str, Any], *, must_arrive: bool = True) -> None:
        """Print one message."""
        if kind == "parameters":
            return  # they are in the event file
        text = " ".join(f"{key}={_short(value)}" for key, value in message.items() if value is not None)
        sys.stdout.write(f"{kind} {text}\n")
        sys.stdout.flush()

    def poll(self, timeout_s: float = 0) -> list[Command]:
        """Return no commands, after the timeout."""
        if timeout_s:
            time.sleep(timeout_s)
        return []


def _short(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)
