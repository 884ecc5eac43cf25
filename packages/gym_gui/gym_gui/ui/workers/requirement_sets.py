"""Requirement sets of a worker, listed and installed by its own program, which is never imported. No Qt.

Every function here waits for a process: call it outside the window's thread.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from mosaic_wire import env
from mosaic_wire.paths import Home

_LIST_TIMEOUT_S = 60


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


class Installation:
    """One running installation: call `run` in a thread, `cancel` in any."""

    def __init__(self, program: Sequence[str], home: Home, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._argv = [*program, "--set", ",".join(names), "--progress-json", "--home", str(home.root)]
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._cancelled = False

    def run(self, report: Callable[[InstallProgress], Any]) -> None:
        """Install and report progress; raise ExtrasFailed on errors."""
        with self._lock:
            if self._cancelled:
                return
            try:
                process = self._process = subprocess.Popen(
                    self._argv,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=_variables(self._home),
                    start_new_session=True,
                )
            except OSError as error:
                raise ExtrasFailed(f"{self._argv[0]} cannot be started: {error.strerror or error}") from None
        result: dict[str, Any] = {}
        with process:
            assert process.stdout is not None
            assert process.stderr is not None
            errors: list[bytes] = []
            drain = threading.Thread(target=lambda: errors.append(process.stderr.read()), daemon=True)  # type: ignore[union-attr]
            drain.start()
            for line in process.stdout:
                reported = _object(line)
                if reported.get("event") == "progress":
                    report(
                        InstallProgress(
                            str(reported.get("set", "")),
                            str(reported.get("phase", "")),
                            str(reported.get("message", "")),
                            int(reported.get("done") or 0),
                            int(reported.get("total") or 0),
                        )
                    )
                elif reported.get("event") == "result":
                    result = reported
            code = process.wait()
            drain.join()
        if self._cancelled:
            raise ExtrasFailed("the installation was cancelled; the incomplete environment is not used")
        if code != 0:
            failed = [str(entry.get("message")) for entry in result.get("sets", ()) if not entry.get("ready")]
            text = " ".join(failed) or str(result.get("message") or "") or _last_line(b"".join(errors))
            raise ExtrasFailed(text or f"the installation exited with code {code}")

    def cancel(self) -> None:
        """Cancel it; the program removes the incomplete environment."""
        with self._lock:
            self._cancelled = True
            if self._process is not None and self._process.poll() is None:
                self._process.terminate()


def _variables(home: Home) -> dict[str, str]:
    return {**os.environ, env.MOSAIC_HOME: str(home.root)}


def _object(line: bytes) -> dict[str, Any]:
    try:
        reported = json.loads(line)
    except ValueError:
        return {}
    return reported if isinstance(reported, dict) else {}


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1][:400] if lines else ""
