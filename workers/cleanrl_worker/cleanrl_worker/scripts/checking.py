"""What a config means for a script, and everything that keeps it from being run; nothing of the script is executed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mosaic_wire.errors import Problem
from mosaic_wire.extras_checks import extras_problems
from mosaic_wire.paths import Home, RunFolder
from mosaic_wire.worker_spec import WorkerSpec, check_algorithm_choice

from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.needs import UPSTREAM_MEMORY, Needs, estimate
from cleanrl_worker.network import why_unreachable
from cleanrl_worker.no_progress import policy_problems
from cleanrl_worker.preflight import FREE, Memory, Preflight, check_room, missing_set_problems
from cleanrl_worker.requirement_sets import preflight as preflight_sets
from cleanrl_worker.requirement_sets.errors import RequirementSetError, SetNotReady
from cleanrl_worker.scripts.choice import ScriptChoice
from cleanrl_worker.scripts.reading import SAME_AS, Script

NO_RESUME = (
    "a script cannot be resumed: it writes no checkpoint that MOSAIC could go on from. Train it again from the start, "
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


def values_for(script: Script, config: CleanRLWorkerConfig) -> dict[str, Any]:
    """The parameters of the script that this config sets."""
    values = {name.replace("-", "_"): value for name, value in config.parameters.items()}
    said = {"cuda": [config.extras.get(name) for name in ("cuda", "use_cuda", "gpu")]}
    said["track"] = [config.extras.get("track_wandb")]
    for name, candidates in said.items():
        chosen = next((value for value in candidates if isinstance(value, bool)), None)
        if chosen is not None and script.parameter(name) is not None:
            values.setdefault(name, chosen)
    for name in ("eval_episodes", "checkpoint_freq"):
        if name in config.extras and script.parameter(name) is not None:
            values.setdefault(name, config.extras[name])
    for role in SAME_AS:
        parameter, value = script.parameter_for(role), getattr(config, role)
        if parameter is not None and value not in (None, NO_ENVIRONMENT):
            values.setdefault(parameter.field.name, value)
    return values


def check_script(
    config: CleanRLWorkerConfig, choice: ScriptChoice, spec: WorkerSpec, folder: RunFolder, home: Home, *,
    may_install: bool = False, memory: Memory = FREE,
) -> Preflight:  # fmt: skip
    """Everything that is wrong, which interpreter would run it, and what it will take."""
    script = choice.script
    values = values_for(script, config)
    found = Preflight()
    found.problems += check_algorithm_choice(script.spec().added_to(spec), script.name, config.env_id, values)
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
        answer = preflight_sets(home, found.sets)
        found.versions = answer.versions or {}
    except SetNotReady as error:
        found.missing_sets = found.sets
        found.problems += missing_set_problems(config.extras, str(error), may_install=may_install)
    except RequirementSetError as error:
        found.problems.append(Problem("extras.requirements", str(error)))
    found.needs = _needs(choice, values, spec)
    check_room(found.needs, folder, found, memory)
    return found


def _contradictions(script: Script, config: CleanRLWorkerConfig, values: Mapping[str, Any]) -> Iterator[Problem]:
    for role in SAME_AS:
        parameter, wanted = script.parameter_for(role), getattr(config, role)
        if wanted in (None, NO_ENVIRONMENT):
            continue
        if parameter is None:
            if role != "total_timesteps" and not script.open_flags:
                flag = f"--{role.replace('_', '-')}"
                yield Problem(role, f"{script.path.name} has no flag {flag} and decides itself; leave {wanted!r} out")
        elif values[parameter.field.name] != wanted:
            said = values[parameter.field.name]
            yield Problem(parameter.field.name, f"is {said!r}, but the run's {role} is {wanted!r}; keep one of the two")


def _extras_problems(
    script: Script, config: CleanRLWorkerConfig, values: Mapping[str, Any], folder: RunFolder
) -> Iterator[Problem]:
    extras = config.extras
    mode = extras.get("mode") or "train"
    if mode == "resume_training":
        yield Problem("extras.mode", NO_RESUME)
    elif mode != "train":
        yield Problem("extras.mode", f"a script can only be trained; {mode!r} needs one of MOSAIC's algorithms")
    for name, reason in _OWN_ONLY.items():
        if extras.get(name):
            yield Problem(f"extras.{name}", reason)
    expected = extras.get("script_sha256")
    if expected and expected != script.sha256:
        yield Problem(
            "extras.script_path", f"{script.path} has changed since the run was submitted; submit it again to run it"
        )
    yield from policy_problems(extras)
    yield from extras_problems(extras)
    has_wandb = "wandb" in script.imports or values.get("track") is not None
    if extras.get("track_wandb") is True and not has_wandb and not script.open_flags:
        yield Problem("extras.track_wandb", f"{script.path.name} does not use W&B")
    if not config.tensorboard_folder(folder).resolve().is_relative_to(folder.root.resolve()):
        yield Problem("extras.tensorboard_dir", f"must lie in the run folder {folder.root}")


def why_no_upload(
    environ: Mapping[str, str], why_unreachable: Callable[[str], str | None] = why_unreachable
) -> str | None:
    """Say why a model cannot be uploaded to the Hugging Face hub from here, or None."""
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


def _needs(choice: ScriptChoice, values: Mapping[str, Any], spec: WorkerSpec) -> Needs:
    script = choice.script
    everything = {known.field.name: known.field.default for known in script.parameters} | dict(values)
    declared = {"MEMORY": UPSTREAM_MEMORY.get(script.name, {}) if choice.checkout is not None else {}}
    return estimate(declared, everything, None, process_mb=spec.capabilities.estimated_memory_mb)
