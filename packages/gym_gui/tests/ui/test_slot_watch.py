"""The watchdog sees a slot that computes, names it, and does not mind one that waits."""

from __future__ import annotations

import time

from gym_gui.ui.slot_watch import SlotWatch
from PySide6.QtCore import QTimer


def compute_for(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_a_slot_that_computes_is_seen_and_named(qtbot) -> None:
    with SlotWatch(limit_ms=30) as watch:
        QTimer.singleShot(0, lambda: compute_for(0.5))  # long enough for the watch to be given a turn beside it
        qtbot.wait(60)
    assert watch.longest_ms >= 500
    assert len(watch.long_turns) == 1
    assert "compute_for" in watch.report()


def test_a_slot_that_only_waits_costs_nothing(qtbot) -> None:
    with SlotWatch() as watch:
        QTimer.singleShot(0, lambda: time.sleep(0.1))
        qtbot.wait(150)
    assert watch.turns > 0
    assert watch.longest_ms < 50, watch.report()
