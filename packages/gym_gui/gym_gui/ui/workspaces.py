"""The workspaces of the window in their order: what each is called, its shortcut, and how it is built.

A new one is a line in `WORKSPACES` and a function here; it is built when somebody first goes there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mosaic_wire.paths import Home
from PySide6.QtCore import QT_TRANSLATE_NOOP
from PySide6.QtWidgets import QWidget

from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink

OpenRun = Callable[[str], None]
Builder = Callable[[DaemonLink, Background, Home | None, QWidget, OpenRun], QWidget]


@dataclass(frozen=True)
class Workspace:
    name: str
    title: str
    shortcut: str
    build: Builder | None = None
    """None: the window builds it itself"""


def _compare(
    link: DaemonLink, background: Background, home: Home | None, parent: QWidget, open_run: OpenRun
) -> QWidget:
    from gym_gui.ui.panels.compare_panel import ComparePanel

    panel = ComparePanel(link, background, home, parent)
    panel.run_opened.connect(open_run)
    return panel


def _play(link: DaemonLink, background: Background, home: Home | None, parent: QWidget, open_run: OpenRun) -> QWidget:
    from gym_gui.ui.panels.human_panel import HumanPanel

    panel = HumanPanel(link, background, home, parent)
    panel.run_wanted.connect(open_run)
    return panel


def _policy(link: DaemonLink, background: Background, home: Home | None, parent: QWidget, open_run: OpenRun) -> QWidget:
    from gym_gui.ui.panels.policy_panel import PolicyPanel

    panel = PolicyPanel(link, background, home, parent)
    panel.run_wanted.connect(open_run)
    return panel


def _management(
    link: DaemonLink, background: Background, home: Home | None, parent: QWidget, open_run: OpenRun
) -> QWidget:
    from gym_gui.ui.panels.management_panel import ManagementPanel

    panel = ManagementPanel(link, background, home, parent)
    panel.run_opened.connect(open_run)
    return panel


RUNS, COMPARE, PLAY, POLICY, MANAGEMENT = "runs", "compare", "play", "policy", "management"

WORKSPACES = (
    Workspace(RUNS, str(QT_TRANSLATE_NOOP("Workspaces", "&Runs")), "Ctrl+1"),
    Workspace(COMPARE, str(QT_TRANSLATE_NOOP("Workspaces", "&Compare")), "Ctrl+5", _compare),
    Workspace(PLAY, str(QT_TRANSLATE_NOOP("Workspaces", "&Play")), "Ctrl+2", _play),
    Workspace(POLICY, str(QT_TRANSLATE_NOOP("Workspaces", "&Watch a policy")), "Ctrl+3", _policy),
    Workspace(MANAGEMENT, str(QT_TRANSLATE_NOOP("Workspaces", "&Management")), "Ctrl+4", _management),
)
