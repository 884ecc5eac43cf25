"""Run configs and worker configs as the documents that clients build, the daemon stores and workers read.

This is the one table of reserved extras with their types, and the one place that nests `metadata.worker.config.extras`.
It does without pydantic, which light commands and a worker's dry run do not load; the daemon validates a submitted
document with the model of `run_config`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypedDict, cast, get_args, get_type_hints

from mosaic_wire import env
from mosaic_wire.errors import Problem
from mosaic_wire.redaction import is_secret_ref
from mosaic_wire.worker_spec import nearest

RUN_ID_PLACEHOLDER = "${RUN_ID}"
"""What a config that has no run yet has in place of its id"""
TENSORBOARD_PLACEHOLDER = "${VAR_TENSORBOARD_DIR}"
"""What a config has in place of the run's folder of event files"""

CHECKPOINTS = "checkpoints"
FASTLANE_PREFIX = "fastlane_"
VIDEO_MODES = ("single", "grid", "off")
UPSTREAM = "upstream"
"""`source` of a script of the CleanRL checkout"""
OWN_SOURCES = (None, "", "mosaic")
"""`source` of MOSAIC's own algorithms"""


class Mode(StrEnum):
    """What a run does: `extras.mode`."""

    TRAIN = "train"
    RESUME = "resume_training"
    CURRICULUM = "curriculum"
    EVALUATE = "policy_eval"
    INTERACTIVE = "interactive"
    CUSTOM_SCRIPT = "custom_script"


NOT_TRAINING = (Mode.EVALUATE, Mode.INTERACTIVE, Mode.CUSTOM_SCRIPT)
"""Modes that leave nothing to resume from; such a run starts from the beginning"""

Count = Annotated[int, "not negative"]
Amount = Annotated[float, "not negative"]


class Extras(TypedDict, total=False):
    """Settings of a worker config that are not parameters of its algorithm. Every other key is a parameter.

    None counts as left out.
    """

    mode: str | None
    algo_params: dict[str, Any] | None
    """Parameters of the algorithm, by name"""
    notes: str | None
    agent_id: str | None
    agent: Any
    env_kwargs: dict[str, Any] | None
    curriculum_schedule: Any
    cuda: Any
    use_cuda: bool | None
    gpu: Any

    requirements: list[str] | None
    """Requirement sets, besides those that the run needs anyway"""
    install_missing: bool | None
    source: str | None
    script_path: str | None
    script_sha256: str | None
    """Of the script as it was checked"""
    script_arguments: list[str] | None

    checkpoint_path: str | None
    policy_path: str | None
    """Another name for checkpoint_path"""
    checkpoint_dir: Any
    checkpoint_freq: Count | None
    policy_statistics: str | None
    eval_policy: str | None
    eval_episodes: Count | None
    eval_repeat: Any
    eval_batch_size: Count | None
    eval_gamma: Amount | None
    eval_max_episode_steps: Count | None
    eval_max_episode_seconds: Amount | None
    eval_deterministic: bool | None
    eval_capture_video: bool | None

    no_progress: str | None
    no_progress_s: Amount | None
    minimal_telemetry: bool | None
    optuna_db: str | None
    tensorboard_dir: str | None
    """Below the run folder; empty: no event files"""
    track_wandb: bool | None
    wandb_run_name: str | None
    wandb_email: str | None
    wandb_api_key: str | None
    wandb_use_vpn_proxy: bool | None
    wandb_http_proxy: str | None
    wandb_https_proxy: str | None

    fastlane_video_mode: str | None
    fastlane_enabled: bool | None
    fastlane_only: bool | None
    fastlane_slot: int | None
    fastlane_grid_limit: int | None
    fastlane_interval_ms: int | None
    fastlane_max_dim: int | None


RESERVED_EXTRAS = frozenset(Extras.__annotations__)
FASTLANE_EXTRAS = tuple(key for key in Extras.__annotations__ if key.startswith(FASTLANE_PREFIX))
FASTLANE_NUMBERS: Mapping[str, tuple[int, str]] = {
    "fastlane_slot": (0, env.GYM_GUI_FASTLANE_SLOT),
    "fastlane_grid_limit": (1, env.GYM_GUI_FASTLANE_GRID_LIMIT),
    "fastlane_interval_ms": (1, env.CLEANRL_FASTLANE_INTERVAL_MS),
    "fastlane_max_dim": (0, env.CLEANRL_FASTLANE_MAX_DIM),
}
"""The smallest value that makes sense, and the variable that hands it to the training process"""


class WorkerPart(TypedDict, total=False):
    """The worker's part of a run config, at `metadata.worker.config`: what `worker-<ULID>.json` holds."""

    run_id: str
    algo: str
    env_id: str
    total_timesteps: int
    seed: int | None
    worker_id: str
    extras: Extras


PART_KEYS = tuple(WorkerPart.__annotations__)
PART_PATH = "metadata.worker.config"
MAX_NAME_CHARACTERS = 256
MAX_SEED = 2**63 - 1
MAX_TIMESTEPS = 10**15


def run_request(
    worker: str,
    *,
    algo: str,
    env_id: str | None = None,
    module: str | None = None,
    total_timesteps: int | None = None,
    seed: int | None = None,
    worker_id: str = "",
    extras: Extras | None = None,
    run_id: str | None = RUN_ID_PLACEHOLDER,
    run_name: str = "",
    resources: Mapping[str, Any] | None = None,
    scheduling: Mapping[str, Any] | None = None,
    tags: Sequence[str] = (),
    artifacts: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the run config to submit. What is None or empty is left out: the daemon has a default for it."""
    part = {
        "run_id": run_id,
        "algo": algo,
        "env_id": env_id,
        "seed": seed,
        "total_timesteps": total_timesteps,
        "worker_id": worker_id or None,
        "extras": _given(extras or {}),
    }
    request = {"type": worker, "module": module, "config": _given(part)}
    document = {
        "run_name": run_name or None,
        "resources": _given(resources or {}) or None,
        "scheduling": _given(scheduling or {}) or None,
        "tags": list(tags) or None,
        "artifacts": artifacts,
        "metadata": {"worker": _given(request)},
    }
    return _given(document)


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def worker_part(document: Mapping[str, Any]) -> WorkerPart:
    """Return the worker's part of a run config; raise KeyError or TypeError when it has none."""
    part = document["metadata"]["worker"]["config"]
    if not isinstance(part, dict):
        raise TypeError(f"{PART_PATH} is not an object")
    return cast(WorkerPart, part)


def with_worker_part(document: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a run config with another worker's part."""
    return {**document, "metadata": {"worker": {**document["metadata"]["worker"], "config": part}}}


def with_checkpoint(part: Mapping[str, Any], checkpoint: Path) -> WorkerPart:
    """Return a copy of a worker's part that resumes from this checkpoint."""
    extras = without(part.get("extras") or {}, ("policy_path",))
    resumed = {"mode": Mode.RESUME.value, "checkpoint_path": str(checkpoint.absolute())}
    return cast(WorkerPart, {**part, "extras": {**extras, **resumed}})


def runs_script(extras: Mapping[str, Any]) -> bool:
    """Return whether a run trains with a file; a custom script is a mode of its own and is not described."""
    if extras.get("mode") == Mode.CUSTOM_SCRIPT:
        return False
    return bool(extras.get("script_path")) or extras.get("source") not in OWN_SOURCES


def plain_parameters(extras: Mapping[str, Any]) -> dict[str, Any]:
    """Return the extras that are parameters of the algorithm; those of `algo_params` not included."""
    return {
        key: value
        for key, value in extras.items()
        if key not in RESERVED_EXTRAS and not key.startswith(FASTLANE_PREFIX)
    }


def without(extras: Mapping[str, Any], names: Collection[str]) -> Extras:
    """Return a copy of the extras without these."""
    return cast(Extras, {key: value for key, value in extras.items() if key not in names})


def algo_params(extras: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters under `algo_params`; empty when there are none."""
    given = extras.get("algo_params")
    return given if isinstance(given, dict) else {}


def expand_placeholders(value: Any, run_id: str) -> Any:
    """Return a copy of a JSON value with the run's id and its folder of event files in place of the placeholders."""
    if isinstance(value, dict):
        return {key: expand_placeholders(item, run_id) for key, item in value.items()}
    if isinstance(value, list):
        return [expand_placeholders(item, run_id) for item in value]
    if isinstance(value, str):
        return value.replace(RUN_ID_PLACEHOLDER, run_id).replace(TENSORBOARD_PLACEHOLDER, "tensorboard")
    return value


# ---------------------------------------------------------------- checks

_NUMBERS: Mapping[str, tuple[int, int, str]] = {
    "total_timesteps": (1, MAX_TIMESTEPS, "a whole number above 0 (at most 10^15)"),
    "seed": (0, MAX_SEED, "a whole number that is not negative (below 2^63), or null"),
}
_TYPES: Mapping[Any, tuple[str, Callable[[Any], bool]]] = {
    bool: ("true or false", lambda value: isinstance(value, bool)),
    str: ("a string", lambda value: value is None or isinstance(value, str) or is_secret_ref(value)),
    Count: ("a whole number that is not negative", lambda value: value is None or (type(value) is int and value >= 0)),
    Amount: (
        "a number that is not negative",
        lambda value: value is None or (type(value) in (int, float) and value >= 0),
    ),
    list[str]: ("a list of strings", lambda value: isinstance(value, list) and all(isinstance(x, str) for x in value)),
    dict[str, Any]: ("an object", lambda value: value is None or isinstance(value, Mapping)),
}
"""By type, its description and a test whether a value has it"""


def part_problem(key: str, value: Any) -> str | None:
    """Return what is wrong with a name or a number of a worker's part."""
    if key in _NUMBERS:
        least, most, expected = _NUMBERS[key]
        fits = type(value) is int and least <= value <= most
        return None if fits else f"expected {expected}, got {f'{json_type(value)} {value!r}'[:80]}"
    if isinstance(value, str) and value.strip() and len(value) <= MAX_NAME_CHARACTERS:
        return None
    got = f"{len(value)} characters" if isinstance(value, str) else json_type(value)
    return f"expected a name of 1 to {MAX_NAME_CHARACTERS} characters, got {got}"


def extras_problems(extras: Mapping[str, Any], path: str = "extras") -> list[Problem]:
    """Return what is wrong with the `fastlane_*` extras and `checkpoint_dir`, which mean the same to every worker."""
    given = {key: value for key, value in extras.items() if key.startswith(FASTLANE_PREFIX) and value is not None}
    found = [
        Problem(f"{path}.{key}", *wrong)
        for key, value in given.items()
        if (wrong := _problem_with_fastlane(key, value)) is not None
    ]
    if extras.get("checkpoint_dir") not in (None, "", CHECKPOINTS):
        text = f"cannot be chosen: a run keeps its checkpoints in the folder {CHECKPOINTS!r} of its own; leave it out"
        found.append(Problem(f"{path}.checkpoint_dir", text))
    return found


def type_problems(extras: Mapping[str, Any], path: str = "extras") -> list[Problem]:
    """Return every other reserved extra whose value has another type than in `Extras`."""
    found = []
    for key, kind in get_type_hints(Extras, include_extras=True).items():
        expected, fits = _TYPES.get(next(iter(get_args(kind)), None), ("", None))
        if key in extras and key not in FASTLANE_EXTRAS and fits is not None and not fits(extras[key]):
            found.append(Problem(f"{path}.{key}", f"expected {expected}, got {json_type(extras[key])}"))
    return found


def _problem_with_fastlane(key: str, value: Any) -> tuple[str, str | None] | None:
    shown = repr(value)[:60]
    if key == "fastlane_video_mode":
        close = nearest(value, VIDEO_MODES) if isinstance(value, str) else None
        return None if value in VIDEO_MODES else (f"expected {' or '.join(VIDEO_MODES)}, got {shown}", close)
    if key in FASTLANE_NUMBERS:
        fits = type(value) is int and value >= FASTLANE_NUMBERS[key][0]
        return None if fits else (f"expected a whole number from {FASTLANE_NUMBERS[key][0]}, got {shown}", None)
    if key in FASTLANE_EXTRAS:
        return None if isinstance(value, bool) else (f"expected true or false, got {shown}", None)
    return f"unknown setting; known are {', '.join(FASTLANE_EXTRAS)}", nearest(key, FASTLANE_EXTRAS)


def json_type(value: Any) -> str:
    """Return what people call this value in JSON."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    for kind, name in ((str, "a string"), (int | float, "a number"), (Mapping, "an object"), (list | tuple, "a list")):
        if isinstance(value, kind):
            return name
    return type(value).__name__
