"""`validate_train_run_config`: a submitted run config is right in every place, or all its problems are told at once.

The canonical form has `artifacts` (derived from the extras when missing), a run name, and every default written out.
`${RUN_ID}` and `${VAR_TENSORBOARD_DIR}` stay in it until `expand` knows the run: `${VAR_TENSORBOARD_DIR}` is the folder
`tensorboard` of the run, and `tensorboard_dir` is relative to the run folder, so a run can be moved to another machine.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mosaic_wire.errors import Problem, SpecError
from mosaic_wire.ids import check_run_id
from mosaic_wire.paths import Home
from mosaic_wire.redaction import redact_text, secret_values
from mosaic_wire.run_config import CpuRequest, TrainRunConfig
from mosaic_wire.worker_config import RUN_ID_PLACEHOLDER as RUN_ID
from mosaic_wire.worker_config import expand_placeholders
from mosaic_wire.worker_spec import AlgorithmSpec, ScriptSpec, WorkerSpec, nearest
from pydantic import ValidationError

from gym_gui.logging_config.log_constants import LOG_UI_MAINWINDOW_INVALID_CONFIG, log_code
from gym_gui.services.trainer.errors import InvalidConfig, UnknownWorker
from gym_gui.services.trainer.validation.json_document import checked_document, json_type, read_config_text
from gym_gui.services.trainer.validation.schema_problems import problems_of
from gym_gui.services.trainer.validation.scripts import find_script, means_a_script
from gym_gui.services.trainer.validation.worker_part import (
    FOLDER_KEYS,
    PATH,
    check_placeholders,
    check_worker_config,
    default_of,
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
    """What a registry row needs from a config."""

    algo: str
    env_id: str
    seed: int | None
    total_timesteps: int
    name: str
    worker_id: str
    extras: Mapping[str, Any] = field(default_factory=dict)


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
    parameters are not checked. `worker_names` are the names to suggest. `scripts` tells what a worker makes of a script
    (`WorkerCatalog.script`); without it the parameters of scripts are not checked.
    """
    try:
        return _validate(document, workers, tuple(worker_names), scripts, clock)
    except InvalidConfig as error:
        paths = [problem.path for problem in error.problems[:20]]
        log_code(logger, LOG_UI_MAINWINDOW_INVALID_CONFIG, "the run config was rejected", problems=paths)
        raise


def expand(config: TrainRunConfig, run_id: str, home: Home) -> TrainRunConfig:
    """Put the run's id and folder in place of the placeholders; raise InvalidConfig when a path would leave it."""
    check_run_id(run_id)
    given = config.metadata.worker.config.get("run_id", RUN_ID)
    if given not in (RUN_ID, run_id):
        raise InvalidConfig([Problem(f"{PATH}.run_id", f"is {given!r}, but this run is {run_id}", RUN_ID)])
    document = expand_placeholders(config.to_json(), run_id)
    worker = document["metadata"]["worker"]["config"]
    worker["run_id"] = run_id
    folder = home.run_folder(run_id).root
    problems = []
    for key in FOLDER_KEYS:
        value = worker.get("extras", {}).get(key)
        if isinstance(value, str) and (problem_with_folder(value) or not (folder / value).is_relative_to(folder)):
            problems.append(Problem(f"{PATH}.extras.{key}", f"{value[:120]!r} must stay inside the run folder"))
    if problems:
        raise InvalidConfig(problems)
    return TrainRunConfig.model_validate_json(json.dumps(document))


def identity_of(config: TrainRunConfig) -> RunIdentity:
    """What the registry stores of a validated config."""
    worker = config.metadata.worker
    extras, total = worker.config.get("extras", {}), worker.config["total_timesteps"]
    if extras.get("mode") == "custom_script" and total == 1:
        total = 0  # a config cannot leave it out: nobody knows how far the script goes
    return RunIdentity(
        algo=worker.config["algo"],
        env_id=worker.config["env_id"],
        seed=worker.config.get("seed"),
        total_timesteps=total,
        name=config.run_name or "",
        worker_id=worker.worker_id or worker.config.get("worker_id") or "",
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
        # JSON again: only there does strict accept a list for a tuple while "2" stays no number.
        config = TrainRunConfig.model_validate_json(json.dumps(raw), strict=True)
    except ValidationError as error:
        problems += problems_of(error)
    problems += _unprintable(raw) + check_placeholders(raw)
    worker = _object_at(_object_at(raw, "metadata"), "worker")
    spec = _find_spec(worker, workers, worker_names, problems)
    worker_config = worker.get("config")
    script = None
    if isinstance(worker_config, dict):
        extras = _object_at(worker_config, "extras")
        if spec is not None and means_a_script(extras):
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
        return None  # the schema has told
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
            Problem("metadata.worker.module", f"the module of worker {name!r} is another than {module!r}", spec.module)
        )
    return spec


def _contradictions(raw: Mapping[str, Any], worker_config: Mapping[str, Any]) -> list[Problem]:
    """`artifacts` and the extras are two places for one switch."""
    enabled = _object_at(_object_at(raw, "artifacts"), "wandb").get("enabled")
    tracked = _object_at(worker_config, "extras").get("track_wandb")
    if isinstance(enabled, bool) and isinstance(tracked, bool) and enabled is not tracked:
        code = LOG_UI_MAINWINDOW_INVALID_CONFIG.code
        told = f"{code}: contradicts {PATH}.extras.track_wandb ({str(tracked).lower()}); make them agree"
        return [Problem("artifacts.wandb.enabled", told)]
    return []


def _unprintable(raw: Mapping[str, Any]) -> list[Problem]:
    """Names are shown in terminals: no escape sequences in them."""
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
    """A worker that only has others work reserves no CPU, and is started again after a crash: its runs go on."""
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
        flat["extras"]["track_wandb"] = True  # the worker sees its own part only
    if not document["artifacts"]["tensorboard"]["enabled"]:
        flat["extras"]["tensorboard_dir"] = ""  # which means that there are no event files
    elif flat["extras"].get("tensorboard_dir", "tensorboard") in (None, ""):
        del flat["extras"]["tensorboard_dir"]
    if script is not None:
        flat["extras"]["script_sha256"] = script.sha256  # what was looked at is what shall run
    flat.setdefault("run_id", RUN_ID)
    if spec is not None:
        worker["module"] = spec.module
    document["tags"] = list(dict.fromkeys(document["tags"]))
    if config.run_name is None:
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(clock()))
        document["run_name"] = f"{worker['type']}-{flat['algo']}"[:180] + f"-{stamp}"
    return TrainRunConfig.model_validate_json(json.dumps(document))


def _derived_artifacts(extras: Mapping[str, Any], algorithm: AlgorithmSpec | None) -> dict[str, Any]:
    hints = {key: value for key, value in extras.items() if is_hint(key, value, algorithm)}
    given = extras.get("algo_params") or {}
    # `track` is the name the CleanRL scripts use for it.
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
    """Bounded, without secrets, each once."""
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
