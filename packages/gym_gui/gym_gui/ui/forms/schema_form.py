"""A form made from a list of fields: the hyper-parameters of an algorithm, the arguments of a script.

    form = SchemaForm(fields)
    form.set_values({"learning_rate": 1e-3})
    form.changed_values()                what differs from the defaults
    form.problems()                      {name: what is wrong}

Fields stand under the heading of their group. A closed group is not built until it is opened, or until something in it
is changed from outside: forty fields cost nothing while nobody looks at them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mosaic_wire.worker_spec import FieldSpec
from PySide6.QtCore import QCoreApplication, QTimer, Signal
from PySide6.QtWidgets import QFormLayout, QLabel, QLineEdit, QVBoxLayout, QWidget

from gym_gui.ui.forms.field_row import FieldRow
from gym_gui.ui.forms.section import Section
from gym_gui.ui.workers.words import PRESENTERS


class SchemaForm(QWidget):
    """Fields under headings, with a search above them."""

    changed = Signal()

    def __init__(
        self,
        fields: Sequence[FieldSpec] = (),
        parent: QWidget | None = None,
        *,
        label: Callable[[FieldSpec], str] = lambda field: field.name,
        open_groups: int = 1,
        searchable: bool = True,
    ) -> None:
        super().__init__(parent)
        self._label = label
        self._open_groups = open_groups
        self._fields: tuple[FieldSpec, ...] = ()
        self._defaults: dict[str, Any] = {}
        self._kept: dict[str, Any] = {}
        """Values of fields whose group is not built"""
        self._rows: dict[str, FieldRow] = {}
        self._sections: dict[str, Section] = {}
        self._is_filling = False
        self._search = QLineEdit(self)
        self._search.setObjectName("parameter_search")
        self._search.setPlaceholderText(self.tr("Find a parameter"))
        self._search.setAccessibleName(self.tr("Find a parameter"))
        self._search.setClearButtonEnabled(True)
        self._search.textChanged.connect(self._filter)
        self._search.setVisible(searchable)
        self._nothing = QLabel(self)
        self._nothing.setProperty("role", "caption")
        self._nothing.hide()
        self._layout = QVBoxLayout(self)
        self._layout.setContentsMargins(0, 0, 0, 0)
        self._layout.setSpacing(4)
        self._layout.addWidget(self._search)
        self._layout.addWidget(self._nothing)
        self._searchable = searchable
        self.set_fields(fields)

    # ------------------------------------------------------------------ fields

    @property
    def fields(self) -> tuple[FieldSpec, ...]:
        return self._fields

    def set_fields(self, fields: Sequence[FieldSpec]) -> None:
        """Other fields; what was changed and fits a field of the same name and kind is kept."""
        before = {name: value for name, value in self._raw_changes().items() if self._fits(name, value, fields)}
        for section in self._sections.values():
            self._layout.removeWidget(section)
            section.hide()
            section.deleteLater()
        self._fields = tuple(fields)
        self._defaults = {field.name: field.default for field in fields}
        self._rows.clear()
        self._sections.clear()
        self._kept = before
        groups: dict[str, list[FieldSpec]] = {}
        for field in fields:
            groups.setdefault(field.group, []).append(field)
        for number, (group, members) in enumerate(groups.items()):
            title = QCoreApplication.translate(PRESENTERS, group) if group else self.tr("Parameters")
            section = Section(
                title, f"group_{number}", self, is_nested=True,
                build=lambda body, members=members: self._build(body, members),  # type: ignore[misc]
                is_open=False,
            )  # fmt: skip
            self._sections[group] = section
            self._layout.addWidget(section)
            if number < self._open_groups:
                # In the next turn of the event loop: a form is seen sooner, and no turn is a long one.
                QTimer.singleShot(0, section, lambda section=section: self._open(section))
        self._search.setVisible(self._searchable and len(fields) > 6)
        self._nothing.setText(self.tr("Nothing can be set here."))
        self._nothing.setVisible(not fields)
        self._remark()
        self._order_tabs()
        self._filter(self._search.text())

    def _open(self, section: Section) -> None:
        if section in self._sections.values():  # other fields may have come in between
            section.set_open(True)

    def _fits(self, name: str, value: Any, fields: Sequence[FieldSpec]) -> bool:
        known = next((field for field in fields if field.name == name), None)
        return known is not None and known.problem_with(value) is None

    def _build(self, body: QWidget, fields: Sequence[FieldSpec]) -> None:
        layout = QFormLayout(body)
        layout.setContentsMargins(8, 2, 0, 6)
        layout.setFieldGrowthPolicy(QFormLayout.FieldGrowthPolicy.AllNonFixedFieldsGrow)
        layout.setVerticalSpacing(4)
        for field in fields:
            row = FieldRow(field, self._label(field), body)
            row.default = self._defaults[field.name]
            self._rows[field.name] = row
            row.add_to(layout)
            if field.name in self._kept:
                row.set_value(self._kept.pop(field.name))
            elif row.default != field.default:
                row.reset()
            row.changed.connect(self._on_change)
            if self._search.text():
                row.set_visible(self._matches(field, self._search.text()))
        self._order_tabs()

    def _order_tabs(self) -> None:
        """What is built later stands last for Tab, unless it is told its place."""
        before: QWidget = self._search
        for group, section in self._sections.items():
            rows = [
                self._rows[field.name] for field in self._fields if field.group == group and field.name in self._rows
            ]
            for widget in (section.heading, *(row.editor.widget for row in rows)):
                QWidget.setTabOrder(before, widget)
                before = widget

    # ------------------------------------------------------------------ values

    def set_defaults(self, values: Mapping[str, Any]) -> None:
        """Compare with these instead of the algorithm's own defaults (a resumed run: with what it was trained with)."""
        self._defaults |= {name: value for name, value in values.items() if name in self._defaults}
        for name, row in self._rows.items():
            row.default = self._defaults[name]
            row.reset()
        self._remark()

    def set_values(self, values: Mapping[str, Any]) -> None:
        """Show these; every other field goes back to its default. Names the form does not have are passed over."""
        self._is_filling = True
        known = {field.name for field in self._fields}
        self._kept = {name: value for name, value in values.items() if name in known and name not in self._rows}
        for name, row in self._rows.items():
            row.set_value(values.get(name, row.default))
        self._is_filling = False
        self._remark()
        self.changed.emit()

    def changed_values(self) -> dict[str, Any]:
        """What differs from the defaults, as far as it can be read, in the order of the form."""
        found = {}
        for field in self._fields:
            row = self._rows.get(field.name)
            if row is None:
                if field.name in self._kept and self._kept[field.name] != self._defaults[field.name]:
                    found[field.name] = self._kept[field.name]
            elif row.is_changed and not row.own_problem:
                found[field.name] = row.value()
        return found

    def _raw_changes(self) -> dict[str, Any]:
        """The same, also with what other parts of the form find wrong."""
        found = dict(self._kept)
        for name, row in self._rows.items():
            try:
                if row.is_changed:
                    found[name] = row.value()
            except ValueError:
                continue
        return found

    def reset(self) -> None:
        self.set_values({})

    def problems(self) -> dict[str, str]:
        """What is wrong, by field; shown beside each of them."""
        found = {name: row.check() for name, row in self._rows.items()}
        for field in self._fields:
            if field.name in self._kept and (wrong := field.problem_with(self._kept[field.name])) is not None:
                found[field.name] = wrong
        return {name: text for name, text in found.items() if text}

    def show_problem(self, name: str, text: str) -> bool:
        """Say something about a field, and open its group; False when this form does not have it."""
        field = next((field for field in self._fields if field.name == name), None)
        if field is None:
            return False
        self._search.clear()
        self._sections[field.group].set_open(True)
        self._rows[name].show_problem(text)
        return True

    def row(self, name: str) -> FieldRow | None:
        """The row of a field, built if it was not."""
        field = next((field for field in self._fields if field.name == name), None)
        if field is None:
            return None
        self._sections[field.group].set_open(True)
        return self._rows[name]

    # ------------------------------------------------------------------ searching and remarks

    @staticmethod
    def _matches(field: FieldSpec, text: str) -> bool:
        words = text.lower().replace("-", "_").split()
        return all(word in f"{field.name} {field.help}".lower() for word in words)

    def _filter(self, text: str) -> None:
        for group, section in self._sections.items():
            members = [field for field in self._fields if field.group == group]
            matching = {field.name for field in members if self._matches(field, text)} if text else None
            section.setVisible(matching is None or bool(matching))
            if matching:
                section.set_open(True)
            for field in members:
                if field.name in self._rows:
                    self._rows[field.name].set_visible(matching is None or field.name in matching)

    def _on_change(self) -> None:
        if not self._is_filling:
            self._remark()
            self.changed.emit()

    def _remark(self) -> None:
        changed = {name for name, value in self._kept.items() if value != self._defaults.get(name)}
        changed |= {name for name, row in self._rows.items() if row.is_changed}
        for group, section in self._sections.items():
            count = sum(field.group == group and field.name in changed for field in self._fields)
            section.set_remark(self.tr("%n changed •", "", count) if count else "")
