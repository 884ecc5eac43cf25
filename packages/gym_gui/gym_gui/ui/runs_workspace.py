"""The workspace of runs: the table in a dock, the page of the chosen run beside or below it.

The table is a dock so that it can be moved to the side, to another screen, or away; the run's page is the centre.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from PySide6.QtCore import QSize, Qt, QTimer, Signal
from PySide6.QtGui import QKeySequence, QShortcut, QShowEvent
from PySide6.QtWidgets import QDockWidget, QLabel, QMainWindow, QStackedWidget, QWidget

if TYPE_CHECKING:
    from gym_gui.ui.panels.run_page import RunPage
    from gym_gui.ui.runs.panel import RunsPanel

WIDE_PX = 1600
"""From this width on the table stands beside the run, below it the table lies above"""


class RunsWorkspace(QMainWindow):
    """Table and page. The page is built when the first run is opened."""

    opened = Signal(str)  # run id

    def __init__(self, panel: RunsPanel, make_page: Callable[[], RunPage], parent: QWidget | None = None) -> None:
        super().__init__(parent, Qt.WindowType.Widget)
        self.setObjectName("runs_workspace")
        self.setDockNestingEnabled(True)
        self.panel = panel
        self._share_is_due: bool | None = None  # beside or above, once there is room to share
        self.page: RunPage | None = None
        self.run_id = ""
        """Whose page is shown"""
        self._make_page = make_page
        self._nothing = QLabel(self.tr("Choose a run in the list to see how it is going."))
        self._nothing.setObjectName("no_run_chosen")
        self._nothing.setProperty("role", "caption")
        self._nothing.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._centre = QStackedWidget()
        self._centre.addWidget(self._nothing)
        self._centre.setMinimumSize(QSize(320, 200))
        self.setCentralWidget(self._centre)
        self.dock = QDockWidget(self.tr("Runs"), self)
        self.dock.setObjectName("runs_dock")
        self.dock.setWidget(panel)
        self.dock.setFeatures(
            QDockWidget.DockWidgetFeature.DockWidgetMovable
            | QDockWidget.DockWidgetFeature.DockWidgetFloatable
            | QDockWidget.DockWidgetFeature.DockWidgetClosable
        )
        self.addDockWidget(Qt.DockWidgetArea.TopDockWidgetArea, self.dock)
        # In the list only: a log has a search of its own on these keys.
        find = QShortcut(QKeySequence(QKeySequence.StandardKey.Find), panel)
        find.setContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
        find.activated.connect(panel.focus_filter)

    def open_run(self, run_id: str) -> None:
        """Show this run's page."""
        if self.page is None:
            self.page = self._make_page()
            self.panel.selection_changed.connect(self.page.choose)
            self.page.choose(tuple(run.run_id for run in self.panel.selected_runs()))
            self._centre.addWidget(self.page)
        self._centre.setCurrentWidget(self.page)
        self.run_id = run_id
        self.page.show_run(run_id)
        self.opened.emit(run_id)

    def arrange(self, *, beside: bool) -> None:
        """The table above the page, or to the left of it."""
        area = Qt.DockWidgetArea.LeftDockWidgetArea if beside else Qt.DockWidgetArea.TopDockWidgetArea
        self.dock.setFloating(False)
        self.addDockWidget(area, self.dock)
        self.dock.show()
        self._share_is_due = beside
        if self.isVisible():
            self._share_soon()

    def arrange_for(self, width: int) -> None:
        """What suits a window of this width."""
        self.arrange(beside=width >= WIDE_PX)

    def _share_soon(self) -> None:
        # Sizes are dealt out by the layout, which has not seen the new arrangement yet.
        QTimer.singleShot(0, self, self._share)

    def _share(self) -> None:
        beside, self._share_is_due = self._share_is_due, None
        if beside is None:
            return
        if beside:
            self.resizeDocks([self.dock], [round(self.width() * 0.52)], Qt.Orientation.Horizontal)
        else:
            self.resizeDocks([self.dock], [round(self.height() * 0.38)], Qt.Orientation.Vertical)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if self._share_is_due is not None:
            self._share_soon()
