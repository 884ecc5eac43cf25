"""One editor widget for each kind of field: shows a value, reads it back, reports invalid text.

editor = editor_for(field)
editor.set_value(0.5); editor.value()          ValueError: what is wrong, for users
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from mosaic_wire.redaction import is_secret_key
from mosaic_wire.worker_spec import FieldSpec
from PySide6.QtCore import QCoreApplication, QObject, QSize, Qt, Signal
from PySide6.QtGui import QAction, QWheelEvent
from PySide6.QtWidgets import QCheckBox, QComboBox, QLineEdit, QSizePolicy, QWidget


class Editor(QObject):
    """The editor of a field; `widget` is what the user edits."""

    changed = Signal()
    widget: QWidget

    def value(self) -> Any:
        """Return the value; raise ValueError with a message for users if it is invalid."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        raise NotImplementedError


class TextEditor(Editor):
    """A line of text, parsed by the field's kind. Numbers keep their notation: 2.5e-4, not 0.00025."""

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
            message = QCoreApplication.translate("forms", "a value is missing ({kind})")
            raise ValueError(message.format(kind=_kind(field)))
        if field.kind == "float" and text.lower() in ("nan", "inf", "-inf"):
            raise ValueError(QCoreApplication.translate("forms", "expected a finite number"))
        try:
            return field.parse(text)
        except ValueError as error:
            # Omit the flag's name, which a command line needs: here the error is shown next to its field.
            raise ValueError(str(error).removeprefix(f"{field.flag}: ")) from None

    def set_value(self, value: Any) -> None:
        self._line.setText(_written(value, self._field))


class SecretEditor(TextEditor):
    """A masked line of text; a button reveals it."""

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
    """A combo box that ignores the wheel without focus: scrolling a form must not change values."""

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
    """Return the editor for a field's kind; a field with choices gets a list, one for a secret hides it."""
    usual = "secret" if is_secret_key(field.name) else "choice" if field.choices else field.kind
    return EDITORS[kind or usual](field, parent)


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
