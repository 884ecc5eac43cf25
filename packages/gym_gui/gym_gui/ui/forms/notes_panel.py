"""Notes of a form: what is submitted with the run, and below it, apart, what checks of the form have said."""

from __future__ import annotations

from datetime import datetime

from PySide6.QtCore import Signal
from PySide6.QtGui import QFontMetricsF
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPlainTextEdit, QToolButton, QVBoxLayout, QWidget

from gym_gui.ui import theme


class NotesPanel(QWidget):
    """`notes` are the person's; the log of checks is never part of them."""

    changed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("notes_panel")
        self._notes = QPlainTextEdit(self)
        self._notes.setObjectName("notes")
        self._notes.setAccessibleName(self.tr("Notes, stored with the run"))
        self._notes.setPlaceholderText(self.tr("Why this run? Stored with it and shown on its page."))
        self._notes.setTabChangesFocus(True)
        self._notes.textChanged.connect(self.changed)
        self._checks = QPlainTextEdit(self)
        self._checks.setObjectName("dry_run_output")
        self._checks.setAccessibleName(self.tr("What checks said; not stored with the run"))
        self._checks.setReadOnly(True)
        self._checks.setTabChangesFocus(True)
        self._checks.setMaximumBlockCount(2000)
        self._checks.setFont(theme.monospace())
        self._checks.setLineWrapMode(QPlainTextEdit.LineWrapMode.WidgetWidth)
        self._checks.setPlaceholderText(
            self.tr("Dry run checks this form as the worker would; its answer appears here.")
        )
        line = QFontMetricsF(self.font()).lineSpacing()
        self._notes.setMinimumHeight(round(line * 3.5))
        self._notes.setMaximumHeight(round(line * 7))
        self._checks.setMinimumHeight(round(line * 9))
        self._checks.setMaximumHeight(round(line * 18))
        clear = QToolButton(self)
        clear.setObjectName("dry_run_clear")
        clear.setText(self.tr("Clear"))
        clear.setAccessibleName(self.tr("Clear what checks said"))
        clear.clicked.connect(self._checks.clear)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(8, 2, 0, 6)
        layout.setSpacing(4)
        layout.addWidget(self._notes)
        heading = QHBoxLayout()
        caption = QLabel(self.tr("Checks (not stored with the run)"), self)
        caption.setProperty("role", "caption")
        heading.addWidget(caption, 1)
        heading.addWidget(clear)
        layout.addLayout(heading)
        layout.addWidget(self._checks, 1)

    @property
    def notes(self) -> str:
        """What the person wrote."""
        return self._notes.toPlainText().strip()

    def set_notes(self, text: str) -> None:
        if text != self._notes.toPlainText():
            self._notes.setPlainText(text)

    @property
    def checks(self) -> str:
        """Everything checks have said so far."""
        return self._checks.toPlainText()

    def add_check(self, title: str, text: str, when: datetime | None = None) -> None:
        """Append an answer, with the time it came."""
        stamp = (when or datetime.now()).strftime("%Y-%m-%d %H:%M:%S")
        if self.checks:
            self._checks.appendPlainText("")
        self._checks.appendPlainText(f"[{stamp}] {title}")
        heading = self._checks.document().lastBlock()
        self._checks.appendPlainText(text.strip())
        # The verdict stands in the first line: that one is to be seen, not the last.
        self._checks.verticalScrollBar().setValue(heading.firstLineNumber())
