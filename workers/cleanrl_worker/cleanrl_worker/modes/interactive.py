"""interactive: somebody at the other end steps the environment, with or without a policy to help.

JSON lines over standard input and output (`--interactive`), or over a unix socket when the run has no terminal: a run
that the daemon started says in `run_started` where it listens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mosaic_wire.errors import Problem

from cleanrl_worker.modes.checkpoints import checkpoint_problems, find_checkpoint


def problems(extras: Mapping[str, Any], *, algo: str) -> list[Problem]:
    """What is wrong with the policy, if one is given."""
    return checkpoint_problems(extras, algo=algo)


def launcher_options(extras: Mapping[str, Any], place: Mapping[str, Any]) -> list[str]:
    """What the training process is told; `place` has a `socket`, or the descriptors `input` and `output`."""
    source = find_checkpoint(extras)
    return ["--play", json.dumps({"policy": str(source.path) if source is not None else None, **place})]
