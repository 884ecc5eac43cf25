"""`--check`: a worker reports problems of configs before they are queued.

The process reads one worker config a line from standard input, as JSON, and writes one answer a line. It is kept for
many configs, so that only the first one waits for its start, and ends with its standard input. A worker that has it
declares it in its description (`checks`).
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mosaic_wire.decoding import from_json
from mosaic_wire.errors import ConfigProblems, Problem

_DRY_RUN_S = 15.0
_JUST_NOW_S = 30.0
_passed: dict[str, float] = {}
"""Configs whose dry run found nothing wrong, without their seed → when"""


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


def problems_of_dry_run(module: str, document: Mapping[str, Any]) -> list[Problem]:
    """Return what a dry run of this worker finds: it makes the environment, in a process with the run's sets.

    All seeds of one submission cost one dry run. One that takes long finds nothing.
    """
    import subprocess  # slow to load, and a run does not need it
    import tempfile

    config = {key: value for key, value in document.items() if key not in ("run_id", "seed", "worker_id")}
    key = json.dumps(config, sort_keys=True)
    if time.monotonic() - _passed.get(key, -_JUST_NOW_S) < _JUST_NOW_S:
        return []
    with tempfile.TemporaryDirectory(prefix="mosaic-check-") as folder:
        file = Path(folder) / "config.json"
        file.write_text(json.dumps(document), encoding="utf-8")
        command = [sys.executable, "-m", module, "--config", str(file), "--dry-run", "--emit-summary"]
        try:
            done = subprocess.run(
                command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=_DRY_RUN_S, check=False
            )
        except subprocess.TimeoutExpired:
            return []
    if done.returncode == 0:
        _passed[key] = time.monotonic()
        return []
    with suppress(ValueError, IndexError, KeyError, TypeError):
        return [Problem(**problem) for problem in json.loads(done.stdout.splitlines()[-1])["problems"]]
    last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["it printed nothing"]
    return [Problem("", f"the dry run ended with exit code {done.returncode}: {last[0]}")]
