"""What pydantic found wrong with a run config, in the words and with the hints a person needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from mosaic_wire.errors import Problem
from mosaic_wire.run_config import CpuRequest, GpuRequest, TrainRunConfig
from mosaic_wire.worker_spec import nearest
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gym_gui.logging_config.log_constants import LOG_UI_MAINWINDOW_INVALID_CONFIG
from gym_gui.services.trainer.validation.json_document import json_type

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
    "notes": "metadata.worker.config.extras.notes",
    "tensorboard_dir": "metadata.worker.config.extras.tensorboard_dir",
    "track_wandb": "metadata.worker.config.extras.track_wandb",
    "config": "metadata.worker.config",
    "worker": "metadata.worker",
    "algo": "metadata.worker.config.algo",
    "env_id": "metadata.worker.config.env_id",
    "seed": "metadata.worker.config.seed",
    "total_timesteps": "metadata.worker.config.total_timesteps",
    "extras": "metadata.worker.config.extras",
    "priority": "scheduling.priority",
    "retries": "scheduling.retries",
    "silence_s": "scheduling.silence_s",
    "cpus": "resources.cpus",
    "gpus": "resources.gpus",
    "memory_mb": "resources.memory_mb",
    "max_wallclock_minutes": "resources.max_wallclock_minutes",
    "name": "run_name",
}
"""Keys that people write one level off."""


def problems_of(error: ValidationError) -> list[Problem]:
    """Every problem of the schema, in the order of the document."""
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
        # Operators search for this code: the trainer rejected what stands under `artifacts`.
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
    """The model that describes this place of the document, if one does."""
    model: type[BaseModel] | None = TrainRunConfig
    for part in location:
        field = model.model_fields.get(str(part)) if model else None
        candidates = [] if field is None else [field.annotation, *get_args(field.annotation)]
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
    return model
