"""The menu of saved filters: those of the daemon, which `mosaic runs --filter` knows as well."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QInputDialog, QMenu, QWidget

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.runs.filtering import RunFilter


class SavedFilters(QMenu):
    """Choose one, save the present one, forget one."""

    chosen = Signal(object)  # RunFilter
    said = Signal(str, str)

    def __init__(self, link: DaemonLink, parent: QWidget) -> None:
        super().__init__(parent)
        self.setObjectName("saved_filters_menu")
        self._link = link
        self._saved: dict[str, RunFilter] = {}
        self.present = RunFilter()
        """The filter that would be saved now"""
        self.aboutToShow.connect(self._fill)
        link.state_changed.connect(lambda: self.load())
        self.load()

    @property
    def names(self) -> list[str]:
        return sorted(self._saved, key=str.lower)

    def load(self) -> None:
        """Ask the daemon which there are."""
        if self._link.is_connected:
            self._call(lambda client: None)

    def save(self, name: str) -> None:
        """Keep the present filter under a name; one of that name is replaced."""
        query = self.present.to_query()
        self._call(
            lambda client: client.save_filter(name.strip(), query), self.tr("The filter “{0}” was saved.").format(name)
        )

    def forget(self, name: str) -> None:
        self._call(lambda client: client.delete_filter(name), self.tr("The filter “{0}” was removed.").format(name))

    def _call(self, change: Any, words: str = "") -> None:
        def work(client: TrainerClient) -> dict[str, dict[str, Any]]:
            change(client)
            return client.filters()

        def done(saved: dict[str, dict[str, Any]]) -> None:
            self._saved = {name: RunFilter.from_query(query) for name, query in saved.items()}
            if words:
                self.said.emit(words, "info")

        self._link.call(work, owner=self, done=done, failed=lambda problem: self.said.emit(problem, "bad"))

    def _fill(self) -> None:
        self.clear()
        for name in self.names:
            kept = self._saved[name]
            action = self.addAction(name.replace("&", "&&"))
            action.setToolTip(kept.text)
            action.setCheckable(True)
            action.setChecked(kept == self.present)
            action.triggered.connect(lambda checked=False, kept=kept: self.chosen.emit(kept))
        if not self._saved:
            self.addAction(self.tr("No saved filters yet")).setEnabled(False)
        self.addSeparator()
        save = self.addAction(self.tr("&Save this filter…"))
        save.setObjectName("save_filter")
        save.setEnabled(self.present.is_active)
        if not self.present.is_active:
            save.setToolTip(self.tr("Type a filter or tick a value first"))
        save.triggered.connect(lambda: self._ask_name())
        if self._saved:
            removal = self.addMenu(self.tr("&Remove"))
            for name in self.names:
                removal.addAction(name.replace("&", "&&")).triggered.connect(
                    lambda checked=False, name=name: self.forget(name)
                )
        self.setToolTipsVisible(True)

    def _ask_name(self) -> None:
        dialog = QInputDialog(self.parentWidget())
        dialog.setObjectName("save_filter_dialog")
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.setWindowTitle(self.tr("Save filter"))
        dialog.setLabelText(self.tr("Name of the filter:"))
        dialog.textValueSelected.connect(lambda name: self.save(name) if name.strip() else None)
        dialog.open()
