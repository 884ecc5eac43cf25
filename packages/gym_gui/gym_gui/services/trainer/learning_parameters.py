"""What tells the group of a run from others: parameters that may change what is learned and are not the defaults."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from mosaic_wire.worker_config import EXTRAS_THAT_ARE_NOT_PARAMETERS
from mosaic_wire.worker_spec import WorkerSpec


def learning_parameters(spec: WorkerSpec, algo: str, extras: Mapping[str, Any]) -> dict[str, Any]:
    """Effective values: one that was given and equals the default is left out, as one that was not given is.

    The defaults of a script are not looked up: its file may have changed since.
    """
    algorithm = None if extras.get("script_path") else spec.algorithm(algo)
    fields = {field.name: field for field in algorithm.fields} if algorithm is not None else {}
    given = {name: extras[name] for name in extras.keys() & fields.keys() - EXTRAS_THAT_ARE_NOT_PARAMETERS}
    given |= {"env_kwargs": extras["env_kwargs"]} if extras.get("env_kwargs") else {}
    given |= {"arguments": shlex.join(extras["script_arguments"])} if extras.get("script_arguments") else {}
    if isinstance(own := extras.get("algo_params"), Mapping):
        given |= {str(name).replace("-", "_"): value for name, value in own.items()}
    return {
        name: _environment_arguments(value) if name == "env_kwargs" else value
        for name, value in given.items()
        if name not in spec.non_learning and not (name in fields and _is_same(value, fields[name].default))
    }


def default_seed(spec: WorkerSpec, algo: str, extras: Mapping[str, Any]) -> int | None:
    """The seed of a run that was given none, where its algorithm has one then."""
    algorithm = None if extras.get("script_path") else spec.algorithm(algo)
    field = algorithm.field("seed") if algorithm is not None else None
    return field.default if field is not None and isinstance(field.default, int) else None


def _is_same(value: Any, default: Any) -> bool:
    return bool(value == default) and isinstance(value, bool) == isinstance(default, bool)


def _environment_arguments(value: Any) -> Any:
    """They are given as an object, or as its JSON."""
    if isinstance(value, str):
        with suppress(ValueError):
            return json.loads(value)
    return value
