"""Decoding: any picture by its number, however it is reached; a file that breaks off says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from gym_gui.ui.replay.video_file import VideoFile, VideoProblem

MakeVideo = Callable[..., Path]


def number_of(image) -> int:
    """Which one it is, from its bars."""
    height, width, _ = image.shape
    return sum(int(image[height // 2, (2 * bit + 1) * width // 16, 0] > 127) << bit for bit in range(8))


def test_every_frame_in_order(tmp_path: Path, make_video: MakeVideo) -> None:
    with VideoFile(make_video(tmp_path / "a.mp4", frames=40)) as video:
        assert (video.facts.width, video.facts.height, video.facts.frames) == (64, 48, 40)
        assert video.facts.fps == pytest.approx(30)
        assert not video.facts.is_truncated
        assert [number_of(video.read(number)) for number in range(40)] == list(range(40))


def test_any_frame_out_of_order(tmp_path: Path, make_video: MakeVideo, monkeypatch: pytest.MonkeyPatch) -> None:
    # So small a cache that nothing comes from it: every jump is a real seek.
    monkeypatch.setattr("gym_gui.ui.replay.video_file.CACHE_BYTES", 1)
    with VideoFile(make_video(tmp_path / "a.mp4", frames=60)) as video:
        for number in (59, 0, 31, 30, 29, 12, 11, 59, 58, 1):
            assert number_of(video.read(number)) == number


def test_what_one_steps_back_over_is_not_decoded_again(
    tmp_path: Path, make_video: MakeVideo, monkeypatch: pytest.MonkeyPatch
) -> None:
    with VideoFile(make_video(tmp_path / "a.mp4", frames=30)) as video:
        for number in range(20):
            video.read(number)
        monkeypatch.setattr(video, "_seek", lambda number: pytest.fail(f"picture {number} was decoded again"))
        assert [number_of(video.read(number)) for number in range(19, -1, -1)] == list(range(19, -1, -1))


def test_a_number_beyond_the_end(tmp_path: Path, make_video: MakeVideo) -> None:
    with VideoFile(make_video(tmp_path / "a.mp4", frames=5)) as video, pytest.raises(IndexError):
        video.read(5)


def test_a_truncated_file_goes_as_far_as_it_goes(tmp_path: Path, make_video: MakeVideo) -> None:
    whole = make_video(tmp_path / "whole.mp4", frames=90, width=320, height=240)
    cut = tmp_path / "cut.mp4"
    content = whole.read_bytes()
    cut.write_bytes(content[: len(content) * 7 // 10])
    with VideoFile(cut) as video:
        assert video.facts.is_truncated
        assert video.facts.promised == 90
        read = [video.read(number) for number in range(video.facts.frames)]
    good = [number_of(image) for image in read if image is not None]
    assert 10 < len(good) < 90
    assert good == list(range(len(good)))


@pytest.mark.parametrize(("content", "text"), [(b"not a video" * 100, "cannot be played"), (b"", "cannot be played")])
def test_what_is_no_video_is_refused_clearly(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "broken.mp4"
    path.write_bytes(content)
    with pytest.raises(VideoProblem, match=text):
        VideoFile(path)


def test_an_index_that_was_never_written(tmp_path: Path, make_video: MakeVideo) -> None:
    """The index of an ordinary mp4 comes last: truncated, it cannot be played at all."""
    whole = make_video(tmp_path / "whole.mp4", frames=60, fast_start=False)
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(whole.read_bytes()[:-600])
    with pytest.raises(VideoProblem, match="truncated"):
        VideoFile(cut)


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(VideoProblem, match="no longer exists"):
        VideoFile(tmp_path / "gone.mp4")
