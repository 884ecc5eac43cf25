"""Which videos a run has: of its manifest and its folder, by step, newest first."""

from __future__ import annotations

from pathlib import Path

from gym_gui.ui.replay.video_file import find_videos
from mosaic_wire.ids import new_run_id
from mosaic_wire.manifest import AnalyticsManifest


def put(run_dir: Path, *names: str) -> None:
    for name in names:
        (run_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (run_dir / name).write_bytes(b"x" * 10)


def test_the_newest_step_comes_first(tmp_path: Path) -> None:
    names = [f"videos/rl-video-episode-{episode}.mp4" for episode in (0, 8, 27)]
    put(tmp_path, *names)
    steps = dict(zip(names, (0, 900, 4_000), strict=True))
    AnalyticsManifest(new_run_id(), videos=tuple(names), extra={"video_steps": steps}).write(
        tmp_path / "analytics.json"
    )
    found = find_videos(tmp_path)
    assert [(video.step, video.episode) for video in found.videos] == [(4_000, 27), (900, 8), (0, 0)]
    assert not found.problem
    assert not found.missing


def test_unlisted_files_are_found_and_unfinished_ones_are_not(tmp_path: Path) -> None:
    put(tmp_path, "videos/eval-0/eval-episode-0.mp4", "videos/.rl-video-episode-1.mp4.part", "videos/notes.txt")
    videos = find_videos(tmp_path).videos
    assert [(video.name, video.evaluation) for video in videos] == [("videos/eval-0/eval-episode-0.mp4", 0)]
    assert videos[0].step is None


def test_without_steps_the_newest_episode_comes_first(tmp_path: Path) -> None:
    put(tmp_path, *(f"videos/rl-video-episode-{episode}.mp4" for episode in (1, 1000, 27)))
    assert [video.episode for video in find_videos(tmp_path).videos] == [1000, 27, 1]


def test_a_listed_video_that_is_missing_is_reported(tmp_path: Path) -> None:
    AnalyticsManifest(new_run_id(), videos=("videos/a.mp4",)).write(tmp_path / "analytics.json")
    assert find_videos(tmp_path).missing == ("videos/a.mp4",)


def test_a_damaged_manifest_does_not_hide_the_folder(tmp_path: Path) -> None:
    put(tmp_path, "videos/a.mp4")
    (tmp_path / "analytics.json").write_text("{broken")
    found = find_videos(tmp_path)
    assert len(found.videos) == 1
    assert "cannot be read" in found.problem


def test_a_manifest_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    put(tmp_path, "secret.mp4")
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    AnalyticsManifest(new_run_id(), videos=("../secret.mp4",)).write(run_dir / "analytics.json")
    found = find_videos(run_dir)
    assert not found.videos
    assert found.missing == ("../secret.mp4",)


def test_a_run_folder_that_is_missing(tmp_path: Path) -> None:
    assert "does not exist" in find_videos(tmp_path / "gone").problem
