"""Which script a run means, where it lies, and what it needs to be run with."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mosaic_wire import env
from mosaic_wire.paths import Home
from mosaic_wire.worker_spec import nearest

from cleanrl_worker.errors import BadInput
from cleanrl_worker.requirement_sets import interpreter_for, preflight, sets_needed
from cleanrl_worker.scripts.reading import Script, read_script

UPSTREAM = "upstream"
OWN_SOURCES = (None, "", "mosaic")

_SETS_OF_IMPORTS: Mapping[str, str] = {
    "ale_py": "atari", "cv2": "atari", "minigrid": "minigrid", "mujoco": "mujoco", "dm_control": "dm_control",
    "procgen": "procgen", "envpool": "envpool", "pettingzoo": "pettingzoo", "supersuit": "pettingzoo",
    "syllabus": "curriculum", "jax": "jax", "flax": "jax", "optax": "jax", "optuna": "optuna",
}  # fmt: skip
_MODULE_OF_SET: Mapping[str, str] = {
    "atari": "ale_py", "box2d": "Box2D", "minigrid": "minigrid", "mujoco": "mujoco", "dm_control": "dm_control",
    "procgen": "procgen", "envpool": "envpool", "pettingzoo": "pettingzoo", "curriculum": "syllabus", "jax": "jax",
    "optuna": "optuna", "wandb": "wandb", "video": "moviepy",
}  # fmt: skip
"""What shows that an environment has a set's packages, in versions of its own"""


def means_a_script(extras: Mapping[str, Any]) -> bool:
    """Tell whether a run trains with a script instead of one of our algorithms."""
    if extras.get("mode") == "custom_script":
        return False  # a shell of its own, see the modes
    return bool(extras.get("script_path")) or extras.get("source") not in OWN_SOURCES


def find_script(name: str, source: Any = None) -> Path:
    """The file a person means: a path, or with a source (`upstream`, or a checkout's folder) an algorithm's name."""
    if source in OWN_SOURCES:
        return Path(name).expanduser().absolute()
    checkout = Path(str(source)).expanduser().absolute() if source != UPSTREAM else _checkout_of_this_shell()
    folder = checkout / "cleanrl"
    for candidate in (folder / f"{name}.py", folder / name / f"{name}.py"):
        if candidate.is_file():
            return candidate
    if not folder.is_dir():
        raise BadInput(f"{checkout} is no CleanRL checkout: it has no folder cleanrl")
    hint = nearest(name, [file.stem for file in folder.glob("*.py")])
    raise BadInput(f"there is no {folder / name}.py" + (f"; did you mean {hint!r}?" if hint else ""))


def _checkout_of_this_shell() -> Path:
    chosen = os.environ.get(env.CLEANRL_HOME)
    if not chosen:
        raise BadInput(
            f"where is the CleanRL checkout? Set {env.CLEANRL_HOME}, or give its folder: --source /path/to/cleanrl"
        )
    return Path(chosen).expanduser().absolute()


@dataclass(frozen=True)
class ScriptChoice:
    """A script that was found and read, and the surroundings it expects."""

    script: Script
    is_upstream: bool
    """Runs with the old packages CleanRL was written for"""

    @classmethod
    def of(cls, algo: str, extras: Mapping[str, Any]) -> ScriptChoice:
        """Find and read the script of a run; raise BadInput when it is not there."""
        path, source = extras.get("script_path"), extras.get("source")
        file = find_script(str(path)) if path else find_script(algo, source)
        script = read_script(file)
        return cls(script, source not in OWN_SOURCES or "gym" in script.imports or _checkout(file) is not None)

    @cached_property
    def checkout(self) -> Path | None:
        """The CleanRL checkout it lies in; its folder is where `cleanrl_utils` is imported from."""
        return _checkout(self.script.path)

    def requirement_sets(self, env_id: str, extras: Mapping[str, Any]) -> tuple[str, ...]:
        """The sets its packages are in; `extras.requirements` has the last word."""
        if extras.get("requirements"):
            return sets_needed(None, "", {"requirements": extras["requirements"]})
        known = {_SETS_OF_IMPORTS[name] for name in self.script.imports if name in _SETS_OF_IMPORTS}
        if self.is_upstream:
            known.discard("atari")  # in the light set already
        algorithm = self.script.algorithm(tuple(sorted(known)))
        return sets_needed(algorithm, env_id, {**extras, "source": UPSTREAM if self.is_upstream else ""})

    def interpreter(self, home: Home, sets: tuple[str, ...]) -> Path:
        """The Python to run it with; raise SetNotReady with the command that installs what is missing."""
        if not preflight(home, sets).is_ready and all(map(_is_here, sets)):
            sets = ()  # this environment has it, in versions of its own choice
        return interpreter_for(home, sets)


def _is_here(requirement_set: str) -> bool:
    module = _MODULE_OF_SET.get(requirement_set)
    return module is not None and importlib.util.find_spec(module) is not None


def _checkout(file: Path) -> Path | None:
    near = (folder for folder in file.parents[:3] if (folder / "cleanrl_utils").is_dir())
    return next(near, None)
