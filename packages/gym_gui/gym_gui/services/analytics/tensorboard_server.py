"""A TensorBoard server for some runs: started as a process, on loopback, ended with whoever started it.

    server = TensorBoardServer.start(links, python, log)     links: a LinkFolder; waits until it answers
    server.address                                           http://127.0.0.1:PORT/
    server.stop()

TensorBoard is never imported here. It reads a folder of links, one for each run under a name people recognise; runs can
be added while it runs. `guardian.py` stands between, so that no server is left behind when the owner is killed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO

from mosaic_wire.files import walk
from mosaic_wire.paths import Home

from gym_gui.services.analytics import guardian

START_S = 60.0
"""How long a server may take until it answers; on a busy machine it loads for half a minute"""
RELOAD_S = 5
_LOOK_EVERY_S = 0.1
_KEPT_LOGS = 5
_LAST_LINES = 12
_STOP_S = 10.0
_ADDRESS = re.compile(r"TensorBoard [\w.+-]+ at (http://\S+?)/? \(Press")
_UNSAFE = re.compile(r"[^\w.,=+@ -]+")
_HAS_IT = "import importlib.util as u, sys; sys.exit(u.find_spec('tensorboard') is None)"
_ASK_S = 30.0
_EVENT_MARK = ".tfevents."
_MOST_ENTRIES = 20_000


class TensorBoardProblem(Exception):
    """There is no server, in words for people."""


def find_interpreter(others: Iterable[str] = ()) -> str:
    """A Python that has TensorBoard: this one, else one of the workers'; TensorBoardProblem when none has.

    May start a short process for each other one: not for the window's thread.
    """
    if importlib.util.find_spec("tensorboard") is not None:
        return sys.executable
    asked = dict.fromkeys(python for python in others if python and python != sys.executable)
    for python in asked:
        if has_tensorboard(python):
            return python
    raise TensorBoardProblem(
        f"TensorBoard is not installed for {sys.executable}"
        + (f" nor for {', '.join(asked)}" if asked else "")
        + f". Install it: {sys.executable} -m pip install tensorboard"
    )


def has_tensorboard(python: str) -> bool:
    try:
        answer = subprocess.run(
            [python, "-c", _HAS_IT], stdin=subprocess.DEVNULL, capture_output=True, timeout=_ASK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0


def has_event_files(folder: Path) -> bool:
    """Whether anything below is an event file."""
    names = [entry.name for entry in walk(folder, most=_MOST_ENTRIES) if not entry.is_dir()]
    # So many are somebody's logs: let TensorBoard look.
    return any(_EVENT_MARK in name for name in names) or len(names) >= _MOST_ENTRIES // 2


class LinkFolder:
    """A folder with a link to each run's event files; TensorBoard looks through it every few seconds."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._names: dict[Path, str] = {}

    @classmethod
    def make(cls, home: Home) -> LinkFolder:
        """A new one in a home; folders that a killed owner left are removed."""
        parent = home.cache / "tensorboard"
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in parent.iterdir():
            pid = left.name.partition("-")[0]
            if pid.isdigit() and not _is_alive(int(pid)):
                shutil.rmtree(left, ignore_errors=True)
        number = 0
        while True:
            root = parent / f"{os.getpid()}-{number}"
            try:
                root.mkdir(mode=0o700)
            except FileExistsError:
                number += 1
            else:
                return cls(root)

    @property
    def folders(self) -> Mapping[Path, str]:
        """The linked folders and the names they have in TensorBoard."""
        return dict(self._names)

    def add(self, name: str, folder: Path) -> str:
        """Link a folder; returns the name it got, which is another one when the name was taken."""
        if folder in self._names:
            return self._names[folder]
        plain = _UNSAFE.sub("_", name).strip(" .") or "run"
        taken = set(self._names.values())
        chosen, number = plain, 2
        while chosen in taken:
            chosen, number = f"{plain} ({number})", number + 1
        (self.root / chosen).symlink_to(folder.absolute(), target_is_directory=True)
        self._names[folder] = chosen
        return chosen

    def remove(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


class TensorBoardServer:
    """A running server; `start` makes one."""

    def __init__(self, process: subprocess.Popen[bytes], address: str, links: LinkFolder, log: Path) -> None:
        self._process = process
        self.address = f"{address.rstrip('/')}/"
        self.links = links
        self.log = log

    @classmethod
    def start(
        cls,
        links: LinkFolder,
        python: str,
        log: Path,
        *,
        timeout_s: float = START_S,
        is_given_up: Callable[[], bool] = lambda: False,
    ) -> TensorBoardServer:
        """Start one and wait until it says where it listens; TensorBoardProblem with its last words when it does not.

        `is_given_up` is asked meanwhile: an owner that left need not wait for a server it will not use.
        """
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _drop_old_logs(log)
        command = [
            python, "-m", "tensorboard.main", "--logdir", str(links.root), "--host", "127.0.0.1", "--port", "0",
            "--reload_interval", str(RELOAD_S),
        ]  # fmt: skip
        with log.open("wb") as stream:
            process = _start_guarded(command, stream)
        try:
            address = _wait_for_address(process, log, timeout_s, is_given_up)
        except BaseException:
            _stop(process)
            raise
        return cls(process, address, links, log)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """End it and remove its links; returns when it is gone. The log stays."""
        _stop(self._process)
        self.links.remove()

    def abandon(self) -> None:
        """End it without waiting: for an owner in the window's thread."""
        _close(self._process.stdin)
        threading.Thread(target=self.stop, name="mosaic-tensorboard-stop", daemon=True).start()

    def last_words(self) -> str:
        return _last_words(self.log)


def log_for(home: Home) -> Path:
    """A log file of a new server; the last few are kept."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return home.root / "logs" / "tensorboard" / f"tensorboard-{stamp}-{os.getpid()}.log"


def _start_guarded(command: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    try:
        return subprocess.Popen(
            [sys.executable, "-I", guardian.__file__, *command],
            env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise TensorBoardProblem(f"TensorBoard cannot be started: {error.strerror or error}") from error


def _wait_for_address(
    process: subprocess.Popen[bytes], log: Path, timeout_s: float, is_given_up: Callable[[], bool]
) -> str:
    deadline = time.monotonic() + timeout_s
    while True:
        has_ended = process.poll() is not None
        if found := _ADDRESS.search(log.read_text("utf-8", "replace")):
            return found[1]
        if has_ended:
            raise TensorBoardProblem(f"TensorBoard ended at once. {_last_words(log)}".strip())
        if is_given_up():
            raise TensorBoardProblem("TensorBoard is not needed any more")
        if time.monotonic() > deadline:
            raise TensorBoardProblem(f"TensorBoard did not answer within {timeout_s:g} s. {_last_words(log)}".strip())
        time.sleep(_LOOK_EVERY_S)


def _stop(process: subprocess.Popen[bytes]) -> None:
    _close(process.stdin)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _close(stream: IO[bytes] | None) -> None:
    if stream is not None and not stream.closed:
        stream.close()


def _last_words(log: Path) -> str:
    try:
        lines = log.read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    told = [line.strip() for line in lines if line.strip()][-_LAST_LINES:]
    return f"Its last words ({log}): {' · '.join(told)}" if told else f"Its log is empty ({log})."


def _drop_old_logs(log: Path) -> None:
    for old in sorted(log.parent.glob("tensorboard-*.log"))[: -(_KEPT_LOGS - 1)]:
        old.unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
