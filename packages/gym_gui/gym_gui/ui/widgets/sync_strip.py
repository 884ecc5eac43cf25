"""One line while something is sent: a bar that moves, what is being done, and a button that stops it."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QHBoxLayout, QProgressBar, QPushButton, QWidget

from gym_gui.ui.widgets.elided_label import ElidedLabel

_BAR_CHARS = 20


class SyncStrip(QWidget):
    """Hidden until `begin`; the sender does not say how much there is, so the bar only moves."""

    stopped = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("wandb_sync_strip")
        bar = QProgressBar()
        bar.setObjectName("wandb_sync_bar")
        bar.setAccessibleName(self.tr("Sending to W&B"))
        bar.setRange(0, 0)
        bar.setMaximumWidth(self.fontMetrics().averageCharWidth() * _BAR_CHARS)
        self.words = ElidedLabel()
        self.words.setObjectName("wandb_sync_words")
        stop = QPushButton(self.tr("&Stop"))
        stop.setObjectName("wandb_sync_stop")
        stop.setAccessibleName(self.tr("Stop sending to W&B"))
        stop.clicked.connect(self.stopped)
        line = QHBoxLayout(self)
        line.setContentsMargins(0, 0, 0, 0)
        line.addWidget(bar)
        line.addWidget(self.words, 1)
        line.addWidget(stop)
        self.hide()

    def begin(self, words: str) -> None:
        self.words.show_text(words)
        self.show()

    def tell(self, words: str) -> None:
        self.words.show_text(words)
