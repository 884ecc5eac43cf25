"""Rainbow: its arithmetic against plain loops; that it learns from pictures, the same each time and when resumed."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from cleanrl_worker.algorithms.rainbow import (
    Args,
    Batch,
    Network,
    NoisyLinear,
    RainbowLearner,
    draw_noise,
    make_policy,
    rainbow_losses,
    train,
)
from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.training.envs import SyncEnvs
from cleanrl_worker.training.replay import make_replay
from cleanrl_worker.training.run import RunContext
from mosaic_wire.event_files import EventFolderReader
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

WORLD = "picture_worlds:Quadrants-v0"
ALGO = "rainbow_on_pictures"
"""No name of the registry, so nothing of Atari lies between the world and the algorithm"""
SHORT = {
    "env_id": WORLD,
    "total_timesteps": 240,
    "buffer_size": 150,
    "learning_starts": 60,
    "train_frequency": 16,
    "batch_size": 8,
    "target_network_frequency": 40,
    "learning_rate": 5e-4,
    "gamma": 0.5,
    "v_min": 0.0,
    "v_max": 3.0,
    "n_atoms": 11,
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


def run_rainbow(folder: Path, *, algo: str = ALGO, resume: Path | None = None, **flags):
    folder.mkdir(exist_ok=True)
    run = RunContext(algo, folder, Quiet(), resume=resume)
    evaluation = train(Args(**flags), run)
    run.writer.close()
    return run, evaluation


def digest(folder: Path) -> str:
    """Of all weights in the model a run has left."""
    saved = torch.load(folder / "rainbow_atari.cleanrl_model", weights_only=True)
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in saved.values())).hexdigest()


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """Every point of every chart, but those that depend on the clock."""
    points: dict[str, dict[int, float]] = {}
    for batch in EventFolderReader(folder / "tensorboard").read():
        for tag, column in batch.columns.items():
            if tag != "charts/SPS":
                points.setdefault(tag, {}).update(zip(column.steps, column.values, strict=True))
    return points


def tiny_network(actions: int = 3, atoms: int = 5, seed: int = 0) -> Network:
    torch.manual_seed(seed)
    return Network(4, actions, torch.linspace(-2, 2, atoms))


def images(count: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(256, size=(count, 4, 84, 84), dtype=np.uint8))


# -- arithmetic


def test_a_noisy_layer_is_a_layer_with_noisy_weights():
    torch.manual_seed(1)
    layer = NoisyLinear(6, 4)
    with torch.no_grad():
        layer.weight_sigma.uniform_(0, 1)
        layer.bias_sigma.uniform_(0, 1)
    noise = torch.from_numpy(draw_noise(np.random.default_rng(0), layer.noise_size))
    inputs = torch.randn(5, 6)
    weights = layer.weight_mu + layer.weight_sigma * torch.outer(noise[6:], noise[:6])
    bias = layer.bias_mu + layer.bias_sigma * noise[6:]
    torch.testing.assert_close(layer(inputs, noise), inputs @ weights.T + bias)
    torch.testing.assert_close(layer(inputs, None), inputs @ layer.weight_mu.T + layer.bias_mu)
    # A row of noise for each row of inputs is the same as one layer for each.
    several = torch.stack([noise, -noise, 2 * noise, 0 * noise, noise])
    expected = torch.cat([layer(inputs[i : i + 1], several[i]) for i in range(5)])
    torch.testing.assert_close(layer(inputs, several), expected)
    layer.store_noise(noise)
    torch.testing.assert_close(layer.weight_mu + layer.weight_sigma * layer.weight_epsilon, weights)
    torch.testing.assert_close(layer.bias_epsilon, noise[6:])


def test_noise_is_the_signed_root_of_normal_numbers():
    drawn = draw_noise(np.random.default_rng(3), 10_000)
    normal = np.random.default_rng(3).standard_normal(10_000, dtype=np.float32)
    np.testing.assert_allclose(drawn * np.abs(drawn), normal, rtol=1e-5, atol=1e-6)


def test_values_and_advantages_make_distributions():
    network = tiny_network()
    noise = torch.from_numpy(draw_noise(np.random.default_rng(0), network.noise_size))
    obs = images(2)
    with torch.no_grad():
        found = network(obs, noise).exp().double().numpy()
        features = network.network(obs.float() / 255)
        sizes = [sum(head.noise_sizes) for head in (network.value_head, network.advantage_head)]
        for_values, for_advantages = noise.split(sizes)
        values = network.value_head(features, for_values).double().numpy()
        advantages = network.advantage_head(features, for_advantages).double().numpy().reshape(2, 3, 5)
    for row in range(2):
        for action in range(3):
            logits = [
                values[row, atom] + advantages[row, action, atom] - sum(advantages[row, :, atom]) / 3
                for atom in range(5)
            ]
            weights = [math.exp(logit) for logit in logits]
            np.testing.assert_allclose(found[row, action], np.array(weights) / sum(weights), rtol=1e-4)


def test_losses_equal_plain_arithmetic():
    network, target = tiny_network(seed=0), tiny_network(seed=1)
    rng = np.random.default_rng(2)
    count, support = 6, np.linspace(-2, 2, 5)
    actions = rng.integers(3, size=count)
    returns, weights = rng.normal(size=count) * 2, rng.random(count)
    discounts = np.array([0.9, 0.9, 0.0, 0.81, 0.5, 1.0])
    noise, target_noise = (torch.from_numpy(draw_noise(rng, network.noise_size)) for _ in range(2))
    obs, next_obs = images(count, 1), images(count, 2)
    floats = (torch.from_numpy(array.astype(np.float32)) for array in (returns, discounts, weights))
    batch_returns, batch_discounts, batch_weights = floats
    losses = rainbow_losses(
        network,
        target,
        Batch(obs, torch.from_numpy(actions), batch_returns, next_obs, batch_discounts, batch_weights),
        noise,
        target_noise,
    )
    with torch.no_grad():
        online_next = network(next_obs, noise).exp().double().numpy()
        target_next = target(next_obs, target_noise).exp().double().numpy()
        predicted = network(obs, noise).double().numpy()
    total, surprise, q_values = 0.0, [], []
    for i in range(count):
        best = max(range(3), key=lambda a: sum(online_next[i, a] * support))  # used at once
        wanted = np.zeros(5)
        for atom in range(5):
            moved = min(max(returns[i] + discounts[i] * support[atom], -2), 2)
            place = moved + 2  # the atoms are 1 apart
            below = min(int(place), 3)
            wanted[below] += target_next[i, best, atom] * (1 - (place - below))
            wanted[below + 1] += target_next[i, best, atom] * (place - below)
        assert wanted.sum() == pytest.approx(1)
        entropy = -sum(p * math.log(p) for p in wanted if p > 1e-12)
        cross = -sum(wanted * predicted[i, actions[i]])
        total += weights[i] * cross / count
        surprise.append(cross - entropy)
        q_values.append(sum(np.exp(predicted[i, actions[i]]) * support))
    assert losses.total.item() == pytest.approx(total, rel=1e-4)
    np.testing.assert_allclose(losses.kl.numpy(), surprise, rtol=1e-3, atol=1e-4)
    assert losses.q_values.item() == pytest.approx(np.mean(q_values), rel=1e-4)


def test_only_the_prediction_is_differentiated():
    network, target = tiny_network(seed=0), tiny_network(seed=1)
    noise = torch.from_numpy(draw_noise(np.random.default_rng(0), network.noise_size))
    obs = images(2)
    batch = Batch(obs, torch.tensor([0, 2]), torch.ones(2), obs, torch.full((2,), 0.9), torch.ones(2))
    rainbow_losses(network, target, batch, noise, noise).total.backward()
    assert all(parameter.grad is None for parameter in target.parameters())
    assert all(parameter.grad.abs().sum() > 0 for parameter in network.parameters())


# -- learning


@pytest.mark.slow  # dqn learns from pictures in every CI
def test_bright_quadrants_are_named(tmp_path):
    flags = {**SHORT, "total_timesteps": 700, "buffer_size": 700, "train_frequency": 4, "batch_size": 16}
    _, evaluation = run_rainbow(tmp_path, **flags, eval_episodes=10)
    assert evaluation.mean_return == 8


@pytest.mark.slow  # what an undisturbed and an interrupted run have in common is shown in every CI
def test_the_same_seed_gives_the_same_weights_and_another_seed_others(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run_rainbow(tmp_path / name, **SHORT, seed=seed)
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
    assert scalars(tmp_path / "a") == scalars(tmp_path / "b")
    assert digest(tmp_path / "c") != digest(tmp_path / "a")


@pytest.mark.parametrize("world", [WORLD, pytest.param("picture_worlds:FatalQuadrants-v0", marks=pytest.mark.slow)])
def test_a_resumed_run_ends_as_if_it_had_not_been_stopped(tmp_path, world):
    flags = {**SHORT, "env_id": world, "num_envs": 2}
    run_rainbow(tmp_path / "first", **flags, checkpoint_freq=100)  # which changes nothing: test_checkpoints.py
    checkpoint = tmp_path / "first" / "checkpoints" / "step-100"
    run, _ = run_rainbow(tmp_path / "second", **flags, resume=checkpoint)
    assert dict(run._channel.messages)["checkpoint_loaded"]["environments"] == "exact"
    assert digest(tmp_path / "second") == digest(tmp_path / "first")
    whole, later = scalars(tmp_path / "first"), scalars(tmp_path / "second")
    assert later == {
        tag: {step: value for step, value in points.items() if step > 100}
        for tag, points in whole.items()
        if max(points) > 100
    }


@pytest.mark.slow  # dqn's fills it in every CI
def test_a_run_without_its_replay_buffer_fills_it_before_it_learns_again(tmp_path):
    flags = {**SHORT, "learning_starts": 120, "checkpoint_replay": "none"}
    run_rainbow(tmp_path / "first", **flags, checkpoint_freq=100)
    assert set(scalars(tmp_path / "first")["losses/td_loss"]) == {200, 240}
    run_rainbow(tmp_path / "second", **flags, resume=tmp_path / "first" / "checkpoints" / "step-100")
    charts = scalars(tmp_path / "second")
    assert charts["charts/replay_size"] == {200: 100, 240: 140}
    assert set(charts["losses/td_loss"]) == {240}


def test_weights_that_are_not_finite_end_the_run_and_are_never_saved(tmp_path):
    with pytest.raises(TrainingStopped, match=r"not finite at step \d+: lower --learning-rate"):
        run_rainbow(tmp_path, **{**SHORT, "learning_rate": 1e38}, checkpoint_freq=100)
    saved = [int(path.name.removeprefix("step-")) for path in (tmp_path / "checkpoints").glob("step-*")]
    assert all(step < 61 for step in saved)


@pytest.mark.slow  # c51's are charted in every CI
def test_the_predicted_returns_of_a_probe_are_charted(tmp_path):
    envs = SyncEnvs(WORLD, 1)
    args = Args(**{**SHORT, "total_timesteps": 1000, "learning_starts": 990, "buffer_size": 1000})
    learner = RainbowLearner(args, envs, make_replay(args, envs), torch.device("cpu"))
    learner.begin_episodes()
    run = RunContext(ALGO, tmp_path, Quiet())
    while learner.step < 1000:
        learner.learn(run)
    run.writer.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"histograms": 0})
    events.Reload()
    (event,) = events.Histograms("charts/predicted_returns")
    histogram, shares = event.histogram_value, np.array(event.histogram_value.bucket)
    assert (event.step, len(shares), histogram.min, histogram.max) == (1000, 11, 0, 3)
    assert shares.sum() == pytest.approx(1, rel=1e-5)
    with torch.no_grad():
        each = learner.agent(torch.from_numpy(learner.probe), None).exp().numpy()
    best = [rows[(rows @ np.linspace(0, 3, 11)).argmax()] for rows in each]
    np.testing.assert_allclose(shares, np.mean(best, axis=0), rtol=1e-5)


# -- policies


def test_the_target_moves_at_its_own_pace_however_rare_updates_are(tmp_path, monkeypatch):
    """Every 40 steps once learning has started, also in blocks of steps without an update."""
    moved = []
    monkeypatch.setattr(RainbowLearner, "_move_target", lambda learner, _: moved.append(getattr(learner, "step", 0)))
    run_rainbow(tmp_path, **{**SHORT, "train_frequency": 210})
    assert moved == [0, 80, 120, 160, 200, 240]  # at the start it is made a copy


SHAPES = {
    "support": (51,),
    "network.0.weight": (32, 4, 8, 8),
    "network.0.bias": (32,),
    "network.2.weight": (64, 32, 4, 4),
    "network.2.bias": (64,),
    "network.4.weight": (64, 64, 3, 3),
    "network.4.bias": (64,),
} | {
    f"{head}.{layer}.{part}_{kind}": (outputs, inputs) if part == "weight" else (outputs,)
    for head, last in (("value_head", 51), ("advantage_head", 306))
    for layer, outputs, inputs in ((0, 512, 3136), (2, last, 512))
    for part in ("weight", "bias")
    for kind in ("mu", "sigma", "epsilon")
}
"""What CleanRL's network for six actions holds"""


def test_weights_have_the_names_and_shapes_of_cleanrl_s():
    network = Network(4, 6, torch.linspace(-10, 10, 51))
    assert {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()} == SHAPES


def test_a_saved_policy_plays_with_mean_weights_and_sampled_with_noise(tmp_path):
    run_rainbow(tmp_path, **SHORT)
    saved = torch.load(tmp_path / "rainbow_atari.cleanrl_model", weights_only=True)
    weights = {name: tensor.numpy() for name, tensor in saved.items()}
    env = gym.make(WORLD)
    policy = make_policy(WORLD, env.observation_space, env.action_space, weights)
    network = Network(4, 4, torch.linspace(0, 3, 11))
    network.load_state_dict(saved)
    obs = images(6, 4).numpy()
    with torch.no_grad():
        means = network(torch.from_numpy(obs), None).exp() @ network.support
    assert policy.act(obs, None).tolist() == means.argmax(dim=1).tolist()
    # Noise belongs to the row: who else is in the batch does not matter.
    together = policy.act(obs, [np.random.default_rng(seed) for seed in range(6)])
    alone = [policy.act(obs[i : i + 1], [np.random.default_rng(i)])[0] for i in range(6)]
    assert together.tolist() == alone
    draws = {tuple(policy.act(obs, [np.random.default_rng(100 * k + i) for i in range(6)])) for k in range(20)}
    assert len(draws) > 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"v_min": 3.0, "v_max": 3.0}, "--v-min 3.0 must be less than --v-max 3.0"),
        ({"buffer_size": 6, "num_envs": 2}, "--buffer-size 6 is too small"),
        ({"n_atoms": 1}, "--n-atoms must be at least 2"),
    ],
)
def test_values_no_run_can_be_made_of_are_refused(tmp_path, flags, message):
    with pytest.raises(BadInput, match=message):
        run_rainbow(tmp_path, **flags)


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("CartPole-v1", r"stacked frames of 84 x 84.*CartPole-v1 have shape \(4,\)"),
        ("tiny_worlds:Joystick-v0", "needs discrete actions"),
    ],
)
def test_an_environment_it_cannot_play_is_refused(tmp_path, env_id, message):
    with pytest.raises(BadInput, match=message):
        run_rainbow(tmp_path, **{**SHORT, "env_id": env_id})


def test_weights_of_other_returns_are_refused(tmp_path):
    envs = SyncEnvs(WORLD, 1)
    args = Args(**SHORT)
    learner = RainbowLearner(args, envs, make_replay(args, envs), torch.device("cpu"))
    weights = {**learner.agent.state_dict(), "support": torch.linspace(-10, 10, 51)}
    with pytest.raises(BadInput, match="the model has 51 atoms from -10 to 10; give the same --n-atoms"):
        learner.load_agent({name: tensor.numpy() for name, tensor in weights.items()}, "the model")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it compiles
def test_compiled_losses_are_the_same(monkeypatch):
    monkeypatch.setattr(torch._inductor.config, "compile_threads", 1)  # otherwise processes that stay
    network, target = tiny_network(seed=0), tiny_network(seed=1)
    noise = torch.from_numpy(draw_noise(np.random.default_rng(0), network.noise_size))
    obs = images(4)
    batch = Batch(obs, torch.tensor([0, 2, 1, 1]), torch.ones(4), obs, torch.full((4,), 0.9), torch.ones(4))
    found = {}
    for name, function in (("plain", rainbow_losses), ("compiled", torch.compile(rainbow_losses))):
        network.zero_grad()
        losses = function(network, target, batch, noise, noise)
        losses.total.backward()
        found[name] = [losses.total.detach(), losses.kl, *(p.grad.clone() for p in network.parameters())]
    for ours, theirs in zip(found["plain"], found["compiled"], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.slow  # a world of pictures is resumed in every CI
@pytest.mark.timeout(600)  # the sets may have to be installed first
@pytest.mark.usefixtures("atari")
def test_pong_is_played_and_a_resumed_run_is_the_same(tmp_path):
    flags = {
        "env_id": "PongNoFrameskip-v4",
        "total_timesteps": 600,
        "buffer_size": 500,
        "learning_starts": 450,
        "batch_size": 8,
        "target_network_frequency": 100,
    }
    run_rainbow(tmp_path / "first", algo="rainbow_atari", **flags, checkpoint_freq=500)
    checkpoint = tmp_path / "first" / "checkpoints" / "step-500"
    run, _ = run_rainbow(tmp_path / "second", algo="rainbow_atari", **flags, resume=checkpoint)
    assert dict(run._channel.messages)["checkpoint_loaded"]["environments"] == "exact"
    assert digest(tmp_path / "second") == digest(tmp_path / "first")
    charts = scalars(tmp_path / "first")
    assert charts["charts/replay_size"][600] == 500
    assert math.isfinite(charts["losses/td_loss"][600])
    # A picture is stored once: 7,056 bytes a step instead of eight times that.
    assert charts["charts/replay_bytes"][600] < 500 * 9000 + (16 << 20)
