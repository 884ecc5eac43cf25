"""`analytics.json`: what a run left behind, for tabs, exports and people.

Written by the worker at start, while running and at every end; by the daemon when the worker could not.
All paths are relative to the run folder.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mosaic_wire.files import Opener, plain_file, read_json_object, write_json_atomically

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
        return {"path": self.path, "step": self.step, "sha256": self.sha256, "kind": self.kind}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> CheckpointEntry:
        entry = cls(document["path"], document["step"], document["sha256"], document.get("kind", "periodic"))
        if not all(isinstance(text, str) for text in (entry.path, entry.sha256, entry.kind)):
            raise TypeError("path, sha256 and kind of a checkpoint must be strings")
        if type(entry.step) is not int or entry.step < 0:
            raise TypeError(f"step of a checkpoint must be a whole number from 0, not {entry.step!r}")
        relative = Path(entry.path)
        if relative.is_absolute() or ".." in relative.parts:
            raise ValueError(f"checkpoint path {entry.path!r} leaves the run folder")
        return entry


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
        return {
            **self.extra,
            "run_id": self.run_id,
            "worker_type": self.worker_type,
            "algo": self.algo,
            "env_id": self.env_id,
            "seed": self.seed,
            "outcome": self.outcome,
            "reason": self.reason,
            "artifacts": {
                "tensorboard": {"enabled": self.tensorboard_dir is not None, "relative_path": self.tensorboard_dir},
                "wandb": {
                    "enabled": self.wandb_run_id is not None,
                    "run_path": self.wandb_run_path,
                    "entity": self.wandb_entity,
                    "project": self.wandb_project,
                },
            },
            "tensorboard_dir": self.tensorboard_dir,
            "wandb_run_id": self.wandb_run_id,
            "wandb_run_path": self.wandb_run_path,
            "optuna_db_path": self.optuna_db_path,
            "checkpoints": [entry.to_json() for entry in self.checkpoints],
            "videos": list(self.videos),
            "policy": self.policy,
            "notes": self.notes,
            "requirements": list(self.requirements),
            "versions": dict(self.versions),
            "hyperparameters": dict(self.hyperparameters),
            "evaluation": self.evaluation,
            "parent": self.parent,
            "argv": list(self.argv),
            "host": dict(self.host),
            "finalised_by": self.finalised_by,
        }

    def write(self, path: Path) -> None:
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
    def _from_json(cls, document: dict[str, Any]) -> AnalyticsManifest:
        wandb = (document.get("artifacts") or {}).get("wandb") or {}
        plain = {name: document[name] for name in _PLAIN_KEYS if document.get(name) is not None}
        for name, value in plain.items():
            if not isinstance(value, _PLAIN_KEYS[name]) or isinstance(value, bool):
                raise TypeError(f"{name} has the wrong type: {value!r}")
        manifest = cls(
            **plain,
            wandb_entity=wandb.get("entity"),
            wandb_project=wandb.get("project"),
            checkpoints=tuple(CheckpointEntry.from_json(entry) for entry in document.get("checkpoints") or ()),
            videos=_texts(document, "videos"),
            requirements=_texts(document, "requirements"),
            argv=_texts(document, "argv"),
        )
        known = set(manifest.to_json())
        return replace(manifest, extra={key: value for key, value in document.items() if key not in known})


_PLAIN_KEYS: Mapping[str, type] = {
    **dict.fromkeys(
        ("run_id", "worker_type", "algo", "env_id", "outcome", "reason", "tensorboard_dir", "wandb_run_id",
         "wandb_run_path", "optuna_db_path", "policy", "notes", "finalised_by"),
        str,
    ),
    **dict.fromkeys(("versions", "hyperparameters", "evaluation", "parent", "host"), dict),
    "seed": int,
}  # fmt: skip


def _texts(document: Mapping[str, Any], key: str) -> tuple[str, ...]:
    values = document.get(key) or []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise TypeError(f"{key} must be a list of strings")
    return tuple(values)


def sha256_of_file(path: Path, *, opener: Opener = plain_file) -> str:
    """Hex digest of a file's content, read in pieces; ValueError when it is too large to be a file of a run."""
    with open(path, "rb", opener=opener) as stream:
        if (size := os.fstat(stream.fileno()).st_size) > _MAX_HASHED_BYTES:
            raise ValueError(f"{path} says that it has {size} bytes")
        return hashlib.file_digest(stream, "sha256").hexdigest()


def earlier_checkpoints(manifest: Path, *, up_to_step: int) -> tuple[CheckpointEntry, ...]:
    """What an earlier attempt of this run listed, as far as this one goes on from it."""
    try:
        known = AnalyticsManifest.read(manifest).checkpoints
    except (OSError, ValueError):
        return ()
    return tuple(entry for entry in known if entry.step <= up_to_step)
