"""Which requirement sets a run needs, from its algorithm, its environment's id and its extras; nothing is imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from mosaic_extras.environments import sets_of_environment
from mosaic_extras.pins import BASE, LISTS, check_known, parse_sets

from cleanrl_worker.wandb_settings import is_tracked
from cleanrl_worker.wrappers.schedule import needs_syllabus, stage_environments

_BRING_ENVIRONMENTS = frozenset({"envpool", "procgen", "pettingzoo"})
"""An algorithm with one of these has its environments from there: its `Pong-v5` is not gymnasium's"""

_BRING_VIDEO = frozenset({"procgen"})
"""Sets that can record by themselves, and whose older packages do not go with those of `video`"""

_NOT_IN_LIGHT_UPSTREAM = frozenset({"envpool", "procgen", "pettingzoo", "jax", "dm_control"})


class NeedsSets(Protocol):
    """What `sets_needed` reads of an algorithm."""

    @property
    def requirement_sets(self) -> tuple[str, ...]: ...


def sets_needed(
    algorithm: NeedsSets | None, env_id: str, extras: Mapping[str, Any], *, lists: Path = LISTS
) -> tuple[str, ...]:
    """Return the sets of a run, sorted; raise UnknownSet when `extras.requirements` names an unknown one.

    `check_sets` and `interpreter_for` leave out those that the base satisfies already.
    """
    from_algorithm = set(algorithm.requirement_sets) if algorithm is not None else set()
    requested = set(_requested(extras))
    environments = [env_id, *stage_environments(extras.get("curriculum_schedule"))]
    if extras.get("source") == "upstream":
        # Old versions of everything, W&B and video among them: no other set goes with these.
        needs = from_algorithm | {name for env in environments for name in sets_of_environment(env)}
        chosen = {"upstream_full" if needs & _NOT_IN_LIGHT_UPSTREAM else "upstream"}
        if "upstream_full" in requested:
            chosen = set()
    else:
        backend = _parameters(extras).get("env_backend", "auto")
        if backend == "envpool":
            from_algorithm |= {"envpool"}
        elif backend != "auto":
            from_algorithm -= {"envpool"}  # another one was requested, so the environments are gymnasium's
        chosen = from_algorithm | _from_extras(extras)
        if not from_algorithm & _BRING_ENVIRONMENTS:
            chosen |= {name for env in environments for name in sets_of_environment(env)}
        if chosen & _BRING_VIDEO:
            chosen.discard("video")
    needed = tuple(sorted((chosen | requested) - {BASE}))
    check_known(needed, lists)
    return needed


def _requested(extras: Mapping[str, Any]) -> tuple[str, ...]:
    names = extras.get("requirements")
    return parse_sets(names) if isinstance(names, str | list | tuple) else ()


def _from_extras(extras: Mapping[str, Any]) -> set[str]:
    both = {**_parameters(extras), **extras}
    found = set()
    if is_tracked(extras):
        found.add("wandb")
    if any(_is_on(both.get(name)) for name in ("capture_video", "capture-video", "eval_capture_video")):
        found.add("video")
    if needs_syllabus(both.get("curriculum_schedule")):
        found.add("curriculum")
    if both.get("optuna_db"):
        found.add("optuna")
    return found


def _parameters(extras: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = extras.get("algo_params")
    return parameters if isinstance(parameters, Mapping) else {}


def _is_on(value: object) -> bool:
    return value is True or str(value).lower() == "true"
