"""One line that tells the user what is wrong and how to fix it.

    banner = Banner(parent=self)
    banner.set_message(self.tr("The file was deleted."), "warning", action=self.tr("Refresh"), on_action=self.reload)
    banner.clear()

Hidden while it has no message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from PySide6.QtCore import QEvent, QSize, Qt, Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QSizePolicy, QStyle, QWidget

from gym_gui.ui.widgets.parts import named

Tone = Literal["info", "warning", "bad"]

_ICONS = {
    "info": QStyle.StandardPixmap.SP_MessageBoxInformation,
    "warning": QStyle.StandardPixmap.SP_MessageBoxWarning,
    "bad": QStyle.StandardPixmap.SP_MessageBoxCritical,
}


class Banner(QFrame):
    """A sentence in a frame, with an icon for its tone and at most one button."""

    action_clicked = Signal()

    def __init__(self, text: str = "", tone: Tone = "info", parent: QWidget | None = None) -> None:
        super().__init__(parent)
        named(self, "banner", role="banner")
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Maximum)
        self.tone: Tone = tone
        self._on_action: Callable[[], Any] | None = None
        self._icon = QLabel()
        self._label = named(QLabel(wordWrap=True), "banner_text")
        # Users paste messages into searches and issues: the text can be selected, also with the keyboard.
        self._label.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.LinksAccessibleByMouse
        )
        self._label.setTextFormat(Qt.TextFormat.PlainText)
        self._button = named(QPushButton(), "banner_action")
        self._button.clicked.connect(self._act)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(10, 6, 10, 6)
        layout.setSpacing(8)
        layout.addWidget(self._icon, 0, Qt.AlignmentFlag.AlignVCenter)
        layout.addWidget(self._label, 1)
        layout.addWidget(self._button, 0, Qt.AlignmentFlag.AlignVCenter)
        self._button.hide()
        if text:
            self.set_message(text, tone)
        else:
            self.hide()

    @property
    def text(self) -> str:
        """Return the message; empty while it is hidden."""
        return self._label.text()

    def set_message(
        self, text: str, tone: Tone = "info", *, action: str = "", on_action: Callable[[], Any] | None = None
    ) -> None:
        """Show `text`; with `action`, also a button of that name which calls `on_action` (and `action_clicked`)."""
        self.tone = tone
        self._on_action = on_action
        self._label.setText(text)
        self.setAccessibleName(text)
        self._button.setText(action)
        self._button.setAccessibleName(action)
        self._button.setVisible(bool(action))
        self._draw_icon()
        if self.property("tone") != tone:
            self.setProperty("tone", tone)
            self.style().unpolish(self)  # a style sheet reads properties only when it polishes
            self.style().polish(self)
        self.show()

    def clear(self) -> None:
        """Remove the message and hide the banner."""
        self._on_action = None
        self._label.clear()
        self.setAccessibleName("")
        self._button.hide()
        self.hide()

    def changeEvent(self, event: QEvent) -> None:
        if event.type() in (QEvent.Type.PaletteChange, QEvent.Type.FontChange, QEvent.Type.StyleChange):
            self._draw_icon()
        super().changeEvent(event)

    def _draw_icon(self) -> None:
        # A style event may arrive during __init__.
        if icon := getattr(self, "_icon", None):
            side = round(self.fontMetrics().height() * 1.3)
            standard_icon = self.style().standardIcon(_ICONS[self.tone])
            icon.setPixmap(standard_icon.pixmap(QSize(side, side), self.devicePixelRatioF()))

    def _act(self) -> None:
        if self._on_action is not None:
            self._on_action()
        self.action_clicked.emit()
