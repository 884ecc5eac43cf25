"""A policy by its path: the facts in a checkpoint folder or a file with weights. No Qt, no command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mosaic_wire.checkpoints import STATE_FILE, read_checkpoint
from mosaic_wire.errors import DamagedCheckpoint
from mosaic_wire.ids import is_run_id
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder


class NoPolicy(ValueError):
    """There is no policy at this path; the message is the reason."""


@dataclass(frozen=True)
class Chosen:
    """A policy, and what is known of where it comes from."""

    path: str
    """what a worker's `checkpoint_path` may be: a run id, a checkpoint folder, a file"""
    title: str
    worker_type: str = ""
    algo: str = ""
    env_id: str = ""
    seed: int | None = None
    step: int = 0
    weights_only: bool = False
    args: Mapping[str, Any] = field(default_factory=dict)
    """the flags it was trained with, where they are known"""
    curriculum: Any = None


def of_path(path: Path) -> Chosen:
    """Return a checkpoint folder or a file with weights, by what lies in it and around it."""
    if not path.exists():
        raise NoPolicy(f"there is no {path}")
    if path.is_file() and path.name != STATE_FILE:
        return _of_file(path)
    folder = path.parent if path.is_file() else path
    try:
        state = read_checkpoint(folder)
    except DamagedCheckpoint as error:
        raise NoPolicy(f"{path} is no checkpoint that can be used: {error}") from error
    args = (state.get("values") or {}).get("args") or {}
    envs = (state.get("values") or {}).get("envs") or {}
    if envs.get("curriculum"):
        ids = envs["curriculum"].get("env_ids") or [args.get("env_id")]
        args = {**args, "env_id": ids[-1]}
    algo, env_id = str(state.get("algo") or ""), str(args.get("env_id") or "")
    return Chosen(str(folder), folder.name, "", algo, env_id, args.get("seed"), int(state["step"]), args=args)


def _of_file(path: Path) -> Chosen:
    """Weights alone say nothing about themselves; the run they lie in may."""
    manifest = None
    if is_run_id(path.parent.name):
        manifest = AnalyticsManifest.find(RunFolder(path.parent).manifest)
    algo, env_id = (manifest.algo, manifest.env_id) if manifest is not None else ("", "")
    return Chosen(str(path), path.name, "", algo, env_id, weights_only=True)
