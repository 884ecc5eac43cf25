"""`exit.json`: how a worker ended, in its own words, for a daemon that was not looking."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from mosaic_wire.files import NotAPlainFile, read_json_object, write_json_atomically


class ExitOutcome(StrEnum):
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RELEASED = "released"


@dataclass(frozen=True)
class ExitRecord:
    """Written as the last thing a worker does; absent when it was killed."""

    run_id: str
    attempt: int
    outcome: ExitOutcome
    reason: str
    exit_code: int
    last_seq: int
    finished_at: float

    def write(self, path: Path) -> None:
        write_json_atomically(path, asdict(self), sealed=True)

    @classmethod
    def read(cls, path: Path) -> ExitRecord | None:
        """Return the record, or None when there is none that can be trusted; OSError when the reader is in trouble."""
        try:
            document = read_json_object(path, max_bytes=1 << 20)
            record = cls(
                run_id=document["run_id"],
                attempt=document["attempt"],
                outcome=ExitOutcome(document["outcome"]),
                reason=document["reason"],
                exit_code=document["exit_code"],
                last_seq=document["last_seq"],
                finished_at=document["finished_at"],
            )
        except (FileNotFoundError, PermissionError, NotAPlainFile, ValueError, KeyError, TypeError):
            return None
        return record if record._has_the_right_types() else None

    def _has_the_right_types(self) -> bool:
        whole = all(type(number) is int for number in (self.attempt, self.exit_code, self.last_seq))
        text = isinstance(self.run_id, str) and isinstance(self.reason, str)
        return whole and text and type(self.finished_at) in (int, float)

    @classmethod
    def now(
        cls, run_id: str, attempt: int, outcome: ExitOutcome, *, reason: str, exit_code: int, last_seq: int
    ) -> ExitRecord:
        return cls(run_id, attempt, outcome, reason, exit_code, last_seq, time.time())
