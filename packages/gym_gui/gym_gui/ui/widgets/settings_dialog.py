"""Settings: of this window, which take effect at once, and of the daemon, which it reads when it starts."""

from __future__ import annotations

from dataclasses import fields
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

from gym_gui.config.settings import Settings, load_settings, settings_file
from gym_gui.config.settings_writer import change_settings
from gym_gui.ui import notices
from gym_gui.ui.appearance import ZOOM_STEPS, Appearance
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.management.daemon_control import DaemonControl
from gym_gui.ui.management.setting_fields import FIELDS, GROUPS, SettingField, SettingGroup, from_text, to_text
from gym_gui.ui.theme import ThemeChoice
from gym_gui.ui.turns import in_a_later_turn
from gym_gui.ui.widgets.banner import Banner

_DAEMON_PAGE = 1


class SettingsDialog(QDialog):
    """Not modal to anything but its window; errors stand next to their fields."""

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
        """Whether the fields of the daemon's page show what the file says; they are made when somebody goes there"""
        self.edits: dict[str, QLineEdit] = {}
        self.errors: dict[str, QLabel] = {}
        self.banner = Banner(parent=self)
        self._control.busy_changed.connect(lambda words: self.banner.say(words) if words else None)
        self._control.done.connect(lambda words: self.banner.say(words))
        self._control.failed.connect(lambda words: self.banner.say(words, "bad"))
        self.pages = QTabWidget()
        self.pages.setObjectName("settings_pages")
        self.pages.setDocumentMode(True)
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
        layout = QVBoxLayout(self)
        layout.addWidget(self.banner)
        layout.addWidget(self.pages, 1)
        layout.addWidget(self.buttons)
        unit = self.fontMetrics()
        self.resize(unit.horizontalAdvance("m") * 58, unit.height() * 44)

    def _page_chosen(self, page: int) -> None:
        self.save_button.setVisible(page == _DAEMON_PAGE)
        if page == _DAEMON_PAGE and not self._is_daemon_page_begun:
            self._is_daemon_page_begun = True
            layout = QVBoxLayout(self._daemon_place)
            layout.setContentsMargins(0, 0, 0, 0)
            layout.addWidget(self._daemon_page())

    # ------------------------------------------------------------------ the window

    def _window_page(self) -> QWidget:
        page = QWidget()
        form = QFormLayout(page)
        form.setContentsMargins(16, 16, 16, 16)
        form.setVerticalSpacing(12)
        self.theme = QComboBox()
        self.theme.setObjectName("theme")
        self.theme.setAccessibleName(self.tr("Theme"))
        for choice, words in (
            (ThemeChoice.SYSTEM, self.tr("As the system")), (ThemeChoice.LIGHT, self.tr("Light")),
            (ThemeChoice.DARK, self.tr("Dark")),
        ):  # fmt: skip
            self.theme.addItem(words, choice.value)
        self.theme.setCurrentIndex(self.theme.findData(self._appearance.choice.value))
        self.theme.currentIndexChanged.connect(self._theme_chosen)
        self.letters = QComboBox()
        self.letters.setObjectName("letters")
        self.letters.setAccessibleName(self.tr("Text size"))
        for zoom in ZOOM_STEPS:
            self.letters.addItem(f"{zoom:.0%}", zoom)
        self.letters.setCurrentIndex(self.letters.findData(self._appearance.zoom))
        self.letters.currentIndexChanged.connect(self._letters_chosen)
        self.window_notes = QCheckBox(self.tr("in the corner of the window, for every run that ends"))
        self.window_notes.setObjectName("window_notes")
        self.window_notes.setAccessibleName(self.tr("Notes in the window when a run ends"))
        self.window_notes.setChecked(notices.window_notes_wanted())
        self.window_notes.toggled.connect(notices.want_window_notes)
        self.tray_notes = QCheckBox(self.tr("in the system tray, while the window is in the background"))
        self.tray_notes.setObjectName("tray_notes")
        self.tray_notes.setAccessibleName(self.tr("Notes in the system tray when a run ends"))
        self.tray_notes.setChecked(notices.tray_notes_wanted())
        self.tray_notes.toggled.connect(notices.want_tray_notes)
        note = QLabel(self.tr("These take effect at once. A run that fails is always told in the window."))
        note.setProperty("role", "caption")
        note.setWordWrap(True)
        form.addRow(self.tr("&Theme"), self.theme)
        form.addRow(self.tr("Text &size"), self.letters)
        form.addRow(self.tr("Notes"), self.window_notes)
        form.addRow("", self.tray_notes)
        form.addRow(note)
        return page

    def _theme_chosen(self) -> None:
        self._appearance.choose(ThemeChoice(self.theme.currentData()))

    def _letters_chosen(self) -> None:
        wanted = self.letters.currentData()
        while self._appearance.zoom < wanted:
            self._appearance.zoom_in()
        while self._appearance.zoom > wanted:
            self._appearance.zoom_out()

    # ------------------------------------------------------------------ the daemon

    def _daemon_page(self) -> QWidget:
        inside = QWidget()
        column = QVBoxLayout(inside)
        column.setContentsMargins(12, 12, 12, 12)
        column.setSpacing(12)
        if self._home is None:
            words = QLabel(self.tr("The daemon is on another machine; its settings lie there, in settings.toml."))
            words.setWordWrap(True)
            column.addWidget(words)
            column.addStretch(1)
            return inside
        about = QLabel(
            self.tr("Kept in {}. The daemon reads them when it starts; an empty field means the default.").format(
                settings_file()
            )
        )
        about.setProperty("role", "caption")
        about.setWordWrap(True)
        about.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        column.addWidget(about)
        column.addStretch(1)
        in_a_later_turn(self, lambda: self._build_groups(column, list(GROUPS)))
        self._area = area = QScrollArea()
        area.setObjectName("daemon_settings")
        area.setWidgetResizable(True)
        area.setFrameShape(QScrollArea.Shape.NoFrame)
        area.setWidget(inside)
        return area

    def _build_groups(self, column: QVBoxLayout, groups: list[SettingGroup]) -> None:
        """A few fields at a time: many at once would stop the window for a moment."""
        if not groups:
            self._read()
            return
        group, *others = groups
        defaults = {entry.name: entry.default for entry in fields(Settings)}
        box = QGroupBox(QCoreApplication.translate("SettingFields", group.title))
        form = QFormLayout(box)
        form.setFieldGrowthPolicy(QFormLayout.FieldGrowthPolicy.ExpandingFieldsGrow)
        for field in group.fields:
            self._add_field(form, field, defaults[field.key])
        column.insertWidget(column.count() - 1, box)
        in_a_later_turn(self, lambda: self._build_groups(column, others))

    def _add_field(self, form: QFormLayout, field: SettingField, default: Any) -> None:
        edit = QLineEdit()
        edit.setObjectName(field.key)
        edit.setAccessibleName(field.said_title)
        edit.setAccessibleDescription(field.said_help)
        edit.setToolTip(f"{field.said_help}\n{field.key}")
        edit.setPlaceholderText(
            to_text(default, field.kind) or (self.tr("all") if field.key in ("cpus", "memory_mb") else self.tr("none"))
        )
        edit.textEdited.connect(lambda _text: self._check(field))
        if field.key == "on_end_webhook":
            edit.setEchoMode(QLineEdit.EchoMode.PasswordEchoOnEdit)  # such addresses often hold a secret
        row = QHBoxLayout()
        row.addWidget(edit, 1)
        if field.unit:
            row.addWidget(QLabel(field.unit))
        note, error = QLabel(field.said_help), QLabel()
        note.setProperty("role", "caption")
        note.setWordWrap(True)
        error.setObjectName(f"{field.key}_error")
        error.setProperty("role", "problem")
        error.setWordWrap(True)
        error.hide()
        cell = QVBoxLayout()
        cell.setSpacing(2)
        cell.addLayout(row)
        cell.addWidget(note)
        cell.addWidget(error)
        label = QLabel(field.said_title)
        label.setBuddy(edit)
        form.addRow(label, cell)
        self.edits[field.key], self.errors[field.key] = edit, error

    def _read(self) -> None:
        """The file is read in the background; a file that is wrong says so, and the form shows the defaults."""

        def complain(error: Exception) -> None:
            if not isinstance(error, ConfigProblems | OSError):
                raise error
            self.is_read = True
            self.banner.say(str(error), "bad")

        self._background.run(load_settings, owner=self, done=self._show, failed=complain)

    def _show(self, settings: Settings) -> None:
        self._before = settings
        self.is_read = True
        for key, edit in self.edits.items():
            value = getattr(settings, key)
            is_default = value == getattr(Settings(), key)
            edit.setText("" if is_default else to_text(value, FIELDS[key].kind))

    def _check(self, field: SettingField) -> None:
        """What can be said about one field alone; how they fit together is checked when they are saved."""
        try:
            from_text(self.edits[field.key].text(), field.kind)
        except ValueError as error:
            self._say(field.key, str(error))
        else:
            self._say(field.key, "")

    def _say(self, key: str, words: str) -> None:
        self.errors[key].setText(words)
        self.errors[key].setVisible(bool(words))

    def _go_to(self, key: str) -> None:
        """Bring a field into view."""
        if key in self.edits and self._area is not None:
            self.edits[key].setFocus()
            QTimer.singleShot(0, self, lambda: self._show_error(key))  # its words have no place before the next layout

    def _show_error(self, key: str) -> None:
        if self._area is not None:
            self._area.ensureWidgetVisible(self.errors[key])

    def save(self) -> None:
        """Write what was changed; nothing is written unless all of it is right."""
        if not self.is_read:
            return
        changes: dict[str, Any] = {}
        for key, edit in self.edits.items():
            self._check(FIELDS[key])
            if not self.errors[key].isHidden():
                self.banner.say(self.tr("Nothing was saved: see the marked fields."), "bad")
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
            self._say(key, "")
        if not was_changed:
            self.banner.say(self.tr("Nothing was changed."))
            return
        self.banner.say(
            self.tr("Saved. The daemon reads it when it starts; runs go on while it restarts."),
            action=self.tr("Restart the daemon"), on_action=self._control.restart,
        )  # fmt: skip

    def _refused(self, error: Exception) -> None:
        self.save_button.setEnabled(True)
        if isinstance(error, ConfigProblems):
            for problem in error.problems:
                if problem.path in self.errors:
                    self._say(problem.path, str(problem).removeprefix(f"{problem.path}: "))
            self._go_to(next((problem.path for problem in error.problems if problem.path in self.edits), ""))
            others = [str(problem) for problem in error.problems if problem.path not in self.errors]
            self.banner.say("\n".join([self.tr("Nothing was saved: see the marked fields."), *others]), "bad")
        elif isinstance(error, OSError):
            self.banner.say(self.tr("The settings cannot be written: {}").format(error), "bad")
        else:
            raise error


def _appearance_of_application(dialog: QDialog) -> Appearance:
    application = QApplication.instance()
    assert isinstance(application, QApplication)
    found = application.findChild(Appearance)
    return found if isinstance(found, Appearance) else Appearance(application, parent=dialog)
