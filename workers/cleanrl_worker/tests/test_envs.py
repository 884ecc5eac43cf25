"""Environments: transitions at episode ends, backends, what is refused. Sets are not needed here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.training.envs import AsyncEnvs, EpisodeTracker, NativeCartPole, Step, SyncEnvs, make_envs

CORRIDOR, JOYSTICK = "tiny_worlds:CorridorShort-v0", "tiny_worlds:Joystick-v0"


def random_actions(space: gym.Space, steps: int, num_envs: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if isinstance(space, gym.spaces.Discrete):
        return rng.integers(space.n, size=(steps, num_envs))
    return rng.uniform(space.low, space.high, size=(steps, num_envs, *space.shape)).astype(np.float32)


class ByHand:
    """One environment as gymnasium makes it, stepped and reset as a person would."""

    def __init__(self, env_id: str, seed: int, **kwargs) -> None:
        self.env = gym.make(env_id, **kwargs)
        self.obs = self.see(self.env.reset(seed=seed)[0])

    def see(self, obs):
        return obs["image"] if isinstance(obs, dict) else obs

    def step(self, action):
        seen, reward, terminated, truncated, _ = self.env.step(action)
        final = self.obs = self.see(seen)
        if terminated or truncated:
            self.obs = self.see(self.env.reset()[0])
        return self.obs, np.float32(reward), terminated, truncated, final, terminated or truncated


@pytest.mark.parametrize(
    ("backend", "num_envs"), [("sync", 1), ("sync", 3), pytest.param("async", 1, marks=pytest.mark.slow), ("async", 3)]
)
@pytest.mark.parametrize(
    ("env_id", "kwargs", "steps"),
    [
        ("CartPole-v1", {}, 150),
        ("CartPole-v1", {"max_episode_steps": 9}, 60),  # ends both ways
        ("Pendulum-v1", {}, 410),
        ("Acrobot-v1", {"max_episode_steps": 30}, 100),
        (CORRIDOR, {}, 60),
        (JOYSTICK, {}, 20),
    ],
)
def test_every_transition_is_that_of_an_environment_stepped_by_hand(backend, env_id, kwargs, steps, num_envs):
    envs = make_envs(env_id, num_envs, kwargs, backend=backend)
    try:
        hands = [ByHand(env_id, 7 + index, **kwargs) for index in range(num_envs)]
        assert np.array_equal(envs.reset(7), np.stack([hand.obs for hand in hands]))
        ends = 0
        for actions in random_actions(envs.action_space, steps, num_envs):
            step = envs.step(actions)
            expected = [hand.step(action) for hand, action in zip(hands, actions, strict=True)]
            for ours, theirs in zip(step, zip(*expected, strict=True), strict=False):
                assert np.array_equal(ours, np.stack(theirs))
            ends += int(step.ended.sum())
        assert ends > num_envs
    finally:
        envs.close()


def test_both_flags_stay_when_the_last_allowed_step_also_terminates():
    envs = make_envs(CORRIDOR, 1, {"max_episode_steps": 3})
    envs.reset(0)
    envs._envs[0].unwrapped._at = 0
    for action in (0, 1):
        assert not envs.step(np.array([action])).ended
    step = envs.step(np.array([1]))  # arrives in the third and last step
    assert step.terminated.tolist() == step.truncated.tolist() == [True]


def test_the_arrays_of_a_step_stay_as_they_are():
    """Algorithms keep observations; an environment may hand out one buffer again and again."""

    class OneBuffer(gym.Env):
        observation_space = gym.spaces.Box(-100, 100, (2,), dtype=np.float32)
        action_space = gym.spaces.Box(-1, 1, (1,), dtype=np.float32)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.buffer = np.zeros(2, dtype=np.float32)
            return self.buffer, {}

        def step(self, action):
            self.buffer += action
            return self.buffer, 1.0, False, False, {}

    gym.register("OneBuffer-v0", OneBuffer)
    try:
        envs = SyncEnvs("OneBuffer-v0", 1)
        first = envs.reset(0)
        actions = np.ones((1, 1), dtype=np.float32)
        steps = [envs.step(actions) for _ in range(3)]
        assert [float(step.obs[0, 0]) for step in steps] == [1, 2, 3]
        assert first.tolist() == [[0, 0]]
        actions[:] = 0.5  # the caller's buffer; what was done with it is recorded
        envs.step(actions)
        actions[:] = -1
        fresh = SyncEnvs("OneBuffer-v0", 1)
        assert fresh.restore(envs.snapshot()).tolist() == [[3.5, 3.5]]
        with pytest.raises(ValueError, match="read-only"):
            steps[0].ended[0] = True
    finally:
        gym.registry.pop("OneBuffer-v0")


def test_a_time_limit_below_a_users_wrapper_is_left_to_gymnasium():
    """A wrapper that steps twice would be cut after as many of its own steps if we counted in its place."""

    class Twice(gym.Wrapper):
        def step(self, action):
            self.env.step(action)
            return self.env.step(action)

    env = Twice(gym.make("Pendulum-v1", max_episode_steps=10))
    envs = SyncEnvs.__new__(SyncEnvs)
    envs._adopt([env])
    envs.reset(0)
    cut = [bool(envs.step(np.zeros((1, 1), dtype=np.float32)).truncated[0]) for _ in range(10)]
    assert [index for index, is_cut in enumerate(cut) if is_cut] == [4, 9]


def test_actions_that_do_not_begin_at_zero_are_shifted():
    class FromThree(gym.Env):
        observation_space = gym.spaces.Box(-100, 100, (1,), dtype=np.float32)
        action_space = gym.spaces.Discrete(2, start=3)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return np.zeros(1, dtype=np.float32), {}

        def step(self, action):
            return np.array([action], dtype=np.float32), 0.0, False, False, {}

    gym.register("FromThree-v0", FromThree)
    try:
        for num_envs in (1, 2):
            envs = SyncEnvs("FromThree-v0", num_envs)
            envs.reset(0)
            assert envs.step(np.ones(num_envs, dtype=np.int64)).obs.ravel().tolist() == [4.0] * num_envs
    finally:
        gym.registry.pop("FromThree-v0")


# ---------------------------------------------------------------- native


def test_the_native_cartpole_moves_like_the_single_one():
    """The same states from the same state and action; resets are drawn from one generator instead of many."""
    native = make_envs("CartPole-v1", 4, backend="native")
    assert isinstance(native, NativeCartPole)
    obs = native.reset(3)
    single = gym.make("CartPole-v1").unwrapped
    single.reset(seed=0)
    lengths = np.zeros(4, dtype=int)
    for actions in random_actions(native.action_space, 400, 4):
        step = native.step(actions)
        lengths += 1
        for index, action in enumerate(actions):
            single.state, single.steps_beyond_terminated = obs[index].astype(np.float64), None
            expected, reward, terminated, _, _ = single.step(action)
            assert np.allclose(step.final_obs[index], expected, atol=1e-6)
            assert (step.rewards[index], step.terminated[index]) == (reward, terminated)
            assert step.truncated[index] == (lengths[index] >= 500)
        assert np.array_equal(step.obs[~step.ended], step.final_obs[~step.ended])
        assert (np.abs(step.obs[step.ended]) <= 0.05).all()
        lengths[step.ended] = 0
        obs = step.obs


def test_the_native_cartpole_truncates_at_its_limit():
    native = make_envs("CartPole-v1", 2, {"max_episode_steps": 5}, backend="native")
    native.reset(0)
    steps = [native.step(np.array([0, 1])) for _ in range(5)]
    assert [step.truncated.tolist() for step in steps] == [[False, False]] * 4 + [[True, True]]
    assert steps[-1].ended.all()


# ---------------------------------------------------------------- restoring


@pytest.mark.parametrize("backend", ["sync", "async", "native"])
def test_a_snapshot_is_not_touched_by_what_comes_after_it(backend):
    envs = make_envs("CartPole-v1", 2, backend=backend)
    try:
        envs.reset(1)
        actions = random_actions(envs.action_space, 60, 2)
        for row in actions[:20]:
            envs.step(row)
        state = envs.snapshot()
        first = [envs.step(row) for row in actions[20:]]
        assert envs.restore(state) is not None
        for row, earlier in zip(actions[20:], first, strict=True):
            for ours, theirs in zip(envs.step(row), earlier, strict=True):
                assert np.array_equal(ours, theirs)
    finally:
        envs.close()


def test_sync_and_async_continue_from_each_other_s_snapshots():
    envs = {backend: make_envs("Acrobot-v1", 3, backend=backend) for backend in ("sync", "async")}
    others = {backend: make_envs("Acrobot-v1", 3, backend=backend) for backend in ("sync", "async")}
    try:
        actions = random_actions(envs["sync"].action_space, 60, 3)
        for one in envs.values():
            one.reset(4)
            for row in actions[:30]:
                one.step(row)
        assert others["sync"].restore(envs["async"].snapshot()) is not None
        assert others["async"].restore(envs["sync"].snapshot()) is not None
        for row in actions[30:]:
            expected = envs["sync"].step(row)
            for other in others.values():
                assert all(np.array_equal(a, b) for a, b in zip(other.step(row), expected, strict=True))
    finally:
        for one in (*envs.values(), *others.values()):
            one.close()


def test_a_snapshot_of_other_environments_begins_anew():
    envs = SyncEnvs("CartPole-v1", 2)
    envs.reset(0)
    state = envs.snapshot()
    assert SyncEnvs("CartPole-v1", 3).restore(state) is None
    assert make_envs("CartPole-v1", 2, backend="native").restore(state) is None


def test_an_environment_with_randomness_of_its_own_begins_anew():
    class Unseeded(gym.Env):
        observation_space = gym.spaces.Box(-10, 10, (1,), dtype=np.float32)
        action_space = gym.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return np.array([np.random.default_rng().normal()], dtype=np.float32), {}

        def step(self, action):
            return np.array([np.random.default_rng().normal()], dtype=np.float32), 0.0, False, False, {}

    gym.register("AlwaysOther-v0", Unseeded)
    try:
        envs = SyncEnvs("AlwaysOther-v0", 1)
        envs.reset(0)
        envs.step(np.zeros(1, dtype=np.int64))
        assert SyncEnvs("AlwaysOther-v0", 1).restore(envs.snapshot()) is None
    finally:
        gym.registry.pop("AlwaysOther-v0")


# ---------------------------------------------------------------- processes


def test_a_step_can_be_begun_and_awaited():
    envs = AsyncEnvs("CartPole-v1", 2)
    try:
        envs.reset(0)
        envs.step_async(np.array([0, 1]))
        assert envs.step_wait().obs.shape == (2, 4)
    finally:
        envs.close()


def test_a_stop_signal_does_not_reach_the_environments():
    """It is for the training process, which needs them up to its next safe point."""
    envs = AsyncEnvs("CartPole-v1", 1)
    try:
        envs.reset(0)
        process = envs._children[0]._process
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(process.pid, number)
        assert envs.step(np.array([0])).obs.shape == (1, 4)
    finally:
        envs.close()
    assert process.poll() == 0


def test_a_process_that_is_missing_stops_training_with_the_reason():
    envs = AsyncEnvs("CartPole-v1", 2, processes=2)
    try:
        envs.reset(0)
        envs._children[1]._process.kill()
        envs._children[1]._process.wait()
        with pytest.raises(TrainingStopped, match=r"a process of CartPole-v1 ended by itself \(exit code -9\)"):
            envs.step(np.array([0, 0]))
    finally:
        envs.close()


def test_processes_end_with_the_one_that_started_them():
    program = (
        "from cleanrl_worker.training.envs import AsyncEnvs; import os, signal\n"
        "envs = AsyncEnvs('CartPole-v1', 1); envs.reset(0)\n"
        "print(envs._children[0]._process.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    # The line closes with it, and the child reads that; `_no_leaks` of the root conftest would find it otherwise.
    child = int(done.stdout)
    from mosaic_wire.testing import wait_until

    assert wait_until(lambda: not _is_running(child))


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stream:
        return stream.read().split(") ")[1][0] != "Z"


def test_what_an_environment_raises_in_its_process_is_reported():
    envs = AsyncEnvs("FrozenLake-v1", 1)
    try:
        envs.reset(0)
        with pytest.raises(TrainingStopped, match="FrozenLake-v1 failed in its process: KeyError"):
            envs.step(np.array([77]))
    finally:
        envs.close()


def test_an_environment_that_cannot_be_made_in_a_process_is_refused():
    with pytest.raises(BadInput, match="NoSuchThing"):
        make_envs("NoSuchThing-v0", 2, backend="async")


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("env_id", "pipeline", "backend", "sentence"),
    [
        ("CartPole-v1", "plain", "ale", "ale is not for the environments of this algorithm; choose auto, native, sync"),
        ("Pendulum-v1", "plain", "native", "Pendulum-v1 has no vectorized form of its own; choose sync or async"),
        ("starpilot", "procgen", "async", "--env-backend async is not for"),
        ("NoSuchThing-v0", "plain", "auto", "environment 'NoSuchThing-v0' cannot be made"),
    ],
)
def test_a_backend_that_cannot_serve_is_refused_in_a_sentence(env_id, pipeline, backend, sentence):
    with pytest.raises(BadInput) as refused:
        make_envs(env_id, 2, pipeline=pipeline, backend=backend)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("env_id", "pipeline", "backend", "missing"),
    [
        ("PongNoFrameskip-v4", "atari", "auto", "atari"),
        ("ALE/Pong-v5", "atari", "ale", "atari"),
        ("Pong-v5", "atari", "envpool", "envpool"),
        ("CartPole-v1", "plain", "envpool", "envpool"),
        ("starpilot", "procgen", "auto", "procgen"),
        ("pong_v3", "pettingzoo_atari", "auto", "pettingzoo"),
        ("MiniGrid-DoorKey-5x5-v0", "plain", "auto", "minigrid"),
        ("HalfCheetah-v5", "plain", "auto", "mujoco"),
    ],
)
def test_a_missing_set_is_named_with_its_command(env_id, pipeline, backend, missing):
    # In the base environment alone: this process may have been lent sets by other tests.
    program = (
        "from cleanrl_worker.training.envs import make_envs\n"
        f"make_envs({env_id!r}, 2, pipeline={pipeline!r}, backend={backend!r})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("cleanrl_worker.errors.BadInput: ")
    assert f"mosaic extras install {missing}" in last


# ---------------------------------------------------------------- episodes


def test_returns_are_counted_by_what_the_games_pay_and_games_by_their_ends():
    def step(rewards, raw, ended, over) -> Step:
        ended, over = np.array(ended), np.array(over)
        obs = np.zeros((2, 1))
        return Step(obs, np.array(rewards), ended, ~ended & False, obs, ended, np.array(raw), over)

    tracker = EpisodeTracker(2)
    assert tracker.add(step([1, 0], [7, 0], [True, False], [False, False])) == []  # a lost life
    state = tracker.snapshot()
    assert tracker.add(step([1, -1], [3, -2], [True, True], [True, True])) == [(10.0, 2), (-2.0, 2)]
    assert (tracker.mean_return, tracker.episodes) == (4.0, 2)
    again = EpisodeTracker(2)
    again.restore(state, mid_episode=True)
    assert again.add(step([1, -1], [3, -2], [True, True], [True, True])) == [(10.0, 2), (-2.0, 2)]
    anew = EpisodeTracker(2)
    anew.restore(state, mid_episode=False)
    assert anew.add(step([1, -1], [3, -2], [True, True], [True, True])) == [(3.0, 1), (-2.0, 1)]
