"""Everything one can act on in Replay, Management and Settings has a name for those who do not see it."""

from __future__ import annotations

import pytest
from gym_gui.testing import RunningDaemon
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.management.panel import DISK, FILTERS, SETS, WORKERS, ManagementPanel
from gym_gui.ui.management.settings_dialog import SettingsDialog
from gym_gui.ui.replay.replay_tab import ReplayTab
from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QAbstractSlider,
    QAbstractSpinBox,
    QComboBox,
    QHeaderView,
    QLineEdit,
    QPlainTextEdit,
    QScrollBar,
    QWidget,
)

CONTROLS = (QAbstractButton, QComboBox, QAbstractSpinBox, QLineEdit, QAbstractItemView, QAbstractSlider, QPlainTextEdit)
OWNERS = ("QAbstractSpinBox", "QComboBox", "QComboBoxPrivateContainer", "QTabBar", "QAbstractItemView")
"""Parts that Qt makes itself speak through these"""


def controls(top: QWidget) -> list[QWidget]:
    return [
        widget
        for widget in top.findChildren(QWidget)
        if isinstance(widget, CONTROLS)
        and not isinstance(widget, QHeaderView | QScrollBar)
        and not widget.objectName().startswith(("qt_", "banner_action"))  # a banner's is named when it has a text
        and not any(widget.parent().inherits(owner) for owner in OWNERS)
    ]


def nameless(top: QWidget) -> list[str]:
    """Those that have no name for a screen reader, or none for a script."""
    return [
        f"{type(widget).__name__} {widget.objectName()}"
        for widget in controls(top)
        if not (widget.accessibleName() and widget.objectName())
    ]


def unreachable(top: QWidget) -> list[str]:
    """Those that the Tab key passes over."""
    return [widget.objectName() for widget in controls(top) if not widget.focusPolicy() & Qt.FocusPolicy.TabFocus]


@pytest.fixture
def tops(qtbot, themed, link: DaemonLink, window_daemon: RunningDaemon) -> list[QWidget]:
    panel = ManagementPanel(link, link.background, window_daemon.home)
    for page in (WORKERS, SETS, DISK, FILTERS):
        panel.show_page(page)
    settings = SettingsDialog(link, link.background, window_daemon.home)
    replay = ReplayTab(link)
    assert replay.episodes is not None  # made when it is first asked for
    tops = [replay, panel, settings]
    for top in tops:
        qtbot.addWidget(top)
    settings.pages.setCurrentIndex(1)
    qtbot.waitUntil(lambda: settings.is_read, timeout=20_000)
    return tops


def test_every_control_has_a_name(tops: list[QWidget]) -> None:
    assert [nameless(top) for top in tops] == [[], [], []]


def test_every_control_is_reached_by_the_keyboard(tops: list[QWidget]) -> None:
    assert [unreachable(top) for top in tops] == [[], [], []]
