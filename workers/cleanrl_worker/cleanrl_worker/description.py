"""What `--describe` prints: capabilities, algorithms with their fields, and environments. Imports no torch."""

from __future__ import annotations

import importlib.util
import logging
from dataclasses import replace
from functools import cache

from mosaic_wire.worker_spec import WorkerSpec

from cleanrl_worker import __version__, get_worker_metadata
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY

MODULE = "cleanrl_worker.cli"

_PACKAGE_NEEDED = {"mujoco": "mujoco", "box2d": "Box2D"}
"""gymnasium.envs.<key> cannot be made without this package"""


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
        runs_scripts=True,
    )


@cache
def usable_environments() -> tuple[str, ...]:
    """Ids of gymnasium's registry that can be made here."""
    import gymnasium

    logging.getLogger("gymnasium").setLevel(logging.ERROR)
    return tuple(name for name, spec in gymnasium.registry.items() if _is_usable(name, spec.entry_point))


def _is_usable(name: str, entry_point: object) -> bool:
    # phys2d and tabular need JAX; GymV… and the old MuJoCo ids are stubs that only raise.
    if name.startswith(("phys2d/", "tabular/", "GymV")) or not isinstance(entry_point, str):
        return False
    family = entry_point.removeprefix("gymnasium.envs.").split(".")[0].partition(":")[0]
    needed = _PACKAGE_NEEDED.get(family)
    return needed is None or importlib.util.find_spec(needed) is not None
