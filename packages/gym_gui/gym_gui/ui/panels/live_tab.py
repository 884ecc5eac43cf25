"""The Live tab of a run: its picture and curves, and what its worker sends step by step."""

from __future__ import annotations

from collections.abc import Iterator

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QByteArray, QSettings, Qt
from PySide6.QtGui import QHideEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QSplitter, QTabWidget, QVBoxLayout, QWidget

from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.panels.run_tab import RunTab
from gym_gui.ui.panels.telemetry_tab import TelemetryTab
from gym_gui.ui.panels.telemetry_words import Flow, flow_of
from gym_gui.ui.widgets.fastlane_view import FastLaneView
from gym_gui.ui.widgets.live_charts import LiveCharts

_WIDE = 1.15
"""Wider than high by this much, picture and curves stand side by side where both have room"""
_GAP = 8


class LiveTab(RunTab):
    """Two pages; only the one in front follows the run, and neither does while nobody sees the tab."""

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(link, parent)
        self.setObjectName("live_tab")
        self._is_seen = False
        self._chosen_for = ""
        self.fastlane = FastLaneView(link)
        self.charts = LiveCharts(link)
        self._telemetry: TelemetryTab | None = None
        self._split = QSplitter(Qt.Orientation.Horizontal)
        self._split.setObjectName("live_split")
        self._split.addWidget(self.fastlane)
        self._split.addWidget(self.charts)
        self._split.setStretchFactor(0, 2)
        self._split.setStretchFactor(1, 3)
        self._split.setChildrenCollapsible(False)
        picture_page = QWidget()
        # Smaller than both parts side by side: they are put above each other before that.
        self.setMinimumSize(self.fontMetrics().averageCharWidth() * 60, self.fontMetrics().height() * 24)
        box = QVBoxLayout(picture_page)
        box.addWidget(self._split)
        self.pages = QTabWidget()
        self.pages.setObjectName("live_pages")
        self.pages.setAccessibleName(self.tr("Parts of the live view"))
        self.pages.setDocumentMode(True)
        self.pages.addTab(picture_page, self.tr("&Live view"))
        self._telemetry_place = QWidget()
        self.pages.addTab(self._telemetry_place, self.tr("Live &telemetry"))
        self.pages.currentChanged.connect(lambda _: self._tell_parts())
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self.pages)
        self._split.splitterMoved.connect(lambda *_: self._remember())

    @property
    def telemetry(self) -> TelemetryTab:
        """Made when somebody first goes there: most runs send no steps."""
        if self._telemetry is None:
            self._telemetry = TelemetryTab(self.link)
            box = QVBoxLayout(self._telemetry_place)
            box.setContentsMargins(0, 0, 0, 0)
            box.addWidget(self._telemetry)
            if self.run is not None:
                self._telemetry.show_run(self.run)
        return self._telemetry

    # -- the run

    def show_run(self, run: pb.Run) -> None:
        super().show_run(run)
        for part in self._parts():
            part.show_run(run)
        self._choose_page(run)

    def refresh(self, run: pb.Run) -> None:
        super().refresh(run)
        for part in self._parts():
            part.refresh(run)
        self._choose_page(run)

    def _parts(self) -> Iterator[FastLaneView | LiveCharts | TelemetryTab]:
        yield self.fastlane
        yield self.charts
        if self._telemetry is not None:
            yield self._telemetry

    def set_active(self, active: bool) -> None:
        super().set_active(active)
        self._tell_parts()

    def _choose_page(self, run: pb.Run) -> None:
        """Once for each run: a worker that sends steps is watched there, others by picture and curves."""
        flow = flow_of(run)
        if run.run_id != self._chosen_for and flow is not Flow.UNKNOWN:
            self._chosen_for = run.run_id
            self.pages.setCurrentIndex(1 if flow is Flow.STEPS else 0)

    # -- who is looking

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._is_seen = True
        self._tell_parts()

    def hideEvent(self, event: QHideEvent) -> None:
        """Also when the window is put away: a run must not draw for nobody."""
        super().hideEvent(event)
        self._is_seen = False
        self._tell_parts()

    def _tell_parts(self) -> None:
        looked_at = self.is_active and self._is_seen
        page = self.pages.currentIndex()
        self.fastlane.set_active(looked_at and page == 0)
        self.charts.set_active(looked_at and page == 0)
        if self._telemetry is not None or (looked_at and page == 1):
            self.telemetry.set_active(looked_at and page == 1)

    # -- room

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        width, height = event.size().width(), event.size().height()
        needed = self.fastlane.minimumSizeHint().width() + self.charts.minimumSizeHint().width() + 6 * _GAP
        is_wide = width > max(needed, _WIDE * height)
        wanted = Qt.Orientation.Horizontal if is_wide else Qt.Orientation.Vertical
        if self._split.orientation() != wanted or not event.oldSize().isValid():
            self._split.setOrientation(wanted)
            for part, margins in zip((self.fastlane, self.charts), _margins(is_wide), strict=True):
                part.setContentsMargins(*margins)
            state = _settings().value(_split_key(wanted))
            if isinstance(state, QByteArray) and self._split.restoreState(state):
                self._split.setOrientation(wanted)  # the state brings the orientation it was saved with
            else:
                room = width if is_wide else height
                self._split.setSizes([2 * room // 5, 3 * room // 5] if is_wide else [room // 2, room // 2])

    def _remember(self) -> None:
        _settings().setValue(_split_key(self._split.orientation()), self._split.saveState())


def _margins(is_wide: bool) -> tuple[tuple[int, int, int, int], tuple[int, int, int, int]]:
    """Of the two parts, so that neither touches the handle between them."""
    return ((0, 0, _GAP, 0), (_GAP, 0, 0, 0)) if is_wide else ((0, 0, 0, _GAP), (0, _GAP, 0, 0))


def _split_key(orientation: Qt.Orientation) -> str:
    return "split_horizontal" if orientation is Qt.Orientation.Horizontal else "split_vertical"


def _settings() -> QSettings:
    settings = QSettings("MOSAIC", "mosaic")
    settings.beginGroup("live_tab")
    return settings
