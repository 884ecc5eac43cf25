"""`--check`: a worker reports problems of configs before they are queued.

The process reads one worker config a line from standard input, as JSON, and writes one answer a line. It is kept for
many configs, so that only the first one waits for its start, and ends with its standard input. A worker that has it
declares it in its description (`checks`).
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mosaic_wire.decoding import from_json
from mosaic_wire.errors import ConfigProblems, Problem


@dataclass(frozen=True)
class CheckAnswer:
    """The answer of a worker to one config."""

    problems: Sequence[Problem] = ()
    fits: bool | None = None
    """Whether the algorithm supports the environment; None if that is unknown"""
    missing_sets: Sequence[str] = ()
    """Requirement sets that have to be installed first; a problem unless `extras.install_missing` is set"""
    runs: Sequence[Mapping[str, Any]] = ()
    """Run configs such as the worker would submit, to be checked as well"""
    varied: Sequence[str] = ()
    """Parameters that vary between these runs"""
    notes: Sequence[str] = ()
    """Notes for the user on values with which the run can start"""

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> CheckAnswer:
        """Read an answer; raise TypeError or ValueError when it is none."""
        return from_json(cls, document)


def serve_checks(check: Callable[[Mapping[str, Any]], CheckAnswer]) -> int:
    """Answer until standard input ends; return the exit code."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of libraries must not mix with the answers
    with answers:
        for line in sys.stdin:
            answers.write(json.dumps(_answer(check, line)) + "\n")
            answers.flush()
    return 0


def _answer(check: Callable[[Mapping[str, Any]], CheckAnswer], line: str) -> dict[str, Any]:
    try:
        answer = check(json.loads(line))
    except ConfigProblems as error:
        answer = CheckAnswer(error.problems)
    except Exception as error:  # noqa: BLE001 - the process boundary: a check that fails must not refuse a run
        return {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    return {"ok": not answer.problems, **asdict(answer)}
