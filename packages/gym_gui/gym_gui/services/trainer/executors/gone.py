"""Workers that cannot be looked at: one that was gone before, one in a container that this daemon is not in."""

from __future__ import annotations

import asyncio
import fcntl
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from gym_gui.services.trainer.process_tree import ProcessIdentity, TreeUsage

_LOOK_S = 1.0


@dataclass(frozen=True)
class GoneWorker:
    """Answers like a handle of a worker that has ended and left no process."""

    identity: ProcessIdentity
    mark: str

    async def wait(self) -> int | None:
        return None

    async def stop_tree(self, grace_s: float, *, first_signal: int = signal.SIGTERM) -> bool:
        return True

    def signal_tree(self, signal_number: int) -> int:
        return 0

    def is_stopped(self) -> bool:
        return False

    @property
    def is_limited(self) -> bool:
        return True

    def usage(self) -> TreeUsage:
        return TreeUsage(0, 0, 0)

    def elapsed_s(self) -> float:
        return 0.0

    def limit_hit(self) -> str | None:
        return None

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True)
class DistantWorker(GoneWorker):
    """A worker in another PID namespace: it is heard, but nobody here can signal or measure it.

    It lives for as long as somebody there holds the lock on its output, which it got with the file itself.
    """

    output: Path

    async def wait(self) -> int | None:
        while not await self.stop_tree(3600.0):
            pass
        return None

    async def stop_tree(self, grace_s: float, *, first_signal: int = signal.SIGTERM) -> bool:
        deadline = time.monotonic() + grace_s
        while await asyncio.to_thread(is_held, self.output):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(_LOOK_S)
        return True


def is_held(output: Path) -> bool:
    """Whether a process that writes to this file is alive, in whatever container of this machine."""
    try:
        with output.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
