"""Charts side by side: as many columns as fit, rows of one height, and places kept for charts still to be made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from PySide6.QtWidgets import QGridLayout, QWidget

Card = TypeVar("Card", bound=QWidget)
_MOST_COLUMNS = 3


def columns_for(width: int, narrowest: int) -> int:
    """How many columns of at least this width stand beside each other."""
    return max(1, min(_MOST_COLUMNS, width // max(1, narrowest)))


def keep_only(grid: QGridLayout, cards: dict[str, Card], wanted: Sequence[str]) -> None:
    """Remove the charts that are not wanted any more."""
    for name in [name for name in cards if name not in wanted]:
        card = cards.pop(name)
        grid.removeWidget(card)
        card.deleteLater()


def arrange(grid: QGridLayout, cards: Mapping[str, QWidget], wanted: Sequence[str], columns: int) -> None:
    """Put the charts that are there into their places among all that are wanted."""
    for index, name in enumerate(wanted):
        if name in cards:
            grid.addWidget(cards[name], index // columns, index % columns)
            cards[name].show()
    for column in range(_MOST_COLUMNS):
        grid.setColumnStretch(column, 1 if column < columns else 0)
    height = max((card.minimumSizeHint().height() for card in cards.values()), default=0)
    for row in range(max(grid.rowCount(), -(-len(wanted) // columns))):
        is_used = row * columns < len(wanted)
        grid.setRowStretch(row, 1 if is_used else 0)
        grid.setRowMinimumHeight(row, height if is_used else 0)
