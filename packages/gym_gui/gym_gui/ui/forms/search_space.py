"""Which parameters a sweep searches, and where: a row for each, checked as it is typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mosaic_wire.worker_spec import AlgorithmSpec, FieldSpec
from PySide6.QtCore import QCoreApplication, Qt, QTimer, Signal
from PySide6.QtWidgets import (
    QComboBox,
    QGridLayout,
    QLabel,
    QLineEdit,
    QPushButton,
    QStyle,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from gym_gui.ui.forms.editors import ComboBox
from gym_gui.ui.presenters.workers.ranges import CHOICE, KINDS, RangeText, suggested, text_of
from gym_gui.ui.workers.words import PRESENTERS

_FIRST = ("learning_rate", "policy_lr", "gamma", "num_steps")
"""What people try first, as far as the algorithm has it"""


class RangeRow(QWidget):
    """One parameter and its range."""

    changed = Signal()
    removed = Signal()

    def __init__(self, number: int, names: Sequence[str], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName(f"range_{number}")
        self._algorithm: AlgorithmSpec | None = None
        self._told = ""
        self.name = ComboBox(self)
        self.name.setEditable(True)
        self.name.setInsertPolicy(QComboBox.InsertPolicy.NoInsert)
        self.name.setObjectName(f"range_{number}_name")
        self.name.setAccessibleName(self.tr("Parameter to search"))
        self.kind = ComboBox(self)
        self.kind.setObjectName(f"range_{number}_kind")
        self.kind.setAccessibleName(self.tr("Kind of range"))
        for kind, words in KINDS.items():
            self.kind.addItem(QCoreApplication.translate(PRESENTERS, words), kind)
        self.low = self._line(f"range_{number}_low", self.tr("from"))
        self.high = self._line(f"range_{number}_high", self.tr("to"))
        self.step = self._line(f"range_{number}_step", self.tr("step"))
        self.step.setToolTip(self.tr("Empty: any number (whole numbers: every one)"))
        self.choices = self._line(f"range_{number}_choices", self.tr("several with commas between them"))
        self.remove = QToolButton(self)
        self.remove.setObjectName(f"range_{number}_remove")
        self.remove.setAutoRaise(True)
        self.remove.setIcon(self.style().standardIcon(QStyle.StandardPixmap.SP_TitleBarCloseButton))
        self.remove.setAccessibleName(self.tr("Do not search this parameter"))
        self.remove.setToolTip(self.remove.accessibleName())
        self.remove.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.problem = QLabel(self)
        self.problem.setObjectName(f"range_{number}_problem")
        self.problem.setProperty("role", "problem")
        self.problem.setWordWrap(True)
        self.problem.hide()
        grid = QGridLayout(self)
        grid.setContentsMargins(0, 0, 0, 6)
        grid.setHorizontalSpacing(4)
        grid.setVerticalSpacing(2)
        grid.addWidget(self.name, 0, 0, 1, 2)
        grid.addWidget(self.kind, 0, 2)
        grid.addWidget(self.remove, 0, 3)
        for place, line in enumerate((self.low, self.high, self.step)):
            grid.addWidget(line, 1, place)
        grid.addWidget(self.choices, 1, 0, 1, 3)
        grid.addWidget(self.problem, 2, 0, 1, 4)
        for column in range(3):
            grid.setColumnStretch(column, 1)
        self.set_names(names)
        self.name.currentTextChanged.connect(lambda _text: self._on_change())
        self.kind.currentIndexChanged.connect(lambda _place: self._on_kind())
        for line in (self.low, self.high, self.step, self.choices):
            line.textChanged.connect(lambda _text: self._on_change())
        self.remove.clicked.connect(self.removed)
        self._on_kind()

    def _line(self, name: str, words: str) -> QLineEdit:
        line = QLineEdit(self)
        line.setObjectName(name)
        line.setPlaceholderText(words)
        line.setAccessibleName(words)
        line.setMinimumWidth(self.fontMetrics().averageCharWidth() * 6)
        return line

    def set_names(self, names: Sequence[str]) -> None:
        """What is offered; what is chosen stays chosen."""
        chosen = self.name.currentText()
        self.name.blockSignals(True)
        self.name.clear()
        self.name.addItems(list(names))
        self.name.setEditText(chosen)
        self.name.blockSignals(False)

    def set_algorithm(self, algorithm: AlgorithmSpec | None) -> None:
        self._algorithm = algorithm

    @property
    def parameter(self) -> str:
        return self.name.currentText().strip().lstrip("-").replace("-", "_")

    @property
    def text(self) -> RangeText:
        return RangeText(
            str(self.kind.currentData()), self.low.text(), self.high.text(), self.step.text(), self.choices.text()
        )

    def set_range(self, name: str, text: RangeText) -> None:
        self.name.setEditText(name)
        self.kind.setCurrentIndex(self.kind.findData(text.kind))
        for line, words in ((self.low, text.low), (self.high, text.high), (self.step, text.step),
                            (self.choices, text.choices)):  # fmt: skip
            line.setText(words)

    def check(self) -> str:
        """Look anew: show what is wrong, and return it."""
        if not self.parameter:
            wrong = self.tr("choose a parameter")
        else:
            wrong = self.text.problem(self.parameter, self._algorithm)
        self.tell(wrong)
        return wrong

    def tell(self, words: str) -> None:
        self._told = words
        self.problem.setText(words)
        self.problem.setVisible(bool(words))
        self.name.setAccessibleDescription(words)

    def _on_kind(self) -> None:
        is_choice = self.kind.currentData() == CHOICE
        self.choices.setVisible(is_choice)
        self.low.setVisible(not is_choice)
        self.high.setVisible(not is_choice)
        self.step.setVisible(not is_choice)
        self.step.setEnabled(self.text.has_step)
        self._on_change()

    def _on_change(self) -> None:
        if self._told:
            self.check()  # what was wrong may be right now; what nobody has asked about yet is left in peace
        self.changed.emit()


class SearchSpace(QWidget):
    """The rows, and a button for one more."""

    changed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("search_space")
        self._fields: tuple[FieldSpec, ...] = ()
        self._algorithm: AlgorithmSpec | None = None
        self.rows: list[RangeRow] = []
        self._made = 0
        self._is_new = True
        """Nobody has put a row in so far"""
        self._rows_layout = QVBoxLayout()
        self._rows_layout.setSpacing(2)
        about = QLabel(self.tr("Searched parameters are not taken from the hyper-parameters beside."), self)
        about.setProperty("role", "caption")
        about.setWordWrap(True)
        self.add = QPushButton(self.tr("&Add a parameter"), self)
        self.add.setObjectName("range_add")
        self.add.setAccessibleName(self.tr("Add a parameter to search"))
        self.add.setAutoDefault(False)
        self.add.clicked.connect(lambda: self.add_row())
        layout = QVBoxLayout(self)
        layout.setContentsMargins(8, 2, 0, 6)
        layout.setSpacing(4)
        layout.addWidget(about)
        layout.addLayout(self._rows_layout)
        layout.addWidget(self.add, 0, Qt.AlignmentFlag.AlignLeft)

    # ------------------------------------------------------------------ what can be searched

    def set_algorithm(self, algorithm: AlgorithmSpec | None, searchable: Sequence[FieldSpec]) -> None:
        """Another algorithm: what it does not have stands as a problem, nothing is removed in silence."""
        self._algorithm, self._fields = algorithm, tuple(searchable)
        for row in self.rows:
            row.set_algorithm(algorithm)
            row.set_names(self._names())
            if row.problem.text():
                row.check()
        if self._is_new and self._fields:
            QTimer.singleShot(0, self, self._begin)

    def _begin(self) -> None:
        """A first row, unless somebody was quicker."""
        if self._is_new:
            self.add_row()

    def _names(self) -> list[str]:
        return [field.name for field in self._fields]

    def add_row(self) -> RangeRow:
        """One more, with the next parameter that people would try."""
        taken = {row.parameter for row in self.rows}
        names = self._names()
        wanted = next((name for name in (*_FIRST, *names) if name in names and name not in taken), "")
        row = self._make_row()
        known = next((field for field in self._fields if field.name == wanted), None)
        if known is not None:
            row.set_range(wanted, suggested(known))
        row.name.activated.connect(lambda _place, row=row: self._suggest(row))
        self.changed.emit()
        return row

    def _make_row(self) -> RangeRow:
        self._is_new = False
        row = RangeRow(self._made, self._names(), self)
        self._made += 1
        row.set_algorithm(self._algorithm)
        row.changed.connect(self.changed)
        row.removed.connect(lambda row=row: self._remove(row))
        self.rows.append(row)
        self._rows_layout.addWidget(row)
        return row

    def _suggest(self, row: RangeRow) -> None:
        known = next((field for field in self._fields if field.name == row.parameter), None)
        if known is not None:
            row.set_range(known.name, suggested(known))

    def _remove(self, row: RangeRow) -> None:
        self.rows.remove(row)
        self._rows_layout.removeWidget(row)
        row.hide()
        row.deleteLater()
        self.changed.emit()

    # ------------------------------------------------------------------ values

    def ranges(self) -> dict[str, dict[str, Any]]:
        """As a config has them, as far as they can be read."""
        found = {}
        for row in self.rows:
            known = self._algorithm.field(row.parameter) if self._algorithm is not None else None
            try:
                found[row.parameter] = row.text.document(row.parameter, known)
            except ValueError:
                continue
        return found

    def set_ranges(self, ranges: Mapping[str, Mapping[str, Any]]) -> None:
        self._is_new = False
        for row in list(self.rows):
            self._remove(row)
        for name, entry in ranges.items():
            row = self._make_row()
            row.set_range(name, text_of(entry))
            row.name.activated.connect(lambda _place, row=row: self._suggest(row))
        self.changed.emit()

    def problems(self) -> dict[str, str]:
        """What is wrong, by parameter; shown beside each of them."""
        found = {}
        seen: set[str] = set()
        for number, row in enumerate(self.rows):
            if wrong := row.check():
                found[row.parameter or f"range {number + 1}"] = wrong
            elif row.parameter in seen:
                row.tell(self.tr("it is searched twice; keep one of the two"))
                found[row.parameter] = row.problem.text()
            seen.add(row.parameter)
        if not self.rows:
            found["range_add"] = self.tr("say which parameters to search")
        return found

    def show_problem(self, name: str, text: str) -> bool:
        row = next((row for row in self.rows if row.parameter == name), None)
        if row is not None:
            row.tell(text)
        return row is not None
