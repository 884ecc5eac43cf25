"""`optuna-dashboard` for a study, if it is installed: a process of its own on loopback, ended with its owner.

dashboard = Dashboard.start(path)         waits until it answers
dashboard.address                         http://127.0.0.1:PORT/
dashboard.stop()
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from gym_gui.services.analytics import guardian

START_S = 60.0
_LOOK_EVERY_S = 0.1
_STOP_S = 10.0
_PROGRAM = "optuna-dashboard"
_WORDS = 2000


class DashboardProblem(Exception):
    """There is no dashboard, in words for people."""


def find_program() -> str:
    """Beside this Python, else on the path; DashboardProblem with the command that installs it."""
    beside = Path(sys.executable).with_name(_PROGRAM)
    found = str(beside) if beside.exists() else shutil.which(_PROGRAM)
    if found is None:
        raise DashboardProblem(
            f"optuna-dashboard is not installed; it is optional. Install it: {sys.executable} -m pip install {_PROGRAM}"
        )
    return found


def storage_words(path: Path, *, is_journal: bool) -> list[str]:
    """How the study is named on its command line."""
    if is_journal:
        return [str(path.absolute()), "--storage-class", "JournalFileStorage"]
    return [f"sqlite:///{path.absolute()}"]


class Dashboard:
    """A running one; `start` makes it."""

    def __init__(self, process: subprocess.Popen[bytes], address: str, log: IO[bytes]) -> None:
        self._process, self.address, self._log = process, address, log

    @classmethod
    def start(
        cls,
        path: Path,
        *,
        is_journal: bool,
        program: str | None = None,
        timeout_s: float = START_S,
        is_given_up: Callable[[], bool] = lambda: False,
    ) -> Dashboard:
        """Start it and wait until it answers; DashboardProblem with its last words when it does not."""
        command = [
            program or find_program(), *storage_words(path, is_journal=is_journal), "--host", "127.0.0.1", "--port",
            str(port := _free_port()),
        ]  # fmt: skip
        log = tempfile.TemporaryFile(prefix="mosaic-dashboard-")  # noqa: SIM115 - lives as long as the process
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", guardian.__file__, *command],
                stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            log.close()
            raise DashboardProblem(f"{command[0]} cannot be started: {error.strerror or error}") from None
        dashboard = cls(process, f"http://127.0.0.1:{port}/", log)
        try:
            dashboard._wait(timeout_s, is_given_up)
        except BaseException:
            dashboard.stop()
            raise
        return dashboard

    def _wait(self, timeout_s: float, is_given_up: Callable[[], bool]) -> None:
        deadline = time.monotonic() + timeout_s
        opener = build_opener(ProxyHandler({}))  # loopback is not behind anybody's proxy
        while True:
            has_ended = self._process.poll() is not None
            try:
                with opener.open(self.address, timeout=2) as answer:
                    answer.read(1)
                return
            except (URLError, OSError):
                pass
            if has_ended:
                raise DashboardProblem(f"optuna-dashboard ended at once. {self._last_words()}".strip())
            if is_given_up():
                raise DashboardProblem("optuna-dashboard is not needed any more")
            if time.monotonic() > deadline:
                words = f"optuna-dashboard did not answer within {timeout_s:g} s. {self._last_words()}"
                raise DashboardProblem(words.strip())
            time.sleep(_LOOK_EVERY_S)

    def _last_words(self) -> str:
        self._log.seek(0)
        return self._log.read()[-_WORDS:].decode("utf-8", "replace").strip()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """End it; returns when it is gone."""
        self._let_go()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def abandon(self) -> None:
        """End it without waiting: for an owner in the window's thread."""
        self._let_go()
        threading.Thread(target=self.stop, name="mosaic-dashboard-stop", daemon=True).start()

    def _let_go(self) -> None:
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
