"""Which requirement sets a run needs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import pytest
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from cleanrl_worker.requirement_sets import sets_needed
from mosaic_extras.errors import UnknownSet
from mosaic_extras.pins import set_names


@dataclass(frozen=True)
class Algorithm:
    requirement_sets: tuple[str, ...] = ("base",)


def test_asking_loads_neither_frameworks_nor_pip():
    program = """if True:
        import sys
        from pathlib import Path
        from mosaic_wire.paths import Home
        from mosaic_extras.overlays import check_sets
        from cleanrl_worker.requirement_sets import sets_needed
        check_sets(Home(Path("/nowhere")), sets_needed(None, "ALE/Pong-v5", {"track_wandb": True}))
        heavy = {"torch", "numpy", "gymnasium", "pip", "subprocess", "asyncio", "importlib.metadata"}
        assert not heavy & set(sys.modules), heavy & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize(
    ("algorithm", "env_id", "extras", "expected"),
    [
        ("ppo", "CartPole-v1", {}, ()),
        ("ppo", "LunarLander-v3", {}, ("box2d",)),
        ("ppo_atari", "BreakoutNoFrameskip-v4", {}, ("atari",)),
        ("ppo_atari_envpool", "Pong-v5", {}, ("envpool",)),
        ("ppo_procgen", "starpilot", {"track_wandb": True}, ("procgen", "wandb")),
        ("ppo_procgen", "starpilot", {"capture_video": True}, ("procgen",)),
        ("ppo_pettingzoo_ma_atari", "pong_v3", {}, ("pettingzoo",)),
        ("ppo", "CartPole-v1", {"algo_params": {"capture_video": True}}, ("video",)),
        ("ppo", "CartPole-v1", {"capture_video": False, "track_wandb": False}, ()),
        ("ppo", "CartPole-v1", {"optuna_db": "sqlite:///x.db", "requirements": "wandb"}, ("optuna", "wandb")),
        ("ppo", "CartPole-v1", {"requirements": ["dm-control", "base"]}, ("dm_control",)),
        ("ppo", "MiniGrid-Empty-5x5-v0", {"curriculum_schedule": "BABYAI_GOTO_CURRICULUM"}, ("minigrid",)),
        ("ppo", "CartPole-v1", {"curriculum_schedule": [{"env_id": "Hopper-v5"}]}, ("mujoco",)),
        (
            "ppo",
            "CartPole-v1",
            {"curriculum_schedule": {"method": "learning_progress", "stages": [{"env_id": "Hopper-v5"}]}},
            ("curriculum", "mujoco"),
        ),
        ("ppo", "CartPole-v1", {"source": "upstream", "track_wandb": True}, ("upstream",)),
        ("ppo_atari", "BreakoutNoFrameskip-v4", {"source": "upstream"}, ("upstream",)),
        ("dqn_jax", "CartPole-v1", {"source": "upstream"}, ("upstream_full",)),
        ("ppo_procgen", "starpilot", {"source": "upstream"}, ("upstream_full",)),
        ("ppo", "CartPole-v1", {"source": "upstream", "requirements": "upstream_full"}, ("upstream_full",)),
    ],
)
def test_a_run_gets_the_sets_its_parts_need(algorithm, env_id, extras, expected):
    assert sets_needed(DEFAULT_ALGO_REGISTRY[algorithm], env_id, extras) == expected


def test_a_script_of_ones_own_needs_what_its_environment_needs():
    assert sets_needed(None, "Hopper-v5", {}) == ("mujoco",)


def test_an_unknown_set_in_the_extras_is_refused():
    with pytest.raises(UnknownSet, match="'atari'"):
        sets_needed(Algorithm(), "CartPole-v1", {"requirements": ["atary"]})


@pytest.mark.parametrize("entry", DEFAULT_ALGO_REGISTRY.values(), ids=lambda entry: entry.name)
def test_the_sets_of_every_algorithm_exist(entry):
    assert set(entry.requirement_sets) <= set(set_names())
