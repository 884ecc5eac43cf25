"""Two parts beside each other where there is room, else one above the other: the run page may be a narrow column."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QSplitter, QWidget


class AdaptiveSplitter(QSplitter):
    """Turns by its own width; a person's arrangement stays until it turns again."""

    def __init__(
        self,
        first: QWidget,
        second: QWidget,
        *,
        beside_from: int,
        beside: tuple[int, int],
        above: tuple[int, int],
        parent: QWidget | None = None,
    ) -> None:
        """`beside_from` is a width in letters m; `beside` and `above` are how the room is shared."""
        super().__init__(Qt.Orientation.Horizontal, parent)
        self.setChildrenCollapsible(False)
        self.addWidget(first)
        self.addWidget(second)
        self._beside_from = beside_from
        self._shares = {Qt.Orientation.Horizontal: beside, Qt.Orientation.Vertical: above}
        self._is_arranged = False
        self._first, self._second = first, second
        self._share()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        has_room = event.size().width() >= self.fontMetrics().horizontalAdvance("m") * self._beside_from
        wanted = Qt.Orientation.Horizontal if has_room else Qt.Orientation.Vertical
        if wanted is not self.orientation() or not self._is_arranged:
            self._is_arranged = True
            self.setOrientation(wanted)
            self._share()

    def _share(self) -> None:
        shares = self._shares[self.orientation()]
        for index, share in enumerate(shares):
            self.setStretchFactor(index, share)
        length = self.width() if self.orientation() is Qt.Orientation.Horizontal else self.height()
        self.setSizes([length * share // sum(shares) for share in shares])
