"""Which sets a run needs, from its algorithm, its environment's id and its extras; nothing is imported for that."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from cleanrl_worker.requirement_sets.pins import BASE, LISTS, check_known, parse_sets
from cleanrl_worker.wandb_settings import is_tracked
from cleanrl_worker.wrappers.schedule import needs_syllabus, stage_environments


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_MUJOCO = _names(
    """
    Ant HalfCheetah Hopper Humanoid HumanoidStandup InvertedDoublePendulum InvertedPendulum Pusher Swimmer Walker2d
    """
) | {"Reacher"}  # codespell:ignore
_BOX2D = _names("LunarLander LunarLanderContinuous BipedalWalker BipedalWalkerHardcore CarRacing")
_PROCGEN = _names(
    """
    bigfish bossfight caveflyer chaser climber coinrun dodgeball fruitbot heist jumper leaper maze miner ninja
    plunder starpilot
    """
)
_ATARI = _names(
    """
    Adventure AirRaid Alien Amidar Assault Asterix Asteroids Atlantis BankHeist BattleZone BeamRider Berzerk Bowling
    Boxing Breakout Carnival Centipede ChopperCommand CrazyClimber Defender DemonAttack DoubleDunk ElevatorAction
    Enduro FishingDerby Freeway Frostbite Gopher Gravitar Hero IceHockey Jamesbond JourneyEscape Kaboom Kangaroo
    Krull KungFuMaster MontezumaRevenge MsPacman NameThisGame Phoenix Pitfall Pong Pooyan PrivateEye Qbert Riverraid
    RoadRunner Robotank Seaquest Skiing Solaris SpaceInvaders StarGunner Tennis TimePilot Tutankham UpNDown Venture
    VideoPinball WizardOfWor YarsRevenge Zaxxon
    """
)
_PREFIXES = {
    **{"ALE/": "atari", "MiniGrid-": "minigrid", "BabyAI-": "minigrid", "dm_control/": "dm_control"},
    **{"procgen": "procgen", "phys2d/": "jax", "tabular/": "jax", "envpool/": "envpool", "pettingzoo/": "pettingzoo"},
}
_VERSION = re.compile(r"-v\d+$")
_ATARI_VARIANT = re.compile(r"(-ram)?(NoFrameskip|Deterministic)?$")
_ZOO = re.compile(r"[a-z0-9_]+_v\d+$")  # pong_v3, knights_archers_zombies_v11

_BRING_ENVIRONMENTS = frozenset({"envpool", "procgen", "pettingzoo"})
"""An algorithm with one of these has its environments from there: its `Pong-v5` is not gymnasium's"""

_BRING_VIDEO = frozenset({"procgen"})
"""Sets that can record by themselves, and whose older packages do not go with those of `video`"""

_NOT_IN_LIGHT_UPSTREAM = frozenset({"envpool", "procgen", "pettingzoo", "jax", "dm_control"})


def environment_patterns() -> tuple[str, ...]:
    """Return shell patterns of the ids that the sets bring, to check an id before its set is installed."""
    return (
        *(f"{prefix}*" for prefix in _PREFIXES),
        *(f"{name}{variant}-v[0-9]*" for name in sorted(_ATARI) for variant in ("", "NoFrameskip", "Deterministic")),
        *sorted(_PROCGEN),
        "[a-z]*_v[0-9]*",  # PettingZoo's
    )


class NeedsSets(Protocol):
    """What `sets_needed` reads of an algorithm."""

    @property
    def requirement_sets(self) -> tuple[str, ...]: ...


def sets_of_environment(env_id: str) -> tuple[str, ...]:
    """Return the set that brings this environment; () for gymnasium's own and for unknown ones."""
    name = env_id.rpartition(":")[2]  # `module:Env-v0`
    for prefix, chosen in _PREFIXES.items():
        if name.startswith(prefix):
            return (chosen,)
    stem = _VERSION.sub("", name)
    if stem in _MUJOCO:
        return ("mujoco",)
    if stem in _BOX2D:
        return ("box2d",)
    if name in _PROCGEN:
        return ("procgen",)
    if stem != name and _ATARI_VARIANT.sub("", stem) in _ATARI:
        return ("atari",)
    return ("pettingzoo",) if _ZOO.fullmatch(name) else ()


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
