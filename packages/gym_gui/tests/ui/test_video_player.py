"""The player on real videos: plays, steps, seeks, loops, saves; what is broken says so."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from gym_gui.ui.background import Background
from gym_gui.ui.replay.video_player import VideoPlayer
from gym_gui.ui.widgets.frame_view import Zoom
from PySide6.QtCore import QObject, Qt, QUrl, Slot
from PySide6.QtGui import QDesktopServices, QImage

MakeVideo = Callable[..., Path]


def seen(player: VideoPlayer) -> int:
    """Which picture is on the screen, from its bars."""
    image = player.view.image
    if image.isNull():
        return -1
    across = [image.pixelColor((2 * bit + 1) * image.width() // 16, image.height() // 2).red() for bit in range(8)]
    return sum(int(brightness > 127) << bit for bit, brightness in enumerate(across))


@pytest.fixture
def player(qtbot, themed, background: Background) -> VideoPlayer:
    player = VideoPlayer(background)
    qtbot.addWidget(player)
    player.resize(640, 480)
    player.show()
    return player


def load(qtbot, player: VideoPlayer, path: Path) -> None:
    with qtbot.waitSignal(player.loaded, timeout=20_000):
        player.load(path)
    qtbot.waitUntil(lambda: seen(player) == 0, timeout=20_000)


def test_it_shows_the_first_frame_and_its_facts(qtbot, player: VideoPlayer, tmp_path: Path, make_video) -> None:
    load(qtbot, player, make_video(tmp_path / "a.mp4", frames=30))
    assert player.count == 30
    assert "64 × 48" in player.facts_label.text()
    assert player.transport.slider.maximum() == 29
    assert not player.is_playing


def test_it_plays_to_the_end_and_from_the_beginning_again(
    qtbot, player: VideoPlayer, tmp_path: Path, make_video
) -> None:
    load(qtbot, player, make_video(tmp_path / "a.mp4", frames=24))
    shown: list[int] = []
    player.position_changed.connect(shown.append)
    with qtbot.waitSignal(player.ended, timeout=20_000):
        player.transport.play_button.click()
    assert not player.is_playing
    assert shown == sorted(shown)
    assert (shown[-1], seen(player)) == (23, 23)
    player.play()
    qtbot.waitUntil(lambda: 0 in shown[-20:] and shown[-1] > 0, timeout=20_000)
    player.pause()


def test_the_queue_is_bounded(qtbot, player: VideoPlayer, tmp_path: Path, make_video, monkeypatch) -> None:
    monkeypatch.setattr("gym_gui.ui.replay.video_player.QUEUE_BYTES", 5 * 64 * 48 * 3)
    load(qtbot, player, make_video(tmp_path / "a.mp4", frames=90))
    longest = 0
    player.position_changed.connect(lambda _: None)

    def note() -> None:
        nonlocal longest
        longest = max(longest, player.waiting)

    player.position_changed.connect(note)
    with qtbot.waitSignal(player.ended, timeout=30_000):
        player.set_speed(4.0)
        player.play()
    assert 0 < longest <= 5


def test_frame_by_frame(qtbot, player: VideoPlayer, tmp_path: Path, make_video) -> None:
    load(qtbot, player, make_video(tmp_path / "a.mp4", frames=40))
    for expected in (1, 2, 3):
        qtbot.keyClick(player.view, Qt.Key.Key_Right)
        qtbot.waitUntil(lambda: seen(player) == expected, timeout=20_000)  # noqa: B023
    qtbot.keyClick(player.view, Qt.Key.Key_Left)
    qtbot.waitUntil(lambda: seen(player) == 2, timeout=20_000)
    qtbot.keyClick(player.view, Qt.Key.Key_End)
    qtbot.waitUntil(lambda: seen(player) == 39, timeout=20_000)
    player.step(1)  # there is none
    player.step(-39)
    qtbot.waitUntil(lambda: seen(player) == 0, timeout=20_000)


def test_seeking_shows_the_last_wish_and_playing_continues_from_there(
    qtbot, player: VideoPlayer, tmp_path: Path, make_video
) -> None:
    load(qtbot, player, make_video(tmp_path / "a.mp4", frames=90))
    for number in (10, 20, 80, 33):  # dragged: only the last place matters
        player.transport.slider.setValue(number)
    qtbot.waitUntil(lambda: seen(player) == 33, timeout=20_000)
    shown: list[int] = []
    player.position_changed.connect(shown.append)
    player.play()
    qtbot.waitUntil(lambda: len(shown) >= 3, timeout=20_000)
    player.pause()
    assert min(shown) > 33


def test_it_begins_again_at_the_end(qtbot, player: VideoPlayer, tmp_path: Path, make_video) -> None:
    load(qtbot, player, make_video(tmp_path / "a.mp4", frames=10))
    player.transport.loop.setChecked(True)
    shown: list[int] = []
    player.position_changed.connect(shown.append)
    player.play()

    def has_turned() -> bool:
        return any(later < earlier for earlier, later in itertools.pairwise(shown))

    qtbot.waitUntil(has_turned, timeout=20_000)
    assert player.is_playing
    player.pause()


def test_a_file_that_breaks_off_plays_as_far_as_it_goes(qtbot, player: VideoPlayer, tmp_path: Path, make_video) -> None:
    whole = make_video(tmp_path / "whole.mp4", frames=90, width=320, height=240)
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size * 7 // 10])
    load(qtbot, player, cut)
    assert "is truncated" in player.banner.text
    player.set_speed(4.0)
    with qtbot.waitSignal(player.ended, timeout=30_000):
        player.play()
    assert 10 < seen(player) == player.count - 1 < 89
    assert "of 90 frames" in player.banner.text


def test_what_is_no_video_reports_it_and_the_next_one_plays(
    qtbot, player: VideoPlayer, tmp_path: Path, make_video
) -> None:
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"rubbish" * 100)
    with qtbot.waitSignal(player.refused, timeout=20_000):
        player.load(broken)
    assert "broken.mp4 cannot be played" in player.banner.text
    assert not player.transport.play_button.isEnabled()
    load(qtbot, player, make_video(tmp_path / "a.mp4", frames=5))
    assert not player.banner.text


def test_only_the_file_that_was_loaded_last_is_shown(qtbot, player: VideoPlayer, tmp_path: Path, make_video) -> None:
    paths = [make_video(tmp_path / f"{length}.mp4", frames=length) for length in (30, 40, 50)]
    for path in paths:
        player.load(path)
    qtbot.waitUntil(lambda: player.count == 50 and seen(player) == 0, timeout=20_000)
    assert player.path == paths[-1]


def test_the_frame_is_saved(qtbot, player: VideoPlayer, tmp_path: Path, make_video) -> None:
    load(qtbot, player, make_video(tmp_path / "a.mp4", frames=5))
    target = tmp_path / "picture.png"
    player.save_image(target)
    qtbot.waitUntil(lambda: "Saved" in player.banner.text, timeout=20_000)
    saved = QImage(str(target))
    assert (saved.width(), saved.height()) == (64, 48)
    player.save_image(tmp_path / "nowhere" / "picture.png")
    qtbot.waitUntil(lambda: "could not be written" in player.banner.text, timeout=20_000)


def test_pixel_for_pixel(qtbot, player: VideoPlayer, tmp_path: Path, make_video) -> None:
    load(qtbot, player, make_video(tmp_path / "a.mp4", frames=2))
    assert player.view.zoom is Zoom.FIT
    player.fit_button.click()
    assert player.view.drawn_size().width() == 64


class _Desktop(QObject):
    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []

    @Slot(QUrl)
    def note(self, url: QUrl) -> None:
        self.opened.append(url.toLocalFile())


def test_it_is_opened_outside(qtbot, player: VideoPlayer, tmp_path: Path, make_video) -> None:
    path = make_video(tmp_path / "a.mp4", frames=2)
    load(qtbot, player, path)
    desktop = _Desktop()
    QDesktopServices.setUrlHandler("file", desktop, "note")
    try:
        player.outside_button.click()
    finally:
        QDesktopServices.unsetUrlHandler("file")
    assert desktop.opened == [str(path)]
