"""Charts side by side, one for each curve, with a menu that says which. Made a few at a time.

Importing this loads pyqtgraph, which takes a third of a second: import it in a thread first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from PySide6.QtCore import Qt, QTimer
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
    QVBoxLayout,
    QWidget,
)

from gym_gui.ui.presenters.live_curves import MOST_CHARTS, Curve
from gym_gui.ui.widgets.card_grid import arrange, columns_for, keep_only
from gym_gui.ui.widgets.chart_card import Axis, ChartCard

_NEXT_TURN_MS = 15
_NARROWEST_CHARS = 40

Choose = Callable[[Iterable[str], Mapping[str, bool]], list[str]]
"""Known keys and what a person chose → the keys that have a chart"""


class CurveGrid(QWidget):
    """Shows `Curve`s; the caller gives new ones as they grow."""

    def __init__(self, name: str, choose: Choose, parent: QWidget | None = None, *, has_steps: bool = True) -> None:
        super().__init__(parent)
        self.setObjectName(name)
        self._choose = choose
        self._curves: Mapping[str, Curve] = {}
        self._choices: dict[str, bool] = {}
        self.cards: dict[str, ChartCard] = {}
        self._due: dict[str, None] = {}
        self._arrangement: tuple[int, tuple[str, ...]] = (0, ())
        self._turn = QTimer(self)
        self._turn.setSingleShot(True)
        self._turn.setInterval(_NEXT_TURN_MS)
        self._turn.timeout.connect(self._take_turn)
        self._build(name, has_steps)

    def _build(self, name: str, has_steps: bool) -> None:
        self._menu = QMenu(self)
        self._menu.aboutToShow.connect(self._fill_menu)
        button = QPushButton(self.tr("C&urves"))
        button.setObjectName(f"{name}_curves")
        button.setAccessibleName(self.tr("Choose curves"))
        button.setMenu(self._menu)
        self.axis_box = QComboBox()
        self.axis_box.setObjectName(f"{name}_axis")
        self.axis_box.setAccessibleName(self.tr("Horizontal axis"))
        if has_steps:
            self.axis_box.addItem(self.tr("over steps"), Axis.STEP.value)
        self.axis_box.addItem(self.tr("over time"), Axis.TIME.value)
        self.axis_box.setVisible(has_steps)
        self.axis_box.currentIndexChanged.connect(lambda: self._draw(self.cards))
        self.count = QLabel()
        self.count.setObjectName(f"{name}_count")
        self.count.setProperty("role", "caption")
        tools = QHBoxLayout()
        tools.addWidget(button)
        tools.addWidget(self.axis_box)
        tools.addWidget(self.count)
        tools.addStretch(1)
        self._inside = QWidget()
        self._grid = QGridLayout(self._inside)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setSpacing(8)
        self._scroll = QScrollArea()
        self._scroll.setObjectName(f"{name}_scroll")
        self._scroll.setAccessibleName(self.tr("Charts"))
        self._scroll.setFrameShape(QFrame.Shape.NoFrame)
        self._scroll.setWidgetResizable(True)
        self._scroll.setWidget(self._inside)
        self.words = QLabel()
        self.words.setObjectName(f"{name}_words")
        self.words.setProperty("role", "caption")
        self.words.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.words.setWordWrap(True)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 6, 0, 0)
        layout.addLayout(tools)
        layout.addWidget(self._scroll, 1)
        layout.addWidget(self.words, 1)
        self._explain()

    @property
    def axis(self) -> Axis:
        return Axis(self.axis_box.currentData())

    def show_curves(self, curves: Mapping[str, Curve], words: str = "") -> None:
        """Draw these from now on; `words` stand in place of charts when there are none."""
        changed = [key for key, curve in curves.items() if self._curves.get(key) is not curve]
        self._curves = curves
        self.words.setText(words)
        self._arrange()
        self._draw(changed)

    def choose(self, key: str, is_wanted: bool) -> None:
        self._choices[key] = is_wanted
        self._arrange()

    def _wanted(self) -> list[str]:
        return self._choose(self._curves, self._choices)[:MOST_CHARTS]

    def _arrange(self) -> None:
        keep_only(self._grid, self.cards, self._wanted())
        self._place()
        self._explain()
        self._have_a_turn()

    def _draw(self, keys: Iterable[str]) -> None:
        self._due.update(dict.fromkeys(keys))
        self._have_a_turn()

    def _have_a_turn(self) -> None:
        if not self._turn.isActive():
            self._turn.start()

    def _take_turn(self) -> None:
        """Draw one chart, or make one."""
        due = [key for key in self._due if key in self.cards and key in self._curves]
        missing = [key for key in self._wanted() if key not in self.cards]
        self._due = dict.fromkeys(due[1:])
        if due:
            self.cards[due[0]].draw(self._curves[due[0]], self.axis, self._began_at(), 0.0)
        elif missing:
            self._make(missing[0])
        if due or missing:
            self._have_a_turn()

    def _began_at(self) -> float:
        moments = (float(curve.times[0]) for curve in self._curves.values() if len(curve.times) and curve.times[0] > 0)
        return min(moments, default=0.0)

    def _make(self, key: str) -> None:
        wanted = self._wanted()
        card = ChartCard(key, wanted.index(key), self._inside)
        card.pointed_at.connect(self._mark_all)
        self.cards[key] = card
        self._place()
        self._explain()
        self._draw([key])

    def _mark_all(self, x: float | None) -> None:
        for card in self.cards.values():
            card.mark(x)

    def _place(self) -> None:
        narrowest = self.fontMetrics().averageCharWidth() * _NARROWEST_CHARS
        columns = columns_for(self._scroll.viewport().width(), narrowest)
        wanted = self._wanted()
        arrangement = columns, tuple(key if key in self.cards else "" for key in wanted)
        if arrangement == self._arrangement:
            return  # laying out and painting charts is what costs
        self._arrangement = arrangement
        arrange(self._grid, self.cards, wanted, columns)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._place()

    def _explain(self) -> None:
        has_some = bool(self._curves)
        self._scroll.setVisible(has_some)
        self.words.setVisible(not has_some)
        shown, known = len(self._wanted()), len(self._curves)
        self.count.setText(self.tr("{shown} of {known}").format(shown=shown, known=known) if known else "")

    def _fill_menu(self) -> None:
        self._menu.clear()
        shown = set(self._wanted())
        for key in sorted(self._curves):
            action = QAction(key, self._menu, checkable=True, checked=key in shown)
            action.toggled.connect(lambda is_wanted, key=key: self.choose(key, is_wanted))
            self._menu.addAction(action)
        if not self._curves:
            self._menu.addAction(self.tr("No curves yet")).setEnabled(False)
