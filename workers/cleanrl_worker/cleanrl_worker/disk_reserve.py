"""A little room on the run's disk, kept back so that a run which fills the disk can still say how it ended."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from pathlib import Path

logger = logging.getLogger(__name__)

RESERVE_BYTES = 128 << 10
"""Enough for the last event, the manifest and exit.json"""


class DiskReserve:
    """A file of `RESERVE_BYTES` that is given back before the ending is written."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / ".reserve"
        try:
            descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
            finally:
                os.close(descriptor)
        except OSError as error:  # a run that starts on a full disk soon says so itself
            logger.debug("no room could be kept back: %s", error)

    def give_back(self) -> None:
        """Free the room; harmless when called twice."""
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)


def is_disk_full(error: BaseException) -> bool:
    """Whether this is about a disk (or a quota) that is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
