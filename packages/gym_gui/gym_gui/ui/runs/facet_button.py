"""A button that opens a list of values to tick, each with the number of runs that have it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import (
    QListWidget,
    QListWidgetItem,
    QMenu,
    QPushButton,
    QToolButton,
    QVBoxLayout,
    QWidget,
    QWidgetAction,
)

_MOST_LINES = 14


class FacetButton(QToolButton):
    """Ticked values and how many runs each has; the counts are asked for when the list opens."""

    ticked_changed = Signal(object)  # frozenset[str]

    def __init__(
        self,
        name: str,
        title: str,
        counts: Callable[[], Mapping[str, int]],
        in_words: Callable[[str], str] = str,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.setObjectName(f"facet_{name}")
        self._title, self._counts, self._in_words = title, counts, in_words
        self._ticked: frozenset[str] = frozenset()
        self._is_filling = False
        self.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextOnly)
        self.setAutoRaise(True)
        self.list = QListWidget()
        self.list.setObjectName(f"facet_{name}_values")
        self.list.setAccessibleName(title)
        self.list.itemChanged.connect(self._item_changed)
        self.list.itemClicked.connect(self._item_clicked)
        self._pressed_state: Qt.CheckState | None = None
        self.list.itemPressed.connect(self._item_pressed)
        self._everything = QPushButton(self.tr("Show all"))
        self._everything.setObjectName(f"facet_{name}_all")
        self._everything.clicked.connect(lambda: self._choose(frozenset()))
        page = QWidget()
        layout = QVBoxLayout(page)
        layout.setContentsMargins(4, 4, 4, 4)
        layout.addWidget(self.list)
        layout.addWidget(self._everything)
        menu = QMenu(self)
        holder = QWidgetAction(menu)
        holder.setDefaultWidget(page)
        menu.addAction(holder)
        menu.aboutToShow.connect(self.fill)
        self.setMenu(menu)
        self._say()

    @property
    def ticked(self) -> frozenset[str]:
        return self._ticked

    def set_ticked(self, values: Iterable[str]) -> None:
        """From outside (a saved filter); tells nobody."""
        self._ticked = frozenset(values)
        self._say()

    def fill(self) -> None:
        """Values and counts as they are now; ticked ones stay in the list even when no run has them."""
        counts = dict(self._counts())
        for value in self._ticked:
            counts.setdefault(value, 0)
        self._is_filling = True
        self.list.clear()
        for value, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])):
            item = QListWidgetItem(f"{self._in_words(value)}  ({count:,})")
            item.setData(Qt.ItemDataRole.UserRole, value)
            item.setFlags(Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsSelectable | Qt.ItemFlag.ItemIsUserCheckable)
            item.setCheckState(Qt.CheckState.Checked if value in self._ticked else Qt.CheckState.Unchecked)
            self.list.addItem(item)
        if not counts:
            item = QListWidgetItem(self.tr("No values"))
            item.setFlags(Qt.ItemFlag.NoItemFlags)
            self.list.addItem(item)
        self._is_filling = False
        self._everything.setEnabled(bool(self._ticked))
        lines = min(_MOST_LINES, max(1, self.list.count()))
        height = self.list.sizeHintForRow(0) * lines + 2 * self.list.frameWidth() + 4
        width = self.list.sizeHintForColumn(0) + self.list.verticalScrollBar().sizeHint().width() + 24
        self.list.setFixedSize(max(width, self.fontMetrics().averageCharWidth() * 22), height)

    def _item_pressed(self, item: QListWidgetItem) -> None:
        self._pressed_state = item.checkState()

    def _item_clicked(self, item: QListWidgetItem) -> None:
        """A click on the word ticks as well as one on the box (which has ticked it already)."""
        if item.flags() & Qt.ItemFlag.ItemIsUserCheckable and item.checkState() == self._pressed_state:
            is_checked = item.checkState() == Qt.CheckState.Checked
            item.setCheckState(Qt.CheckState.Unchecked if is_checked else Qt.CheckState.Checked)

    def _item_changed(self) -> None:
        if self._is_filling:
            return
        items = (self.list.item(at) for at in range(self.list.count()))
        ticked = (item.data(Qt.ItemDataRole.UserRole) for item in items if item.checkState() == Qt.CheckState.Checked)
        self._choose(frozenset(value for value in ticked if value is not None))

    def _choose(self, values: frozenset[str]) -> None:
        if values == self._ticked:
            return
        self._ticked = values
        self._say()
        if not values:
            self.fill()
        self._everything.setEnabled(bool(values))
        self.ticked_changed.emit(values)

    def _say(self) -> None:
        chosen = sorted(self._in_words(value) for value in self._ticked)
        text = self._title
        if len(chosen) == 1:
            text = (
                f"{self._title}: {self.fontMetrics().elidedText(chosen[0], Qt.TextElideMode.ElideMiddle, self._room())}"
            )
        elif chosen:
            text = f"{self._title}: {len(chosen)}"
        self.setText(f"{text} ")
        font = self.font()
        font.setBold(bool(chosen))
        self.setFont(font)
        what = ", ".join(chosen) if chosen else self.tr("all")
        self.setToolTip(f"{self._title}: {what}")
        self.setAccessibleName(self.tr("Filter by {0}: {1}").format(self._title, what))

    def _room(self) -> int:
        return self.fontMetrics().averageCharWidth() * 16
