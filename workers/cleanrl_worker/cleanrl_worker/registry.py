"""The algorithms of this worker, under CleanRL's names, and the worker spec that `--describe` prints."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from mosaic_extras.environments import environment_patterns
from mosaic_wire.worker_spec import AlgorithmSpec, WorkerSpec, nearest

from cleanrl_worker import __version__, get_worker_metadata
from cleanrl_worker.declarations import DECLARATIONS, Declaration
from cleanrl_worker.errors import BadInput
from cleanrl_worker.modes import OF_ALGORITHMS
from cleanrl_worker.schema import fields_of

MODULE = "cleanrl_worker.cli"
NON_LEARNING = (
    *("exp_name", "track", "wandb_project_name", "wandb_entity", "capture_video"),
    *("eval_episodes", "eval_freq", "eval_deterministic", "checkpoint_freq", "keep_checkpoints", "replay_storage"),
    *("save_model", "upload_model", "hf_entity"),
)
"""Flags that leave training unchanged to the bit; scripts have some of them, too"""

_ALGORITHMS = Path(__file__).with_name("algorithms")
_NOT_YET = (
    "MOSAIC's own implementation of the JAX names is not there yet; `--source upstream` runs CleanRL's script, and the "
    "name without _jax is ours"
)


@dataclass(frozen=True)
class AlgorithmEntry:
    """An algorithm by name; without a module it is known and cannot run."""

    name: str
    help: str
    action_spaces: tuple[str, ...]
    observation_spaces: tuple[str, ...]
    requirement_sets: tuple[str, ...] = ("base",)
    module: str = ""
    preset: str = "Args"
    """The dataclass of the file that has this name's flags and defaults"""
    pipeline: str = "plain"
    """What lies between the environment and the algorithm, see training/envs/construction.py"""

    @property
    def source(self) -> Path:
        """Return the algorithm's file."""
        return _ALGORITHMS / f"{self.module.rpartition('.')[2]}.py"

    @property
    def declaration(self) -> Declaration:
        """What it needs: rules between its flags, memory, checkpoints."""
        return DECLARATIONS[self.name] if self.module else Declaration()

    def spec(self) -> AlgorithmSpec:
        """Return what forms, `--help` and validation need to know about it."""
        return AlgorithmSpec(
            name=self.name,
            help=self.help,
            fields=fields_of(self.source, self.preset) if self.module else (),
            action_spaces=self.action_spaces,
            observation_spaces=self.observation_spaces,
            requirement_sets=self.requirement_sets,
            modes=OF_ALGORITHMS if self.module else (),
            unavailable="" if self.module else _NOT_YET,
        )


class _Kind(NamedTuple):
    """What algorithms have in common; a field may hold several values, separated by spaces."""

    actions: str
    observations: str
    sets: str = "base"
    pipeline: str = "plain"


_ANY_DISCRETE = _Kind("discrete", "vector image")
_DISCRETE = _Kind("discrete", "vector")
_CONTINUOUS = _Kind("continuous", "vector")
_ATARI = _Kind("discrete", "image", "atari", "atari")
_ATARI_FRAMES = _Kind("discrete", "image", "atari", "atari_single_frame")
_ENVPOOL = _Kind("discrete", "image", "envpool", "atari")
_ENVPOOL_FRAMES = _Kind("discrete", "image", "envpool", "atari_single_frame")
_ENVPOOL_RND = _Kind("discrete", "image", "envpool", "rnd")
_PROCGEN = _Kind("discrete", "image", "procgen", "procgen")
_TWO_PLAYERS = _Kind("discrete", "image", "pettingzoo", "pettingzoo_atari")
_JAX = _Kind("discrete", "vector", "jax")
_JAX_CONTINUOUS = _Kind("continuous", "vector", "jax")
_JAX_ATARI = _Kind("discrete", "image", "atari jax")
_JAX_ENVPOOL = _Kind("discrete", "image", "envpool jax")


def _entry(name: str, file: str, kind: _Kind, help: str, preset: str = "Args") -> AlgorithmEntry:
    """Return a row of the table; `file` lies below `algorithms/`, and is empty when there is none yet."""
    actions, observations, sets = (tuple(field.split()) for field in kind[:3])
    module = f"cleanrl_worker.algorithms.{file}" if file else ""
    return AlgorithmEntry(name, help, actions, observations, sets, module, preset, kind.pipeline)


_ENTRIES = (
    _entry("ppo", "ppo", _ANY_DISCRETE, "Proximal policy optimization"),
    _entry("ppo_continuous_action", "ppo", _CONTINUOUS, "PPO for continuous actions", "ContinuousArgs"),
    _entry("ppo_atari", "ppo", _ATARI, "PPO for Atari", "AtariArgs"),
    _entry("ppo_atari_multigpu", "ppo_atari_multigpu", _ATARI, "PPO for Atari over several processes"),
    _entry("ppo_atari_lstm", "ppo_atari_lstm", _ATARI_FRAMES, "Recurrent PPO for Atari"),
    _entry("ppo_atari_envpool", "ppo", _ENVPOOL, "PPO for Atari on envpool", "EnvpoolArgs"),
    _entry("ppo_atari_envpool_xla_jax", "", _JAX_ENVPOOL, "PPO in JAX"),
    _entry("ppo_atari_envpool_xla_jax_scan", "", _JAX_ENVPOOL, "PPO in JAX, scanned"),
    _entry("ppo_procgen", "ppo", _PROCGEN, "PPO for Procgen", "ProcgenArgs"),
    _entry("ppo_rnd_envpool", "ppo_rnd", _ENVPOOL_RND, "PPO with random network distillation"),
    _entry("ppo_pettingzoo_ma_atari", "ppo_pettingzoo_ma_atari", _TWO_PLAYERS, "PPO for two-player Atari"),
    _entry("ppg_procgen", "ppg", _PROCGEN, "Phasic policy gradient"),
    _entry("pqn", "pqn", _DISCRETE, "Parallelized Q-network"),
    _entry("pqn_atari_envpool", "pqn", _ENVPOOL, "PQN for Atari", "AtariArgs"),
    _entry("pqn_atari_envpool_lstm", "pqn_lstm", _ENVPOOL_FRAMES, "Recurrent PQN for Atari"),
    _entry("rpo_continuous_action", "ppo", _CONTINUOUS, "Robust policy optimization", "RpoArgs"),
    _entry("dqn", "dqn", _DISCRETE, "Deep Q-network"),
    _entry("dqn_atari", "dqn", _ATARI, "DQN for Atari", "AtariArgs"),
    _entry("dqn_jax", "", _JAX, "DQN in JAX"),
    _entry("dqn_atari_jax", "", _JAX_ATARI, "DQN for Atari in JAX"),
    _entry("rainbow_atari", "rainbow", _ATARI, "Rainbow DQN for Atari"),
    _entry("qdagger_dqn_atari_impalacnn", "qdagger", _ATARI, "QDagger from a teacher"),
    _entry("qdagger_dqn_atari_jax_impalacnn", "", _JAX_ATARI, "QDagger in JAX"),
    _entry("c51", "c51", _DISCRETE, "Categorical DQN"),
    _entry("c51_jax", "", _JAX, "Categorical DQN in JAX"),
    _entry("c51_atari", "c51", _ATARI, "Categorical DQN for Atari", "AtariArgs"),
    _entry("c51_atari_jax", "", _JAX_ATARI, "Categorical DQN for Atari in JAX"),
    _entry("ddpg_continuous_action", "ddpg", _CONTINUOUS, "Deep deterministic policy gradient"),
    _entry("ddpg_continuous_action_jax", "", _JAX_CONTINUOUS, "DDPG in JAX"),
    _entry("td3_continuous_action", "td3", _CONTINUOUS, "Twin delayed DDPG"),
    _entry("td3_continuous_action_jax", "", _JAX_CONTINUOUS, "TD3 in JAX"),
    _entry("sac_continuous_action", "sac", _CONTINUOUS, "Soft actor-critic"),
    _entry("sac_atari", "sac_discrete", _ATARI, "Discrete soft actor-critic for Atari"),
)

DEFAULT_ALGO_REGISTRY: dict[str, AlgorithmEntry] = {entry.name: entry for entry in _ENTRIES}


def pipeline_of(name: str) -> str:
    """Return the name of the pipeline between the environment and this algorithm."""
    entry = DEFAULT_ALGO_REGISTRY.get(name)
    return entry.pipeline if entry is not None else "plain"


def backend_of(name: str, requested: str) -> str:
    """Return how its environments are stepped: as requested, and by default on envpool where the name has it."""
    entry = DEFAULT_ALGO_REGISTRY.get(name)
    uses_envpool = entry is not None and "envpool" in entry.requirement_sets
    return "envpool" if requested == "auto" and uses_envpool else requested


def resolve(name: str) -> AlgorithmEntry:
    """Return the runnable algorithm of this name, or raise BadInput with the reason there is none."""
    entry = DEFAULT_ALGO_REGISTRY.get(name)
    if entry is None:
        hint = nearest(name, DEFAULT_ALGO_REGISTRY)
        raise BadInput(f"unknown algorithm {name!r}." + (f" Did you mean {hint!r}?" if hint else ""))
    if not entry.module:
        raise BadInput(f"{name!r} cannot run now: {_NOT_YET}")
    return entry


def worker_spec() -> WorkerSpec:
    """Return this worker as the catalog knows it."""
    return replace(spec_without_environments(), environments=usable_environments())


@cache
def spec_without_environments() -> WorkerSpec:
    """Return the same for the worker itself, which need not import gymnasium to know its algorithms."""
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
    """Return ids of gymnasium's registry; for some of them a requirement set has to be installed first."""
    import gymnasium

    logging.getLogger("gymnasium").setLevel(logging.ERROR)
    return tuple(
        name
        for name, spec in gymnasium.registry.items()
        # phys2d and tabular need JAX; GymV… are stubs that only raise.
        if isinstance(spec.entry_point, str) and not name.startswith(("phys2d/", "tabular/", "GymV"))
    )
