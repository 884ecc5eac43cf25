"""Pipelines: what an algorithm sees of Atari games, what evaluation sees, what the dry run says of it."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.environment_probe import probe
from cleanrl_worker.errors import BadInput
from cleanrl_worker.preflight import check_run
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY, backend_of
from cleanrl_worker.requirement_sets import sets_needed
from cleanrl_worker.training.channel import ConsoleChannel
from cleanrl_worker.training.envs import PIPELINES, make_envs, make_single, register_family
from cleanrl_worker.training.envs.construction import Atari
from cleanrl_worker.training.evaluation import evaluate
from cleanrl_worker.training.run import RunContext
from cleanrl_worker.wrappers.schedule import parse_schedule
from mosaic_extras.testing import interpreter_with, lend_sets
from mosaic_wire.ids import new_run_id
from mosaic_wire.paths import Home

WITH_LIVES, WITHOUT_FIRE = "BreakoutNoFrameskip-v4", "MsPacmanNoFrameskip-v4"

pytestmark = pytest.mark.usefixtures("atari")


def game(env_id: str, *, training: bool = True, **settings: Any) -> Any:
    """A single game with other settings than the pipeline's."""
    from cleanrl_worker.training.envs.atari import AtariGame, AtariSettings

    register_family(env_id)
    env = gym.make(env_id, frameskip=1, repeat_action_probability=0.0, obs_type="grayscale")
    return AtariGame(env, AtariSettings(**settings), whole_games=not training)


@pytest.mark.parametrize("name", [entry.name for entry in DEFAULT_ALGO_REGISTRY.values()])
def test_every_algorithm_names_a_pipeline_there_is(name):
    assert DEFAULT_ALGO_REGISTRY[name].pipeline in PIPELINES


# ---------------------------------------------------------------- pictures


def test_frames_are_those_of_gymnasium_s_own_preprocessing():
    ours = game(WITHOUT_FIRE, noops=0, life_is_episode=False)
    reference = gym.wrappers.FrameStackObservation(
        gym.wrappers.AtariPreprocessing(gym.make(WITHOUT_FIRE), noop_max=0, frame_skip=4, screen_size=84), 4
    )
    reference.reset(seed=0)
    ours.reset(seed=0)
    rng = np.random.default_rng(1)
    for count in range(600):
        action = int(rng.integers(ours.action_space.n))
        expected, reward, terminated, truncated, _ = reference.step(action)
        seen, sign, *ends, _ = ours.step(action)
        assert (ours.raw_reward, sign, *ends) == (reward, np.sign(reward), terminated, truncated)
        if terminated or truncated:
            break  # within the four frames: gymnasium then repeats the picture before
        images = min(count + 1, 4)
        assert np.array_equal(seen[-images:], expected[-images:])
    assert ours.game_over


@pytest.mark.parametrize(
    ("env_id", "pipeline", "shape"),
    [
        ("PongNoFrameskip-v4", "atari", (4, 84, 84)),
        ("ALE/Pong-v5", "atari", (4, 84, 84)),
        ("Pong-v5", "rnd", (4, 84, 84)),
        ("PongNoFrameskip-v4", "atari_single_frame", (1, 84, 84)),
    ],
)
def test_an_action_is_held_for_four_frames_whatever_the_id_says(env_id, pipeline, shape):
    envs = make_envs(env_id, 1, pipeline=pipeline)
    obs = envs.reset(0)
    assert (obs.shape, obs.dtype, envs.observation_space.shape) == ((1, *shape), np.uint8, shape)
    ale = envs._envs[0].unwrapped.ale
    before = ale.getEpisodeFrameNumber()
    step = envs.step(np.zeros(1, dtype=np.int64))
    assert ale.getEpisodeFrameNumber() == before + 4
    assert step.obs.dtype == np.uint8


@pytest.mark.parametrize(
    ("env_id", "pipeline", "kwargs", "sticky"),
    [
        ("PongNoFrameskip-v4", "atari", {}, 0.0),
        ("ALE/Pong-v5", "atari", {}, 0.25),
        ("Pong-v5", "atari", {}, 0.0),  # envpool's name, and envpool's have none
        ("Pong-v5", "rnd", {}, 0.25),
        ("ALE/Pong-v5", "atari", {"repeat_action_probability": 0.5}, 0.5),
    ],
)
def test_sticky_actions_are_as_the_id_implies(env_id, pipeline, kwargs, sticky):
    known = PIPELINES[pipeline]
    assert isinstance(known, Atari)
    assert known.stickiness(env_id, kwargs) == sticky
    env: Any = make_single(env_id, kwargs, pipeline=pipeline, training=True)
    env.reset(seed=0)
    repeated = changes = 0
    for count in range(800):
        last, asked = env._pressed, env._buttons[2 + count % 2]
        env._frame(asked)
        changes, repeated = changes + (last != asked), repeated + (env._pressed == last != asked)
    assert repeated / changes == pytest.approx(sticky, abs=0.07)
    assert env.unwrapped.ale.getFloat("repeat_action_probability") == 0  # ours, not the emulator's


def test_frames_to_hold_can_be_asked_for_and_must_be_a_number():
    env: Any = make_single("ALE/Pong-v5", {"frameskip": 2}, pipeline="atari", training=True)
    env.reset(seed=0)
    before = env.unwrapped.ale.getEpisodeFrameNumber()
    env.step(0)
    assert env.unwrapped.ale.getEpisodeFrameNumber() == before + 2
    with pytest.raises(BadInput, match="frameskip must be a whole number"):
        make_single("ALE/Pong-v5", {"frameskip": [2, 5]}, pipeline="atari")


# ---------------------------------------------------------------- beginnings and ends


def test_a_game_begins_after_some_frames_of_nothing_and_then_fire():
    begun = set()
    env: Any = make_single(WITH_LIVES, pipeline="atari", training=True)
    for seed in range(12):
        obs, _ = env.reset(seed=seed)
        frames = env.unwrapped.ale.getEpisodeFrameNumber()
        assert 1 + 8 <= frames <= 30 + 8
        assert all(np.array_equal(image, obs[0]) for image in obs)
        begun.add(frames)
    assert len(begun) > 4
    # The same seed begins the same game, however the last one went.
    first, _ = env.reset(seed=3)
    for _ in range(40):
        env.step(2)
    assert np.array_equal(env.reset(seed=3)[0], first)


def test_a_lost_life_ends_an_episode_and_the_game_continues():
    envs = make_envs(WITH_LIVES, 1, pipeline="atari")
    envs.reset(0)
    ale = envs._envs[0].unwrapped.ale
    lives, games = [], []
    for _ in range(900):
        step = envs.step(np.zeros(1, dtype=np.int64))  # the ball is never met
        if step.ended:
            assert step.terminated
            lives.append(ale.lives())
            games.append(bool(step.over[0]))
            assert not np.array_equal(step.obs, step.final_obs)
            assert all(np.array_equal(image, step.obs[0, 0]) for image in step.obs[0])
    assert lives[:10] == [4, 3, 2, 1, 5, 4, 3, 2, 1, 5]
    assert games[:10] == [False] * 4 + [True] + [False] * 4 + [True]


def test_training_and_evaluation_see_the_same_game_and_evaluation_is_paid_in_full():
    training: Any = make_single(WITHOUT_FIRE, pipeline="atari", training=True)
    judged: Any = make_single(WITHOUT_FIRE, pipeline="atari")
    seen, judged_seen = training.reset(seed=2)[0], judged.reset(seed=2)[0]
    rng = np.random.default_rng(0)
    total = paid = signs = 0.0
    lost = 0
    while True:
        assert np.array_equal(seen, judged_seen)
        action = int(rng.integers(training.action_space.n))
        judged_seen, reward, terminated, truncated, _ = judged.step(action)
        seen, sign, ended, _, _ = training.step(action)
        signs, total = signs + abs(sign), total + reward
        assert sign in (-1, 0, 1)
        paid += training.raw_reward
        if terminated or truncated:
            assert training.game_over
            break
        if ended:
            lost += 1
            seen = training.reset()[0]
    assert lost >= 2
    assert total == paid + training._owed > signs


def test_a_game_that_ends_between_two_lives_counts_as_over():
    """While the pipeline waits after a lost life no observation is read; the step before was then the game's last."""
    env: Any = make_single(WITH_LIVES, pipeline="atari", training=True)
    env.reset(seed=0)
    while not env.step(0)[2]:
        pass
    assert not env.game_over
    real = env._ale

    class EndsAtOnce:
        over = True

        def __getattr__(self, name):
            return getattr(real, name)

        def game_over(self, **_):
            return self.over

        def reset_game(self):
            self.over = False
            real.reset_game()

    env._ale = EndsAtOnce()
    env.reset()
    assert env.game_over
    assert env._lives == 5
    env._ale = real
    assert not env.step(0)[2]
    assert not env.game_over


def test_a_time_limit_ends_the_game_as_a_truncation():
    envs = make_envs(WITH_LIVES, 1, {"max_episode_steps": 7}, pipeline="atari")
    envs.reset(0)
    steps = [envs.step(np.zeros(1, dtype=np.int64)) for _ in range(14)]
    assert [index for index, step in enumerate(steps) if step.truncated] == [6, 13]
    assert [bool(step.over[0]) for step in steps] == [bool(step.truncated[0]) for step in steps]


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_what_is_not_an_atari_game_is_refused(env_id):
    with pytest.raises(BadInput, match=f"{env_id} is not an Atari game; write an id like PongNoFrameskip-v4"):
        make_envs(env_id, 1, pipeline="atari")


# ---------------------------------------------------------------- ale-py's vector environment


def test_the_ale_backend_keeps_the_convention():
    """Its transitions against C++ environments of one game each, stepped by hand, whose reset is a step of its own."""
    from ale_py.vector_env import AtariVectorEnv

    envs = make_envs(WITH_LIVES, 2, pipeline="atari", backend="ale")
    by_hand: list[Any] = [
        AtariVectorEnv("breakout", 1, life_loss_info=True, reward_clipping=False, num_threads=1) for _ in range(2)
    ]
    obs = envs.reset(5)
    assert np.array_equal(obs, np.concatenate([hand.reset(seed=5 + index)[0] for index, hand in enumerate(by_hand)]))
    rng = np.random.default_rng(0)
    lives = overs = 0
    for _ in range(500):
        actions = rng.integers(4, size=2)
        step = envs.step(actions)
        for index, hand in enumerate(by_hand):
            final, (reward,), (terminated,), (truncated,), info = hand.step(actions[index : index + 1])
            game_over = truncated or (terminated and info["lives"][0] == 0)
            assert np.array_equal(step.final_obs[index], final[0])
            assert (step.raw_rewards[index], step.rewards[index]) == (reward, np.sign(reward))
            assert (step.terminated[index], step.truncated[index]) == (terminated, truncated)
            assert (step.ended[index], step.over[index]) == (terminated or truncated, game_over)
            following = hand.step(np.zeros(1, dtype=np.int64))[0] if game_over else final  # that step is the reset
            assert np.array_equal(step.obs[index], following[0])
            lives, overs = lives + int(terminated and not game_over), overs + int(game_over)
    assert lives > overs > 1
    assert envs.restore(envs.snapshot()) is None
    envs.close()


def test_the_ale_backend_s_frames_are_ours_to_within_a_shade():
    from ale_py.vector_env import AtariVectorEnv

    theirs: Any = AtariVectorEnv("ms_pacman", 1, noop_max=0, use_fire_reset=False, reward_clipping=False, num_threads=1)
    ours = game(WITHOUT_FIRE, noops=0, life_is_episode=False)
    theirs.reset(seed=0)
    ours.reset(seed=0)
    rng = np.random.default_rng(2)
    for _ in range(150):
        action = int(rng.integers(9))
        seen = ours.step(action)[0]
        image = theirs.step(np.array([action]))[0][0]
    assert np.abs(seen.astype(int) - image).max() <= 1


def test_the_ale_backend_refuses_what_it_cannot_be_reported():
    with pytest.raises(BadInput, match="--env-backend ale takes no --env-kwargs mode"):
        make_envs("ALE/Pong-v5", 2, {"mode": 1}, pipeline="atari", backend="ale")


# ---------------------------------------------------------------- the dry run


def problems_of(home: Home, algo: str, env_id: str, **parameters: Any) -> list[str]:
    run = CleanRLWorkerConfig(new_run_id(), algo, env_id, 10_000, 1, {"algo_params": parameters})
    found = check_run(run, home.run_folder(run.run_id), home)
    return [str(problem) for problem in found.problems]


def test_the_probe_reports_what_the_algorithm_will_see():
    facts = probe("PongNoFrameskip-v4", {}, "atari")
    assert facts["observation"]["shape"] == [4, 84, 84]
    assert facts["observation"]["bytes"] == 4 * 84 * 84
    assert (facts["observation"]["kind"], facts["action"]["kind"], facts["action"]["count"]) == ("image", "discrete", 6)
    assert "is not an Atari game" in probe("CartPole-v1", {}, "atari")["problem"]
    assert probe("PonkNoFrameskip-v4", {}, "atari")["suggestion"] == "PongNoFrameskip-v4"


@pytest.mark.parametrize(("algo", "env_id"), [("ppo_atari", "CartPole-v1"), ("dqn_atari", "Pendulum-v1")])
def test_an_atari_algorithm_on_something_else_is_refused_before_it_starts(home, algo, env_id):
    home.create()
    lend_sets(home, "atari")
    small = {"buffer_size": 1000, "learning_starts": 500} if algo == "dqn_atari" else {}
    (reported,) = problems_of(home, algo, env_id, **small)
    assert f"{env_id} is not an Atari game; write an id like PongNoFrameskip-v4 or ALE/Pong-v5" in reported
    assert problems_of(home, algo, "PongNoFrameskip-v4", **small) == []


@pytest.mark.parametrize(
    ("env_id", "backend", "reported"),
    [
        ("Pendulum-v1", "native", "env_backend: --env-backend native: Pendulum-v1 has no vectorized form"),
        ("CartPole-v1", "ale", "env_backend: --env-backend ale is not for the environments of this algorithm"),
    ],
)
def test_a_backend_that_cannot_serve_is_refused_before_it_starts(home, env_id, backend, reported):
    home.create()
    algo = "ppo" if env_id == "CartPole-v1" else "ppo_continuous_action"
    (problem,) = problems_of(home, algo, env_id, env_backend=backend)
    assert problem.startswith(reported)


def test_a_missing_set_is_named_with_the_command_that_installs_it(home):
    home.create()
    (reported,) = problems_of(home, "ppo_atari", "PongNoFrameskip-v4")
    assert "requirement set 'atari' is not installed. Install: " in reported
    assert "mosaic extras install atari" in reported


@pytest.mark.parametrize(
    ("algo", "asked", "chosen"),
    [("ppo_atari_envpool", "auto", "envpool"), ("ppo_atari_envpool", "sync", "sync"), ("ppo_atari", "auto", "auto")],
)
def test_only_the_envpool_names_take_envpool_of_themselves(algo, asked, chosen):
    assert backend_of(algo, asked) == chosen


def test_a_curriculum_is_not_made_of_games(tmp_path):
    schedule = parse_schedule([{"env_id": WITH_LIVES, "steps": 10}, {"env_id": "PongNoFrameskip-v4"}])
    run = RunContext("ppo_atari", tmp_path, ConsoleChannel(), curriculum=schedule)
    with pytest.raises(BadInput, match="ppo_atari has environments of one family, which no curriculum can be made of"):
        run.make_envs(SimpleNamespace(env_id=WITH_LIVES, num_envs=1, env_kwargs="{}"))
    with pytest.raises(BadInput, match="--env-backend async: a curriculum's environments are stepped one by one"):
        run.make_envs(SimpleNamespace(env_id=WITH_LIVES, num_envs=1, env_kwargs="{}", env_backend="async"))
    run.writer.close()


def test_an_evaluation_plays_whole_games_with_the_pipeline():
    lives = []

    def act(obs: np.ndarray) -> np.ndarray:
        assert obs.shape[1:] == (4, 84, 84)
        lives.append(len(obs))
        return np.zeros(len(obs), dtype=np.int64)

    found = evaluate(WITH_LIVES, act, episodes=2, seed=3, pipeline="atari")
    assert (found.episodes, found.max_return) == (2, 0.0)
    assert len(lives) > 80  # five lives; one is some twenty steps


@pytest.mark.parametrize(
    ("algo", "env_id", "backend", "sets"),
    [
        ("ppo", "CartPole-v1", "auto", ()),
        ("ppo", "CartPole-v1", "envpool", ("envpool",)),
        ("ppo_atari_envpool", "Pong-v5", "auto", ("envpool",)),
        ("ppo_atari_envpool", "Pong-v5", "sync", ("atari",)),
        ("ppo_atari", "PongNoFrameskip-v4", "ale", ("atari",)),
    ],
)
def test_the_sets_of_a_run_follow_its_backend(algo, env_id, backend, sets):
    extras = {"algo_params": {"env_backend": backend}}
    assert sets_needed(DEFAULT_ALGO_REGISTRY[algo].spec(), env_id, extras) == sets


# ---------------------------------------------------------------- sets that are large: in make test-all

ELSEWHERE = {
    "procgen": """
envs, hand = make_envs("coinrun", 3, pipeline="procgen"), make_envs("coinrun", 3, pipeline="procgen")
obs = envs.reset(4)
assert obs.shape == (3, 64, 64, 3) and obs.dtype == np.uint8 and np.array_equal(obs, hand.reset(4))
actions = rng.integers(15, size=(1200, 3))
ends = sum(int(envs.step(row).ended.sum()) for row in actions[:600])
state, fresh = envs.snapshot(), make_envs("coinrun", 3, pipeline="procgen")
assert fresh.restore(state) is not None
for row in actions[600:]:
    ours, theirs = envs.step(row), fresh.step(row)
    ends += int(ours.ended.sum())
    assert all(np.array_equal(a, b) for a, b in zip(ours, theirs) if a is not None)
assert ends > 3
single = make_single("coinrun", pipeline="procgen")
first = single.reset(seed=7)[0]
single.step(3)
assert np.array_equal(single.reset(seed=7)[0], first)
""",
    "envpool": """
for pipeline, shape in (("atari", (4, 84, 84)), ("atari_single_frame", (1, 84, 84)), ("rnd", (4, 84, 84))):
    envs = make_envs("Breakout-v5", 3, pipeline=pipeline, backend="envpool")
    obs = envs.reset(1)
    assert obs.shape == (3, *shape)
    lives, overs = 0, 0
    for row in rng.integers(4, size=(500, 3)):
        step = envs.step(row)
        assert np.array_equal(step.obs[~step.ended], step.final_obs[~step.ended])
        assert set(step.rewards.tolist()) <= {-1, 0, 1} and not (step.over & ~step.ended).any()
        lives, overs = lives + int(step.ended.sum()), overs + int(step.over.sum())
    # Five lives a game: were every reset a new game, no game would ever be over.
    assert overs >= 3 and 4 * overs <= lives <= 5 * overs + 15, (lives, overs)
    assert envs.restore(envs.snapshot()) is None
    envs.close()
by_hand = gym.make("CartPole-v1").unwrapped
by_hand.reset(seed=0)
envs = make_envs("CartPole-v1", 2, backend="envpool")
obs, ends = envs.reset(1), 0
for row in rng.integers(2, size=(300, 2)):
    step = envs.step(row)
    for index in range(2):
        by_hand.state, by_hand.steps_beyond_terminated = obs[index].astype(float), None
        expected, _, terminated, _, _ = by_hand.step(int(row[index]))
        assert np.allclose(step.final_obs[index], expected, atol=1e-5) and step.terminated[index] == terminated
    assert (np.abs(step.obs[step.ended]) <= 0.05).all()
    obs, ends = step.obs, ends + int(step.ended.sum())
assert ends > 5
judged = make_single("Breakout-v5", pipeline="atari")
judged.reset(seed=1)
count, over = 0, False
while not over:
    _, reward, over, cut, _ = judged.step(0)
    count += 1
assert count > 80, count  # five lives, not one
""",
    "pettingzoo": """
envs = make_envs("pong_v3", 4, pipeline="pettingzoo_atari")
obs = envs.reset(0)
assert obs.shape == (4, 84, 84, 6) and obs.dtype == np.uint8
assert obs[:, 0, 0, 4].tolist() == [255, 0, 255, 0] and obs[:, 0, 0, 5].tolist() == [0, 255, 0, 255]

import ale_py, os, supersuit as ss
from pettingzoo.atari import pong_v3
roms = os.path.join(os.path.dirname(ale_py.__file__), "roms")
theirs = ss.frame_skip_v0(ss.max_observation_v0(pong_v3.parallel_env(auto_rom_install_path=roms), 2), 4)
theirs = ss.color_reduction_v0(ss.clip_reward_v0(theirs, lower_bound=-1, upper_bound=1), mode="B")
theirs = ss.agent_indicator_v0(ss.frame_stack_v1(ss.resize_v1(theirs, x_size=84, y_size=84), 4), type_only=False)
expected = theirs.reset(seed=0)[0]
players = ("first_0", "second_0")
assert np.array_equal(obs[:2], np.stack([expected[player] for player in players]))
actions = rng.integers(6, size=(2400, 4))
scored = 0
for row in actions[:200]:
    step = envs.step(row)
    expected, rewards, *_ = theirs.step(dict(zip(players, row[:2].tolist())))
    assert np.array_equal(step.final_obs[:2], np.stack([expected[player] for player in players]))
    assert step.rewards[:2].tolist() == [rewards[player] for player in players]
    scored += int((step.rewards != 0).sum())
assert scored
state, fresh = envs.snapshot(), make_envs("pong_v3", 4, pipeline="pettingzoo_atari")
assert fresh.restore(state) is not None
ends = 0
for row in actions[200:]:
    ours, others = envs.step(row), fresh.step(row)
    assert all(np.array_equal(a, b) for a, b in zip(ours, others) if a is not None)
    ends += int(ours.ended.sum())
assert ends
judged = make_single("pong_v3", pipeline="pettingzoo_atari")
assert judged.reset(seed=0)[0].shape == (84, 84, 6) and judged.step(0)[1] == 0
""",
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ELSEWHERE)
def test_pipelines_of_the_larger_sets(name):
    beginning = (
        "import gymnasium as gym, numpy as np\n"
        "from cleanrl_worker.training.envs import make_envs, make_single\n"
        "rng = np.random.default_rng(0)\n"
    )
    argv = [str(interpreter_with(name)), "-W", "ignore", "-c", beginning + ELSEWHERE[name]]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
