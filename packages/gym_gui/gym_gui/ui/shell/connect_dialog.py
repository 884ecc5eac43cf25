"""File → Connect: open another window, on the daemon of a profile of the settings."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from PySide6.QtCore import QProcess
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QLabel, QListWidget, QVBoxLayout, QWidget

from gym_gui.config.settings import settings_file
from gym_gui.ui.widgets.parts import fill, named


class ConnectDialog(QDialog):
    """A list of profiles; the chosen one opens in a window of its own, this one stays connected."""

    def __init__(self, profiles: Iterable[str], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("connect_dialog")
        self.setWindowTitle(self.tr("Connect to another daemon"))
        self.profiles = named(QListWidget(), "profiles", self.tr("Daemons of the settings"))
        self.profiles.addItems(sorted(profiles))
        self.profiles.setCurrentRow(0)
        self.profiles.itemActivated.connect(self.accept)
        text = self.tr(
            'A daemon on another machine is written into {file}:\n\n[daemons.gpu]\nconnect = "server:50055"\n'
            'token_file = "/home/me/token"\ntls_ca = "/home/me/cert.pem"'
        )
        about = QLabel(text.format(file=settings_file()), wordWrap=True)
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Open | QDialogButtonBox.StandardButton.Cancel)
        buttons.accepted.connect(self.accept)
        buttons.rejected.connect(self.reject)
        buttons.button(QDialogButtonBox.StandardButton.Open).setEnabled(self.profiles.count() > 0)
        fill(QVBoxLayout(self), self.profiles, about, buttons)
        self.accepted.connect(self._open)

    def _open(self) -> None:
        item = self.profiles.currentItem()
        if item is not None:
            QProcess.startDetached(sys.executable, ["-m", "gym_gui", "gui", "--connect", item.text()])
