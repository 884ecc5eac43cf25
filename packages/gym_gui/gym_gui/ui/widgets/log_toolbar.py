"""The bar above a log: which log, which lines, a search, and where to go."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QSizePolicy,
    QToolButton,
    QWidget,
)

from gym_gui.ui.presenters.log_index import LogLevel

_TYPING_MS = 300


class LogToolbar(QWidget):
    """Knows nothing of files; tells what a person wants."""

    stream_chosen = Signal(str)
    search_changed = Signal()
    hit_wanted = Signal(int)  # 1: the next one, -1: the one before
    follow_toggled = Signal(bool)
    start_wanted = Signal()
    end_wanted = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("log_toolbar")
        self._typing = QTimer(self)
        self._typing.setInterval(_TYPING_MS)
        self._typing.setSingleShot(True)
        self._typing.timeout.connect(self.search_changed)
        self._make_choices()
        self._make_search()
        self.follow_box = QCheckBox(self.tr("&Follow"))
        self.follow_box.setObjectName("log_follow")
        self.follow_box.setAccessibleName(self.tr("Stay at the end while lines are added"))
        self.follow_box.setChecked(True)
        self.follow_box.toggled.connect(self.follow_toggled)
        self.start_button = self._button("log_start", "⇤", self.tr("Go to the beginning (Ctrl+Home)"))
        self.start_button.clicked.connect(self.start_wanted)
        self.end_button = self._button("log_end", "⇥", self.tr("Go to the end (Ctrl+End)"))
        self.end_button.clicked.connect(self.end_wanted)
        bar = QHBoxLayout(self)
        bar.setContentsMargins(0, 0, 0, 0)
        bar.setSpacing(6)
        bar.addWidget(self.stream_box)
        bar.addWidget(self.level_box)
        bar.addWidget(self.search_field, 1)
        for widget in (
            self.previous_button, self.next_button, self.hits_label, self.only_hits_box, self.follow_box,
            self.start_button, self.end_button,
        ):  # fmt: skip
            bar.addWidget(widget)

    def _make_choices(self) -> None:
        self.stream_box = QComboBox()
        self.stream_box.setObjectName("log_stream")
        self.stream_box.setAccessibleName(self.tr("Which log"))
        self.stream_box.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        self.stream_box.activated.connect(lambda: self.stream_chosen.emit(self.stream))
        self.level_box = QComboBox()
        self.level_box.setObjectName("log_level")
        self.level_box.setAccessibleName(self.tr("Which lines"))
        for level, words in (
            (LogLevel.ALL, self.tr("All lines")),
            (LogLevel.WARNINGS, self.tr("Warnings and errors")),
            (LogLevel.ERRORS, self.tr("Errors only")),
            (LogLevel.STRUCTURED, self.tr("Structured lines")),
        ):
            self.level_box.addItem(words, level)
        self.level_box.currentIndexChanged.connect(self.search_changed)

    def _make_search(self) -> None:
        self.search_field = QLineEdit()
        self.search_field.setObjectName("log_search")
        self.search_field.setAccessibleName(self.tr("Search in the log"))
        self.search_field.setPlaceholderText(self.tr("Search (Ctrl+F)"))
        self.search_field.setClearButtonEnabled(True)
        self.search_field.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.search_field.textChanged.connect(lambda: self._typing.start())
        self.search_field.returnPressed.connect(lambda: self.hit_wanted.emit(1))
        self.previous_button = self._button("log_previous", "↑", self.tr("Previous hit (Shift+F3)"))
        self.previous_button.clicked.connect(lambda: self.hit_wanted.emit(-1))
        self.next_button = self._button("log_next", "↓", self.tr("Next hit (F3)"))
        self.next_button.clicked.connect(lambda: self.hit_wanted.emit(1))
        self.hits_label = QLabel()
        self.hits_label.setObjectName("log_hits")
        self.hits_label.setProperty("role", "caption")
        self.only_hits_box = QCheckBox(self.tr("Only &matches"))
        self.only_hits_box.setObjectName("log_only_matches")
        self.only_hits_box.setAccessibleName(self.tr("Show only lines that match the search"))
        self.only_hits_box.toggled.connect(self.search_changed)

    def _button(self, name: str, sign: str, words: str) -> QToolButton:
        button = QToolButton()
        button.setObjectName(name)
        button.setText(sign)  # the style's own icons are black in a dark window, too
        button.setToolTip(words)
        button.setAccessibleName(words)
        button.setAutoRaise(True)
        return button

    # ------------------------------------------------------------------ what is chosen

    @property
    def stream(self) -> str:
        return str(self.stream_box.currentData() or "")

    @property
    def level(self) -> LogLevel:
        level = self.level_box.currentData()
        assert isinstance(level, LogLevel)
        return level

    @property
    def text(self) -> str:
        return self.search_field.text()

    @property
    def shows_hits(self) -> bool:
        """Only lines that match are wanted."""
        return self.level is not LogLevel.ALL or (self.only_hits_box.isChecked() and bool(self.text))

    @property
    def is_typing(self) -> bool:
        """The search has changed, and nobody was told yet."""
        return self._typing.isActive()

    def search_now(self) -> None:
        self._typing.stop()
        self.search_changed.emit()

    def show_streams(self, streams: Iterable[tuple[str, str]], chosen: str) -> None:
        """Names and keys of the logs there are."""
        self.stream_box.clear()
        for words, key in streams:
            self.stream_box.addItem(words, key)
        self.stream_box.setCurrentIndex(max(0, self.stream_box.findData(chosen)))

    def show_all_lines(self) -> None:
        """No filter any more; nobody is told."""
        for widget in (self.level_box, self.only_hits_box):
            widget.blockSignals(True)
        self.level_box.setCurrentIndex(0)
        self.only_hits_box.setChecked(False)
        for widget in (self.level_box, self.only_hits_box):
            widget.blockSignals(False)

    def focus_search(self) -> None:
        self.search_field.setFocus(Qt.FocusReason.ShortcutFocusReason)
        self.search_field.selectAll()
