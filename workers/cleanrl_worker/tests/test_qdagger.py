"""QDagger: its arithmetic against plain loops, its teachers, its three phases, the same each time and when resumed."""

from __future__ import annotations

import hashlib
import math
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from cleanrl_worker.algorithms import dqn, qdagger
from cleanrl_worker.algorithms.qdagger import (
    Args,
    Batch,
    Phase,
    QDaggerLearner,
    QNetwork,
    distill_coefficient,
    make_policy,
    qdagger_losses,
    train,
)
from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.declarations import declaration_of
from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.modes.checkpoints import file_problems
from cleanrl_worker.preflight import check_run
from cleanrl_worker.tools.record_trajectories import record
from cleanrl_worker.training.checkpointing import TrainingState, save_state
from cleanrl_worker.training.envs import SyncEnvs
from cleanrl_worker.training.replay import make_replay
from cleanrl_worker.training.run import RunContext
from cleanrl_worker.training.teacher import TeacherNetwork, Trajectories, load_teacher
from mosaic_wire.event_files import EventFolderReader
from mosaic_wire.ids import new_run_id
from mosaic_wire.paths import RunFolder

WORLD = "picture_worlds:Quadrants-v0"
ALGO = "qdagger_on_pictures"
"""No name of the registry, so nothing of Atari lies between the world and the algorithm"""
NAME = "qdagger_dqn_atari_impalacnn"
SHORT = {
    "env_id": WORLD,
    "total_timesteps": 60,
    "buffer_size": 100,
    "learning_starts": 20,
    "train_frequency": 10,
    "batch_size": 4,
    "target_network_frequency": 10,
    "learning_rate": 5e-4,
    "gamma": 0.5,
    "teacher_steps": 60,
    "offline_steps": 6,
    "teacher_eval_episodes": 2,
}


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    torch.set_num_threads(1)


class Quiet:
    """A channel without a listener."""

    def __init__(self):
        self.messages = []

    def send(self, kind, message, *, must_arrive=True):
        self.messages.append((kind, message))

    def poll(self, timeout_s=0):
        return []


class KnowsBest:
    """A policy for the world of quadrants."""

    def act(self, obs, rngs):
        corners = obs[:, 3, [0, 0, 60, 60], [0, 60, 0, 60]]
        return corners.argmax(axis=1)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory) -> Path:
    """A checkpoint of dqn_atari that has learned the world: fitted to what a wise policy does."""
    torch.manual_seed(0)
    network = dqn.AtariQNetwork(4, 4)
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-4)
    env = gym.make(WORLD)
    seen = [env.reset(seed=0)[0]]
    while len(seen) < 64:
        obs, _, _, over, _ = env.step(0)
        seen.append(env.reset()[0] if over else obs)
    obs = np.stack(seen)
    wanted = torch.nn.functional.one_hot(torch.from_numpy(KnowsBest().act(obs, None)), 4).float()
    for _ in range(25):
        loss = (network(torch.from_numpy(obs)) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return as_checkpoint(network, tmp_path_factory.mktemp("teacher"))


def as_checkpoint(network: dqn.AtariQNetwork, folder: Path) -> Path:
    """Cheaper to read than a .cleanrl_model, which is done in a process of its own."""
    arrays = {f"agent.{name}": tensor.numpy() for name, tensor in network.state_dict().items()}
    entry = save_state(RunFolder(folder), "dqn_atari", TrainingState(0, arrays, {}), "last")
    return folder / entry.path


@pytest.fixture(scope="module")
def trajectories(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("expert") / "expert.safetensors"
    record(KnowsBest(), SyncEnvs(WORLD, 1), games=8, seed=3).write(path)
    return path


def run_qdagger(folder: Path, *, algo: str = ALGO, resume: Path | None = None, **flags):
    folder.mkdir(exist_ok=True)
    run = RunContext(algo, folder, Quiet(), resume=resume)
    evaluation = train(Args(**flags), run)
    run.writer.close()
    return run, evaluation


def digest(folder: Path) -> str:
    """Of all weights in the model a run has left."""
    saved = torch.load(folder / f"{NAME}.cleanrl_model", weights_only=True)
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in saved.values())).hexdigest()


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """Every point of every chart, but those that depend on the clock."""
    points: dict[str, dict[int, float]] = {}
    for batch in EventFolderReader(folder / "tensorboard").read():
        for tag, column in batch.columns.items():
            if tag != "charts/SPS":
                points.setdefault(tag, {}).update(zip(column.steps, column.values, strict=True))
    return points


def images(count: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(256, size=(count, 4, 84, 84), dtype=np.uint8))


# -- arithmetic


@pytest.mark.parametrize("elsewhere", [False, True])
def test_losses_equal_plain_arithmetic(elsewhere):
    torch.manual_seed(0)
    student, target = QNetwork(4, 3), QNetwork(4, 3)
    rng = np.random.default_rng(1)
    count, gamma, temperature, coefficient = 4, 0.9, 0.5, 0.7
    actions, rewards = rng.integers(3, size=count), rng.normal(size=count).astype(np.float32)
    terminated = np.array([0, 1, 0, 0], dtype=np.float32)
    guidance = rng.dirichlet(np.ones(3), size=count)
    obs, next_obs, other = images(count, 1), images(count, 2), images(count, 3)
    taken, paid, over = (torch.from_numpy(array) for array in (actions, rewards, terminated))
    losses = qdagger_losses(
        student,
        target,
        Batch(obs, taken, paid, next_obs, over),
        other if elsewhere else None,
        torch.from_numpy(guidance.astype(np.float32)),
        torch.tensor(coefficient),
        gamma,
        temperature,
    )
    with torch.no_grad():
        values, following = student(obs).double().numpy(), target(next_obs).double().numpy()
        said = student(other if elsewhere else obs).double().numpy()
    td = distill = 0.0
    for i in range(count):
        wanted = rewards[i] + (0.0 if terminated[i] else gamma * max(following[i]))
        td += (values[i, actions[i]] - wanted) ** 2 / count
        weights = [math.exp(value / temperature) for value in said[i]]
        distill += sum(p * math.log(p / (w / sum(weights))) for p, w in zip(guidance[i], weights, strict=True)) / count
    assert losses.td.item() == pytest.approx(td, rel=1e-4)
    assert losses.distill.item() == pytest.approx(distill, rel=1e-3)
    assert losses.total.item() == pytest.approx(td + coefficient * distill, rel=1e-3)
    losses.total.backward()
    assert all(parameter.grad is None for parameter in target.parameters())


@pytest.mark.parametrize(
    ("recent", "teacher_return", "expected"),
    [
        ([5.0] * 9, 10.0, 1.0),  # too few to judge by
        ([5.0] * 10, 10.0, 0.5),
        ([0.0] * 10, 10.0, 1.0),
        ([12.0] * 10, 10.0, 0.0),
        ([-21.0] * 10, 20.0, 2.05),
        ([-21.0] * 10, -5.0, 1.0),  # a ratio of negative returns would say the opposite
        ([-1.0] * 10, -5.0, 0.0),
        ([0.0] * 10, 0.0, 0.0),
    ],
)
def test_the_teacher_counts_less_as_the_student_comes_up_to_it(recent, teacher_return, expected):
    assert distill_coefficient(recent, teacher_return) == pytest.approx(expected)


# -- trajectories


def test_recorded_steps_come_out_as_they_were_played(trajectories):
    envs, policy = SyncEnvs("picture_worlds:FatalQuadrants-v0", 1), KnowsBest()
    recorded = record(policy, envs, games=12, seed=5, epsilon=0.1)
    again, rng = SyncEnvs("picture_worlds:FatalQuadrants-v0", 1), np.random.Generator(np.random.PCG64(5))
    obs = again.reset(5)
    ends = 0
    for played in recorded.steps():
        actions = policy.act(obs, None)
        if rng.random() < 0.1:
            actions = rng.integers(4, size=1)
        step = again.step(actions)
        np.testing.assert_array_equal(played.obs, obs)
        np.testing.assert_array_equal(played.next_obs, step.final_obs)
        assert (played.actions[0], played.rewards[0]) == (actions[0], step.rewards[0])
        assert bool(played.terminated[0]) == bool(step.terminated[0])
        ends += int(step.ended[0])
        obs = step.obs
    assert ends == len(recorded.lengths) == len(recorded.returns) == 12
    assert 0 < recorded.terminated.sum() < 12
    buffer = recorded.as_replay(envs.observation_space, envs.action_space)
    np.testing.assert_array_equal(
        buffer.obs_at(np.arange(3)),
        np.concatenate([step.obs for step, _ in zip(recorded.steps(), range(3), strict=False)]),
    )
    assert len(buffer) == len(recorded)


def test_a_file_holds_what_was_written(trajectories, tmp_path):
    env = gym.make(WORLD)
    read = Trajectories.read(trajectories, env.observation_space, env.action_space)
    assert (len(read), read.stack, read.returns.tolist()) == (64, 4, [8.0] * 8)
    read.write(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == trajectories.read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: replace(t, actions=t.actions[:-1]), "do not have the lengths that belong together"),
        (lambda t: replace(t, lengths=t.lengths + 1), "do not have the lengths that belong together"),
        (lambda t: replace(t, frames=t.frames[:, :42]), r"their observations have shape \(4, 42, 84\)"),
        (lambda t: replace(t, actions=t.actions + 2), "they have action 5, the environment 4 actions"),
        (lambda t: replace(t, returns=t.returns[:0]), "they hold no step or no return"),
        (lambda t: replace(t, rewards=t.rewards.astype(np.int64)), "rewards missing or of another type"),
    ],
)
def test_trajectories_that_do_not_fit_are_refused(trajectories, tmp_path, change, message):
    env = gym.make(WORLD)
    spaces = (env.observation_space, env.action_space)
    change(Trajectories.read(trajectories, *spaces)).write(tmp_path / "other")
    with pytest.raises(BadInput, match=message):
        Trajectories.read(tmp_path / "other", *spaces)


def test_a_file_that_is_none_of_trajectories_is_refused(tmp_path):
    (tmp_path / "text").write_text("hello, I am a text and no trajectory")
    env = gym.make(WORLD)
    with pytest.raises(BadInput, match="cannot be read"):
        Trajectories.read(tmp_path / "text", env.observation_space, env.action_space)


# -- learning


@pytest.mark.slow  # what it learns from is plain arithmetic, tested in every CI
def test_a_student_learns_from_what_a_teacher_plays_before_it_plays_itself(tmp_path, teacher):
    flags = {**SHORT, "offline_steps": 60, "batch_size": 16, "teacher_steps": 100, "total_timesteps": 30}
    _, evaluation = run_qdagger(tmp_path, **flags, teacher_checkpoint=str(teacher), eval_episodes=5)
    assert evaluation.mean_return == 8
    charts = scalars(tmp_path)
    assert charts["charts/teacher/avg_episodic_return"][0] > 7
    assert charts["charts/offline/distill_loss"][160] < charts["charts/offline/loss"][160]
    assert set(charts["charts/epsilon"]) == {190}


def test_offline_steps_count_when_the_student_plays(tmp_path, teacher, monkeypatch):
    """As CleanRL's script offsets its online phase: exploration is half over and learning starts at once."""
    monkeypatch.setattr("cleanrl_worker.algorithms.qdagger.BLOCK_STEPS", 10)
    flags = {
        **SHORT,
        "teacher_steps": 40,
        "offline_steps": 50,
        "learning_starts": 30,
        "total_timesteps": 200,
        "exploration_fraction": 0.5,
        "train_frequency": 4,
    }
    updated, shares = [], []
    update, exploring = QDaggerLearner._update, qdagger.EpsilonGreedy

    def counted(learner, *batches):
        updated.append(learner.step)
        return update(learner, *batches)

    def seen(rng, epsilons, *spaces):
        shares.append(float(epsilons[0]))
        return exploring(rng, epsilons, *spaces)

    monkeypatch.setattr(QDaggerLearner, "_update", counted)
    monkeypatch.setattr(qdagger, "EpsilonGreedy", seen)
    run_qdagger(tmp_path, **flags, teacher_checkpoint=str(teacher))
    assert shares[4] == pytest.approx(1 + (0.01 - 1) * 50 / 100)  # after four blocks of the teacher's
    assert shares[4 + 5] == 0.01
    assert updated[50:53] == [92, 96, 100]  # the student plays from step 90 on
    assert len(updated) == 50 + 50


def test_without_offline_steps_to_count_the_student_fills_its_buffer_first(tmp_path, teacher, monkeypatch):
    updated = []
    update = QDaggerLearner._update
    monkeypatch.setattr(
        QDaggerLearner, "_update", lambda one, *given: (updated.append(one.step), update(one, *given))[1]
    )
    run_qdagger(tmp_path, **{**SHORT, "offline_steps": 6}, teacher_checkpoint=str(teacher))
    assert updated[6:] == [90, 100, 110, 120]  # 60 of the teacher's, 6 offline; learning_starts 20


@pytest.mark.slow  # a student learns from a teacher in every CI
def test_a_student_learns_from_trajectories_alone(tmp_path, trajectories):
    flags = {**SHORT, "offline_steps": 60, "batch_size": 16, "total_timesteps": 30}
    _, evaluation = run_qdagger(tmp_path, **flags, teacher_trajectories=str(trajectories), eval_episodes=5)
    assert evaluation.mean_return == 8
    assert min(scalars(tmp_path)["charts/offline/loss"]) == 60  # there was no training before


@pytest.mark.slow  # what an undisturbed and an interrupted run have in common is shown in every CI
def test_the_same_seed_gives_the_same_weights_and_another_seed_others(tmp_path, teacher):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run_qdagger(tmp_path / name, **SHORT, seed=seed, teacher_checkpoint=str(teacher))
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
    assert scalars(tmp_path / "a") == scalars(tmp_path / "b")
    assert digest(tmp_path / "c") != digest(tmp_path / "a")


@pytest.mark.parametrize("by", [pytest.param("teacher", marks=pytest.mark.slow), "trajectories"])
def test_a_resumed_run_ends_as_if_it_had_not_been_stopped(tmp_path, teacher, trajectories, by, monkeypatch):
    monkeypatch.setattr("cleanrl_worker.algorithms.qdagger.BLOCK_STEPS", 5)
    source = {"teacher_checkpoint": str(teacher)} if by == "teacher" else {"teacher_trajectories": str(trajectories)}
    flags = {**SHORT, "total_timesteps": 40, "teacher_steps": 40, "keep_checkpoints": 100, **source}
    run_qdagger(tmp_path / "whole", **flags)
    run_qdagger(tmp_path / "first", **flags, checkpoint_freq=1)
    saved = {int(path.name.removeprefix("step-")) for path in (tmp_path / "first" / "checkpoints").glob("step-*")}
    # In the middle of each phase, and where two meet.
    chosen = (20, 40, 45, 46, 70) if by == "teacher" else (5, 6, 30)
    assert set(chosen) <= saved
    whole = scalars(tmp_path / "whole")
    for step in chosen:
        folder = tmp_path / f"from-{step}"
        checkpoint = tmp_path / "first" / "checkpoints" / f"step-{step}"
        run, _ = run_qdagger(folder, **flags, resume=checkpoint)
        assert dict(run._channel.messages)["checkpoint_loaded"]["environments"] == "exact"
        assert digest(folder) == digest(tmp_path / "first") == digest(tmp_path / "whole"), step
        expected = {tag: {s: value for s, value in points.items() if s > step} for tag, points in whole.items()}
        assert scalars(folder) == {tag: points for tag, points in expected.items() if points}, step


def test_another_teacher_cannot_take_a_run_over(tmp_path, teacher, trajectories):
    run_qdagger(tmp_path / "first", **SHORT, teacher_checkpoint=str(teacher))
    (checkpoint,) = (tmp_path / "first" / "checkpoints").glob("step-*")
    with pytest.raises(BadInput, match="made with another teacher"):
        run_qdagger(tmp_path / "second", **SHORT, teacher_trajectories=str(trajectories), resume=checkpoint)


def test_what_the_teacher_played_cannot_be_missing_when_it_is_learned_from(tmp_path, teacher):
    flags = {**SHORT, "total_timesteps": 21, "teacher_checkpoint": str(teacher)}
    run_qdagger(tmp_path / "first", **flags, checkpoint_freq=60, checkpoint_replay="none")
    with pytest.raises(BadInput, match="holds no replay buffer"):
        run_qdagger(tmp_path / "second", **flags, resume=tmp_path / "first" / "checkpoints" / "step-60")


def test_weights_that_are_not_finite_end_the_run(tmp_path, teacher):
    with pytest.raises(TrainingStopped, match=r"not finite at step 66: lower --learning-rate"):
        run_qdagger(tmp_path, **{**SHORT, "learning_rate": 1e38}, teacher_checkpoint=str(teacher))


@pytest.mark.parametrize("offline_steps", [0, 6])
def test_the_teacher_s_transitions_are_dropped_when_the_student_plays(tmp_path, teacher, offline_steps):
    envs, args = SyncEnvs(WORLD, 1), Args(**{**SHORT, "offline_steps": offline_steps})
    learner = QDaggerLearner(
        args,
        envs,
        torch.device("cpu"),
        teacher=load_teacher(str(teacher), "dqn_atari", 4, 4),
        make_buffer=lambda size: make_replay(replace(args, buffer_size=size), envs),
    )
    learner.begin_episodes()
    learner.teacher_return = 8.0
    run = RunContext(ALGO, tmp_path, Quiet())
    learner.learn(run)
    if offline_steps:
        assert (learner.step, learner.phase, len(learner.teacher_replay)) == (60, Phase.OFFLINE, 60)
        learner.learn(run)
    assert (learner.step, learner.phase, len(learner.teacher_replay)) == (60 + offline_steps, Phase.ONLINE, 0)
    run.writer.close()


# -- teachers


def test_a_checkpoint_of_our_own_can_be_the_teacher(tmp_path):
    folder = tmp_path / "dqn"
    folder.mkdir()
    run = RunContext("dqn_atari", folder, Quiet())
    args = dqn.AtariArgs(env_id=WORLD, total_timesteps=20, buffer_size=40, learning_starts=10, batch_size=4)
    run.make_envs = lambda args: SyncEnvs(WORLD, 1)
    dqn.train(args, run)
    run.writer.close()
    saved = torch.load(folder / "dqn_atari.cleanrl_model", weights_only=True)
    (checkpoint,) = (folder / "checkpoints").glob("step-*")
    for place in (checkpoint, folder, folder / "dqn_atari.cleanrl_model"):
        loaded = load_teacher(str(place), "dqn_atari", 4, 4)
        for name, tensor in loaded.state_dict().items():
            torch.testing.assert_close(tensor, saved[name])
    with pytest.raises(BadInput, match="is a checkpoint of 'dqn_atari'"):
        RunContext(NAME, tmp_path, Quiet(), resume=checkpoint)


def test_a_teacher_that_is_another_network_is_refused(tmp_path, teacher):
    with pytest.raises(BadInput, match="the teacher does not fit"):
        load_teacher(str(teacher), "dqn_atari", 4, 6)
    with pytest.raises(BadInput, match="only a dqn_atari can be the teacher"):
        load_teacher(str(teacher), "c51_atari", 4, 4)
    torch.save(QNetwork(4, 4).state_dict(), tmp_path / "impala.cleanrl_model")
    with pytest.raises(BadInput, match="the teacher does not fit"):
        load_teacher(str(tmp_path / "impala.cleanrl_model"), "dqn_atari", 4, 4)


def test_the_teacher_is_dqn_s_network():
    ours, theirs = TeacherNetwork(4, 6), dqn.AtariQNetwork(4, 6)
    ours.load_state_dict(theirs.state_dict())
    obs = images(2)
    with torch.no_grad():
        torch.testing.assert_close(ours(obs), theirs(obs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({}, "qdagger_dqn_atari_impalacnn needs a teacher: give --teacher-checkpoint"),
        ({"teacher_checkpoint": "/nowhere/x"}, "--teacher-checkpoint cannot be used: there is no /nowhere/x"),
        ({"teacher_trajectories": "/nowhere/x"}, "--teacher-trajectories names no file: there is no /nowhere/x"),
        ({"teacher_policy_hf_repo": "cleanrl/x"}, "nothing is fetched from a hub here; download"),
        ({"temperature": 0.0}, "--temperature 0.0 must be more than 0"),
        ({"buffer_size": 10}, "--buffer-size 10 is smaller than a batch of 32"),
    ],
)
def test_values_no_run_can_be_made_of_are_refused(tmp_path, flags, message):
    with pytest.raises(BadInput, match=message):
        run_qdagger(tmp_path, **flags)


def test_a_missing_teacher_is_found_in_the_dry_run(home, teacher):
    home.create()

    def problems(**parameters) -> dict[str, str]:
        config = CleanRLWorkerConfig(
            new_run_id(),
            NAME,
            "PongNoFrameskip-v4",
            1000,
            1,
            {"algo_params": {"buffer_size": 1000, "learning_starts": 100, **parameters}},
        )
        found = check_run(config, home.run_folder(config.run_id), home, probe=False)
        return {p.path: p.message for p in found.problems if "teacher" in p.path}

    assert problems(teacher_checkpoint=str(teacher)) == {}
    assert "needs a teacher" in problems()["teacher_checkpoint"]
    assert "there is no /nowhere" in problems(teacher_checkpoint="/nowhere")["teacher_checkpoint"]
    said = problems(teacher_checkpoint=str(teacher), teacher_policy_hf_repo="a/b")
    assert "download the repository's .cleanrl_model" in said["teacher_policy_hf_repo"]


@pytest.mark.parametrize("field", ["teacher_checkpoint", "teacher_trajectories"])
def test_a_path_that_depends_on_the_folder_is_refused_where_training_starts_elsewhere(tmp_path, monkeypatch, field):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_bytes(b"\x80")  # a pickle
    declared, values = declaration_of(Args()), {**asdict(Args()), field: "file"}
    assert list(file_problems(declared, values)) == []
    ((name, sentence),) = file_problems(declared, values, from_anywhere=True)
    assert name == field
    assert f"must be the whole path: {tmp_path / 'file'}" in sentence


# -- policies


def _blocks(index: int, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    names = ["conv", *(f"res_block{b}.conv{c}" for b in range(2) for c in range(2))]
    shapes = {f"network.{index}.{name}.bias": (outputs,) for name in names}
    shapes |= {f"network.{index}.{name}.weight": (outputs, outputs, 3, 3) for name in names}
    return shapes | {f"network.{index}.conv.weight": (outputs, inputs, 3, 3)}


SHAPES = {
    **_blocks(0, 4, 16),
    **_blocks(1, 16, 32),
    **_blocks(2, 32, 32),
    "network.5.weight": (256, 3872),
    "network.5.bias": (256,),
    "network.7.weight": (6, 256),
    "network.7.bias": (6,),
}
"""What CleanRL's network for six actions holds"""


def test_weights_have_the_names_and_shapes_of_cleanrl_s():
    assert {name: tuple(tensor.shape) for name, tensor in QNetwork(4, 6).state_dict().items()} == SHAPES


def test_a_saved_policy_plays_the_best_action_and_sampled_now_and_then_any():
    torch.manual_seed(0)
    network, env, obs = QNetwork(4, 4), gym.make(WORLD), images(5)
    weights = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    policy = make_policy(WORLD, env.observation_space, env.action_space, weights)
    with torch.no_grad():
        best = network(obs).argmax(dim=1).tolist()
    assert policy.act(obs.numpy(), None).tolist() == best
    draws = [policy.act(obs.numpy(), [np.random.default_rng(10 * k + i) for i in range(5)]) for k in range(40)]
    assert 0 < np.mean(np.array(draws) != best) < 0.2
    with pytest.raises(BadInput, match="does not fit"):
        make_policy(WORLD, env.observation_space, gym.spaces.Discrete(6), weights)


@pytest.mark.slow  # a world of pictures is resumed in every CI
@pytest.mark.timeout(600)  # the sets may have to be installed first
@pytest.mark.usefixtures("atari")
def test_pong_is_taught_and_played_and_a_resumed_run_is_the_same(tmp_path):
    torch.manual_seed(0)
    teacher = as_checkpoint(dqn.AtariQNetwork(4, 6), tmp_path)
    flags = {
        "env_id": "PongNoFrameskip-v4",
        "total_timesteps": 980,
        "buffer_size": 900,
        "learning_starts": 900,
        "batch_size": 4,
        "teacher_steps": 1000,
        "offline_steps": 20,
        "teacher_eval_episodes": 1,
        "env_kwargs": '{"max_episode_steps": 200}',
        "teacher_checkpoint": str(teacher),
    }
    run_qdagger(tmp_path / "first", algo=NAME, **flags, checkpoint_freq=1900)
    checkpoint = tmp_path / "first" / "checkpoints" / "step-1900"
    run, _ = run_qdagger(tmp_path / "second", algo=NAME, **flags, resume=checkpoint)
    assert dict(run._channel.messages)["checkpoint_loaded"]["environments"] == "exact"
    assert digest(tmp_path / "second") == digest(tmp_path / "first")
    charts = scalars(tmp_path / "first")
    assert max(charts["charts/replay_size"]) == 2000
    assert math.isfinite(charts["losses/distill_loss"][2000])


@pytest.mark.slow  # a world of pictures is recorded in every CI
@pytest.mark.timeout(600)  # the sets may have to be installed first
@pytest.mark.usefixtures("atari")
def test_trajectories_of_pong_are_recorded_by_the_tool(tmp_path):
    torch.manual_seed(0)
    torch.save(dqn.AtariQNetwork(4, 6).state_dict(), tmp_path / "dqn_atari.cleanrl_model")
    from mosaic_extras.testing import interpreter_with

    argv = [str(interpreter_with("atari")), "-m", "cleanrl_worker.tools.record_trajectories"]
    to = tmp_path / "pong.safetensors"
    done = subprocess.run(
        [
            *argv,
            "--policy",
            str(tmp_path / "dqn_atari.cleanrl_model"),
            "--env-id",
            "PongNoFrameskip-v4",
            "--env-kwargs",
            '{"max_episode_steps": 150}',
            "--games",
            "1",
            "--to",
            str(to),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    read = Trajectories.read(to, gym.spaces.Box(0, 255, (4, 84, 84), np.uint8), gym.spaces.Discrete(6))
    assert (len(read), len(read.returns), read.stack) == (150, 1, 4)
    assert read.returns[0] == pytest.approx(read.rewards.sum())
    refused = subprocess.run(
        [sys.executable, *argv[1:], "--policy", "/nowhere", "--env-id", "x", "--to", "y"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
