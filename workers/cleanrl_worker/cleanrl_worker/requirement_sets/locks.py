"""Locks around overlays: one installer at a time, and nobody removes what a run uses."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cleanrl_worker.requirement_sets.errors import SetInUse, SetNotReady
from cleanrl_worker.requirement_sets.plan import IN_USE, OVERLAY_RECORD, READY


@contextmanager
def installing(lock_file: Path, *, waits: Callable[[str], None] = lambda holder: None) -> Iterator[int]:
    """Hold the installer's lock; yields its descriptor, which pip must inherit.

    pip outlives an installer that is killed. With the descriptor it keeps the lock, so the next installer begins only
    when nothing writes into the folder any more.
    """
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waits(os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        with suppress(OSError):  # a full disk does not keep anybody from holding a lock
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def is_locked(lock_file: Path) -> bool:
    """Whether somebody installs this set now."""
    try:
        descriptor = os.open(lock_file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def hold(python: Path) -> tuple[int, ...]:
    """Mark the overlay of this interpreter as used, and return the descriptors that keep it so.

    Pass them on to the processes of the run (`pass_fds`) and close them at its end; they are inheritable. The base
    needs no mark and gives (). Raises SetNotReady when the overlay was removed in between.
    """
    held: list[int] = []
    try:
        for generation in _generations_of(python.parent.parent):
            descriptor = os.open(generation / IN_USE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            held.append(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            os.set_inheritable(descriptor, True)
            if not (generation / READY).is_file():
                raise FileNotFoundError(generation / READY)
    except OSError as error:
        for descriptor in held:
            os.close(descriptor)
        raise SetNotReady(f"the environment of {python} is being removed or rebuilt: {error}") from error
    return tuple(held)


def _generations_of(prefix: Path) -> list[Path]:
    try:
        record = json.loads((prefix / OVERLAY_RECORD).read_bytes())
    except FileNotFoundError:
        return []  # the base
    except (OSError, ValueError) as error:
        raise SetNotReady(f"{prefix / OVERLAY_RECORD} cannot be read: {error}") from error
    return [Path(path) for path in record.get("generations", [str(prefix)])]


@contextmanager
def unused(generation: Path) -> Iterator[None]:
    """Keep runs out of an overlay while it is removed; raise SetInUse when one is in it."""
    try:
        descriptor = os.open(generation / IN_USE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:
        yield  # the folder itself is gone
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SetInUse(f"a run uses {generation}; cancel it or wait for its end, then try again") from None
        yield
    finally:
        os.close(descriptor)
