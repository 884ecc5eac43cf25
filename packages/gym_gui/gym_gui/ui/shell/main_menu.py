"""Menus and toolbar of the main window, the list of shortcuts, and the choice of the worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from PySide6.QtCore import QCoreApplication, QObject, QSettings, Qt, Signal
from PySide6.QtGui import QAction, QActionGroup, QKeySequence, QStandardItem, QStandardItemModel
from PySide6.QtWidgets import (
    QComboBox,
    QDialog,
    QDialogButtonBox,
    QHBoxLayout,
    QHeaderView,
    QLineEdit,
    QMainWindow,
    QMenu,
    QMenuBar,
    QTreeWidget,
    QTreeWidgetItem,
    QVBoxLayout,
    QWidget,
)

from gym_gui.ui.shell.workspaces import WORKSPACES
from gym_gui.ui.theme import Appearance, ThemeChoice
from gym_gui.ui.widgets.parts import fill, named
from gym_gui.ui.workers.catalog import BUILTIN, WorkerEntry, find

Keys = QKeySequence.StandardKey


class Commands(Protocol):
    """What the menus can request from the window."""

    def new_run(self) -> None: ...
    def new_script_run(self) -> None: ...
    def new_sweep(self) -> None: ...
    def open_study(self) -> None: ...
    def import_runs(self) -> None: ...
    def connect_elsewhere(self) -> None: ...
    def show_settings(self) -> None: ...
    def close(self) -> bool: ...
    def find_run(self) -> None: ...
    def show_workspace(self, name: str) -> None: ...
    def arrange_runs(self, *, beside: bool) -> None: ...
    def reset_layout(self) -> None: ...
    def show_shortcuts(self) -> None: ...
    def show_documentation(self) -> None: ...
    def show_about(self) -> None: ...
    def run_menu_actions(self) -> Iterable[QAction]: ...


class MainMenu(QObject):
    """The menu bar. Every action has an objectName, for tests and assistive technology."""

    def __init__(self, window: QMainWindow, commands: Commands, appearance: Appearance, runs_list: QAction) -> None:
        super().__init__(window)
        self._window, self._commands, self._appearance = window, commands, appearance
        self._file_menu()
        self.run_menu = self._menu("run_menu", self.tr("&Run"))
        self.run_menu.aboutToShow.connect(self.refresh_run_menu)
        self.workspaces = QActionGroup(self)
        self._view_menu(runs_list)
        self._help_menu()

    # -- menus

    def _file_menu(self) -> None:
        menu, commands = self._menu("file_menu", self.tr("&File")), self._commands
        self.new_run = self._action("new_run", self.tr("&New run…"), commands.new_run, Keys.New)
        self.new_run.setToolTip(self.tr("Train, evaluate or play with the worker selected next to this button"))
        menu.addAction(self.new_run)
        menu.addAction(self._action("new_script_run", self.tr("New run of a &script…"), commands.new_script_run))
        menu.addAction(self._action("new_sweep", self.tr("New s&weep…"), commands.new_sweep))
        menu.addSeparator()
        menu.addAction(self._action("open_study", self.tr("&Open an Optuna study…"), commands.open_study))
        menu.addAction(self._action("import_runs", self.tr("&Import runs…"), commands.import_runs, "Ctrl+I"))
        menu.addSeparator()
        menu.addAction(self._action("connect", self.tr("&Connect to another daemon…"), commands.connect_elsewhere))
        menu.addAction(self._action("settings", self.tr("&Settings…"), commands.show_settings, "Ctrl+,"))
        menu.addSeparator()
        menu.addAction(self._action("quit", self.tr("&Quit"), commands.close, "Ctrl+Q"))

    def refresh_run_menu(self) -> None:
        """Fill the menu with the actions for the selected runs."""
        self.run_menu.clear()
        actions = list(self._commands.run_menu_actions())
        if actions:
            self.run_menu.addActions(actions)
        else:
            self.run_menu.addAction(self.tr("No run is selected")).setEnabled(False)

    def _view_menu(self, runs_list: QAction) -> None:
        menu, commands = self._menu("view_menu", self.tr("&View")), self._commands
        for workspace in WORKSPACES:
            title = QCoreApplication.translate("Workspaces", workspace.title)
            action = self._action(
                f"workspace_{workspace.name}",
                title,
                partial(commands.show_workspace, workspace.name),
                workspace.shortcut,
            )
            action.setCheckable(True)
            action.setData(workspace.name)
            self.workspaces.addAction(action)
            menu.addAction(action)
        menu.addSeparator()
        menu.addAction(self._action("find_run", self.tr("&Find a run"), commands.find_run, "Ctrl+Shift+F"))
        runs_list.setText(self.tr("&List of runs"))
        runs_list.setObjectName("toggle_runs_list")
        runs_list.setShortcut(QKeySequence("Ctrl+B"))
        menu.addAction(runs_list)
        menu.addAction(
            self._action("runs_above", self.tr("List &above the run"), lambda: commands.arrange_runs(beside=False))
        )
        menu.addAction(
            self._action("runs_beside", self.tr("List &beside the run"), lambda: commands.arrange_runs(beside=True))
        )
        menu.addAction(self._action("reset_layout", self.tr("R&eset layout"), commands.reset_layout))
        menu.addSeparator()
        menu.addMenu(self._theme_menu(menu))
        appearance = self._appearance
        menu.addAction(self._action("zoom_in", self.tr("&Larger text"), appearance.zoom_in, "Ctrl++", "Ctrl+="))
        menu.addAction(self._action("zoom_out", self.tr("&Smaller text"), appearance.zoom_out, "Ctrl+-"))
        menu.addAction(self._action("zoom_reset", self.tr("Reset &text size"), appearance.reset_zoom, "Ctrl+0"))

    def _theme_menu(self, parent: QMenu) -> QMenu:
        menu = named(QMenu(self.tr("&Theme"), parent), "theme_menu")
        group = QActionGroup(self)
        for choice, text in (
            (ThemeChoice.SYSTEM, self.tr("&System")),
            (ThemeChoice.LIGHT, self.tr("&Light")),
            (ThemeChoice.DARK, self.tr("&Dark")),
        ):
            action = self._action(f"theme_{choice.value}", text, partial(self._appearance.choose, choice))
            action.setCheckable(True)
            action.setChecked(choice is self._appearance.choice)
            group.addAction(action)
            menu.addAction(action)
        return menu

    def _help_menu(self) -> None:
        menu, commands = self._menu("help_menu", self.tr("&Help")), self._commands
        menu.addAction(self._action("shortcuts", self.tr("&Keyboard shortcuts"), commands.show_shortcuts, "F1"))
        menu.addAction(self._action("documentation", self.tr("&First steps and manual"), commands.show_documentation))
        menu.addAction(self._action("about", self.tr("&About MOSAIC"), commands.show_about))

    # -- construction

    def mark_workspace(self, name: str) -> None:
        for action in self.workspaces.actions():
            action.setChecked(action.data() == name)

    def _menu(self, name: str, title: str) -> QMenu:
        menu = self._window.menuBar().addMenu(title)
        menu.setObjectName(name)
        menu.setToolTipsVisible(True)
        return menu

    def _action(self, name: str, text: str, then: Callable[[], Any], *shortcuts: str | Keys) -> QAction:
        action = QAction(text, self)
        action.setObjectName(name)
        action.setShortcuts([QKeySequence(shortcut) for shortcut in shortcuts])
        action.triggered.connect(lambda: then())
        return action


def shortcuts_of(menu_bar: QMenuBar) -> Iterator[tuple[str, str, str]]:
    """Yield (menu, label, keys) of every action in the menus that has a shortcut."""
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
        self.search = named(QLineEdit(placeholderText=self.tr("Search"), clearButtonEnabled=True), "shortcuts_search")
        self.search.setAccessibleName(self.tr("Search the shortcuts"))
        self.search.textChanged.connect(self._filter)
        self.tree = named(QTreeWidget(), "shortcuts_list", self.tr("Shortcuts"))
        self.tree.setHeaderLabels([self.tr("Action"), self.tr("Keys")])
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
        fill(QVBoxLayout(self), self.search, (self.tree, 1), buttons)
        self.resize(self.fontMetrics().averageCharWidth() * 70, self.fontMetrics().height() * 32)

    def _of_parts(self) -> list[tuple[str, str, str]]:
        """Return the shortcuts of single widgets."""
        runs, logs, replay = self.tr("In the list of runs"), self.tr("In a log"), self.tr("In a video or an episode")
        play, policy, forms = self.tr("While playing"), self.tr("While watching a policy"), self.tr("In a form")
        return [
            (runs, self.tr("Filter"), "Ctrl+F"),
            (runs, self.tr("Open and close a group"), self.tr("Right, Left")),
            (logs, self.tr("Search"), "Ctrl+F"),
            (logs, self.tr("Next and previous match"), "F3, Shift+F3"),
            (logs, self.tr("To the beginning and the end"), "Ctrl+Home, Ctrl+End"),
            (replay, self.tr("Play and pause"), self.tr("Space")),
            (replay, self.tr("One frame back and forward"), self.tr("Left, Right")),
            (replay, self.tr("To the beginning and the end"), self.tr("Home, End")),
            (play, self.tr("New episode, end it, step once"), "F5, F6, F7"),
            (play, self.tr("Change the keys of the game"), "F8"),
            (policy, self.tr("Play and pause, new episode, step once"), "F5, F6, F7"),
            (forms, self.tr("Start"), "Ctrl+Return"),
        ]

    def _filter(self, text: str) -> None:
        requested = text.casefold()
        for index in range(self.tree.topLevelItemCount()):
            group = self.tree.topLevelItem(index)
            if group is None:
                continue
            entries = [entry for number in range(group.childCount()) if (entry := group.child(number)) is not None]
            for entry in entries:
                entry.setHidden(requested not in f"{entry.text(0)} {entry.text(1)}".casefold())
            group.setHidden(all(entry.isHidden() for entry in entries))


_DEFAULT = "cleanrl"
_KEY = "actor_selector/worker"


class ActorSelector(QWidget):
    """A combo box: the named workers, a separator, then all other installed ones. Hidden workers are omitted."""

    worker_chosen = Signal(object)  # WorkerEntry: another one than before

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._entries: tuple[WorkerEntry, ...] = ()
        self._settings = QSettings("MOSAIC", "mosaic")
        self._requested = str(self._settings.value(_KEY, _DEFAULT))
        """The user's choice, even while it is not selectable"""
        self.combo = named(QComboBox(self), "actor_selector", self.tr("Actor: what acts in a new run"))
        self.combo.setToolTip(self.tr("The actor of a new run"))
        self.combo.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        self._model = QStandardItemModel(self.combo)
        self.combo.setModel(self._model)
        fill(QHBoxLayout(self), self.combo, margins=(4, 0, 4, 0))
        self.setFocusProxy(self.combo)
        self.set_entries(BUILTIN, is_known=False)
        self.combo.currentIndexChanged.connect(self._choose)

    def set_entries(self, entries: Sequence[WorkerEntry], *, is_known: bool = True) -> None:
        """Offer these and keep the choice. Until the workers are known (`is_known`), all named ones are offered."""
        offered = [entry for entry in entries if entry.spec is None or not entry.spec.hidden]
        self._entries = tuple(offered)
        self.combo.blockSignals(True)
        self._model.clear()
        for entry in offered:
            if not entry.is_builtin and self._model.rowCount() == sum(other.is_builtin for other in offered):
                self.combo.insertSeparator(self.combo.count())
            self._model.appendRow(self._item(entry, can_be_chosen=entry.is_usable or not is_known))
        self._select(self._requested)
        self.combo.blockSignals(False)
        self._explain()

    def _item(self, entry: WorkerEntry, *, can_be_chosen: bool) -> QStandardItem:
        item = QStandardItem(entry.display_name)
        item.setData(entry.name, Qt.ItemDataRole.UserRole)
        if not can_be_chosen:
            # Disabled entries show the command in the list itself: a tooltip is easily overlooked.
            missing = self.tr("cannot be used") if entry.problem else entry.install_command
            item.setText(f"{entry.display_name}   ({missing})")
            item.setFlags(item.flags() & ~(Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsSelectable))
            item.setToolTip(entry.remedy)
            item.setData(entry.remedy, Qt.ItemDataRole.AccessibleDescriptionRole)
        return item

    def _select(self, name: str) -> None:
        """Select this entry if possible; else the CleanRL worker, else the first selectable one."""
        for requested in (name, _DEFAULT, *(entry.name for entry in self._entries)):
            place = self.combo.findData(requested, Qt.ItemDataRole.UserRole)
            if place >= 0 and self._model.item(place).isEnabled():
                self.combo.setCurrentIndex(place)
                return
        self.combo.setCurrentIndex(-1)

    def current_name(self) -> str:
        """Return the selected worker type; empty if none is selectable."""
        return str(self.combo.currentData(Qt.ItemDataRole.UserRole) or "")

    def current_entry(self) -> WorkerEntry | None:
        return find(self._entries, self.current_name())

    def _choose(self) -> None:
        self._explain()
        entry = self.current_entry()
        if entry is not None:
            self._requested = entry.name
            self._settings.setValue(_KEY, entry.name)
            self.worker_chosen.emit(entry)

    def _explain(self) -> None:
        entry = self.current_entry()
        lane = {
            "telemetry": self.tr("live, step by step"),
            "analytics": self.tr("curves, TensorBoard, W&B"),
            "hybrid": self.tr("live and analytics"),
        }
        text = f"{entry.display_name}: {lane[entry.lane.value]}" if entry is not None else ""
        self.combo.setToolTip(text or self.tr("The actor of a new run"))
