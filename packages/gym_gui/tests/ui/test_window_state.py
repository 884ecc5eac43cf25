"""The layout comes back, unless it is of another version or was reset."""

from __future__ import annotations

from gym_gui.ui.shell import main_window as window_state
from PySide6.QtCore import QSettings, Qt
from PySide6.QtWidgets import QDockWidget, QLabel, QMainWindow


def window_with_dock(qtbot, area: Qt.DockWidgetArea) -> tuple[QMainWindow, QDockWidget]:
    window, dock = QMainWindow(), QDockWidget("list")
    qtbot.addWidget(window)
    dock.setObjectName("list")
    dock.setWidget(QLabel("list"))
    window.setCentralWidget(QLabel("center"))
    window.addDockWidget(area, dock)
    window.resize(700, 500)
    return window, dock


def test_size_and_docks_come_back(qtbot) -> None:
    first, _ = window_with_dock(qtbot, Qt.DockWidgetArea.LeftDockWidgetArea)
    window_state.save_layout(first, first)
    second, dock = window_with_dock(qtbot, Qt.DockWidgetArea.TopDockWidgetArea)
    second.resize(300, 200)
    assert window_state.restore_geometry(second)
    assert window_state.restore_docks(second)
    assert second.size() == first.size()
    assert second.dockWidgetArea(dock) == Qt.DockWidgetArea.LeftDockWidgetArea


def test_a_layout_of_another_version_is_left_alone(qtbot) -> None:
    first, _ = window_with_dock(qtbot, Qt.DockWidgetArea.LeftDockWidgetArea)
    window_state.save_layout(first, first)
    QSettings("MOSAIC", "mosaic").setValue("window/version", window_state.LAYOUT_VERSION + 1)
    second, dock = window_with_dock(qtbot, Qt.DockWidgetArea.TopDockWidgetArea)
    assert not window_state.restore_geometry(second)
    assert not window_state.restore_docks(second)
    assert second.dockWidgetArea(dock) == Qt.DockWidgetArea.TopDockWidgetArea


def test_reset_forgets_the_layout_and_nothing_else(qtbot) -> None:
    first, _ = window_with_dock(qtbot, Qt.DockWidgetArea.LeftDockWidgetArea)
    window_state.save_layout(first, first)
    QSettings("MOSAIC", "mosaic").setValue("appearance/theme", "dark")
    window_state.forget_layout()
    assert not window_state.restore_docks(first)
    assert QSettings("MOSAIC", "mosaic").value("appearance/theme") == "dark"


def test_a_damaged_file_of_settings_is_no_layout(qtbot) -> None:
    settings = QSettings("MOSAIC", "mosaic")
    settings.setValue("window/version", window_state.LAYOUT_VERSION)
    settings.setValue("window/geometry", "not a geometry")
    settings.setValue("window/docks", 7)
    window, _ = window_with_dock(qtbot, Qt.DockWidgetArea.LeftDockWidgetArea)
    assert not window_state.restore_geometry(window)
    assert not window_state.restore_docks(window)
