"""Log codes: `LOG<number> | message | extra={json}`, the same in the daemon's log, a worker's output and the window.

A number never changes its meaning and is never reused (407 and 502 are retired); a new code takes a free number.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class LogCode:
    """One code: the number operators search for, what it means, and its log level."""

    number: int
    meaning: str
    level: int = logging.INFO

    @property
    def code(self) -> str:
        return f"LOG{self.number}"


@dataclass(frozen=True)
class StructuredLine:
    """A coded line as it was read; `code` is None for a number this MOSAIC does not know (another worker's)."""

    number: int
    message: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    level: int = logging.INFO
    code: LogCode | None = None


MAX_LINE_CHARACTERS = 64 * 1024
"""A longer line is ordinary output, not a structured one."""

# -- 400: the trainer daemon
LOG_TRAINER_RUN_SUBMITTED = LogCode(401, "a run was accepted and queued")
LOG_TRAINER_RUN_DISPATCHED = LogCode(402, "a worker process was started")
LOG_TRAINER_WORKER_REGISTERED = LogCode(403, "a worker registered")
LOG_TRAINER_RUN_ENDED = LogCode(404, "a run completed, failed or was cancelled")
LOG_TRAINER_RUN_FAULTED = LogCode(405, "an attempt failed; the reason follows")
LOG_TRAINER_RUN_REATTACHED = LogCode(406, "a restarted daemon recovered a run")
LOG_TRAINER_ARCHIVE_REFUSED = LogCode(408, "an archive was refused; nothing was unpacked")
LOG_TRAINER_RUN_PAUSED = LogCode(409, "a run was paused, or released its CPUs and GPUs")
LOG_TRAINER_RUN_RESUMED = LogCode(410, "a paused run resumed, or was queued to resume")
LOG_TRAINER_RUN_RETRIED = LogCode(411, "a failed attempt is retried")
LOG_TRAINER_RUN_WAITS = LogCode(412, "a queued run waits for capacity")

# -- 500: workers
LOG_WORKER_STARTED = LogCode(501, "a worker has read its config and starts")
LOG_WORKER_FAILED = LogCode(503, "a worker's training failed", logging.ERROR)
LOG_WORKER_DESCRIBE_FAILED = LogCode(504, "an installed worker cannot be described; it is listed with the reason")

# -- 700: the window
LOG_UI_MAINWINDOW_INVALID_CONFIG = LogCode(705, "the trainer rejected a config; the problems are listed")

ALL_CODES: tuple[LogCode, ...] = tuple(value for value in list(globals().values()) if isinstance(value, LogCode))
_BY_NUMBER = {code.number: code for code in ALL_CODES}

_HEAD = re.compile(r"LOG(\d{1,6}) \| ", re.ASCII)
_EXTRA = " | extra="


def code_of(number: int) -> LogCode | None:
    """Return the code with this number, or None."""
    return _BY_NUMBER.get(number)


def format_line(code: LogCode, message: str, extra: Mapping[str, Any] | None = None) -> str:
    """Write one coded line; a message of several lines becomes one."""
    # Escaped: one line whatever it holds, and its last ` | extra=` is always the one that ends the message.
    attached = json.dumps(dict(extra or {}), default=str).replace("|", "\\u007c")
    flat = " ⏎ ".join(part.strip() for part in message.splitlines() if part.strip())
    return f"{code.code} | {flat}{_EXTRA}{attached}"


def parse_structured_line(line: str) -> StructuredLine | None:
    """Read a coded line, also one with no or a broken `extra`; None when it is an ordinary line."""
    line = line.strip()
    head = _HEAD.match(line)
    if head is None or len(line) > MAX_LINE_CHARACTERS:
        return None
    number, message, extra = int(head[1]), line[head.end() :], dict[str, Any]()
    before, found, attached = message.rpartition(_EXTRA)
    if found:
        try:
            document = json.loads(attached)
        except (ValueError, RecursionError):
            document = None
        if isinstance(document, dict):
            message, extra = before, document
    code = code_of(number)
    return StructuredLine(number, message.strip(), extra, code.level if code else logging.INFO, code)


def log_code(logger: logging.Logger, code: LogCode, message: str, **extra: Any) -> None:
    """Log a coded line at the code's level; handlers find the number in `record.log_code`."""
    if logger.isEnabledFor(code.level):
        logger.log(code.level, "%s", format_line(code, message, extra), extra={"log_code": code.number})
