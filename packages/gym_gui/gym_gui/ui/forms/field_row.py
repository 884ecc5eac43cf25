"""One line of a form: label, editor, a mark when it was changed, a way back to the default, and what is wrong."""

from __future__ import annotations

from typing import Any

from mosaic_wire.worker_spec import FieldSpec
from PySide6.QtCore import QCoreApplication, QObject, Qt, Signal
from PySide6.QtWidgets import QFormLayout, QHBoxLayout, QLabel, QStyle, QToolButton, QVBoxLayout, QWidget

from gym_gui.ui.forms.editors import Editor, editor_for


class FieldRow(QObject):
    """A field in a form layout. Its value differs from the default or it does not, and it is right or it is not."""

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
        # Most fields are never changed and never wrong: what tells so is made when it is first needed.
        self._reset: QToolButton | None = None
        self._problem: QLabel | None = None
        self.box = QWidget(parent)
        self._stack = stack = QVBoxLayout(self.box)
        stack.setContentsMargins(0, 0, 0, 0)
        stack.setSpacing(2)
        self._line = QHBoxLayout()
        self._line.setSpacing(2)
        self._line.addWidget(widget, 1)
        stack.addLayout(self._line)
        if hint:
            caption = QLabel(hint, self.box)
            caption.setProperty("role", "caption")
            caption.setWordWrap(True)
            stack.addWidget(caption)
        self.editor.changed.connect(self._on_change)

    def add_to(self, layout: QFormLayout) -> None:
        layout.addRow(self.label, self.box)
        # Beside the line that is edited, also where the box has more lines below it.
        self.label.setContentsMargins(0, 3, 0, 0)

    @property
    def name(self) -> str:
        return self.field.name

    def value(self) -> Any:
        """ValueError: what is wrong with it."""
        return self.editor.value()

    def set_value(self, value: Any) -> None:
        self.editor.set_value(value)
        self._mark()

    def reset(self) -> None:
        self.set_value(self.default)

    @property
    def is_changed(self) -> bool:
        """A value that cannot be read is a changed one."""
        try:
            return bool(self.value() != self.default)
        except ValueError:
            return True

    @property
    def own_problem(self) -> str:
        """What is wrong with the value by itself."""
        try:
            value = self.value()
        except ValueError as error:
            return str(error)
        return self.field.problem_with(value) or ""

    @property
    def problem(self) -> str:
        """What is said beside the field."""
        return self.own_problem or self._problem_from_outside

    def show_problem(self, text: str) -> None:
        """Something that only the whole form can know; it goes when the value changes, or is checked again."""
        self._problem_from_outside = text
        self._say_problem()

    def check(self) -> str:
        """Look anew: show what is wrong with the value by itself, and return it."""
        self._problem_from_outside = ""
        self._say_problem()
        return self.own_problem

    def set_visible(self, visible: bool) -> None:
        self.label.setVisible(visible)
        self.box.setVisible(visible)

    def _on_change(self) -> None:
        self._problem_from_outside = ""
        self._say_problem()
        self._mark()
        self.changed.emit()

    def _say_problem(self) -> None:
        text = self.problem
        if text and self._problem is None:
            self._problem = _problem_label(f"{self.field.name}_problem", self.box)
            self._stack.insertWidget(1, self._problem)
        if self._problem is not None:
            self._problem.setText(text)
            self._problem.setVisible(bool(text))
        self.editor.widget.setAccessibleDescription(text or self.field.help)

    def _mark(self) -> None:
        """Bold and a dot: seen without colour, and read out."""
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
        button = QToolButton(self.box)
        button.setAutoRaise(True)
        button.setObjectName(f"{self.field.name}_reset")
        button.setIcon(self.box.style().standardIcon(QStyle.StandardPixmap.SP_BrowserReload))
        button.setAccessibleName(self.tr("Reset {name} to its default").format(name=self.text))
        button.setToolTip(self.tr("Back to the default"))
        button.clicked.connect(self.reset)
        QWidget.setTabOrder(self.editor.widget, button)
        return button


def _problem_label(name: str, parent: QWidget) -> QLabel:
    label = QLabel(parent)
    label.setProperty("role", "problem")
    label.setObjectName(name)
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
    words = [field.help or hint, facts, default]
    return "\n".join(filter(None, words))
