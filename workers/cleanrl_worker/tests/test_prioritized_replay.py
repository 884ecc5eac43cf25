"""Prioritized n-step replay: its sums, its draws and its returns against plain arithmetic."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from cleanrl_worker.training.prioritized_replay import PrioritizedReplay, SumTree
from cleanrl_worker.training.replay import FrameReplay, ReplayBuffer

GAMMA = 0.9


# -- sums


@pytest.mark.parametrize("size", [1, 63, 64, 65, 5000, 300_000])
def test_a_target_falls_into_the_share_it_should(size):
    rng = np.random.default_rng(size)
    tree = SumTree(size)
    expected = np.zeros(size)
    for _ in range(5):
        rows = rng.integers(size, size=40)
        rows = np.unique(rows)
        values = rng.random(len(rows)) * rng.choice([0.0, 1.0, 100.0], size=len(rows))
        tree.put(rows, values)
        expected[rows] = values
    expected[0] += 0.5
    tree.put(np.array([0]), expected[:1])
    np.testing.assert_array_equal(tree.values, expected)
    assert tree.total == pytest.approx(expected.sum(), rel=1e-12)
    reached = expected.cumsum()
    targets = rng.random(500) * tree.total
    found = tree.find(targets)
    for target, row in zip(targets, found, strict=True):
        before = reached[row] - expected[row]
        assert before - 1e-9 <= target <= reached[row] + 1e-9
        assert expected[row] > 0


def test_the_edges_of_the_sum_never_lead_to_an_empty_row():
    tree = SumTree(200)
    tree.put(np.array([10, 150]), np.array([1e-300, 1e300]))
    assert tree.find(np.array([tree.total, 2 * tree.total])).tolist() == [150, 150]
    tree.put(np.array([150]), 0.0)
    assert tree.find(np.array([0.0, tree.total, 5.0])).tolist() == [10, 10, 10]


def test_sums_do_not_depend_on_how_they_came_about():
    rng = np.random.default_rng(3)
    grown, filled = SumTree(1000), SumTree(1000)
    for _ in range(300):
        grown.put(rng.integers(1000, size=32), rng.random(32) * 1e6)
    filled.fill(grown.values)
    assert grown.total == filled.total
    targets = rng.random(1000) * grown.total
    np.testing.assert_array_equal(grown.find(targets), filled.find(targets))


def test_of_a_row_named_twice_the_last_number_counts():
    tree = SumTree(100)
    tree.put(np.array([7, 7, 7]), np.array([1.0, 2.0, 3.0]))
    assert (tree.values[7], tree.total) == (3, 3)


# -- n steps


class History:
    """Random steps of several environments, and the plain way to add up what followed one."""

    def __init__(self, *, num_envs: int, steps: int, seed: int, p_end: float = 0.15) -> None:
        rng = np.random.default_rng(seed)
        shape = (steps, num_envs)
        self.rewards = rng.normal(size=shape).astype(np.float32)
        self.terminated = rng.random(shape) < p_end
        self.truncated = ~self.terminated & (rng.random(shape) < p_end)
        self.ended = self.terminated | self.truncated
        # Every observation is a number of its own; `final` is what followed, `obs` what to act on next.
        self.obs = np.arange(steps * num_envs, dtype=np.float32).reshape(*shape, 1)
        self.final = self.obs + 0.5
        self.actions = rng.integers(5, size=shape)

    def feed(self, replay: PrioritizedReplay, start: int, end: int) -> None:
        for t in range(start, end):
            replay.add(self.obs[t], self.actions[t], self.rewards[t], self.final[t], self.terminated[t], self.ended[t])

    def followed(self, t: int, env: int, n_step: int, upto: int) -> tuple[float, float, float] | None:
        """(return, where it led, what a value there counts); None: that is not known at step `upto` yet."""
        total = 0.0
        for k in range(n_step):
            if t + k >= upto:
                return None
            total += GAMMA**k * float(self.rewards[t + k, env])
            if self.ended[t + k, env] or k == n_step - 1:
                counts = 0.0 if self.terminated[t + k, env] else GAMMA ** (k + 1)
                return total, float(self.final[t + k, env, 0]), counts
        raise AssertionError


def make_replay(capacity: int, num_envs: int, n_step: int = 3, **options) -> PrioritizedReplay:
    space = gym.spaces.Box(-np.inf, np.inf, (1,), dtype=np.float32)
    buffer = ReplayBuffer(capacity, space, gym.spaces.Discrete(5))
    given = {"n_step": n_step, "gamma": GAMMA, "alpha": 0.5, "epsilon": 1e-6, **options}
    return PrioritizedReplay(buffer, num_envs, **given)


@pytest.mark.parametrize("n_step", [1, 2, 3, 5])
@pytest.mark.parametrize(("num_envs", "capacity"), [(1, 40), (3, 60), (4, 400)])
def test_n_steps_are_added_up_as_a_plain_loop_does(n_step, num_envs, capacity):
    history = History(num_envs=num_envs, steps=90, seed=n_step)
    replay = make_replay(capacity, num_envs, n_step)
    rng = np.random.default_rng(0)
    fed = 0
    for upto in (n_step + 2, 12, 37, 58, 90):  # before and after the ring has come round
        history.feed(replay, fed, upto)
        fed = upto
        kept = range(max(0, upto - capacity // num_envs), upto)
        expected = {
            history.obs[t, env, 0]: (found, int(history.actions[t, env]))
            for t in kept
            for env in range(num_envs)
            if (found := history.followed(t, env, n_step, upto)) is not None
        }
        # Equal priorities, and more strata than rows: whatever can be drawn is.
        batch = replay.sample(rng, 3 * capacity, 0.5)
        for i in range(3 * capacity):
            (total, led_to, counts), action = expected[float(batch.obs[i, 0])]
            assert batch.returns[i] == pytest.approx(total, abs=1e-5)
            assert batch.next_obs[i, 0] == led_to
            assert batch.discounts[i] == pytest.approx(counts, abs=1e-6)
            assert batch.actions[i] == action
        assert {float(obs) for obs in batch.obs[:, 0]} == set(expected)


def test_an_episode_that_is_broken_off_ends_as_at_a_time_limit():
    history = History(num_envs=2, steps=10, seed=0, p_end=0.0)
    replay = make_replay(40, 2, 3)
    history.feed(replay, 0, 5)
    replay.end_episodes()
    history.feed(replay, 5, 10)
    found = {}
    rng = np.random.default_rng(0)
    for _ in range(40):
        batch = replay.sample(rng, 16, 0.5)
        found |= dict(
            zip(batch.obs[:, 0].tolist(), zip(batch.next_obs[:, 0], batch.discounts, strict=True), strict=True)
        )
    for env in range(2):
        led_to, counts = found[history.obs[3, env, 0]]
        assert (led_to, counts) == (history.final[4, env, 0], pytest.approx(GAMMA**2))
        led_to, counts = found[history.obs[4, env, 0]]
        assert (led_to, counts) == (history.final[4, env, 0], pytest.approx(GAMMA))


def test_frames_that_are_stored_once_come_out_as_they_went_in():
    """The same steps in a buffer that shares pictures and in one that does not."""
    space, actions = gym.spaces.Box(0, 255, (4, 12, 12), dtype=np.uint8), gym.spaces.Discrete(5)
    options = {"n_step": 3, "gamma": GAMMA, "alpha": 0.5, "epsilon": 1e-6}
    shared = PrioritizedReplay(FrameReplay(40, space, actions, num_envs=2), 2, **options)
    plain = PrioritizedReplay(ReplayBuffer(40, space, actions), 2, **options)
    rng = np.random.default_rng(0)
    history = History(num_envs=2, steps=60, seed=1)
    obs = rng.integers(256, size=(2, 4, 12, 12), dtype=np.uint8)
    for t in range(60):
        following = np.concatenate([obs[:, 1:], rng.integers(256, size=(2, 1, 12, 12), dtype=np.uint8)], axis=1)
        for replay in (shared, plain):
            replay.add(obs, history.actions[t], history.rewards[t], following, history.terminated[t], history.ended[t])
        first = rng.integers(256, size=(2, 1, 12, 12), dtype=np.uint8).repeat(4, axis=1)
        obs = np.where(history.ended[t][:, None, None, None], first, following)
        if t > 5:
            batches = [replay.sample(np.random.default_rng(t), 16, 0.5) for replay in (shared, plain)]
            for ours, theirs in zip(*batches, strict=True):
                np.testing.assert_array_equal(ours, theirs)
            for replay in (shared, plain):
                replay.prioritize(batches[0].rows, batches[0].returns)
    assert shared.buffer.nbytes < 0.6 * plain.buffer.nbytes  # short episodes, whose beginnings share nothing


# -- draws


def test_rows_are_drawn_in_proportion_to_their_priorities():
    history = History(num_envs=1, steps=60, seed=4)
    replay = make_replay(100, 1, 1, alpha=0.6, epsilon=0.01)
    history.feed(replay, 0, 60)
    losses = np.random.default_rng(1).exponential(size=60) ** 2
    replay.prioritize(np.arange(60), losses)
    shares = (losses + 0.01) ** 0.6
    shares /= shares.sum()
    rng = np.random.default_rng(2)
    draws, batch_size = 4000, 16
    counts = np.zeros(60)
    for _ in range(draws):
        counts += np.bincount(replay.sample(rng, batch_size, 1.0).rows, minlength=60)
    expected = shares * draws * batch_size
    # Chi-squared of independent draws has mean 59 and deviation 11; drawn in strata it is smaller still.
    assert ((counts - expected) ** 2 / expected).sum() < 59 + 4 * 11
    np.testing.assert_allclose(counts.sum(), draws * batch_size)


def test_every_stratum_gives_one_row():
    replay = make_replay(100, 1, 1)
    History(num_envs=1, steps=64, seed=0).feed(replay, 0, 64)
    rng = np.random.default_rng(0)
    for _ in range(10):
        rows = replay.sample(rng, 16, 1.0).rows  # equal priorities: four rows to a stratum
        assert (rows // 4).tolist() == list(range(16))


def test_weights_are_those_of_the_paper():
    replay = make_replay(100, 1, 1, alpha=0.7, epsilon=0.0)
    History(num_envs=1, steps=50, seed=0).feed(replay, 0, 50)
    losses = np.random.default_rng(0).random(50) + 0.1
    replay.prioritize(np.arange(50), losses)
    shares = losses**0.7 / (losses**0.7).sum()
    batch = replay.sample(np.random.default_rng(1), 16, 0.4)
    expected = (50 * shares[batch.rows]) ** -0.4
    np.testing.assert_allclose(batch.weights, expected / expected.max(), rtol=1e-5)


def test_a_new_row_counts_as_the_most_surprising_so_far():
    history = History(num_envs=1, steps=11, seed=0)
    replay = make_replay(20, 1, 1, alpha=1.0, epsilon=0.0)
    history.feed(replay, 0, 10)
    replay.prioritize(np.arange(10), np.full(10, 0.001))
    replay.prioritize(np.array([3]), np.array([90.0]))
    replay.prioritize(np.array([3]), np.array([0.001]))
    history.feed(replay, 10, 11)
    rows = replay.sample(np.random.default_rng(0), 1000, 1.0).rows
    assert np.mean(rows == 10) > 0.99


def test_nothing_can_be_drawn_before_the_first_return_is_known():
    replay = make_replay(20, 1, 3)
    history = History(num_envs=1, steps=4, seed=0, p_end=0.0)
    history.feed(replay, 0, 2)
    assert not replay.ready
    with pytest.raises(ValueError, match="nothing can be drawn"):
        replay.sample(np.random.default_rng(0), 4, 1.0)
    history.feed(replay, 2, 3)
    assert replay.ready
    assert set(replay.sample(np.random.default_rng(0), 4, 1.0).rows.tolist()) == {0}


@pytest.mark.parametrize(("capacity", "num_envs"), [(41, 2), (6, 2)])
def test_a_buffer_without_room_for_n_steps_is_refused(capacity, num_envs):
    with pytest.raises(ValueError, match="no room"):
        make_replay(capacity, num_envs, 3)


# -- checkpoints


@pytest.mark.parametrize("upto", [0, 7, 33, 71])
def test_a_restored_replay_continues_to_the_bit(upto):
    history = History(num_envs=2, steps=110, seed=5)
    replay = make_replay(60, 2, 3)
    history.feed(replay, 0, upto)
    draws = np.random.default_rng(0)
    if upto:
        rows = replay.sample(draws, 16, 0.5).rows
        replay.prioritize(rows, draws.random(16) * 5)
    arrays, values = replay.snapshot()
    again = make_replay(60, 2, 3)
    saved = {}
    for segment in replay.buffer.segments():
        saved[segment.name] = [column.copy() for column in segment.columns]
        segment.release()

    def read(name, columns):
        for column, content in zip(columns, saved[name], strict=True):
            column[:] = content

    again.buffer.restore(replay.buffer.facts(), read)
    again.restore(arrays, values)
    results = []
    for one in (replay, again):
        rng, found = np.random.default_rng(9), []
        for t in range(upto, 110):
            history.feed(one, t, t + 1)
            if t > upto + 6:
                batch = one.sample(rng, 8, 0.5)
                one.prioritize(batch.rows, rng.random(8))
                found.append(batch)
        results.append(found)
    for ours, theirs in zip(*results, strict=True):
        for x, y in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(x, y)
