"""The flag `--env-kwargs`."""

from __future__ import annotations

from typing import Any

from mosaic_wire.env_kwargs import parse_env_kwargs

from cleanrl_worker.errors import BadInput


def read_env_kwargs(text: str) -> dict[str, Any]:
    """Return the arguments; raise BadInput with what is wrong."""
    try:
        return parse_env_kwargs(text)
    except ValueError as error:
        raise BadInput(f"--env-kwargs {error}") from error
