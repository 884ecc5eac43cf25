"""Who acts: a person, or one of the workers. What is not installed is there, too, with the command that installs it."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QSettings, Qt, Signal
from PySide6.QtGui import QStandardItem, QStandardItemModel
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QWidget

from gym_gui.ui.workers.catalog import BUILTIN, WorkerEntry, find

_DEFAULT = "cleanrl"
_KEY = "actor_selector/worker"


class ActorSelector(QWidget):
    """A list: the named workers, a line, then every other one that is installed. Hidden workers are not offered."""

    worker_chosen = Signal(object)  # WorkerEntry: another one than before

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._entries: tuple[WorkerEntry, ...] = ()
        self._settings = QSettings("MOSAIC", "mosaic")
        self._wanted = str(self._settings.value(_KEY, _DEFAULT))
        """What the person chose, also while that cannot be chosen"""
        self.combo = QComboBox(self)
        self.combo.setObjectName("actor_selector")
        self.combo.setAccessibleName(self.tr("Actor: who acts in a new run"))
        self.combo.setToolTip(self.tr("Who acts in a new run"))
        self.combo.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        self._model = QStandardItemModel(self.combo)
        self.combo.setModel(self._model)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(4, 0, 4, 0)
        layout.addWidget(self.combo)
        self.setFocusProxy(self.combo)
        self.set_entries(BUILTIN, is_known=False)
        self.combo.currentIndexChanged.connect(self._choose)

    def set_entries(self, entries: Sequence[WorkerEntry], *, is_known: bool = True) -> None:
        """Offer these; what is chosen stays chosen. Before anybody was asked, everything named is offered."""
        offered = [entry for entry in entries if entry.spec is None or not entry.spec.hidden]
        self._entries = tuple(offered)
        self.combo.blockSignals(True)
        self._model.clear()
        for entry in offered:
            if not entry.is_builtin and self._model.rowCount() == sum(other.is_builtin for other in offered):
                self.combo.insertSeparator(self.combo.count())
            self._model.appendRow(self._item(entry, can_be_chosen=entry.is_usable or not is_known))
        self._select(self._wanted)
        self.combo.blockSignals(False)
        self._explain()

    def _item(self, entry: WorkerEntry, *, can_be_chosen: bool) -> QStandardItem:
        item = QStandardItem(entry.display_name)
        item.setData(entry.name, Qt.ItemDataRole.UserRole)
        if not can_be_chosen:
            # Greyed, and the command stands in the list itself: a tooltip is not found by everybody.
            missing = self.tr("cannot be used") if entry.problem else entry.install_command
            item.setText(f"{entry.display_name}   ({missing})")
            item.setFlags(item.flags() & ~(Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsSelectable))
            item.setToolTip(entry.remedy)
            item.setData(entry.remedy, Qt.ItemDataRole.AccessibleDescriptionRole)
        return item

    def _select(self, name: str) -> None:
        """This one, if it can be chosen; else the CleanRL worker, else the first that can."""
        for wanted in (name, _DEFAULT, *(entry.name for entry in self._entries)):
            place = self.combo.findData(wanted, Qt.ItemDataRole.UserRole)
            if place >= 0 and self._model.item(place).isEnabled():
                self.combo.setCurrentIndex(place)
                return
        self.combo.setCurrentIndex(-1)

    def current_name(self) -> str:
        """The worker type that is chosen; empty when none can be."""
        return str(self.combo.currentData(Qt.ItemDataRole.UserRole) or "")

    def current_entry(self) -> WorkerEntry | None:
        return find(self._entries, self.current_name())

    def set_current(self, name: str) -> None:
        self._select(name)

    def _choose(self) -> None:
        self._explain()
        entry = self.current_entry()
        if entry is not None:
            self._wanted = entry.name
            self._settings.setValue(_KEY, entry.name)
            self.worker_chosen.emit(entry)

    def _explain(self) -> None:
        entry = self.current_entry()
        lane = {"telemetry": self.tr("live, step by step"), "analytics": self.tr("curves, TensorBoard, W&B"),
                "hybrid": self.tr("live and analytics")}  # fmt: skip
        words = f"{entry.display_name}: {lane[entry.lane.value]}" if entry is not None else ""
        self.combo.setToolTip(words or self.tr("Who acts in a new run"))
