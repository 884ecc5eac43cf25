"""FastLane in the training process: pictures for whoever looks, words where there can be none, no cost otherwise."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from cleanrl_worker import fastlane
from cleanrl_worker.fastlane import FastLaneSettings, as_frame, fastlane_variables, shrink, tiled
from cleanrl_worker.training.envs import EpisodeTracker, make_envs
from cleanrl_worker.training.rendering import WatchedEnvs, watched
from mosaic_wire.frames import Frame, FrameReader, fastlane_path
from mosaic_wire.ids import new_run_id


@pytest.fixture
def run_id() -> Iterator[str]:
    run_id = new_run_id()
    yield run_id
    assert not fastlane_path(run_id).exists(), "the shared memory was left behind"


def look(reader: FrameReader, act: Callable[[], Any]) -> Frame:
    """Step until a picture comes, as a viewer does."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        frame = reader.read()
        if frame is not None:
            return frame
        act()
    raise AssertionError(f"no picture came: {reader.notice()}")


def stepping(envs: Any, episodes: EpisodeTracker | None = None) -> Callable[[], None]:
    rng = np.random.default_rng(0)
    envs.reset(1)

    def act() -> None:
        step = envs.step(rng.integers(envs.action_space.n, size=envs.num_envs))
        if episodes is not None:
            episodes.add(step)

    return act


@pytest.mark.parametrize(
    ("num_envs", "backend"), [(1, "sync"), (3, "sync"), (8, "native"), (2, "async")], ids=lambda value: str(value)
)
def test_a_viewer_sees_the_environment_that_is_trained_in(run_id: str, num_envs: int, backend: str) -> None:
    inner = make_envs("CartPole-v1", num_envs, backend=backend)
    envs = watched(inner, FastLaneSettings(run_id, "single", slot=num_envs - 1))
    episodes = EpisodeTracker(num_envs)
    assert isinstance(envs, WatchedEnvs)
    envs.follow(episodes)
    act = stepping(envs, episodes)
    for _ in range(300):
        act()
    reader = FrameReader(fastlane_path(run_id))
    frame = look(reader, act)
    assert (frame.width, frame.height) == (600, 400)
    assert len(set(frame.pixels)) > 2  # there is something on it
    assert frame.last_reward == 1.0
    assert frame.rolling_return > 5
    assert frame.step_rate_hz > 1
    envs.close()


def test_watching_changes_nothing(run_id: str) -> None:
    plain, seen = (
        make_envs("CartPole-v1", 2),
        WatchedEnvs(make_envs("CartPole-v1", 2), FastLaneSettings(run_id, "single")),
    )
    reader, rng = FrameReader(fastlane_path(run_id)), np.random.default_rng(3)
    assert np.array_equal(plain.reset(5), seen.reset(5))
    images = 0
    for _ in range(400):
        actions = rng.integers(2, size=2)
        ours, theirs = plain.step(actions), seen.step(actions)
        images += reader.read() is not None
        for mine, other in zip(ours, theirs, strict=True):
            assert mine is other or np.array_equal(mine, other)
    assert images
    assert plain.snapshot().values == seen.snapshot().values
    plain.close()
    seen.close()


def test_nothing_is_drawn_when_there_is_no_viewer(run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    envs = WatchedEnvs(make_envs("CartPole-v1", 1), FastLaneSettings(run_id, "single"))
    monkeypatch.setattr(envs, "_draw", lambda step: drawn.append(step) or "nothing")
    act = stepping(envs)
    for _ in range(500):
        act()
    assert drawn == []
    envs.close()


def test_a_grid_shows_several(run_id: str) -> None:
    settings = FastLaneSettings(run_id, "grid", grid_limit=3, max_side=400)
    envs = WatchedEnvs(make_envs("CartPole-v1", 5), settings)
    frame = look(FrameReader(fastlane_path(run_id)), stepping(envs))
    assert (frame.width, frame.height) == (400, 267)  # two by two tiles of 600 × 400, every third pixel
    envs.close()


def test_what_cannot_be_drawn_reports_it(run_id: str) -> None:
    class Dark(gym.Env):
        observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        action_space = gym.spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
            super().reset(seed=seed)
            return np.zeros(2, np.float32), {}

        def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
            return np.zeros(2, np.float32), 0.0, False, False, {}

    gym.register("Dark-v0", entry_point=Dark)
    try:
        envs = WatchedEnvs(make_envs("Dark-v0", 1), FastLaneSettings(run_id, "single"))
        reader, act = FrameReader(fastlane_path(run_id)), stepping(envs)
        for _ in range(2_000):
            assert reader.read() is None
            act()
            if reader.notice():
                break
        assert reader.notice() == "Dark-v0 cannot be drawn: it has no render mode rgb_array"
        envs.close()
    finally:
        del gym.registry["Dark-v0"]


def test_frames_become_tiles_and_smaller() -> None:
    red, blue = np.zeros((4, 6, 3), np.uint8), np.zeros((2, 3, 3), np.uint8)
    red[..., 0], blue[..., 2] = 255, 255
    whole = tiled([red, blue, red])
    assert whole.shape == (8, 12, 3)
    assert (whole[0, 0].tolist(), whole[0, 6].tolist(), whole[3, 6].tolist()) == ([255, 0, 0], [0, 0, 255], [0, 0, 0])
    assert shrink(whole, 6).shape == (4, 6, 3)
    assert shrink(whole, 0) is whole
    assert as_frame(np.zeros((5, 4), np.uint8)).shape == (5, 4, 3)  # type: ignore[union-attr]
    for odd in (None, np.zeros((3, 3, 3), np.float32), np.zeros((3, 3, 4), np.uint8), "picture"):
        assert as_frame(odd) is None


@pytest.mark.parametrize(
    ("extras", "expected"),
    [
        ({}, {}),
        ({"fastlane_enabled": False, "fastlane_video_mode": "grid"}, {"GYM_GUI_FASTLANE_VIDEO_MODE": "off"}),
        (
            {"fastlane_video_mode": "grid", "fastlane_grid_limit": 9, "fastlane_slot": 2, "fastlane_only": True},
            {
                "GYM_GUI_FASTLANE_VIDEO_MODE": "grid",
                "GYM_GUI_FASTLANE_GRID_LIMIT": "9",
                "GYM_GUI_FASTLANE_SLOT": "2",
                "GYM_GUI_FASTLANE_ONLY": "1",
            },
        ),
    ],
)
def test_extras_become_variables(extras: dict[str, Any], expected: dict[str, str]) -> None:
    assert fastlane_variables(extras) == expected


def test_settings_come_from_variables() -> None:
    assert not FastLaneSettings.from_environment({}).is_on
    found = FastLaneSettings.from_environment(
        {
            "MOSAIC_RUN_ID": "r",
            "GYM_GUI_FASTLANE_VIDEO_MODE": "grid",
            "GYM_GUI_FASTLANE_GRID_LIMIT": "x",
            "CLEANRL_FASTLANE_INTERVAL_MS": "100",
            "CLEANRL_FASTLANE_MAX_DIM": "320",
        }
    )
    assert found == FastLaneSettings("r", "grid", 0, 4, 0.1, 320)
    assert found.slots(2) == [0, 1]
    assert FastLaneSettings("r", "single", slot=7).slots(4) == [3]


# ------------------------------------------------------------------ scripts


@pytest.fixture
def script_lane(run_id: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setenv("MOSAIC_RUN_ID", run_id)
    monkeypatch.setattr(fastlane, "_lane", None)
    wrappers: list[Any] = []
    fastlane.install(wrappers)
    assert wrappers == [fastlane.wrap]
    return wrappers


def test_of_a_scripts_environments_the_chosen_one_is_wrapped_and_seen(run_id: str, script_lane: list[Any]) -> None:
    made = [fastlane.wrap(gym.make("CartPole-v1")) for _ in range(3)]
    assert [type(env).__name__ for env in made] == ["FastLaneTelemetryWrapper", *[type(made[1]).__name__] * 2]
    env = made[0]
    assert isinstance(env, gym.Wrapper)
    env.reset(seed=1)

    def act() -> None:
        if any(env.step(env.action_space.sample())[2:4]):
            env.reset()

    for _ in range(100):
        act()
    frame = look(FrameReader(fastlane_path(run_id)), act)
    assert (frame.width, frame.height) == (600, 400)
    assert frame.rolling_return > 0
    for each in made:
        each.close()


def test_a_scripts_grid(run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOSAIC_RUN_ID", run_id)
    monkeypatch.setenv("GYM_GUI_FASTLANE_VIDEO_MODE", "grid")
    monkeypatch.setattr(fastlane, "_lane", None)
    fastlane.install([])
    vector = gym.vector.SyncVectorEnv([lambda: fastlane.wrap(gym.make("CartPole-v1"))] * 6)
    vector.reset(seed=1)
    reader = FrameReader(fastlane_path(run_id))
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        vector.step(vector.action_space.sample())
        frame = reader.read()
        if frame is not None and frame.width == 1200:
            break
    assert frame is not None
    assert (frame.width, frame.height) == (1200, 800)  # four tiles
    vector.close()


def test_an_environment_process_knows_which_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fastlane.env_index(3) == 3
    process = sys.modules["multiprocessing"].current_process()
    monkeypatch.setattr(process, "_name", "Worker<AsyncVectorEnv>-5", raising=False)
    assert fastlane.env_index(0) == 5
