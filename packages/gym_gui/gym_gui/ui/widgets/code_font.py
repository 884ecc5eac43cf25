"""A fixed-width font that grows and shrinks with the window's letters."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject
from PySide6.QtWidgets import QWidget

from gym_gui.ui import theme


class CodeFont(QObject):
    """Keeps a widget's font fixed-width: an explicit font does not follow that of the application by itself."""

    def __init__(self, widget: QWidget) -> None:
        super().__init__(widget)
        self._widget = widget
        widget.setFont(theme.monospace())
        widget.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        # The theme is applied anew whenever the size of the letters changes.
        if event.type() == QEvent.Type.StyleChange and watched is self._widget:
            wanted = theme.monospace()
            if self._widget.font().pointSizeF() != wanted.pointSizeF():
                self._widget.setFont(wanted)
        return False
