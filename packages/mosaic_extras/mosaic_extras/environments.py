"""The requirement set of an environment, found by its id without an import."""

from __future__ import annotations

import re


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


def environment_patterns() -> tuple[str, ...]:
    """Return shell patterns of the ids that the sets bring, to check an id before its set is installed."""
    return (
        *(f"{prefix}*" for prefix in _PREFIXES),
        *(f"{name}{variant}-v[0-9]*" for name in sorted(_ATARI) for variant in ("", "NoFrameskip", "Deterministic")),
        *sorted(_PROCGEN),
        "[a-z]*_v[0-9]*",  # PettingZoo's
    )


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
