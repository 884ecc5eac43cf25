"""`validate_train_run_config` returns the canonical form of a submitted run config, or all its problems at once.

The canonical form has `artifacts` (derived from the extras when missing), a run name, and every default written out.
`${RUN_ID}` and `${VAR_TENSORBOARD_DIR}` stay in it until `expand` knows the run: `${VAR_TENSORBOARD_DIR}` is the folder
`tensorboard` of the run, and `tensorboard_dir` is relative to the run folder, so a run can be moved to another machine.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from mosaic_wire.errors import Problem, SpecError
from mosaic_wire.ids import check_run_id
from mosaic_wire.paths import Home
from mosaic_wire.redaction import redact_text, secret_values
from mosaic_wire.run_config import CpuRequest, GpuRequest, Resources, Scheduling, TrainRunConfig
from mosaic_wire.run_request import PART_PATH as PATH
from mosaic_wire.run_request import RUN_ID_PLACEHOLDER as RUN_ID
from mosaic_wire.run_request import Extras, Mode, expand_placeholders, json_type, runs_script, worker_part
from mosaic_wire.worker_spec import AlgorithmSpec, ScriptSpec, WorkerSpec, nearest
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gym_gui.logging_config.log_constants import LOG_UI_MAINWINDOW_INVALID_CONFIG, log_code
from gym_gui.services.trainer.errors import InvalidConfig, UnknownWorker
from gym_gui.services.trainer.validation.json_document import checked_document, read_config_text
from gym_gui.services.trainer.validation.worker_part import (
    FOLDER_KEYS,
    check_placeholders,
    check_worker_config,
    default_of,
    find_script,
    is_hint,
    problem_with_folder,
)

logger = logging.getLogger(__name__)

__all__ = ["RunIdentity", "expand", "identity_of", "presentable", "read_config_text", "validate_train_run_config"]

_MAX_PROBLEMS = 100
_SUBMITTER_RETRIES = 20
_MAX_MESSAGE_CHARACTERS = 400


@dataclass(frozen=True)
class RunIdentity:
    """The parts of a config that the registry stores."""

    algo: str
    env_id: str
    seed: int | None
    total_timesteps: int
    name: str
    worker_id: str
    extras: Extras = field(default_factory=Extras)


def validate_train_run_config(
    document: Mapping[str, Any] | str,
    *,
    workers: Callable[[str], WorkerSpec] | None = None,
    worker_names: Iterable[str] = (),
    scripts: Callable[[str, str], ScriptSpec] | None = None,
    clock: Callable[[], float] = time.time,
) -> TrainRunConfig:
    """Return the canonical config, or raise InvalidConfig with every problem.

    `workers` gives a worker's description (`WorkerCatalog.get`); without it algorithm, environment and
    parameters are not checked. `worker_names` are the names to suggest. `scripts` returns a worker's description of a
    script (`WorkerCatalog.script`); without it the parameters of scripts are not checked.
    """
    try:
        return _validate(document, workers, tuple(worker_names), scripts, clock)
    except InvalidConfig as error:
        paths = [problem.path for problem in error.problems[:20]]
        log_code(logger, LOG_UI_MAINWINDOW_INVALID_CONFIG, "the run config was rejected", problems=paths)
        raise


def expand(config: TrainRunConfig, run_id: str, home: Home) -> TrainRunConfig:
    """Replace placeholders by the run's id and folder; raise InvalidConfig for a path outside the run folder."""
    check_run_id(run_id)
    given = config.part.get("run_id", RUN_ID)
    if given not in (RUN_ID, run_id):
        raise InvalidConfig([Problem(f"{PATH}.run_id", f"is {given!r}, but this run is {run_id}", RUN_ID)])
    document = expand_placeholders(config.to_json(), run_id)
    worker = worker_part(document)
    worker["run_id"] = run_id
    folder = home.run_folder(run_id).root
    problems = []
    for key in FOLDER_KEYS:
        value = worker.get("extras", {}).get(key)
        if isinstance(value, str) and (problem_with_folder(value) or not (folder / value).is_relative_to(folder)):
            problems.append(Problem(f"{PATH}.extras.{key}", f"{value[:120]!r} must stay inside the run folder"))
    if problems:
        raise InvalidConfig(problems)
    return TrainRunConfig.from_json(document)


def identity_of(config: TrainRunConfig) -> RunIdentity:
    """Return what the registry stores of a validated config."""
    part = config.part
    extras, total = part.get("extras", Extras()), part["total_timesteps"]
    if extras.get("mode") == Mode.CUSTOM_SCRIPT and total == 1:
        total = 0  # placeholder: the length of a script is unknown
    return RunIdentity(
        algo=part["algo"],
        env_id=part["env_id"],
        seed=part.get("seed"),
        total_timesteps=total,
        name=config.run_name or "",
        worker_id=config.metadata.worker.worker_id or part.get("worker_id") or "",
        extras=extras,
    )


def _validate(
    document: Mapping[str, Any] | str,
    workers: Callable[[str], WorkerSpec] | None,
    worker_names: tuple[str, ...],
    scripts: Callable[[str, str], ScriptSpec] | None,
    clock: Callable[[], float],
) -> TrainRunConfig:
    raw = read_config_text(document) if isinstance(document, str) else checked_document(document)
    problems: list[Problem] = []
    config: TrainRunConfig | None = None
    try:
        config = TrainRunConfig.from_json(raw, strict=True)
    except ValidationError as error:
        problems += problems_of(error)
    problems += _unprintable(raw) + check_placeholders(raw)
    worker = _object_at(_object_at(raw, "metadata"), "worker")
    spec = _find_spec(worker, workers, worker_names, problems)
    worker_config = worker.get("config")
    script = None
    if isinstance(worker_config, dict):
        extras = _object_at(worker_config, "extras")
        if spec is not None and runs_script(extras):
            script = find_script(spec, extras, scripts, problems)
            spec = script.added_to(spec) if script is not None else None
        problems += check_worker_config(worker_config, spec) + _contradictions(raw, worker_config)
    if problems or config is None:
        raise InvalidConfig(presentable(problems, raw))
    return _canonical(_with_defaults(config, raw, spec), spec, script, clock)


def _find_spec(
    worker: Mapping[str, Any],
    workers: Callable[[str], WorkerSpec] | None,
    worker_names: tuple[str, ...],
    problems: list[Problem],
) -> WorkerSpec | None:
    name, module = worker.get("type"), worker.get("module")
    if not isinstance(name, str) or not 0 < len(name) <= 64:
        return None  # the schema has reported it
    spec = None
    if workers is not None:
        try:
            spec = workers(name)
        except UnknownWorker as error:
            suggestion = nearest(name, worker_names) or error.suggestion
            problems.append(Problem("metadata.worker.type", f"there is no worker {name!r}", suggestion))
        except SpecError as error:
            problems.append(Problem("metadata.worker.type", f"the worker {name!r} cannot be used: {error}"))
    elif worker_names and name not in worker_names:
        problems.append(Problem("metadata.worker.type", f"there is no worker {name!r}", nearest(name, worker_names)))
    if spec is not None and isinstance(module, str) and module != spec.module:
        problems.append(
            Problem("metadata.worker.module", f"the module of worker {name!r} is not {module!r}", spec.module)
        )
    return spec


def _contradictions(raw: Mapping[str, Any], worker_config: Mapping[str, Any]) -> list[Problem]:
    """Report `artifacts` that contradict the extras."""
    enabled = _object_at(_object_at(raw, "artifacts"), "wandb").get("enabled")
    tracked = _object_at(worker_config, "extras").get("track_wandb")
    if isinstance(enabled, bool) and isinstance(tracked, bool) and enabled is not tracked:
        code = LOG_UI_MAINWINDOW_INVALID_CONFIG.code
        message = f"{code}: contradicts {PATH}.extras.track_wandb ({str(tracked).lower()}); make them agree"
        return [Problem("artifacts.wandb.enabled", message)]
    return []


def _unprintable(raw: Mapping[str, Any]) -> list[Problem]:
    """Report control characters in names, which are shown in terminals."""
    tags = raw.get("tags")
    texts = [("run_name", raw.get("run_name"))]
    texts += [(f"tags[{index}]", tag) for index, tag in enumerate(tags if isinstance(tags, list) else [])]
    worker = _object_at(_object_at(raw, "metadata"), "worker")
    texts += [("metadata.worker.worker_id", worker.get("worker_id"))]
    texts += [(f"{PATH}.{key}", _object_at(worker, "config").get(key)) for key in ("algo", "env_id", "worker_id")]
    notes = _object_at(_object_at(worker, "config"), "extras").get("notes")
    texts += [(f"{PATH}.extras.notes", notes.replace("\n", "").replace("\t", "") if isinstance(notes, str) else None)]
    return [
        Problem(path, "must not contain line breaks or other control characters")
        for path, text in texts
        if isinstance(text, str) and not text.isprintable()
    ]


def _with_defaults(config: TrainRunConfig, raw: Mapping[str, Any], spec: WorkerSpec | None) -> TrainRunConfig:
    """Apply the defaults of a worker that submits runs: it reserves no CPU and is retried, as its runs keep running."""
    if spec is None or not spec.capabilities.submits_runs:
        return config
    resources, scheduling = config.resources, config.scheduling
    if "cpus" not in _object_at(raw, "resources"):
        resources = resources.model_copy(update={"cpus": CpuRequest(requested=0)})
    if "retries" not in _object_at(raw, "scheduling"):
        scheduling = scheduling.model_copy(update={"retries": _SUBMITTER_RETRIES})
    return config.model_copy(update={"resources": resources, "scheduling": scheduling})


def _canonical(
    config: TrainRunConfig, spec: WorkerSpec | None, script: ScriptSpec | None, clock: Callable[[], float]
) -> TrainRunConfig:
    document = config.to_json()
    worker = document["metadata"]["worker"]
    flat = worker["config"]
    algorithm = spec.algorithm(flat["algo"]) if spec is not None else None
    for name in ("total_timesteps", "seed"):
        if name not in flat and (default := default_of(algorithm, name)) is not None:
            flat[name] = default
    extras = dict(flat.get("extras", {}))
    document["artifacts"] = config.artifacts.model_dump() if config.artifacts else _derived_artifacts(extras, algorithm)
    flat["extras"] = {key: value for key, value in extras.items() if not is_hint(key, value, algorithm)}
    if document["artifacts"]["wandb"]["enabled"]:
        flat["extras"]["track_wandb"] = True  # the worker sees only its own part
    if not document["artifacts"]["tensorboard"]["enabled"]:
        flat["extras"]["tensorboard_dir"] = ""  # which means that there are no event files
    elif flat["extras"].get("tensorboard_dir", "tensorboard") in (None, ""):
        del flat["extras"]["tensorboard_dir"]
    if script is not None:
        flat["extras"]["script_sha256"] = script.sha256  # only this content may run
    flat.setdefault("run_id", RUN_ID)
    if spec is not None:
        worker["module"] = spec.module
    document["tags"] = list(dict.fromkeys(document["tags"]))
    if config.run_name is None:
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(clock()))
        document["run_name"] = f"{worker['type']}-{flat['algo']}"[:180] + f"-{stamp}"
    return TrainRunConfig.from_json(document)


def _derived_artifacts(extras: Mapping[str, Any], algorithm: AlgorithmSpec | None) -> dict[str, Any]:
    hints = {key: value for key, value in extras.items() if is_hint(key, value, algorithm)}
    given = extras.get("algo_params") or {}
    # CleanRL scripts call it `track`.
    tracked = any(source.get(key) is True for source in (extras, given) for key in ("track_wandb", "track"))
    has_folder = extras.get("tensorboard_dir", "tensorboard") not in (None, "")
    return {
        "tensorboard": {"enabled": hints.get("tensorboard", has_folder)},
        "wandb": {"enabled": tracked or hints.get("wandb", False)},
    }


def _object_at(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = value.get(key)
    return found if isinstance(found, Mapping) else {}


def presentable(problems: list[Problem], raw: Mapping[str, Any]) -> list[Problem]:
    """Return the problems bounded, redacted and without duplicates."""
    secrets = sorted(secret_values(raw), key=len, reverse=True)
    shown = []
    for problem in dict.fromkeys(problems):
        message = redact_text(problem.message, secrets)
        if len(message) > _MAX_MESSAGE_CHARACTERS:
            message = message[:_MAX_MESSAGE_CHARACTERS] + "…"
        shown.append(Problem(problem.path, message, problem.suggestion))
    if len(shown) > _MAX_PROBLEMS:
        rest = len(shown) - _MAX_PROBLEMS
        shown = [*shown[:_MAX_PROBLEMS], Problem("", f"and {rest} more problems of {json_type(raw)} like this one")]
    return shown


# ---------------------------------------------------------------- messages for pydantic's errors

_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a string",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "tuple_type": "a list",
}
_LIMITS = {
    "greater_than_equal": ("ge", "must be at least {}"),
    "greater_than": ("gt", "must be greater than {}"),
    "less_than_equal": ("le", "must be at most {}"),
    "less_than": ("lt", "must be less than {}"),
    "string_too_short": ("min_length", "must have at least {} character"),
    "string_too_long": ("max_length", "must have at most {} characters"),
}
_ELSEWHERE = {
    **{key: f"{PATH}.{key}" for key in ("algo", "env_id", "seed", "total_timesteps", "extras")},
    **{key: f"{PATH}.extras.{key}" for key in ("notes", "tensorboard_dir", "track_wandb")},
    **{key: f"scheduling.{key}" for key in Scheduling.model_fields},
    **{key: f"resources.{key}" for key in Resources.model_fields},
    **{"config": PATH, "worker": "metadata.worker", "name": "run_name"},
}
"""Keys that users often write at a wrong level"""


def problems_of(error: ValidationError) -> list[Problem]:
    """Return every problem of the schema in document order."""
    return [_problem(details) for details in error.errors(include_url=False)]


def _problem(details: ErrorDetails) -> Problem:
    location = details["loc"]
    path = _path(location)
    suggestion = None
    if details["type"] == "extra_forbidden":
        key = str(location[-1])
        model = _model_at(location[:-1])
        known = list(model.model_fields) if model else []
        home = _ELSEWHERE.get(key)
        suggestion = home if home and key not in known else nearest(key, known)
        message = f"unknown key {key!r}; expected {' or '.join(known)}" if len(known) <= 2 else f"unknown key {key!r}"
    else:
        message = _message(details)
    if location and location[0] == "artifacts":
        # Operators search for this code, which marks rejected `artifacts`.
        message = f"{LOG_UI_MAINWINDOW_INVALID_CONFIG.code}: {message}"
    return Problem(path, message, suggestion)


def _message(details: ErrorDetails) -> str:
    kind, value = details["type"], details.get("input")
    context = details.get("ctx", {})
    if kind == "missing":
        return f"missing: {_description(details['loc'])} is required"
    if kind in _LIMITS:
        key, text = _LIMITS[kind]
        return f"{text.format(_plain(context[key]))}, got {_shown(value)}"
    if kind == "value_error":
        return str(context.get("error", details["msg"]))
    if kind in _EXPECTED:
        expected = _EXPECTED[kind]
        if _model_at(details["loc"]) in (CpuRequest, GpuRequest):
            expected = 'a number or an object such as {"requested": 1}'
        return f"expected {expected}, got {_shown(value)}"
    return f"{details['msg'][:1].lower()}{details['msg'][1:]}, got {_shown(value)}"


def _description(location: Sequence[int | str]) -> str:
    return {"metadata": "an object that names the worker", "worker": "an object with type and config"}.get(
        str(location[-1]), repr(location[-1])
    )


def _shown(value: Any) -> str:
    if isinstance(value, Mapping | list | tuple):
        return json_type(value)
    return f"{json_type(value)} {value!r}"[:120] if isinstance(value, str | int | float) else json_type(value)


def _plain(limit: Any) -> str:
    return f"{limit:g}" if isinstance(limit, float) else str(limit)


def _path(location: Sequence[int | str]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _model_at(location: Sequence[int | str]) -> type[BaseModel] | None:
    """Return the model that describes this place of the document, or None."""
    model: type[BaseModel] | None = TrainRunConfig
    for part in location:
        field = model.model_fields.get(str(part)) if model else None
        candidates = [] if field is None else [field.annotation, *get_args(field.annotation)]
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
    return model
