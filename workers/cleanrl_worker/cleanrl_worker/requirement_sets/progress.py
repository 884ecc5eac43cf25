"""What an installation tells while it works: one event per package and phase."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Phase(StrEnum):
    """The steps of an installation, in order; WAITING and READY may be the only ones."""

    WAITING = "waiting"
    PREPARING = "preparing"
    FETCHING = "fetching"
    INSTALLING = "installing"
    CHECKING = "checking"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True)
class Progress:
    """One step: `done` of `total` packages of the phase, and a sentence for people."""

    set: str
    phase: Phase
    message: str
    done: int = 0
    total: int = 0
    package: str = ""

    def to_json(self) -> dict[str, Any]:
        """As a line of `--progress-json`."""
        return {"event": "progress", **asdict(self)}


Report = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Report nothing."""
