"""In place of a page that cannot be shown in the window: words, the way to the browser, and how to have it here."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from gym_gui.ui.widgets import web_view
from gym_gui.ui.widgets.page_section import CopyLine

_COMMAND_CHARS = 110


class BrowserOffer(QWidget):
    """`say` shows words alone, `offer` the browser, too. The charts of the window are always a way out."""

    browser_wanted = Signal()
    charts_wanted = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("browser_offer")
        self.words = QLabel()
        self.words.setObjectName("tensorboard_words")
        self.words.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.words.setWordWrap(True)
        self.open_button = QPushButton(self.tr("Open in browser"))
        self.open_button.setObjectName("tensorboard_open")
        self.open_button.setAccessibleName(self.tr("Open TensorBoard in the browser"))
        self.open_button.setProperty("role", "primary")
        self.open_button.clicked.connect(self.browser_wanted)
        self.charts_button = QPushButton(self.tr("Show the charts of this window"))
        self.charts_button.setObjectName("tensorboard_charts")
        self.charts_button.setAccessibleName(self.tr("Show the Charts tab, which needs no TensorBoard"))
        self.charts_button.clicked.connect(self.charts_wanted)
        self.engine_words = QLabel(
            self.tr("To have it inside this window, install QtWebEngine (175 MB) and start again:")
        )
        self.engine_words.setProperty("role", "caption")
        self.engine_words.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.engine_command = CopyLine("tensorboard_engine", self.tr("Command that installs QtWebEngine"))
        self.engine_command.show_text(web_view.INSTALL)
        self.engine_command.setMaximumWidth(self.fontMetrics().averageCharWidth() * _COMMAND_CHARS)
        layout = QVBoxLayout(self)
        layout.setSpacing(10)
        layout.addStretch(2)
        layout.addWidget(self.words)
        layout.addLayout(_centred(self.open_button, self.charts_button))
        layout.addSpacing(12)
        layout.addWidget(self.engine_words)
        layout.addLayout(_centred(self.engine_command, stretch=4))
        layout.addStretch(3)
        self.say("")

    def say(self, words: str) -> None:
        """Words, and nothing to open."""
        self.words.setText(words)
        for widget in (self.open_button, self.engine_words, self.engine_command):
            widget.hide()

    def offer(self, words: str, *, has_engine: bool) -> None:
        """There is a page; without the engine, also how to have it here."""
        self.words.setText(words)
        self.open_button.show()
        for widget in (self.engine_words, self.engine_command):
            widget.setVisible(not has_engine)


def _centred(*widgets: QWidget, stretch: int = 0) -> QHBoxLayout:
    line = QHBoxLayout()
    line.addStretch(1)
    for widget in widgets:
        line.addWidget(widget, stretch)
    line.addStretch(1)
    return line
