"""A clip is a whole video file with the pictures at their times, or there is no file."""

from __future__ import annotations

from pathlib import Path

import av
import pytest
from gym_gui.ui.run_page.clip_recorder import LONGEST_S, ClipFailed, ClipRecorder


def gray(value: int, width: int = 64, height: int = 48) -> bytes:
    return bytes([value]) * (3 * width * height)


def test_frames_come_back_in_their_order_at_their_times(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    recorder = ClipRecorder(path)
    for number, value in enumerate((0, 120, 240)):
        recorder.offer(gray(value), 64, 48, now=50.0 + 0.5 * number)
        recorder.write_waiting()
    assert not path.exists()  # under its name it is always whole
    assert recorder.finish() == 3
    with av.open(str(path)) as clip:
        frames = list(clip.decode(video=0))
    assert [frame.to_ndarray(format="rgb24").mean() for frame in frames] == pytest.approx([0, 120, 240], abs=8)
    assert [frame.time for frame in frames] == pytest.approx([0.0, 0.5, 1.0], abs=0.01)
    assert list(tmp_path.iterdir()) == [path]


def test_an_odd_size_is_cut_and_another_size_is_left_out(tmp_path: Path) -> None:
    recorder = ClipRecorder(tmp_path / "clip.mp4")
    recorder.offer(gray(9, 65, 49), 65, 49, now=0.0)
    recorder.offer(gray(9, 20, 20), 20, 20, now=0.1)
    assert recorder.finish() == 1
    assert recorder.left_out == 1
    with av.open(str(tmp_path / "clip.mp4")) as clip:
        assert (clip.streams.video[0].width, clip.streams.video[0].height) == (64, 48)


def test_without_a_frame_there_is_no_file(tmp_path: Path) -> None:
    assert ClipRecorder(tmp_path / "clip.mp4").finish() == 0
    assert not list(tmp_path.iterdir())


def test_an_encoder_that_is_too_slow_and_a_clip_without_end_stay_bounded(tmp_path: Path) -> None:
    recorder = ClipRecorder(tmp_path / "clip.mp4")
    for number in range(500):
        recorder.offer(gray(9), 64, 48, now=number / 1000)
    assert recorder.left_out > 400
    recorder.write_waiting()
    recorder.offer(gray(9), 64, 48, now=LONGEST_S + 1)
    assert not recorder.has_waiting
    recorder.discard()
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    recorder = ClipRecorder(tmp_path / "nowhere" / "clip.mp4")
    recorder.offer(gray(9), 64, 48, now=0.0)
    with pytest.raises(ClipFailed, match=r"clip\.mp4 cannot be written"):
        recorder.write_waiting()
