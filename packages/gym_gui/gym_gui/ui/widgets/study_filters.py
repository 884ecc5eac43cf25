"""Above a table of trials: which states, which words, and which range of one column are shown."""

from __future__ import annotations

import math

from PySide6.QtCore import QCoreApplication, Qt, QTimer, Signal
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QLabel, QLineEdit, QMenu, QToolButton, QWidget

from gym_gui.services.analytics.studies import TrialState
from gym_gui.ui.presenters.study_rows import STATE_SIGNS, STATE_WORDS, StudyRows, TrialFilter
from gym_gui.ui.workers.words import PRESENTERS

_PAUSE_MS = 200
_SHOWN_STATES = (
    TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING, TrialState.WAITING,
)  # fmt: skip


class StudyFilters(QWidget):
    """Says which trials are wanted; `changed` when that is another answer."""

    changed = Signal(object)  # TrialFilter

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("study_filters")
        self._last = TrialFilter()
        self.text = QLineEdit()
        self.text.setObjectName("study_filter_text")
        self.text.setAccessibleName(self.tr("Show trials with these words"))
        self.text.setPlaceholderText(self.tr("Filter: number, state, parameter=value …"))
        self.text.setToolTip(self.tr("All words must be found: tanh learning_rate=0.0003 pruned"))
        self.text.setClearButtonEnabled(True)
        self.states = QToolButton()
        self.states.setObjectName("study_filter_states")
        self.states.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.states.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextOnly)
        self.states.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self._menu = QMenu(self.states)
        self._menu.setObjectName("study_states_menu")
        self.states.setMenu(self._menu)
        self._actions: dict[TrialState, QAction] = {}
        for state in _SHOWN_STATES:
            action = self._menu.addAction("")
            action.setObjectName(f"study_state_{state.name.lower()}")
            action.setCheckable(True)
            action.toggled.connect(lambda _on: self._look())
            self._actions[state] = action
        self.column = QComboBox()
        self.column.setObjectName("study_filter_column")
        self.column.setAccessibleName(self.tr("Column of the range"))
        self.column.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.column.setMinimumContentsLength(12)
        self.low, self.high = (
            self._end("study_filter_low", self.tr("from")),
            self._end("study_filter_high", self.tr("to")),
        )
        self.shown = QLabel()
        self.shown.setObjectName("study_filter_shown")
        self.shown.setProperty("role", "caption")
        self.problem = QLabel()
        self.problem.setObjectName("study_filter_problem")
        self.problem.setProperty("role", "problem")
        self.problem.hide()
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self.text, 1)
        for widget in (self.states, self.column, self.low, self.high, self.problem, self.shown):
            layout.addWidget(widget)
        self._pause = QTimer(self, singleShot=True, interval=_PAUSE_MS)
        self._pause.timeout.connect(self._look)
        for line in (self.text, self.low, self.high):
            line.textChanged.connect(lambda _text: self._pause.start())
        self.column.currentIndexChanged.connect(lambda _place: self._look())
        self.show_rows(None)

    def _end(self, name: str, text: str) -> QLineEdit:
        line = QLineEdit()
        line.setObjectName(name)
        line.setPlaceholderText(text)
        line.setAccessibleName(self.tr("Range {end}").format(end=text))
        line.setMaximumWidth(self.fontMetrics().averageCharWidth() * 11)
        return line

    # ------------------------------------------------------------------ what there is

    def show_rows(self, rows: StudyRows | None) -> None:
        """The states with their counts, and the columns that a range makes sense for."""
        for state, action in self._actions.items():
            count = rows.study.count(state) if rows is not None else 0
            word = QCoreApplication.translate(PRESENTERS, STATE_WORDS[state])
            action.setText(f"{STATE_SIGNS[state]} {word} ({count:,})")
            action.setEnabled(bool(count) or action.isChecked())
        wanted = [(column.key, column) for column in rows.ranged_columns()] if rows is not None else []
        if [key for key, _ in wanted] != [self.column.itemData(place) for place in range(self.column.count())]:
            chosen = self.column.currentData()
            self.column.blockSignals(True)
            self.column.clear()
            for key, column in wanted:
                title = column.title
                self.column.addItem(
                    QCoreApplication.translate(PRESENTERS, title) if column.is_translated else title, key
                )
            # The objective, before anybody chose: that is what people cut.
            self.column.setCurrentIndex(max(self.column.findData(chosen), 1 if len(wanted) > 1 and not chosen else 0))
            self.column.blockSignals(False)
        self._name_states()

    def show_counts(self, shown: int, total: int) -> None:
        self.shown.setText(self.tr("{shown} of {total}").format(shown=f"{shown:,}", total=f"{total:,}"))

    # ------------------------------------------------------------------ what is wanted

    def wanted(self) -> TrialFilter:
        states = frozenset(state for state, action in self._actions.items() if action.isChecked())
        ends = _number(self.low), _number(self.high)
        key = self.column.currentData()
        ranges = {str(key): ends} if key and ends != (None, None) else {}
        return TrialFilter(states, self.text.text().strip(), ranges)

    def clear(self) -> None:
        for action in self._actions.values():
            action.setChecked(False)
        for line in (self.text, self.low, self.high):
            line.clear()
        self._look()

    def _look(self) -> None:
        self._pause.stop()
        wrong = [line for line in (self.low, self.high) if line.text().strip() and _number(line) is None]
        words = self.tr("not a number: {text}").format(text=", ".join(line.text().strip() for line in wrong))
        self.problem.setText(words if wrong else "")
        self.problem.setVisible(bool(wrong))
        for line in (self.low, self.high):
            line.setAccessibleDescription(words if line in wrong else "")
        self._name_states()
        wanted = self.wanted()
        if wanted != self._last:
            self._last = wanted
            self.changed.emit(wanted)

    def _name_states(self) -> None:
        chosen = [state for state, action in self._actions.items() if action.isChecked()]
        words = ", ".join(QCoreApplication.translate(PRESENTERS, STATE_WORDS[state]) for state in chosen)
        self.states.setText(words or self.tr("All states"))
        self.states.setAccessibleName(self.tr("States that are shown: {states}").format(states=self.states.text()))


def _number(line: QLineEdit) -> float | None:
    try:
        value = float(line.text().strip().replace(",", "."))
    except ValueError:
        return None
    return None if math.isnan(value) else value
