"""A table of scripts with what they say of themselves, and a way to name one that is not in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mosaic_wire.paths import Home
from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import (
    QAbstractItemView,
    QFileDialog,
    QHBoxLayout,
    QHeaderView,
    QLabel,
    QPushButton,
    QTableWidget,
    QTableWidgetItem,
    QVBoxLayout,
    QWidget,
)

from gym_gui.ui.background import Background
from gym_gui.ui.workers.scripts import FoundScript, script_at
from gym_gui.wording.formats import count


class ScriptTable(QWidget):
    """One row for each script."""

    chosen = Signal(object)  # FoundScript
    problem = Signal(str)

    def __init__(self, background: Background, home: Home | None, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._background, self._home = background, home
        self._scripts: list[FoundScript] = []
        titles = [self.tr("Script"), self.tr("Description"), self.tr("Phases"), self.tr("Steps"), self.tr("SHA-256")]
        self.view = QTableWidget(0, len(titles), self)
        self.view.setObjectName("scripts")
        self.view.setAccessibleName(self.tr("Scripts"))
        self.view.setHorizontalHeaderLabels(titles)
        self.view.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.view.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.view.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.view.setTabKeyNavigation(False)
        self.view.verticalHeader().hide()
        header = self.view.horizontalHeader()
        header.setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
        header.setSectionResizeMode(1, QHeaderView.ResizeMode.Stretch)
        letter = self.fontMetrics().averageCharWidth()
        for place, width in ((0, 22), (2, 20), (3, 10), (4, 15)):
            header.resizeSection(place, letter * width)
        self.view.currentCellChanged.connect(self._row_chosen)
        other = QPushButton(self.tr("&Other file …"), self)
        other.setObjectName("other_script")
        other.setAccessibleName(self.tr("Choose a script that is not in the table"))
        other.setAutoDefault(False)
        other.clicked.connect(self._choose_file)
        self._state = QLabel(self.tr("Looking for scripts …"), self)
        self._state.setObjectName("script_state")
        self._state.setProperty("role", "caption")
        self._state.setWordWrap(True)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.addWidget(self.view, 1)
        below = QHBoxLayout()
        below.addWidget(self._state, 1)
        below.addWidget(other)
        column.addLayout(below)

    def say(self, words: str) -> None:
        self._state.setText(words)

    def set_scripts(self, scripts: Sequence[FoundScript]) -> None:
        """Show these, and choose the first."""
        self._scripts = list(scripts)
        self._fill()
        if scripts:
            self.view.selectRow(0)

    def select(self, script: FoundScript) -> None:
        """Choose one, also one that is not in the table yet."""
        if script.path not in [known.path for known in self._scripts]:
            self._scripts.append(script)
            self._fill()
        self.view.selectRow([known.path for known in self._scripts].index(script.path))

    def choose_path(self, path: Path) -> None:
        """A file that somebody named."""

        def failed(error: Exception) -> None:
            if not isinstance(error, OSError | ValueError):
                raise error
            self.problem.emit(str(error))

        home = self._home
        self._background.run(lambda: script_at(path, home), owner=self, done=self.select, failed=failed)

    def _fill(self) -> None:
        self.view.setRowCount(len(self._scripts))
        for row, script in enumerate(self._scripts):
            steps = count(script.total_timesteps) if script.total_timesteps else ""
            cells = (script.name, script.description, ", ".join(script.phases), steps, script.sha256[:10])
            for column, text in enumerate(cells):
                item = QTableWidgetItem(text)
                item.setToolTip(script.sha256 if column == 4 else str(script.path))
                self.view.setItem(row, column, item)
        self._state.setText(self.tr("Scripts: {count}").format(count=len(self._scripts)))

    def _choose_file(self) -> None:
        dialog = QFileDialog(self, self.tr("Choose a script"), "", self.tr("Scripts (*.py *.sh)"))
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.setFileMode(QFileDialog.FileMode.ExistingFile)
        dialog.fileSelected.connect(lambda name: self.choose_path(Path(name)))
        dialog.open()

    def _row_chosen(self, row: int, *_others: int) -> None:
        if 0 <= row < len(self._scripts):
            self.chosen.emit(self._scripts[row])
