"""A worker that was gone before the daemon could look: its files tell the rest."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from gym_gui.services.trainer.process_tree import ProcessIdentity, TreeUsage


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
