"""Requirement sets: packages that only some runs need, installed as overlays on the base environment.

An overlay is a virtual environment that sees the base's packages through a .pth file and holds only what the base
lacks, so torch is never installed twice. `docs/workers/cleanrl/requirement_sets.md` has the whole story.

    sets = sets_needed(algorithm, env_id, extras)       what a run needs
    preflight(home, sets)                               is it there? (a millisecond; nothing is started)
    python = interpreter_for(home, sets)                the interpreter to start the training process with
    descriptors = hold(python)                          nobody removes it while these are open
    overlay.install(home, "atari", report=…)            what `python -m cleanrl_worker.tools.install_extras` does
"""

from __future__ import annotations

from cleanrl_worker.requirement_sets.locks import hold
from cleanrl_worker.requirement_sets.pins import parse_sets, set_names
from cleanrl_worker.requirement_sets.preflight import (
    Preflight,
    SetState,
    install_command,
    interpreter_for,
    preflight,
)
from cleanrl_worker.requirement_sets.selection import sets_needed, sets_of_environment

__all__ = [
    "Preflight",
    "SetState",
    "hold",
    "install_command",
    "interpreter_for",
    "parse_sets",
    "preflight",
    "set_names",
    "sets_needed",
    "sets_of_environment",
]
