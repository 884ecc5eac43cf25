"""`extras.checkpoint_path` (or its other name, `policy_path`): a checkpoint folder, a run, or a file with weights."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from mosaic_wire.checkpoints import STATE_FILE, last_good_checkpoint, read_checkpoint
from mosaic_wire.errors import DamagedCheckpoint, Problem
from mosaic_wire.ids import is_run_id
from mosaic_wire.manifest import AnalyticsManifest, sha256_of_file
from mosaic_wire.paths import Home, RunFolder, find_home

from cleanrl_worker.declarations import Declaration
from cleanrl_worker.errors import BadInput

NAMES = ("checkpoint_path", "policy_path")
PATH = "extras.checkpoint_path"
STATISTICS_KEY = "mosaic_statistics"
"""In the metadata of a `.cleanrl_model`: the statistics of the normalizer its policy was trained with"""


@dataclass(frozen=True)
class CheckpointSource:
    """Where weights come from: a folder with everything, or a file with weights alone."""

    path: Path
    weights_only: bool = False

    def parent(self, own_run_id: str) -> dict[str, Any] | None:
        """Return the other run this checkpoint was written by, for the manifest."""
        if self.weights_only:
            return None
        run_id, state_file = self.path.absolute().parent.parent.name, self.path / STATE_FILE
        if not is_run_id(run_id) or run_id == own_run_id:
            return None
        step = read_checkpoint(self.path, hash_shared=False)["step"]
        return {"run_id": run_id, "step": step, "sha256": sha256_of_file(state_file)}


def chosen_path(extras: Mapping[str, Any]) -> str | None:
    """Return the path in the config, under either name."""
    chosen = extras.get("checkpoint_path") or extras.get("policy_path")
    return str(chosen) if chosen else None


def find_checkpoint(extras: Mapping[str, Any]) -> CheckpointSource | None:
    """Return the checkpoint a config names; None when it names none. Raise BadInput when it is missing."""
    text = chosen_path(extras)
    return None if text is None else _find(text, find_home())


@lru_cache(maxsize=16)
def _find(text: str, home: Home) -> CheckpointSource:
    if is_run_id(text):
        return _newest_of(home.run_folder(text), f"run {text}")
    path = Path(text).expanduser().absolute()
    if path.is_file():
        if path.name == STATE_FILE:
            return CheckpointSource(path.parent)
        return CheckpointSource(path, weights_only=True)
    if (path / STATE_FILE).is_file():
        return CheckpointSource(path)
    if (path / "checkpoints").is_dir():
        return _newest_of(RunFolder(path), f"the run in {path}")
    if not path.exists():
        raise BadInput(f"there is no {path}; give a checkpoint folder, a run id or a .cleanrl_model file")
    raise BadInput(f"{path} is no checkpoint: it has no {STATE_FILE}")


def _newest_of(folder: RunFolder, what: str) -> CheckpointSource:
    if not folder.root.is_dir():
        raise BadInput(f"{what} is not in this home: there is no {folder.root}")
    entry = last_good_checkpoint(folder)
    if entry is not None:
        return CheckpointSource(folder.root / entry.path)
    if (policy := _policy_of(folder)) is not None:  # a script's `--save-model`
        return CheckpointSource(policy, weights_only=True)
    raise BadInput(f"{what} left no usable checkpoint in {folder.checkpoints} and no .cleanrl_model")


def _policy_of(folder: RunFolder) -> Path | None:
    """Return the saved model that the run's manifest names."""
    manifest = AnalyticsManifest.find(folder.manifest)
    policy = folder.root / (manifest.policy or "") if manifest is not None else folder.root
    return policy if policy.is_file() and policy.resolve().is_relative_to(folder.root.resolve()) else None


def checkpoint_problems(
    extras: Mapping[str, Any], *, algo: str, env_id: str | None = None, required_by: str = ""
) -> list[Problem]:
    """Return what is wrong with the checkpoint; `env_id` is compared only when training resumes in it."""
    paths = [extras.get(name) for name in NAMES]
    if not all(path is None or isinstance(path, str) for path in paths):
        return [Problem(PATH, "must be a path or a run id")]
    if all(paths) and paths[0] != paths[1]:
        return [Problem("extras.policy_path", "differs from checkpoint_path; give one of them")]
    try:
        source = find_checkpoint(extras)
    except BadInput as error:
        return [Problem(PATH, f"cannot be used: {error}")]
    if source is None:
        needs = "a checkpoint folder, a run id or a .cleanrl_model file"
        return [Problem(PATH, f"is missing; {required_by} needs {needs}")] if required_by else []
    if extras.get("policy_statistics") not in (None, "none"):
        return [Problem("extras.policy_statistics", f"expected 'none', got {extras['policy_statistics']!r:.80}")]
    if not source.weights_only:
        return _state_problems(source.path, algo, env_id)
    damage = damage_of(source.path)
    return [Problem(PATH, f"cannot be used: {source.path}: {damage}")] if damage else []


def damage_of(path: Path) -> str:
    """Return why a file cannot be what torch saved, without loading torch; empty: no damage is visible."""
    try:
        with path.open("rb") as stream:
            start = stream.read(4)
        if start.startswith(b"\x80"):  # a pickle, as torch saved before 1.6
            return ""
        if start != b"PK\3\4":
            return "it cannot be read as a torch file: " + ("it holds something else" if start else "it is empty")
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            is_packed = any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)
            if is_packed or not any(entry.filename.endswith("/data.pkl") for entry in entries):
                return "it cannot be read as a torch file: it is a zip archive of something else"
            damaged = archive.testzip()
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"
    except (zipfile.BadZipFile, RuntimeError, ValueError, struct.error):
        return "it cannot be read as a torch file: it is cut short or damaged"
    return f"it is damaged: the checksum of its part {damaged!r} is wrong" if damaged else ""


def lacks_statistics(source: CheckpointSource | None, algo: str, declared: Declaration) -> str:
    """Return why a policy cannot be used without the normalizer's statistics that its file lacks; empty: it can.

    Search the file for their name, so that a dry run need not load torch.
    """
    if source is None or not source.weights_only or not declared.normalizes_observations:
        return ""
    with suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(source.path) as archive:
        pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if any(STATISTICS_KEY.encode() in archive.read(name) for name in pickles):
            return ""
    return (
        f"{source.path} has no observation statistics, and policies of {algo} play normalized observations (CleanRL's "
        f"script does not save them). Use the run or its checkpoint folder instead of the file, or declare that there "
        f"are none: --no-statistics (extras.policy_statistics: none)"
    )


def _state_problems(folder: Path, algo: str, env_id: str | None) -> list[Problem]:
    try:
        # The hashes of a replay buffer (gigabytes) are compared once, by the learner that reads it.
        state = read_checkpoint(folder, hash_shared=False)
    except DamagedCheckpoint as error:
        return [Problem(PATH, f"cannot be used: {error}")]
    expected = {"algo": algo, "env_id": env_id} if env_id is not None else {"algo": algo}
    found = {"algo": state.get("algo"), "env_id": ((state.get("values") or {}).get("args") or {}).get("env_id")}
    return [
        Problem(PATH, f"is a checkpoint with {name} {found[name]!r}; this run has {expected[name]!r}")
        for name in expected
        if found[name] != expected[name]
    ]


def file_problems(
    declared: Declaration, values: Mapping[str, Any], *, from_anywhere: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield (field, message) for everything that is wrong; a field that ends in `_checkpoint` may also name a run.

    `from_anywhere`: the training process will not start in this folder, so a path must not depend on it.
    """
    for name, sentence in declared.refused.items():
        if values.get(name):
            yield name, sentence
    for names, sentence in declared.needs_files:
        given = [name for name in names if values.get(name)]
        if not given:
            yield names[0], sentence
        for name in given:
            if problem := _problem(name, values[name], from_anywhere):
                yield name, f"--{name.replace('_', '-')} {problem}"


def _problem(name: str, value: Any, from_anywhere: bool) -> str:
    if not isinstance(value, str):
        return "must be a path"
    path = Path(value).expanduser()
    if name.endswith("_checkpoint"):
        try:
            found = find_checkpoint({"checkpoint_path": value})
        except BadInput as error:
            return f"cannot be used: {error}"
        assert found is not None
        if found.weights_only and (damage := damage_of(found.path)):
            return f"cannot be used: {found.path}: {damage}"
        is_path = found.path.exists() and path.exists()
    elif not path.is_file():
        return f"names no file: there is no {path.absolute()}"
    else:
        is_path = True
    if from_anywhere and is_path and not path.is_absolute():
        return f"must be the whole path: {path.absolute()}"
    return ""
