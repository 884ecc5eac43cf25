"""Management: the daemon, workers, requirement sets, disk use, saved filters, and the way to the settings."""

from __future__ import annotations

from collections.abc import Callable

from mosaic_wire.paths import Home
from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QPushButton, QTabWidget, QVBoxLayout, QWidget

from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.management.daemon_control import DaemonControl

DAEMON, WORKERS, SETS, DISK, FILTERS = "daemon", "workers", "sets", "disk", "filters"


class ManagementPanel(QWidget):
    """Pages that are built when somebody first goes there."""

    run_opened = Signal(str)

    def __init__(
        self, link: DaemonLink, background: Background, home: Home | None, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setObjectName("management_panel")
        self._link, self._background, self._home = link, background, home
        self.control = DaemonControl(link, home, self)
        self.pages = QTabWidget()
        self.pages.setObjectName("management_pages")
        self.pages.setDocumentMode(True)
        self._builders: dict[str, Callable[[], QWidget]] = {
            DAEMON: self._daemon, WORKERS: self._workers, SETS: self._sets, DISK: self._disk, FILTERS: self._filters,
        }  # fmt: skip
        titles = {
            DAEMON: self.tr("&Daemon"), WORKERS: self.tr("&Workers"), SETS: self.tr("Requirement &sets"),
            DISK: self.tr("Disk &use"), FILTERS: self.tr("Saved f&ilters"),
        }  # fmt: skip
        self._built: dict[str, QWidget] = {}
        self._holders: list[QVBoxLayout] = []
        for name in self._builders:
            holder = QWidget()
            layout = QVBoxLayout(holder)
            layout.setContentsMargins(0, 0, 0, 0)
            self._holders.append(layout)
            self.pages.addTab(holder, titles[name])
        self.settings_button = QPushButton(self.tr("S&ettings…"))
        self.settings_button.setObjectName("open_settings")
        self.settings_button.setAccessibleName(self.tr("Settings"))
        self.settings_button.clicked.connect(self.open_settings)
        self.pages.setCornerWidget(self.settings_button, Qt.Corner.TopRightCorner)
        self.pages.currentChanged.connect(self._build_page)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self.pages)
        self._build_page(0)

    def show_page(self, name: str) -> QWidget:
        """Go to a page by its name; return its widget."""
        self.pages.setCurrentIndex(list(self._builders).index(name))
        return self._built[name]

    def open_settings(self) -> None:
        from gym_gui.ui.widgets.settings_dialog import SettingsDialog

        SettingsDialog(self._link, self._background, self._home, self).open()

    def _build_page(self, index: int) -> None:
        name = list(self._builders)[index]
        if name not in self._built:
            self._built[name] = self._builders[name]()
            self._holders[index].addWidget(self._built[name])

    def _daemon(self) -> QWidget:
        from gym_gui.ui.widgets.daemon_page import DaemonPage

        return DaemonPage(self._link, self.control, self._home)

    def _workers(self) -> QWidget:
        from gym_gui.ui.widgets.workers_page import WorkersPage

        return WorkersPage(self._link)

    def _sets(self) -> QWidget:
        from gym_gui.ui.widgets.sets_table import SetsTable

        return SetsTable(self._link, self._background, self._home)

    def _disk(self) -> QWidget:
        from gym_gui.ui.widgets.disk_use import DiskUse

        page = DiskUse(self._link, self._background, self._home)
        page.run_opened.connect(self.run_opened)
        return page

    def _filters(self) -> QWidget:
        from gym_gui.ui.widgets.filters_page import FiltersPage

        return FiltersPage(self._link)
