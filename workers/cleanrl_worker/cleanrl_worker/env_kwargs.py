"""`--env-kwargs`: arguments of the environment, a JSON object as text."""

from __future__ import annotations

import json
from typing import Any

from cleanrl_worker.errors import BadInput


def read_env_kwargs(text: str) -> dict[str, Any]:
    """Parse it; raise BadInput with what is wrong."""
    try:
        value = json.loads(text or "{}")
    except ValueError as error:
        raise BadInput(f"--env-kwargs is not JSON: {error}; write e.g. '{{\"is_slippery\": false}}'") from error
    if not isinstance(value, dict):
        raise BadInput(f"--env-kwargs must be a JSON object, not {type(value).__name__}")
    return value
