"""Edit which keys trigger which action of a game."""

from __future__ import annotations

from dataclasses import replace

from PySide6.QtCore import QEvent, Qt, Signal
from PySide6.QtGui import QFocusEvent, QKeyEvent
from PySide6.QtWidgets import (
    QComboBox,
    QDialog,
    QDialogButtonBox,
    QFormLayout,
    QHBoxLayout,
    QHeaderView,
    QPushButton,
    QTableWidget,
    QTableWidgetItem,
    QVBoxLayout,
    QWidget,
)

from gym_gui.ui.play.actions import NOTHING, REPEAT, WAIT, ActionSpace, Binding, KeyMap, default_key_map
from gym_gui.ui.play.game_view import key_name
from gym_gui.ui.widgets.parts import caption, fill, named
from gym_gui.ui.widgets.tables import show_as_rows


class KeyCapture(QPushButton):
    """Records keys that are pressed together; emits them when all are released."""

    captured = Signal(object)  # tuple[str, ...]

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._down: set[str] = set()
        self._chord: list[str] = []
        self.is_listening = False
        self.clicked.connect(self.listen)
        self._rest()

    def listen(self) -> None:
        self._down, self._chord, self.is_listening = set(), [], True
        self.setText(self.tr("Press the keys … (Esc cancels)"))
        self.setFocus()

    def _rest(self) -> None:
        self.is_listening = False
        self.setText(self.tr("&Add keys …"))

    def event(self, event: QEvent) -> bool:
        # Tab and the arrow keys can be bound: Qt must not move the focus while keys are recorded.
        if self.is_listening and event.type() == QEvent.Type.KeyPress and isinstance(event, QKeyEvent):
            self.keyPressEvent(event)
            return True
        return super().event(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if not self.is_listening:
            super().keyPressEvent(event)
        elif event.key() == Qt.Key.Key_Escape:
            self._rest()
        elif (name := key_name(event)) and not event.isAutoRepeat():
            self._down.add(name)
            if name not in self._chord:
                self._chord.append(name)
            self.setText("+".join(self._chord))

    def keyReleaseEvent(self, event: QKeyEvent) -> None:
        if not self.is_listening:
            super().keyReleaseEvent(event)
        elif not event.isAutoRepeat():
            self._down.discard(key_name(event))
            if self._chord and not self._down:
                chord = tuple(self._chord)
                self._rest()
                self.captured.emit(chord)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        if self.is_listening:
            self._rest()
        super().focusOutEvent(event)


class KeyMapEditor(QDialog):
    """Edit the keys of one game; changes take effect at once."""

    changed = Signal(object)  # KeyMap

    def __init__(self, space: ActionSpace, key_map: KeyMap, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("key_map_editor")
        self.setWindowTitle(self.tr("Keys of {env}").format(env=space.env_id))
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self._space = space
        self.key_map = key_map
        self._targets = _targets_of(space, key_map)
        self._build()
        self._fill()

    def _build(self) -> None:
        unit = self.fontMetrics().averageCharWidth()
        text = caption(
            "", self.tr("Select an action, then press its keys. Keys held together form a chord."), wraps=True
        )
        self.table = QTableWidget(len(self._targets), 2)
        show_as_rows(named(self.table, "key_map_table", self.tr("Actions and their keys")), striped=False)
        self.table.setHorizontalHeaderLabels([self.tr("Action"), self.tr("Keys")])
        self.table.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Stretch)
        self.capture = named(KeyCapture(), "key_map_capture", self.tr("Add keys to the selected action"))
        self.capture.captured.connect(self._add)
        self.remove = named(QPushButton(self.tr("&Remove its keys")), "key_map_remove")
        self.remove.setAccessibleName(self.tr("Remove the keys of the selected action"))
        self.remove.clicked.connect(self._remove)
        self.restore = named(QPushButton(self.tr("Restore &defaults")), "key_map_restore")
        self.restore.setAccessibleName(self.tr("Restore the default keys"))
        self.restore.clicked.connect(lambda: self._set(default_key_map(self._space)))
        for button in (self.capture, self.remove, self.restore):
            button.setAutoDefault(False)
        self.idle = self._idle_choice()
        buttons = fill(QHBoxLayout(), self.capture, self.remove, 1, self.restore)
        form = QFormLayout()
        form.addRow(self.tr("In real time, while &no key is held:"), self.idle)
        close = QDialogButtonBox(QDialogButtonBox.StandardButton.Close)
        close.rejected.connect(self.reject)
        fill(QVBoxLayout(self), text, (self.table, 1), buttons, form, close)
        self.resize(unit * 80, self.fontMetrics().height() * 26)

    def _idle_choice(self) -> QComboBox:
        combo = named(QComboBox(), "key_map_idle", self.tr("While no key is held"))
        for name, text in (
            (WAIT, self.tr("wait for a key")),
            (REPEAT, self.tr("repeat the last action")),
            (NOTHING, self.tr("do nothing")),
        ):
            if name != NOTHING or self._space.idle is not None or not self._space.is_discrete:
                combo.addItem(text, name)
        combo.setCurrentIndex(max(0, combo.findData(self.key_map.idle)))
        combo.activated.connect(lambda: self._set(replace(self.key_map, idle=combo.currentData())))
        return combo

    def _fill(self) -> None:
        row = max(0, self.table.currentRow())
        for place, target in enumerate(self._targets):
            keys = [b.text for b in self.key_map.bindings if _same_target(b, target)]
            for column, text in enumerate((self._name_of(target), ",  ".join(keys) or "–")):
                self.table.setItem(place, column, QTableWidgetItem(text))
        self.table.selectRow(row)

    def _name_of(self, target: Binding) -> str:
        if target.component is None:
            return self._space.name_of(target.action)
        return f"{self._space.components[target.component].name} = {target.value:g}"

    def _chosen(self) -> Binding | None:
        row = self.table.currentRow()
        return self._targets[row] if 0 <= row < len(self._targets) else None

    def _add(self, keys: tuple[str, ...]) -> None:
        if (target := self._chosen()) is not None:
            self._set(self.key_map.with_binding(None, replace(target, keys=keys)))

    def _remove(self) -> None:
        if (target := self._chosen()) is not None:
            kept = tuple(known for known in self.key_map.bindings if not _same_target(known, target))
            self._set(replace(self.key_map, bindings=kept))

    def _set(self, key_map: KeyMap) -> None:
        self.key_map = key_map
        self.idle.setCurrentIndex(max(0, self.idle.findData(key_map.idle)))
        self._fill()
        self.changed.emit(key_map)


def _targets_of(space: ActionSpace, key_map: KeyMap) -> list[Binding]:
    """Return what can be bound: every action, or the limits of every component and existing bindings."""
    if space.is_discrete:
        return [Binding((), action) for action in space.actions()]
    found = {(index, value) for index, part in enumerate(space.components) for value in (part.low, part.high)}
    found |= {(known.component, known.value) for known in key_map.bindings if known.component is not None}
    return [Binding((), component=component, value=value) for component, value in sorted(found)]


def _same_target(one: Binding, other: Binding) -> bool:
    return (one.action, one.component, one.value) == (other.action, other.component, other.value)
