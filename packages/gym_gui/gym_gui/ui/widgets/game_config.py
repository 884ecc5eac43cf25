"""The Game Configuration: what an environment is made with, in a scroll area; only what was changed counts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QDoubleSpinBox,
    QGridLayout,
    QLabel,
    QLineEdit,
    QScrollArea,
    QSpinBox,
    QVBoxLayout,
    QWidget,
)

from gym_gui.ui.play.catalogue import GameArgument

_WIDEST = 2**31 - 1
_DECIMALS = 4


@dataclass
class _Row:
    argument: GameArgument
    label: QLabel
    problem: QLabel
    read: Callable[[], Any]
    """May raise ValueError with words for people"""
    write: Callable[[Any], None]


class GameConfig(QScrollArea):
    """One field for each argument; a dot marks those that were changed."""

    changed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("game_config")
        self.setAccessibleName(self.tr("Game configuration"))
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setMinimumHeight(self.fontMetrics().height() * 5)
        self._rows: list[_Row] = []
        self.show_words(self.tr("Choose an environment."))

    def show_words(self, words: str) -> None:
        """While there is nothing to configure."""
        self._rows = []
        label = QLabel(words)
        label.setObjectName("game_config_words")
        label.setProperty("role", "caption")
        label.setWordWrap(True)
        label.setAlignment(Qt.AlignmentFlag.AlignTop)
        body = QWidget()
        QVBoxLayout(body).addWidget(label)
        self.setWidget(body)

    def show_arguments(self, arguments: tuple[GameArgument, ...], values: Mapping[str, Any] | None = None) -> None:
        """Fields for another environment; `values` are what they were set to last time."""
        if not arguments:
            self.show_words(self.tr("This environment has nothing to configure."))
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
        label = QLabel(_breakable(argument.name))
        label.setWordWrap(True)
        label.setBuddy(editor)
        problem = QLabel()
        problem.setProperty("role", "problem")
        problem.setWordWrap(True)
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
            shown = number.value()  # as far as the field can show the default
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

    # -- what it says

    def values(self) -> dict[str, Any]:
        """What differs from the defaults; fields with a problem are left out (see `problems`)."""
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
        """What is wrong, a line a field."""
        found = []
        for row in self._rows:
            try:
                row.read()
            except ValueError as error:
                found.append(f"{row.argument.name}: {error}")
        return found

    def reset(self) -> None:
        """Everything back to its default."""
        for row in self._rows:
            row.write(row.argument.default)
        self._refresh()

    def _refresh(self) -> None:
        changed = self.values()
        for row in self._rows:
            words = ""
            try:
                row.read()
            except ValueError as error:
                words = str(error)
            row.problem.setText(words)
            row.problem.setVisible(bool(words))
            is_changed = row.argument.name in changed
            name = _breakable(row.argument.name)
            row.label.setText(f"{name} •" if is_changed else name)
        self.changed.emit()


def _breakable(name: str) -> str:
    """A long name may go over two lines."""
    return name.replace("_", "_\u200b")


def _text_of(value: Any) -> str:
    return json.dumps(value)


def _from_json(text: str) -> Any:
    if not text.strip():
        return None
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError('write a JSON value such as 8, true, "text" or [1, 2]') from None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
