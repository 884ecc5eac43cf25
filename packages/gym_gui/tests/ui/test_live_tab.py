"""The Live tab of a real PPO run: frames really arrive, and nothing is rendered for a hidden tab."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from gym_gui.testing import RunningDaemon, install_scripted_worker, random_config, scripted_config
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.run_page.live_tab import LiveTab
from mosaic_wire.capabilities import Lane
from mosaic_wire.frames import FrameReader, fastlane_path
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QPushButton

LIVE = """
session = open_session(lane="telemetry")
session.started({})
telemetry = session.telemetry()
number = 0
while not session.stop_requested.is_set():
    number += 1
    telemetry.step([number], 0, 1.0, terminated=False, truncated=False)
    session.progress(number, 100)
    time.sleep(0.01)
session.finish(ExitOutcome.CANCELLED, exit_code=130)
"""


def ppo(timesteps: int) -> dict[str, Any]:
    config = {
        "run_id": "${RUN_ID}",
        "algo": "ppo",
        "env_id": "CartPole-v1",
        "total_timesteps": timesteps,
        "seed": 1,
        "extras": {"tensorboard_dir": "${VAR_TENSORBOARD_DIR}", "algo_params": {"num_envs": 2}},
    }
    return {
        "run_name": "cartpole",
        "resources": {"cpus": {"requested": 0}},
        "artifacts": {"tensorboard": {"enabled": True}, "wandb": {"enabled": False}},
        "metadata": {"worker": {"type": "cleanrl", "module": "cleanrl_worker.cli", "config": config}},
    }


@pytest.fixture
def tab(qtbot, themed, link: DaemonLink) -> Iterator[LiveTab]:
    tab = LiveTab(link)
    qtbot.addWidget(tab)
    tab.resize(1280, 760)
    tab.show()
    yield tab
    tab.set_active(False)


def keep_refreshed(tab: LiveTab, link: DaemonLink, run_id: str) -> None:
    """What the run page does with the news of its run, until the test is over and the tab is put away."""
    link.runs_changed.connect(lambda runs: [tab.refresh(run) for run in runs if run.run_id == run_id and tab.is_active])


@pytest.mark.slow  # tests/e2e/test_window.py watches one in every CI
def test_a_real_run_is_watched_from_its_queue_to_its_end(qtbot, tab, link, window_daemon: RunningDaemon) -> None:
    run = window_daemon.client.submit(ppo(5_000_000)).run
    keep_refreshed(tab, link, run.run_id)
    tab.show_run(run)
    tab.set_active(True)
    assert tab.fastlane.frame_view.notice
    qtbot.waitUntil(lambda: tab.fastlane.frames_shown >= 5, timeout=60_000)
    image = tab.fastlane.frame_view.image
    assert (image.width(), image.height()) == (600, 400)
    colors = {image.pixel(x, y) for x in range(0, 600, 5) for y in range(150, 400, 5)}
    assert len(colors) > 2  # a cart, a pole, the ground

    tab.hide()  # another tab comes to the front, or the window is put away
    assert not tab.fastlane.is_watching
    shown = tab.fastlane.frames_shown
    qtbot.wait(2_300)  # what VIEWER_TIMEOUT_S allows
    drawn = newest_number(run.run_id)
    qtbot.wait(500)
    assert newest_number(run.run_id) == drawn  # without a viewer the run draws nothing
    assert tab.fastlane.frames_shown == shown
    tab.show()
    qtbot.waitUntil(lambda: tab.fastlane.frames_shown > shown, timeout=20_000)
    window_daemon.client.cancel(run.run_id)
    window_daemon.wait_for(run.run_id)
    qtbot.waitUntil(lambda: not tab.fastlane.is_watching, timeout=20_000)
    assert tab.banner.text == "CleanRL worker streams metrics via TensorBoard/W&B; live telemetry not available."


def newest_number(run_id: str) -> int:
    """The number of the newest picture, read without looking: a look would make the run draw."""
    reader = FrameReader(fastlane_path(run_id))
    try:
        assert reader._open()
        assert reader._mapped is not None
        return reader._mapped.numbers[8]
    finally:
        reader.close()


def test_a_worker_that_sends_steps_is_shown_step_by_step(qtbot, tab, link, window_daemon: RunningDaemon) -> None:
    install_scripted_worker(window_daemon.home, "live", LIVE, lane=Lane.TELEMETRY)
    window_daemon.client.workers(refresh=True)
    run = window_daemon.client.submit(scripted_config("live")).run
    keep_refreshed(tab, link, run.run_id)
    queued = pb.Run()
    queued.CopyFrom(run)
    queued.status, queued.capabilities_json = "INIT", ""
    tab.show_run(queued)
    tab.set_active(True)
    assert "only after the worker has started" in tab.banner.text
    qtbot.waitUntil(lambda: tab.telemetry.steps.rowCount() > 10, timeout=30_000)
    assert tab.banner.text == ""
    assert tab.telemetry.isVisible()
    assert tab.telemetry.is_following
    assert tab.fastlane.is_watching  # beside it
    tab.hide()
    assert not tab.telemetry.is_following
    assert not tab.fastlane.is_watching
    tab.show()
    assert tab.telemetry.is_following
    window_daemon.client.cancel(run.run_id)
    window_daemon.wait_for(run.run_id)


def test_an_analytics_run_has_the_banner_and_says_where_its_metrics_are(qtbot, tab, window_daemon) -> None:
    run = window_daemon.wait_for(window_daemon.client.submit(random_config(timesteps=50)).run.run_id)
    opened: list[str] = []
    tab.tab_requested.connect(opened.append)
    tab.show_run(run)
    tab.set_active(True)
    assert tab.banner.text == "random worker streams metrics via TensorBoard/W&B; live telemetry not available."
    assert tab._telemetry is None
    assert not tab._telemetry_place.isVisible()
    assert tab.places.isVisible()
    assert f"mosaic metrics {run.run_id[-8:]}" in tab.places.text()
    tab.banner.findChild(QPushButton, "banner_action").click()
    assert opened == ["charts"]


def test_frame_and_telemetry_stand_side_by_side_or_above_each_other(qtbot, tab: LiveTab) -> None:
    assert tab.split.orientation() is Qt.Orientation.Horizontal
    tab.resize(500, 900)
    qtbot.waitUntil(lambda: tab.split.orientation() is Qt.Orientation.Vertical)
    tab.resize(1280, 700)
    qtbot.waitUntil(lambda: tab.split.orientation() is Qt.Orientation.Horizontal)


def test_everything_that_can_be_used_has_a_name(tab: LiveTab) -> None:
    from PySide6.QtWidgets import QAbstractButton, QAbstractSlider, QComboBox, QScrollBar, QTableView, QWidget

    tab.show_run(pb.Run(run_id="01ARZ3NDEKTSV4RRFFQ69G5FAV", status="TERM", worker_type="human"))
    nameless = [
        widget
        for widget in tab.findChildren(QWidget)
        if isinstance(widget, QAbstractButton | QComboBox | QAbstractSlider | QTableView)
        and not isinstance(widget, QScrollBar)
        and not widget.objectName().startswith("qt_")
        and type(widget).__name__ != "QTableCornerButton"
        and widget.isVisibleTo(tab)
        and not (widget.accessibleName() and widget.objectName())
    ]
    assert [f"{type(widget).__name__} {widget.objectName()}" for widget in nameless] == []
