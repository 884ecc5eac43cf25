"""Discrete SAC: its arithmetic against plain loops; that it learns, the same each time and when resumed."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from cleanrl_worker.algorithms.sac_discrete import (
    Actor,
    Args,
    Batch,
    Critics,
    SacLearner,
    SoftQNetwork,
    actor_losses,
    critic_losses,
    make_policy,
    train,
)
from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.training.envs import SyncEnvs
from cleanrl_worker.training.replay import make_replay
from cleanrl_worker.training.run import RunContext
from mosaic_wire.event_files import EventFolderReader

CPU = torch.device("cpu")
WORLD = "picture_worlds:Quadrants-v0"
ALGO = "sac_on_pictures"
"""No name of the registry, so nothing of Atari lies between the world and the algorithm"""
SHORT = {
    "env_id": WORLD,
    "total_timesteps": 240,
    "buffer_size": 150,
    "learning_starts": 60,
    "update_frequency": 8,
    "batch_size": 8,
    "target_network_frequency": 40,
    "policy_lr": 1e-3,
    "q_lr": 1e-3,
    "gamma": 0.5,
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


def run_sac(folder: Path, *, algo: str = ALGO, resume: Path | None = None, **flags):
    folder.mkdir(exist_ok=True)
    run = RunContext(algo, folder, Quiet(), resume=resume)
    evaluation = train(Args(**flags), run)
    run.writer.close()
    return run, evaluation


def digest(folder: Path) -> str:
    """Of all weights in the model a run has left."""
    saved = torch.load(folder / "sac_atari.cleanrl_model", weights_only=True)
    return hashlib.sha256(b"".join(t.numpy().tobytes() for network in saved for t in network.values())).hexdigest()


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


def networks(actions: int = 3) -> tuple[Actor, Critics, Critics]:
    torch.manual_seed(0)
    pairs = [Critics(SoftQNetwork(4, actions), SoftQNetwork(4, actions)) for _ in range(2)]
    return Actor(4, actions), *pairs


# -- arithmetic


def test_critic_losses_equal_plain_arithmetic():
    actor, critics, targets = networks()
    count, alpha, gamma = 5, 0.3, 0.9
    rng = np.random.default_rng(0)
    actions, rewards = rng.integers(3, size=count), rng.normal(size=count).astype(np.float32)
    terminated = np.array([0, 1, 0, 0, 1], dtype=np.float32)
    obs, next_obs = images(count, 1), images(count, 2)
    tensors = (torch.from_numpy(array) for array in (actions, rewards, terminated))
    taken, paid, over = tensors
    losses = critic_losses(
        actor, critics, targets, Batch(obs, taken, paid, next_obs, over), torch.tensor([alpha]), gamma
    )
    with torch.no_grad():
        logits = actor(next_obs).double().numpy()
        following = [values.double().numpy() for values in targets(next_obs)]
        predicted = [values.double().numpy() for values in critics(obs)]
    errors = [0.0, 0.0]
    for i in range(count):
        weights = [math.exp(logit) for logit in logits[i]]
        probs = [weight / sum(weights) for weight in weights]
        value = sum(
            p * (min(following[0][i, a], following[1][i, a]) - alpha * math.log(p)) for a, p in enumerate(probs)
        )
        td_target = rewards[i] + (0.0 if terminated[i] else gamma * value)
        for which in range(2):
            errors[which] += (predicted[which][i, actions[i]] - td_target) ** 2 / count
    assert losses.qf1.item() == pytest.approx(errors[0], rel=1e-4)
    assert losses.qf2.item() == pytest.approx(errors[1], rel=1e-4)
    assert losses.qf1_values.item() == pytest.approx(predicted[0][range(count), actions].mean(), rel=1e-4)
    assert losses.qf2_values.item() == pytest.approx(predicted[1][range(count), actions].mean(), rel=1e-4)
    (losses.qf1 + losses.qf2).backward()
    assert all(parameter.grad is None for network in (actor, targets) for parameter in network.parameters())


def test_actor_losses_equal_plain_arithmetic_averaged_over_actions():
    actor, critics, _ = networks()
    count, alpha, target_entropy = 5, 0.3, 0.7
    obs = images(count)
    losses = actor_losses(actor, critics, obs, torch.tensor([alpha]), target_entropy)
    with torch.no_grad():
        logits = actor(obs).double().numpy()
        values = [values.double().numpy() for values in critics(obs)]
    loss, excess = 0.0, 0.0
    for i in range(count):
        weights = [math.exp(logit) for logit in logits[i]]
        for a, weight in enumerate(weights):
            p = weight / sum(weights)
            loss += p * (alpha * math.log(p) - min(values[0][i, a], values[1][i, a])) / (count * len(weights))
            excess += p * (math.log(p) + target_entropy) / (count * len(weights))
    assert losses.actor.item() == pytest.approx(loss, rel=1e-4)
    assert losses.entropy_gap.item() == pytest.approx(excess, rel=1e-4)
    losses.actor.backward()
    assert all(parameter.grad is None for parameter in critics.parameters())


def test_alpha_follows_the_gradient_of_its_loss(tmp_path):
    envs, args = SyncEnvs(WORLD, 1), Args(**{**SHORT, "learning_starts": 10, "batch_size": 4})
    learner = SacLearner(args, envs, make_replay(args, envs), CPU)
    learner.begin_episodes()
    run = RunContext(ALGO, tmp_path, Quiet())
    while learner.step < 12:
        learner._step_envs(run)
    run.writer.close()
    assert learner._target_entropy == pytest.approx(0.89 * math.log(4))
    charts = learner.update()
    # d(-exp(x) excess)/dx at x = 0, by hand; Adam's first step has the size of the learning rate.
    with torch.no_grad():
        assert charts["alpha"].item() == 1
    assert charts["alpha_loss"].item() == pytest.approx(learner.log_alpha.grad.item())
    expected = -math.copysign(args.q_lr, charts["alpha_loss"].item())
    assert learner.log_alpha.item() == pytest.approx(expected, rel=1e-2)
    # A random policy has more entropy than the target: alpha falls.
    assert learner.alpha.item() < 1


def test_without_autotune_alpha_stays():
    envs, args = SyncEnvs(WORLD, 1), Args(**SHORT, autotune=False, alpha=0.25)
    assert SacLearner(args, envs, make_replay(args, envs), CPU).alpha.item() == 0.25


# -- learning


@pytest.mark.slow  # dqn learns from pictures in every CI
def test_bright_quadrants_are_named(tmp_path):
    flags = {**SHORT, "total_timesteps": 450, "buffer_size": 450, "learning_starts": 150, "update_frequency": 4}
    flags |= {"batch_size": 32, "policy_lr": 3e-4, "q_lr": 3e-4, "autotune": False, "alpha": 0.5}
    _, evaluation = run_sac(tmp_path, **flags, eval_episodes=10)
    assert evaluation.mean_return == 8


@pytest.mark.slow  # what an undisturbed and an interrupted run have in common is shown in every CI
def test_the_same_seed_gives_the_same_weights_and_another_seed_others(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run_sac(tmp_path / name, **SHORT, seed=seed)
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
    assert scalars(tmp_path / "a") == scalars(tmp_path / "b")
    assert digest(tmp_path / "c") != digest(tmp_path / "a")


@pytest.mark.slow  # sac_continuous_action and dqn's pictures are interrupted in every CI
def test_a_resumed_run_ends_as_if_it_had_not_been_stopped(tmp_path):
    flags = {**SHORT, "num_envs": 2}
    run_sac(tmp_path / "first", **flags, checkpoint_freq=100)  # which changes nothing: test_checkpoints.py
    checkpoint = tmp_path / "first" / "checkpoints" / "step-100"
    run, _ = run_sac(tmp_path / "second", **flags, resume=checkpoint)
    assert dict(run._channel.messages)["checkpoint_loaded"]["environments"] == "exact"
    assert digest(tmp_path / "second") == digest(tmp_path / "first")
    whole, later = scalars(tmp_path / "first"), scalars(tmp_path / "second")
    assert later == {
        tag: {step: value for step, value in points.items() if step > 100}
        for tag, points in whole.items()
        if max(points) > 100
    }


def test_weights_that_are_not_finite_end_the_run_and_are_never_saved(tmp_path):
    with pytest.raises(TrainingStopped, match=r"not finite at step \d+: lower --q-lr and --policy-lr"):
        run_sac(tmp_path, **{**SHORT, "q_lr": 1e38}, checkpoint_freq=100)
    assert list((tmp_path / "checkpoints").glob("step-*")) == []


# -- policies


TRUNK = {
    "conv.0.weight": (32, 4, 8, 8),
    "conv.0.bias": (32,),
    "conv.2.weight": (64, 32, 4, 4),
    "conv.2.bias": (64,),
    "conv.4.weight": (64, 64, 3, 3),
    "conv.4.bias": (64,),
    "fc1.weight": (512, 3136),
    "fc1.bias": (512,),
}


@pytest.mark.parametrize(("network", "head"), [(Actor(4, 6), "fc_logits"), (SoftQNetwork(4, 6), "fc_q")])
def test_weights_have_the_names_and_shapes_of_cleanrl_s(network, head):
    found = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    assert found == {**TRUNK, f"{head}.weight": (6, 512), f"{head}.bias": (6,)}


def test_a_saved_policy_plays_the_likeliest_action_and_sampled_any(tmp_path):
    run_sac(tmp_path, **SHORT)
    actor, qf1, qf2 = torch.load(tmp_path / "sac_atari.cleanrl_model", weights_only=True)
    assert "fc_q.weight" in qf1
    assert "fc_q.weight" in qf2
    env, obs = gym.make(WORLD), images(3).numpy()
    spaces = (WORLD, env.observation_space, env.action_space)
    alone = make_policy(*spaces, {name: tensor.numpy() for name, tensor in actor.items()})
    with_critics = make_policy(*spaces, {f"actor.{name}": tensor.numpy() for name, tensor in actor.items()})
    network = Actor(4, 4)
    network.load_state_dict(actor)
    with torch.no_grad():
        logits = network(torch.from_numpy(obs)).numpy()
    assert alone.act(obs, None).tolist() == with_critics.act(obs, None).tolist() == logits.argmax(axis=1).tolist()
    draws = np.array([alone.act(obs, [np.random.default_rng(10 * k + i) for i in range(3)]) for k in range(400)])
    probs = np.exp(logits - logits.max(axis=1, keepdims=True))
    probs /= probs.sum(axis=1, keepdims=True)
    shares = np.stack([(draws == action).mean(axis=0) for action in range(4)], axis=1)
    np.testing.assert_allclose(shares, probs, atol=0.1)  # four deviations


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"buffer_size": 10}, "--buffer-size 10 is smaller than a batch of 64"),
        ({"target_entropy_scale": -1.0}, "--target-entropy-scale must be at least 0"),
    ],
)
def test_values_no_run_can_be_made_of_are_refused(tmp_path, flags, message):
    with pytest.raises(BadInput, match=message):
        run_sac(tmp_path, **flags)


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("CartPole-v1", r"stacked frames of 84 x 84.*CartPole-v1 have shape \(4,\)"),
        ("tiny_worlds:Joystick-v0", "needs discrete actions"),
    ],
)
def test_an_environment_it_cannot_play_is_refused(tmp_path, env_id, message):
    with pytest.raises(BadInput, match=message):
        run_sac(tmp_path, **{**SHORT, "env_id": env_id})


@pytest.mark.slow  # a world of pictures is resumed in every CI
@pytest.mark.timeout(600)  # the sets may have to be installed first
@pytest.mark.usefixtures("atari")
def test_pong_is_played_and_a_resumed_run_is_the_same(tmp_path):
    flags = {
        "env_id": "PongNoFrameskip-v4",
        "total_timesteps": 2000,
        "buffer_size": 1800,
        "learning_starts": 1750,
        "batch_size": 8,
        "target_network_frequency": 100,
    }
    run_sac(tmp_path / "first", algo="sac_atari", **flags, checkpoint_freq=1800)
    checkpoint = tmp_path / "first" / "checkpoints" / "step-1800"
    run, _ = run_sac(tmp_path / "second", algo="sac_atari", **flags, resume=checkpoint)
    assert dict(run._channel.messages)["checkpoint_loaded"]["environments"] == "exact"
    assert digest(tmp_path / "second") == digest(tmp_path / "first")
    charts = scalars(tmp_path / "first")
    assert charts["charts/replay_size"][2000] == 1800
    assert math.isfinite(charts["losses/actor_loss"][2000])
