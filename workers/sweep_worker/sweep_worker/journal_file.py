"""The study's journal file: an entry is in it whole or not at all, whatever happens to the process or the disk.

Optuna's own backend leaves half a line behind when the disk is full or the machine stops, and refuses the file from
then on; its locks outlive a process that was killed.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

_ROOM_CHECK_S = 1.0


class DamagedJournal(Exception):
    """The journal is broken where no interrupted write can have broken it."""


class ProcessLock(JournalFileOpenLock):
    """A lock that the kernel takes back when its process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def acquire(self) -> bool:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        return True

    def release(self) -> None:
        os.close(self._descriptor)
        self._descriptor = -1


class StudyJournal(JournalFileBackend):
    """Appends whole entries; while the disk is full it waits for room, and says so once."""

    def __init__(self, path: Path, *, complain: Callable[[str], None], is_stopping: Callable[[], bool]) -> None:
        repair(path, complain)
        super().__init__(str(path), lock_obj=ProcessLock(path.with_name(f".{path.name}.lock")))
        self._path, self._complain, self._is_stopping = path, complain, is_stopping

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        told = False
        while True:
            size = self._path.stat().st_size
            try:
                super().append_logs(logs)
            except OSError as error:
                os.truncate(self._path, size)
                if error.errno not in (errno.ENOSPC, errno.EDQUOT) or self._is_stopping():
                    raise
                if not told:
                    self._complain(f"the study cannot be written, waiting for room: {error}")
                    told = True
                time.sleep(_ROOM_CHECK_S)
            else:
                return


def repair(path: Path, complain: Callable[[str], None]) -> None:
    """Cut off what an interrupted write left at the end; the torn rest is kept beside the journal."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    good, broken_at = 0, -1
    for line in data.splitlines(keepends=True):
        if not _is_entry(line):
            if broken_at < 0:
                broken_at = good
        elif broken_at >= 0:
            raise DamagedJournal(
                f"{path} is damaged in the middle, at byte {broken_at}; restore it from a backup, or remove the line"
            )
        good += len(line)
    if broken_at < 0:
        return
    torn = path.with_name(f"{path.name}.torn")
    torn.write_bytes(data[broken_at:])
    os.truncate(path, broken_at)
    complain(f"the last {len(data) - broken_at} bytes of {path.name} were half an entry; they lie in {torn.name} now")


def _is_entry(line: bytes) -> bool:
    if not line.endswith(b"\n"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def copy_journal(source: Path, target: Path) -> None:
    """Take an earlier study along: whole, or not at all."""
    temporary = target.with_name(f".{target.name}.tmp")
    shutil.copyfile(source, temporary)
    temporary.replace(target)
