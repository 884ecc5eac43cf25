"""One small widget for each kind of field: it shows a value, takes another, and says why a text is none.

editor = editor_for(field)
editor.set_value(0.5); editor.value()          ValueError: what is wrong, for people
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from mosaic_wire.worker_spec import FieldSpec
from PySide6.QtCore import QCoreApplication, QObject, QSize, Qt, Signal
from PySide6.QtGui import QAction, QWheelEvent
from PySide6.QtWidgets import QCheckBox, QComboBox, QLineEdit, QSizePolicy, QWidget


class Editor(QObject):
    """What a row of a form holds; `widget` is what a person touches."""

    changed = Signal()
    widget: QWidget

    def value(self) -> Any:
        """What it says now; raise ValueError with a sentence for people when that is nothing."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        raise NotImplementedError


class TextEditor(Editor):
    """A line of text, read as the field's kind. Numbers stay as they were written: 2.5e-4, not 0.00025."""

    def __init__(self, field: FieldSpec, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._field = field
        self._line = QLineEdit()
        self.widget = self._line
        if field.nullable:
            self._line.setPlaceholderText(QCoreApplication.translate("forms", "none"))
        self.set_value(field.default)
        self._line.textChanged.connect(self.changed)

    def value(self) -> Any:
        text = self._line.text().strip()
        field = self._field
        if not text and field.nullable:
            return None
        if not text and field.kind != "str":
            words = QCoreApplication.translate("forms", "a value is missing ({kind})")
            raise ValueError(words.format(kind=_kind(field)))
        if field.kind == "float" and text.lower() in ("nan", "inf", "-inf"):
            raise ValueError(QCoreApplication.translate("forms", "expected a finite number"))
        try:
            return field.parse(text)
        except ValueError as error:
            # A form stands beside its label; a command line needs the flag's name in front.
            raise ValueError(str(error).removeprefix(f"{field.flag}: ")) from None

    def set_value(self, value: Any) -> None:
        self._line.setText(_written(value, self._field))


class SecretEditor(TextEditor):
    """A line nobody can read over a shoulder; a button shows it for a moment."""

    def __init__(self, field: FieldSpec, parent: QObject | None = None) -> None:
        super().__init__(field, parent)
        self._line.setEchoMode(QLineEdit.EchoMode.Password)
        self._show = QAction(QCoreApplication.translate("forms", "Show"), self._line)
        self._show.setCheckable(True)
        self._show.setIcon(self._line.style().standardIcon(self._line.style().StandardPixmap.SP_FileDialogContentsView))
        self._show.toggled.connect(self._reveal)
        self._line.addAction(self._show, QLineEdit.ActionPosition.TrailingPosition)

    def _reveal(self, shown: bool) -> None:
        self._line.setEchoMode(QLineEdit.EchoMode.Normal if shown else QLineEdit.EchoMode.Password)


class CheckEditor(Editor):
    def __init__(self, field: FieldSpec, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._box = QCheckBox()
        self.widget = self._box
        self.set_value(field.default)
        self._box.toggled.connect(self.changed)

    def value(self) -> bool:
        return self._box.isChecked()

    def set_value(self, value: Any) -> None:
        self._box.setChecked(bool(value))


class ComboBox(QComboBox):
    """A combo box that lets the wheel scroll the form, unless it has the focus: a value must not change in passing."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.setMinimumContentsLength(8)

    def wheelEvent(self, event: QWheelEvent) -> None:
        if self.hasFocus():
            super().wheelEvent(event)
        else:
            event.ignore()

    def minimumSizeHint(self) -> QSize:
        return QSize(self.fontMetrics().averageCharWidth() * 10, super().minimumSizeHint().height())


class ChoiceEditor(Editor):
    def __init__(self, field: FieldSpec, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._field = field
        self._combo = ComboBox()
        self.widget = self._combo
        if field.nullable:
            self._combo.addItem(QCoreApplication.translate("forms", "none"), None)
        for choice in field.choices:
            self._combo.addItem(str(choice), choice)
        self.set_value(field.default)
        self._combo.currentIndexChanged.connect(self.changed)

    def value(self) -> Any:
        if self._combo.currentIndex() < 0:
            raise ValueError(QCoreApplication.translate("forms", "choose one"))
        return self._combo.currentData()

    def set_value(self, value: Any) -> None:
        self._combo.setCurrentIndex(self._combo.findData(value))


EDITORS: dict[str, Callable[[FieldSpec, QObject | None], Editor]] = {
    "bool": CheckEditor,
    "int": TextEditor,
    "float": TextEditor,
    "str": TextEditor,
    "json": TextEditor,
    "choice": ChoiceEditor,
    "secret": SecretEditor,
}


def editor_for(field: FieldSpec, parent: QObject | None = None, *, kind: str = "") -> Editor:
    """The editor of a field, by its kind; a field with choices gets a list."""
    return EDITORS[kind or ("choice" if field.choices else field.kind)](field, parent)


def _written(value: Any, field: FieldSpec) -> str:
    if value is None:
        return ""
    if field.kind == "json":
        return json.dumps(value)
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return str(value)


def _kind(field: FieldSpec) -> str:
    return {
        "int": QCoreApplication.translate("forms", "a whole number"),
        "float": QCoreApplication.translate("forms", "a number"),
        "json": QCoreApplication.translate("forms", "JSON"),
    }.get(field.kind, field.kind)
