"""One button, and a run trains; what is in the way is said beside it."""

from __future__ import annotations

from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.shell import first_start
from gym_gui.ui.shell.first_start import FirstStartPage, first_config
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QPushButton


def test_one_click_queues_ppo_on_cartpole(qtbot, themed, link: DaemonLink, window_daemon) -> None:
    page = FirstStartPage(link)
    qtbot.addWidget(page)
    page.show()
    with qtbot.waitSignal(page.run_started, timeout=60_000) as started:
        qtbot.mouseClick(page.train_button, Qt.MouseButton.LeftButton)
    run: pb.Run = window_daemon.client.get(started.args[0])
    assert (run.worker_type, run.algo, run.env_id) == ("cleanrl", "ppo", "CartPole-v1")
    assert page.banner.isHidden()
    window_daemon.client.cancel(run.run_id)
    window_daemon.wait_for(run.run_id)


def test_what_is_in_the_way_is_reported_and_the_button_works_again(
    qtbot, themed, link: DaemonLink, monkeypatch
) -> None:
    config = first_config()
    config["metadata"]["worker"]["config"]["env_id"] = "CartPool-v1"
    monkeypatch.setattr(first_start, "first_config", lambda: config)
    page = FirstStartPage(link)
    qtbot.addWidget(page)
    page.show()
    qtbot.mouseClick(page.train_button, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: page.banner.isVisible(), timeout=60_000)
    assert "CartPool-v1" in page.banner.text
    assert page.train_button.isEnabled()


def test_the_other_ways_to_begin(qtbot, themed, link: DaemonLink) -> None:
    page = FirstStartPage(link)
    qtbot.addWidget(page)
    for name, signal in (
        ("first_new_run", page.form_requested),
        ("first_play", page.play_requested),
        ("first_import", page.import_requested),
    ):
        button = page.findChild(QPushButton, name)
        assert button.accessibleName()
        with qtbot.waitSignal(signal):
            button.click()
