"""Choosing an environment out of hundreds: a filter, the families, a list. Also one that is in no list, by its id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import QAbstractListModel, QModelIndex, QPersistentModelIndex, Qt, Signal
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QCheckBox, QComboBox, QHBoxLayout, QLabel, QLineEdit, QListView, QVBoxLayout, QWidget

from gym_gui.ui import theme
from gym_gui.ui.play.catalogue import Playable, family_rank, matching

_Index = QModelIndex | QPersistentModelIndex


class PlayableModel(QAbstractListModel):
    """What matches; filtering is done here."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._all: Sequence[Playable] = ()
        self.shown: list[Playable] = []

    def set_all(self, playables: Sequence[Playable]) -> None:
        self._all = playables

    def filter(self, text: str, family: str, *, with_older: bool) -> None:
        self.beginResetModel()
        self.shown = matching(self._all, text, family, with_older=with_older)
        self.endResetModel()

    def row_of(self, env_id: str) -> int:
        return next((row for row, known in enumerate(self.shown) if known.env_id == env_id), -1)

    def rowCount(self, parent: _Index = QModelIndex()) -> int:  # noqa: B008
        return 0 if parent.isValid() else len(self.shown)

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if not index.isValid():
            return None
        playable = self.shown[index.row()]
        if role == Qt.ItemDataRole.DisplayRole:
            return self.tr("{env} (not installed)").format(env=playable.env_id) if playable.needs else playable.env_id
        if role == Qt.ItemDataRole.ToolTipRole:
            cure = self.tr("Install it first: mosaic extras install {name}")
            return cure.format(name=playable.needs) if playable.needs else playable.family
        if role == Qt.ItemDataRole.ForegroundRole and playable.needs:
            return QColor(theme.colours().muted)
        return None


class EnvironmentPicker(QWidget):
    """Emits the id of what is chosen."""

    chosen = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("environment_picker")
        self.model = PlayableModel(self)
        self._chosen = ""
        self.filter = QLineEdit()
        self.filter.setObjectName("environment_filter")
        self.filter.setAccessibleName(self.tr("Find an environment, or write an id"))
        self.filter.setPlaceholderText(self.tr("Find, or write an id and press Enter"))
        self.filter.setClearButtonEnabled(True)
        self.filter.textChanged.connect(self._refresh)
        self.filter.returnPressed.connect(self._take_written)
        self.family = QComboBox()
        self.family.setObjectName("environment_family")
        self.family.setAccessibleName(self.tr("Family of environments"))
        self.family.currentIndexChanged.connect(self._refresh)
        self.older = QCheckBox(self.tr("Older versions"))
        self.older.setObjectName("environment_older")
        self.older.setAccessibleName(self.tr("List older versions, too"))
        self.older.toggled.connect(self._refresh)
        self.list = QListView()
        self.list.setObjectName("environment_list")
        self.list.setAccessibleName(self.tr("Environments"))
        self.list.setModel(self.model)
        self.list.setUniformItemSizes(True)
        self.list.setMinimumHeight(self.fontMetrics().height() * 6)
        self.list.selectionModel().currentChanged.connect(self._on_current)
        self.words = QLabel()
        self.words.setObjectName("environment_words")
        self.words.setProperty("role", "caption")
        self.words.setWordWrap(True)
        row = QHBoxLayout()
        row.addWidget(self.family, 1)
        row.addWidget(self.older)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self.filter)
        layout.addLayout(row)
        layout.addWidget(self.list, 1)
        layout.addWidget(self.words)
        self.set_playables((), self.tr("Looking for environments …"))

    def set_playables(self, playables: Sequence[Playable], words: str = "") -> None:
        """The list, or words why there is none."""
        self.model.set_all(playables)
        self.words.setText(words)
        self.words.setVisible(bool(words))
        families = sorted({playable.family for playable in playables}, key=family_rank)
        self.family.blockSignals(True)
        self.family.clear()
        self.family.addItem(self.tr("All families"), "")
        for family in families:
            self.family.addItem(family, family)
        self.family.blockSignals(False)
        self._refresh()

    @property
    def env_id(self) -> str:
        return self._chosen

    def choose(self, env_id: str) -> None:
        """Choose it, whether or not the list has it."""
        row = self.model.row_of(env_id)
        if row >= 0:
            self.list.setCurrentIndex(self.model.index(row))
        else:
            self._set(env_id)

    def _refresh(self) -> None:
        self.model.filter(self.filter.text(), self.family.currentData() or "", with_older=self.older.isChecked())
        row = self.model.row_of(self._chosen)
        if row >= 0:
            self.list.setCurrentIndex(self.model.index(row))

    def _take_written(self) -> None:
        text = self.filter.text().strip()
        if self.model.row_of(text) < 0 and len(self.model.shown) >= 1 and ":" not in text:
            text = self.model.shown[0].env_id
        if text:
            self.choose(text)

    def _on_current(self, index: QModelIndex) -> None:
        if index.isValid():
            self._set(self.model.shown[index.row()].env_id)

    def _set(self, env_id: str) -> None:
        if env_id and env_id != self._chosen:
            self._chosen = env_id
            self.chosen.emit(env_id)
