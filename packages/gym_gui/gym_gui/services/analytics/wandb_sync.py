"""Sends what W&B kept offline: `wandb sync`, as a process of an environment that has the package.

The key travels in the environment, never in an argument. W&B's program may end with exit code 0 without having sent
anything; what counts is the mark it leaves beside each file it sent.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mosaic_wire.paths import Home
from mosaic_wire.redaction import redact_text, spellings_of

from gym_gui.services.analytics.wandb_folders import WandbFolder

_HAS_IT = "import importlib.util as u, sys; sys.exit(getattr(u.find_spec('wandb'), 'origin', None) is None)"
"""A folder `wandb` without a package in it, such as W&B makes where it is started, is found too, without an origin"""
_ASK_S = 30.0
_LAST_LINES = 12
_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PREFIX = re.compile(r"^wandb:\s*")
_SPINNER = re.compile(r"^[⠀-⣿|/\\-]\s+")
_ADDRESS = re.compile(r"https?://\S+/runs/\S+")


class SyncFailed(Exception):
    """Nothing, or not everything, was sent; in words for people."""


@dataclass(frozen=True)
class SyncResult:
    """What was sent."""

    folders: int
    url: str = ""
    """Where it can be looked at, when W&B said so"""


def find_interpreter(home: Home | None, trained_with: Sequence[str] = ()) -> str:
    """A Python that has the package wandb: this one, the one the run trained with, a requirement set's.

    SyncFailed when there is none. Starts a short process for each it asks: not for the window's thread.
    """
    if getattr(importlib.util.find_spec("wandb"), "origin", None) is not None:
        return sys.executable
    candidates = [*trained_with[:1], *map(str, _sets(home))]
    for python in dict.fromkeys(candidates):
        if Path(python).is_file() and _has_wandb(python):
            return python
    raise SyncFailed("The package wandb is not installed. Install its requirement set: mosaic extras install wandb")


def _sets(home: Home | None) -> list[Path]:
    if home is None:
        return []
    found = (home.trainer / "venvs" / "wandb").glob("*/bin/python")
    return sorted(found, key=lambda path: path.lstat().st_mtime, reverse=True)


def _has_wandb(python: str) -> bool:
    try:
        asked = subprocess.run(
            [python, "-c", _HAS_IT], stdin=subprocess.DEVNULL, capture_output=True, timeout=_ASK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0


class SyncJob:
    """One `wandb sync`. `run` blocks until it has ended; `cancel` may be called from any thread."""

    def __init__(
        self, python: str, folders: Iterable[WandbFolder], environment: Mapping[str, str], secrets: Iterable[str] = ()
    ) -> None:
        self._folders = tuple(folders)
        self._environment = {**environment, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}
        self._argv = [python, "-m", "wandb", "sync", "--include-online", "--include-synced",
                      *(str(folder.path) for folder in self._folders)]  # fmt: skip
        self._secrets = spellings_of(secrets)
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._is_cancelled = False

    def cancel(self) -> None:
        """Stop sending; what W&B has got by then stays there."""
        with self._lock:
            self._is_cancelled = True
            if self._process is not None and self._process.poll() is None:
                self._process.terminate()

    def run(self, report: Callable[[str], Any]) -> SyncResult:
        """Send, telling each line; SyncFailed with W&B's last words when not everything was sent."""
        with self._lock:
            if self._is_cancelled:
                raise SyncFailed("Stopped before anything was sent.")
            try:
                process = self._process = subprocess.Popen(
                    self._argv, env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
                    # It leaves a folder `wandb` with its own log where it is started: in the run's folder there is one.
                    cwd=self._folders[0].path.parent.parent if self._folders else None,
                )  # fmt: skip
            except OSError as error:
                raise SyncFailed(f"{self._argv[0]} cannot be started: {error.strerror or error}") from error
        told: deque[str] = deque(maxlen=_LAST_LINES)
        url = ""
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                words = self._readable(line)
                if not words:
                    continue
                if found := _ADDRESS.search(words):
                    url = found[0].rstrip(".")
                if not told or told[-1] != words:
                    told.append(words)
                    report(words)
            code = process.wait()
        if self._is_cancelled:
            raise SyncFailed("Stopped. What W&B has got by then stays there; syncing again sends the rest.")
        missing = [folder.path.name for folder in self._folders if not Path(f"{folder.file}.synced").exists()]
        if code != 0 or missing:
            last = " · ".join(told) or f"wandb sync ended with exit code {code}"
            raise SyncFailed(f"W&B did not get everything. It said: {last}")
        return SyncResult(len(self._folders), url)

    def _readable(self, line: str) -> str:
        text = _PREFIX.sub("", _STYLE.sub("", line).strip())
        return redact_text(_SPINNER.sub("", text).strip(), self._secrets)
