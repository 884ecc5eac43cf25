"""Settings: of the window, at once; of the daemon, written whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from gym_gui.config.settings import Settings, load_settings, settings_file
from gym_gui.ui import theme
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.management.settings_dialog import FIELDS, FieldKind, SettingsDialog, from_text, to_text
from gym_gui.ui.settings import notifies
from gym_gui.ui.shell.announcements import Announcement
from gym_gui.ui.shell.toasts import Toasts
from gym_gui.ui.theme import Appearance
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtWidgets import QApplication, QLabel, QWidget


@pytest.fixture
def appearance(qapp: QApplication) -> Iterator[Appearance]:
    font = qapp.font()
    appearance = Appearance(qapp, choice=theme.ThemeChoice.LIGHT)
    yield appearance
    qapp.setFont(font)
    appearance.deleteLater()


@pytest.fixture
def idle_link(background: Background) -> DaemonLink:
    """Never started: the dialog needs no daemon."""

    def nobody() -> None:
        raise AssertionError("no daemon is needed")

    return DaemonLink(nobody, background)  # type: ignore[arg-type]


@pytest.fixture
def dialog(qtbot, home: Home, idle_link: DaemonLink, background: Background, appearance: Appearance) -> SettingsDialog:
    dialog = SettingsDialog(idle_link, background, home, appearance=appearance)
    qtbot.addWidget(dialog)
    dialog.open()
    go_to_the_daemon_s_page(qtbot, dialog)
    return dialog


def go_to_the_daemon_s_page(qtbot, dialog: SettingsDialog) -> None:
    assert dialog.edits == {}, "fields that are not shown are not created"
    dialog.pages.setCurrentIndex(1)
    qtbot.waitUntil(lambda: dialog.is_read, timeout=20_000)


def test_every_setting_has_a_field_and_an_explanation() -> None:
    # Tables have none: daemons on other machines, which only clients have, executors, and nodes.
    assert set(FIELDS) == {field.name for field in fields(Settings)} - {"daemons", "executors", "nodes"}
    assert all(field.help.endswith(".") and field.title for field in FIELDS.values())


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (FieldKind.NUMBER, 2.5, "2.5"),
        (FieldKind.WHOLE, 7, "7"),
        (FieldKind.COMMAND, ["notify-send", "a run ended"], "notify-send 'a run ended'"),
        (FieldKind.FOLDERS, ["/a", "/b c"], "/a:/b c"),
        (FieldKind.TEXT, "::1", "::1"),
    ],
)
def test_values_go_into_fields_and_come_back(kind: FieldKind, value: object, text: str) -> None:
    assert to_text(value, kind) == text
    assert from_text(text, kind) == value
    assert from_text("  ", kind) is None


def test_the_theme_changes_at_once_and_is_kept(dialog: SettingsDialog, appearance: Appearance, qapp) -> None:
    dialog.theme.setCurrentIndex(dialog.theme.findData("dark"))
    assert theme.colors().is_dark
    assert appearance.choice is theme.ThemeChoice.DARK
    before = qapp.font().pointSizeF()
    dialog.text_size.setCurrentIndex(dialog.text_size.findData(1.4))
    assert qapp.font().pointSizeF() == pytest.approx(before * 1.4)
    dialog.text_size.setCurrentIndex(dialog.text_size.findData(1.0))
    assert qapp.font().pointSizeF() == pytest.approx(before)
    dialog.tray_notes.setChecked(False)
    assert not notifies("tray")
    assert notifies("window")


def test_daemon_settings_are_saved_and_say_when_they_take_effect(qtbot, dialog: SettingsDialog) -> None:
    dialog.pages.setCurrentIndex(1)
    dialog.edits["silence_s"].setText("600")
    dialog.edits["on_end_command"].setText("notify-send 'a run ended'")
    dialog.save_button.click()
    qtbot.waitUntil(lambda: "Saved" in dialog.banner.text, timeout=20_000)
    assert "after a restart of the daemon" in dialog.banner.text
    saved = load_settings()
    assert (saved.silence_s, saved.on_end_command) == (600, ("notify-send", "a run ended"))
    dialog.edits["silence_s"].clear()
    dialog.save_button.click()
    qtbot.waitUntil(lambda: load_settings().silence_s == 120, timeout=20_000)
    assert "silence_s" not in settings_file().read_text()


def test_what_was_set_is_shown(qtbot, home: Home, idle_link, background, appearance) -> None:
    settings_file().write_text("cpus = 3\nport = 50055\n")
    dialog = SettingsDialog(idle_link, background, home, appearance=appearance)
    qtbot.addWidget(dialog)
    go_to_the_daemon_s_page(qtbot, dialog)
    assert dialog.edits["cpus"].text() == "3"
    assert dialog.edits["port"].text() == ""  # as by default
    assert dialog.edits["port"].placeholderText() == "50055"


def test_errors_stand_next_to_their_fields_and_nothing_is_written(qtbot, dialog: SettingsDialog) -> None:
    dialog.pages.setCurrentIndex(1)
    qtbot.keyClicks(dialog.edits["port"], "abc")
    assert "whole number" in dialog.errors["port"].text()
    dialog.save_button.click()
    assert "Nothing was saved" in dialog.banner.text
    dialog.edits["port"].setText("99999")
    dialog.edits["listen"].setText("0.0.0.0")
    dialog.save_button.click()
    qtbot.waitUntil(lambda: "between 0 and 65535" in dialog.errors["port"].text(), timeout=20_000)
    assert "tls_cert" in dialog.errors["listen"].text()
    assert not settings_file().exists()


def test_a_broken_file_is_reported(qtbot, home: Home, idle_link, background, appearance) -> None:
    settings_file().write_text("cpus = = 1")
    dialog = SettingsDialog(idle_link, background, home, appearance=appearance)
    qtbot.addWidget(dialog)
    go_to_the_daemon_s_page(qtbot, dialog)
    assert "is not valid TOML" in dialog.banner.text


def test_the_settings_of_a_daemon_elsewhere_are_not_ours(
    qtbot, idle_link, background, appearance, tmp_path: Path
) -> None:
    dialog = SettingsDialog(idle_link, background, None, appearance=appearance)
    qtbot.addWidget(dialog)
    dialog.pages.setCurrentIndex(1)
    assert "on another machine" in " ".join(label.text() for label in dialog.findChildren(QLabel))
    assert dialog.edits == {}


def test_who_wants_no_notes_gets_those_of_failures_only(qtbot, themed, dialog: SettingsDialog) -> None:
    window = QWidget()
    qtbot.addWidget(window)
    toasts = Toasts(window)
    dialog.window_notes.setChecked(False)
    for outcome in ("completed", "failed"):
        run = pb.Run(run_id="01ARZ3NDEKTSV4RRFFQ69G5FAV", status="TERM", outcome=outcome)
        toasts.announce(Announcement(outcome, (run,)))
    assert [toast.accessibleName().split(".")[0] for toast in toasts.shown] == ["Run failed"]
