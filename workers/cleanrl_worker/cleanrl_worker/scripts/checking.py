"""Find the script of a run, and everything that keeps it from being run; nothing of the script is executed."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mosaic_extras.errors import RequirementSetError, SetNotReady
from mosaic_extras.overlays import check_sets, interpreter_for
from mosaic_wire import env
from mosaic_wire.errors import Problem
from mosaic_wire.paths import Home, RunFolder
from mosaic_wire.run_request import OWN_SOURCES, UPSTREAM, Mode
from mosaic_wire.worker_spec import check_algorithm_choice, nearest

from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.declarations import UPSTREAM_SCRIPTS, Declaration
from cleanrl_worker.errors import BadInput
from cleanrl_worker.needs import estimate
from cleanrl_worker.preflight import Memory, Preflight, check_room, missing_set_problems
from cleanrl_worker.registry import spec_without_environments
from cleanrl_worker.requirement_sets import sets_needed
from cleanrl_worker.scripts.reading import SAME_AS, Script, read_script
from cleanrl_worker.wandb_settings import why_unreachable

NO_RESUME = (
    "a script cannot be resumed: it writes no checkpoint that MOSAIC could resume from. Train it again from the start, "
    "or use a flag of its own that loads a model"
)
NO_ENVIRONMENT = "none"
"""The environment of a script that has no parameter for it"""

_OWN_ONLY: Mapping[str, str] = {
    "curriculum_schedule": "a script makes its environments itself, so it cannot follow a curriculum",
    "env_kwargs": "a script makes its environments itself; give them through a flag of its own",
    "agent": "a script has its own networks",
}
"""Extras that only MOSAIC's algorithms understand; ignoring them would train something else"""

_HUB = "https://huggingface.co"


_SAME_NAME = ("minigrid", "mujoco", "dm_control", "procgen", "envpool", "pettingzoo", "jax", "optuna")
_SETS_OF_IMPORTS = {
    **{name: name for name in _SAME_NAME},
    **{"ale_py": "atari", "cv2": "atari", "supersuit": "pettingzoo", "syllabus": "curriculum"},
    **{"flax": "jax", "optax": "jax"},
}
_MODULE_OF_SET = {
    **{name: name for name in _SAME_NAME},
    **{"atari": "ale_py", "box2d": "Box2D", "curriculum": "syllabus", "wandb": "wandb", "video": "moviepy"},
}
"""What shows that an environment has a set's packages, in versions of its own"""


def find_script(name: str, source: Any = None) -> Path:
    """Return the file of a path, or with a source (`upstream`, or a checkout's folder) of an algorithm's name."""
    if source in OWN_SOURCES:
        return Path(name).expanduser().absolute()
    chosen = str(source) if source != UPSTREAM else os.environ.get(env.CLEANRL_HOME)
    if not chosen:
        raise BadInput(
            f"where is the CleanRL checkout? Set {env.CLEANRL_HOME}, or give its folder: --source /path/to/cleanrl"
        )
    checkout = Path(chosen).expanduser().absolute()
    folder = checkout / "cleanrl"
    for candidate in (folder / f"{name}.py", folder / name / f"{name}.py"):
        if candidate.is_file():
            return candidate
    if not folder.is_dir():
        raise BadInput(f"{checkout} is no CleanRL checkout: it has no folder cleanrl")
    hint = nearest(name, [file.stem for file in folder.glob("*.py")])
    raise BadInput(f"there is no {folder / name}.py" + (f"; did you mean {hint!r}?" if hint else ""))


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
        """Return the CleanRL checkout it lies in, where `cleanrl_utils` is imported from."""
        return _checkout(self.script.path)

    def requirement_sets(self, env_id: str, extras: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the sets its packages are in; `extras.requirements` wins."""
        if extras.get("requirements"):
            return sets_needed(None, "", {"requirements": extras["requirements"]})
        known = {_SETS_OF_IMPORTS[name] for name in self.script.imports if name in _SETS_OF_IMPORTS}
        if self.is_upstream:
            known.discard("atari")  # in the light set already
        algorithm = self.script.algorithm(tuple(sorted(known)))
        return sets_needed(algorithm, env_id, {**extras, "source": UPSTREAM if self.is_upstream else ""})

    def interpreter(self, home: Home, sets: tuple[str, ...]) -> Path:
        """Return the Python to run it with; raise SetNotReady with the command that installs what is missing."""
        if not check_sets(home, sets).is_ready and all(map(_is_here, sets)):
            sets = ()  # this environment has it, in versions of its own choice
        return interpreter_for(home, sets)


def _is_here(requirement_set: str) -> bool:
    module = _MODULE_OF_SET.get(requirement_set)
    return module is not None and importlib.util.find_spec(module) is not None


def _checkout(file: Path) -> Path | None:
    near = (folder for folder in file.parents[:3] if (folder / "cleanrl_utils").is_dir())
    return next(near, None)


# ------------------------------------------------------------------ what a config means for it


def values_for(script: Script, config: CleanRLWorkerConfig) -> dict[str, Any]:
    """Return the parameters of the script that this config sets."""
    values = {name.replace("-", "_"): value for name, value in config.parameters.items()}
    chosen: dict[str, Any] = {"cuda": config.cuda, "track": config.extras.get("track_wandb")}
    chosen = {name: value for name, value in chosen.items() if isinstance(value, bool)}
    chosen |= {name: config.extras[name] for name in ("eval_episodes", "checkpoint_freq") if name in config.extras}
    for name, value in chosen.items():
        if script.parameter(name) is not None:
            values.setdefault(name, value)
    for role in SAME_AS:
        parameter, value = script.parameter_for(role), getattr(config, role)
        if parameter is not None and value not in (None, NO_ENVIRONMENT):
            values.setdefault(parameter.field.name, value)
    return values


def check_script(
    choice: ScriptChoice,
    config: CleanRLWorkerConfig,
    folder: RunFolder,
    home: Home,
    *,
    may_install: bool,
    memory: Memory,
) -> Preflight:
    """Find everything that is wrong, the interpreter that would run it, and what it will need."""
    script, spec = choice.script, spec_without_environments()
    values = values_for(script, config)
    found = Preflight(check_algorithm_choice(script.spec().added_to(spec), script.name, config.env_id, values))
    if config.algo != script.name:
        found.problems.append(Problem("algo", f"{config.algo!r} is not the name of the script", script.name))
    found.problems += _contradictions(script, config, values)
    found.problems += [
        Problem(known.field.name, f"{script.path.name} needs it: give {known.flag}")
        for known in script.parameters
        if known.is_required and known.field.name not in values
    ]
    found.problems += _extras_problems(script, config, values, folder)
    if values.get("upload_model") is True and (wrong := why_no_upload(os.environ)) is not None:
        found.problems.append(Problem("upload_model", wrong))
    try:
        found.sets = choice.requirement_sets(config.env_id, config.extras)
        found.python = choice.interpreter(home, found.sets)
        found.versions = check_sets(home, found.sets).versions or {}
    except SetNotReady as error:
        found.missing_sets = found.sets
        found.problems += missing_set_problems(config.extras, str(error), may_install=may_install)
    except RequirementSetError as error:
        found.problems.append(Problem("extras.requirements", str(error)))
    everything = {known.field.name: known.field.default for known in script.parameters} | values
    declared = UPSTREAM_SCRIPTS.get(script.name) if choice.checkout is not None else None
    process_mb = spec.capabilities.estimated_memory_mb
    found.needs = estimate(declared or Declaration(), everything, None, process_mb=process_mb)
    check_room(found.needs, folder, found, memory)
    return found


def _contradictions(script: Script, config: CleanRLWorkerConfig, values: Mapping[str, Any]) -> Iterator[Problem]:
    for role in SAME_AS:
        parameter, value = script.parameter_for(role), getattr(config, role)
        if value in (None, NO_ENVIRONMENT):
            continue
        if parameter is None:
            if role != "total_timesteps" and not script.open_flags:
                flag = f"--{role.replace('_', '-')}"
                yield Problem(role, f"{script.path.name} has no flag {flag} and decides itself; leave {value!r} out")
        elif values[parameter.field.name] != value:
            other = values[parameter.field.name]
            yield Problem(parameter.field.name, f"is {other!r}, but the run's {role} is {value!r}; keep one of the two")


def _extras_problems(
    script: Script, config: CleanRLWorkerConfig, values: Mapping[str, Any], folder: RunFolder
) -> Iterator[Problem]:
    extras = config.extras
    mode = extras.get("mode") or Mode.TRAIN
    if mode == Mode.RESUME:
        yield Problem("extras.mode", NO_RESUME)
    elif mode != Mode.TRAIN:
        yield Problem("extras.mode", f"a script can only be trained; {mode!r} needs one of MOSAIC's algorithms")
    for name, reason in _OWN_ONLY.items():
        if extras.get(name):
            yield Problem(f"extras.{name}", reason)
    expected = extras.get("script_sha256")
    if expected and expected != script.sha256:
        yield Problem(
            "extras.script_path", f"{script.path} has changed since the run was submitted; submit it again to run it"
        )
    yield from config.common_problems(folder)
    has_wandb = "wandb" in script.imports or values.get("track") is not None
    if extras.get("track_wandb") is True and not has_wandb and not script.open_flags:
        yield Problem("extras.track_wandb", f"{script.path.name} does not use W&B")


def why_no_upload(
    environ: Mapping[str, str], why_unreachable: Callable[[str], str | None] = why_unreachable
) -> str | None:
    """Return why a model cannot be uploaded to the Hugging Face hub from here, or None."""
    kept = "The model stays in the run folder without it; leave --upload-model out"
    if environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return f"cannot upload: HF_HUB_OFFLINE says that this machine is offline. {kept}"
    token_file = environ.get("HF_TOKEN_PATH") or os.path.join(
        environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface"), "token"
    )
    if not environ.get("HF_TOKEN") and not os.path.exists(token_file):
        return f"cannot upload: there is no Hugging Face token (`huggingface-cli login` makes one). {kept}"
    reason = why_unreachable(environ.get("HF_ENDPOINT") or _HUB)
    return None if reason is None else f"cannot upload: {reason}. {kept}"
