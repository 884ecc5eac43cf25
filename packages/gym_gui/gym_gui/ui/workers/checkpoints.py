"""Find checkpoints below the runs folder: step, date, return. No Qt; reads files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mosaic_wire.checkpoints import STATE_FILE
from mosaic_wire.files import read_json_object
from mosaic_wire.ids import is_run_id
from mosaic_wire.manifest import POLICY_SUFFIX, AnalyticsManifest
from mosaic_wire.paths import Home, RunFolder

_MAX_READ = 400
"""Only the newest checkpoints are opened for their return; each takes milliseconds"""
_MAX_BYTES = 32 << 20


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint folder, or a file with weights."""

    path: Path
    run_id: str = ""
    algo: str = ""
    env_id: str = ""
    seed: int | None = None
    step: int = 0
    kind: str = ""
    when: float = 0.0
    episodic_return: float | None = None
    """Mean return of the last episodes before it"""
    args: Mapping[str, Any] = field(default_factory=dict)
    """The flags it was trained with, if known"""
    weights_only: bool = False

    @property
    def title(self) -> str:
        return f"{self.algo} {self.env_id} step {self.step}".strip()


def find_checkpoints(home: Home) -> list[FoundCheckpoint]:
    """Return the checkpoints of all runs, newest first; unreadable ones are skipped."""
    found = [checkpoint for run_id in _run_ids(home) for checkpoint in _of_run(home.run_folder(run_id), run_id)]
    found.sort(key=lambda checkpoint: (checkpoint.when, checkpoint.step), reverse=True)
    return [with_state(checkpoint) for checkpoint in found[:_MAX_READ]] + found[_MAX_READ:]


def checkpoints_of(home: Home, run_ids: Iterable[str]) -> list[FoundCheckpoint]:
    """Return the checkpoints of these runs, the highest step first."""
    found = [one for run_id in run_ids for one in _of_run(home.run_folder(run_id), run_id)]
    return [with_state(one) for one in sorted(found, key=lambda one: one.step, reverse=True)]


def checkpoint_at(path: Path) -> FoundCheckpoint:
    """Return the checkpoint at a path the user named; raise ValueError if there is none."""
    if path.is_file() and path.suffix == POLICY_SUFFIX:
        return FoundCheckpoint(path, when=path.stat().st_mtime, weights_only=True)
    if (path / "checkpoints").is_dir() and is_run_id(path.name):
        newest = max(_of_run(RunFolder(path), path.name), key=lambda one: one.step, default=None)
        if newest is None:
            raise ValueError(f"the run in {path} left no checkpoint")
        return with_state(newest)
    folder = path.parent if path.name == STATE_FILE else path
    if not (folder / STATE_FILE).is_file():
        raise ValueError(f"{path} is neither a checkpoint folder (it has no {STATE_FILE}) nor a {POLICY_SUFFIX} file")
    owner = folder.parent.parent
    run_id = owner.name if is_run_id(owner.name) else ""
    found = with_state(FoundCheckpoint(folder, run_id=run_id, when=(folder / STATE_FILE).stat().st_mtime))
    if not found.algo:
        raise ValueError(f"{folder / STATE_FILE} cannot be read")
    return found


def with_state(checkpoint: FoundCheckpoint) -> FoundCheckpoint:
    """Add the facts of the state file, if it is readable."""
    try:
        state = read_json_object(checkpoint.path / STATE_FILE, max_bytes=_MAX_BYTES)
    except (OSError, ValueError):
        return checkpoint
    values = state.get("values")
    values = values if isinstance(values, dict) else {}
    args = values.get("args")
    args = args if isinstance(args, dict) else {}
    episodes = values.get("episodes")
    recent = episodes.get("recent") if isinstance(episodes, dict) else None
    returns = [float(one) for one in recent or () if type(one) in (int, float) and math.isfinite(one)]
    step, seed = state.get("step"), args.get("seed", checkpoint.seed)
    return FoundCheckpoint(
        checkpoint.path,
        checkpoint.run_id,
        str(state.get("algo") or checkpoint.algo),
        str(args.get("env_id") or checkpoint.env_id),
        seed if type(seed) is int else None,
        step if type(step) is int else checkpoint.step,
        checkpoint.kind,
        checkpoint.when,
        sum(returns) / len(returns) if returns else None,
        args,
    )


def _run_ids(home: Home) -> Iterator[str]:
    try:
        names = [entry.name for entry in home.runs.iterdir()]
    except OSError:
        return
    yield from (name for name in names if is_run_id(name))


def _of_run(folder: RunFolder, run_id: str) -> Iterator[FoundCheckpoint]:
    manifest = AnalyticsManifest.find(folder.manifest)
    if manifest is None:
        return
    for entry in manifest.checkpoints:
        path = folder.root / entry.path
        try:
            when = (path / STATE_FILE).stat().st_mtime
        except OSError:
            continue  # removed since it was listed
        yield FoundCheckpoint(path, run_id, manifest.algo, manifest.env_id, manifest.seed, entry.step, entry.kind, when)
