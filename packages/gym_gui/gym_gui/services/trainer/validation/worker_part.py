"""`metadata.worker.config`: the flat worker config, checked against the worker's own description."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

from mosaic_wire.errors import Problem
from mosaic_wire.extras_checks import FASTLANE_EXTRAS, FASTLANE_PREFIX, extras_problems
from mosaic_wire.ids import is_run_id
from mosaic_wire.redaction import is_secret_key
from mosaic_wire.secret_refs import is_secret_ref
from mosaic_wire.worker_config import RUN_ID_PLACEHOLDER as RUN_ID
from mosaic_wire.worker_config import TENSORBOARD_PLACEHOLDER as TENSORBOARD_DIR
from mosaic_wire.worker_spec import AlgorithmSpec, WorkerSpec, check_algorithm_choice, nearest

from gym_gui.services.trainer.validation.json_document import join, json_type

PATH = "metadata.worker.config"

CONFIG_KEYS = ("run_id", "algo", "env_id", "total_timesteps", "seed", "worker_id", "extras")

PLACEHOLDERS = (RUN_ID, TENSORBOARD_DIR)
_PLACEHOLDER = re.compile(r"\$\{[^{}]*\}?")

FOLDER_KEYS = ("tensorboard_dir",)
"""Extras that name a folder the run writes: relative to the run folder, and inside it."""

_MAX_NAME_CHARACTERS = 256
_MODES_OF_EVERYONE = ("train", "resume_training")


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "true or false"


def _text(value: Any) -> str | None:
    return None if value is None or isinstance(value, str) or is_secret_ref(value) else "a string"


def _count(value: Any) -> str | None:
    fits = value is None or (type(value) is int and value >= 0)
    return None if fits else "a whole number that is not negative"


def _amount(value: Any) -> str | None:
    fits = value is None or (type(value) in (int, float) and value >= 0)
    return None if fits else "a number that is not negative"


def _names(value: Any) -> str | None:
    fits = isinstance(value, list) and all(isinstance(item, str) for item in value)
    return None if fits else "a list of strings"


def _object(value: Any) -> str | None:
    return None if value is None or isinstance(value, Mapping) else "an object"


def _anything(value: Any) -> str | None:
    return None


RESERVED_EXTRAS: Mapping[str, Callable[[Any], str | None]] = {
    "tensorboard_dir": _text, "track_wandb": _flag, "algo_params": _object, "notes": _text, "cuda": _anything,
    "use_cuda": _flag, "gpu": _anything, "wandb_run_name": _text, "wandb_email": _text, "wandb_api_key": _text,
    "wandb_http_proxy": _text, "wandb_https_proxy": _text, "wandb_use_vpn_proxy": _flag, "agent_id": _text,
    **dict.fromkeys(FASTLANE_EXTRAS, _anything),  # `extras_problems` looks at them
    "mode": _text, "policy_path": _text, "checkpoint_path": _text, "checkpoint_dir": _anything,
    "checkpoint_freq": _count, "curriculum_schedule": _anything, "eval_capture_video": _flag, "eval_episodes": _count,
    "eval_gamma": _amount, "eval_max_episode_steps": _count, "eval_max_episode_seconds": _amount,
    "eval_batch_size": _count, "eval_repeat": _anything, "eval_deterministic": _flag, "eval_policy": _text,
    "requirements": _names, "source": _text, "script_path": _text, "minimal_telemetry": _flag, "optuna_db": _text,
    "agent": _anything, "env_kwargs": _object, "script_sha256": _text, "no_progress": _text, "no_progress_s": _amount,
    "install_missing": _flag, "script_arguments": _names, "policy_statistics": _text,
}  # fmt: skip
"""Extras that are not turned into flags, and what each must be; every other key is a parameter."""

ARTIFACT_HINTS = ("tensorboard", "wandb")
"""Older forms wrote these switches among the extras; they become `artifacts` and are no parameters."""


def check_worker_config(config: Mapping[str, Any], spec: WorkerSpec | None) -> list[Problem]:
    """Everything wrong with the flat worker config; without a description only its shape is checked."""
    algo, env_id = config.get("algo"), config.get("env_id")
    algorithm = spec.algorithm(algo) if spec is not None and isinstance(algo, str) else None
    problems = _unknown_keys(config, algorithm)
    problems += _wrong_name(config, "algo") + _wrong_name(config, "env_id")
    problems += _wrong_run_id(config) + _wrong_numbers(config, algorithm)
    if not isinstance(config.get("worker_id", ""), str):
        problems.append(Problem(f"{PATH}.worker_id", f"expected a string, got {json_type(config['worker_id'])}"))
    extras = config.get("extras", {})
    if not isinstance(extras, Mapping):
        return [*problems, Problem(f"{PATH}.extras", f"expected an object, got {json_type(extras)}")]
    problems += _wrong_reserved(extras) + _wrong_folders(extras) + extras_problems(extras, f"{PATH}.extras")
    if spec is not None and _is_name(algo) and _is_name(env_id):
        problems += _wrong_choice(spec, config, extras)
    return problems


def parameters_of(extras: Mapping[str, Any], algorithm: AlgorithmSpec | None = None) -> dict[str, Any]:
    """The extras that become flags of the algorithm, `algo_params` not included."""
    return {
        key: value
        for key, value in extras.items()
        if key not in RESERVED_EXTRAS and not key.startswith(FASTLANE_PREFIX) and not is_hint(key, value, algorithm)
    }


def is_hint(key: str, value: Any, algorithm: AlgorithmSpec | None = None) -> bool:
    """Tell whether this extra is an older way to switch an artifact on or off."""
    known = algorithm is not None and algorithm.field(key) is not None
    return key in ARTIFACT_HINTS and isinstance(value, bool) and not known


def check_placeholders(value: Any, path: str = "") -> list[Problem]:
    """Every `${…}` that is not one of the known ones."""
    if isinstance(value, Mapping):
        return [
            problem
            for key, item in value.items()
            if not (isinstance(item, str) and is_secret_key(key))  # a password may look like anything
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
    """Say why this cannot be a folder inside the run folder, or None."""
    place = PurePosixPath(text.replace(TENSORBOARD_DIR, "tensorboard").replace(RUN_ID, "run"))
    if place.is_absolute() or text.startswith("~") or "\\" in text or ".." in place.parts:
        return f"must stay inside the run folder: a relative path without '..', got {text[:120]!r}"
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        return "must not contain control characters"
    return None


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MAX_NAME_CHARACTERS


def _unknown_keys(config: Mapping[str, Any], algorithm: AlgorithmSpec | None) -> list[Problem]:
    problems = []
    for key in config:
        if key in CONFIG_KEYS:
            continue
        if algorithm is not None and algorithm.field(key.replace("-", "_")) is not None:
            problems.append(
                Problem(f"{PATH}.{key}", f"{key!r} is a parameter of the algorithm", f"extras.algo_params.{key}")
            )
        elif key in RESERVED_EXTRAS:
            problems.append(Problem(f"{PATH}.{key}", f"unknown key {key!r}", f"extras.{key}"))
        else:
            problems.append(Problem(f"{PATH}.{key}", f"unknown key {key!r}", nearest(key, CONFIG_KEYS)))
    return problems


def _wrong_name(config: Mapping[str, Any], key: str) -> list[Problem]:
    if key not in config:
        return [Problem(f"{PATH}.{key}", f"missing: {key!r} is required")]
    value = config[key]
    if _is_name(value):
        return []
    got = f"{len(value)} characters" if isinstance(value, str) else json_type(value)
    return [Problem(f"{PATH}.{key}", f"expected a name of 1 to {_MAX_NAME_CHARACTERS} characters, got {got}")]


def _wrong_run_id(config: Mapping[str, Any]) -> list[Problem]:
    value = config.get("run_id", RUN_ID)
    if value == RUN_ID or is_run_id(value):
        return []
    return [
        Problem(f"{PATH}.run_id", f"expected {RUN_ID} (the daemon chooses the id), got {str(value)[:60]!r}", RUN_ID)
    ]


def _wrong_numbers(config: Mapping[str, Any], algorithm: AlgorithmSpec | None) -> list[Problem]:
    problems = []
    if "total_timesteps" in config:
        total = config["total_timesteps"]
        if type(total) is not int or total <= 0:
            shown = f"{json_type(total)} {total!r}"[:80]
            problems.append(Problem(f"{PATH}.total_timesteps", f"expected a whole number above 0, got {shown}"))
    elif algorithm is None or default_of(algorithm, "total_timesteps") is None:
        problems.append(Problem(f"{PATH}.total_timesteps", "missing: 'total_timesteps' is required"))
    seed = config.get("seed")
    if seed is not None and (type(seed) is not int or seed < 0):
        shown = f"{json_type(seed)} {seed!r}"[:80]
        problems.append(Problem(f"{PATH}.seed", f"expected a whole number that is not negative, or null, got {shown}"))
    return problems


def default_of(algorithm: AlgorithmSpec | None, name: str) -> int | None:
    """The algorithm's own default of a whole-number parameter, if it is one that can be used."""
    field = algorithm.field(name) if algorithm is not None else None
    usable = field is not None and type(field.default) is int and field.default >= 0
    return field.default if field is not None and usable else None


def _wrong_reserved(extras: Mapping[str, Any]) -> list[Problem]:
    return [
        Problem(f"{PATH}.extras.{key}", f"expected {expected}, got {json_type(extras[key])}")
        for key, check in RESERVED_EXTRAS.items()
        if key in extras and (expected := check(extras[key])) is not None
    ]


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
        known = tuple(dict.fromkeys((*algorithm.modes, *_MODES_OF_EVERYONE)))
        if mode not in known:
            told = f"{mode!r} is not one of {', '.join(known)}"
            problems.append(Problem(f"{PATH}.extras.mode", told, nearest(mode, known)))
    paths = [extras.get("checkpoint_path"), extras.get("policy_path")]
    if all(paths) and paths[0] != paths[1]:
        told = "says something else than checkpoint_path; give one of them"
        problems.append(Problem(f"{PATH}.extras.policy_path", told))
    return problems


def _wrong_choice(spec: WorkerSpec, config: Mapping[str, Any], extras: Mapping[str, Any]) -> list[Problem]:
    if extras.get("mode") == "custom_script":
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
    """A parameter that contradicts the config's own key: nobody could say which one trains."""
    problems = []
    for key, value in parameters.items():
        name = key.replace("-", "_")
        if name in ("algo", "env_id", "seed", "total_timesteps") and name in config and config[name] != value:
            problems.append(Problem(f"{place}.{key}", f"contradicts {PATH}.{name}; keep one of the two"))
    return problems
