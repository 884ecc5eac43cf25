"""The training process as the worker sees it: two pipes, two log files, an exit code."""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mosaic_wire import env

logger = logging.getLogger(__name__)

_READ_BYTES = 65536
_LONGEST_LINE = 1 << 20
_TAIL_BYTES = 8192
_TAIL_LINES = 20


class TrainingProcess:
    """Starts `argv` and keeps it until it is reaped. Its output goes to files, never through this process."""

    def __init__(
        self, argv: Sequence[str], environ: Mapping[str, str], *, cwd: Path, logs: Path, keep_open: Sequence[int] = ()
    ) -> None:
        """`keep_open`: descriptors the process inherits besides its pipes."""
        logs.mkdir(parents=True, exist_ok=True)
        self.stdout_log, self.stderr_log = logs / "stdout.log", logs / "stderr.log"
        self._stderr_start = self.stderr_log.stat().st_size if self.stderr_log.exists() else 0
        control_read, self._control = os.pipe()
        self._progress, progress_write = os.pipe()
        pipes = {env.CLEANRL_CONTROL_FD: str(control_read), env.CLEANRL_PROGRESS_FD: str(progress_write)}
        try:
            with self.stdout_log.open("ab") as stdout, self.stderr_log.open("ab") as stderr:
                self._process = subprocess.Popen(
                    argv, env={**environ, **pipes}, cwd=cwd, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
                    pass_fds=(control_read, progress_write, *keep_open),
                )  # fmt: skip
        finally:
            os.close(control_read)
            os.close(progress_write)
        self._unread = b""
        self._at_end = False

    @property
    def returncode(self) -> int | None:
        """The exit code once the process is gone; negative: the signal that killed it."""
        return self._process.poll()

    def send(self, command: str) -> None:
        """Ask for pause, resume, release or stop at the next safe point."""
        try:
            os.write(self._control, json.dumps({"command": command}).encode() + b"\n")
        except BrokenPipeError:
            logger.debug("the training process has ended before it could be told to %s", command)

    def messages(self, timeout_s: float) -> list[dict[str, Any]]:
        """What the training process has said, waiting at most this long for the first word."""
        if self._at_end:
            return []
        ready, _, _ = select.select([self._progress], [], [], timeout_s)
        if not ready:
            return []
        data = os.read(self._progress, _READ_BYTES)
        if not data:
            self._at_end = True
            return []
        *lines, self._unread = (self._unread + data).split(b"\n")
        self._unread = self._unread[:_LONGEST_LINE]
        return [message for line in lines if (message := _parse(line)) is not None]

    @property
    def at_end(self) -> bool:
        """True when nothing more will be said: every writer of the pipe is gone."""
        return self._at_end

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the end; None when it did not come in time."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def signal(self, number: int) -> None:
        """Send it a signal; harmless when it has ended."""
        self._process.send_signal(number)

    def kill(self) -> int:
        """End it at once and reap it."""
        self._process.kill()
        return self._process.wait()

    def stderr_tail(self) -> list[str]:
        """The last lines this process wrote to stderr."""
        with self.stderr_log.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(self._stderr_start, size - _TAIL_BYTES))
            text = stream.read(_TAIL_BYTES).decode(errors="replace")
        return text.splitlines()[-_TAIL_LINES:]

    def close(self) -> None:
        """Give the pipes back; a process that still runs is ended first."""
        if self._process.poll() is None:
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
    """How an exit code reads: `exit code 3` or `SIGKILL`."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"
