"""Every keyboard shortcut of the window: those of the menus are read from their actions, so that the list is right."""

from __future__ import annotations

from collections.abc import Iterator

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QKeySequence
from PySide6.QtWidgets import (
    QDialog,
    QDialogButtonBox,
    QHeaderView,
    QLineEdit,
    QMenu,
    QMenuBar,
    QTreeWidget,
    QTreeWidgetItem,
    QVBoxLayout,
    QWidget,
)


def shortcuts_of(menu_bar: QMenuBar) -> Iterator[tuple[str, str, str]]:
    """(menu, what it does, keys) of every action in the menus that has a shortcut."""
    for action in menu_bar.actions():
        menu = action.menu()
        if isinstance(menu, QMenu):
            for entry in _actions_in(menu):
                if keys := keys_of(entry):
                    yield _plain(action.text()), _plain(entry.text()), keys


def keys_of(action: QAction) -> str:
    return ", ".join(sequence.toString(QKeySequence.SequenceFormat.NativeText) for sequence in action.shortcuts())


def _actions_in(menu: QMenu) -> Iterator[QAction]:
    for action in menu.actions():
        inner = action.menu()
        if isinstance(inner, QMenu):
            yield from _actions_in(inner)
        elif not action.isSeparator():
            yield action


def _plain(text: str) -> str:
    return text.replace("&", "").rstrip("…")


class ShortcutsDialog(QDialog):
    """A list with a search field; Escape closes it."""

    def __init__(self, menu_bar: QMenuBar, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("shortcuts_dialog")
        self.setWindowTitle(self.tr("Keyboard shortcuts"))
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.search = QLineEdit()
        self.search.setObjectName("shortcuts_search")
        self.search.setAccessibleName(self.tr("Search the shortcuts"))
        self.search.setPlaceholderText(self.tr("Search"))
        self.search.setClearButtonEnabled(True)
        self.search.textChanged.connect(self._filter)
        self.tree = QTreeWidget()
        self.tree.setObjectName("shortcuts_list")
        self.tree.setAccessibleName(self.tr("Shortcuts"))
        self.tree.setHeaderLabels([self.tr("What it does"), self.tr("Keys")])
        self.tree.setRootIsDecorated(False)
        header = self.tree.header()
        header.setStretchLastSection(False)
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
        header.setSectionResizeMode(1, QHeaderView.ResizeMode.ResizeToContents)
        groups: dict[str, QTreeWidgetItem] = {}
        for group, name, keys in [*shortcuts_of(menu_bar), *self._of_parts()]:
            if group not in groups:
                groups[group] = QTreeWidgetItem(self.tree, [group])
                font = groups[group].font(0)
                font.setBold(True)
                groups[group].setFont(0, font)
            QTreeWidgetItem(groups[group], [name, keys])
        self.tree.expandAll()
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close)
        buttons.rejected.connect(self.reject)
        layout = QVBoxLayout(self)
        layout.addWidget(self.search)
        layout.addWidget(self.tree, 1)
        layout.addWidget(buttons)
        self.resize(self.fontMetrics().averageCharWidth() * 70, self.fontMetrics().height() * 32)

    def _of_parts(self) -> list[tuple[str, str, str]]:
        """Keys that mean something only where the keyboard is."""
        runs, logs, replay = self.tr("In the list of runs"), self.tr("In a log"), self.tr("In a video or an episode")
        play, policy, forms = self.tr("While playing"), self.tr("While watching a policy"), self.tr("In a form")
        return [
            (runs, self.tr("Filter"), "Ctrl+F"),
            (runs, self.tr("Open and close a group"), self.tr("Right, Left")),
            (logs, self.tr("Search"), "Ctrl+F"),
            (logs, self.tr("Next and previous hit"), "F3, Shift+F3"),
            (logs, self.tr("To the beginning and the end"), "Ctrl+Home, Ctrl+End"),
            (replay, self.tr("Play and pause"), self.tr("Space")),
            (replay, self.tr("One picture back and on"), self.tr("Left, Right")),
            (replay, self.tr("To the beginning and the end"), self.tr("Home, End")),
            (play, self.tr("New episode, end it, step once"), "F5, F6, F7"),
            (play, self.tr("Change the keys of the game"), "F8"),
            (policy, self.tr("Play and pause, new episode, step once"), "F5, F6, F7"),
            (forms, self.tr("Start"), "Ctrl+Return"),
        ]

    def _filter(self, text: str) -> None:
        wanted = text.casefold()
        for index in range(self.tree.topLevelItemCount()):
            group = self.tree.topLevelItem(index)
            if group is None:
                continue
            entries = [entry for number in range(group.childCount()) if (entry := group.child(number)) is not None]
            for entry in entries:
                entry.setHidden(wanted not in f"{entry.text(0)} {entry.text(1)}".casefold())
            group.setHidden(all(entry.isHidden() for entry in entries))
