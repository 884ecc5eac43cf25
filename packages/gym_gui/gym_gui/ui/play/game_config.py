"""Choose an environment and edit its constructor arguments; only changed arguments are stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QAbstractListModel, QModelIndex, QPersistentModelIndex, Qt, Signal
from PySide6.QtGui import QColor
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QDoubleSpinBox,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QListView,
    QScrollArea,
    QSpinBox,
    QVBoxLayout,
    QWidget,
)

from gym_gui.ui import theme
from gym_gui.ui.play.catalog import GameArgument, Playable, family_rank, matching
from gym_gui.ui.widgets.parts import fill, named, styled

_Index = QModelIndex | QPersistentModelIndex


class PlayableModel(QAbstractListModel):
    """The environments that match the filter."""

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
            remedy = self.tr("Install it first: mosaic extras install {name}")
            return remedy.format(name=playable.needs) if playable.needs else playable.family
        if role == Qt.ItemDataRole.ForegroundRole and playable.needs:
            return QColor(theme.colors().muted)
        return None


class EnvironmentPicker(QWidget):
    """Emits the id of the chosen environment."""

    chosen = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("environment_picker")
        self.model = PlayableModel(self)
        self._chosen = ""
        self.filter = named(QLineEdit(), "environment_filter", self.tr("Find an environment, or type an id"))
        self.filter.setPlaceholderText(self.tr("Find, or type an id and press Enter"))
        self.filter.setClearButtonEnabled(True)
        self.filter.textChanged.connect(self._refresh)
        self.filter.returnPressed.connect(self._apply_text)
        self.family = named(QComboBox(), "environment_family", self.tr("Family of environments"))
        self.family.currentIndexChanged.connect(self._refresh)
        self.older = named(QCheckBox(self.tr("Older versions")), "environment_older")
        self.older.setAccessibleName(self.tr("List older versions, too"))
        self.older.toggled.connect(self._refresh)
        self.list = named(QListView(), "environment_list", self.tr("Environments"))
        self.list.setModel(self.model)
        self.list.setUniformItemSizes(True)
        self.list.setMinimumHeight(self.fontMetrics().height() * 6)
        self.list.selectionModel().currentChanged.connect(self._on_current)
        self.message = named(QLabel(wordWrap=True), "environment_message", role="caption")
        row = fill(QHBoxLayout(), (self.family, 1), self.older)
        fill(QVBoxLayout(self), self.filter, row, (self.list, 1), self.message, margins=0)
        self.set_playables((), self.tr("Loading environments …"))

    def set_playables(self, playables: Sequence[Playable], text: str = "") -> None:
        """Set the list, or a text that explains why it is empty."""
        self.model.set_all(playables)
        self.message.setText(text)
        self.message.setVisible(bool(text))
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
        """Select an environment, even one that is not listed."""
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

    def _apply_text(self) -> None:
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


_WIDEST = 2**31 - 1
_DECIMALS = 4


@dataclass
class _Row:
    argument: GameArgument
    label: QLabel
    problem: QLabel
    read: Callable[[], Any]
    """May raise ValueError with a message for users"""
    write: Callable[[Any], None]


class GameConfig(QScrollArea):
    """One field for each argument; a dot marks the changed ones."""

    changed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        named(self, "game_config", self.tr("Game configuration"))
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setMinimumHeight(self.fontMetrics().height() * 5)
        self._rows: list[_Row] = []
        self.show_text(self.tr("Choose an environment."))

    def show_text(self, text: str) -> None:
        """Show a text instead of fields."""
        self._rows = []
        label = named(QLabel(text, wordWrap=True, alignment=Qt.AlignmentFlag.AlignTop), "game_config_message")
        label.setProperty("role", "caption")
        body = QWidget()
        QVBoxLayout(body).addWidget(label)
        self.setWidget(body)

    def show_arguments(self, arguments: tuple[GameArgument, ...], values: Mapping[str, Any] | None = None) -> None:
        """Show the fields of another environment; `values` are the stored ones."""
        if not arguments:
            self.show_text(self.tr("This environment has nothing to configure."))
            return
        self._rows = []
        body = QWidget()
        grid = QGridLayout(body)
        grid.setColumnStretch(0, 3)
        grid.setColumnStretch(1, 2)
        for argument in arguments:
            self._add(grid, argument)
        grid.setRowStretch(grid.rowCount(), 1)
        self.setWidget(body)
        for row in self._rows:
            if values and row.argument.name in values:
                row.write(values[row.argument.name])
        self._refresh()

    def _add(self, grid: QGridLayout, argument: GameArgument) -> None:
        editor, read, write = self._editor(argument)
        editor.setObjectName(f"argument_{argument.name}")
        editor.setAccessibleName(argument.name)
        editor.setToolTip(self.tr("Default: {value}").format(value=_text_of(argument.default)))
        editor.setMinimumWidth(self.fontMetrics().averageCharWidth() * 10)
        label = QLabel(_breakable(argument.name), wordWrap=True)
        label.setBuddy(editor)
        problem = styled(QLabel(wordWrap=True), "problem")
        problem.hide()
        row = grid.rowCount()
        grid.addWidget(label, row, 0)
        grid.addWidget(editor, row, 1)
        grid.addWidget(problem, row + 1, 0, 1, 2)
        self._rows.append(_Row(argument, label, problem, read, write))

    def _editor(self, argument: GameArgument) -> tuple[QWidget, Callable[[], Any], Callable[[Any], None]]:
        if argument.choices:
            return self._combo(argument)
        if argument.kind == "bool":
            box = QCheckBox()
            box.setChecked(bool(argument.default))
            box.toggled.connect(self._refresh)
            return box, box.isChecked, lambda value: box.setChecked(bool(value))
        if argument.kind == "int" and abs(argument.default) < _WIDEST:
            spin = QSpinBox()
            spin.setRange(-_WIDEST, _WIDEST)
            spin.setValue(argument.default)
            spin.valueChanged.connect(self._refresh)
            return spin, spin.value, lambda value: spin.setValue(int(value)) if _is_number(value) else None
        if argument.kind == "float":
            number = QDoubleSpinBox()
            number.setRange(-1e9, 1e9)
            number.setDecimals(_DECIMALS)
            number.setStepType(QDoubleSpinBox.StepType.AdaptiveDecimalStepType)
            number.setValue(argument.default)
            number.valueChanged.connect(self._refresh)
            shown = number.value()  # rounded like the field's text
            return (
                number,
                lambda: argument.default if number.value() == shown else number.value(),
                lambda value: number.setValue(float(value)) if _is_number(value) else None,
            )
        line = QLineEdit()
        is_text = argument.kind == "str"
        line.setText(argument.default if is_text else _text_of(argument.default))
        line.textChanged.connect(self._refresh)
        if is_text:
            return line, line.text, lambda value: line.setText(str(value))
        line.setPlaceholderText("null")
        return line, lambda: _from_json(line.text()), lambda value: line.setText(json.dumps(value))

    def _combo(self, argument: GameArgument) -> tuple[QWidget, Callable[[], Any], Callable[[Any], None]]:
        combo = QComboBox()
        choices = list(argument.choices)
        if argument.default not in choices:
            choices.insert(0, argument.default)
        for choice in choices:
            combo.addItem(choice if isinstance(choice, str) else _text_of(choice), choice)
        combo.setCurrentIndex(choices.index(argument.default))
        combo.currentIndexChanged.connect(self._refresh)

        def write(value: Any) -> None:
            if value in choices:
                combo.setCurrentIndex(choices.index(value))

        return combo, lambda: choices[combo.currentIndex()], write

    # -- values

    def values(self) -> dict[str, Any]:
        """Return the values that differ from the defaults, without invalid ones (see `problems`)."""
        found = {}
        for row in self._rows:
            try:
                value = row.read()
            except ValueError:
                continue
            if value != row.argument.default:
                found[row.argument.name] = value
        return found

    def problems(self) -> list[str]:
        """Return what is invalid, one line per field."""
        found = []
        for row in self._rows:
            try:
                row.read()
            except ValueError as error:
                found.append(f"{row.argument.name}: {error}")
        return found

    def reset(self) -> None:
        """Reset all fields to their defaults."""
        for row in self._rows:
            row.write(row.argument.default)
        self._refresh()

    def _refresh(self) -> None:
        changed = self.values()
        for row in self._rows:
            text = ""
            try:
                row.read()
            except ValueError as error:
                text = str(error)
            row.problem.setText(text)
            row.problem.setVisible(bool(text))
            is_changed = row.argument.name in changed
            name = _breakable(row.argument.name)
            row.label.setText(f"{name} •" if is_changed else name)
        self.changed.emit()


def _breakable(name: str) -> str:
    """Allow a line break in a long name."""
    return name.replace("_", "_\u200b")


def _text_of(value: Any) -> str:
    return json.dumps(value)


def _from_json(text: str) -> Any:
    if not text.strip():
        return None
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError('expected a JSON value such as 8, true, "text" or [1, 2]') from None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
