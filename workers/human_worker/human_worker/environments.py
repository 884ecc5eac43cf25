"""What can be played here: gymnasium's own environments, and those of requirement sets in their overlays.

The CleanRL worker installs requirement sets below the home (`trainer/venvs/<set>/<key>/`); each is an interpreter that
sees this environment's packages and its own. To play one of its games the worker starts itself again in it.
"""

from __future__ import annotations

import fcntl
import importlib
import importlib.util
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mosaic_wire.files import read_json_object, write_json_atomically
from mosaic_wire.paths import Home

_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Bundle:
    """A requirement set: which package it brings, and whether its ids exist only once that is imported."""

    name: str
    package: str
    registers: bool = False


_ATARI = Bundle("atari", "ale_py", registers=True)
_MINIGRID = Bundle("minigrid", "minigrid", registers=True)
_BOX2D = Bundle("box2d", "Box2D")
_MUJOCO = Bundle("mujoco", "mujoco")
BUNDLES = (_ATARI, _MINIGRID, _BOX2D, _MUJOCO)
PATTERNS = ("ALE/*", "MiniGrid-*", "BabyAI-*")
"""Ids that are known once their package is imported"""

_PREFIXES = {"ALE/": _ATARI, "MiniGrid-": _MINIGRID, "BabyAI-": _MINIGRID}
_FAMILIES = {
    "classic_control": "Classic control",
    "toy_text": "Toy text",
    "box2d": "Box2D",
    "mujoco": "MuJoCo",
    "ale_py": "Atari",
    "minigrid": "MiniGrid",
    "babyai": "BabyAI",
}
_VERSION = re.compile(r"-v(\d+)$")


@dataclass(frozen=True)
class Playable:
    """An environment as a list shows it."""

    env_id: str
    family: str
    needs: str = ""
    """The requirement set that has to be installed first; empty: it can be played now"""
    is_newest: bool = True
    """No later version of it is here"""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def bundle_of(env_id: str) -> Bundle | None:
    """The set that brings this environment; None for what gymnasium brings, and for those nobody here knows."""
    name = env_id.rpartition(":")[2]
    for prefix, bundle in _PREFIXES.items():
        if name.startswith(prefix):
            return bundle
    import gymnasium

    spec = gymnasium.registry.get(name)
    return _bundle_of_entry(spec.entry_point) if spec is not None else None


def _bundle_of_entry(entry_point: object) -> Bundle | None:
    entry = str(entry_point)
    if entry.startswith("gymnasium.envs.box2d"):
        return _BOX2D
    return _MUJOCO if entry.startswith("gymnasium.envs.mujoco") else None


def is_importable(bundle: Bundle) -> bool:
    return importlib.util.find_spec(bundle.package) is not None


def register(env_id: str) -> None:
    """Import the package an id comes from: `package.module:Env-v0`, or a family whose package is known."""
    import gymnasium

    logging.getLogger("gymnasium").setLevel(logging.ERROR)
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    elif name not in gymnasium.registry and (bundle := bundle_of(name)) is not None:
        importlib.import_module(bundle.package)


# ---------------------------------------------------------------------- overlays


def overlay_of(home: Home, bundle: Bundle) -> Path | None:
    """The newest ready overlay of a set that was made on this environment."""
    found: list[tuple[float, Path]] = []
    for marker in (home.trainer / "venvs" / bundle.name).glob("*/ready.json"):
        try:
            record = read_json_object(marker)
        except (OSError, ValueError):
            continue
        python = marker.parent / "bin" / "python"
        if record.get("base") == sys.prefix and python.exists():
            found.append((float(record.get("made_at") or 0), marker.parent))
    return max(found)[1] if found else None


def is_overlay() -> bool:
    """Whether this process runs in one already."""
    return (Path(sys.prefix) / "overlay.json").is_file()


def enter_overlay(home: Home, env_id: str, argv: Sequence[str]) -> None:
    """Start this process again where the environment is installed, if it is not here; returns when there is no need."""
    bundle = bundle_of(env_id)
    if bundle is None or is_overlay() or is_importable(bundle):
        return
    if (overlay := overlay_of(home, bundle)) is None:
        return  # making the environment says what is missing
    # As long as this descriptor is open, nobody removes the overlay; it stays open in the new program.
    descriptor = os.open(overlay / "in-use", os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    os.set_inheritable(descriptor, True)
    sys.stdout.flush()
    sys.stderr.flush()
    python = str(overlay / "bin" / "python")
    os.execv(python, [python, "-m", "human_worker.cli", *argv])


def cure(env_id: str) -> str:
    """How to install what an environment needs; empty where that is not known."""
    bundle = bundle_of(env_id)
    missing = bundle is not None and not is_importable(bundle)
    return f"; install its requirement set: mosaic extras install {bundle.name}" if bundle and missing else ""


# ---------------------------------------------------------------------- listing


def base_ids() -> tuple[str, ...]:
    """Ids of gymnasium's own registry that can be made here or in an overlay."""
    return tuple(name for name, spec in _registry().items() if _is_usable(name, spec.entry_point))


def _registry() -> Mapping[str, Any]:
    import gymnasium

    logging.getLogger("gymnasium").setLevel(logging.ERROR)
    return gymnasium.registry


def _is_usable(name: str, entry_point: object) -> bool:
    # phys2d and tabular need JAX; GymV… are stubs that only raise.
    return isinstance(entry_point, str) and not name.startswith(("phys2d/", "tabular/", "GymV"))


def family_of(env_id: str, entry_point: object) -> str:
    entry = str(entry_point).lower()
    if env_id.startswith("BabyAI-"):
        return "BabyAI"
    return next((family for part, family in _FAMILIES.items() if part in entry), "Other")


def list_environments(home: Home) -> list[Playable]:
    """Everything that can be played here, and what could be once its set is installed."""
    found: dict[str, str] = {}
    needs: dict[str, str] = {}
    for env_id in base_ids():
        entry = _registry()[env_id].entry_point
        found[env_id] = family_of(env_id, entry)
        bundle = _bundle_of_entry(entry)
        if bundle is not None and not is_importable(bundle) and overlay_of(home, bundle) is None:
            needs[env_id] = bundle.name
    with ThreadPoolExecutor(max_workers=2, thread_name_prefix="list") as pool:
        for ids in pool.map(lambda bundle: _ids_of(home, bundle), [known for known in BUNDLES if known.registers]):
            found |= ids
    newest = _newest(found)
    return [
        Playable(env_id, family, needs.get(env_id, ""), env_id in newest) for env_id, family in sorted(found.items())
    ]


def _newest(env_ids: Mapping[str, str]) -> set[str]:
    versions: dict[str, tuple[int, str]] = {}
    for env_id in env_ids:
        stem, version = _VERSION.sub("", env_id), _VERSION.search(env_id)
        candidate = (int(version[1]) if version else 0, env_id)
        versions[stem] = max(versions.get(stem, (-1, "")), candidate)
    return {env_id for _, env_id in versions.values()}


def _ids_of(home: Home, bundle: Bundle) -> dict[str, str]:
    """Ids a set registers, asked in its own interpreter and remembered for as long as its overlay stays."""
    if is_importable(bundle):
        importlib.import_module(bundle.package)
        return ids_registered_by(bundle.package)
    if (overlay := overlay_of(home, bundle)) is None:
        return {}
    kept = home.cache / "environments" / f"human-{bundle.name}-{overlay.name}.json"
    try:
        return {str(env_id): str(family) for env_id, family in read_json_object(kept).items()}
    except (OSError, ValueError):
        pass
    argv = [str(overlay / "bin" / "python"), "-m", "human_worker.environments", bundle.package]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, check=True)
        ids = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return {}  # a set that does not answer has nothing to offer; the others have
    try:
        kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json_atomically(kept, ids)
    except OSError:
        pass  # asked again next time
    return dict(ids)


def ids_registered_by(package: str) -> dict[str, str]:
    """Of an imported package, the ids it has registered and their families."""
    return {
        env_id: family_of(env_id, spec.entry_point)
        for env_id, spec in _registry().items()
        if str(spec.entry_point).startswith(package) and (package != "ale_py" or env_id.startswith("ALE/"))
    }


if __name__ == "__main__":
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # some packages print while they are imported
    importlib.import_module(sys.argv[1])
    with answer:
        answer.write(json.dumps(ids_registered_by(sys.argv[1])) + "\n")
