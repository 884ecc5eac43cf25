"""Validate `metadata.worker.config`, the worker's part of a run config, with the worker's description."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from mosaic_wire.errors import Problem, SpecError
from mosaic_wire.ids import is_run_id
from mosaic_wire.paths import Home
from mosaic_wire.redaction import is_secret_key, is_secret_ref
from mosaic_wire.run_request import (
    PART_KEYS,
    RESERVED_EXTRAS,
    Mode,
    extras_problems,
    json_type,
    part_problem,
    plain_parameters,
    type_problems,
)
from mosaic_wire.run_request import PART_PATH as PATH
from mosaic_wire.run_request import RUN_ID_PLACEHOLDER as RUN_ID
from mosaic_wire.run_request import TENSORBOARD_PLACEHOLDER as TENSORBOARD_DIR
from mosaic_wire.worker_spec import (
    SCRIPT_SUFFIXES,
    AlgorithmSpec,
    ScriptSpec,
    WorkerSpec,
    check_algorithm_choice,
    nearest,
)

from gym_gui.services.trainer.validation.json_document import join

PLACEHOLDERS = (RUN_ID, TENSORBOARD_DIR)
_PLACEHOLDER = re.compile(r"\$\{[^{}]*\}?")

FOLDER_KEYS = ("tensorboard_dir",)
"""Extras that name a folder inside the run folder"""

_MODES_OF_ALL = (Mode.TRAIN, Mode.RESUME)
ARTIFACT_HINTS = ("tensorboard", "wandb")
"""Switches that older forms wrote among the extras; they become `artifacts`"""


def check_worker_config(config: Mapping[str, Any], spec: WorkerSpec | None) -> list[Problem]:
    """Return all problems of a worker's part; without a description only its structure is checked."""
    algo, env_id = config.get("algo"), config.get("env_id")
    algorithm = spec.algorithm(algo) if spec is not None and isinstance(algo, str) else None
    problems = _unknown_keys(config, algorithm)
    run_id = config.get("run_id", RUN_ID)
    if run_id != RUN_ID and not is_run_id(run_id):
        text = f"expected {RUN_ID} (the daemon chooses the id), got {str(run_id)[:60]!r}"
        problems.append(Problem(f"{PATH}.run_id", text, RUN_ID))
    has_total = default_of(algorithm, "total_timesteps") is not None
    for key in ("algo", "env_id", *(() if has_total else ("total_timesteps",))):
        if key not in config:
            problems.append(Problem(f"{PATH}.{key}", f"missing: {key!r} is required"))
    for key in ("algo", "env_id", "total_timesteps", "seed", "worker_id"):
        is_missing = key not in config or (key == "seed" and config[key] is None)
        if not is_missing and (wrong := part_problem(key, config[key])) is not None:
            problems.append(Problem(f"{PATH}.{key}", wrong))
    extras = config.get("extras", {})
    if not isinstance(extras, Mapping):
        return [*problems, Problem(f"{PATH}.extras", f"expected an object, got {json_type(extras)}")]
    problems += type_problems(extras, f"{PATH}.extras") + _wrong_folders(extras)
    problems += extras_problems(extras, f"{PATH}.extras")
    if spec is not None and part_problem("algo", algo) is None and part_problem("env_id", env_id) is None:
        problems += _wrong_choice(spec, config, extras)
    return problems


def parameters_of(extras: Mapping[str, Any], algorithm: AlgorithmSpec | None = None) -> dict[str, Any]:
    """Return the extras that become flags of the algorithm, except `algo_params`."""
    given = plain_parameters(extras)
    return {key: value for key, value in given.items() if not is_hint(key, value, algorithm)}


def is_hint(key: str, value: Any, algorithm: AlgorithmSpec | None = None) -> bool:
    """Return whether this extra is an older switch for an artifact."""
    known = algorithm is not None and algorithm.field(key) is not None
    return key in ARTIFACT_HINTS and isinstance(value, bool) and not known


def check_placeholders(value: Any, path: str = "") -> list[Problem]:
    """Return a problem for every unknown `${…}`."""
    if isinstance(value, Mapping):
        return [
            problem
            for key, item in value.items()
            if not (isinstance(item, str) and is_secret_key(key))  # a password may contain anything
            for problem in check_placeholders(item, join(path, key))
        ]
    if isinstance(value, list):
        return [p for index, item in enumerate(value) for p in check_placeholders(item, f"{path}[{index}]")]
    if not isinstance(value, str):
        return []
    unknown = sorted({found for found in _PLACEHOLDER.findall(value) if found not in PLACEHOLDERS})
    message = f"cannot be expanded; known are {' and '.join(PLACEHOLDERS)}"
    return [Problem(path, f"{name[:60]!r} {message}", nearest(name[:60], PLACEHOLDERS)) for name in unknown]


def problem_with_folder(text: str) -> str | None:
    """Return why this cannot be a folder inside the run folder, or None."""
    place = PurePosixPath(text.replace(TENSORBOARD_DIR, "tensorboard").replace(RUN_ID, "run"))
    if place.is_absolute() or text.startswith("~") or "\\" in text or ".." in place.parts:
        return f"must stay inside the run folder: a relative path without '..', got {text[:120]!r}"
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        return "must not contain control characters"
    return None


def _unknown_keys(config: Mapping[str, Any], algorithm: AlgorithmSpec | None) -> list[Problem]:
    problems = []
    for key in config:
        if key in PART_KEYS:
            continue
        if algorithm is not None and algorithm.field(key.replace("-", "_")) is not None:
            problems.append(
                Problem(f"{PATH}.{key}", f"{key!r} is a parameter of the algorithm", f"extras.algo_params.{key}")
            )
        elif key in RESERVED_EXTRAS:
            problems.append(Problem(f"{PATH}.{key}", f"unknown key {key!r}", f"extras.{key}"))
        else:
            problems.append(Problem(f"{PATH}.{key}", f"unknown key {key!r}", nearest(key, PART_KEYS)))
    return problems


def default_of(algorithm: AlgorithmSpec | None, name: str) -> int | None:
    """Return the algorithm's default of an integer parameter, if it is usable."""
    field = algorithm.field(name) if algorithm is not None else None
    usable = field is not None and type(field.default) is int and field.default >= 0
    return field.default if field is not None and usable else None


def _wrong_folders(extras: Mapping[str, Any]) -> list[Problem]:
    folders = ((key, extras[key]) for key in FOLDER_KEYS if isinstance(extras.get(key), str))
    return [
        Problem(f"{PATH}.extras.{key}", wrong)
        for key, value in folders
        if (wrong := problem_with_folder(value)) is not None
    ]


def _wrong_mode(algorithm: AlgorithmSpec | None, extras: Mapping[str, Any]) -> list[Problem]:
    mode, problems = extras.get("mode"), []
    if isinstance(mode, str) and mode and algorithm is not None and not algorithm.open_flags:
        known = tuple(dict.fromkeys((*algorithm.modes, *_MODES_OF_ALL)))
        if mode not in known:
            message = f"{mode!r} is not one of {', '.join(known)}"
            problems.append(Problem(f"{PATH}.extras.mode", message, nearest(mode, known)))
    paths = [extras.get("checkpoint_path"), extras.get("policy_path")]
    if all(paths) and paths[0] != paths[1]:
        message = "differs from checkpoint_path; give one of them"
        problems.append(Problem(f"{PATH}.extras.policy_path", message))
    return problems


def _wrong_choice(spec: WorkerSpec, config: Mapping[str, Any], extras: Mapping[str, Any]) -> list[Problem]:
    if extras.get("mode") == Mode.CUSTOM_SCRIPT:
        return []  # the script decides what is trained where; algo and env_id are labels
    algo, env_id = config["algo"], config["env_id"]
    algorithm = spec.algorithm(algo)
    problems = check_algorithm_choice(spec, algo, env_id, {}, path=PATH)
    about_the_choice = len(problems)
    problems += _wrong_mode(algorithm, extras)
    given = extras.get("algo_params") or {}
    for place, parameters in (
        (f"{PATH}.extras", parameters_of(extras, algorithm)),
        (f"{PATH}.extras.algo_params", given if isinstance(given, Mapping) else {}),
    ):
        checkable = {key: value for key, value in parameters.items() if not _is_known_secret(algorithm, key, value)}
        problems += check_algorithm_choice(spec, algo, env_id, checkable, path=place)[about_the_choice:]
        problems += _said_twice(config, parameters, place)
    return problems


def _is_known_secret(algorithm: AlgorithmSpec | None, key: str, value: Any) -> bool:
    known = algorithm is not None and (algorithm.open_flags or algorithm.field(key.replace("-", "_")) is not None)
    return known and is_secret_ref(value)


def _said_twice(config: Mapping[str, Any], parameters: Mapping[str, Any], place: str) -> list[Problem]:
    """Return problems for parameters that contradict a key of the config."""
    problems = []
    for key, value in parameters.items():
        name = key.replace("-", "_")
        if name in ("algo", "env_id", "seed", "total_timesteps") and name in config and config[name] != value:
            problems.append(Problem(f"{place}.{key}", f"contradicts {PATH}.{name}; keep one of the two"))
    return problems


# ---------------------------------------------------------------- scripts


def find_script(
    spec: WorkerSpec,
    extras: Mapping[str, Any],
    scripts: Callable[[str, str], ScriptSpec] | None,
    problems: list[Problem],
) -> ScriptSpec | None:
    """Return the worker's description of the script, or None, usually with a problem added."""
    path, place = extras.get("script_path"), f"{PATH}.extras.script_path"
    if not path:
        message = "missing: the file of the CleanRL checkout; `mosaic train --source upstream` finds it (CLEANRL_HOME)"
        problems.append(Problem(place, message))
        return None
    if not isinstance(path, str):
        return None  # its type is reported elsewhere
    if not spec.runs_scripts:
        problems.append(Problem(place, f"worker {spec.name!r} runs no scripts"))
        return None
    if not PurePosixPath(path).is_absolute():
        problems.append(Problem(place, f"expected an absolute path, got {path[:120]!r}"))
        return None
    if scripts is None:
        return None
    try:
        script = scripts(spec.name, path)
    except SpecError as error:
        problems.append(Problem(place, str(error)))
        return None
    mode = extras.get("mode") or Mode.TRAIN
    if mode not in script.algorithm.modes:
        message = "a script cannot be resumed: it writes no checkpoint that MOSAIC could resume from"
        other = f"{mode!r} is not possible with a script"
        problems.append(Problem(f"{PATH}.extras.mode", message if mode == Mode.RESUME else other))
    given = extras.get("script_sha256")
    if given and given != script.sha256:
        problems.append(Problem(f"{PATH}.extras.script_sha256", f"the content of {path} has changed"))
    return script


def script_folders(home: Home, configured: Sequence[Path]) -> list[Path]:
    """Return the folders that scripts may come from."""
    return [*configured, home.custom_scripts]


def script_problems(extras: Mapping[str, Any], folders: Sequence[Path]) -> list[Problem]:
    """Return why this run's script is refused; the worker checks it again before it starts it."""
    if extras.get("mode") != Mode.CUSTOM_SCRIPT:
        return []
    place, chosen = f"{PATH}.extras.script_path", extras.get("script_path")
    if not isinstance(chosen, str) or not chosen:
        return [Problem(place, "missing: which script?")]
    path = Path(chosen)
    if not path.is_absolute():
        path = folders[-1] / path
    try:
        real = path.resolve(strict=True)  # links are resolved: the real place counts
    except (OSError, RuntimeError) as error:
        return [Problem(place, f"{path} cannot be read: {getattr(error, 'strerror', None) or error}")]
    if not any(real.is_relative_to(folder.resolve()) for folder in folders):
        where = ", ".join(map(str, folders))
        remedy = "move it there, or add its folder to `custom_scripts` in settings.toml and restart the daemon"
        return [Problem(place, f"{real} lies in none of the folders scripts may come from ({where}); {remedy}")]
    if real.suffix not in SCRIPT_SUFFIXES or not real.is_file():
        return [Problem(place, f"{real} must be a file that ends in {' or '.join(SCRIPT_SUFFIXES)}")]
    return []
