"""Menus and tool bar of the main window: actions as a table, so that Help can list them and nothing is wired twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from PySide6.QtCore import QCoreApplication, QObject
from PySide6.QtGui import QAction, QActionGroup, QKeySequence
from PySide6.QtWidgets import QMainWindow, QMenu

from gym_gui.ui.appearance import Appearance
from gym_gui.ui.theme import ThemeChoice
from gym_gui.ui.workspaces import WORKSPACES

Keys = QKeySequence.StandardKey


class Commands(Protocol):
    """What the menus can ask of the window."""

    def new_run(self) -> None: ...
    def new_script_run(self) -> None: ...
    def new_sweep(self) -> None: ...
    def open_study(self) -> None: ...
    def import_runs(self) -> None: ...
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
    """The menu bar. Every action has an objectName, so that tests and assistive programs find it."""

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
        self.new_run.setToolTip(self.tr("Train, evaluate or play with the worker chosen beside this button"))
        menu.addAction(self.new_run)
        menu.addAction(self._action("new_script_run", self.tr("New run of a &script…"), commands.new_script_run))
        menu.addAction(self._action("new_sweep", self.tr("New s&weep…"), commands.new_sweep))
        menu.addSeparator()
        menu.addAction(self._action("open_study", self.tr("&Open a study of Optuna…"), commands.open_study))
        menu.addAction(self._action("import_runs", self.tr("&Import runs…"), commands.import_runs, "Ctrl+I"))
        menu.addSeparator()
        menu.addAction(self._action("settings", self.tr("&Settings…"), commands.show_settings, "Ctrl+,"))
        menu.addSeparator()
        menu.addAction(self._action("quit", self.tr("&Quit"), commands.close, "Ctrl+Q"))

    def refresh_run_menu(self) -> None:
        """What can be done with the chosen runs now."""
        self.run_menu.clear()
        actions = list(self._commands.run_menu_actions())
        if actions:
            self.run_menu.addActions(actions)
        else:
            self.run_menu.addAction(self.tr("No run is chosen")).setEnabled(False)

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
        menu = QMenu(self.tr("&Theme"), parent)
        menu.setObjectName("theme_menu")
        group = QActionGroup(self)
        for choice, text in (
            (ThemeChoice.SYSTEM, self.tr("As the &system")),
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

    # -- how they are made

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
