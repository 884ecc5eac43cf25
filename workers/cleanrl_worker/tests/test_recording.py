"""Videos: when one is due, that it is whole and readable, and that training is the same with and without."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from cleanrl_worker.algorithms import ppo
from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.errors import BadInput
from cleanrl_worker.eval.batched import run_batched_evaluation
from cleanrl_worker.modes import EvaluationSettings
from cleanrl_worker.preflight import check_run
from cleanrl_worker.testing import charts, train_here, weights_digest
from cleanrl_worker.training.rendering import MAX_STEPS, Recorder, newest_due
from mosaic_extras.testing import importing, lend_sets
from mosaic_wire.ids import new_run_id
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.testing import WorkerProcess

PATIENCE_S = 120
FPS = 10


class Blink(gym.Env):
    """A picture with odd sides that grows brighter; `length` steps, and from `dark_at` on it cannot be drawn."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": FPS}
    observation_space = gym.spaces.Box(0, 1, (1,), dtype=np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length: int = 4, dark_at: int | None = None, render_mode: str | None = None) -> None:
        self._length, self._dark_at, self.render_mode = length, dark_at, render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._count = 0
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action):
        self._count += 1
        return np.zeros(1, dtype=np.float32), 1.0, False, self._count == self._length, {}

    def render(self):
        if self._count == self._dark_at:
            raise RuntimeError("the lamp is broken")
        return np.full((17, 31, 3), self._count % 256, dtype=np.uint8)


class Blind(Blink):
    """Says that it has no pictures."""

    metadata = {"render_modes": []}


class Left:
    """Always the first action; writes down whose observations it was given."""

    def __init__(self) -> None:
        self.followed: list[list[int]] = []

    def act(self, obs, rng):
        return np.zeros(len(obs), dtype=np.int64)

    def set_episodes(self, episodes):
        self.followed.append(list(episodes))


@pytest.fixture(autouse=True)
def _worlds() -> Iterator[None]:
    gym.register("Blink-v0", Blink)
    gym.register("Blind-v0", Blind)
    yield
    del gym.registry["Blink-v0"], gym.registry["Blind-v0"]


@pytest.fixture
def video() -> Iterator[None]:
    """Videos can be written in this process, and after the test no longer."""
    with importing("video"):
        yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "imageio_ffmpeg"]:
        del sys.modules[name]


def facts_of(path: Path) -> tuple[int, float, tuple[int, int]]:
    """Pictures, pictures per second, width and height, as a player of the file gets them."""
    import imageio_ffmpeg

    images, _ = imageio_ffmpeg.count_frames_and_secs(str(path))
    looked = subprocess.run([imageio_ffmpeg.get_ffmpeg_exe(), "-i", path], capture_output=True, text=True, check=False)
    stream = re.search(r"Video: h264.* (\d+)x(\d+).* ([\d.]+) fps", looked.stderr)
    assert stream is not None, looked.stderr
    return images, float(stream[3]), (int(stream[1]), int(stream[2]))


def flags(**changed) -> ppo.Args:
    return ppo.Args(**{"exp_name": "ppo", "total_timesteps": 2048, "num_steps": 64, "cuda": False, **changed})


def told_videos(run) -> list[str]:
    return [facts["path"] for kind, facts in run._channel.messages if kind == "video"]


def test_the_moments_are_gymnasium_s():
    changes = [n for n in range(3500) if n == 0 or newest_due(n) != newest_due(n - 1)]
    assert changes == [0, 1, 8, 27, 64, 125, 216, 343, 512, 729, 1000, 2000, 3000]
    assert all(newest_due(n) == n for n in changes)


@pytest.mark.usefixtures("video")
def test_training_is_recorded_and_the_same_as_without(tmp_path):
    with_videos, _ = train_here(ppo, tmp_path / "with", flags(capture_video=True))
    train_here(ppo, tmp_path / "without", flags())
    assert weights_digest(tmp_path / "with") == weights_digest(tmp_path / "without")
    of_both = charts(tmp_path / "with" / "tensorboard"), charts(tmp_path / "without" / "tensorboard")
    assert of_both[0] == of_both[1]
    assert of_both[0]
    reported = told_videos(with_videos)
    assert reported[0] == "videos/rl-video-episode-0.mp4"
    assert "videos/rl-video-episode-64.mp4" in reported
    assert sorted(path.name for path in (tmp_path / "with" / "videos").iterdir()) == sorted(
        Path(path).name for path in reported
    )
    for path in reported:
        images, fps, size = facts_of(tmp_path / "with" / path)
        assert (fps, size) == (gym.make("CartPole-v1").metadata["render_fps"], (600, 400))
        assert 8 <= images <= 501  # a pole does not fall sooner, and the first picture precedes the first step


@pytest.mark.usefixtures("video")
def test_a_video_shows_one_whole_episode_at_the_environment_s_rate(tmp_path):
    recorder, policy = Recorder("Blink-v0", tmp_path, seed=1), Left()
    path = recorder.record(policy, 8)
    recorder.close()
    assert path == tmp_path / "rl-video-episode-8.mp4"
    assert facts_of(path) == (5, FPS, (32, 18))
    assert policy.followed == [[], *[[0]] * 4]


@pytest.mark.usefixtures("video")
def test_an_episode_without_an_end_is_cut(tmp_path):
    recorder = Recorder("Blink-v0", tmp_path, seed=1, env_kwargs={"length": -1})
    path = recorder.record(Left(), 0)
    recorder.close()
    assert path is not None
    assert facts_of(path)[0] == MAX_STEPS + 1


@pytest.mark.usefixtures("video")
def test_what_an_earlier_attempt_has_recorded_stays(tmp_path):
    (tmp_path / "rl-video-episode-0.mp4").write_text("as it was")
    recorder = Recorder("Blink-v0", tmp_path, seed=1)
    path = recorder.record(Left(), 0)
    recorder.close()
    assert path is not None
    assert path.read_text() == "as it was"


@pytest.mark.usefixtures("video")
def test_a_stop_leaves_no_half_video(tmp_path):
    looks = iter([False, True])
    recorder = Recorder("Blink-v0", tmp_path, seed=1, env_kwargs={"length": 100})
    assert recorder.record(Left(), 0, lambda: next(looks)) is None
    recorder.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("video")
def test_when_drawing_fails_later_training_continues_and_reports_it_once(tmp_path, caplog):
    changed = {"env_id": "Blink-v0", "env_kwargs": '{"dark_at": 2}', "capture_video": True}
    with caplog.at_level(logging.WARNING):
        run, _ = train_here(ppo, tmp_path, flags(**changed))
    assert [record.getMessage() for record in caplog.records if "videos" in record.getMessage()] == [
        "no more videos of Blink-v0 are recorded; everything else continues: the lamp is broken"
    ]
    assert told_videos(run) == []
    assert list((tmp_path / "videos").iterdir()) == []
    assert (tmp_path / "ppo.cleanrl_model").is_file()


@pytest.mark.usefixtures("video")
@pytest.mark.parametrize(
    ("env_id", "env_kwargs", "reason"),
    [("Blind-v0", "{}", "it has no frame to show"), ("Blink-v0", '{"dark_at": 0}', "the lamp is broken")],
)
def test_an_environment_that_cannot_be_drawn_is_refused(tmp_path, env_id, env_kwargs, reason):
    with pytest.raises(BadInput, match=f"--capture-video: {env_id} cannot be drawn: {reason}.*; go without videos"):
        train_here(ppo, tmp_path, flags(env_id=env_id, env_kwargs=env_kwargs, capture_video=True))
    assert not (tmp_path / "checkpoints").exists()


def test_without_the_packages_the_command_that_installs_them_is_named(tmp_path):
    with pytest.raises(BadInput, match=r"--capture-video: videos need .*: mosaic extras install video; or go without"):
        train_here(ppo, tmp_path, flags(capture_video=True))


def test_a_dry_run_reports_that_there_is_nothing_to_record(home):
    home.create()
    lend_sets(home, "video")

    def problems(env_id: str) -> list[str]:
        extras = {"algo_params": {"capture_video": True}}
        run = CleanRLWorkerConfig(new_run_id(), "ppo", env_id, 4096, 1, extras)
        found = check_run(run, home.run_folder(run.run_id), home)
        return [str(problem) for problem in found.problems]

    blind = "continuous_worlds:Aim-v0"
    assert any(reported.startswith(f"capture_video: {blind} cannot be drawn: ") for reported in problems(blind))
    assert problems("CartPole-v1") == []


@pytest.mark.usefixtures("video")
def test_an_evaluation_records_the_first_episode_of_each_batch(tmp_path):
    settings = EvaluationSettings(episodes=3, repeat=2, capture_video=True, max_episode_steps=3)
    report = run_batched_evaluation(lambda env: Left(), "Blink-v0", settings, videos=tmp_path)
    expected = [tmp_path / f"eval-{batch}" / "eval-episode-0.mp4" for batch in range(2)]
    assert [batch.videos for batch in report.batches] == [(path,) for path in expected]
    assert facts_of(expected[0]) == (4, FPS, (32, 18))


@pytest.mark.usefixtures("atari", "video")
def test_a_whole_game_is_recorded_in_color_at_the_speed_it_is_played(tmp_path):
    recorder = Recorder("PongNoFrameskip-v4", tmp_path, seed=1, pipeline="atari", env_kwargs={"max_episode_steps": 20})
    path = recorder.record(Left(), 0)
    recorder.close()
    assert path is not None
    assert facts_of(path)[1:] == (15.0, (160, 210))


def test_a_run_lists_its_videos_in_the_manifest(home):
    lend_sets(home, "video")
    config = {
        "algo": "ppo",
        "env_id": "CartPole-v1",
        "total_timesteps": 1024,
        "seed": 1,
        "extras": {"algo_params": {"capture_video": True, "num_steps": 64}},
    }
    with WorkerProcess([sys.executable, "-m", "cleanrl_worker.cli"], config, home) as worker:
        assert worker.wait(PATIENCE_S) == 0, worker.stderr()
    manifest = AnalyticsManifest.read(worker.folder.manifest)
    assert manifest.requirements == ("video",)
    assert manifest.videos[0] == "videos/rl-video-episode-0.mp4"
    assert len(set(manifest.videos)) == len(manifest.videos) >= 2
    assert all((worker.folder.root / video).stat().st_size > 0 for video in manifest.videos)
    steps = [manifest.extra["video_steps"][video] for video in manifest.videos]
    assert steps == sorted(steps)
    assert steps[-1] > 0
