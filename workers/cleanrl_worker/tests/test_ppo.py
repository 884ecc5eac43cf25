"""PPO: its arithmetic against plain loops, its transitions at episode ends, and that it learns, the same each time."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from cleanrl_worker.algorithms.ppo import Agent, Args, Batch, PpoLearner, generalized_advantages, ppo_losses, train
from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.training.args import check_args
from cleanrl_worker.training.channel import Command
from cleanrl_worker.training.envs import NativeCartPole, SyncEnvs, make_envs
from cleanrl_worker.training.evaluation import evaluate
from cleanrl_worker.training.fast_cpu.networks import NumpyMlp
from cleanrl_worker.training.optimizers import FlatParameters
from cleanrl_worker.training.policies import log_softmax
from cleanrl_worker.training.run import RunContext, Stop


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
    resets: ClassVar[int] = 0

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
    gym.register("Identity-v0", Identity)
    gym.register("Corridor-v0", Corridor)
    torch.set_num_threads(1)
    yield
    del gym.registry["Identity-v0"], gym.registry["Corridor-v0"]


class Quiet:
    """A channel without a listener; sends the commands it was given, one poll at a time."""

    def __init__(self, *commands):
        self.commands = list(commands)
        self.messages = []

    def send(self, kind, message, *, must_arrive=True):
        self.messages.append(kind)

    def poll(self, timeout_s=0):
        return [self.commands.pop(0)] if self.commands else []


def run_ppo(folder: Path, *commands, **flags):
    run = RunContext("ppo", folder, Quiet(*commands))
    result = train(Args(**flags), run)
    run.writer.close()
    return run, result


# -- arithmetic


def test_advantages_equal_a_plain_loop():
    rng = np.random.default_rng(0)
    steps, envs, gamma, lam = 40, 3, 0.97, 0.9
    rewards, values, next_values = rng.normal(size=(3, steps, envs))
    terminated = rng.random((steps, envs)) < 0.1
    ended = terminated | (rng.random((steps, envs)) < 0.1)
    expected = np.zeros((steps, envs))
    for env in range(envs):
        for start in range(steps):
            weight = 1.0
            for t in range(start, steps):
                future = 0.0 if terminated[t, env] else gamma * next_values[t, env]
                expected[start, env] += weight * (rewards[t, env] + future - values[t, env])
                if ended[t, env]:
                    break
                weight *= gamma * lam
    found = generalized_advantages(rewards, values, next_values, terminated, ended, gamma, lam)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_losses_equal_plain_arithmetic():
    torch.manual_seed(0)
    agent, rng = Agent(4, 3), np.random.default_rng(1)
    count = 16
    obs = torch.from_numpy(rng.normal(size=(count, 4)).astype(np.float32))
    actions = torch.from_numpy(rng.integers(3, size=count))
    old, advantages, returns, values = (torch.from_numpy(rng.normal(size=count).astype(np.float32)) for _ in range(4))
    args = Args()
    losses = ppo_losses(agent, Batch(obs, actions, old - 1, advantages, returns, values), args)
    with torch.no_grad():
        probabilities = torch.softmax(agent.actor(obs), dim=1).numpy().astype(float)
        predicted = agent.critic(obs)[:, 0].numpy().astype(float)
    normal = (advantages.numpy() - advantages.numpy().mean()) / (advantages.numpy().std(ddof=1) + 1e-8)
    policy, value, entropy = [], [], []
    for i in range(count):
        ratio = probabilities[i, actions[i]] / np.exp(float(old[i]) - 1)
        policy.append(-min(ratio * normal[i], min(max(ratio, 0.8), 1.2) * normal[i]))
        clipped = float(values[i]) + min(max(predicted[i] - float(values[i]), -0.2), 0.2)
        value.append(0.5 * max((predicted[i] - float(returns[i])) ** 2, (clipped - float(returns[i])) ** 2))
        entropy.append(-sum(p * np.log(p) for p in probabilities[i]))
    assert losses.policy.item() == pytest.approx(np.mean(policy), rel=1e-4)
    assert losses.value.item() == pytest.approx(np.mean(value), rel=1e-4)
    assert losses.entropy.item() == pytest.approx(np.mean(entropy), rel=1e-4)
    expected = np.mean(policy) - 0.01 * np.mean(entropy) + 0.5 * np.mean(value)
    assert losses.total.item() == pytest.approx(expected, rel=1e-4)


def test_numpy_sees_the_network_torch_trains():
    agent = Agent(4, 2)
    parameters = FlatParameters(agent)
    actor = NumpyMlp(parameters, "actor", agent.actor)
    obs = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    optimizer = torch.optim.Adam([parameters.block], lr=0.1, fused=True)
    agent.actor(torch.from_numpy(obs)).square().sum().backward()
    optimizer.step()
    with torch.no_grad():
        np.testing.assert_allclose(actor(obs), agent.actor(torch.from_numpy(obs)).numpy(), rtol=1e-5, atol=1e-6)


def test_gradients_are_clipped_as_torch_does():
    torch.manual_seed(1)
    agent, reference = Agent(4, 2), Agent(4, 2)
    reference.load_state_dict(agent.state_dict())
    parameters = FlatParameters(agent)
    obs = torch.ones(3, 4)
    for module in (agent, reference):
        (100 * module.critic(obs)).sum().backward()
    parameters.clip_gradients(0.5)
    torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
    for ours, theirs in zip(agent.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad if theirs.grad is not None else torch.zeros_like(theirs))


# -- transitions at episode ends


def collect(env_id: str, num_envs: int, num_steps: int) -> tuple[PpoLearner, Quiet]:
    args = Args(env_id=env_id, num_envs=num_envs, num_steps=num_steps, num_minibatches=1)
    trainer = PpoLearner(args, make_envs(env_id, num_envs), torch.device("cpu"))
    trainer.next_obs = trainer.envs.reset(args.seed).astype(np.float32)
    return trainer


class NoRun:
    class writer:
        add_scalars = staticmethod(lambda values, step: None)


def test_no_phantom_step_is_stored_and_truncation_is_bootstrapped():
    trainer = collect("Corridor-v0", 2, 12)
    trainer.collect(NoRun())
    rollout = trainer.rollout
    for env in range(2):
        for t in range(12):
            count = rollout.obs[t, env, 0]
            assert rollout.rewards[t, env] == 1  # a phantom step would have reward 0
            if rollout.ended[t, env]:
                assert count == (2 if rollout.terminated[t, env] else 4)
                assert rollout.obs[t + 1, env, 0] == 0
            else:
                assert rollout.obs[t + 1, env, 0] == count + 1
    cut = {(t, env) for t, envs, _ in rollout.truncations for env in envs}
    assert cut == {(t, e) for t, e in np.argwhere(rollout.ended & ~rollout.terminated)}
    assert all(last == 5 for _, _, observations in rollout.truncations for last in observations[:, 0])
    # The last step of a truncated episode is worth 1 + γ V(its last observation), of a terminated one 1.
    batch = trainer.batch()
    returns, values = batch.returns.reshape(12, 2), batch.values.reshape(12, 2)
    beyond = trainer.acting.values(np.array([[5]], dtype=np.float32))[0]
    for t, env in np.argwhere(rollout.ended):
        expected = 1.0 if rollout.terminated[t, env] else 1.0 + 0.99 * beyond
        assert returns[t, env] == pytest.approx(expected, rel=1e-5)
    assert values.shape == returns.shape
    assert rollout.ended.any()


def test_native_cartpole_steps_as_the_single_environment_does():
    """Every stored transition of the native vector environment, replayed in gymnasium's single CartPole."""
    native = NativeCartPole("CartPole-v1", 6)
    rng = np.random.default_rng(5)
    native.reset(7)
    single = gym.make("CartPole-v1").unwrapped
    single.reset(seed=0)
    ends = 0
    for _ in range(300):
        before = native._env.state.copy()
        actions = rng.integers(2, size=6)
        step = native.step(actions)
        for env in range(6):
            single.state, single.steps_beyond_terminated = before[:, env].copy(), None
            obs, reward, terminated, _, _ = single.step(int(actions[env]))
            np.testing.assert_array_equal(step.final_obs[env], obs)
            assert (step.rewards[env], step.terminated[env]) == (reward, terminated)
            if step.ended[env]:
                ends += 1
                assert np.abs(step.obs[env]).max() <= 0.05
            else:
                np.testing.assert_array_equal(step.obs[env], obs)
    assert ends > 20


def test_native_cartpole_is_cut_at_its_time_limit():
    native = NativeCartPole("CartPole-v1", 6)
    native.reset(1)
    native._env.steps[:] = 498
    assert not native.step(np.zeros(6, dtype=np.int64)).truncated.any()
    step = native.step(np.zeros(6, dtype=np.int64))
    assert step.truncated.all()
    assert not step.terminated.any()
    assert not native.step(np.zeros(6, dtype=np.int64)).ended.any()


@pytest.mark.parametrize(("env_id", "num_envs"), [("CartPole-v1", 8), ("CartPole-v1", 2), ("FrozenLake-v1", 2)])
def test_environments_continue_from_a_snapshot_to_the_bit(env_id, num_envs):
    envs, rng = make_envs(env_id, num_envs), np.random.default_rng(0)
    envs.reset(3)
    actions = rng.integers(2, size=(120, num_envs))
    for t in range(47):
        obs = envs.step(actions[t]).obs
    state = envs.snapshot()
    fresh = make_envs(env_id, num_envs)
    np.testing.assert_array_equal(fresh.restore(state), obs)
    for t in range(47, 120):
        for ours, theirs in zip(envs.step(actions[t]), fresh.step(actions[t]), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_an_environment_that_does_not_repeat_itself_is_not_said_to():
    class Unseeded(Corridor):
        def step(self, action):
            obs, *rest = super().step(action)
            return obs + np.random.default_rng().random(1).astype(np.float32), *rest

    gym.register("Unseeded-v0", Unseeded)
    try:
        envs = SyncEnvs("Unseeded-v0", 1)
        envs.reset(0)
        envs.step(np.zeros(1, dtype=np.int64))
        assert SyncEnvs("Unseeded-v0", 1).restore(envs.snapshot()) is None
    finally:
        del gym.registry["Unseeded-v0"]


# -- learning


def test_the_identity_environment_is_solved(tmp_path):
    _, evaluation = run_ppo(
        tmp_path,
        env_id="Identity-v0",
        total_timesteps=8192,
        learning_rate=3e-3,
        num_steps=32,
        gamma=0.5,
        eval_episodes=10,
    )
    assert evaluation.mean_return == 4
    assert (evaluation.episodes, evaluation.std_return) == (10, 0)


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(tmp_path):
    def weights(name: str, seed: int) -> bytes:
        run_ppo(tmp_path / name, env_id="CartPole-v1", total_timesteps=2048, num_envs=8, num_steps=32, seed=seed)
        saved = torch.load(tmp_path / name / "ppo.cleanrl_model", weights_only=True)
        return b"".join(tensor.numpy().tobytes() for tensor in saved.values())

    for name in "abc":
        (tmp_path / name).mkdir()
    first = weights("a", 1)
    assert weights("b", 1) == first
    assert weights("c", 2) != first


def test_training_ends_early_at_the_return_asked_for(tmp_path):
    run, _ = run_ppo(tmp_path, env_id="Identity-v0", total_timesteps=1_000_000, num_steps=32, stop_at_return=0.5)
    assert run.stopped is None
    assert run._step < 10_000
    assert run.stopped_early == "100 episodes averaged a return of 0.5 (--stop-at-return)"


def test_weights_that_are_not_finite_end_the_run_and_are_never_saved(tmp_path):
    with pytest.raises(TrainingStopped, match="not finite at step 128"):
        run_ppo(tmp_path, env_id="Identity-v0", num_steps=32, learning_rate=1e38, max_grad_norm=1e38, checkpoint_freq=1)
    assert not (tmp_path / "checkpoints").exists()


def test_evaluation_counts_one_whole_episode_per_environment():
    found = evaluate("Corridor-v0", lambda obs: np.ones(len(obs), dtype=np.int64), episodes=70, seed=0)
    assert (found.episodes, found.mean_return, found.min_return, found.max_return) == (70, 3, 3, 3)
    assert evaluate("Corridor-v0", lambda obs: obs, episodes=5, seed=0, should_stop=lambda: True) is None


# -- control


def test_commands_are_obeyed_at_the_safe_point(tmp_path):
    run, _ = run_ppo(
        tmp_path, Command.PAUSE, Command.PAUSE, Command.RESUME, Command.RELEASE, env_id="Identity-v0", num_steps=32
    )
    assert run.stopped is Stop.RELEASED
    kinds = [kind for kind in run._channel.messages if kind != "progress"]
    assert kinds == ["parameters", "checkpoint_saved", "paused", "resumed", "checkpoint_saved", "policy"]


def test_stop_saves_where_training_is(tmp_path):
    run, evaluation = run_ppo(tmp_path, Command.STOP, env_id="Identity-v0", num_steps=32, eval_episodes=5)
    assert (run.stopped, evaluation) == (Stop.CANCELLED, None)
    assert (tmp_path / "checkpoints" / "step-0" / "state.json").is_file()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"num_envs": 0}, "--num-envs must be at least 1"),
        ({"num_envs": 0, "gamma": 1.5}, "--num-envs must be at least 1, got 0; --gamma must be at most 1, got 1.5"),
        ({"num_minibatches": 3}, "--num-minibatches 3 does not divide the batch of 512 steps"),
        ({"num_envs": 1, "num_steps": 4}, "too small"),
        ({"eval_episodes": -1}, "--eval-episodes must be at least 0, got -1"),
    ],
)
def test_values_no_run_can_be_made_of_are_refused(flags, message):
    with pytest.raises(BadInput, match=message):
        check_args(Args(**flags))


def test_log_softmax_sums_to_one():
    logits = np.array([[1000.0, 1001.0, 999.0]], dtype=np.float32)
    assert np.exp(log_softmax(logits)).sum() == pytest.approx(1)
