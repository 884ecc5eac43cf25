"""Chooses runs to lay over those that are shown: a search, the same environment first, several at once."""

from __future__ import annotations

from collections.abc import Sequence

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import (
    QAbstractItemView,
    QCheckBox,
    QDialog,
    QDialogButtonBox,
    QLabel,
    QLineEdit,
    QListWidget,
    QListWidgetItem,
    QVBoxLayout,
    QWidget,
)

from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.wording import formats
from gym_gui.wording.run_view import short_id, state_of, title_of

MOST_LISTED = 400
_ID = Qt.ItemDataRole.UserRole


class AddRunsDialog(QDialog):
    """Lists runs that have begun; `chosen` carries those that were picked."""

    chosen = Signal(object)  # list[pb.Run]

    def __init__(
        self,
        link: DaemonLink,
        present: Sequence[pb.Run],
        selected: Sequence[str] = (),
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.setObjectName("add_runs_dialog")
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(self.tr("Add runs"))
        self._present = {run.run_id for run in present}
        environments = {run.env_id for run in present if run.env_id}
        self._env_id = next(iter(environments)) if len(environments) == 1 else ""
        self._runs: dict[str, pb.Run] = {}
        self._all: dict[str, pb.Run] = {}
        self._selected = [run_id for run_id in selected if run_id not in self._present]
        self._build()
        self._say(self.tr("Loading…"))
        link.call(
            lambda client: list(client.list(include_archived=False).runs), owner=self, done=self._load, failed=self._say
        )

    def _build(self) -> None:
        self.search = QLineEdit()
        self.search.setObjectName("add_runs_search")
        self.search.setAccessibleName(self.tr("Search runs"))
        self.search.setPlaceholderText(self.tr("Search by name, algorithm, environment, tag or id"))
        self.search.setClearButtonEnabled(True)
        self.search.textChanged.connect(lambda _: self._fill())
        self.same = QCheckBox(self.tr("&Only {0}").format(self._env_id))
        self.same.setObjectName("add_runs_same_environment")
        self.same.setAccessibleName(self.tr("Only runs in the same environment"))
        self.same.setChecked(True)
        self.same.setVisible(bool(self._env_id))
        self.same.toggled.connect(lambda _: self._fill())
        self.list = QListWidget()
        self.list.setObjectName("add_runs_list")
        self.list.setAccessibleName(self.tr("Runs that can be added; Shift and Ctrl choose several"))
        self.list.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.list.setUniformItemSizes(True)
        self.list.itemSelectionChanged.connect(self._show_count)
        self.list.itemDoubleClicked.connect(lambda _: self.accept())
        self._words = QLabel()
        self._words.setProperty("role", "caption")
        self.buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Cancel)
        self.add = self.buttons.addButton(self.tr("&Add"), QDialogButtonBox.ButtonRole.AcceptRole)
        self.add.setObjectName("add_runs_add")
        self.from_list = self.buttons.addButton(
            self.tr("Add the &selection of the list"), QDialogButtonBox.ButtonRole.ActionRole
        )
        self.from_list.setObjectName("add_runs_selection")
        self.from_list.setToolTip(self.tr("The runs that are chosen in the list of runs"))
        self.from_list.hide()
        self.from_list.clicked.connect(self._give_selected)
        for button in self.buttons.buttons():
            button.setAccessibleName(button.text().replace("&", ""))
        self.buttons.accepted.connect(self.accept)
        self.buttons.rejected.connect(self.reject)
        layout = QVBoxLayout(self)
        for widget in (self.search, self.same, self.list, self._words, self.buttons):
            layout.addWidget(widget)
        unit = self.fontMetrics()
        self.resize(unit.averageCharWidth() * 90, unit.height() * 30)
        self._show_count()

    def _load(self, runs: list[pb.Run]) -> None:
        known = {run.run_id for run in runs}
        self._selected = [run_id for run_id in self._selected if run_id in known]
        self.from_list.setVisible(bool(self._selected))
        self.from_list.setText(self.tr("Add the &selection of the list ({0})").format(len(self._selected)))
        able = [run for run in runs if run.started_at and run.run_id not in self._present]
        self._runs = {run.run_id: run for run in sorted(able, key=lambda run: -run.number)}
        self._all = {run.run_id: run for run in runs}
        self._fill()

    def _fill(self) -> None:
        words = self.search.text().lower().split()
        only = self._env_id if self.same.isChecked() else ""
        fitting = [
            run for run in self._runs.values()
            if (not only or run.env_id == only) and all(word in _haystack(run) for word in words)
        ]  # fmt: skip
        self.list.clear()
        for run in fitting[:MOST_LISTED]:
            item = QListWidgetItem(_described(run))
            item.setData(_ID, run.run_id)
            item.setToolTip(f"{run.name}\n{run.run_id}")
            self.list.addItem(item)
        if not fitting:
            self._say(self.tr("No other run fits. Another environment, or another word?"))
        elif len(fitting) > MOST_LISTED:
            self._say(self.tr("The newest {0} of {1}; search to find others").format(MOST_LISTED, f"{len(fitting):,}"))
        else:
            self._say(formats.plural(len(fitting), "run"))
        self._show_count()

    def picked(self) -> list[pb.Run]:
        return [self._runs[str(item.data(_ID))] for item in self.list.selectedItems()]

    def accept(self) -> None:
        if picked := self.picked():
            self._give(picked)

    def _give(self, runs: Sequence[pb.Run]) -> None:
        self.chosen.emit(list(runs))
        super().accept()

    def _give_selected(self) -> None:
        self._give([self._all[run_id] for run_id in self._selected])

    def _show_count(self) -> None:
        number = len(self.list.selectedItems())
        self.add.setEnabled(bool(number))
        self.add.setText(self.tr("&Add {0}").format(formats.plural(number, "run")) if number else self.tr("&Add"))

    def _say(self, words: str) -> None:
        self._words.setText(words)


def _haystack(run: pb.Run) -> str:
    return f"{run.name}\n{run.algo}\n{run.env_id}\n{run.run_id}\n{' '.join(run.tags)}".lower()


def _described(run: pb.Run) -> str:
    figures = formats.quantity(run.episodic_return) if run.HasField("episodic_return") else ""
    return " · ".join(filter(None, (title_of(run), run.name, state_of(run), figures, short_id(run.run_id))))
