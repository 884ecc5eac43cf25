"""What stands in place of an empty table: why it is empty, and what to do about it."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QLabel, QPushButton, QVBoxLayout, QWidget


class EmptyPage(QWidget):
    """A sentence, and a button where one helps."""

    acted = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("runs_empty_page")
        self.title = QLabel()
        self.title.setProperty("role", "title")
        self.words = QLabel()
        self.words.setObjectName("runs_empty_words")
        self.words.setProperty("role", "caption")
        for label in (self.title, self.words):
            label.setAlignment(Qt.AlignmentFlag.AlignCenter)
            label.setWordWrap(True)
        self.button = QPushButton()
        self.button.setObjectName("runs_empty_button")
        self.button.clicked.connect(lambda: self.acted.emit())
        layout = QVBoxLayout(self)
        layout.addStretch(2)
        layout.addWidget(self.title)
        layout.addWidget(self.words)
        layout.addWidget(self.button, 0, Qt.AlignmentFlag.AlignHCenter)
        layout.addStretch(3)

    def say_loading(self, is_connected: bool, detail: str) -> None:
        words = self.tr("The runs are on their way.") if is_connected else detail
        self._say(self.tr("Connecting to the trainer daemon…"), words)

    def say_no_runs(self) -> None:
        self._say(
            self.tr("No runs yet"),
            self.tr("Start one with “New run”, or drop an exported run (.tar.gz) here."),
        )

    def say_nothing_fits(self) -> None:
        self._say(
            self.tr("No run fits the filter"),
            self.tr(
                "Words are looked for in names, tags and notes; algo:ppo, status:running or seed:1-5 in one field."
            ),
            self.tr("Clear the filter"),
        )

    def say_all_archived(self, count: int) -> None:
        words = (
            self.tr("The only run is archived.") if count == 1 else self.tr("All {0} runs are archived.").format(count)
        )
        self._say(self.tr("Nothing to show"), words, self.tr("Show archived runs"))

    def _say(self, title: str, words: str, action: str = "") -> None:
        self.title.setText(title)
        self.words.setText(words)
        self.button.setText(action)
        self.button.setAccessibleName(action)
        self.button.setVisible(bool(action))
