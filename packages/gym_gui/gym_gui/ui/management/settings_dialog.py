"""Settings of the window, which apply immediately, and of the daemon, which reads them when it starts."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from mosaic_wire.errors import ConfigProblems
from mosaic_wire.paths import Home
from PySide6.QtCore import QCoreApplication, Qt, QTimer
from PySide6.QtWidgets import (
    QApplication,
    QCheckBox,
    QComboBox,
    QDialog,
    QDialogButtonBox,
    QFormLayout,
    QGroupBox,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QScrollArea,
    QTabWidget,
    QVBoxLayout,
    QWidget,
)

from gym_gui.config.settings import Settings, change_settings, load_settings, settings_file
from gym_gui.ui.background import Background, defer
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.management.daemon_control import DaemonControl
from gym_gui.ui.settings import notifies, set_notifies
from gym_gui.ui.theme import ZOOM_STEPS, Appearance, ThemeChoice
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.parts import caption, fill, named, scrolled
from gym_gui.ui.workers.translation import QT_TRANSLATE_NOOP


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
    """One setting: its key in `settings.toml`, a name for users, and a sentence."""

    key: str
    kind: FieldKind
    title: str
    help: str
    unit: str = ""

    @property
    def shown_title(self) -> str:
        return QCoreApplication.translate("SettingFields", self.title)

    @property
    def shown_help(self) -> str:
        return QCoreApplication.translate("SettingFields", self.help).replace("%SEP%", os.pathsep)


_, _F, _K = partial(QT_TRANSLATE_NOOP, "SettingFields"), SettingField, FieldKind
GROUPS = {
    _("Supervision of workers"): (
        _F("heartbeat_s", _K.NUMBER, _("Heartbeat"), _("How often workers send a heartbeat."), "s"),
        _F(
            "silence_s",
            _K.NUMBER,
            _("Silence limit"),
            _("A worker that sends no heartbeat for longer is faulted; at least twice the heartbeat."),
            "s",
        ),
        _F(
            "handshake_s",
            _K.NUMBER,
            _("Start limit"),
            _("A started worker that has not registered by then is faulted."),
            "s",
        ),
        _F("grace_s", _K.NUMBER, _("Grace"), _("Between asking a worker to exit and killing it."), "s"),
    ),
    _("Limits of runs"): (
        _F("cpus", _K.NUMBER, _("CPUs"), _("Available to runs; empty: all of the machine.")),
        _F("memory_mb", _K.WHOLE, _("Memory"), _("Available to runs; empty: all of the machine."), "MB"),
        _F("max_processes", _K.WHOLE, _("Processes"), _("Processes and threads of one run.")),
        _F("log_cap_mb", _K.WHOLE, _("Log size"), _("Limit for all logs of a run; older output is dropped."), "MB"),
        _F("min_free_disk_mb", _K.WHOLE, _("Free disk"), _("With less, queued runs wait."), "MB"),
        _F("min_free_memory_mb", _K.WHOLE, _("Free memory"), _("With less, queued runs wait."), "MB"),
    ),
    _("Network"): (
        _F(
            "listen",
            _K.TEXT,
            _("Address"),
            _("TCP address to listen on; empty: only the unix socket. TLS is required for other machines."),
        ),
        _F("port", _K.WHOLE, _("Port"), _("TCP port; 0: any free one.")),
        _F("tls_cert", _K.FILE, _("Certificate"), _("A PEM file with the TLS certificate.")),
        _F("tls_key", _K.FILE, _("Key"), _("The private key of the certificate.")),
    ),
    _("When a run ends"): (
        _F(
            "on_end_command",
            _K.COMMAND,
            _("Command"),
            _("Program and arguments to start; it gets the facts of the run as JSON on stdin."),
        ),
        _F("on_end_webhook", _K.TEXT, _("Webhook"), _("An http(s) address that gets the same JSON by POST.")),
    ),
    _("Scripts"): (
        _F(
            "custom_scripts",
            _K.FOLDERS,
            _("Script folders"),
            _("Folders that custom scripts may be run from, separated by %SEP%, besides the home's own."),
        ),
        _F(
            "cleanrl_home",
            _K.FOLDER,
            _("CleanRL checkout"),
            _("For runs of CleanRL's own scripts; CLEANRL_HOME takes precedence."),
        ),
    ),
}
FIELDS: Mapping[str, SettingField] = {field.key: field for group in GROUPS.values() for field in group}


def to_text(value: Any, kind: FieldKind) -> str:
    """Return a setting as text for its field; None: empty."""
    if value is None or value == ():
        return ""
    if kind is FieldKind.COMMAND:
        return shlex.join(value)
    if kind is FieldKind.FOLDERS:
        return os.pathsep.join(map(str, value))
    return f"{value:g}" if kind is FieldKind.NUMBER else str(value)


def from_text(text: str, kind: FieldKind) -> Any:
    """Parse a field for `settings.toml`; None: the default. ValueError names what was expected."""
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


_DAEMON_PAGE = 1


class SettingsDialog(QDialog):
    """Modal to its window only; errors are shown next to their fields."""

    def __init__(
        self,
        link: DaemonLink,
        background: Background,
        home: Home | None,
        parent: QWidget | None = None,
        *,
        appearance: Appearance | None = None,
    ) -> None:
        super().__init__(parent)
        self.setObjectName("settings_dialog")
        self.setWindowTitle(self.tr("Settings"))
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self._link, self._background, self._home = link, background, home
        self._appearance = appearance or _appearance_of_application(self)
        self._control = DaemonControl(link, home, self)
        self._before = Settings()
        self._area: QScrollArea | None = None
        self._is_daemon_page_begun = False
        self.is_read = False
        """Whether the daemon's page has its fields and values; they are built when it is first shown"""
        self.edits: dict[str, QLineEdit] = {}
        self.errors: dict[str, QLabel] = {}
        self.banner = Banner(parent=self)
        self._control.busy_changed.connect(lambda text: self.banner.set_message(text) if text else None)
        self._control.done.connect(lambda text: self.banner.set_message(text))
        self._control.failed.connect(lambda text: self.banner.set_message(text, "bad"))
        self.pages = named(QTabWidget(documentMode=True), "settings_pages")
        self.pages.addTab(self._window_page(), self.tr("&Window"))
        self._daemon_place = QWidget()
        self.pages.addTab(self._daemon_place, self.tr("&Daemon"))
        self.buttons = QDialogButtonBox()
        self.save_button = self.buttons.addButton(
            self.tr("&Save daemon settings"), QDialogButtonBox.ButtonRole.ApplyRole
        )
        self.save_button.setObjectName("save_settings")
        self.save_button.setAccessibleName(self.tr("Save daemon settings"))
        self.save_button.clicked.connect(self.save)
        close = self.buttons.addButton(QDialogButtonBox.StandardButton.Close)
        close.setObjectName("close_settings")
        close.setAccessibleName(self.tr("Close"))
        self.buttons.rejected.connect(self.reject)
        self.pages.currentChanged.connect(self._page_chosen)
        self.save_button.hide()
        fill(QVBoxLayout(self), self.banner, (self.pages, 1), self.buttons)
        unit = self.fontMetrics()
        self.resize(unit.horizontalAdvance("m") * 58, unit.height() * 44)

    def _page_chosen(self, page: int) -> None:
        self.save_button.setVisible(page == _DAEMON_PAGE)
        if page == _DAEMON_PAGE and not self._is_daemon_page_begun:
            self._is_daemon_page_begun = True
            fill(QVBoxLayout(self._daemon_place), self._daemon_page(), margins=0)

    # ------------------------------------------------------------------ the window

    def _window_page(self) -> QWidget:
        page = QWidget()
        form = QFormLayout(page)
        form.setContentsMargins(16, 16, 16, 16)
        form.setVerticalSpacing(12)
        self.theme = named(QComboBox(), "theme", self.tr("Theme"))
        for choice, text in (
            (ThemeChoice.SYSTEM, self.tr("System")),
            (ThemeChoice.LIGHT, self.tr("Light")),
            (ThemeChoice.DARK, self.tr("Dark")),
        ):
            self.theme.addItem(text, choice.value)
        self.theme.setCurrentIndex(self.theme.findData(self._appearance.choice.value))
        self.theme.currentIndexChanged.connect(self._theme_chosen)
        self.text_size = named(QComboBox(), "text_size", self.tr("Text size"))
        for zoom in ZOOM_STEPS:
            self.text_size.addItem(f"{zoom:.0%}", zoom)
        self.text_size.setCurrentIndex(self.text_size.findData(self._appearance.zoom))
        self.text_size.currentIndexChanged.connect(self._text_size_chosen)
        self.window_notes = QCheckBox(self.tr("in the corner of the window, for every finished run"))
        self.window_notes.setObjectName("window_notes")
        self.window_notes.setAccessibleName(self.tr("Notes in the window when a run ends"))
        self.window_notes.setChecked(notifies("window"))
        self.window_notes.toggled.connect(partial(set_notifies, "window"))
        self.tray_notes = QCheckBox(self.tr("in the system tray, while the window is in the background"))
        self.tray_notes.setObjectName("tray_notes")
        self.tray_notes.setAccessibleName(self.tr("Notes in the system tray when a run ends"))
        self.tray_notes.setChecked(notifies("tray"))
        self.tray_notes.toggled.connect(partial(set_notifies, "tray"))
        note = caption(
            "", self.tr("These take effect at once. A failed run is always reported in the window."), wraps=True
        )
        form.addRow(self.tr("&Theme"), self.theme)
        form.addRow(self.tr("Text &size"), self.text_size)
        form.addRow(self.tr("Notes"), self.window_notes)
        form.addRow("", self.tray_notes)
        form.addRow(note)
        return page

    def _theme_chosen(self) -> None:
        self._appearance.choose(ThemeChoice(self.theme.currentData()))

    def _text_size_chosen(self) -> None:
        requested = self.text_size.currentData()
        while self._appearance.zoom < requested:
            self._appearance.zoom_in()
        while self._appearance.zoom > requested:
            self._appearance.zoom_out()

    # ------------------------------------------------------------------ the daemon

    def _daemon_page(self) -> QWidget:
        inside = QWidget()
        column = QVBoxLayout(inside)
        column.setContentsMargins(12, 12, 12, 12)
        column.setSpacing(12)
        if self._home is None:
            text = QLabel(self.tr("The daemon is on another machine; its settings are there, in settings.toml."))
            text.setWordWrap(True)
            fill(column, text, 1)
            return inside
        about = caption(
            "",
            self.tr("Stored in {}. The daemon reads them when it starts; an empty field means the default.").format(
                settings_file()
            ),
            wraps=True,
        )
        about.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        fill(column, about, 1)
        defer(self, lambda: self._build_groups(column, list(GROUPS)))
        self._area = named(scrolled(inside), "daemon_settings")
        return self._area

    def _build_groups(self, column: QVBoxLayout, groups: list[str]) -> None:
        """Build a few fields at a time: many at once would freeze the window for a moment."""
        if not groups:
            self._read()
            return
        group, *others = groups
        defaults = {entry.name: entry.default for entry in fields(Settings)}
        box = QGroupBox(QCoreApplication.translate("SettingFields", group))
        form = QFormLayout(box)
        form.setFieldGrowthPolicy(QFormLayout.FieldGrowthPolicy.ExpandingFieldsGrow)
        for field in GROUPS[group]:
            self._add_field(form, field, defaults[field.key])
        column.insertWidget(column.count() - 1, box)
        defer(self, lambda: self._build_groups(column, others))

    def _add_field(self, form: QFormLayout, field: SettingField, default: Any) -> None:
        edit = named(QLineEdit(), field.key, field.shown_title, tip=f"{field.shown_help}\n{field.key}")
        edit.setAccessibleDescription(field.shown_help)
        edit.setPlaceholderText(
            to_text(default, field.kind) or (self.tr("all") if field.key in ("cpus", "memory_mb") else self.tr("none"))
        )
        edit.textEdited.connect(lambda _text: self._check(field))
        if field.key == "on_end_webhook":
            edit.setEchoMode(QLineEdit.EchoMode.PasswordEchoOnEdit)  # webhook addresses often contain a secret
        row = fill(QHBoxLayout(), (edit, 1))
        if field.unit:
            row.addWidget(QLabel(field.unit))
        note, error = QLabel(field.shown_help), QLabel()
        note.setProperty("role", "caption")
        note.setWordWrap(True)
        error.setObjectName(f"{field.key}_error")
        error.setProperty("role", "problem")
        error.setWordWrap(True)
        error.hide()
        cell = fill(QVBoxLayout(), row, note, error, spacing=2)
        label = QLabel(field.shown_title)
        label.setBuddy(edit)
        form.addRow(label, cell)
        self.edits[field.key], self.errors[field.key] = edit, error

    def _read(self) -> None:
        """Read the file in the background; on errors show a message and the defaults."""

        def on_error(error: Exception) -> None:
            if not isinstance(error, ConfigProblems | OSError):
                raise error
            self.is_read = True
            self.banner.set_message(str(error), "bad")

        self._background.run(load_settings, owner=self, done=self._show, failed=on_error)

    def _show(self, settings: Settings) -> None:
        self._before = settings
        self.is_read = True
        for key, edit in self.edits.items():
            value = getattr(settings, key)
            is_default = value == getattr(Settings(), key)
            edit.setText("" if is_default else to_text(value, FIELDS[key].kind))

    def _check(self, field: SettingField) -> None:
        """Validate one field; combinations are validated on saving."""
        try:
            from_text(self.edits[field.key].text(), field.kind)
        except ValueError as error:
            self._set_error(field.key, str(error))
        else:
            self._set_error(field.key, "")

    def _set_error(self, key: str, text: str) -> None:
        self.errors[key].setText(text)
        self.errors[key].setVisible(bool(text))

    def _go_to(self, key: str) -> None:
        """Scroll to a field."""
        if key in self.edits and self._area is not None:
            self.edits[key].setFocus()
            QTimer.singleShot(0, self, lambda: self._show_error(key))  # it has no place before the next layout

    def _show_error(self, key: str) -> None:
        if self._area is not None:
            self._area.ensureWidgetVisible(self.errors[key])

    def save(self) -> None:
        """Write the changes; nothing is written unless all fields are valid."""
        if not self.is_read:
            return
        changes: dict[str, Any] = {}
        for key, edit in self.edits.items():
            self._check(FIELDS[key])
            if not self.errors[key].isHidden():
                self.banner.set_message(self.tr("Nothing was saved: see the marked fields."), "bad")
                self._go_to(key)
                return
            value = from_text(edit.text(), FIELDS[key].kind)
            is_unset = getattr(self._before, key) == getattr(Settings(), key)
            if value is not None or not is_unset:
                changes[key] = value
        self.save_button.setEnabled(False)
        self._background.run(lambda: change_settings(changes), owner=self, done=self._saved, failed=self._refused)

    def _saved(self, settings: Settings) -> None:
        self.save_button.setEnabled(True)
        was_changed = settings != self._before
        self._before = settings
        for key in self.errors:
            self._set_error(key, "")
        if not was_changed:
            self.banner.set_message(self.tr("Nothing was changed."))
            return
        self.banner.set_message(
            self.tr("Saved. The change applies after a restart of the daemon; runs keep running."),
            action=self.tr("Restart the daemon"),
            on_action=self._control.restart,
        )

    def _refused(self, error: Exception) -> None:
        self.save_button.setEnabled(True)
        if isinstance(error, ConfigProblems):
            for problem in error.problems:
                if problem.path in self.errors:
                    self._set_error(problem.path, str(problem).removeprefix(f"{problem.path}: "))
            self._go_to(next((problem.path for problem in error.problems if problem.path in self.edits), ""))
            others = [str(problem) for problem in error.problems if problem.path not in self.errors]
            self.banner.set_message("\n".join([self.tr("Nothing was saved: see the marked fields."), *others]), "bad")
        elif isinstance(error, OSError):
            self.banner.set_message(self.tr("The settings cannot be written: {}").format(error), "bad")
        else:
            raise error


def _appearance_of_application(dialog: QDialog) -> Appearance:
    application = QApplication.instance()
    assert isinstance(application, QApplication)
    found = application.findChild(Appearance)
    return found if isinstance(found, Appearance) else Appearance(application, parent=dialog)
