"""What the panel remembers between sessions: columns, order, grouping."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QByteArray, QSettings, Qt

from gym_gui.ui.runs.rows import Column

COLUMNS_VERSION = 2
"""Count it up when a column is added, removed or changes its place in `Column`"""


@dataclass(frozen=True)
class PanelState:
    header: QByteArray | None = None
    """Widths, order and hidden columns"""
    sort_column: Column = Column.STARTED
    sort_order: Qt.SortOrder = Qt.SortOrder.DescendingOrder
    is_grouped: bool = False
    show_archived: bool = False
    shares_rest: bool = True
    """Nobody has changed the width of a column yet"""


def _settings() -> QSettings:
    # With two names alone Qt would ignore the default format, and with it where tests keep their settings.
    settings = QSettings(QSettings.defaultFormat(), QSettings.Scope.UserScope, "MOSAIC", "mosaic")
    settings.beginGroup("runs")
    return settings


def load() -> PanelState:
    """What was kept; the usual where nothing was, or something of another version."""
    settings = _settings()
    header = settings.value("header")
    if str(settings.value("columns_version")) != str(COLUMNS_VERSION):
        return PanelState()
    try:
        column = Column(int(str(settings.value("sort_column"))))
    except ValueError:
        column = Column.STARTED
    is_ascending = str(settings.value("sort_ascending")) == "true"
    return PanelState(
        header if isinstance(header, QByteArray) else None,
        column,
        Qt.SortOrder.AscendingOrder if is_ascending else Qt.SortOrder.DescendingOrder,
        str(settings.value("grouped")) == "true",
        str(settings.value("archived")) == "true",
        str(settings.value("shares_rest")) == "true",
    )


def save(state: PanelState) -> None:
    settings = _settings()
    settings.setValue("columns_version", COLUMNS_VERSION)
    settings.setValue("header", state.header)
    settings.setValue("sort_column", int(state.sort_column))
    settings.setValue("sort_ascending", "true" if state.sort_order == Qt.SortOrder.AscendingOrder else "false")
    settings.setValue("grouped", "true" if state.is_grouped else "false")
    settings.setValue("archived", "true" if state.show_archived else "false")
    settings.setValue("shares_rest", "true" if state.shares_rest else "false")
    settings.sync()
