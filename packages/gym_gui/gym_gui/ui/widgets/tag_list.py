"""All curves that runs have, in a list with boxes and a field to search it."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QLineEdit, QListWidget, QListWidgetItem, QVBoxLayout, QWidget


class TagList(QWidget):
    """Which tags have a chart. `chosen_changed` tells when a person changed that."""

    chosen_changed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("tag_list")
        self.search = QLineEdit()
        self.search.setObjectName("tag_search")
        self.search.setAccessibleName(self.tr("Search among the curves"))
        self.search.setPlaceholderText(self.tr("Search curves"))
        self.search.setClearButtonEnabled(True)
        self.list = QListWidget()
        self.list.setObjectName("tag_boxes")
        self.list.setAccessibleName(self.tr("Curves; Space shows or removes a chart"))
        self.list.setUniformItemSizes(True)
        self.list.setSpacing(1)
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.list.setTextElideMode(Qt.TextElideMode.ElideMiddle)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(4)
        layout.addWidget(self.search)
        layout.addWidget(self.list, 1)
        self.setMinimumWidth(self.fontMetrics().averageCharWidth() * 20)
        self.search.textChanged.connect(self._filter)
        self.search.returnPressed.connect(self._toggle_only)
        self.list.itemChanged.connect(lambda _: self.chosen_changed.emit())
        self.list.itemActivated.connect(self._toggle)

    def show_tags(self, tags: Iterable[str], chosen: Iterable[str]) -> None:
        """What there is, and what of it is shown; nothing is told."""
        wanted = set(chosen)
        known = sorted({*tags, *wanted})
        flags = Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsSelectable | Qt.ItemFlag.ItemIsUserCheckable
        self.list.blockSignals(True)
        if known != self.tags():
            self.list.clear()
            for tag in known:
                item = QListWidgetItem(tag)
                item.setToolTip(tag)
                item.setFlags(flags)
                self.list.addItem(item)
        for item in self._items():
            item.setCheckState(Qt.CheckState.Checked if item.text() in wanted else Qt.CheckState.Unchecked)
        self.list.blockSignals(False)
        self._filter(self.search.text())

    def tags(self) -> list[str]:
        return [item.text() for item in self._items()]

    def chosen(self) -> list[str]:
        """In the order they stand."""
        return [item.text() for item in self._items() if item.checkState() == Qt.CheckState.Checked]

    def shown(self) -> list[str]:
        """Those that the search leaves."""
        return [item.text() for item in self._items() if not item.isHidden()]

    def _items(self) -> list[QListWidgetItem]:
        return [self.list.item(row) for row in range(self.list.count())]

    def _filter(self, text: str) -> None:
        words = text.lower().split()
        for item in self._items():
            item.setHidden(not all(word in item.text().lower() for word in words))

    def _toggle(self, item: QListWidgetItem) -> None:
        is_on = item.checkState() == Qt.CheckState.Checked
        item.setCheckState(Qt.CheckState.Unchecked if is_on else Qt.CheckState.Checked)

    def _toggle_only(self) -> None:
        """Enter in the field takes the only one that is left."""
        left = [item for item in self._items() if not item.isHidden()]
        if len(left) == 1:
            self._toggle(left[0])
