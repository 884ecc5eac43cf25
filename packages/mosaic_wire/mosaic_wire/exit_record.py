"""`exit.json`: how a worker ended, for a daemon that was not running."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from mosaic_wire.decoding import from_json
from mosaic_wire.files import NotAPlainFile, read_json_object, write_json_atomically


class ExitOutcome(StrEnum):
    """How a worker ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RELEASED = "released"

    @property
    def exit_code(self) -> int:
        """Return the exit code of a worker with this outcome."""
        return {ExitOutcome.FAILED: 1, ExitOutcome.CANCELLED: 130}.get(self, 0)


BAD_INPUT = 2
"""Exit code of a worker that cannot use its config, or whose daemon refuses it"""


@dataclass(frozen=True)
class ExitRecord:
    """The record that a worker writes last; missing when it was killed."""

    run_id: str
    attempt: int
    outcome: ExitOutcome
    reason: str
    exit_code: int
    last_seq: int
    finished_at: float

    def write(self, path: Path) -> None:
        """Write the record in one piece."""
        write_json_atomically(path, asdict(self), sealed=True)

    @classmethod
    def read(cls, path: Path) -> ExitRecord | None:
        """Return the record, or None without a valid one; raise OSError when the reader lacks resources."""
        try:
            return from_json(cls, read_json_object(path, max_bytes=1 << 20))
        except (FileNotFoundError, PermissionError, NotAPlainFile, ValueError, TypeError):
            return None

    @classmethod
    def now(
        cls, run_id: str, attempt: int, outcome: ExitOutcome, *, reason: str, exit_code: int, last_seq: int
    ) -> ExitRecord:
        """Return the record of a worker that ends now."""
        return cls(run_id, attempt, outcome, reason, exit_code, last_seq, time.time())
