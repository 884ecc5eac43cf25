"""Batched evaluation: which episodes count, what is written down, and when it stops."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import asdict

import gymnasium as gym
import numpy as np
import pytest
from cleanrl_worker.algorithms import ppo
from cleanrl_worker.algorithms.ppo import Args
from cleanrl_worker.errors import BadInput
from cleanrl_worker.eval.batched import evaluate_run, run_batched_evaluation
from cleanrl_worker.eval.policies import RandomActions
from cleanrl_worker.modes import EvaluationSettings, read_settings
from cleanrl_worker.training.envs import ObservationNormalizer
from cleanrl_worker.training.evaluation import Limits, play_episodes
from cleanrl_worker.training.run import RunContext
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

LONG = "tiny_worlds:CorridorLong-v0"
COMPAT_KEYS = {
    "batch_index",
    "episodes",
    "avg_return",
    "min_return",
    "max_return",
    "median_return",
    "std_return",
    "duration_sec",
    "updated_at",
}


class Quiet:
    def __init__(self):
        self.messages = []

    def send(self, kind, message, *, must_arrive=True):
        self.messages.append((kind, dict(message)))

    def poll(self, timeout_s=0):
        return []


class Right:
    """Always goes right; sampled, now and then left."""

    def act(self, obs, rngs):
        if rngs is None:
            return np.ones(len(obs), dtype=np.int64)
        return np.array([int(rng.random() < 0.8) for rng in rngs])


def evaluate(**settings):
    return run_batched_evaluation(lambda env: Right(), LONG, EvaluationSettings(**settings), seed=1)


def returns(report) -> list[float]:
    return [episode.episode_return for batch in report.batches for episode in batch.episodes]


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_batch_size_does_not_change_which_episodes_count(deterministic):
    one = evaluate(episodes=12, batch_size=1, deterministic=deterministic)
    many = evaluate(episodes=12, batch_size=7, deterministic=deterministic)
    assert returns(one) == returns(many)
    assert len(set(returns(one))) > 1


def test_short_episodes_do_not_crowd_out_long_ones():
    class Stand(gym.Env):
        observation_space, action_space = gym.spaces.Box(0, 1, (1,)), gym.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self._left = 1 if seed % 2 else 50
            return np.zeros(1, dtype=np.float32), {}

        def step(self, action):
            self._left -= 1
            return np.zeros(1, dtype=np.float32), 1.0, self._left == 0, False, {}

    played = play_episodes([Stand(), Stand()], lambda obs, rngs: np.zeros(len(obs)), episodes=10, seed=0)
    assert [episode.length for episode in played] == [50, 1] * 5


def test_repeats_play_other_episodes_and_the_summary_has_them_all():
    report = evaluate(episodes=5, repeat=3)
    seeds = [episode.seed for batch in report.batches for episode in batch.episodes]
    assert len(set(seeds)) == 15
    assert min(seeds) >= 1_000_000
    summary = report.summary({"algo": "ppo"})
    assert set(summary) >= COMPAT_KEYS
    assert (summary["batch_index"], len(summary["batches"]), summary["gamma"]) == (2, 3, 0.99)
    assert report.for_manifest()["episodes"] == 15
    assert report.for_manifest()["mean_return"] == pytest.approx(np.mean(returns(report)))


def test_the_discounted_return_uses_gamma():
    report = evaluate(episodes=3, gamma=0.5)
    for episode in report.batches[0].episodes:
        assert episode.discounted_return == pytest.approx(0.5 ** (episode.length - 1) * episode.episode_return)


def test_limits_cut_episodes_and_say_so():
    report = evaluate(episodes=4, max_episode_steps=2)
    assert [(episode.length, episode.cut) for episode in report.batches[0].episodes] == [(2, "steps")] * 4
    assert report.for_manifest()["cut_episodes"] == 4
    slow = play_episodes(
        [gym.make("CartPole-v1")], lambda obs, rngs: np.zeros(1), episodes=1, seed=0, limits=Limits(seconds=1e-9)
    )
    assert (slow[0].length, slow[0].cut) == (1, "seconds")


def test_a_stop_leaves_only_whole_batches():
    looks = iter([False, False, True])
    report = run_batched_evaluation(
        lambda env: Right(), LONG, EvaluationSettings(episodes=3, repeat=0), should_stop=lambda: next(looks)
    )
    assert len(report.batches) == 2


def test_videos_without_their_packages_are_refused_with_the_command_that_installs_them(tmp_path):
    if importlib.util.find_spec("imageio_ffmpeg") is not None:
        pytest.skip("imageio-ffmpeg is installed here")
    settings = EvaluationSettings(episodes=1, capture_video=True)
    with pytest.raises(BadInput, match="mosaic extras install video"):
        run_batched_evaluation(lambda env: Right(), LONG, settings, videos=tmp_path / "videos")


def test_the_normalizer_is_applied_as_it_stood():
    normalizer = ObservationNormalizer.of({"mean": np.array([1.0, 2.0]), "var": np.array([4.0, 1.0])})
    np.testing.assert_allclose(normalizer(np.array([[3.0, 2.5], [1e9, 2.0]])), [[1.0, 0.5], [10.0, 0.0]], rtol=1e-6)
    assert ObservationNormalizer.of({}) is None


@pytest.mark.parametrize(
    ("extras", "message"),
    [
        ({"eval_episodes": 0}, "a whole number from 1"),
        ({"eval_gamma": 1.5}, "a number from 0 to 1"),
        ({"eval_repeat": "often"}, "true, false or a whole number"),
        ({"eval_max_episode_seconds": -1}, "a number of seconds"),
        ({"eval_capture_video": "yes"}, "true or false"),
        ({"eval_batch_size": 2.5}, "a whole number from 0"),
    ],
)
def test_wrong_settings_are_named(extras, message):
    _, problems = read_settings(extras)
    assert [problem.path for problem in problems] == [f"extras.{next(iter(extras))}"]
    assert message in problems[0].message


def test_a_ticked_repeat_box_means_until_it_is_stopped():
    assert read_settings({"eval_repeat": True})[0].repeat == 0
    assert read_settings({"eval_repeat": False})[0].repeat == 1
    assert read_settings({"eval_repeat": 4})[0].repeat == 4


def test_evaluation_equals_the_one_after_training_and_is_written_down(tmp_path):
    """The same policy, the same seed: the figures at the end of training are those of an evaluation run."""
    run = RunContext("ppo", tmp_path / "train", Quiet())
    args = Args(total_timesteps=2048, num_steps=64, eval_episodes=6, seed=2)
    after_training = ppo.train(args, run)
    run.writer.close()
    channel, summary = Quiet(), tmp_path / "evals" / "eval_summary.json"
    request = {"policy": str(tmp_path / "train" / "checkpoints" / "step-2048"), "summary": str(summary), "episodes": 6}
    (tmp_path / "eval").mkdir()
    evaluate_run(RunContext("ppo", tmp_path / "eval", channel), channel, ppo, Args(seed=2), request)
    ending = next(message for kind, message in channel.messages if kind == "ended")
    assert ending["evaluation"]["mean_return"] == after_training.mean_return
    assert ending["evaluation"]["gamma"] == args.gamma
    written = json.loads(summary.read_text())
    assert set(written) >= COMPAT_KEYS
    assert written["avg_return"] == after_training.mean_return
    events = EventAccumulator(str(tmp_path / "eval" / "tensorboard")).Reload()
    tags = {"episode_return", "avg_return", "min_return", "max_return", "median_return", "std_return"}
    assert {f"eval/{name}" for name in tags} <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("eval/episode_return")] == [1, 2, 3, 4, 5, 6]


# ---------------------------------------------------------------- a policy that knows nothing


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Discrete(5),
        gym.spaces.Discrete(3, start=7),
        gym.spaces.Box(-2, 3, (4,), np.float32),
        gym.spaces.Box(-np.inf, np.inf, (2,), np.float64),
        gym.spaces.MultiDiscrete([2, 4]),
        gym.spaces.MultiBinary(3),
    ],
    ids=str,
)
def test_random_actions_are_all_over_the_space_and_belong_to_their_episode(space):
    actions = RandomActions(space)
    first = [np.random.Generator(np.random.PCG64(seed)) for seed in range(3)]
    drawn = np.concatenate([actions.act(np.zeros((3, 1)), first) for _ in range(100)])
    again = [np.random.Generator(np.random.PCG64(seed)) for seed in (2, 1)]
    alone = [actions.act(np.zeros((2, 1)), again) for _ in range(100)]
    assert np.array_equal(drawn[2::3], [pair[0] for pair in alone])
    assert np.array_equal(drawn[1::3], [pair[1] for pair in alone])
    is_discrete = isinstance(space, gym.spaces.Discrete)
    assert len(np.unique(drawn, axis=0)) == space.n if is_discrete else len(np.unique(drawn, axis=0)) > 5
    start = space.start if is_discrete else 0
    assert all(space.contains((action + start).astype(space.dtype)) for action in drawn)


def test_a_random_policy_is_evaluated_like_any_other(tmp_path):
    args, channel = Args(env_id="CartPole-v1", seed=4), Quiet()
    settings = read_settings({"eval_policy": "random", "eval_episodes": 30})[0]
    assert not settings.deterministic
    request = {"policy": None, "summary": str(tmp_path / "s.json"), **asdict(settings)}
    evaluate_run(RunContext("ppo", tmp_path, channel), channel, ppo, args, request)
    summary = json.loads((tmp_path / "s.json").read_text())
    assert (summary["policy"], summary["episodes"]) == ("random", 30)
    assert 12 < summary["avg_return"] < 35  # CartPole's, known to everybody
    assert "checkpoint_loaded" not in [kind for kind, _ in channel.messages]


def test_a_random_policy_needs_no_algorithm_that_fits_the_actions(tmp_path):
    request = {"policy": None, "summary": str(tmp_path / "s.json"), "episodes": 2, "deterministic": False}
    evaluate_run(RunContext("ppo", tmp_path, Quiet()), Quiet(), ppo, Args(env_id="Pendulum-v1"), request)
    assert json.loads((tmp_path / "s.json").read_text())["max_return"] < -300
