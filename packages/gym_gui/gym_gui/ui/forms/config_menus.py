"""Menus of a form: presets, MOSAIC's own and the person's, and what was started from it lately."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QInputDialog, QMenu, QToolButton, QWidget

from gym_gui.ui.forms.config_shelf import ConfigShelf
from gym_gui.wording.formats import age


class _MenuButton(QToolButton):
    """A button that opens a menu, which is filled each time."""

    document_chosen = Signal(object)

    def __init__(self, text: str, name: str, shelf: ConfigShelf, parent: QWidget) -> None:
        super().__init__(parent)
        self.shelf = shelf
        self.setText(text)
        self.setObjectName(name)
        self.setAccessibleName(text.replace("&", ""))
        self.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextOnly)
        menu = QMenu(self)
        menu.aboutToShow.connect(lambda: self._refill(menu))
        self.setMenu(menu)

    def _refill(self, menu: QMenu) -> None:
        menu.clear()
        self.fill(menu)

    def fill(self, menu: QMenu) -> None:
        raise NotImplementedError

    def _offer(self, menu: QMenu, text: str, document: Any) -> None:
        menu.addAction(text, lambda: self.document_chosen.emit(document))


class PresetButton(_MenuButton):
    name_chosen = Signal(str)
    """Under which the form is to be kept"""

    def __init__(self, shelf: ConfigShelf, builtin: Callable[[], Mapping[str, Any]], parent: QWidget) -> None:
        super().__init__(parent.tr("&Presets"), "presets", shelf, parent)
        self._builtin = builtin

    def fill(self, menu: QMenu) -> None:
        for name, document in self._builtin().items():
            self._offer(menu, name, document)
        own = self.shelf.presets()
        menu.addSeparator()
        for name, document in own.items():
            self._offer(menu, name, document)
        menu.addSeparator()
        menu.addAction(self.tr("Save this as a preset …"), self._ask_name)
        if own:
            deleting = menu.addMenu(self.tr("Delete a preset"))
            for name in own:
                deleting.addAction(name, lambda name=name: self.shelf.delete_preset(name))  # type: ignore[misc]

    def _ask_name(self) -> None:
        dialog = QInputDialog(self)
        dialog.setObjectName("preset_name")
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.setWindowTitle(self.tr("Save as a preset"))
        dialog.setLabelText(self.tr("Name of the preset:"))
        dialog.textValueSelected.connect(self.name_chosen)
        dialog.open()


class RecentButton(_MenuButton):
    def __init__(self, shelf: ConfigShelf, parent: QWidget) -> None:
        super().__init__(parent.tr("&Recent"), "recent", shelf, parent)

    def fill(self, menu: QMenu) -> None:
        recent = self.shelf.recent()
        now = time.time()
        for entry in recent:
            words = self.tr("{title}   ({age} ago)").format(title=entry.title, age=age(entry.when, now))
            self._offer(menu, words, entry.document)
        if not recent:
            menu.addAction(self.tr("Nothing was started from this form yet")).setEnabled(False)
