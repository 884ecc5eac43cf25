"""Why a run failed: the reason, the last lines it wrote, and what can be done about it."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPlainTextEdit, QPushButton, QVBoxLayout, QWidget

from gym_gui.ui.widgets.code_font import CodeFont

_MOST_LINES = 14


class FailureCard(QFrame):
    """Shown only for a run that failed or is about to."""

    logs_wanted = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("failure")
        self.setProperty("role", "banner")
        self.setProperty("tone", "bad")
        self._title = QLabel()
        self._title.setProperty("role", "problem")
        self.reason = _words("failure_reason")
        self.advice = _words("failure_advice")
        self._source = QLabel()
        self._source.setProperty("role", "caption")
        self.lines = QPlainTextEdit()
        self.lines.setObjectName("failure_lines")
        self.lines.setAccessibleName(self.tr("The last lines the run wrote"))
        self.lines.setReadOnly(True)
        CodeFont(self.lines)
        self.lines.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.lines.setTabChangesFocus(True)
        self.logs_button = QPushButton(self.tr("Open &logs"))
        self.logs_button.setObjectName("failure_logs")
        self.logs_button.setAccessibleName(self.tr("Open the logs of this run"))
        self.logs_button.clicked.connect(self.logs_wanted)
        head = QHBoxLayout()
        head.addWidget(self._title, 1)
        head.addWidget(self.logs_button)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(12, 8, 12, 10)
        layout.setSpacing(6)
        layout.addLayout(head)
        for widget in (self.reason, self._source, self.lines, self.advice):
            layout.addWidget(widget)
        self.hide()

    def say(self, title: str, reason: str, advice: str) -> None:
        self._title.setText(title)
        self.reason.setText(reason)
        self.advice.setText(advice)
        self.show()

    def show_lines(self, source: str, lines: list[str]) -> None:
        """The end of its output; nothing when it wrote nothing."""
        self._source.setText(source)
        text = "\n".join(lines)
        if text != self.lines.toPlainText():
            self.lines.setPlainText(text)
        for widget in (self._source, self.lines):
            widget.setVisible(bool(lines))
        rows = min(_MOST_LINES, len(lines)) + 1
        self.lines.setFixedHeight(round(self.lines.fontMetrics().lineSpacing() * rows) + 12)
        bar = self.lines.verticalScrollBar()
        bar.setValue(bar.maximum())  # what went wrong stands at the end


def _words(name: str) -> QLabel:
    label = QLabel()
    label.setObjectName(name)
    label.setWordWrap(True)
    label.setTextFormat(Qt.TextFormat.PlainText)
    label.setTextInteractionFlags(
        Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
    )
    return label
