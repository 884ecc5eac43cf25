"""The bottom line shows the daemon's state, the runs, and how busy the machine is."""

from __future__ import annotations

import time

from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink, LinkPhase, LinkState
from gym_gui.ui.shell.announcements import Counts
from gym_gui.ui.shell.status_bar import MachineMeter, StatusBar


def test_it_asks_the_daemon_and_the_machine(qtbot, themed, link: DaemonLink, background: Background) -> None:
    bar = StatusBar(link, background)
    qtbot.addWidget(bar)
    bar.show()
    bar.ask()
    qtbot.waitUntil(lambda: "RAM" in bar.memory.text() and "Version" in bar.daemon.toolTip(), timeout=30_000)
    assert "connected" in bar.daemon.text()
    assert bar.cpu.text().startswith("CPU ")
    assert bar.gpu.text()


def test_a_daemon_far_away_reports_what_is_reserved(qtbot, themed, link: DaemonLink, background: Background) -> None:
    bar = StatusBar(link, background, is_local=False)
    qtbot.addWidget(bar)
    bar.show()
    bar.ask()
    qtbot.waitUntil(lambda: "reserved" in bar.cpu.text(), timeout=30_000)
    assert "RAM" in bar.memory.text()


def test_states_and_counts_are_words(qtbot, themed, link: DaemonLink, background: Background) -> None:
    bar = StatusBar(link, background)
    qtbot.addWidget(bar)
    bar.show_counts(Counts(running=2, queued=10))
    assert bar.runs.text() == "2 running · 10 queued"
    bar.show_counts(Counts(paused=1))
    assert bar.runs.text() == "0 running · 0 queued · 1 paused"
    bar.show_state(LinkState(LinkPhase.LOST, "it was killed"))
    assert "not connected" in bar.daemon.text()
    assert bar.daemon.toolTip() == "it was killed"
    bar.show_state(LinkState(LinkPhase.CONNECTING))
    assert "Starting" in bar.daemon.text()


def test_trouble_of_the_daemon_is_passed_on_once(qtbot, themed, link: DaemonLink, background: Background) -> None:
    bar, reported = StatusBar(link, background), []
    qtbot.addWidget(bar)
    bar.complaint_changed.connect(reported.append)
    qtbot.waitUntil(lambda: "Version" in bar.daemon.toolTip(), timeout=30_000)
    from mosaic_wire.proto import trainer_pb2 as pb

    for trouble in ("the disk is full", "the disk is full", ""):
        bar._show_health(pb.Health(trouble=trouble))
    assert reported == ["the disk is full", ""]


def test_the_machine_answers() -> None:
    meter = MachineMeter()
    first = meter.read()
    assert 0 < first.memory_used < first.memory_total
    assert first.cpu_percent is None
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    assert 0 < meter.read().cpu_percent <= 100
