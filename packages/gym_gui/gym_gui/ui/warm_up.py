"""Loads what tabs, workspaces and dialogs are written in before somebody opens one: in a thread, once all is quiet.

The window imports them when they are first needed, so that it opens soon; 0.4 s of imports in the slot that opens the
Live tab would be a frozen window.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from importlib import import_module

from PySide6.QtCore import QObject, Qt, QTimer, Signal

from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink

MODULES = (
    "gym_gui.ui.panels.run_page",
    "gym_gui.ui.panels.live_tab",
    "gym_gui.ui.widgets.resource_plots",
    "gym_gui.ui.widgets.dialog_factory",
    "gym_gui.ui.panels.charts_tab",
    "gym_gui.ui.widgets.chart_board",
    "gym_gui.ui.panels.tensorboard_tab",
    "gym_gui.ui.panels.replay_tab",
    "gym_gui.ui.panels.compare_panel",
    "gym_gui.ui.widgets.comparison_view",
    "gym_gui.ui.panels.human_panel",
    "gym_gui.ui.panels.policy_panel",
    "gym_gui.ui.panels.management_panel",
    "gym_gui.ui.widgets.daemon_page",
    "gym_gui.ui.widgets.workers_page",
    "gym_gui.ui.widgets.sets_table",
    "gym_gui.ui.widgets.disk_use",
    "gym_gui.ui.widgets.filters_page",
    "gym_gui.ui.widgets.settings_dialog",
    "gym_gui.ui.panels.wandb_tab",
    "gym_gui.ui.panels.optuna_tab",
)
"""In the order in which a person may want them"""
QUIET_MS = 500
"""After the runs are there: until then the window has better things to do"""


class WarmUp(QObject):
    """Begins when the link has told of the runs for the first time."""

    finished = Signal()

    def __init__(self, link: DaemonLink, background: Background, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._background = background
        self._left = list(MODULES)
        self.is_finished = False
        self._timer = QTimer(self, singleShot=True, interval=QUIET_MS)
        self._timer.timeout.connect(self._next)
        link.runs_loaded.connect(lambda _runs: self._timer.start(), Qt.ConnectionType.SingleShotConnection)

    def _next(self) -> None:
        """One after the other: the window's thread gets its turn in between."""
        if self._left:
            name = self._left.pop(0)
            self._background.run(lambda: _load(name), owner=self, done=lambda _: self._next())
        else:
            # What was loaded never becomes garbage: without this the next collection would look through all of it.
            gc.freeze()
            self.is_finished = True
            self.finished.emit()


def _load(name: str) -> None:
    with suppress(ImportError):  # whoever opens that part is told what is missing
        import_module(name)
