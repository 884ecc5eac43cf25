"""`analytics.json`: the files and results of a run, for tabs, exports and users.

Written by the worker at start, while running and at every end; by the daemon when the worker could not.
All paths are relative to the run folder.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from mosaic_wire.decoding import from_json
from mosaic_wire.files import Opener, plain_file, read_json_object, write_json_atomically

POLICY_SUFFIX = ".cleanrl_model"
VIDEO_SUFFIXES = frozenset({".mp4", ".webm", ".mkv", ".mov", ".avi", ".gif", ".m4v"})
_MAX_HASHED_BYTES = 1 << 40
"""A file with holes can claim any size, and hashing it would never end"""


@dataclass(frozen=True)
class CheckpointEntry:
    """A checkpoint folder and the hash of its state file."""

    path: str
    step: int
    sha256: str
    kind: str = "periodic"
    """periodic | last | best"""

    def to_json(self) -> dict[str, Any]:
        """Return the object that a manifest lists."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> CheckpointEntry:
        """Read an entry; raise TypeError or ValueError when it is none."""
        return from_json(cls, document)

    def __post_init__(self) -> None:
        if self.step < 0:
            raise ValueError(f"step of a checkpoint must be a whole number from 0, not {self.step!r}")
        relative = Path(self.path)
        if relative.is_absolute() or ".." in relative.parts:
            raise ValueError(f"checkpoint path {self.path!r} leaves the run folder")


@dataclass(frozen=True)
class AnalyticsManifest:
    """Keys are never renamed; unknown keys of a newer writer survive a rewrite in `extra`."""

    run_id: str
    worker_type: str = ""
    algo: str = ""
    env_id: str = ""
    seed: int | None = None
    outcome: str = "running"
    """running | completed | failed | cancelled | released"""
    reason: str = ""
    tensorboard_dir: str | None = None
    wandb_run_id: str | None = None
    wandb_run_path: str | None = None
    wandb_entity: str | None = None
    wandb_project: str | None = None
    optuna_db_path: str | None = None
    checkpoints: tuple[CheckpointEntry, ...] = ()
    videos: tuple[str, ...] = ()
    policy: str | None = None
    notes: str = ""
    requirements: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    """Every one with the value that training uses: given, default or computed; empty until it is known"""
    evaluation: Mapping[str, Any] | None = None
    parent: Mapping[str, Any] | None = None
    argv: tuple[str, ...] = ()
    host: Mapping[str, Any] = field(default_factory=dict)
    finalised_by: str | None = None
    """`worker` or `daemon`, once final"""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the object that is stored; `artifacts` has some of it once more, as older readers expect it."""
        wandb = {"entity": self.wandb_entity, "project": self.wandb_project}
        artifacts = {
            "tensorboard": {"enabled": self.tensorboard_dir is not None, "relative_path": self.tensorboard_dir},
            "wandb": {"enabled": self.wandb_run_id is not None, "run_path": self.wandb_run_path, **wandb},
        }
        document = dict(self.extra)
        for name in (each.name for each in fields(self) if each.name not in ("wandb_entity", "wandb_project", "extra")):
            value = getattr(self, name)
            document[name] = dict(value) if isinstance(value, Mapping) else value
            document |= {"artifacts": artifacts} if name == "reason" else {}
        lists = {name: list(value) for name, value in document.items() if isinstance(value, tuple)}
        return {**document, **lists, "checkpoints": [entry.to_json() for entry in self.checkpoints]}

    def write(self, path: Path) -> None:
        """Write the manifest in one piece."""
        write_json_atomically(path, self.to_json(), sealed=True)

    @classmethod
    def read(cls, path: Path) -> AnalyticsManifest:
        """Read a manifest; raise ValueError when it is damaged, OSError when it is not there."""
        document = read_json_object(path)
        try:
            return cls._from_json(document)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{path} is not a run manifest: {error!r}") from error

    @classmethod
    def find(cls, path: Path) -> AnalyticsManifest | None:
        """Read a manifest; None when it is missing or damaged."""
        try:
            return cls.read(path)
        except (OSError, ValueError):
            return None

    @classmethod
    def _from_json(cls, document: dict[str, Any]) -> AnalyticsManifest:
        wandb = (document.get("artifacts") or {}).get("wandb") or {}
        named = {f"wandb_{name}": wandb.get(name) for name in ("entity", "project")}
        manifest = from_json(cls, {**document, **named, "extra": None})
        known = set(manifest.to_json())
        return replace(manifest, extra={key: value for key, value in document.items() if key not in known})


def sha256_of_file(path: Path, *, opener: Opener = plain_file) -> str:
    """Hex digest of a file's content, read in pieces; ValueError when it is too large to be a file of a run."""
    with open(path, "rb", opener=opener) as stream:
        if (size := os.fstat(stream.fileno()).st_size) > _MAX_HASHED_BYTES:
            raise ValueError(f"{path} says that it has {size} bytes")
        return hashlib.file_digest(stream, "sha256").hexdigest()


def earlier_checkpoints(manifest: Path, *, up_to_step: int) -> tuple[CheckpointEntry, ...]:
    """Return what an earlier attempt of this run listed, as far as this one resumes from it."""
    known = AnalyticsManifest.find(manifest)
    return tuple(entry for entry in known.checkpoints if entry.step <= up_to_step) if known is not None else ()
