"""Running normalizers: with one environment gymnasium's own, with several the statistics of everything seen."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from cleanrl_worker.training.envs import NormalizedEnvs, ObservationNormalizer, SyncEnvs, make_envs
from cleanrl_worker.training.envs.normalization import RunningMoments

JOYSTICK = "tiny_worlds:Joystick-v0"  # ends after three steps


def too_large_actions(space: gym.spaces.Box, steps: int, num_envs: int) -> np.ndarray:
    actions = np.random.default_rng(3).normal(scale=2 * space.high, size=(steps, num_envs, *space.shape))
    return actions.astype(np.float32)


def wrapped_by_gymnasium(env_id: str, gamma: float, **kwargs) -> gym.Env:
    env = gym.wrappers.ClipAction(gym.make(env_id, **kwargs))
    env = gym.wrappers.NormalizeObservation(env)
    env.obs_rms = gym.wrappers.utils.RunningMeanStd(shape=env.observation_space.shape)  # in double precision
    env = gym.wrappers.TransformObservation(env, lambda obs: np.clip(obs, -10, 10), None)
    env = gym.wrappers.NormalizeReward(env, gamma=gamma)
    return gym.wrappers.TransformReward(env, lambda reward: np.clip(reward, -10, 10))


@pytest.mark.parametrize(
    ("env_id", "kwargs", "steps"),
    [("Pendulum-v1", {"max_episode_steps": 50}, 400), (JOYSTICK, {}, 100), ("MountainCarContinuous-v0", {}, 300)],
)
def test_one_environment_is_normalized_as_gymnasium_does_it(env_id, kwargs, steps):
    ours, theirs = NormalizedEnvs(SyncEnvs(env_id, 1, kwargs), 0.99), wrapped_by_gymnasium(env_id, 0.99, **kwargs)
    plain = gym.wrappers.ClipAction(gym.make(env_id, **kwargs))
    plain.reset(seed=5)
    assert np.allclose(ours.reset(5)[0], theirs.reset(seed=5)[0], rtol=1e-6)
    for (action,) in too_large_actions(ours.action_space, steps, 1):
        step = ours.step(action[None])
        final, reward, terminated, truncated, _ = theirs.step(action)
        assert np.allclose(step.final_obs[0], final, rtol=1e-5, atol=1e-7)
        assert np.allclose(step.rewards[0], reward, rtol=1e-5, atol=1e-7)
        assert (step.terminated[0], step.truncated[0]) == (terminated, truncated)
        assert step.raw_rewards[0] == np.float32(plain.step(action)[1])
        following = final
        if terminated or truncated:
            following = theirs.reset()[0]
            plain.reset()
        assert np.allclose(step.obs[0], following, rtol=1e-5, atol=1e-7)
        assert step.obs.dtype == step.final_obs.dtype == step.rewards.dtype == np.float32
    assert np.allclose(ours.obs_moments.var, theirs.get_wrapper_attr("obs_rms").var)
    assert np.allclose(ours.return_moments.var, theirs.get_wrapper_attr("return_rms").var)


def test_a_termination_forgets_the_discounted_return_as_gymnasium_does_it():
    class Ends(gym.Env):
        observation_space = gym.spaces.Box(-10, 10, (1,), dtype=np.float32)
        action_space = gym.spaces.Box(-1, 1, (1,), dtype=np.float32)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.np_random.normal(size=1).astype(np.float32), {}

        def step(self, action):
            draws = self.np_random.random(2)
            return np.array([draws[0]], dtype=np.float32), float(draws[1]), draws[0] < 0.2, draws[0] > 0.9, {}

    gym.register("Ends-v0", Ends)
    try:
        ours, theirs = NormalizedEnvs(SyncEnvs("Ends-v0", 1), 0.9), wrapped_by_gymnasium("Ends-v0", 0.9)
        ours.reset(1)
        theirs.reset(seed=1)
        for _ in range(200):
            reward, *ends = theirs.step(np.zeros(1))[1:4]
            assert np.allclose(ours.step(np.zeros((1, 1), dtype=np.float32)).rewards, reward, rtol=1e-5)
            if any(ends):
                theirs.reset()
    finally:
        gym.registry.pop("Ends-v0")


def test_procgen_s_terminal_reward_counts_once_and_not_into_the_next_episode():
    """Episodes of three steps that pay 10 at their end, as in a game with one coin: returns by hand, gamma 0.5."""

    class Coin(gym.Env):
        observation_space = gym.spaces.Box(0, 255, (8, 8, 3), dtype=np.uint8)
        action_space = gym.spaces.Discrete(2)
        steps = 0

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return np.zeros((8, 8, 3), np.uint8), {}

        def step(self, action):
            self.steps += 1
            over = self.steps % 3 == 0
            return np.zeros((8, 8, 3), np.uint8), 10.0 if over else 1.0, over, False, {}

    gym.register("Coin-v0", Coin)
    try:
        envs = NormalizedEnvs(SyncEnvs("Coin-v0", 1), 0.5, observations=False, zero_after_end=True)
        envs.reset(0)
        scaled = [float(envs.step(np.zeros(1, dtype=np.int64)).rewards[0]) for _ in range(6)]
    finally:
        gym.registry.pop("Coin-v0")
    returns = np.array([1, 1.5, 10.75, 1, 1.5, 10.75])
    paid = [1, 1, 10, 1, 1, 10]
    for count, (reward, found) in enumerate(zip(paid, scaled, strict=True), start=1):
        # The prior (mean 0, variance 1) weighs 1e-4, so the variance is that of the returns so far but at first.
        seen = returns[:count]
        rows = 1e-4 + count
        mean = seen.sum() / rows
        variance = (1e-4 * (1 + mean**2) + ((seen - mean) ** 2).sum()) / rows
        assert found == pytest.approx(min(reward / np.sqrt(variance + 1e-8), 10), rel=1e-4)


def test_several_environments_share_the_statistics_of_all_they_see():
    envs, plain = NormalizedEnvs(SyncEnvs(JOYSTICK, 4), 0.99), SyncEnvs(JOYSTICK, 4)
    envs.reset(0)
    seen = [plain.reset(0)]
    for actions in too_large_actions(envs.action_space, 50, 4):
        envs.step(actions)
        step = plain.step(actions.clip(-1, 1))
        seen += [step.final_obs, step.obs[step.ended]]
    everything = np.concatenate(seen).astype(np.float64)
    assert len(everything) > 4 * 51
    # The prior (mean 0, variance 1) weighs a ten-thousandth of an observation.
    assert np.allclose(envs.obs_moments.mean, everything.mean(axis=0), atol=1e-5)
    assert np.allclose(envs.obs_moments.var, everything.var(axis=0), rtol=1e-4)
    assert envs.obs_moments.count == pytest.approx(len(everything) + 1e-4)


def test_moments_do_not_depend_on_how_the_rows_came():
    rows = np.random.default_rng(0).normal(3, 5, size=(60, 2))
    at_once, singly, mixed = RunningMoments((2,)), RunningMoments((2,)), RunningMoments((2,))
    at_once.add(rows)
    for row in rows:
        singly.add(row[None])
    for part in (rows[:1], rows[1:40], rows[40:]):
        mixed.add(part)
    for one in (singly, mixed):
        assert np.allclose(one.mean, at_once.mean)
        assert np.allclose(one.var, at_once.var)


def test_values_beyond_ten_are_clipped():
    envs = NormalizedEnvs(SyncEnvs(JOYSTICK, 1), 0.99)
    envs.reset(0)
    envs.load_norm(
        {"mean": np.full(2, 100.0), "var": np.full(2, 1e-4), "count": np.array(1e9)},
        {"mean": np.array(0.0), "var": np.array(1e-8), "count": np.array(1e9), "returns": np.zeros(1)},
    )
    step = envs.step(np.ones((1, 2), dtype=np.float32))
    assert step.final_obs.tolist() == [[-10, -10]]
    assert step.rewards.tolist() == [-10]
    assert step.raw_rewards[0] > -10


def test_a_snapshot_continues_to_the_bit_and_evaluation_does_not_move_it():
    first = NormalizedEnvs(make_envs("Pendulum-v1", 2), 0.9)
    first.reset(1)
    actions = too_large_actions(first.action_space, 60, 2)
    for row in actions[:30]:
        obs = first.step(row).obs
    arrays, state = first.norm_arrays(), first.snapshot()
    frozen = first.normalizer()
    later = [first.step(row) for row in actions[30:]]

    fresh = NormalizedEnvs(make_envs("Pendulum-v1", 2), 0.9)
    parts = {
        part: {name.removeprefix(f"{part}."): array for name, array in arrays.items() if name.startswith(f"{part}.")}
        for part in ("obs_norm", "return_norm")
    }
    fresh.load_norm(parts["obs_norm"], parts["return_norm"])
    assert np.allclose(fresh.restore(state), obs, rtol=1e-5)
    for row, expected in zip(actions[30:], later, strict=True):
        for ours, theirs in zip(fresh.step(row), expected, strict=True):
            assert np.array_equal(ours, theirs)
    # What an evaluation makes of the checkpoint's arrays is what training saw at that moment.
    evaluating = ObservationNormalizer.of(parts["obs_norm"])
    raw = first.inner._obs
    assert np.array_equal(evaluating(raw), frozen(raw))


def test_only_rewards_are_scaled_where_observations_are_frames():
    envs = NormalizedEnvs(SyncEnvs("tiny_worlds:CorridorShort-v0", 2), 0.99, observations=False)
    obs = envs.reset(0)
    assert obs.dtype == np.uint8
    assert envs.normalizer() is None
    steps = [envs.step(np.array([1, 1])) for _ in range(6)]
    assert {name.partition(".")[0] for name in envs.norm_arrays()} == {"return_norm"}
    ends = [step for step in steps if step.ended.any()]
    assert ends
    assert all(step.obs.dtype == np.uint8 for step in steps)
    assert any((step.rewards != step.raw_rewards).any() for step in ends)
    assert all(np.array_equal(step.obs[~step.ended], step.final_obs[~step.ended]) for step in steps)
    assert any((step.obs[step.ended] != step.final_obs[step.ended]).any() for step in ends)
