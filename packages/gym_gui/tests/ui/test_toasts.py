"""Notes in the corner: how runs ended, a way to them, never too many."""

from __future__ import annotations

import pytest
from gym_gui.ui.shell.announcements import Announcement
from gym_gui.ui.shell.toasts import AT_MOST, Toasts
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QPushButton, QWidget

RUN_ID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


@pytest.fixture
def window(qtbot, themed) -> QWidget:
    window = QWidget()
    window.resize(900, 600)
    qtbot.addWidget(window)
    window.show()
    return window


def failed_run() -> pb.Run:
    run = pb.Run(run_id=RUN_ID, status="TERM", outcome="failed", algo="ppo", env_id="CartPole-v1")
    run.reason = "out of memory"
    return run


def test_a_failed_run_is_reported_with_its_reason_and_can_be_opened(qtbot, window) -> None:
    toasts = Toasts(window)
    toasts.announce(Announcement("failed", (failed_run(),)))
    (toast,) = toasts.shown
    assert "failed" in toast.accessibleName()
    assert "out of memory" in toast.accessibleName()
    with qtbot.waitSignal(toasts.opened) as opened:
        qtbot.mouseClick(toast.findChild(QPushButton, "toast_show"), Qt.MouseButton.LeftButton)
    assert opened.args == [RUN_ID]
    assert toasts.shown == []


def test_notes_stand_above_each_other_inside_the_window_also_after_a_resize(qtbot, window) -> None:
    toasts = Toasts(window)
    for number in range(3):
        toasts.show_message(f"Note {number}", "text")
    window.resize(700, 500)
    places = [toast.geometry() for toast in toasts.shown]
    assert all(window.rect().contains(place) for place in places)
    assert not any(one.intersects(other) for one in places for other in places if one is not other)


def test_the_oldest_note_makes_room(qtbot, window) -> None:
    toasts = Toasts(window)
    for number in range(AT_MOST + 2):
        toasts.show_message(f"Note {number}", "text")
    assert [toast.accessibleName() for toast in toasts.shown] == [f"Note {n}. text" for n in range(2, AT_MOST + 2)]


def test_a_note_goes_by_itself(qtbot, window) -> None:
    window.setGeometry(0, 0, 450, 300)  # away from where another test left the mouse: a note under it stays
    toasts = Toasts(window)
    toasts.show_message("Short", "text", shown_ms=1)
    qtbot.waitUntil(lambda: toasts.shown == [], timeout=10_000)
