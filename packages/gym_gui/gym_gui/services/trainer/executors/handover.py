"""The two files by which the daemon and the guard on a node hand a run over and back (they share a disk).

The launch file is the claim of a job: it holds argv and environment, also secrets, so it lies in the user's config
folder, mode 0600, and the guard takes it away before it starts the worker. Whoever takes it first decides: after the
daemon has withdrawn it, no job can start the run any more.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mosaic_wire.files import open_plain, read_json_object, write_json_atomically
from mosaic_wire.paths import make_private_folder

from gym_gui.services.trainer.launch import Launch

_MAX_BYTES = 4 << 20
_FOLDER = "launches"
_REPORT = "node.json"
_TAKEN = ".taken"
_PATHS = ("cwd", "stdout", "stderr")


def launch_file(config_home: Path, mark: str) -> Path:
    """Return where the launch of an attempt waits for its job."""
    return config_home / _FOLDER / f"{mark}.json"


def offer(file: Path, launch: Launch) -> None:
    """Write the launch for the job to take; only this user can read it."""
    make_private_folder(file.parent)
    paths = {name: os.fspath(getattr(launch, name)) for name in _PATHS}
    write_json_atomically(file, {**vars(launch), **paths, "env": dict(launch.env)}, mode=0o600)


def take(file: Path) -> Launch | None:
    """Take the launch away and return it; None if it was taken or withdrawn before."""
    taken = file.with_suffix(_TAKEN)
    try:
        os.rename(file, taken)  # atomic: of a job and the daemon, one succeeds
    except FileNotFoundError:
        return None
    try:
        with open_plain(taken) as stream:
            document: dict[str, Any] = json.loads(stream.read(_MAX_BYTES))
    finally:
        taken.unlink()
    paths = {name: Path(document[name]) for name in _PATHS}
    return Launch(**{**document, **paths, "argv": tuple(document["argv"])})


def discard(file: Path) -> None:
    """Remove what is left of a launch whose attempt is over."""
    for path in (file, file.with_suffix(_TAKEN)):
        path.unlink(missing_ok=True)


def withdraw(file: Path) -> bool:
    """Take the launch back, so that no job starts it; return False if a job has taken it."""
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    return True


@dataclass(frozen=True)
class NodeReport:
    """How an attempt ended on its node, as its guard saw it."""

    mark: str
    node: str
    exit_code: int | None = None
    """Of the worker; None if the guard could not start it"""
    problem: str = ""
    """Why the guard ended it, or could not start it"""
    was_told_to_end: bool = False
    """Whether the daemon or Slurm ended it"""
    is_interruption: bool = False
    """Whether the run is to be queued again for that"""

    def write(self, folder: Path) -> None:
        """Write it into the folder of the run's logs."""
        write_json_atomically(folder / _REPORT, asdict(self))

    @classmethod
    def read(cls, folder: Path, mark: str) -> NodeReport | None:
        """Return the report on this attempt, or None while there is none."""
        with suppress(OSError, ValueError, TypeError):  # the worker could have written it, too
            report = cls(**read_json_object(folder / _REPORT))
            code = report.exit_code
            if report.mark == mark and (code is None or type(code) is int) and isinstance(report.problem, str):
                return report
        return None
