"""What `--describe` prints: capabilities, algorithms with their fields, and environments. Imports no torch."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cache

from mosaic_wire.worker_spec import WorkerSpec

from cleanrl_worker import __version__, get_worker_metadata
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from cleanrl_worker.requirement_sets.selection import environment_patterns

MODULE = "cleanrl_worker.cli"
NON_LEARNING = (
    "exp_name", "track", "wandb_project_name", "wandb_entity", "capture_video", "eval_episodes", "eval_freq",
    "eval_deterministic", "checkpoint_freq", "keep_checkpoints", "replay_storage", "save_model", "upload_model",
    "hf_entity",
)  # fmt: skip
"""Flags that leave training as it is to the bit; scripts have some of them, too"""


def worker_spec() -> WorkerSpec:
    """This worker as the catalog knows it."""
    return replace(spec_without_environments(), environments=usable_environments())


@cache
def spec_without_environments() -> WorkerSpec:
    """The same for the worker itself, which need not import gymnasium to know its algorithms."""
    return WorkerSpec(
        name="cleanrl",
        display_name="CleanRL Worker",
        version=__version__,
        capabilities=get_worker_metadata(),
        module=MODULE,
        algorithms=tuple(entry.spec() for entry in DEFAULT_ALGO_REGISTRY.values()),
        environment_patterns=environment_patterns(),
        runs_scripts=True,
        prepares=True,
        non_learning=NON_LEARNING,
        checks=True,
    )


@cache
def usable_environments() -> tuple[str, ...]:
    """Ids of gymnasium's registry; for some of them a requirement set has to be installed first."""
    import gymnasium

    logging.getLogger("gymnasium").setLevel(logging.ERROR)
    return tuple(name for name, spec in gymnasium.registry.items() if _is_usable(name, spec.entry_point))


def _is_usable(name: str, entry_point: object) -> bool:
    # phys2d and tabular need JAX; GymV… are stubs that only raise.
    return isinstance(entry_point, str) and not name.startswith(("phys2d/", "tabular/", "GymV"))
