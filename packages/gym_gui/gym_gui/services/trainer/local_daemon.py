"""Find, start and end the daemon of a home on this machine."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from mosaic_wire.errors import WireError
from mosaic_wire.files import chosen_file, open_plain, read_json_object, read_plain_file
from mosaic_wire.paths import Home, find_home

from gym_gui.services.trainer.errors import DaemonUnreachable, NotAllowed, TrainerError

if TYPE_CHECKING:
    from gym_gui.services.trainer.process_tree import ProcessIdentity

_POLL_S = 0.05
_TAIL_BYTES = 8192


@dataclass(frozen=True)
class DaemonRecord:
    """The addresses in `daemon.json` of a daemon, which may have exited since."""

    pid: int
    start_ticks: int
    boot_id: str
    version: str
    unix: str
    tcp: str
    started_at: float
    pid_namespace: str = ""
    tls: tuple[str, ...] = ()
    """Paths of its TLS certificate and key"""
    nodes: str = ""
    """Address that nodes connect to, by the name that they know this machine by"""
    node_tls: tuple[str, ...] = ()
    """Paths of the certificate and key of that address"""
    folder: tuple[int, ...] = ()
    """Device and inode of the trainer folder it serves, because a copied home contains this record, too"""

    @classmethod
    def read(cls, home: Home) -> DaemonRecord | None:
        """Return the record of this home, or None without a valid one."""
        try:
            document = read_json_object(home.daemon_record, max_bytes=1 << 20)
            return cls(
                pid=int(document["pid"]),
                start_ticks=int(document["start_ticks"]),
                boot_id=str(document["boot_id"]),
                version=str(document.get("version", "")),
                unix=str(document.get("unix") or ""),
                tcp=str(document.get("tcp") or ""),
                started_at=float(document.get("started_at", 0)),
                pid_namespace=str(document.get("pid_namespace") or ""),
                tls=tuple(map(str, document.get("tls") or ())),
                nodes=str(document.get("nodes") or ""),
                node_tls=tuple(map(str, document.get("node_tls") or ())),
                folder=tuple(map(int, document.get("folder") or ())),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def identity(self) -> ProcessIdentity:
        """Return the daemon's process."""
        from gym_gui.services.trainer.process_tree import ProcessIdentity, pid_namespace

        return ProcessIdentity(self.pid, self.start_ticks, self.boot_id, self.pid_namespace or pid_namespace())

    @property
    def target(self) -> str:
        """Return the target for a gRPC channel, preferably the socket."""
        if self.unix:
            return self.unix if self.unix.startswith("unix:") else f"unix:{self.unix}"
        return self.tcp

    def is_alive(self) -> bool:
        """Return whether the daemon that wrote it is running."""
        return self.identity.is_alive()

    def is_stopped(self) -> bool:
        """Return whether the daemon is stopped (SIGSTOP, a debugger) and cannot answer."""
        from gym_gui.services.trainer.process_tree import process_state

        return self.identity.is_of_this_machine and process_state(self.pid) in ("T", "t")


@dataclass(frozen=True)
class StartedDaemon:
    """The daemon that serves the home."""

    pid: int
    already_running: bool


def running_record(home: Home) -> DaemonRecord | None:
    """Return the record of the running daemon of this home, or None."""
    record = DaemonRecord.read(home)
    if record is None or record.folder not in ((), home.identity):
        return None
    return record if record.is_alive() or _serves_elsewhere(record, home) else None


def _serves_elsewhere(record: DaemonRecord, home: Home) -> bool:
    """Return whether a daemon in another container serves this home, by its socket."""
    if not record.pid_namespace or record.identity.is_of_this_machine:
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(os.fsencode(home.socket))
        except OSError:
            return False
    return True


def read_token(home: Home) -> str:
    """Return the token that clients of this home send; raise NotAllowed when it cannot be read."""
    try:
        return read_plain_file(home.token, opener=chosen_file).decode("ascii").strip()
    except FileNotFoundError:
        raise DaemonUnreachable(no_daemon_message(home)) from None
    except (OSError, ValueError) as error:
        raise NotAllowed(f"cannot read the daemon's token {home.token}: {error}; is it another user's home?") from error


def was_stopped(home: Home) -> bool:
    """Return whether a user stopped the daemon of this home; a killed one leaves its record (docs/adr, decision 5).

    A daemon that ended before the machine booted is no such decision: a shutdown ends it in good order, too.
    """
    import psutil

    if home.daemon_record.exists():
        return False
    try:
        return home.database.stat().st_mtime > psutil.boot_time()
    except (FileNotFoundError, NotADirectoryError):
        return False  # none was ever started


def no_daemon_message(home: Home) -> str:
    """Return what to do when no daemon runs for this home."""
    named = "" if home.root == find_home().root else f"--home {shlex.quote(str(home.root))} "
    if was_stopped(home):
        return f"the trainer daemon of {home.root} was stopped; `mosaic {named}daemon start` starts it again"
    return f"no trainer daemon runs for {home.root}; `mosaic {named}daemon start` starts one"


def silence_message(home: Home, timeout_s: float | None) -> str:
    """Return why the daemon does not answer; `timeout_s` None: the connection was lost."""
    record = running_record(home)
    if record is None:
        return no_daemon_message(home)
    if record.is_stopped():
        return (
            f"the trainer daemon (pid {record.pid}) is stopped by a signal and cannot answer; "
            f"`kill -CONT {record.pid}` continues it"
        )
    if timeout_s is None:
        return f"the connection to the trainer daemon (pid {record.pid}) was lost"
    return (
        f"the trainer daemon (pid {record.pid}) runs but did not answer within {timeout_s:g} s; "
        f"try again, or see {home.daemon_log}"
    )


def start_daemon(home: Home, timeout_s: float = 30, *, options: Sequence[str] = ()) -> StartedDaemon:
    """Start a detached daemon unless one answers; return when it answers, else raise with the end of its log.

    Clients that start at the same moment queue on a lock, so one of them starts it and every other client finds it.
    """
    deadline = time.monotonic() + timeout_s
    try:
        home.create()
    except (OSError, WireError) as error:
        raise TrainerError(f"cannot use {home.root} as MOSAIC's home: {error}") from error
    with _starting(home, deadline):
        while (record := running_record(home)) is not None:  # it may also be shutting down
            if not record.is_stopped() and _answers(home, deadline):
                return StartedDaemon(record.pid, already_running=True)
            if time.monotonic() > deadline or record.is_stopped():
                raise DaemonUnreachable(silence_message(home, timeout_s))
            time.sleep(_POLL_S)
        log_start = home.daemon_log.stat().st_size if home.daemon_log.exists() else 0
        process = _spawn(home, options)
        exited_at: float | None = None
        while time.monotonic() < deadline:
            if (record := running_record(home)) is not None and _answers(home, deadline):
                return StartedDaemon(record.pid, already_running=record.pid != process.pid)
            if exited_at is None and process.poll() is not None:
                exited_at = time.monotonic()
            # A daemon started by hand may have been faster; wait for its answer.
            if exited_at is not None and time.monotonic() - exited_at > (3 if record is not None else 1):
                raise DaemonUnreachable(_failure(f"could not start (exit code {process.returncode})", home, log_start))
            time.sleep(_POLL_S)
    raise DaemonUnreachable(_failure(f"was started but did not answer within {timeout_s:g} s", home, log_start))


def stop_process(record: DaemonRecord, *, timeout_s: float) -> bool:
    """Kill a daemon that does not answer (its runs keep running); return whether it has exited."""
    for sign, patience_s in ((signal.SIGTERM, timeout_s / 2), (signal.SIGKILL, timeout_s / 2)):
        with contextlib.suppress(ProcessLookupError):
            if record.is_alive():
                os.kill(record.pid, sign)
                os.kill(record.pid, signal.SIGCONT)  # a stopped process handles SIGTERM only once it continues
        if wait_for_end(record, patience_s):
            return True
    return False


def wait_for_end(record: DaemonRecord, timeout_s: float) -> bool:
    """Wait for the daemon's process; return whether it exited in time."""
    deadline = time.monotonic() + timeout_s
    while record.is_alive():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


@contextlib.contextmanager
def _starting(home: Home, deadline: float) -> Iterator[None]:
    # Not the daemon's own lock: even if held for a moment, it would keep a daemon from starting.
    with _append_to(home.trainer / "start.lock") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise DaemonUnreachable(
                        f"another command has been starting the daemon of {home.root} for too long; "
                        f"see {home.daemon_log}"
                    ) from None
                time.sleep(_POLL_S)
        yield


def _append_to(path: Path) -> BinaryIO:
    try:
        return open_plain(path, "ab")
    except OSError as error:
        raise TrainerError(f"the daemon cannot be started: {path} cannot be written: {error.strerror}") from error


def _spawn(home: Home, options: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "gym_gui.services.trainer.daemon", "run", "--home", str(home.root), *options]
    with _append_to(home.daemon_log) as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=home.root
        )
    # Reap it when it exits, because the window may run for longer than the daemon.
    threading.Thread(target=process.wait, name="reap-daemon", daemon=True).start()
    return process


def _answers(home: Home, deadline: float) -> bool:
    from gym_gui.services.trainer.client import TrainerClient

    try:
        with TrainerClient.connect(home, timeout_s=max(0.2, min(5.0, deadline - time.monotonic()))) as client:
            client.health()
    except DaemonUnreachable:
        return False
    return True


def _failure(what: str, home: Home, log_start: int) -> str:
    last_output = log_tail(home.daemon_log, log_start)
    shown = "\n".join(f"  {line}" for line in last_output) if last_output else "  (it wrote nothing)"
    return f"the trainer daemon {what}; the end of {home.daemon_log}:\n{shown}"


def log_tail(path: Path, since: int = 0, lines: int = 15) -> list[str]:
    """Return the last lines of a file after the byte `since`."""
    try:
        with open_plain(path) as stream:
            end = stream.seek(0, os.SEEK_END)
            stream.seek(max(since, end - _TAIL_BYTES))
            return stream.read().decode(errors="replace").splitlines()[-lines:]
    except OSError:
        return []
