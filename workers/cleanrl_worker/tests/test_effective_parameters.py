"""Every hyper-parameter with the value that training uses: defaults and computed ones among them."""

from __future__ import annotations

import importlib

import pytest
from cleanrl_worker.algorithms import ppo, ppo_atari_multigpu
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY, NON_LEARNING
from cleanrl_worker.scripts.runtime import HeadlineFollower
from cleanrl_worker.training.args import COMPUTED, effective_values
from cleanrl_worker.training.metrics import EventWriter
from mosaic_wire.paths import RunFolder

HERE = [entry for entry in DEFAULT_ALGO_REGISTRY.values() if entry.module]


def test_computed_ones_follow_from_the_others() -> None:
    values = effective_values(ppo.Args(num_envs=8, total_timesteps=10_000, batch_size=7))
    computed = ("batch_size", "minibatch_size", "num_iterations")
    assert [values[name] for name in computed] == [1024, 256, 9], "a value given for them is ignored"
    assert values["learning_rate"] == 2.5e-4
    assert list(values)[-1] in (*NON_LEARNING, "compile", "torch_threads"), "the algorithm's own come first"
    team = effective_values(ppo_atari_multigpu.Args(local_num_envs=2, world_size=3, num_steps=128))
    assert (team["num_envs"], team["local_batch_size"], team["batch_size"]) == (6, 256, 768)


@pytest.mark.parametrize("entry", HERE, ids=lambda entry: entry.name)
def test_no_algorithm_logs_a_computed_parameter_as_0(entry) -> None:
    args = getattr(importlib.import_module(entry.module), entry.preset)()
    values = effective_values(args)
    assert [name for name in COMPUTED if values.get(name) == 0] == []
    if "buffer_size" in values:
        assert values["batch_size"] == args.batch_size, "a flag of its own there"


def test_flags_that_leave_training_alone_are_flags() -> None:
    known = {field.name for entry in HERE for field in entry.spec().fields}
    assert set(NON_LEARNING) <= known


def test_what_a_script_says_of_its_hyperparameters_is_read_from_its_event_file(tmp_path) -> None:
    folder = RunFolder(tmp_path)
    follower = HeadlineFollower(folder)
    writer = EventWriter(folder.tensorboard / "CartPole-v1__mine__1__2")
    table = "|param|value|\n|-|-|\n|learning_rate|0.00025|\n|anneal_lr|True|\n|env_id|CartPole-v1|\n|target_kl|None|"
    writer.add_text("hyperparameters", table)
    writer.add_scalars({"charts/SPS": 5.0}, 10)
    writer.close()
    assert follower.has_updates(now=True)
    expected = {"learning_rate": 0.00025, "anneal_lr": True, "env_id": "CartPole-v1", "target_kl": None}
    assert follower.parameters == expected


def test_the_return_of_a_script_is_the_mean_of_its_last_hundred_episodes(tmp_path) -> None:
    """It was that of twenty, in the same column as every other run's."""
    folder = RunFolder(tmp_path)
    follower = HeadlineFollower(folder)
    writer = EventWriter(folder.tensorboard / "mine")
    for step in range(150):
        writer.add_scalars({"charts/episodic_return": float(step)}, step)
    writer.close()
    assert follower.has_updates(now=True)
    assert follower.newest.episodic_return == sum(range(50, 150)) / 100
