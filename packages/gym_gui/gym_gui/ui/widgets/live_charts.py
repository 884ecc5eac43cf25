"""Curves of a run while it trains: return, length, losses, speed, and whatever else is chosen, in a grid of charts.

Follows the run only while it is active. Which curves, how smooth and over what is remembered for the next run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QSettings, Qt, QTimer
from PySide6.QtGui import QAction, QResizeEvent
from PySide6.QtWidgets import (
    QComboBox,
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QMenu,
    QPushButton,
    QScrollArea,
    QSlider,
    QVBoxLayout,
    QWidget,
)

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.ui.daemon_link import DaemonLink, Subscription
from gym_gui.ui.decoded_stream import DecodedStream
from gym_gui.ui.presenters.live_curves import (
    MOST_POINTS,
    CurveBook,
    CurvePart,
    PartReader,
    asked_tags,
    shown_tags,
)
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.card_grid import arrange, columns_for, keep_only
from gym_gui.ui.widgets.chart_card import Axis, ChartCard
from gym_gui.ui.widgets.fastlane_words import is_live

_UPDATE_MS = 250
_CHARTS_A_TURN = 2
_NEXT_TURN_MS = 15
"""Timers without a wait would all come in one turn of the window's loop"""
_SMOOTHEST = 99
_NARROWEST_CHART_CHARS = 44
"""A chart gets at least the room of so many letters; a wider view has more columns"""


class LiveCharts(QWidget):
    """The charts of one run at a time."""

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("live_charts")
        self._link = link
        self._run: pb.Run | None = None
        self._is_active = False
        self._subscription: Subscription[list[CurvePart]] | None = None
        self._read_to_the_end = False
        self._book = CurveBook()
        self._known: set[str] = set()
        self._choices: dict[str, bool] = {}
        self.cards: dict[str, ChartCard] = {}
        self._due: dict[str, None] = {}
        self._next_turn = QTimer(self)
        self._next_turn.setSingleShot(True)
        self._next_turn.timeout.connect(self._take_turn)
        self._build()
        self._restore()

    # ---------------------------------------------------------------- the run

    @property
    def is_following(self) -> bool:
        return self._subscription is not None

    def show_run(self, run: pb.Run) -> None:
        if self._run is None or run.run_id != self._run.run_id:
            self._stop()
            self._book.clear()
            self._known.clear()
            self._read_to_the_end = False
            self.banner.clear()
            self._arrange()
        self.refresh(run)

    def refresh(self, run: pb.Run) -> None:
        before, self._run = self._run, run
        if before is not None and before.status != run.status and is_live(run):
            self._read_to_the_end = False  # it began, or went on: there is more to come
        self._follow_or_not()
        self._explain()

    def set_active(self, active: bool) -> None:
        self._is_active = active
        if active:
            self._read_to_the_end = False
        self._follow_or_not()

    def _follow_or_not(self) -> None:
        if not self._is_active or self._run is None or self._run.status == "INIT":
            self._stop()
        elif self._subscription is None and not self._read_to_the_end:
            self._start(self._run.run_id)

    def _start(self, run_id: str) -> None:
        tags = asked_tags(self._choices)

        def curves(client: TrainerClient) -> DecodedStream[list[CurvePart]]:
            # A new reader for each stream: after the daemon was away the curves come again from their beginning.
            return DecodedStream(client.metrics(run_id, tags, max_points=MOST_POINTS, follow=True), PartReader())

        self._subscription = self._link.stream(
            curves, self._take, owner=self, ended=self._ended, every_ms=_UPDATE_MS
        )  # fmt: skip
        self._ask_for_tags()

    def _stop(self) -> None:
        if self._subscription is not None:
            self._subscription.cancel()
            self._subscription.deleteLater()
            self._subscription = None

    def _ended(self, words: str) -> None:
        self._subscription = None
        self._read_to_the_end = True
        if words:
            self.banner.say(self.tr("The curves cannot be read: {0}").format(words), "bad", action=self.tr("Try again"),
                            on_action=self._try_again)  # fmt: skip
        self._explain()

    def _try_again(self) -> None:
        self.banner.clear()
        self._read_to_the_end = False
        self._follow_or_not()

    # ---------------------------------------------------------------- what arrives

    def _take(self, batch: list[list[CurvePart]]) -> None:
        changed = self._book.add(part for parts in batch for part in parts)
        self._known |= changed
        self._draw(changed)
        if self._wanted() != list(self.cards):
            self._arrange()

    def _wanted(self) -> list[str]:
        return shown_tags(self._known & self._book.curves.keys(), self._choices)

    def _draw(self, tags: Iterable[str] | None = None) -> None:
        """Have charts drawn (None: all)."""
        self._due.update(dict.fromkeys(self.cards if tags is None else tags))
        self._have_a_turn()

    def _have_a_turn(self) -> None:
        if not self._next_turn.isActive():
            self._next_turn.start(_NEXT_TURN_MS)

    def _take_turn(self) -> None:
        """Draw a few charts, or make one: all of them at once would hold the window up."""
        due = [tag for tag in self._due if tag in self.cards and tag in self._book.curves]
        missing = [tag for tag in self._wanted() if tag not in self.cards]
        self._due = dict.fromkeys(due[_CHARTS_A_TURN:])
        if due:
            axis, weight, began_at = self.axis, self.smoothing, self._book.began_at()
            for tag in due[:_CHARTS_A_TURN]:
                self.cards[tag].draw(self._book.curves[tag], axis, began_at, weight)
        elif missing:
            self._make(missing[0])
        if self._due or missing:
            self._have_a_turn()

    def _ask_for_tags(self) -> None:
        if self._run is not None:
            run_id = self._run.run_id
            # Without an answer the menu offers what has come: nothing to complain about.
            self._link.call(
                lambda client: (run_id, [tag.tag for tag in client.metric_tags(run_id)]),
                owner=self, done=self._learn_tags, failed=lambda words: None,
            )  # fmt: skip

    def _learn_tags(self, answer: tuple[str, list[str]]) -> None:
        run_id, tags = answer
        if self._run is not None and run_id == self._run.run_id:
            self._known.update(tags)
            if self._menu.isVisible():
                self._fill_menu()

    def _explain(self) -> None:
        """Words in place of charts."""
        self._scroll.setVisible(bool(self.cards))
        if self.cards or self._run is None:
            self._words.hide()
            return
        if self._run.status == "INIT":
            words = self.tr("The run waits in the queue. Its curves appear here when it trains.")
        elif self._run.status == "TERM" and self._read_to_the_end:
            words = self.tr("This run left no curves.")
        else:
            words = self.tr("No curves yet. They appear with the first finished episode or update.")
        self._words.setText(words)
        self._words.show()

    # ---------------------------------------------------------------- the grid

    def _arrange(self) -> None:
        """Remove the charts that are not to be seen any more; those that are missing are made in the next turns."""
        keep_only(self._grid, self.cards, self._wanted())
        self._place()
        self._explain()
        self._have_a_turn()

    def _make(self, tag: str) -> None:
        wanted = self._wanted()
        card = ChartCard(tag, wanted.index(tag), self._inside)
        card.pointed_at.connect(self._mark_all)
        self.cards[tag] = card
        self.cards = {tag: self.cards[tag] for tag in wanted if tag in self.cards}
        self._place()
        self._explain()
        self._draw([tag])

    def _place(self) -> None:
        """Put the charts into their places; rows whose charts are still to be made are kept free for them."""
        narrowest = self.fontMetrics().averageCharWidth() * _NARROWEST_CHART_CHARS
        columns = columns_for(self._scroll.viewport().width(), narrowest)
        arrange(self._grid, self.cards, self._wanted(), columns)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._place()

    def _mark_all(self, x: float | None) -> None:
        """One place, read out in every chart: what was the loss when the return fell?"""
        for card in self.cards.values():
            card.mark(x)

    def reset_zoom(self) -> None:
        for card in self.cards.values():
            card.reset_zoom()

    # ---------------------------------------------------------------- choices

    @property
    def axis(self) -> Axis:
        return Axis(self._axis.currentData())

    @property
    def smoothing(self) -> float:
        value: int = self._slider.value()
        return value / 100

    def choose(self, tag: str, is_wanted: bool) -> None:
        """Show a curve or do not; remembered for other runs that have it."""
        self._choices[tag] = is_wanted
        _settings().setValue("choices", json.dumps(self._choices))
        if is_wanted and tag not in self._book.curves:
            self._stop()
            self._read_to_the_end = False
            self._follow_or_not()
        self._arrange()

    def _fill_menu(self) -> None:
        self._menu.clear()
        shown = set(self.cards)
        group = ""
        for tag in sorted(self._known):
            if group and tag.partition("/")[0] != group:
                self._menu.addSeparator()
            group = tag.partition("/")[0]
            action = QAction(tag, self._menu, checkable=True, checked=tag in shown)
            action.toggled.connect(lambda is_wanted, tag=tag: self.choose(tag, is_wanted))
            self._menu.addAction(action)
        if not self._known:
            self._menu.addAction(self.tr("No curves yet")).setEnabled(False)

    def _open_menu(self) -> None:
        self._fill_menu()
        self._ask_for_tags()

    def _change_look(self) -> None:
        settings = _settings()
        settings.setValue("smoothing", self._slider.value())
        settings.setValue("axis", self.axis.value)
        self._smoothing_text.setText(f"{self.smoothing:.2f}" if self._slider.value() else self.tr("off"))
        self._draw()

    def _restore(self) -> None:
        settings = _settings()
        axis = self._axis.findData(settings.value("axis"))
        try:
            stored = json.loads(str(settings.value("choices") or "{}"))
            smoothing = int(str(settings.value("smoothing") or 0))
        except ValueError:  # edited by hand
            stored, smoothing = {}, 0
        if isinstance(stored, dict):
            self._choices = {str(tag): bool(is_wanted) for tag, is_wanted in stored.items()}
        self._slider.setValue(min(max(0, smoothing), _SMOOTHEST))
        self._axis.setCurrentIndex(max(0, axis))
        self._change_look()

    # ---------------------------------------------------------------- widgets

    def _build(self) -> None:
        self.banner = Banner(parent=self)
        self._words = QLabel()
        self._words.setObjectName("live_charts_words")
        self._words.setProperty("role", "caption")
        self._words.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._words.setWordWrap(True)
        self._inside = QWidget()
        self._grid = QGridLayout(self._inside)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setSpacing(8)
        self._scroll = QScrollArea()
        self._scroll.setFrameShape(QFrame.Shape.NoFrame)
        self._scroll.setWidgetResizable(True)
        self._scroll.setWidget(self._inside)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addLayout(self._build_tools())
        layout.addWidget(self.banner)
        layout.addWidget(self._words, 1)
        layout.addWidget(self._scroll, 1)
        self._words.hide()

    def _build_tools(self) -> QHBoxLayout:
        self._menu = QMenu(self)
        self._menu.aboutToShow.connect(self._open_menu)
        button = QPushButton(self.tr("C&urves"))
        button.setObjectName("live_charts_curves")
        button.setAccessibleName(self.tr("Choose curves"))
        button.setMenu(self._menu)
        self._axis = QComboBox()
        self._axis.setObjectName("live_charts_axis")
        self._axis.setAccessibleName(self.tr("Horizontal axis"))
        self._axis.addItem(self.tr("over steps"), Axis.STEP.value)
        self._axis.addItem(self.tr("over time"), Axis.TIME.value)
        self._slider = QSlider(Qt.Orientation.Horizontal)
        self._slider.setRange(0, _SMOOTHEST)
        self._slider.setObjectName("live_charts_smoothing")
        self._slider.setAccessibleName(self.tr("Smoothing"))
        self._slider.setToolTip(self.tr("How much of the past a smoothed curve carries along"))
        self._slider.setMinimumWidth(self.fontMetrics().averageCharWidth() * 12)
        label = QLabel(self.tr("&Smoothing"))
        label.setBuddy(self._slider)
        self._smoothing_text = QLabel()
        self._smoothing_text.setProperty("role", "caption")
        self._smoothing_text.setMinimumWidth(self.fontMetrics().horizontalAdvance("0.00 "))
        reset = QPushButton(self.tr("&Reset zoom"))
        reset.setObjectName("live_charts_reset")
        reset.setAccessibleName(self.tr("Show the whole curves again"))
        reset.setToolTip(self.tr("Drag, or turn the wheel with Ctrl, to look closer; this shows everything again"))
        reset.clicked.connect(self.reset_zoom)
        tools = QHBoxLayout()
        tools.addWidget(button)
        tools.addWidget(self._axis)
        tools.addWidget(label)
        tools.addWidget(self._slider)
        tools.addWidget(self._smoothing_text)
        tools.addStretch(1)
        tools.addWidget(reset)
        self._slider.valueChanged.connect(self._change_look)
        self._axis.currentIndexChanged.connect(self._change_look)
        return tools


def _settings() -> QSettings:
    settings = QSettings("MOSAIC", "mosaic")
    settings.beginGroup("live_charts")
    return settings
