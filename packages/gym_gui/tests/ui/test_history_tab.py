"""The History tab: every event once and in order, live, after an absence, and expanded to its details."""

from __future__ import annotations

import json

import pytest
from gym_gui.testing import RunningDaemon
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.run_page.history_tab import EventColumn, HistoryTab, TimelineModel, TimelineView
from gym_gui.ui.run_page.run_labels import event_label
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QModelIndex, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtTest import QAbstractItemModelTester, QTest

WAIT = 30_000


def event(seq: int, kind: str = "checkpoint_saved", **fields: object) -> pb.StoryEvent:
    values = {"timestamp": 1000.0 + seq, "attempt": 1, "run_id": "R", **fields}
    return pb.StoryEvent(seq=seq, kind=kind, **values)


def text(model: TimelineModel, row: int, column: EventColumn, parent: QModelIndex | None = None) -> str:
    return model.index(row, column, parent or QModelIndex()).data()


def test_events_stand_in_order_each_once(qtbot) -> None:
    model = TimelineModel()
    tester = QAbstractItemModelTester(model, QAbstractItemModelTester.FailureReportingMode.Fatal)
    assert model.add([event(5), event(2, "submitted", to_status="INIT")]) == 2
    assert model.add([event(5), event(3, "dispatched", from_status="INIT", to_status="HSHK", reason="a\nb")]) == 1
    assert [text(model, row, EventColumn.EVENT) for row in range(3)] == [
        "Submitted",
        "Worker started",
        "Checkpoint saved",
    ]
    assert [text(model, row, EventColumn.STATUS) for row in range(3)] == ["INIT", "INIT → HSHK", ""]
    assert [text(model, row, EventColumn.AFTER) for row in range(3)] == ["", "+1.0 s", "+2.0 s"]
    assert text(model, 1, EventColumn.REASON) == "a b"
    assert model.last_seq == 5
    assert event_label("something_new") == "Something new"
    del tester


def test_an_event_opens_to_what_it_reported(qtbot) -> None:
    model = TimelineModel()
    model.add(
        [event(1, payload_json=json.dumps({"step": 500, "stderr_tail": "one\ntwo"})), event(2, payload_json="{x")]
    )
    tester = QAbstractItemModelTester(model, QAbstractItemModelTester.FailureReportingMode.Fatal)
    first, second = model.index(0, 0), model.index(1, 0)
    details = [
        (text(model, row, EventColumn.EVENT, first), text(model, row, EventColumn.REASON, first)) for row in range(4)
    ]
    assert details == [("step", "500"), ("stderr_tail", "two  … (+1)"), ("seq", "1"), ("attempt", "1")]
    assert model.index(1, EventColumn.REASON, first).data(Qt.ItemDataRole.ToolTipRole) == "one\ntwo"
    assert model.rowCount(second) == 2  # a damaged payload is no reason to fail
    del tester


def test_five_thousand_events_are_drawn(qtbot, themed) -> None:
    model = TimelineModel()
    view = TimelineView(model)
    qtbot.addWidget(view)
    model.add(event(seq, to_status="EXEC", from_status="RDY" if seq % 2 else "EXEC") for seq in range(1, 5001))
    view.resize(900, 400)
    view.show()
    view.scrollToBottom()
    view.expand(model.index(4999, 0))
    assert not view.grab().isNull()


@pytest.fixture
def tab(qtbot, themed, link: DaemonLink) -> HistoryTab:
    tab = HistoryTab(link)
    qtbot.addWidget(tab)
    tab.resize(900, 500)
    tab.show()
    tab.set_active(True)
    return tab


def kinds(tab: HistoryTab) -> list[str]:
    return [tab.model.event_at(tab.model.index(row, 0)).kind for row in range(tab.model.rowCount())]


def test_the_history_of_a_live_run_grows(qtbot, tab: HistoryTab, window_daemon: RunningDaemon) -> None:
    run = window_daemon.submit(timesteps=10**9)
    tab.show_run(window_daemon.wait_for(run.run_id, "EXEC"))
    qtbot.waitUntil(lambda: kinds(tab)[:4] == ["submitted", "dispatched", "registered", "started"], timeout=WAIT)
    window_daemon.client.pause(run.run_id)
    qtbot.waitUntil(lambda: "paused" in kinds(tab), timeout=WAIT)
    window_daemon.client.cancel(run.run_id)
    qtbot.waitUntil(lambda: kinds(tab)[-1] == "cancelled", timeout=WAIT)
    window_daemon.wait_for(run.run_id, "TERM")
    assert kinds(tab) == window_daemon.event_kinds(run.run_id)
    assert "events" in tab.count_label.text()
    tab.view.setFocus()
    tab.view.setCurrentIndex(tab.model.index(0, 0))
    QTest.keyClick(tab.view, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    qtbot.waitUntil(lambda: "Submitted" in QGuiApplication.clipboard().text(), timeout=WAIT)


def test_another_run_is_another_history_and_an_unknown_one_is_reported(
    qtbot, tab: HistoryTab, window_daemon: RunningDaemon
) -> None:
    run = window_daemon.submit(timesteps=5)
    window_daemon.wait_for(run.run_id, "TERM")
    tab.show_run(pb.Run(run_id="01ARZ3NDEKTSV4RRFFQ69G5FAV", status="TERM"))
    qtbot.waitUntil(lambda: "cannot be read" in tab.banner.text, timeout=WAIT)
    tab.show_run(run)
    qtbot.waitUntil(lambda: kinds(tab)[-1:] == ["completed"], timeout=WAIT)
    assert tab.banner.text == ""
    assert {tab.model.event_at(tab.model.index(row, 0)).run_id for row in range(tab.model.rowCount())} == {run.run_id}
