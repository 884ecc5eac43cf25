"""The FastLane view: shows what a run draws, makes it draw by looking, and leaves it in peace otherwise."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import av
import pytest
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.testing import RunningDaemon, install_scripted_worker, scripted_config
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.run_page.fastlane_view import (
    FastLaneView,
    SharedMemoryFrames,
    StreamedFrames,
    drawing_of,
    is_on_this_machine,
    why_no_frame,
)
from gym_gui.ui.widgets.frame_view import Zoom
from mosaic_wire.frames import FrameWriter, fastlane_path
from mosaic_wire.ids import new_run_id
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QRect, QSize
from PySide6.QtGui import QColor, QImage
from PySide6.QtWidgets import QComboBox, QFileDialog, QLabel, QPushButton

QUICK = {"heartbeat_s": 0.2, "grace_s": 2, "silence_s": 20, "handshake_s": 60, "min_free_disk_mb": 0}
PAINTER = """
from mosaic_wire.frames import FrameWriter, fastlane_path

session = open_session()
session.started({})
writer = FrameWriter(fastlane_path(config.run_id), interval_s=0.01)
drawn = 0
while not session.stop_requested.is_set():
    if writer.is_due():
        drawn += 1
        writer.publish(bytes([200, 40, 20]) * (160 * 120), 160, 120)
        writer.set_statistics(last_reward=1.5, rolling_return=50.0, step_rate_hz=1000.0)
        writer.record_render_time(0.0)
    session.progress(drawn, 100)
    time.sleep(0.005)
writer.close()
session.finish(ExitOutcome.CANCELLED, exit_code=130)
"""


@pytest.fixture(scope="module")
def window_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    folder = tmp_path_factory.mktemp("fastlane")
    daemon = RunningDaemon(Home(folder / "home"), folder / "config", settings={**QUICK, "listen": "127.0.0.1"})
    install_scripted_worker(daemon.home, "painter", PAINTER)
    with daemon:
        yield daemon


def run_of(status: str = "EXEC", extras: dict[str, object] | None = None, **fields) -> pb.Run:
    return pb.Run(
        run_id=new_run_id(),
        status=status,
        algo="ppo",
        env_id="CartPole-v1",
        extras_json=json.dumps(extras or {}),
        **fields,
    )


@pytest.fixture
def run() -> pb.Run:
    return run_of()


@pytest.fixture
def writer(run: pb.Run) -> Iterator[FrameWriter]:
    writer = FrameWriter(fastlane_path(run.run_id), interval_s=0.005)
    yield writer
    writer.close()


@pytest.fixture
def view(qtbot, themed, link: DaemonLink) -> Iterator[FastLaneView]:
    view = FastLaneView(link)
    qtbot.addWidget(view)
    view.resize(640, 520)
    view.show()
    yield view
    view.set_active(False)


def publish(
    writer: FrameWriter, color: tuple[int, int, int] = (10, 200, 30), width: int = 64, height: int = 48
) -> None:
    writer.publish(bytes(color) * (width * height), width, height)
    writer.set_statistics(last_reward=1.0, rolling_return=123.4, step_rate_hz=20_480.0)


def figure(view: FastLaneView, name: str) -> str:
    return view.findChild(QLabel, f"hud_{name}").text()


def test_the_frame_of_the_run_is_drawn_pixel_for_pixel(qtbot, view: FastLaneView, run, writer: FrameWriter) -> None:
    publish(writer)
    view.show_run(run)
    view.set_active(True)
    qtbot.waitUntil(lambda: view.frames_shown == 1)
    assert view.frame_view.image.size() == QSize(64, 48)
    seen = view.frame_view.viewport().grab().toImage()
    assert seen.pixelColor(seen.width() // 2, seen.height() // 2) == QColor(10, 200, 30)
    publish(writer, (250, 0, 0))
    qtbot.waitUntil(lambda: view.frames_shown == 2)
    assert view.frame_view.image.pixelColor(5, 5) == QColor(250, 0, 0)


def test_the_figures_stand_beside_it_with_the_rate_that_is_really_seen(qtbot, view, run, writer: FrameWriter) -> None:
    view.show_run(run)
    view.set_active(True)
    for number in range(12):
        publish(writer, (number, 0, 0))
        qtbot.waitUntil(lambda number=number: view.frames_shown == number + 1)
    qtbot.waitUntil(lambda: figure(view, "rolling_return") == "123.4")
    qtbot.waitUntil(lambda: figure(view, "rate") not in ("–", "0.0"))
    assert (figure(view, "last_reward"), figure(view, "step_rate")) == ("1", "20.5k")


def test_looking_makes_the_run_draw_and_a_hidden_view_lets_it_rest(qtbot, view, run, writer: FrameWriter) -> None:
    view.show_run(run)
    assert not writer.is_watched
    view.set_active(True)
    qtbot.waitUntil(lambda: writer.is_due())
    view.set_active(False)
    assert not view.is_watching
    qtbot.waitUntil(lambda: not writer.is_watched, timeout=6_000)
    publish(writer)
    qtbot.wait(100)
    assert view.frames_shown == 0
    view.set_active(True)
    qtbot.waitUntil(lambda: view.frames_shown == 1)


def test_a_run_that_cannot_draw_says_why_and_a_damaged_file_too(qtbot, view, run, writer: FrameWriter, link) -> None:
    writer.notice("blackjack cannot be drawn here: pygame is not installed")
    view.show_run(run)
    view.set_active(True)
    qtbot.waitUntil(lambda: view.frame_view.notice == "Blackjack cannot be drawn here: pygame is not installed")
    other = run_of()
    path = fastlane_path(other.run_id)
    path.write_bytes(b"x" * 5000)
    os.chmod(path, 0o600)
    try:
        view.show_run(other)
        qtbot.waitUntil(lambda: "is not a FastLane" in view.frame_view.notice)
    finally:
        path.unlink()


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (run_of("INIT", queue_reason="2 CPUs are wanted, 1 is free"), "is queued (2 CPUs are wanted"),
        (run_of("HSHK"), "is starting"),
        (run_of("PAUSE"), "is paused"),
        (run_of("TERM", outcome="completed"), "under Replay"),
        (run_of("EXEC", {"fastlane_enabled": False}), "switched off"),
        (run_of("EXEC", {"fastlane_video_mode": "off"}), "switched off"),
        (run_of("EXEC"), "No frame yet"),
    ],
)
def test_there_is_always_a_sentence_where_there_is_no_frame(view: FastLaneView, run: pb.Run, message: str) -> None:
    view.show_run(run)
    view.set_active(True)
    assert message in view.frame_view.notice
    assert view.is_watching == (run.status in ("EXEC", "HSHK", "PAUSE") and "off" not in message)


def test_the_last_frame_stays_when_the_run_ends(qtbot, view: FastLaneView, run, writer: FrameWriter) -> None:
    publish(writer)
    view.show_run(run)
    view.set_active(True)
    qtbot.waitUntil(lambda: view.frames_shown == 1)
    view.refresh(pb.Run(run_id=run.run_id, status="TERM", outcome="completed"))
    assert not view.is_watching
    assert view.frame_view.image.size() == QSize(64, 48)
    view.show_run(run_of())
    assert view.frame_view.image.isNull()  # the picture of one run is never shown as that of another


def test_zoom_is_exact_and_remembered(qtbot, view: FastLaneView, run, writer: FrameWriter, link: DaemonLink) -> None:
    publish(writer)
    view.show_run(run)
    view.set_active(True)
    qtbot.waitUntil(lambda: view.frames_shown == 1)
    fitted = view.frame_view.drawn_size()
    room = view.frame_view.viewport().size()
    assert fitted.width() == room.width() or fitted.height() == room.height()
    box = view.findChild(QComboBox, "fastlane_zoom")
    box.setCurrentIndex(2)
    assert view.frame_view.drawn_size() == QSize(128, 96)
    view.findChild(QComboBox, "fastlane_edges").setCurrentIndex(1)
    publish(writer, width=2000, height=1000)
    qtbot.waitUntil(lambda: view.frames_shown == 2)
    assert view.frame_view.horizontalScrollBar().maximum() == 4000 - view.frame_view.viewport().width()
    again = FastLaneView(link)
    qtbot.addWidget(again)
    assert again.frame_view.zoom is Zoom.DOUBLE
    assert again.findChild(QComboBox, "fastlane_edges").currentText() == "Pixelated"


def test_of_a_grid_one_environment_can_be_chosen(qtbot, view: FastLaneView) -> None:
    run = run_of("EXEC", {"fastlane_video_mode": "grid", "fastlane_grid_limit": 4, "algo_params": {"num_envs": 8}})
    writer = FrameWriter(fastlane_path(run.run_id))
    try:
        left, right = bytes([255, 0, 0]) * 32, bytes([0, 0, 255]) * 32
        writer.publish(b"".join([left + right] * 24 + [right + left] * 24), 64, 48)
        view.show_run(run)
        view.set_active(True)
        qtbot.waitUntil(lambda: view.frames_shown == 1)
        box = view.findChild(QComboBox, "fastlane_tile")
        assert box.isVisible()
        assert [box.itemText(index) for index in range(box.count())] == [
            "Whole grid",
            "Environment 0",
            "Environment 1",
            "Environment 2",
            "Environment 3",
        ]
        box.setCurrentIndex(4)
        assert view.frame_view.shown_part() == QRect(32, 24, 32, 24)
        seen = view.frame_view.viewport().grab().toImage()
        assert seen.pixelColor(seen.width() // 2, seen.height() // 2) == QColor(255, 0, 0)
    finally:
        view.set_active(False)
        writer.close()


def test_how_a_run_draws_itself_is_read_from_its_extras() -> None:
    assert drawing_of(run_of()).caption == "environment 0"
    assert drawing_of(run_of(extras={"fastlane_slot": 3})).caption == "environment 3"
    grid = drawing_of(run_of(extras={"fastlane_video_mode": "grid", "algo_params": {"num_envs": 3}}))
    assert (grid.tiles, grid.columns_and_rows) == (3, (2, 2))
    assert drawing_of(run_of(extras={"fastlane_video_mode": "grid"})).tiles == 0
    assert drawing_of(pb.Run(extras_json="damaged")).mode == "single"
    assert "queued." in why_no_frame(pb.Run(status="INIT"), "")


def test_the_frame_in_view_is_saved(qtbot, view: FastLaneView, run, writer: FrameWriter, tmp_path: Path) -> None:
    publish(writer)
    view.show_run(run)
    view.set_active(True)
    qtbot.waitUntil(lambda: view.frames_shown == 1)
    view.findChild(QPushButton, "fastlane_save").click()
    dialog = view.findChild(QFileDialog, "fastlane_file_dialog")
    assert dialog.selectedFiles()[0].endswith(f"ppo-CartPole-v1-{run.run_id[-8:]}.png")
    dialog.reject()
    with qtbot.waitSignal(view.saved):
        view.save_image(tmp_path / "seen.png")
    assert QImage(str(tmp_path / "seen.png")).pixelColor(1, 1) == QColor(10, 200, 30)
    assert str(tmp_path / "seen.png") in view.banner.text
    view.save_image(tmp_path / "nowhere" / "seen.png")
    qtbot.waitUntil(lambda: view.banner.tone == "bad")
    assert "cannot be written" in view.banner.text


def test_a_clip_is_recorded(qtbot, view: FastLaneView, run, writer: FrameWriter, tmp_path: Path) -> None:
    view.show_run(run)
    view.set_active(True)
    path = tmp_path / "clip.mp4"
    view.record_to(path)
    for number in range(10):
        publish(writer, (20 * number, 0, 0))
        qtbot.waitUntil(lambda number=number: view.frames_shown == number + 1)
    with qtbot.waitSignal(view.saved):
        view.toggle_recording()
    assert not view.is_recording
    with av.open(str(path)) as clip:
        assert sum(1 for _ in clip.decode(video=0)) == 10


def test_a_clip_ends_without_a_viewer(qtbot, view, run, writer: FrameWriter, tmp_path: Path) -> None:
    view.show_run(run)
    view.set_active(True)
    view.record_to(tmp_path / "clip.mp4")
    publish(writer)
    qtbot.waitUntil(lambda: view.frames_shown == 1)
    with qtbot.waitSignal(view.saved):
        view.set_active(False)
    assert (tmp_path / "clip.mp4").stat().st_size > 0


def test_a_clip_that_cannot_be_written_is_reported(qtbot, view, run, writer: FrameWriter, tmp_path: Path) -> None:
    view.show_run(run)
    view.set_active(True)
    view.record_to(tmp_path / "nowhere" / "clip.mp4")
    publish(writer)
    qtbot.waitUntil(lambda: view.banner.tone == "bad" and "cannot be written" in view.banner.text)
    assert not view.is_recording


def test_from_another_machine_the_frames_come_as_a_stream(
    qtbot, window_daemon: RunningDaemon, background: Background, themed, tmp_path: Path
) -> None:
    """A link over TCP: the memory of the run cannot be taken for granted there."""
    run_id = window_daemon.client.submit(scripted_config("painter")).run.run_id
    run = window_daemon.wait_for(run_id, "EXEC")
    addresses = [address for address in window_daemon.client.health().addresses if not address.startswith("unix")]
    token = window_daemon.home.token.read_text().strip()
    link = DaemonLink(lambda: TrainerClient(addresses[0], token), background)
    with qtbot.waitSignal(link.runs_loaded, timeout=30_000):
        link.start()
    qtbot.waitUntil(lambda: link.is_connected)
    view = FastLaneView(link)
    qtbot.addWidget(view)
    try:
        view.show_run(run)
        view.set_active(True)
        assert view.findChild(StreamedFrames) is not None
        assert view.findChild(SharedMemoryFrames) is None
        qtbot.waitUntil(lambda: view.frames_shown >= 3, timeout=20_000)
        assert view.frame_view.image.size() == QSize(160, 120)
        color = view.frame_view.image.pixelColor(80, 60)
        assert abs(color.red() - 200) + abs(color.green() - 40) + abs(color.blue() - 20) < 20  # JPEG
        assert figure(view, "last_reward") == "1.5"
        view.record_to(tmp_path / "far.mp4")
        shown = view.frames_shown
        qtbot.waitUntil(lambda: view.frames_shown > shown + 2, timeout=20_000)
        with qtbot.waitSignal(view.saved):
            view.toggle_recording()
        view.set_active(False)
        drawn = window_daemon.wait_for_run(run_id, lambda run: run.step).step
        qtbot.wait(2_500)  # what VIEWER_TIMEOUT_S allows, and a heartbeat
        first = window_daemon.client.get(run_id).step
        qtbot.wait(500)
        assert window_daemon.client.get(run_id).step == first >= drawn
    finally:
        view.set_active(False)
        link.stop()
        window_daemon.client.cancel(run_id)
        window_daemon.wait_for(run_id)


def test_only_a_socket_says_that_the_daemon_shares_this_memory() -> None:
    assert is_on_this_machine("unix:/tmp/trainer.sock")
    assert not is_on_this_machine("127.0.0.1:50055")  # may be a tunnel
    assert not is_on_this_machine("gpu-box:50055")
