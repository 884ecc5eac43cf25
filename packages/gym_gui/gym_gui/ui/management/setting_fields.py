"""The daemon's settings as a form needs them: what each means, how it is typed, how it is written back. No widgets."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from PySide6.QtCore import QCoreApplication


def QT_TRANSLATE_NOOP(_context: str, text: str) -> str:
    """Marks a text that is translated where it is shown."""
    return text


class FieldKind(Enum):
    NUMBER = "number"
    WHOLE = "whole number"
    TEXT = "text"
    FILE = "file"
    FOLDER = "folder"
    FOLDERS = "folders"
    COMMAND = "command"


@dataclass(frozen=True)
class SettingField:
    """One setting: its key in `settings.toml`, a name for people, and a sentence."""

    key: str
    title: str
    help: str
    kind: FieldKind
    unit: str = ""

    @property
    def said_title(self) -> str:
        return QCoreApplication.translate("SettingFields", self.title)

    @property
    def said_help(self) -> str:
        return QCoreApplication.translate("SettingFields", self.help).replace("%SEP%", os.pathsep)


@dataclass(frozen=True)
class SettingGroup:
    title: str
    fields: tuple[SettingField, ...]


_K = FieldKind
GROUPS = (
    SettingGroup(
        QT_TRANSLATE_NOOP("SettingFields", "Watching workers"),
        (
            SettingField(
                "heartbeat_s",
                QT_TRANSLATE_NOOP("SettingFields", "Heartbeat"),
                QT_TRANSLATE_NOOP("SettingFields", "How often workers say that they live."),
                _K.NUMBER,
                "s",
            ),
            SettingField(
                "silence_s",
                QT_TRANSLATE_NOOP("SettingFields", "Silence limit"),
                QT_TRANSLATE_NOOP(
                    "SettingFields",
                    "A running worker that is silent for longer is faulted; at least twice the heartbeat.",
                ),
                _K.NUMBER,
                "s",
            ),
            SettingField(
                "handshake_s",
                QT_TRANSLATE_NOOP("SettingFields", "Start limit"),
                QT_TRANSLATE_NOOP("SettingFields", "A started worker that has not registered by then is faulted."),
                _K.NUMBER,
                "s",
            ),
            SettingField(
                "grace_s",
                QT_TRANSLATE_NOOP("SettingFields", "Grace"),
                QT_TRANSLATE_NOOP("SettingFields", "Between asking a worker to end and ending it."),
                _K.NUMBER,
                "s",
            ),
        ),
    ),
    SettingGroup(
        QT_TRANSLATE_NOOP("SettingFields", "What runs may use"),
        (
            SettingField(
                "cpus",
                QT_TRANSLATE_NOOP("SettingFields", "CPUs"),
                QT_TRANSLATE_NOOP("SettingFields", "How many to give away; empty: as the machine has them."),
                _K.NUMBER,
            ),
            SettingField(
                "memory_mb",
                QT_TRANSLATE_NOOP("SettingFields", "Memory"),
                QT_TRANSLATE_NOOP("SettingFields", "How much to give away; empty: as the machine has it."),
                _K.WHOLE,
                "MB",
            ),
            SettingField(
                "max_processes",
                QT_TRANSLATE_NOOP("SettingFields", "Processes"),
                QT_TRANSLATE_NOOP("SettingFields", "Processes and threads of one run."),
                _K.WHOLE,
            ),
            SettingField(
                "log_cap_mb",
                QT_TRANSLATE_NOOP("SettingFields", "Log size"),
                QT_TRANSLATE_NOOP("SettingFields", "Of all logs of a run together; older output is dropped."),
                _K.WHOLE,
                "MB",
            ),
            SettingField(
                "min_free_disk_mb",
                QT_TRANSLATE_NOOP("SettingFields", "Free disk"),
                QT_TRANSLATE_NOOP("SettingFields", "With less, queued runs wait."),
                _K.WHOLE,
                "MB",
            ),
            SettingField(
                "min_free_memory_mb",
                QT_TRANSLATE_NOOP("SettingFields", "Free memory"),
                QT_TRANSLATE_NOOP("SettingFields", "With less, queued runs wait."),
                _K.WHOLE,
                "MB",
            ),
        ),
    ),
    SettingGroup(
        QT_TRANSLATE_NOOP("SettingFields", "Reaching the daemon"),
        (
            SettingField(
                "listen",
                QT_TRANSLATE_NOOP("SettingFields", "Address"),
                QT_TRANSLATE_NOOP(
                    "SettingFields",
                    "TCP address to listen on; empty: only the unix socket. Beyond this machine TLS is needed.",
                ),
                _K.TEXT,
            ),
            SettingField(
                "port",
                QT_TRANSLATE_NOOP("SettingFields", "Port"),
                QT_TRANSLATE_NOOP("SettingFields", "TCP port; 0: any free one."),
                _K.WHOLE,
            ),
            SettingField(
                "tls_cert",
                QT_TRANSLATE_NOOP("SettingFields", "Certificate"),
                QT_TRANSLATE_NOOP("SettingFields", "A PEM file; its key belongs to it."),
                _K.FILE,
            ),
            SettingField(
                "tls_key",
                QT_TRANSLATE_NOOP("SettingFields", "Key"),
                QT_TRANSLATE_NOOP("SettingFields", "The private key of the certificate."),
                _K.FILE,
            ),
        ),
    ),
    SettingGroup(
        QT_TRANSLATE_NOOP("SettingFields", "When a run ends"),
        (
            SettingField(
                "on_end_command",
                QT_TRANSLATE_NOOP("SettingFields", "Command"),
                QT_TRANSLATE_NOOP("SettingFields", "Program and arguments to start; facts come as JSON on its input."),
                _K.COMMAND,
            ),
            SettingField(
                "on_end_webhook",
                QT_TRANSLATE_NOOP("SettingFields", "Webhook"),
                QT_TRANSLATE_NOOP("SettingFields", "An http(s) address that gets the same JSON by POST."),
                _K.TEXT,
            ),
        ),
    ),
    SettingGroup(
        QT_TRANSLATE_NOOP("SettingFields", "Scripts"),
        (
            SettingField(
                "custom_scripts",
                QT_TRANSLATE_NOOP("SettingFields", "Script folders"),
                QT_TRANSLATE_NOOP(
                    "SettingFields",
                    "Folders that custom scripts may be run from, parted by %SEP%, besides the home's own.",
                ),
                _K.FOLDERS,
            ),
            SettingField(
                "cleanrl_home",
                QT_TRANSLATE_NOOP("SettingFields", "CleanRL checkout"),
                QT_TRANSLATE_NOOP("SettingFields", "For runs of CleanRL's own scripts; CLEANRL_HOME wins over it."),
                _K.FOLDER,
            ),
        ),
    ),
)
FIELDS: Mapping[str, SettingField] = {field.key: field for group in GROUPS for field in group.fields}


def to_text(value: Any, kind: FieldKind) -> str:
    """A setting as it stands in its field; nothing: empty."""
    if value is None or value == ():
        return ""
    if kind is FieldKind.COMMAND:
        return shlex.join(value)
    if kind is FieldKind.FOLDERS:
        return os.pathsep.join(map(str, value))
    return f"{value:g}" if kind is FieldKind.NUMBER else str(value)


def from_text(text: str, kind: FieldKind) -> Any:
    """What a person typed, as `settings.toml` holds it; None: the default. ValueError says what was expected."""
    text = text.strip()
    if not text:
        return None
    if kind is FieldKind.NUMBER:
        try:
            return float(text)
        except ValueError:
            raise ValueError(f"expected a number, got {text!r}") from None
    if kind is FieldKind.WHOLE:
        try:
            return int(text)
        except ValueError:
            raise ValueError(f"expected a whole number, got {text!r}") from None
    if kind is FieldKind.COMMAND:
        try:
            return shlex.split(text)
        except ValueError:
            raise ValueError("a quotation mark is not closed") from None
    if kind is FieldKind.FOLDERS:
        return [str(Path(part).expanduser()) for part in text.split(os.pathsep) if part]
    return text
