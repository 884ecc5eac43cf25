"""Requirement sets of a worker, listed and installed by its own program, which is never imported. No Qt.

Every function here waits for a process: call it outside the window's thread.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from mosaic_wire import env
from mosaic_wire.paths import Home

_LIST_TIMEOUT_S = 60
_LAST_LINES = 20


@dataclass(frozen=True)
class RequirementSet:
    """One set as reported by `install_extras --list --json`."""

    name: str
    state: str
    detail: str = ""
    purpose: str = ""
    bytes: int = 0
    expected_mb: int = 0
    in_base: bool = False

    @property
    def is_ready(self) -> bool:
        return self.state == "ready"


@dataclass(frozen=True)
class InstallProgress:
    """A line of `--progress-json`."""

    set: str
    phase: str
    message: str
    done: int = 0
    total: int = 0


class ExtrasFailed(RuntimeError):
    """The program failed; the message is its error."""


def list_sets(program: Sequence[str], home: Home) -> tuple[RequirementSet, ...]:
    """Return every set and its state."""
    try:
        done = subprocess.run(
            [*program, "--list", "--json", "--home", str(home.root)],
            capture_output=True,
            timeout=_LIST_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
            env=_variables(home),
        )
        listed = json.loads(done.stdout)
        known = {field.name for field in fields(RequirementSet)}
        return tuple(RequirementSet(**{key: entry[key] for key in entry if key in known}) for entry in listed)
    except subprocess.TimeoutExpired:
        raise ExtrasFailed(f"listing the requirement sets took longer than {_LIST_TIMEOUT_S} s") from None
    except OSError as error:
        raise ExtrasFailed(f"{program[0]} cannot be started: {error.strerror or error}") from None
    except (ValueError, TypeError, KeyError):
        raise ExtrasFailed(_last_line(done.stderr) or "the list of requirement sets cannot be read") from None


@dataclass(frozen=True)
class JobResult:
    """The outcome of an installation, removal or cleanup."""

    succeeded: bool
    message: str
    was_cancelled: bool = False
    freed_bytes: int = 0


def install_job(program: Sequence[str], home: Home, names: Sequence[str]) -> SetsJob:
    """Return the job that installs these sets."""
    return SetsJob([*program, "--set", ",".join(names), "--progress-json"], _variables(home))


class SetsJob:
    """One process of an installer. `run` blocks until it exits; `cancel` may be called from any thread."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self._argv, self._environment = list(argv), dict(environment)
        self._process: subprocess.Popen[str] | None = None
        self._cancelled = threading.Event()
        self._lock = threading.Lock()

    def cancel(self) -> None:
        """Terminate the process and pip; an incomplete installation is not used."""
        self._cancelled.set()
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                self._process.terminate()

    def run(self, on_progress: Callable[[InstallProgress], Any]) -> JobResult:
        """Run the process, report its progress and return the outcome; blocks, call it in a thread."""
        with self._lock:
            if self._cancelled.is_set():
                return JobResult(False, "", was_cancelled=True)
            try:
                self._process = subprocess.Popen(
                    self._argv,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                )
            except OSError as error:
                return JobResult(False, f"{self._argv[0]} cannot be started: {error.strerror or error}")
        result: dict[str, Any] = {}
        last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                document = _document(line)
                if document.get("event") == "progress":
                    on_progress(_progress(document))
                elif document:
                    result = document
                elif line.strip():
                    last_lines.append(line.rstrip())
        code = self._process.wait()
        if self._cancelled.is_set():
            return JobResult(False, "", was_cancelled=True)
        return _result(code, result, last_lines)


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


def _result(code: int, result: Mapping[str, Any], last_lines: Iterable[str]) -> JobResult:
    freed = result.get("bytes")
    freed_bytes = freed if isinstance(freed, int) else 0
    kept = result.get("kept") or ()
    reported = [str(entry.get("message")) for entry in result.get("sets", ()) if entry.get("message")]
    if code == 0:
        return JobResult(True, "\n".join(reported), freed_bytes=freed_bytes)
    text = "\n".join([*reported, *map(str, kept), *filter(None, [str(result.get("message") or "")])])
    return JobResult(False, text or "\n".join(last_lines) or f"It exited with code {code}.", freed_bytes=freed_bytes)


def _variables(home: Home) -> dict[str, str]:
    return {**os.environ, env.MOSAIC_HOME: str(home.root)}


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1][:400] if lines else ""
