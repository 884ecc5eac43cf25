"""interactive: somebody at the other end steps the environment, with or without a policy to help.

JSON lines over standard input and output (`--interactive`), or over a unix socket when the run has no terminal: a run
that the daemon started says in `run_started` where it listens.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mosaic_wire.errors import Problem
from mosaic_wire.paths import RunFolder, make_private_folder

from cleanrl_worker.modes.checkpoints import checkpoint_problems, find_checkpoint

_LONGEST_SOCKET_PATH = 100
"""The kernel takes 107 bytes"""


def problems(extras: Mapping[str, Any], *, algo: str) -> list[Problem]:
    """What is wrong with the policy, if one is given."""
    return checkpoint_problems(extras, algo=algo)


def socket_of(folder: RunFolder) -> Path:
    """Where the run listens; short enough for the kernel even when the run folder is not."""
    inside = folder.root / "interactive.sock"
    if len(os.fsencode(inside)) <= _LONGEST_SOCKET_PATH:
        return inside
    private = Path(tempfile.gettempdir()) / f"mosaic-{os.getuid()}"
    make_private_folder(private)
    return private / f"{hashlib.sha256(os.fsencode(folder.root)).hexdigest()[:16]}.sock"


def launcher_options(extras: Mapping[str, Any], place: Mapping[str, Any]) -> list[str]:
    """What the training process is told; `place` has a `socket`, or the descriptors `input` and `output`."""
    source = find_checkpoint(extras)
    return ["--play", json.dumps({"policy": str(source.path) if source is not None else None, **place})]
