"""Entering the key for Weights & Biases: one line that opens below the buttons. It goes to the secret store.

The key is never read back into the window, never written into a setting, a config or `var/`.
"""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QLineEdit, QVBoxLayout, QWidget

from gym_gui.services.trainer.errors import SecretStoreError
from gym_gui.services.user_secrets import WANDB_API_KEY, UserSecrets
from gym_gui.ui.background import Background
from gym_gui.ui.widgets.command_button import named_button


class WandbKeyEntry(QFrame):
    """A field for the key, Keep and Forget. `kept` tells that there is a key now."""

    kept = Signal()
    forgotten = Signal()

    def __init__(self, background: Background, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("wandb_key_entry")
        self.setProperty("role", "card")
        self._background = background
        self.field = QLineEdit()
        self.field.setObjectName("wandb_key")
        self.field.setAccessibleName(self.tr("API key of Weights & Biases"))
        self.field.setEchoMode(QLineEdit.EchoMode.Password)
        self.field.setPlaceholderText(self.tr("API key, from wandb.ai/authorize"))
        self.field.setMaxLength(4096)
        self.field.returnPressed.connect(self._keep)
        self.keep_button = named_button("wandb_key_keep", self.tr("&Keep"), self.tr("Keep the key in the secret store"))
        self.keep_button.clicked.connect(self._keep)
        self.keep_button.setEnabled(False)
        self.field.textChanged.connect(lambda text: self.keep_button.setEnabled(bool(text.strip())))
        self.forget_button = named_button(
            "wandb_key_forget", self.tr("&Forget the key"), self.tr("Remove the key that is kept")
        )
        self.forget_button.clicked.connect(self._forget)
        self.close_button = named_button("wandb_key_close", self.tr("Close"), self.tr("Close without keeping a key"))
        self.close_button.clicked.connect(self.close_entry)
        self.words = QLabel()
        self.words.setObjectName("wandb_key_words")
        self.words.setWordWrap(True)
        self.words.setProperty("role", "caption")
        line = QHBoxLayout()
        line.addWidget(self.field, 1)
        for button in (self.keep_button, self.forget_button, self.close_button):
            line.addWidget(button)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(10, 8, 10, 8)
        layout.addLayout(line)
        layout.addWidget(self.words)
        self.hide()

    def open_entry(self, place: str) -> None:
        """Show it; `place` says where a key was found, empty when there is none."""
        self.field.clear()
        found = self.tr("A key was found in {place}; one entered here comes before it.").format(place=place)
        self._say(
            (f"{found} " if place else "")
            + self.tr("It is kept in the keyring or, without one, in a file only you can read; never with your runs.")
        )
        self.show()
        self.field.setFocus()

    def close_entry(self) -> None:
        self.field.clear()
        self.hide()

    def _keep(self) -> None:
        key = self.field.text().strip()
        if not key:
            return
        self.field.clear()
        self.setEnabled(False)
        self._run(lambda: UserSecrets().put(WANDB_API_KEY, key), self._kept)

    def _kept(self) -> None:
        self.hide()
        self.kept.emit()

    def _forget(self) -> None:
        self.setEnabled(False)
        self._run(lambda: UserSecrets().delete(WANDB_API_KEY), self._forgotten)

    def _forgotten(self) -> None:
        self._say(self.tr("No key is kept here any more."))
        self.forgotten.emit()

    def _run(self, do: Callable[[], None], done: Callable[[], None]) -> None:
        def finish(_result: object) -> None:
            self.setEnabled(True)
            done()

        def failed(error: Exception) -> None:
            if not isinstance(error, SecretStoreError):
                raise error
            self.setEnabled(True)
            self._say(str(error), is_problem=True)

        self._background.run(do, owner=self, done=finish, failed=failed)

    def _say(self, words: str, *, is_problem: bool = False) -> None:
        self.words.setText(words)
        self.words.setProperty("role", "problem" if is_problem else "caption")
        self.words.style().unpolish(self.words)
        self.words.style().polish(self.words)
