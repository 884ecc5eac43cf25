"""Environments that change while training goes on."""

from __future__ import annotations

import importlib.util

import gymnasium as gym
import numpy as np
import pytest
import torch
from cleanrl_worker.algorithms.ppo import Args, train
from cleanrl_worker.errors import BadInput
from cleanrl_worker.training.envs import SyncEnvs, make_single
from cleanrl_worker.training.envs.curriculum import BabyAITaskWrapper, CurriculumEnvs
from cleanrl_worker.training.run import RunContext
from cleanrl_worker.wrappers.schedule import parse_schedule
from safetensors.numpy import load_file

SHORT, LONG = "tiny_worlds:CorridorShort-v0", "tiny_worlds:CorridorLong-v0"
SCHEDULE = [{"env_id": SHORT, "steps": 256}, {"env_id": LONG, "condition": "episodes>=20"}, {"env_id": SHORT}]


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


class Quiet:
    """A channel without a listener."""

    def __init__(self):
        self.messages = []

    def send(self, kind, message, *, must_arrive=True):
        self.messages.append((kind, dict(message)))

    def poll(self, timeout_s=0):
        return []


def train_ppo(folder, *, schedule=SCHEDULE, resume=None, **flags):
    curriculum = parse_schedule(schedule) if schedule else None
    run = RunContext("ppo", folder, Quiet(), resume=resume, curriculum=curriculum)
    chosen = {"env_id": SHORT, "num_steps": 32, "total_timesteps": 2048, "seed": 5, "anneal_lr": False, **flags}
    train(Args(**chosen), run)
    run.writer.close()
    return run


def weights(folder, step):
    return load_file(folder / "checkpoints" / f"step-{step}" / "state.safetensors")


def test_a_grid_world_shows_what_its_agent_sees():
    env = make_single(SHORT)
    assert (env.observation_space.shape, env.observation_space.dtype) == ((7, 7, 3), np.uint8)
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs)


def test_the_wrapper_changes_environments_between_episodes():
    wrapper = BabyAITaskWrapper([SHORT, LONG])
    _, info = wrapper.reset(seed=3)
    assert (info["task"], wrapper.task) == (0, 0)
    first = wrapper.env
    _, info = wrapper.reset(seed=3, new_task=1)
    assert info["task"] == 1
    assert wrapper.unwrapped._length == 4
    wrapper.reset(new_task=0)
    assert wrapper.env is first  # environments are kept
    *_, info = wrapper.step(1)
    assert (info["task"], info["task_completion"]) == (0, 0.0)
    wrapper.close()


def test_a_seed_is_a_seed_and_never_a_task():
    wrapper = BabyAITaskWrapper([SHORT, LONG])
    wrapper.reset(seed=1)
    assert wrapper.task == 0


def test_stages_change_while_the_others_finish_their_episodes():
    reported = []
    envs = CurriculumEnvs(
        parse_schedule([{"env_id": SHORT, "steps": 4}, {"env_id": LONG}]), 2, on_stage=reported.append
    )
    envs.reset(0)
    envs._envs[0].unwrapped._at = 1  # one is about to arrive, the other has just begun
    envs._envs[1].unwrapped._at = 0
    envs.step(np.array([0, 0]))
    assert not reported
    step = envs.step(np.array([1, 0]))
    assert [fact["stage"] for fact in reported] == [1]
    assert (reported[0]["env_id"], reported[0]["step"], reported[0]["left"]["steps"]) == (LONG, 4, 4)
    while not step.ended[1]:
        assert envs._envs[1].task == 0
        step = envs.step(np.array([0, 1]))
    assert envs._envs[1].task == 1


def test_environments_continue_from_a_snapshot_to_the_bit():
    schedule, rng = parse_schedule(SCHEDULE), np.random.default_rng(0)
    envs = CurriculumEnvs(schedule, 3)
    envs.reset(7)
    actions = rng.integers(2, size=(300, 3))
    for t in range(140):  # in the middle of the second stage
        obs = envs.step(actions[t]).obs
    state, stages, again = envs.snapshot(), [], []
    fresh = CurriculumEnvs(schedule, 3, on_stage=again.append)
    envs._on_stage = stages.append
    np.testing.assert_array_equal(fresh.restore(state), obs)
    for t in range(140, 300):
        for ours, theirs in zip(envs.step(actions[t]), fresh.step(actions[t]), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert stages == again
    assert stages


def test_training_that_was_cut_in_a_stage_continues_to_the_bit(tmp_path):
    whole = train_ppo(tmp_path / "whole", checkpoint_freq=512, total_timesteps=1024)
    kinds = [message["stage"] for kind, message in whole._channel.messages if kind == "stage_changed"]
    assert kinds == [1, 2]
    part = train_ppo(tmp_path / "part", resume=tmp_path / "whole" / "checkpoints" / "step-512", total_timesteps=1024)
    loaded = next(message for kind, message in part._channel.messages if kind == "checkpoint_loaded")
    assert (loaded["environments"], loaded["weights_only"]) == ("exact", False)
    one, other = weights(tmp_path / "whole", 1024), weights(tmp_path / "part", 1024)
    assert [name for name in one if one[name].tobytes() != other[name].tobytes()] == []
    assert any(name.startswith("agent.network.convolutions") for name in one)  # the grid network by default


def test_flat_observations_get_the_shared_trunk(tmp_path):
    schedule = [{"env_id": "CartPole-v0", "steps": 128}, {"env_id": "CartPole-v1"}]
    with pytest.warns(DeprecationWarning, match="out of date"):
        train_ppo(tmp_path, schedule=schedule, env_id="CartPole-v1", total_timesteps=256)
    assert any(name.startswith("agent.network.0") for name in weights(tmp_path, 256))


@pytest.mark.slow  # a curriculum goes through the daemon in every CI
def test_the_grid_network_learns_the_corridor(tmp_path):
    run = RunContext("ppo", tmp_path, Quiet())
    args = Args(env_id=LONG, total_timesteps=3072, num_envs=8, num_steps=32, learning_rate=1e-3, eval_episodes=10)
    evaluation = train(args, run)
    run.writer.close()
    assert evaluation.mean_return > 0.75


# -- what does not go together


def test_stages_with_other_spaces_are_refused():
    with pytest.raises(BadInput, match=r"OtherShape-v0 has actions Discrete\(5, start=0\)"):
        CurriculumEnvs(parse_schedule([{"env_id": SHORT}, {"env_id": "tiny_worlds:OtherShape-v0"}]), 1)


def test_an_unknown_environment_of_a_late_stage_is_found_at_the_start():
    with pytest.raises(BadInput, match="Nowhere-v0"):
        CurriculumEnvs(parse_schedule([{"env_id": SHORT}, {"env_id": "tiny_worlds:Nowhere-v0"}]), 1)


def test_a_checkpoint_of_another_curriculum_is_refused(tmp_path):
    train_ppo(tmp_path / "one", total_timesteps=512)
    checkpoint = tmp_path / "one" / "checkpoints" / "step-512"
    with pytest.raises(BadInput, match="has been through"):
        train_ppo(tmp_path / "two", schedule=[{"env_id": LONG}, {"env_id": SHORT}], resume=checkpoint)
    with pytest.raises(BadInput, match="is of a curriculum and this run has no curriculum_schedule"):
        train_ppo(tmp_path / "three", schedule=None, resume=checkpoint)
    longer = [*SCHEDULE, {"env_id": LONG}]  # more stages at the end are welcome
    train_ppo(tmp_path / "four", schedule=longer, resume=checkpoint, total_timesteps=640)


def test_a_checkpoint_without_a_curriculum_does_not_say_in_which_stage_to_continue(tmp_path):
    train_ppo(tmp_path / "one", schedule=None, total_timesteps=256)
    with pytest.raises(BadInput, match="not of a curriculum"):
        train_ppo(tmp_path / "two", resume=tmp_path / "one" / "checkpoints" / "step-256")


def test_without_syllabus_its_methods_are_refused_with_the_command_that_installs_it():
    if importlib.util.find_spec("syllabus") is not None:
        pytest.skip("Syllabus is installed here")
    with pytest.raises(BadInput, match="mosaic extras install curriculum"):
        CurriculumEnvs(parse_schedule({"method": "learning_progress", "stages": SCHEDULE}), 1)


def test_plain_environments_do_not_take_a_curriculum_s_state():
    envs = CurriculumEnvs(parse_schedule(SCHEDULE), 2)
    envs.reset(0)
    assert SyncEnvs(SHORT, 2).restore(envs.snapshot()) is None
    assert isinstance(envs.observation_space, gym.spaces.Box)
