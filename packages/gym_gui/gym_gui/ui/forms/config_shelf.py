"""Presets a person has saved and configs they have submitted lately: kept between sessions, without secrets."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QSettings

from gym_gui.ui.presenters.workers.order import without_secrets

MOST_RECENT = 12


@dataclass(frozen=True)
class Recent:
    """A config that was submitted."""

    title: str
    when: float
    document: Any


class ConfigShelf:
    """Of one kind of form."""

    def __init__(self, form: str) -> None:
        self._settings = QSettings("MOSAIC", "mosaic")
        self._group = f"forms/{form}"

    def presets(self) -> dict[str, Any]:
        """By name."""
        found = self._read("presets")
        return found if isinstance(found, dict) else {}

    def save_preset(self, name: str, configs: Sequence[Mapping[str, Any]]) -> None:
        self._write("presets", {**self.presets(), name: _document(configs)})

    def delete_preset(self, name: str) -> None:
        self._write("presets", {known: value for known, value in self.presets().items() if known != name})

    def recent(self) -> list[Recent]:
        """Newest first."""
        found = self._read("recent")
        entries = found if isinstance(found, list) else []
        return [
            Recent(str(entry["title"]), float(entry["when"]), entry["document"])
            for entry in entries
            if isinstance(entry, dict) and {"title", "when", "document"} <= set(entry)
        ]

    def remember(self, title: str, configs: Sequence[Mapping[str, Any]], when: float | None = None) -> None:
        """Put a submitted config in front; the same one again moves there."""
        document = _document(configs)
        others = [entry for entry in self.recent() if entry.document != document][: MOST_RECENT - 1]
        newest = Recent(title, time.time() if when is None else when, document)
        self._write("recent", [vars(entry) for entry in (newest, *others)])

    def _read(self, key: str) -> Any:
        try:
            return json.loads(str(self._settings.value(f"{self._group}/{key}", "null")))
        except ValueError:
            return None  # somebody edited the file; what cannot be read is not there

    def _write(self, key: str, value: Any) -> None:
        self._settings.setValue(f"{self._group}/{key}", json.dumps(value))


def _document(configs: Sequence[Mapping[str, Any]]) -> Any:
    clean = [without_secrets(config) for config in configs]
    return clean[0] if len(clean) == 1 else clean
