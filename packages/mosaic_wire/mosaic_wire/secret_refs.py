"""What stands in a stored config where a secret was, and where a worker finds the secret itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from mosaic_wire import env
from mosaic_wire.errors import ConfigProblems, Problem

SECRET_REF = "secret_ref"
"""A config holds `{"secret_ref": name}` where a secret was; `secret_variable` tells the variable it is found in."""

_RESERVED_PREFIXES = ("MOSAIC_", "CLEANRL_", "PYTHON", "LD_", "DYLD_")
_RESERVED = frozenset({"PATH", "HOME", "SHELL", "IFS", env.CUDA_VISIBLE_DEVICES, *env.THREAD_COUNTS})


def is_secret_ref(value: Any) -> bool:
    """Tell whether this stands in a config in place of a secret."""
    return isinstance(value, Mapping) and set(value) == {SECRET_REF} and isinstance(value[SECRET_REF], str)


def secret_variable(name: str) -> str:
    """The environment variable that carries a secret to its worker: `wandb_api_key` becomes `WANDB_API_KEY`."""
    variable = re.sub(r"[^A-Z0-9_]", "_", name.upper())
    if variable.startswith(_RESERVED_PREFIXES) or variable in _RESERVED or not variable[:1].isalpha():
        # A config must not choose the run's own token or where Python finds its modules.
        variable = f"SECRET_{variable}"
    return variable


def with_secrets(document: Any, variables: Mapping[str, str]) -> Any:
    """Copy a config with its secrets in place of the references; ConfigProblems when one was not handed over."""
    missing = [name for name in _references(document) if secret_variable(name) not in variables]
    if missing:
        problems = [Problem(name, f"its secret is not in {secret_variable(name)}; submit it again") for name in missing]
        raise ConfigProblems("the worker config", problems)
    return _filled_in(document, variables)


def _references(value: Any) -> Iterator[str]:
    if is_secret_ref(value):
        yield value[SECRET_REF]
        return
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    for item in items:
        yield from _references(item)


def _filled_in(value: Any, variables: Mapping[str, str]) -> Any:
    if is_secret_ref(value):
        return variables[secret_variable(value[SECRET_REF])]
    if isinstance(value, Mapping):
        return {key: _filled_in(item, variables) for key, item in value.items()}
    return [_filled_in(item, variables) for item in value] if isinstance(value, list | tuple) else value
