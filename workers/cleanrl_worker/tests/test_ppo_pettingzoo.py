"""PPO by self-play: one network for both players, which distinguishes them by their observations."""

from __future__ import annotations

import hashlib

import gymnasium as gym
import numpy as np
import pytest
import torch
from cleanrl_worker.agents import DiscreteAgent
from cleanrl_worker.algorithms.ppo import Batch, ppo_losses
from cleanrl_worker.algorithms.ppo_pettingzoo_ma_atari import Args, PlayersAgent, SelfPlayLearner, check, make_policy
from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.training.envs import EnvState, Step

UPSTREAM_SHAPES = {
    "network.0.weight": (32, 6, 8, 8),
    "network.0.bias": (32,),
    "network.2.weight": (64, 32, 4, 4),
    "network.2.bias": (64,),
    "network.4.weight": (64, 64, 3, 3),
    "network.4.bias": (64,),
    "network.7.weight": (512, 3136),
    "network.7.bias": (512,),
    "actor.weight": (2, 512),
    "actor.bias": (2,),
    "critic.weight": (1, 512),
    "critic.bias": (1,),
}
"""Names and shapes of CleanRL's model of this name, for two actions"""
LENGTH = 8


class Sides:
    """One half of the picture is bright: the first player names it, the second names the other one."""

    observation_space = gym.spaces.Box(0, 255, (84, 84, 6), dtype=np.uint8)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs

    def reset(self, seed: int) -> np.ndarray:
        self._rng, self._count = np.random.default_rng(seed), 0
        return self._show()

    def step(self, actions: np.ndarray) -> Step:
        expected = self._bright ^ (np.arange(self.num_envs) % 2)
        rewards = (actions == expected).astype(np.float32)
        self._count = (self._count + 1) % LENGTH
        ended, never = np.full(self.num_envs, self._count == 0), np.zeros(self.num_envs, dtype=np.bool_)
        obs = self._show()
        return Step(obs, rewards, never, ended, obs, ended)

    def _show(self) -> np.ndarray:
        self._bright = np.repeat(self._rng.integers(2, size=self.num_envs // 2), 2)
        obs = np.zeros((self.num_envs, 84, 84, 6), dtype=np.uint8)
        for row, side in enumerate(self._bright):
            obs[row, :, 42 * side : 42 * side + 42, 3] = 255
            obs[row, :, :, 4 + row % 2] = 255
        return obs

    def snapshot(self) -> EnvState:
        return EnvState({"bright": self._bright.copy()}, {"rng": self._rng.bit_generator.state, "count": self._count})

    def restore(self, state: EnvState) -> np.ndarray:
        self._rng = np.random.default_rng()
        self._rng.bit_generator.state = state.values["rng"]
        self._bright, self._count = state.arrays["bright"].copy(), state.values["count"]
        return np.empty(0)

    def close(self) -> None: ...


class Charts:
    """A run of which only the charts matter."""

    def __init__(self) -> None:
        self.points: list[tuple[str, int, float]] = []
        self.writer = self

    def add_scalars(self, values, step):
        self.points += [(tag, step, value) for tag, value in values.items() if tag != "charts/SPS"]

    def steps_per_second(self, step):
        return 0.0


def learner_of(iterations: int, *, learning_rate: float = 1e-3, num_envs: int = 4, **flags) -> SelfPlayLearner:
    torch.set_num_threads(1)
    args = Args(
        env_id="sides",
        num_envs=num_envs,
        num_steps=16,
        total_timesteps=16 * num_envs * iterations,
        gamma=0.0,
        learning_rate=learning_rate,
        **flags,
    )
    return SelfPlayLearner(args, Sides(num_envs), torch.device("cpu"))


def train(learner: SelfPlayLearner, until: int | None = None) -> Charts:
    charts = Charts()
    while learner.step < (until or learner.total):
        learner.learn(charts)
    return charts


def hash_of(learner: SelfPlayLearner) -> str:
    return hashlib.sha256(learner.parameters.block.detach().numpy().tobytes()).hexdigest()


@pytest.mark.slow  # a resumed training of both is compared in every CI
def test_both_players_learn_their_own_task_with_one_network():
    learner = learner_of(14, anneal_lr=False, ent_coef=0.0)
    learner.begin_episodes()
    charts = train(learner)
    envs, played = Sides(8), []
    obs = envs.reset(99)
    for _ in range(LENGTH):
        step = envs.step(learner.act(obs, None))
        played.append(step.rewards)
        obs = step.obs
    assert np.sum(played, axis=0).tolist() == [LENGTH] * 8
    for player in (0, 1):
        returns = [value for tag, _, value in charts.points if tag == f"charts/episodic_return-player{player}"]
        assert len(returns) == 2 * 14 * 16 // LENGTH  # two games, each of its own two players
        assert returns[-1] > returns[0]
    first = [value for tag, _, value in charts.points if tag == "charts/episodic_return"]
    assert first == [value for tag, _, value in charts.points if tag == "charts/episodic_return-player0"]
    weights = {name: tensor.numpy() for name, tensor in learner.model().items()}
    assert {name: array.shape for name, array in weights.items()} == UPSTREAM_SHAPES
    policy = make_policy("sides", Sides.observation_space, Sides.action_space, weights)
    np.testing.assert_array_equal(policy.act(obs, None), learner.act(obs, None))


def test_the_same_seed_gives_the_same_weights_and_a_resumed_training_too():
    straight = learner_of(4, update_epochs=1)
    straight.begin_episodes()
    charts = train(straight)
    first = learner_of(4, update_epochs=1)
    first.begin_episodes()
    train(first, until=128)
    state = first.snapshot()
    train(first)  # going on does not disturb what was taken
    second = learner_of(4, update_epochs=1)
    assert second.restore(state) == "exact"
    rest = train(second)
    assert hash_of(first) == hash_of(second) == hash_of(straight)
    assert rest.points == [point for point in charts.points if point[1] > 128]
    other = learner_of(4, update_epochs=1, seed=2)
    other.begin_episodes()
    train(other)
    assert hash_of(other) != hash_of(straight)


def test_the_network_sees_frames_and_planes_alike():
    """Bytes of both are divided by 255: the plane of the player is 1 for it and 0 for the other one."""
    seen = []
    agent = PlayersAgent(2, 6)
    agent.network.register_forward_hook(lambda module, inputs, outputs: seen.append(inputs[0]))
    obs = torch.from_numpy(Sides(2).reset(0))
    agent(obs)
    assert seen[0].shape == (2, 6, 84, 84)
    assert [float(seen[0][0, channel].max()) for channel in (3, 4, 5)] == [1, 1, 0]
    assert [float(seen[0][1, channel].max()) for channel in (3, 4, 5)] == [1, 0, 1]


def test_losses_equal_plain_arithmetic():
    rng, args, count = np.random.default_rng(2), Args(norm_adv=False, clip_vloss=False), 6

    class Table(DiscreteAgent):
        logits = torch.from_numpy(rng.normal(size=(count, 3)))
        values = torch.from_numpy(rng.normal(size=(count, 1)))

        def forward(self, obs):
            return self.logits, self.values

    old, advantages, returns, values = (torch.from_numpy(rng.normal(size=count)) for _ in range(4))
    actions = torch.from_numpy(rng.integers(3, size=count))
    losses = ppo_losses(Table(3), Batch(torch.empty(0), actions, old - 1, advantages, returns, values), args)
    odds = np.exp(Table.logits.numpy())
    probabilities = odds / odds.sum(axis=1, keepdims=True)
    policy, value, entropy = 0.0, 0.0, 0.0
    for i in range(count):
        ratio = probabilities[i, actions[i]] / np.exp(float(old[i]) - 1)
        gain = float(advantages[i])
        policy -= min(ratio * gain, min(max(ratio, 0.9), 1.1) * gain) / count
        value += 0.5 * (float(Table.values[i, 0]) - float(returns[i])) ** 2 / count
        entropy -= sum(p * np.log(p) for p in probabilities[i]) / count
    assert losses.total.item() == pytest.approx(policy - 0.01 * entropy + 0.5 * value)


def test_weights_that_are_not_finite_end_the_run():
    learner = learner_of(1, learning_rate=1e38, max_grad_norm=1e38)
    learner.begin_episodes()
    with pytest.raises(TrainingStopped, match="not finite at step 64"):
        learner.learn(Charts())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"num_envs": 3}, "--num-envs 3: each game has two players"),
        ({"num_minibatches": 3}, "does not divide the batch of 2048 steps"),
        ({"num_envs": 2, "num_steps": 2}, "too small"),
    ],
)
def test_values_no_run_can_be_made_of_are_refused(flags, message):
    with pytest.raises(BadInput, match=message):
        check(Args(**flags))


def test_vectors_cannot_be_played():
    with pytest.raises(BadInput, match="plays two-player Atari games; CartPole-v1 has observations of shape"):
        make_policy("CartPole-v1", gym.spaces.Box(0, 1, (4,)), gym.spaces.Discrete(2), {})
