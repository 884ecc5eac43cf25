"""The CleanRL worker: analytics-only, with a dry run, help pages, requirement sets and Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mosaic_wire.capabilities import Lane
from mosaic_wire.paths import Home
from mosaic_wire.worker_spec import AlgorithmSpec, WorkerSpec

from gym_gui.Algo_docs.cleanrl_worker import PAGES, help_for
from gym_gui.ui.presenters.workers.base import WorkerPresenter
from gym_gui.ui.presenters.workers.order import TrainOrder
from gym_gui.ui.workers.environment_families import family_of
from gym_gui.ui.workers.words import PRESENTERS, QT_TRANSLATE_NOOP
from gym_gui.validations.validation_cleanrl_worker_form import run_cleanrl_dry_run

_BRING_ENVIRONMENTS = frozenset({"envpool", "procgen", "pettingzoo"})
"""An algorithm on one of these takes its environments from there"""


PRESETS = {
    QT_TRANSLATE_NOOP(PRESENTERS, "CartPole with PPO (a minute)"): TrainOrder(
        algo="ppo", env_id="CartPole-v1", total_timesteps=100_000
    ),
    QT_TRANSLATE_NOOP(PRESENTERS, "CartPole with PPO, five seeds"): TrainOrder(
        algo="ppo", env_id="CartPole-v1", total_timesteps=100_000, seeds=(1, 2, 3, 4, 5)
    ),
    QT_TRANSLATE_NOOP(PRESENTERS, "CartPole with DQN"): TrainOrder(
        algo="dqn", env_id="CartPole-v1", total_timesteps=500_000
    ),
    QT_TRANSLATE_NOOP(PRESENTERS, "Pendulum with SAC"): TrainOrder(
        algo="sac_continuous_action", env_id="Pendulum-v1", total_timesteps=30_000
    ),
    QT_TRANSLATE_NOOP(PRESENTERS, "LunarLander with PPO"): TrainOrder(
        algo="ppo",
        env_id="LunarLander-v3",
        total_timesteps=1_000_000,
        parameters={"num_envs": 16, "num_steps": 128, "gamma": 0.999},
    ),
    QT_TRANSLATE_NOOP(PRESENTERS, "HalfCheetah with TD3 (MuJoCo)"): TrainOrder(
        algo="td3_continuous_action", env_id="HalfCheetah-v5", total_timesteps=1_000_000
    ),
    QT_TRANSLATE_NOOP(PRESENTERS, "Breakout with PPO (Atari)"): TrainOrder(
        algo="ppo_atari", env_id="BreakoutNoFrameskip-v4", total_timesteps=10_000_000, cpus=2
    ),
}
"""Where people begin; what they need beyond the base, the form says"""


class CleanRlWorkerPresenter(WorkerPresenter):
    name = "cleanrl"
    lane = Lane.ANALYTICS
    has_dry_run = True

    def help_page(self, algorithm: AlgorithmSpec) -> str:
        return help_for(algorithm) if algorithm.name in PAGES else super().help_page(algorithm)

    def dry_run(self, config: Mapping[str, Any], home: Home) -> tuple[bool, str]:
        return run_cleanrl_dry_run(config, home=home)

    def presets(self) -> dict[str, TrainOrder]:
        return PRESETS

    def extras_program(self, spec: WorkerSpec) -> tuple[str, ...]:
        if not spec.argv:
            return ()
        return (spec.argv[0], "-m", f"{spec.module.partition('.')[0]}.tools.install_extras")

    def requirement_sets(self, algorithm: AlgorithmSpec | None, env_id: str, order: TrainOrder) -> tuple[str, ...]:
        needed = {name for name in (algorithm.requirement_sets if algorithm is not None else ()) if name != "base"}
        brought = family_of(env_id).requirement_set
        if brought and not needed & _BRING_ENVIRONMENTS:
            needed.add(brought)
        if order.wandb.enabled:
            needed.add("wandb")
        if order.parameters.get("capture_video") is True:
            needed.add("video")
        return tuple(sorted(needed))
