"""Requirement sets as Management needs them: besides listing and installing, removing and tidying up. No Qt.

The worker's own program does the work; it is run, never imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mosaic_wire import env
from mosaic_wire.errors import SpecError
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.worker_spec import WorkerSpec

from gym_gui.ui.workers.requirement_sets import ExtrasFailed, InstallProgress, RequirementSet, list_sets

_LAST_LINES = 20


SetsProblem = ExtrasFailed
"""What went wrong, in words for people"""


def can_be_installed(entry: RequirementSet) -> bool:
    return not entry.is_ready and entry.state != "being installed" and entry.name != "base"


def can_be_removed(entry: RequirementSet) -> bool:
    return not entry.in_base and entry.state not in ("not installed", "being installed") and entry.name != "base"


@dataclass(frozen=True)
class JobResult:
    """How an installation, a removal or a tidying ended."""

    succeeded: bool
    message: str
    was_cancelled: bool = False
    freed_bytes: int = 0


class SetsJob:
    """One process of the program. `run` blocks until it ends; `cancel` may be called from any thread."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self._argv, self._environment = list(argv), dict(environment)
        self._process: subprocess.Popen[str] | None = None
        self._cancelled = threading.Event()
        self._lock = threading.Lock()

    def cancel(self) -> None:
        """Ask it to end; pip ends with it, and what was half made is not used."""
        self._cancelled.set()
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                self._process.terminate()

    def run(self, on_progress: Callable[[InstallProgress], Any]) -> JobResult:
        """In a thread of the background: start it, tell its progress, return how it ended."""
        with self._lock:
            if self._cancelled.is_set():
                return JobResult(False, "", was_cancelled=True)
            try:
                self._process = subprocess.Popen(
                    self._argv, env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT, text=True, errors="replace",
                )  # fmt: skip
            except OSError as error:
                return JobResult(False, f"{self._argv[0]} cannot be started: {error.strerror or error}")
        result: dict[str, Any] = {}
        last_words: deque[str] = deque(maxlen=_LAST_LINES)
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                document = _document(line)
                if document.get("event") == "progress":
                    on_progress(_progress(document))
                elif document:
                    result = document
                elif line.strip():
                    last_words.append(line.rstrip())
        code = self._process.wait()
        if self._cancelled.is_set():
            return JobResult(False, "", was_cancelled=True)
        return _result(code, result, last_words)


class SetsProgram:
    """`python -m <worker>.tools.install_extras` of the worker that has requirement sets."""

    def __init__(self, argv: Sequence[str], home: Home) -> None:
        self._argv, self._home = list(argv), home
        self._environment = {**os.environ, env.MOSAIC_HOME: str(home.root)}

    @classmethod
    def of(cls, workers: Iterable[pb.Worker], home: Home) -> SetsProgram:
        """The program of the first worker that has sets; SetsProblem when none has."""
        for worker in workers:
            try:
                spec = WorkerSpec.from_json(json.loads(worker.spec_json)) if worker.spec_json else None
            except (SpecError, ValueError):
                continue
            if spec is not None and spec.argv and any(algorithm.requirement_sets for algorithm in spec.algorithms):
                package = spec.module.partition(".")[0]
                return cls([spec.argv[0], "-m", f"{package}.tools.install_extras"], home)
        raise SetsProblem(
            "No installed worker has requirement sets. They come with the CleanRL worker; its page under Workers says "
            "what is wrong with it."
        )

    def list_sets(self) -> tuple[RequirementSet, ...]:
        """Every set and its state; takes a second."""
        return list_sets(self._argv, self._home)

    def install(self, names: Sequence[str]) -> SetsJob:
        return self._job(["--set", ",".join(names), "--progress-json"])

    def remove(self, names: Sequence[str]) -> SetsJob:
        return self._job(["--remove", "--set", ",".join(names), "--json"])

    def prune(self) -> SetsJob:
        """Remove superseded and half-made environments that no run uses."""
        return self._job(["--prune", "--json"])

    def _job(self, words: Sequence[str]) -> SetsJob:
        return SetsJob([*self._argv, *words], self._environment)


def _document(line: str) -> dict[str, Any]:
    if not line.startswith("{"):
        return {}
    try:
        document = json.loads(line)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _progress(document: Mapping[str, Any]) -> InstallProgress:
    done, total = (value if isinstance(value := document.get(key), int) else 0 for key in ("done", "total"))
    return InstallProgress(
        str(document.get("set", "")), str(document.get("phase", "")), str(document.get("message", "")), done, total
    )


def _result(code: int, result: Mapping[str, Any], last_words: Iterable[str]) -> JobResult:
    freed = result.get("bytes")
    freed_bytes = freed if isinstance(freed, int) else 0
    kept = result.get("kept") or ()
    told = [str(entry.get("message")) for entry in result.get("sets", ()) if entry.get("message")]
    if code == 0:
        return JobResult(True, "\n".join(told), freed_bytes=freed_bytes)
    words = "\n".join([*told, *map(str, kept), *filter(None, [str(result.get("message") or "")])])
    return JobResult(
        False, words or "\n".join(last_words) or f"It ended with exit code {code}.", freed_bytes=freed_bytes
    )
