"""Which algorithms there are: every name people know from CleanRL, and where ours is, if it is there already."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mosaic_wire.worker_spec import AlgorithmSpec, nearest

from cleanrl_worker.errors import BadInput
from cleanrl_worker.modes.table import OF_ALGORITHMS
from cleanrl_worker.schema import fields_of, literals_of

_ALGORITHMS = Path(__file__).with_name("algorithms")
_NOT_YET = (
    "MOSAIC's own implementation of the JAX names is not there yet; `--source upstream` runs CleanRL's script, and the "
    "name without _jax is ours"
)


@dataclass(frozen=True)
class AlgorithmEntry:
    """One name of the table; without a module it is known and cannot run."""

    name: str
    help: str
    action_spaces: tuple[str, ...]
    observation_spaces: tuple[str, ...]
    requirement_sets: tuple[str, ...] = ("base",)
    module: str = ""
    preset: str = "Args"
    """The dataclass of the file that has this name's flags and defaults"""
    pipeline: str = "plain"
    """What lies between the environment and the algorithm, see training/envs/pipelines.py"""

    @property
    def source(self) -> Path:
        return _ALGORITHMS / f"{self.module.rpartition('.')[2]}.py"

    def declarations(self) -> dict[str, Any]:
        """`RULES`, `MEMORY` and so on of the file; where it has them for a preset (`ATARI_MEMORY` beside `AtariArgs`),
        those count.
        """
        if not self.module:
            return {}
        literals = literals_of(self.source)
        prefix = self.preset.removesuffix("Args").upper() + "_"
        return {**literals, **{k.removeprefix(prefix): v for k, v in literals.items() if k.startswith(prefix)}}

    def spec(self) -> AlgorithmSpec:
        """What forms, `--help` and validation need to know about it."""
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


_DISCRETE, _CONTINUOUS = ("discrete",), ("continuous",)
_VECTOR, _IMAGE = ("vector",), ("image",)
_ATARI, _ENVPOOL, _PROCGEN, _JAX = ("atari",), ("envpool",), ("procgen",), ("jax",)

_ENTRIES = (
    AlgorithmEntry(
        "ppo", "Proximal policy optimisation", _DISCRETE, (*_VECTOR, *_IMAGE), module="cleanrl_worker.algorithms.ppo"
    ),
    AlgorithmEntry(
        "ppo_continuous_action",
        "PPO for continuous actions",
        _CONTINUOUS,
        _VECTOR,
        module="cleanrl_worker.algorithms.ppo",
        preset="ContinuousArgs",
    ),
    AlgorithmEntry(
        "ppo_atari",
        "PPO for Atari",
        _DISCRETE,
        _IMAGE,
        _ATARI,
        module="cleanrl_worker.algorithms.ppo",
        preset="AtariArgs",
        pipeline="atari",
    ),
    AlgorithmEntry(
        "ppo_atari_multigpu",
        "PPO for Atari over several processes",
        _DISCRETE,
        _IMAGE,
        _ATARI,
        module="cleanrl_worker.algorithms.ppo_atari_multigpu",
        pipeline="atari",
    ),
    AlgorithmEntry(
        "ppo_atari_lstm",
        "Recurrent PPO for Atari",
        _DISCRETE,
        _IMAGE,
        _ATARI,
        module="cleanrl_worker.algorithms.ppo_atari_lstm",
        pipeline="atari_single_frame",
    ),
    AlgorithmEntry(
        "ppo_atari_envpool",
        "PPO for Atari on envpool",
        _DISCRETE,
        _IMAGE,
        _ENVPOOL,
        module="cleanrl_worker.algorithms.ppo",
        preset="EnvpoolArgs",
        pipeline="atari",
    ),
    AlgorithmEntry("ppo_atari_envpool_xla_jax", "PPO in JAX", _DISCRETE, _IMAGE, (*_ENVPOOL, *_JAX)),
    AlgorithmEntry("ppo_atari_envpool_xla_jax_scan", "PPO in JAX, scanned", _DISCRETE, _IMAGE, (*_ENVPOOL, *_JAX)),
    AlgorithmEntry(
        "ppo_procgen",
        "PPO for Procgen",
        _DISCRETE,
        _IMAGE,
        _PROCGEN,
        module="cleanrl_worker.algorithms.ppo",
        preset="ProcgenArgs",
        pipeline="procgen",
    ),
    AlgorithmEntry(
        "ppo_rnd_envpool",
        "PPO with random network distillation",
        _DISCRETE,
        _IMAGE,
        _ENVPOOL,
        module="cleanrl_worker.algorithms.ppo_rnd",
        pipeline="rnd",
    ),
    AlgorithmEntry(
        "ppo_pettingzoo_ma_atari",
        "PPO for two-player Atari",
        _DISCRETE,
        _IMAGE,
        ("pettingzoo",),
        module="cleanrl_worker.algorithms.ppo_pettingzoo_ma_atari",
        pipeline="pettingzoo_atari",
    ),
    AlgorithmEntry(
        "ppg_procgen",
        "Phasic policy gradient",
        _DISCRETE,
        _IMAGE,
        _PROCGEN,
        module="cleanrl_worker.algorithms.ppg",
        pipeline="procgen",
    ),
    AlgorithmEntry("pqn", "Parallelised Q-network", _DISCRETE, _VECTOR, module="cleanrl_worker.algorithms.pqn"),
    AlgorithmEntry(
        "pqn_atari_envpool",
        "PQN for Atari",
        _DISCRETE,
        _IMAGE,
        _ENVPOOL,
        module="cleanrl_worker.algorithms.pqn",
        preset="AtariArgs",
        pipeline="atari",
    ),
    AlgorithmEntry(
        "pqn_atari_envpool_lstm",
        "Recurrent PQN for Atari",
        _DISCRETE,
        _IMAGE,
        _ENVPOOL,
        module="cleanrl_worker.algorithms.pqn_lstm",
        pipeline="atari_single_frame",
    ),
    AlgorithmEntry(
        "rpo_continuous_action",
        "Robust policy optimisation",
        _CONTINUOUS,
        _VECTOR,
        module="cleanrl_worker.algorithms.ppo",
        preset="RpoArgs",
    ),
    AlgorithmEntry("dqn", "Deep Q-network", _DISCRETE, _VECTOR, module="cleanrl_worker.algorithms.dqn"),
    AlgorithmEntry(
        "dqn_atari",
        "DQN for Atari",
        _DISCRETE,
        _IMAGE,
        _ATARI,
        module="cleanrl_worker.algorithms.dqn",
        preset="AtariArgs",
        pipeline="atari",
    ),
    AlgorithmEntry("dqn_jax", "DQN in JAX", _DISCRETE, _VECTOR, _JAX),
    AlgorithmEntry("dqn_atari_jax", "DQN for Atari in JAX", _DISCRETE, _IMAGE, (*_ATARI, *_JAX)),
    AlgorithmEntry(
        "rainbow_atari",
        "Rainbow DQN for Atari",
        _DISCRETE,
        _IMAGE,
        _ATARI,
        module="cleanrl_worker.algorithms.rainbow",
        pipeline="atari",
    ),
    AlgorithmEntry(
        "qdagger_dqn_atari_impalacnn",
        "QDagger from a teacher",
        _DISCRETE,
        _IMAGE,
        _ATARI,
        module="cleanrl_worker.algorithms.qdagger",
        pipeline="atari",
    ),
    AlgorithmEntry("qdagger_dqn_atari_jax_impalacnn", "QDagger in JAX", _DISCRETE, _IMAGE, (*_ATARI, *_JAX)),
    AlgorithmEntry("c51", "Categorical DQN", _DISCRETE, _VECTOR, module="cleanrl_worker.algorithms.c51"),
    AlgorithmEntry("c51_jax", "Categorical DQN in JAX", _DISCRETE, _VECTOR, _JAX),
    AlgorithmEntry(
        "c51_atari",
        "Categorical DQN for Atari",
        _DISCRETE,
        _IMAGE,
        _ATARI,
        module="cleanrl_worker.algorithms.c51",
        preset="AtariArgs",
        pipeline="atari",
    ),
    AlgorithmEntry("c51_atari_jax", "Categorical DQN for Atari in JAX", _DISCRETE, _IMAGE, (*_ATARI, *_JAX)),
    AlgorithmEntry(
        "ddpg_continuous_action",
        "Deep deterministic policy gradient",
        _CONTINUOUS,
        _VECTOR,
        module="cleanrl_worker.algorithms.ddpg",
    ),
    AlgorithmEntry("ddpg_continuous_action_jax", "DDPG in JAX", _CONTINUOUS, _VECTOR, _JAX),
    AlgorithmEntry(
        "td3_continuous_action",
        "Twin delayed DDPG",
        _CONTINUOUS,
        _VECTOR,
        module="cleanrl_worker.algorithms.td3",
    ),
    AlgorithmEntry("td3_continuous_action_jax", "TD3 in JAX", _CONTINUOUS, _VECTOR, _JAX),
    AlgorithmEntry(
        "sac_continuous_action",
        "Soft actor-critic",
        _CONTINUOUS,
        _VECTOR,
        module="cleanrl_worker.algorithms.sac",
    ),
    AlgorithmEntry(
        "sac_atari",
        "Discrete soft actor-critic for Atari",
        _DISCRETE,
        _IMAGE,
        _ATARI,
        module="cleanrl_worker.algorithms.sac_discrete",
        pipeline="atari",
    ),
)

DEFAULT_ALGO_REGISTRY: dict[str, AlgorithmEntry] = {entry.name: entry for entry in _ENTRIES}


def pipeline_of(name: str) -> str:
    """What lies between the environment and this algorithm."""
    entry = DEFAULT_ALGO_REGISTRY.get(name)
    return entry.pipeline if entry is not None else "plain"


def backend_of(name: str, asked: str) -> str:
    """How its environments are stepped: as asked, and of itself on envpool where the name says so."""
    entry = DEFAULT_ALGO_REGISTRY.get(name)
    return "envpool" if asked == "auto" and entry is not None and "envpool" in entry.requirement_sets else asked


def resolve(name: str) -> AlgorithmEntry:
    """Find a runnable algorithm, or say why there is none of that name."""
    entry = DEFAULT_ALGO_REGISTRY.get(name)
    if entry is None:
        hint = nearest(name, DEFAULT_ALGO_REGISTRY)
        raise BadInput(f"unknown algorithm {name!r}." + (f" Did you mean {hint!r}?" if hint else ""))
    if not entry.module:
        raise BadInput(f"{name!r} cannot run now: {_NOT_YET}")
    return entry
