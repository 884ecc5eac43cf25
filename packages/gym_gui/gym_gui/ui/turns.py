"""Work in pieces: what is too much for one turn of the window's loop goes on in a later one."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject, QTimer

_PAUSE_MS = 15


def in_a_later_turn(owner: QObject, function: Callable[[], object]) -> None:
    """Call it once the window has dealt with what waits now and has been given a moment; never after `owner` is gone.

    A timer alone would not do: what was begun now (layout, paint) may take longer than its wait, and then it comes in
    the same turn.
    """
    QTimer.singleShot(0, owner, lambda: QTimer.singleShot(_PAUSE_MS, owner, lambda: function()))
