"""Secrets of the user instead of a run: the key for Weights & Biases that was entered in the window.

Kept in the OS keyring or, where there is none, in a 0600 file of the user's config folder; never under `var/`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mosaic_wire.errors import WireError
from mosaic_wire.files import read_json_object, write_json_atomically
from mosaic_wire.paths import config_home, make_private_folder

from gym_gui.services.trainer.errors import SecretStoreError
from gym_gui.services.trainer.keyring_process import Keyring, KeyringFailed

WANDB_API_KEY = "wandb_api_key"
_MOST_CHARACTERS = 4096


class UserSecrets:
    """get, put and delete by name. Asks the keyring in a process of its own: not for the window's thread."""

    def __init__(self, folder: Path | None = None, *, keyring: Keyring | None = None) -> None:
        self._folder = config_home() if folder is None else folder
        self._file = self._folder / "user_secrets.json"
        self._keyring = Keyring() if keyring is None else keyring

    def get(self, name: str) -> str:
        """Return the secret, or an empty text."""
        entry = self._read().get(name)
        if not isinstance(entry, dict):
            return ""
        if entry.get("store") == "keyring":
            try:
                return self._keyring.get(_keyring_name(name)) or ""
            except KeyringFailed as error:
                raise SecretStoreError(f"the keyring does not give out {name}: {error}") from error
        value = entry.get("value")
        return value if isinstance(value, str) else ""

    def place_of(self, name: str) -> str:
        """Return a description of where it is stored, or an empty text."""
        entry = self._read().get(name)
        if not isinstance(entry, dict):
            return ""
        return "the keyring" if entry.get("store") == "keyring" else str(self._file)

    def put(self, name: str, value: str) -> None:
        """Store a secret, replacing an earlier one of this name."""
        if not value or "\0" in value or "\n" in value or len(value) > _MOST_CHARACTERS:
            raise SecretStoreError(f"{name} must be one line of 1 to {_MOST_CHARACTERS} characters")
        entry: dict[str, Any] = {"store": "file", "value": value}
        if self._keyring.is_usable():
            try:
                self._keyring.set(_keyring_name(name), value)
            except KeyringFailed:
                pass  # locked or removed meanwhile: use the file
            else:
                entry = {"store": "keyring"}
        self._write({**self._read(), name: entry})

    def delete(self, name: str) -> None:
        """Delete a secret if it exists."""
        known = self._read()
        entry = known.pop(name, None)
        if entry is None:
            return
        if isinstance(entry, dict) and entry.get("store") == "keyring":
            try:
                self._keyring.delete(_keyring_name(name))
            except KeyringFailed as error:
                raise SecretStoreError(f"the keyring does not forget {name}: {error}") from error
        self._write(known)

    def _read(self) -> dict[str, Any]:
        if not os.path.lexists(self._file):
            return {}
        try:
            found = read_json_object(self._file).get("secrets")
        except (OSError, ValueError) as error:
            raise SecretStoreError(f"{error}; repair or remove {self._file}") from error
        if not isinstance(found, dict):
            raise SecretStoreError(f"{self._file} is damaged; repair or remove it")
        return found

    def _write(self, secrets: dict[str, Any]) -> None:
        try:
            make_private_folder(self._folder)
            write_json_atomically(self._file, {"version": 1, "secrets": secrets}, mode=0o600, sealed=True)
        except (OSError, WireError) as error:
            raise SecretStoreError(f"secrets cannot be stored in {self._folder}: {error}") from error


def _keyring_name(name: str) -> str:
    return f"user:{name}"
