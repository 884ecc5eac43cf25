"""PQN: its arithmetic against plain loops and autograd, and that it learns, the same each time and after a resume."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from cleanrl_worker.algorithms import pqn
from cleanrl_worker.algorithms.pqn import (
    Args,
    AtariArgs,
    AtariQNetwork,
    Batch,
    PqnLearner,
    QNetwork,
    TorchGradient,
    make_policy,
    q_lambda_returns,
)
from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.testing import charts, train_here, weights_digest
from cleanrl_worker.training.channel import Command
from cleanrl_worker.training.envs import make_envs
from cleanrl_worker.training.fast_cpu.networks import NumpyLayerNormMlp
from cleanrl_worker.training.fast_cpu.q_learning import FastPqn
from cleanrl_worker.training.optimizers import FlatParameters, RAdam
from torch import nn

CPU = torch.device("cpu")
PICTURES = {"env_id": "picture_worlds:Quadrants-v0", "env_backend": "sync"}


class Identity(gym.Env):
    """Name the symbol you see; four steps an episode, ended by a time limit."""

    observation_space = gym.spaces.Box(0, 1, (3,), dtype=np.float32)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._count = 0
        return self._show(), {}

    def step(self, action):
        reward = float(action == self._symbol)
        self._count += 1
        return self._show(), reward, False, self._count == 4, {}

    def _show(self):
        self._symbol = int(self.np_random.integers(3))
        return np.eye(3, dtype=np.float32)[self._symbol]


class Corridor(gym.Env):
    """Observation = steps taken, reward 1; terminates after 3 steps on action 1, is cut after 5 otherwise."""

    observation_space = gym.spaces.Box(0, 100, (1,), dtype=np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._count = 0
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action):
        self._count += 1
        terminated = bool(action == 1 and self._count == 3)
        return np.full(1, self._count, dtype=np.float32), 1.0, terminated, self._count == 5 and not terminated, {}


@pytest.fixture(autouse=True, scope="module")
def _test_environments():
    gym.register("PqnIdentity-v0", Identity)
    gym.register("PqnCorridor-v0", Corridor)
    torch.set_num_threads(1)
    yield
    del gym.registry["PqnIdentity-v0"], gym.registry["PqnCorridor-v0"]


def run_pqn(folder: Path, *commands, args=Args, resume: Path | None = None, **flags):
    return train_here(pqn, folder, args(**flags), commands=commands, resume=resume)


# -- arithmetic


def test_returns_equal_a_plain_loop():
    rng = np.random.default_rng(0)
    steps, envs, gamma, lam = 30, 3, 0.97, 0.65
    rewards, next_values = rng.normal(size=(2, steps, envs))
    terminated = rng.random((steps, envs)) < 0.1
    ended = terminated | (rng.random((steps, envs)) < 0.1)
    found = q_lambda_returns(rewards, next_values, terminated, ended, gamma, lam)
    for env in range(envs):
        for t in range(steps - 1, -1, -1):
            if terminated[t, env]:
                expected = rewards[t, env]
            elif ended[t, env] or t == steps - 1:
                expected = rewards[t, env] + gamma * next_values[t, env]
            else:
                mixed = lam * found[t + 1, env] + (1 - lam) * next_values[t, env]
                expected = rewards[t, env] + gamma * mixed
            assert found[t, env] == pytest.approx(expected)


@pytest.mark.parametrize("hidden", [(), (7,), (120, 84)])
def test_a_layer_normalized_network_in_numpy_gives_what_autograd_gives(hidden):
    torch.manual_seed(3)
    layers, inputs = [], 4
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.LayerNorm(width), nn.ReLU()]
        inputs = width
    network = nn.Sequential(*layers, nn.Linear(inputs, 3))
    parameters = FlatParameters(network)
    with torch.no_grad():  # gains of 1 and shifts of 0 would hide mistakes
        parameters.block.add_(0.2 * torch.randn_like(parameters.block))
    obs, target = torch.randn(32, 4), torch.randn(32, 3)
    outputs = network(obs)
    (0.5 * (outputs - target).square().sum()).backward()
    expected = parameters.block.grad.clone()

    ours = NumpyLayerNormMlp(parameters, "", network)
    traced = ours.trace(obs.numpy())
    np.testing.assert_array_equal(ours(obs.numpy()), traced)
    np.testing.assert_allclose(traced, outputs.detach().numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(ours.frozen()(obs.numpy()), traced, rtol=1e-4, atol=1e-5)
    parameters.block.grad.fill_(np.nan)  # every gradient is set, none added to
    ours.backward(traced - target.numpy())
    np.testing.assert_allclose(parameters.block.grad.numpy(), expected.numpy(), rtol=1e-4, atol=1e-4)


def test_other_layers_are_refused():
    network = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.LayerNorm(2), nn.Linear(2, 2))
    with pytest.raises(TypeError, match="LayerNorm and ReLU layers in turn"):
        NumpyLayerNormMlp(FlatParameters(network), "", network)


@pytest.mark.parametrize("in_numpy", [True, False])
def test_radam_moves_as_torch_s_does(in_numpy):
    torch.manual_seed(1)
    ours, theirs = nn.Linear(5, 3), nn.Linear(5, 3)
    theirs.load_state_dict(ours.state_dict())
    parameters = FlatParameters(ours)
    optimizer, reference = RAdam(parameters, in_numpy=in_numpy), torch.optim.RAdam(theirs.parameters(), lr=0.01)
    for _ in range(20):  # the first five steps are not rectified
        obs = torch.randn(8, 5)
        for network in (ours, theirs):
            network.zero_grad(set_to_none=False)
            network(obs).square().sum().backward()
        optimizer.step(0.01)
        reference.step()
    for name, tensor in ours.state_dict().items():
        torch.testing.assert_close(tensor, theirs.state_dict()[name], rtol=1e-5, atol=1e-6)


def test_the_squared_error_is_that_of_the_chosen_actions_and_equal_in_numpy_and_torch():
    torch.manual_seed(2)
    network = QNetwork(4, 3)
    parameters = FlatParameters(network)
    rng = np.random.default_rng(0)
    batch = Batch(
        rng.normal(size=(20, 4)).astype(np.float32), rng.integers(3, size=20), rng.normal(size=20).astype(np.float32)
    )
    order = rng.permutation(20)
    found = []
    small = NumpyLayerNormMlp(parameters, "network", network.network)
    values = small(batch.obs)
    for gradient in (FastPqn(small), TorchGradient(network, parameters, CPU, False)):
        parts = list(gradient.minibatches(batch, order, 2))
        assert len(parts) == 2
        gradient.backward(parts[1])
        loss, mean = gradient.losses()
        found.append(parameters.block.grad.clone())
        rows = order[10:]
        chosen = [values[row, batch.actions[row]] for row in rows]
        errors = [(value - batch.returns[row]) ** 2 for value, row in zip(chosen, rows, strict=True)]
        assert loss == pytest.approx(np.mean(errors), rel=1e-4)
        assert mean == pytest.approx(np.mean(chosen), rel=1e-4)
    np.testing.assert_allclose(small.frozen()(batch.obs), values, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-5)


class NoRun:
    class writer:
        add_scalars = staticmethod(lambda values, step: None)


def test_the_last_step_of_an_episode_is_worth_what_lies_beyond_it_only_if_it_was_cut():
    args = Args(env_id="PqnCorridor-v0", num_envs=2, num_steps=12)
    learner = PqnLearner(args, make_envs(args.env_id, 2), CPU, total=10_000)
    learner.begin_episodes()
    batch = learner.collect(NoRun())
    counts, actions, returns = batch.obs.reshape(12, 2), batch.actions.reshape(12, 2), batch.returns.reshape(12, 2)
    beyond = learner.values(np.array([[5]], dtype=np.float32)).max()
    last = [(t, e) for t in range(11) for e in range(2) if counts[t + 1, e] == 0]
    assert {int(counts[t, e]) for t, e in last} == {2, 4}  # both kinds of end
    for t, e in last:
        terminated = counts[t, e] == 2 and actions[t, e] == 1
        assert returns[t, e] == pytest.approx(1.0 if terminated else 1 + 0.99 * beyond, rel=1e-5)


def test_the_share_of_random_actions_falls():
    args = Args(env_id="PqnIdentity-v0", start_e=0.8, end_e=0.2, exploration_fraction=0.25)
    learner = PqnLearner(args, make_envs(args.env_id, 4), CPU, total=1000)
    assert [learner.epsilon(step) for step in (0, 125, 250, 900)] == pytest.approx([0.8, 0.5, 0.2, 0.2])


# -- learning


QUICK = {"env_id": "PqnIdentity-v0", "total_timesteps": 4096, "learning_rate": 3e-3, "num_steps": 32, "gamma": 0.5}


def test_the_identity_environment_is_solved(tmp_path):
    _, evaluation = run_pqn(tmp_path, **QUICK, eval_episodes=10)
    assert (evaluation.mean_return, evaluation.std_return) == (4, 0)


@pytest.mark.slow  # dqn learns from pictures in every CI
def test_images_are_learned_from(tmp_path):
    _, evaluation = run_pqn(
        tmp_path,
        args=AtariArgs,
        **PICTURES,
        total_timesteps=512,
        num_envs=8,
        num_steps=8,
        gamma=0.5,
        learning_rate=1e-3,
        exploration_fraction=0.5,
        eval_episodes=4,
        anneal_lr=False,
    )
    assert evaluation.mean_return >= 6  # of 8; at random 2


@pytest.mark.slow  # what an undisturbed and an interrupted run have in common is shown in every CI
def test_the_same_seed_gives_the_same_weights_and_another_seed_others(tmp_path):
    found = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run_pqn(tmp_path / name, env_id="CartPole-v1", total_timesteps=2048, num_envs=8, num_steps=32, seed=seed)
        found.append((weights_digest(tmp_path / name), charts(tmp_path / name)))
    assert found[0] == found[1]
    assert found[0][0] != found[2][0]


@pytest.mark.parametrize(
    ("args", "flags"),
    [
        pytest.param(Args, {"env_id": "CartPole-v1", "total_timesteps": 4096, "num_steps": 64}, marks=pytest.mark.slow),
        (Args, {"env_id": "CartPole-v1", "total_timesteps": 4096, "num_envs": 8, "num_steps": 64}),
        pytest.param(
            AtariArgs, {**PICTURES, "total_timesteps": 128, "num_envs": 2, "num_steps": 16}, marks=pytest.mark.slow
        ),
    ],
    ids=["sync", "native", "pictures"],
)
def test_a_run_that_was_interrupted_ends_with_the_same_weights(tmp_path, args, flags):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run_pqn(whole, args=args, **flags)
    run_pqn(parts, *[None] * 3, Command.STOP, args=args, **flags)
    (checkpoint,) = (parts / "checkpoints").glob("step-*")
    stopped_at = int(checkpoint.name.removeprefix("step-"))
    assert 0 < stopped_at < flags["total_timesteps"]
    run_pqn(parts, args=args, resume=checkpoint, **flags)
    assert weights_digest(parts) == weights_digest(whole)
    assert charts(parts) == charts(whole)


@pytest.mark.slow  # ppo_atari's game of Pong goes on in every CI
def test_a_game_of_pong_continues_where_it_was(tmp_path, atari):
    args = AtariArgs(
        env_id="PongNoFrameskip-v4", env_backend="sync", total_timesteps=96, num_envs=2, num_steps=16, update_epochs=1
    )
    train_here(pqn, tmp_path / "whole", args, algo="pqn_atari_envpool")
    train_here(pqn, tmp_path / "parts", args, algo="pqn_atari_envpool", commands=[None, None, Command.STOP])
    checkpoint = tmp_path / "parts" / "checkpoints" / "step-64"
    train_here(pqn, tmp_path / "parts", args, algo="pqn_atari_envpool", resume=checkpoint)
    assert weights_digest(tmp_path / "parts") == weights_digest(tmp_path / "whole")
    assert charts(tmp_path / "parts") == charts(tmp_path / "whole")


def test_weights_that_are_not_finite_end_the_run_and_are_never_saved(tmp_path):
    with pytest.raises(TrainingStopped, match="not finite at step 128: lower --learning-rate"):
        run_pqn(tmp_path, **{**QUICK, "learning_rate": 1e38}, max_grad_norm=1e38, checkpoint_freq=1)
    assert not (tmp_path / "checkpoints").exists()


# -- files and bad input


NAMES = {
    "network.0.weight": (120, 4),
    "network.0.bias": (120,),
    "network.1.weight": (120,),
    "network.1.bias": (120,),
    "network.3.weight": (84, 120),
    "network.3.bias": (84,),
    "network.4.weight": (84,),
    "network.4.bias": (84,),
    "network.6.weight": (2, 84),
    "network.6.bias": (2,),
}
ATARI_NAMES = {
    "network.0.weight": (32, 4, 8, 8),
    "network.0.bias": (32,),
    "network.1.weight": (32, 20, 20),
    "network.1.bias": (32, 20, 20),
    "network.3.weight": (64, 32, 4, 4),
    "network.3.bias": (64,),
    "network.4.weight": (64, 9, 9),
    "network.4.bias": (64, 9, 9),
    "network.6.weight": (64, 64, 3, 3),
    "network.6.bias": (64,),
    "network.7.weight": (64, 7, 7),
    "network.7.bias": (64, 7, 7),
    "network.10.weight": (512, 3136),
    "network.10.bias": (512,),
    "network.11.weight": (512,),
    "network.11.bias": (512,),
    "network.13.weight": (6, 512),
    "network.13.bias": (6,),
}


@pytest.mark.parametrize(
    ("make_network", "names"),
    [(lambda: QNetwork(4, 2), NAMES), (lambda: AtariQNetwork(4, 6), ATARI_NAMES)],
    ids=["vectors", "pictures"],
)
def test_parameters_have_upstream_s_names_and_shapes(make_network, names):
    assert {name: tuple(tensor.shape) for name, tensor in make_network().state_dict().items()} == names


def test_a_model_plays_as_the_learner_does(tmp_path):
    run_pqn(tmp_path, **QUICK)
    weights = {k: v.numpy() for k, v in torch.load(tmp_path / "pqn.cleanrl_model", weights_only=True).items()}
    policy = make_policy("PqnIdentity-v0", Identity.observation_space, Identity.action_space, weights)
    symbols = np.eye(3, dtype=np.float32)
    np.testing.assert_array_equal(policy.act(symbols, None), [0, 1, 2])
    rngs = [np.random.default_rng(seed) for seed in range(300)]
    sampled = policy.act(np.repeat(symbols[:1], 300, axis=0), rngs)
    assert 0 < np.count_nonzero(sampled) < 40  # 5 % at random, of which a third is right


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"num_envs": 0}, "--num-envs must be at least 1"),
        ({"q_lambda": 1.5}, "--q-lambda must be at most 1, got 1.5"),
        ({"num_minibatches": 3}, "--num-minibatches 3 does not divide the batch of 512 steps"),
        ({"env_id": "Pendulum-v1"}, "pqn needs discrete actions; Pendulum-v1 has Box actions"),
        ({"env_id": "tiny_worlds:CorridorShort-v0"}, "needs vectors or stacked frames of 84 x 84"),
    ],
)
def test_what_no_run_can_be_made_of_is_refused(tmp_path, flags, message):
    with pytest.raises(BadInput, match=message):
        run_pqn(tmp_path, **flags)


def test_a_checkpoint_of_other_environments_is_refused(tmp_path):
    run_pqn(tmp_path, **{**QUICK, "total_timesteps": 128})
    (checkpoint,) = (tmp_path / "checkpoints").glob("step-*")
    with pytest.raises(BadInput, match="made with num_envs=4, this run has 2"):
        run_pqn(tmp_path, resume=checkpoint, **QUICK, num_envs=2)
