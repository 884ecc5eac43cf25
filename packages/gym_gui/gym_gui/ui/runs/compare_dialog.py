"""Runs side by side: their headline figures, and the parameters in which they differ."""

from __future__ import annotations

import json
from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtGui import QFont, QGuiApplication
from PySide6.QtWidgets import (
    QAbstractItemView,
    QCheckBox,
    QDialog,
    QDialogButtonBox,
    QHBoxLayout,
    QLabel,
    QTableWidget,
    QTableWidgetItem,
    QVBoxLayout,
    QWidget,
)

from gym_gui.ui.runs.grouping import parameters_of, short_value, spread_text, summarise
from gym_gui.ui.runs.rows import Column, Row, title_of_column, tr
from gym_gui.wording import formats
from gym_gui.wording.run_view import short_id

MOST_RUNS = 50
_LETTERS = 26
"""Width of a run's column"""
_FIGURES = (
    Column.STATUS, Column.WORKER, Column.ALGORITHM, Column.ENVIRONMENT, Column.SEED, Column.RETURN, Column.SPS,
    Column.DURATION, Column.STARTED, Column.SIZE,
)  # fmt: skip
Line = tuple[str, list[str]]
"""What it is called, and its value for each run"""


def figure_lines(rows: Sequence[Row]) -> list[Line]:
    """The headline of each run."""
    lines = [(title_of_column(column), [row.text(column) for row in rows]) for column in _FIGURES]
    steps = [f"{formats.count(row.run.step)} / {formats.count(row.run.total)}" if row.run.total else "" for row in rows]
    lines.insert(5, (tr("Steps"), steps))
    return lines


def parameter_lines(rows: Sequence[Row], *, only_differences: bool) -> list[Line]:
    """Parameters that were given; what a run was not given is left to its algorithm (–)."""
    given = [parameters_of(row) for row in rows]
    names = sorted({name for parameters in given for name in parameters})
    lines: list[Line] = []
    for name in names:
        texts = [short_value(json.dumps(parameters[name])) if name in parameters else "–" for parameters in given]
        if not only_differences or len(set(texts)) > 1:
            lines.append((name, texts))
    return lines


class CompareDialog(QDialog):
    """A table with a column for each run; among all of it, what differs is bold."""

    def __init__(self, rows: Sequence[Row], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("compare_dialog")
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(self.tr("Compare {0} runs").format(len(rows)))
        self._rows = list(rows[:MOST_RUNS])
        self.table = QTableWidget()
        self.table.setObjectName("compare_table")
        self.table.setAccessibleName(self.tr("Runs side by side"))
        self.table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.table.setAlternatingRowColors(True)
        self.table.setCornerButtonEnabled(False)
        self.differences = QCheckBox(self.tr("&Only what differs"))
        self.differences.setObjectName("only_differences")
        self.differences.setChecked(True)
        self.differences.toggled.connect(lambda: self._fill())
        summary = summarise(self._rows)
        words = self.tr("Return over all: {0}").format(spread_text(summary.mean_return, summary.return_spread) or "–")
        if len(rows) > MOST_RUNS:
            words += " · " + self.tr("the first {0} of {1} are shown").format(MOST_RUNS, len(rows))
        caption = QLabel(words)
        caption.setProperty("role", "caption")
        top = QHBoxLayout()
        top.addWidget(caption, 1)
        top.addWidget(self.differences)
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close)
        copy = buttons.addButton(self.tr("&Copy as text"), QDialogButtonBox.ButtonRole.ActionRole)
        copy.setObjectName("copy_comparison")
        copy.clicked.connect(lambda: QGuiApplication.clipboard().setText(self.as_text()))
        buttons.rejected.connect(self.reject)
        layout = QVBoxLayout(self)
        layout.addLayout(top)
        layout.addWidget(self.table, 1)
        layout.addWidget(buttons)
        self._fill()
        letter = self.fontMetrics().averageCharWidth()
        self.resize(letter * min(150, 30 + _LETTERS * len(self._rows)), self.fontMetrics().height() * 30)

    def lines(self) -> list[Line]:
        figures = figure_lines(self._rows)
        if self.differences.isChecked():
            always = {title_of_column(Column.STATUS), title_of_column(Column.RETURN)}
            figures = [line for line in figures if line[0] in always or len(set(line[1])) > 1]
        return figures + parameter_lines(self._rows, only_differences=self.differences.isChecked())

    def as_text(self) -> str:
        """Tabs between columns: for a spreadsheet."""
        head = ["", *(row.run.name or row.entry_id for row in self._rows)]
        return "\n".join("\t".join(cells) for cells in [head, *([name, *values] for name, values in self.lines())])

    def _fill(self) -> None:
        lines = self.lines()
        self.table.clear()
        self.table.setColumnCount(len(self._rows))
        self.table.setRowCount(len(lines))
        room = self.fontMetrics().averageCharWidth() * (_LETTERS - 3)
        names = [self.fontMetrics().elidedText(row.run.name, Qt.TextElideMode.ElideRight, room) for row in self._rows]
        self.table.setHorizontalHeaderLabels(
            [f"{name}\n{short_id(row.entry_id)}" for name, row in zip(names, self._rows, strict=True)]
        )
        self.table.horizontalHeader().setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        self.table.setVerticalHeaderLabels([name for name, _ in lines])
        bold = QFont(self.table.font())
        bold.setBold(True)
        for at, (_, values) in enumerate(lines):
            differs = len(set(values)) > 1 and not self.differences.isChecked()
            for column, value in enumerate(values):
                item = QTableWidgetItem(value)
                item.setToolTip(value)
                if differs:
                    item.setFont(bold)
                self.table.setItem(at, column, item)
        letter = self.fontMetrics().averageCharWidth()
        for column in range(len(self._rows)):
            self.table.setColumnWidth(column, letter * _LETTERS)
