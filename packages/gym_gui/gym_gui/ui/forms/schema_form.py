"""A form made from a list of fields: hyper-parameters of an algorithm, arguments of a script.

    form = SchemaForm(fields)
    form.set_values({"learning_rate": 1e-3})
    form.changed_values()                what differs from the defaults
    form.problems()                      {name: what is wrong}

Fields are shown under the heading of their group. A collapsed group is built when it is expanded or when one of its
values is set: this keeps forms with many fields fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mosaic_wire.worker_spec import FieldSpec
from PySide6.QtCore import QCoreApplication, QObject, Qt, QTimer, Signal
from PySide6.QtWidgets import (
    QFormLayout,
    QFrame,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QSizePolicy,
    QStyle,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from gym_gui.ui.forms.editors import Editor, editor_for
from gym_gui.ui.widgets.parts import caption, fill, named, styled
from gym_gui.ui.workers.translation import PRESENTERS


class Section(QWidget):
    """A collapsible part of a form."""

    opened = Signal()

    def __init__(
        self,
        title: str,
        name: str,
        parent: QWidget | None = None,
        *,
        build: Callable[[QWidget], None] | None = None,
        is_open: bool = True,
        is_nested: bool = False,
    ) -> None:
        super().__init__(parent)
        self.setObjectName(name)
        self._title = title
        self._build = build
        self.heading = named(QToolButton(self), f"{name}heading", title)
        self.heading.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self.heading.setAutoRaise(True)
        self.heading.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        font = self.heading.font()
        font.setBold(True)
        self.heading.setFont(font)
        self.body = named(QFrame(self), f"{name}_body")
        line = QFrame(self)
        line.setFrameShape(QFrame.Shape.HLine)
        line.setFrameShadow(QFrame.Shadow.Sunken)
        line.setVisible(not is_nested)
        fill(QVBoxLayout(self), self.heading, line, self.body, margins=0, spacing=0)
        self.is_open = is_open
        self.heading.clicked.connect(lambda: self.set_open(not self.is_open))
        self.set_remark("")
        self._show(is_open)

    def set_open(self, is_open: bool) -> None:
        if is_open != self.is_open:
            self._show(is_open)

    def set_remark(self, remark: str) -> None:
        """Show a note after the title: the number of changed values, or a problem."""
        self.heading.setText(f"{self._title}   {remark}" if remark else self._title)
        self._remark = remark
        self._describe()

    def _describe(self) -> None:
        state = self.tr("open") if self.is_open else self.tr("closed")
        self.heading.setAccessibleDescription(f"{state} {self._remark}".strip())

    def _show(self, is_open: bool) -> None:
        self.is_open = is_open
        if is_open and self._build is not None:
            build, self._build = self._build, None
            build(self.body)
        self.heading.setArrowType(Qt.ArrowType.DownArrow if is_open else Qt.ArrowType.RightArrow)
        self.body.setVisible(is_open)
        self._describe()
        if is_open:
            self.opened.emit()


class FieldRow(QObject):
    """A field in a form layout; it marks changed and invalid values."""

    changed = Signal()

    def __init__(
        self,
        field: FieldSpec,
        label: str,
        parent: QWidget,
        *,
        editor: Editor | None = None,
        hint: str = "",
        can_reset: bool = True,
    ) -> None:
        super().__init__(parent)
        self.field = field
        self.default: Any = field.default
        self.editor = editor or editor_for(field, self)
        self.text = label
        self._problem_from_outside = ""
        self._can_reset = can_reset
        widget = self.editor.widget
        widget.setObjectName(field.name)
        widget.setAccessibleName(label)
        widget.setToolTip(_tooltip(field, hint))
        if field.help:
            widget.setAccessibleDescription(field.help)

        self.label = QLabel(label, parent)
        self.label.setBuddy(widget)
        self.label.setToolTip(widget.toolTip())
        self.label.setWordWrap(True)
        # These widgets are created when needed: most fields are never changed or invalid.
        self._reset: QToolButton | None = None
        self._problem: QLabel | None = None
        self.box = QWidget(parent)
        self._stack = stack = QVBoxLayout(self.box)
        stack.setContentsMargins(0, 0, 0, 0)
        stack.setSpacing(2)
        self._line = fill(QHBoxLayout(), (widget, 1), spacing=2)
        stack.addLayout(self._line)
        if hint:
            stack.addWidget(caption("", hint, wraps=True))
        self.editor.changed.connect(self._on_change)

    def add_to(self, layout: QFormLayout) -> None:
        layout.addRow(self.label, self.box)
        # Aligned with the editor's line, also if the box has more lines below it.
        self.label.setContentsMargins(0, 3, 0, 0)

    @property
    def name(self) -> str:
        return self.field.name

    def value(self) -> Any:
        """Return the value; raise ValueError if it is invalid."""
        return self.editor.value()

    def set_value(self, value: Any) -> None:
        self.editor.set_value(value)
        self._mark()

    def reset(self) -> None:
        self.set_value(self.default)

    @property
    def is_changed(self) -> bool:
        """Return whether the value differs from the default; an invalid one does."""
        try:
            return bool(self.value() != self.default)
        except ValueError:
            return True

    @property
    def own_problem(self) -> str:
        """Return what is wrong with the value on its own."""
        try:
            value = self.value()
        except ValueError as error:
            return str(error)
        return self.field.problem_with(value) or ""

    @property
    def problem(self) -> str:
        """Return the problem that is shown."""
        return self.own_problem or self._problem_from_outside

    def show_problem(self, text: str) -> None:
        """Show a problem found by the form; it is cleared when the value changes or is checked again."""
        self._problem_from_outside = text
        self._show_field_problem()

    def check(self) -> str:
        """Validate the value on its own, show the problem and return it."""
        self._problem_from_outside = ""
        self._show_field_problem()
        return self.own_problem

    def set_visible(self, visible: bool) -> None:
        self.label.setVisible(visible)
        self.box.setVisible(visible)

    def _on_change(self) -> None:
        self._problem_from_outside = ""
        self._show_field_problem()
        self._mark()
        self.changed.emit()

    def _show_field_problem(self) -> None:
        text = self.problem
        if text and self._problem is None:
            self._problem = _problem_label(f"{self.field.name}_problem", self.box)
            self._stack.insertWidget(1, self._problem)
        if self._problem is not None:
            self._problem.setText(text)
            self._problem.setVisible(bool(text))
        self.editor.widget.setAccessibleDescription(text or self.field.help)

    def _mark(self) -> None:
        """Mark a changed value with bold type and a dot, and for screen readers."""
        changed = self._can_reset and self.is_changed
        font = self.label.font()
        font.setBold(changed)
        self.label.setFont(font)
        self.label.setText(f"{self.text} •" if changed else self.text)
        if changed and self._reset is None:
            self._reset = self._make_reset()
            self._line.addWidget(self._reset, 0, Qt.AlignmentFlag.AlignTop)
        if self._reset is not None:
            self._reset.setVisible(changed)

    def _make_reset(self) -> QToolButton:
        button = named(QToolButton(self.box), f"{self.field.name}_reset", tip=self.tr("Reset to the default"))
        button.setAutoRaise(True)
        button.setIcon(self.box.style().standardIcon(QStyle.StandardPixmap.SP_BrowserReload))
        button.setAccessibleName(self.tr("Reset {name} to its default").format(name=self.text))
        button.clicked.connect(self.reset)
        QWidget.setTabOrder(self.editor.widget, button)
        return button


def _problem_label(name: str, parent: QWidget) -> QLabel:
    label = named(QLabel(parent), name, role="problem")
    label.setWordWrap(True)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    label.hide()
    return label


def _tooltip(field: FieldSpec, hint: str) -> str:
    limits = [
        f"≥ {field.minimum:g}" if field.minimum is not None else "",
        f"≤ {field.maximum:g}" if field.maximum is not None else "",
    ]
    facts = ", ".join(filter(None, limits))
    default = ""
    if isinstance(field.default, str | int | float) and field.default != "":
        default = QCoreApplication.translate("forms", "default: {value}").format(value=field.default)
    parts = [field.help or hint, facts, default]
    return "\n".join(filter(None, parts))


class ParsedEditor(Editor):
    """A line of text with its own parser, such as seeds 1-5 or a duration 2h."""

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
        label: str,
        name: str,
        kind: str,
        default: Any,
        help: str = "",
        *,
        editor: Editor | None = None,
        shown_as: str = "",
        hint: str = "",
        can_reset: bool = True,
        **limits: Any,
    ) -> FieldRow:
        """Add a row; the editor defaults to that of its kind or of `shown_as`. `limits` are those of a FieldSpec."""
        field = FieldSpec(name, kind, default, help, **limits)
        if shown_as:
            editor = editor_for(field, kind=shown_as)
        row = FieldRow(field, label, self, editor=editor, hint=hint, can_reset=can_reset)
        if editor is not None:
            editor.setParent(row)
            row.set_value(field.default)
        self._rows[field.name] = row
        row.add_to(self._layout)
        row.changed.connect(self.changed)
        return row

    def add_widget(self, widget: QWidget) -> None:
        """Add a widget across the whole width."""
        self._layout.addRow(widget)

    def row(self, name: str) -> FieldRow | None:
        return self._rows.get(name)

    def __getitem__(self, name: str) -> FieldRow:
        return self._rows[name]

    def names(self) -> tuple[str, ...]:
        return tuple(self._rows)

    def values(self) -> dict[str, Any]:
        """Return the valid values."""
        found = {}
        for name, row in self._rows.items():
            try:
                found[name] = row.value()
            except ValueError:
                found[name] = row.default
        return found

    def set_values(self, values: Mapping[str, Any]) -> None:
        """Set these values; other fields keep theirs."""
        for name, value in values.items():
            if name in self._rows:
                self._rows[name].set_value(value)

    def problems(self) -> dict[str, str]:
        found = {name: row.check() for name, row in self._rows.items() if row.box.isVisibleTo(self)}
        return {name: text for name, text in found.items() if text}


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
        self.fields: tuple[FieldSpec, ...] = ()
        self._defaults: dict[str, Any] = {}
        self._unbuilt: dict[str, Any] = {}
        """Values of fields whose group is not built yet"""
        self._rows: dict[str, FieldRow] = {}
        self._sections: dict[str, Section] = {}
        self._is_filling = False
        self._search = named(QLineEdit(self), "parameter_search", self.tr("Find a parameter"))
        self._search.setPlaceholderText(self.tr("Find a parameter"))
        self._search.setClearButtonEnabled(True)
        self._search.textChanged.connect(self._filter)
        self._search.setVisible(searchable)
        self._nothing = styled(QLabel(self), "caption")
        self._nothing.hide()
        self._layout = fill(QVBoxLayout(self), self._search, self._nothing, margins=0, spacing=4)
        self._searchable = searchable
        self.set_fields(fields)

    # ------------------------------------------------------------------ fields

    def set_fields(self, fields: Sequence[FieldSpec]) -> None:
        """Replace the fields; changed values of fields with the same name and kind are kept."""
        before = {name: value for name, value in self._raw_changes().items() if self._fits(name, value, fields)}
        for section in self._sections.values():
            self._layout.removeWidget(section)
            section.hide()
            section.deleteLater()
        self.fields = tuple(fields)
        self._defaults = {field.name: field.default for field in fields}
        self._rows.clear()
        self._sections.clear()
        self._unbuilt = before
        groups: dict[str, list[FieldSpec]] = {}
        for field in fields:
            groups.setdefault(field.group, []).append(field)
        for number, (group, members) in enumerate(groups.items()):
            title = QCoreApplication.translate(PRESENTERS, group) if group else self.tr("Parameters")
            section = Section(
                title,
                f"group_{number}",
                self,
                is_nested=True,
                build=lambda body, members=members: self._build(body, members),  # type: ignore[misc]
                is_open=False,
            )
            self._sections[group] = section
            self._layout.addWidget(section)
            if number < self._open_groups:
                # Deferred to the next event-loop iterations: the form appears sooner, and no iteration is long.
                QTimer.singleShot(0, section, lambda section=section: self._open(section))
        self._search.setVisible(self._searchable and len(fields) > 6)
        self._nothing.setText(self.tr("There are no parameters."))
        self._nothing.setVisible(not fields)
        self._remark()
        self._order_tabs()
        self._filter(self._search.text())

    def _open(self, section: Section) -> None:
        if section in self._sections.values():  # the fields may have been replaced meanwhile
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
            if field.name in self._unbuilt:
                row.set_value(self._unbuilt.pop(field.name))
            elif row.default != field.default:
                row.reset()
            row.changed.connect(self._on_change)
            if self._search.text():
                row.set_visible(self._matches(field, self._search.text()))
        self._order_tabs()

    def _order_tabs(self) -> None:
        """Restore the tab order: rows that are built later would come last."""
        before: QWidget = self._search
        for group, section in self._sections.items():
            rows = [
                self._rows[field.name] for field in self.fields if field.group == group and field.name in self._rows
            ]
            for widget in (section.heading, *(row.editor.widget for row in rows)):
                QWidget.setTabOrder(before, widget)
                before = widget

    # ------------------------------------------------------------------ values

    def set_defaults(self, values: Mapping[str, Any]) -> None:
        """Compare with these instead of the algorithm's defaults (a resumed run: with its training flags)."""
        self._defaults |= {name: value for name, value in values.items() if name in self._defaults}
        for name, row in self._rows.items():
            row.default = self._defaults[name]
            row.reset()
        self._remark()

    def set_values(self, values: Mapping[str, Any]) -> None:
        """Set these values and reset all other fields; unknown names are ignored."""
        self._is_filling = True
        known = {field.name for field in self.fields}
        self._unbuilt = {name: value for name, value in values.items() if name in known and name not in self._rows}
        for name, row in self._rows.items():
            row.set_value(values.get(name, row.default))
        self._is_filling = False
        self._remark()
        self.changed.emit()

    def changed_values(self) -> dict[str, Any]:
        """Return the valid values that differ from the defaults, in the order of the form."""
        found = {}
        for field in self.fields:
            row = self._rows.get(field.name)
            if row is None:
                if field.name in self._unbuilt and self._unbuilt[field.name] != self._defaults[field.name]:
                    found[field.name] = self._unbuilt[field.name]
            elif row.is_changed and not row.own_problem:
                found[field.name] = row.value()
        return found

    def _raw_changes(self) -> dict[str, Any]:
        """Return the same including values that other parts of the form reject."""
        found = dict(self._unbuilt)
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
        """Validate all fields, show their problems and return them by name."""
        found = {name: row.check() for name, row in self._rows.items()}
        for field in self.fields:
            if field.name in self._unbuilt and (wrong := field.problem_with(self._unbuilt[field.name])) is not None:
                found[field.name] = wrong
        return {name: text for name, text in found.items() if text}

    def show_problem(self, name: str, text: str) -> bool:
        """Show a problem of a field and expand its group; return False if this form does not have the field."""
        field = next((field for field in self.fields if field.name == name), None)
        if field is None:
            return False
        self._search.clear()
        self._sections[field.group].set_open(True)
        self._rows[name].show_problem(text)
        return True

    def row(self, name: str) -> FieldRow | None:
        """Return the row of a field, building its group if necessary."""
        field = next((field for field in self.fields if field.name == name), None)
        if field is None:
            return None
        self._sections[field.group].set_open(True)
        return self._rows[name]

    # ------------------------------------------------------------------ search and notes

    @staticmethod
    def _matches(field: FieldSpec, text: str) -> bool:
        terms = text.lower().replace("-", "_").split()
        return all(word in f"{field.name} {field.help}".lower() for word in terms)

    def _filter(self, text: str) -> None:
        for group, section in self._sections.items():
            members = [field for field in self.fields if field.group == group]
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
        changed = {name for name, value in self._unbuilt.items() if value != self._defaults.get(name)}
        changed |= {name for name, row in self._rows.items() if row.is_changed}
        for group, section in self._sections.items():
            count = sum(field.group == group and field.name in changed for field in self.fields)
            section.set_remark(self.tr("%n changed •", "", count) if count else "")
