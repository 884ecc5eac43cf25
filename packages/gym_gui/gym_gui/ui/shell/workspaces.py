"""The workspaces of the window: title, shortcut and panel of each.

To add one, add a line to `WORKSPACES`; its panel is imported and built when it is first opened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, cast

from mosaic_wire.paths import Home
from PySide6.QtCore import QSize, Qt, QTimer, Signal
from PySide6.QtGui import QKeySequence, QShortcut, QShowEvent
from PySide6.QtWidgets import QDockWidget, QLabel, QMainWindow, QStackedWidget, QWidget

from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.widgets.parts import named
from gym_gui.ui.workers.translation import QT_TRANSLATE_NOOP

if TYPE_CHECKING:
    from gym_gui.ui.run_page.page import RunPage
    from gym_gui.ui.runs.panel import RunsPanel

WIDE_PX = 1600
"""Minimal width for the table and the run side by side; below it the table is above the run"""


class RunsWorkspace(QMainWindow):
    """The runs table and the run page; the page is built when the first run is opened."""

    opened = Signal(str)  # run id

    def __init__(self, panel: RunsPanel, make_page: Callable[[], RunPage], parent: QWidget | None = None) -> None:
        super().__init__(parent, Qt.WindowType.Widget)
        self.setObjectName("runs_workspace")
        self.setDockNestingEnabled(True)
        self.panel = panel
        self._share_is_due: bool | None = None  # the requested orientation, until the size is known
        self.page: RunPage | None = None
        self.run_id = ""
        """The run whose page is shown"""
        self._make_page = make_page
        self._nothing = named(QLabel(self.tr("Select a run in the list to see its progress.")), "no_run_chosen")
        self._nothing.setProperty("role", "caption")
        self._nothing.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._center = QStackedWidget()
        self._center.addWidget(self._nothing)
        self._center.setMinimumSize(QSize(320, 200))
        self.setCentralWidget(self._center)
        self.dock = named(QDockWidget(self.tr("Runs"), self), "runs_dock")
        self.dock.setWidget(panel)
        self.dock.setFeatures(
            QDockWidget.DockWidgetFeature.DockWidgetMovable
            | QDockWidget.DockWidgetFeature.DockWidgetFloatable
            | QDockWidget.DockWidgetFeature.DockWidgetClosable
        )
        self.addDockWidget(Qt.DockWidgetArea.TopDockWidgetArea, self.dock)
        # Only in the list: a log uses these keys for its own search.
        find = QShortcut(QKeySequence(QKeySequence.StandardKey.Find), panel)
        find.setContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
        find.activated.connect(panel.focus_filter)

    def open_run(self, run_id: str) -> None:
        """Show the page of this run."""
        if self.page is None:
            self.page = self._make_page()
            self.panel.selection_changed.connect(self.page.choose)
            self.page.choose(tuple(run.run_id for run in self.panel.selected_runs()))
            self._center.addWidget(self.page)
        self._center.setCurrentWidget(self.page)
        self.run_id = run_id
        self.page.show_run(run_id)
        self.opened.emit(run_id)

    def arrange(self, *, beside: bool) -> None:
        """Place the table above the page or to its left."""
        area = Qt.DockWidgetArea.LeftDockWidgetArea if beside else Qt.DockWidgetArea.TopDockWidgetArea
        self.dock.setFloating(False)
        self.addDockWidget(area, self.dock)
        self.dock.show()
        self._share_is_due = beside
        if self.isVisible():
            self._share_soon()

    def arrange_for(self, width: int) -> None:
        """Choose the arrangement for a window of this width."""
        self.arrange(beside=width >= WIDE_PX)

    def _share_soon(self) -> None:
        # The layout assigns sizes later: it has not seen the new arrangement yet.
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


@dataclass(frozen=True)
class Workspace:
    name: str
    title: str
    shortcut: str
    panel: tuple[str, str] | None = None
    """Module and class, imported when first opened; None: the window builds it"""

    def build(
        self,
        link: DaemonLink,
        background: Background,
        home: Home | None,
        parent: QWidget,
        open_run: Callable[[str], None],
    ) -> QWidget:
        assert self.panel is not None
        module, kind = self.panel
        panel = getattr(import_module(f"gym_gui.ui.{module}"), kind)(link, background, home, parent)
        panel.run_opened.connect(open_run)
        return cast(QWidget, panel)


RUNS, COMPARE, PLAY, POLICY, MANAGEMENT = "runs", "compare", "play", "policy", "management"

WORKSPACES = (
    Workspace(RUNS, QT_TRANSLATE_NOOP("Workspaces", "&Runs"), "Ctrl+1"),
    Workspace(COMPARE, QT_TRANSLATE_NOOP("Workspaces", "&Compare"), "Ctrl+5", ("compare.panel", "ComparePanel")),
    Workspace(PLAY, QT_TRANSLATE_NOOP("Workspaces", "&Play"), "Ctrl+2", ("play.human_panel", "HumanPanel")),
    Workspace(
        POLICY, QT_TRANSLATE_NOOP("Workspaces", "&Watch a policy"), "Ctrl+3", ("play.policy_panel", "PolicyPanel")
    ),
    Workspace(
        MANAGEMENT, QT_TRANSLATE_NOOP("Workspaces", "&Management"), "Ctrl+4", ("management.panel", "ManagementPanel")
    ),
)
