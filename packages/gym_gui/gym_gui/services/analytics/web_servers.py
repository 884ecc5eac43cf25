"""TensorBoard and optuna-dashboard as processes: started on loopback, ended with their owner.

    server = TensorBoardServer.start(links, python, log)     links: a LinkFolder; returns when it answers
    server.address                                           http://127.0.0.1:PORT/
    server.stop()

Neither is imported here. TensorBoard reads a folder of links, one for each run under a name people recognize; runs can
be added while it runs. `guardian.py` stands between, so that no server is left behind when the owner is killed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from mosaic_wire.errors import SpecError
from mosaic_wire.files import walk
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import Home, RunFolder
from mosaic_wire.worker_spec import WorkerSpec

from gym_gui.services.analytics import guardian
from gym_gui.wording.run_view import short_id, title_of

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.trainer.client import TrainerClient

START_S = 60.0
"""Longest start of a server; on a busy machine it loads for half a minute"""
RELOAD_S = 5
_POLL_S = 0.1
_KEPT_LOGS = 5
_LAST_LINES = 12
_LAST_CHARACTERS = 2000
_MOST_OUTPUT = 1 << 20
_DASHBOARD = "optuna-dashboard"
_ASK_S = 30.0
_STOP_S = 10.0
_ADDRESS = re.compile(r"TensorBoard [\w.+-]+ at (http://\S+?)/? \(Press")
_UNSAFE = re.compile(r"[^\w.,=+@ -]+")
_EVENT_MARK = ".tfevents."
_MOST_ENTRIES = 20_000


class ServerProblem(Exception):
    """There is no server; the message is the reason."""


class WebServer:
    """A program that serves a page; its `start` returns when it answers."""

    name = ""

    def __init__(self, command: Sequence[str], log: IO[bytes], environment: Mapping[str, str] | None = None) -> None:
        self._log = log
        self.address = ""
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", guardian.__file__, *command],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        except OSError as error:
            log.close()
            raise ServerProblem(f"{self.name} cannot be started: {error.strerror or error}") from error

    def _wait(self, find: Callable[[], str | None], timeout_s: float, is_given_up: Callable[[], bool]) -> None:
        """Wait until `find` returns the address; end the program and raise ServerProblem when it does not."""
        deadline = time.monotonic() + timeout_s
        try:
            while True:
                has_ended = self._process.poll() is not None
                if found := find():
                    self.address = f"{found.rstrip('/')}/"
                    return
                if has_ended:
                    raise ServerProblem(f"{self.name} ended at once. {self.last_output()}".strip())
                if is_given_up():
                    raise ServerProblem(f"{self.name} is not needed any more")
                if time.monotonic() > deadline:
                    raise ServerProblem(
                        f"{self.name} did not answer within {timeout_s:g} s. {self.last_output()}".strip()
                    )
                time.sleep(_POLL_S)
        except BaseException:
            self._end()
            raise

    def _output(self) -> str:
        # Not by seeking: the program writes at the same place of the file.
        file = self._log.fileno()
        start = max(0, os.fstat(file).st_size - _MOST_OUTPUT)
        return os.pread(file, _MOST_OUTPUT, start).decode("utf-8", "replace")

    def last_output(self) -> str:
        """Return the end of its output."""
        return self._output()[-_LAST_CHARACTERS:].strip()

    @property
    def is_running(self) -> bool:
        """Whether the program still runs."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End it; returns when it has exited."""
        self._end()

    def _end(self) -> None:
        self._close_pipe()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def abandon(self) -> None:
        """End it without waiting: for an owner in the window's thread."""
        self._close_pipe()
        threading.Thread(target=self.stop, name="mosaic-server-stop", daemon=True).start()

    def _close_pipe(self) -> None:
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()


# ---------------------------------------------------------------- optuna-dashboard


def find_program() -> str:
    """Return optuna-dashboard beside this Python, else on the path; ServerProblem with the command that installs it."""
    beside = Path(sys.executable).with_name(_DASHBOARD)
    found = str(beside) if beside.exists() else shutil.which(_DASHBOARD)
    if found is None:
        raise ServerProblem(
            f"{_DASHBOARD} is not installed; it is optional. Install it: {sys.executable} -m pip install {_DASHBOARD}"
        )
    return found


def storage_arguments(path: Path, *, is_journal: bool) -> list[str]:
    """Return how the study is named on optuna-dashboard's command line."""
    if is_journal:
        return [str(path.absolute()), "--storage-class", "JournalFileStorage"]
    return [f"sqlite:///{path.absolute()}"]


class Dashboard(WebServer):
    """`optuna-dashboard` for a study."""

    name = _DASHBOARD

    @classmethod
    def start(
        cls,
        path: Path,
        *,
        is_journal: bool,
        program: str | None = None,
        timeout_s: float = START_S,
        is_given_up: Callable[[], bool] = lambda: False,
    ) -> Self:
        """Start it and wait until it answers; ServerProblem with its last output when it does not."""
        address = f"http://127.0.0.1:{(port := _free_port())}/"
        where = ["--host", "127.0.0.1", "--port", str(port)]
        command = [program or find_program(), *storage_arguments(path, is_journal=is_journal), *where]
        log = tempfile.TemporaryFile(prefix="mosaic-dashboard-")  # noqa: SIM115 - lives as long as the process
        dashboard = cls(command, log)
        dashboard._wait(lambda: address if _answers(address) else None, timeout_s, is_given_up)
        return dashboard


def _answers(address: str) -> bool:
    try:
        with build_opener(ProxyHandler({})).open(address, timeout=2) as answer:  # loopback is behind no proxy
            answer.read(1)
    except (URLError, OSError):
        return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# ---------------------------------------------------------------- TensorBoard


def find_interpreter(others: Iterable[str] = ()) -> str:
    """Return a Python that has TensorBoard: this one, else one of the workers'; ServerProblem when none has.

    May start a short process for each other one: not for the window's thread.
    """
    if importlib.util.find_spec("tensorboard") is not None:
        return sys.executable
    candidates = dict.fromkeys(python for python in others if python and python != sys.executable)
    for python in candidates:
        if has_tensorboard(python):
            return python
    raise ServerProblem(
        f"TensorBoard is not installed for {sys.executable}"
        + (f" nor for {', '.join(candidates)}" if candidates else "")
        + f". Install it: {sys.executable} -m pip install tensorboard"
    )


def has_package(python: str, name: str) -> bool:
    """Return whether a Python has a package; starts a short process."""
    # A folder of that name without a package in it, such as `wandb` where W&B was started, is found without an origin.
    code = f"import importlib.util as u, sys; sys.exit(getattr(u.find_spec({name!r}), 'origin', None) is None)"
    try:
        answer = subprocess.run(
            [python, "-P", "-c", code], stdin=subprocess.DEVNULL, capture_output=True, timeout=_ASK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0


def has_tensorboard(python: str) -> bool:
    """Return whether a Python has TensorBoard."""
    return has_package(python, "tensorboard")


def has_event_files(folder: Path) -> bool:
    """Return whether anything below is an event file."""
    names = [entry.name for entry in walk(folder, most=_MOST_ENTRIES) if not entry.is_dir()]
    # Too many to list: let TensorBoard find out.
    return any(_EVENT_MARK in name for name in names) or len(names) >= _MOST_ENTRIES // 2


class LinkFolder:
    """A folder with a link to each run's event files; TensorBoard rescans it every few seconds."""

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
        used = set(self._names.values())
        chosen, number = plain, 2
        while chosen in used:
            chosen, number = f"{plain} ({number})", number + 1
        (self.root / chosen).symlink_to(folder.absolute(), target_is_directory=True)
        self._names[folder] = chosen
        return chosen

    def remove(self) -> None:
        """Remove the folder and its links."""
        shutil.rmtree(self.root, ignore_errors=True)


class TensorBoardServer(WebServer):
    """A running TensorBoard."""

    name = "TensorBoard"
    links: LinkFolder
    log: Path

    @classmethod
    def start(
        cls,
        links: LinkFolder,
        python: str,
        log: Path,
        *,
        timeout_s: float = START_S,
        is_given_up: Callable[[], bool] = lambda: False,
    ) -> Self:
        """Start one and wait until it reports its address; ServerProblem with its last output when it does not.

        `is_given_up` is polled meanwhile: an owner that left need not wait for a server it will not use.
        """
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _drop_old_logs(log)
        where = ["--host", "127.0.0.1", "--port", "0", "--reload_interval", str(RELOAD_S)]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
        command = [python, "-P", "-m", "tensorboard.main", "--logdir", str(links.root), *where]
        server = cls(command, log.open("w+b"), environment)
        server.links, server.log = links, log
        server._wait(server._reported_address, timeout_s, is_given_up)
        return server

    def _reported_address(self) -> str | None:
        found = _ADDRESS.search(self._output())
        return found[1] if found else None

    def stop(self) -> None:
        """End it and remove its links; returns when it has exited. The log stays."""
        self._end()
        self.links.remove()

    def last_output(self) -> str:
        """Return the last lines of its log, and where that lies."""
        lines = [line.strip() for line in self._output().splitlines() if line.strip()][-_LAST_LINES:]
        return f"Its last output ({self.log}): {' · '.join(lines)}" if lines else f"Its log is empty ({self.log})."


def log_for(home: Home) -> Path:
    """Return the log file of a new server; the last few are kept."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return home.root / "logs" / "tensorboard" / f"tensorboard-{stamp}-{os.getpid()}.log"


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


@dataclass(frozen=True)
class Linked:
    """A run as TensorBoard will show it."""

    run_id: str
    name: str
    folder: Path


def linked(run: pb.Run) -> Linked:
    """Return where a run's event files lie, or will, and its name there: `ppo CartPole-v1 seed 1 7G5FAV12`."""
    root = RunFolder(Path(run.run_dir))
    manifest = AnalyticsManifest.find(root.manifest)
    named = manifest.tensorboard_dir if manifest is not None else None
    folder = root.root / named if named else root.tensorboard
    return Linked(run.run_id, f"{title_of(run)} {short_id(run.run_id)}", folder)


def interpreters_of(client: TrainerClient, worker_type: str = "") -> list[str]:
    """Return the installed workers' Pythons, that of the named worker first."""
    found = []
    for worker in client.workers():
        try:
            spec = WorkerSpec.from_json(json.loads(worker.spec_json)) if worker.spec_json else None
        except (SpecError, ValueError):
            continue
        if spec is not None and spec.argv:
            found.append((worker.name != worker_type, spec.argv[0]))
    return [python for _, python in sorted(found)]
