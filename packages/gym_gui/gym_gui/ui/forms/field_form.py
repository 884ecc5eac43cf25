"""Fields that a form itself has, one below the other; see `schema_form` for those a worker describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mosaic_wire.worker_spec import FieldSpec
from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QFormLayout, QLineEdit, QWidget

from gym_gui.ui.forms.editors import Editor
from gym_gui.ui.forms.field_row import FieldRow


class ParsedEditor(Editor):
    """A line of text with a grammar of its own: seeds such as 1-5, a time such as 2h."""

    def __init__(
        self,
        parse: Callable[[str], Any],
        write: Callable[[Any], str] = str,
        parent: QObject | None = None,
        *,
        placeholder: str = "",
        empty: Any = "",
    ) -> None:
        super().__init__(parent)
        self._parse, self._write, self._empty = parse, write, empty
        self.line = QLineEdit()
        self.widget = self.line
        self.line.setPlaceholderText(placeholder)
        self.line.textChanged.connect(self.changed)

    def value(self) -> Any:
        text = self.line.text().strip()
        return self._empty if not text and self._empty is not Ellipsis else self._parse(text)

    def set_value(self, value: Any) -> None:
        self.line.setText("" if value is None or value == self._empty else self._write(value))


class FieldForm(QWidget):
    """Rows by name."""

    changed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._rows: dict[str, FieldRow] = {}
        self._layout = QFormLayout(self)
        self._layout.setContentsMargins(8, 2, 0, 6)
        self._layout.setVerticalSpacing(4)
        self._layout.setFieldGrowthPolicy(QFormLayout.FieldGrowthPolicy.AllNonFixedFieldsGrow)

    def add(
        self,
        field: FieldSpec,
        label: str,
        *,
        editor: Editor | None = None,
        hint: str = "",
        can_reset: bool = True,
    ) -> FieldRow:
        """A row for this field; without an editor, the one of its kind."""
        row = FieldRow(field, label, self, editor=editor, hint=hint, can_reset=can_reset)
        if editor is not None:
            editor.setParent(row)
            row.set_value(field.default)
        self._rows[field.name] = row
        row.add_to(self._layout)
        row.changed.connect(self.changed)
        return row

    def add_widget(self, widget: QWidget) -> None:
        """Something across the whole width."""
        self._layout.addRow(widget)

    def row(self, name: str) -> FieldRow | None:
        return self._rows.get(name)

    def __getitem__(self, name: str) -> FieldRow:
        return self._rows[name]

    def names(self) -> tuple[str, ...]:
        return tuple(self._rows)

    def values(self) -> dict[str, Any]:
        """What can be read."""
        found = {}
        for name, row in self._rows.items():
            try:
                found[name] = row.value()
            except ValueError:
                found[name] = row.default
        return found

    def set_values(self, values: Mapping[str, Any]) -> None:
        """Show these; fields without a value here keep what they show."""
        for name, value in values.items():
            if name in self._rows:
                self._rows[name].set_value(value)

    def problems(self) -> dict[str, str]:
        found = {name: row.check() for name, row in self._rows.items() if row.box.isVisibleTo(self)}
        return {name: text for name, text in found.items() if text}
