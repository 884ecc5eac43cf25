"""Base class of the forms that start runs: fields, load and save, presets, dry run, submit.

A form has fields; its presenter converts them to configs and validates these. Nothing is submitted before all local
checks pass; problems that the daemon finds are shown next to their fields.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mosaic_wire.errors import Problem
from mosaic_wire.paths import Home, cache_home
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_request import worker_part
from PySide6.QtCore import QSettings, QSize, Qt, Signal
from PySide6.QtGui import QKeySequence, QShortcut, QShowEvent
from PySide6.QtWidgets import (
    QDialog,
    QHBoxLayout,
    QInputDialog,
    QLabel,
    QMenu,
    QPushButton,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from gym_gui.services.run_configs import ConfigUnreadable, RunConfig, config_of, refer_to, secret_references
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import DaemonUnreachable, InvalidConfig, TrainerError
from gym_gui.services.trainer.run_copies import DOCUMENTS, SCRIPTS
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.presenters.workers.registry import WorkerPresenter
from gym_gui.ui.presenters.workers.train_request import NotAConfig, saved_text, without_secrets
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.parts import ask_for_file, caption, fill, named, timer
from gym_gui.ui.workers.catalog import WorkerEntry
from gym_gui.wording.formats import age
from gym_gui.wording.run_view import short_id

MAX_RECENT = 12


@dataclass(frozen=True)
class Recent:
    """A submitted config."""

    title: str
    when: float
    document: Any


class SavedConfigs:
    """Presets and recent configs of one kind of form."""

    def __init__(self, form: str) -> None:
        self._settings = QSettings("MOSAIC", "mosaic")
        self._group = f"forms/{form}"

    def presets(self) -> dict[str, Any]:
        """Return the presets by name."""
        found = self._read("presets")
        return found if isinstance(found, dict) else {}

    def save_preset(self, name: str, configs: Sequence[Mapping[str, Any]]) -> None:
        self._write("presets", {**self.presets(), name: _document(configs)})

    def delete_preset(self, name: str) -> None:
        self._write("presets", {known: value for known, value in self.presets().items() if known != name})

    def recent(self) -> list[Recent]:
        """Return the recent configs, newest first."""
        found = self._read("recent")
        entries = found if isinstance(found, list) else []
        return [
            Recent(str(entry["title"]), float(entry["when"]), entry["document"])
            for entry in entries
            if isinstance(entry, dict) and {"title", "when", "document"} <= set(entry)
        ]

    def remember(self, title: str, configs: Sequence[Mapping[str, Any]], when: float | None = None) -> None:
        """Add a submitted config at the front, or move it there."""
        document = _document(configs)
        others = [entry for entry in self.recent() if entry.document != document][: MAX_RECENT - 1]
        newest = Recent(title, time.time() if when is None else when, document)
        self._write("recent", [vars(entry) for entry in (newest, *others)])

    def _read(self, key: str) -> Any:
        try:
            return json.loads(str(self._settings.value(f"{self._group}/{key}", "null")))
        except ValueError:
            return None  # edited by hand: ignore invalid entries

    def _write(self, key: str, value: Any) -> None:
        self._settings.setValue(f"{self._group}/{key}", json.dumps(value))


def _document(configs: Sequence[Mapping[str, Any]]) -> Any:
    clean = [without_secrets(config) for config in configs]
    return clean[0] if len(clean) == 1 else clean


class _MenuButton(QToolButton):
    """A button whose menu is filled when it opens."""

    document_chosen = Signal(object)

    def __init__(self, text: str, name: str, saved_configs: SavedConfigs, parent: QWidget) -> None:
        super().__init__(parent)
        self.saved_configs = saved_configs
        self.setText(text)
        named(self, name, text.replace("&", ""))
        self.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextOnly)
        menu = QMenu(self)
        menu.aboutToShow.connect(lambda: self._refill(menu))
        self.setMenu(menu)

    def _refill(self, menu: QMenu) -> None:
        menu.clear()
        self.fill(menu)

    def fill(self, menu: QMenu) -> None:
        raise NotImplementedError

    def _offer(self, menu: QMenu, text: str, document: Any) -> None:
        menu.addAction(text, lambda: self.document_chosen.emit(document))


class PresetButton(_MenuButton):
    name_chosen = Signal(str)
    """Name for the new preset"""

    def __init__(self, saved_configs: SavedConfigs, builtin: Callable[[], Mapping[str, Any]], parent: QWidget) -> None:
        super().__init__(parent.tr("&Presets"), "presets", saved_configs, parent)
        self._builtin = builtin

    def fill(self, menu: QMenu) -> None:
        for name, document in self._builtin().items():
            self._offer(menu, name, document)
        own = self.saved_configs.presets()
        menu.addSeparator()
        for name, document in own.items():
            self._offer(menu, name, document)
        menu.addSeparator()
        menu.addAction(self.tr("Save this as a preset …"), self._ask_name)
        if own:
            deleting = menu.addMenu(self.tr("Delete a preset"))
            for name in own:
                deleting.addAction(name, lambda name=name: self.saved_configs.delete_preset(name))  # type: ignore[misc]

    def _ask_name(self) -> None:
        dialog = named(QInputDialog(self), "preset_name")
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.setWindowTitle(self.tr("Save as a preset"))
        dialog.setLabelText(self.tr("Name of the preset:"))
        dialog.textValueSelected.connect(self.name_chosen)
        dialog.open()


class RecentButton(_MenuButton):
    def __init__(self, saved_configs: SavedConfigs, parent: QWidget) -> None:
        super().__init__(parent.tr("&Recent"), "recent", saved_configs, parent)

    def fill(self, menu: QMenu) -> None:
        recent = self.saved_configs.recent()
        now = time.time()
        for entry in recent:
            text = self.tr("{title}   ({age} ago)").format(title=entry.title, age=age(entry.when, now))
            self._offer(menu, text, entry.document)
        if not recent:
            menu.addAction(self.tr("No recent configs")).setEnabled(False)


_PAUSE_MS = 150
_MAX_BYTES = 16 << 20

Document = Any
"""A run config, or a list of them"""


class RunForm(QDialog):
    """A dialog that is not modal; `submitted` carries the ids of the queued runs."""

    submitted = Signal(object)  # tuple[str, ...]

    KIND = "form"
    """Group of the presets and recent configs of this form"""

    def __init__(
        self,
        entry: WorkerEntry,
        presenter: WorkerPresenter,
        *,
        link: DaemonLink,
        background: Background,
        home: Home | None,
        parent: QWidget | None = None,
        run: pb.Run | None = None,
    ) -> None:
        super().__init__(parent)
        assert entry.spec is not None, "a worker that cannot be used has no form"
        self.entry, self.presenter, self.spec = entry, presenter, entry.spec
        self.run = run
        """The run the form was opened for, if any"""
        self.link, self.background, self.home = link, background, home
        self.program_home = home or Home(cache_home())
        """The home of programs that the form starts; on another machine the daemon gives them its own"""
        self.saved_configs = SavedConfigs(self.KIND)
        self.setModal(False)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowFlag(Qt.WindowType.WindowMaximizeButtonHint, True)
        self.title = named(QLabel(self), "form_title", role="title")
        self.subtitle = caption(wraps=True)
        self.banner = Banner(parent=self)
        self.body = QVBoxLayout()
        fill(QVBoxLayout(self), self.title, self.subtitle, self.banner, (self.body, 1), self._build_footer(), spacing=6)
        self._refresh_timer = timer(self, self.refresh, _PAUSE_MS, single_shot=True)
        self._key = ""
        self._is_sending = False
        self._secrets: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
        """References to the secrets of the cloned run"""
        self._is_footer_last = False
        QShortcut(QKeySequence("Ctrl+Return"), self, self.submit)
        self._set_up()

    # ------------------------------------------------------------------ to be implemented by forms

    def _set_up(self) -> None:
        """Build the fields."""
        raise NotImplementedError

    def configs(self) -> list[dict[str, Any]]:
        """Return the run configs; raise ValueError with a message for users if fields are invalid."""
        raise NotImplementedError

    def field_problems(self) -> dict[str, str]:
        """Return problems of single fields by name."""
        raise NotImplementedError

    def show_problem(self, name: str, text: str) -> bool:
        """Show a problem next to a field; return False if the form does not have it."""
        raise NotImplementedError

    def field_names(self) -> Sequence[str]:
        raise NotImplementedError

    def load(self, document: Document) -> None:
        """Show a config; raise NotAConfig if this form cannot."""
        raise NotImplementedError

    def refresh(self) -> None:
        """Update previews after changes; called when the user pauses."""

    def run_title(self) -> str:
        """Return the title of the submitted configs in the recent list."""
        return self.windowTitle()

    # ------------------------------------------------------------------ footer

    def _build_footer(self) -> QHBoxLayout:
        footer = QHBoxLayout()
        self.preset_button = PresetButton(self.saved_configs, self.builtin_presets, self)
        self.recent_button = RecentButton(self.saved_configs, self)
        for menu in (self.preset_button, self.recent_button):
            menu.document_chosen.connect(self.load_document)
        self.preset_button.name_chosen.connect(self.save_preset)
        load = self._button(self.tr("&Load JSON …"), "load_json", self._choose_file_to_load)
        save = self._button(self.tr("&Save JSON …"), "save_json", self._choose_file_to_save)
        self.dry_run_button = self._button(self.tr("&Dry run"), "dry_run", self.start_dry_run)
        self.dry_run_button.setToolTip(self.tr("Check everything as the worker would, without starting anything"))
        cancel = self._button(self.tr("Close"), "close_form", self.close)
        self.submit_button = self._button(self.tr("&Start"), "submit", self.submit)
        self.submit_button.setProperty("role", "primary")
        # Not the default button: Enter in a field must not start a run. Ctrl+Enter does.
        self.submit_button.setToolTip(self.tr("Ctrl+Enter"))
        left, right = (self.preset_button, self.recent_button, load, save), (self.dry_run_button, cancel)
        for widget in left:
            footer.addWidget(widget)
        fill(footer, 1, *right, self.submit_button)
        self._footer: tuple[QWidget, ...] = (*left, *right, self.submit_button)
        return footer

    def _button(self, text: str, name: str, do: Callable[[], object]) -> QPushButton:
        button = named(QPushButton(text, self, autoDefault=False), name, text.replace("&", ""))
        button.clicked.connect(lambda: do())
        return button

    # ------------------------------------------------------------------ submitting

    def problems(self) -> dict[str, str]:
        """Return all problems by field; "" for those without a field."""
        found = dict(self.field_problems())
        if found:
            return found  # invalid values make no config
        for config in self.configs()[:1]:
            found |= self._placed(self.presenter.problems(config, self.entry.spec))
        return found

    def _placed(self, problems: Sequence[Problem]) -> dict[str, str]:
        from gym_gui.ui.presenters.workers.registry import place_of

        found: dict[str, str] = {}
        for problem in problems:
            hint = self.tr(" Did you mean {name}?").format(name=problem.suggestion) if problem.suggestion else ""
            place = place_of(problem, tuple(self.field_names()))
            text = f"{problem.message}.{hint}" if hint else problem.message
            where = text if place or _can_install(problem) else f"{problem.path}: {text}"
            found[place] = f"{found[place]}\n{where}" if place in found else where
        return found

    def check(self) -> bool:
        """Show all problems; return whether there are none."""
        problems = self.problems()
        for name, text in problems.items():
            if name:
                self.show_problem(name, text)
        if not problems:
            self.banner.clear()
            return True
        self._show_problems(problems)
        return False

    def _show_problems(self, problems: Mapping[str, str], *, can_install: bool = False) -> None:
        fields = [name for name in problems if name]
        lines = []
        if fields:
            lines.append(self.tr("Please check: {fields}").format(fields=", ".join(map(self._label_of, fields))))
        if "" in problems:
            lines.append(problems[""])
        action = self.tr("Install and start") if can_install else ""
        self.banner.set_message(
            "\n".join(lines), "bad", action=action, on_action=lambda: self.submit(install_missing=True)
        )
        if fields and (widget := self.findChild(QWidget, fields[0])) is not None:
            widget.setFocus(Qt.FocusReason.OtherFocusReason)

    def _label_of(self, name: str) -> str:
        widget = self.findChild(QWidget, name)
        return (widget.accessibleName() if widget is not None else "") or name

    def submit(self, *, install_missing: bool = False) -> None:
        """Check, then queue a run for each config; close the form when the daemon has accepted them."""
        if self._is_sending or not self.check():
            return
        configs = self.configs()
        for config in configs:
            refer_to(self._secrets, config)
        if install_missing:  # the daemon installs them before the run starts
            for config in configs:
                worker_part(config).setdefault("extras", {})["install_missing"] = True
        # The key is kept while the form is unchanged: retrying after a lost response does not create a second run.
        text = json.dumps(configs, sort_keys=True)
        if self._key.partition(":")[2] != text:
            self._key = f"{secrets.token_hex(16)}:{text}"
        key = self._key.partition(":")[0]
        self._set_sending(True)
        self.link.call(
            lambda client: _queue(client, configs, key), owner=self, done=self._queued, failed=self._not_queued
        )

    def _queued(self, answer: tuple[tuple[pb.Run, ...], Exception | None]) -> None:
        runs, error = answer
        self._set_sending(False)
        ids = tuple(run.run_id for run in runs)
        if ids:
            self.saved_configs.remember(self.run_title(), self.configs())
        if error is None:
            self.finish(ids)
            return
        if ids:
            self.submitted.emit(ids)
        reported = error.problems if isinstance(error, InvalidConfig) else ()
        problems = self._placed(reported) if reported else {"": str(error)}
        for name, text in problems.items():
            if name:
                self.show_problem(name, text)
        if ids:
            problems = {
                **problems,
                "": self.tr("{count} of the runs were queued before this: {why}").format(
                    count=len(ids), why=problems.get("", "")
                ),
            }
        self._show_problems(problems, can_install=any(map(_can_install, reported)))

    def finish(self, run_ids: tuple[str, ...]) -> None:
        """Close the form: the daemon has accepted all runs."""
        self._key = ""
        self.submitted.emit(run_ids)
        self.close()

    def _not_queued(self, text: str) -> None:
        self._set_sending(False)
        self.banner.set_message(self.tr("Nothing was started: {why}").format(why=text), "bad")

    def _set_sending(self, sending: bool) -> None:
        self._is_sending = sending
        self.submit_button.setEnabled(not sending)

    # ------------------------------------------------------------------ dry run

    def start_dry_run(self) -> None:
        """Check the config as the worker does, in the background."""
        if not self.check():
            return
        config, spec, home = self.configs()[0], self.link.startable(self.spec), self.program_home
        self.dry_run_button.setEnabled(False)
        self.dry_run_button.setText(self.tr("Checking …"))
        self.background.run(lambda: self.presenter.dry_run(spec, config, home), owner=self, done=self._dry_run_done)

    def _dry_run_done(self, answer: tuple[bool, str]) -> None:
        self.dry_run_button.setEnabled(True)
        self.dry_run_button.setText(self.tr("&Dry run"))
        self.show_dry_run(*answer)

    def show_dry_run(self, good: bool, text: str) -> None:
        """Show the result of a dry run; forms with a notes panel show the whole output there."""
        if good:
            self.banner.set_message(self.tr("The dry run found nothing wrong."), "info")
        else:
            self.banner.set_message(text, "bad")

    # ------------------------------------------------------------------ files

    def _choose_file_to_load(self) -> None:
        kinds = self.tr("JSON (*.json);;All files (*)")
        ask_for_file(self, self.tr("Load a run config"), kinds, self.load_file, name="load_dialog")

    def _choose_file_to_save(self) -> None:
        title, kinds = self.tr("Save this run config"), self.tr("JSON (*.json);;All files (*)")
        ask_for_file(self, title, kinds, self.save_file, name="save_dialog", save_as="run.json")

    def load_file(self, path: Path) -> None:
        """Read a config from a file and show it."""

        def failed(error: Exception) -> None:
            if not isinstance(error, OSError | ValueError):
                raise error
            text = getattr(error, "strerror", None) or str(error)
            self.banner.set_message(self.tr("{file} was not loaded: {why}").format(file=path.name, why=text), "bad")

        self.background.run(lambda: _read_json(path), owner=self, done=self.load_document, failed=failed)

    def load_document(self, document: Document) -> None:
        """Show a config, or an error message."""
        self._secrets = ({}, {})
        try:
            self.load(document)
        except NotAConfig as error:
            self.banner.set_message(self.tr("Not loaded: {why}").format(why=error), "bad")
            return
        self.banner.clear()
        self.refresh()

    def clone(self, run: pb.Run) -> None:
        """Show the config of a run."""

        def show(found: RunConfig) -> None:
            self.title.setText(self.tr("Clone of {run}").format(run=run.name or short_id(run.run_id)))
            self.load_document(without_secrets(found.document))
            self._secrets = secret_references(found.document)
            notices = list(found.notices)
            if any(self._secrets):
                notices.append(self.tr("Keys and passwords that you leave empty are those of this run."))
            if notices:
                self.banner.set_message("\n".join(notices), "warning" if found.notices else "info")

        def failed(error: Exception) -> None:
            if not isinstance(error, ConfigUnreadable):
                raise error
            self.banner.set_message(str(error), "bad")

        self.background.run(
            lambda: config_of(run, self.link.local(run, *DOCUMENTS, *SCRIPTS)), owner=self, done=show, failed=failed
        )

    def save_file(self, path: Path) -> None:
        """Save the configs without secrets."""
        configs = self._configs_or_report()
        if not configs:
            return
        text = saved_text(configs)

        def failed(error: Exception) -> None:
            if not isinstance(error, OSError):
                raise error
            message = self.tr("{file} was not saved: {why}").format(file=path, why=error.strerror or error)
            self.banner.set_message(message, "bad")

        self.background.run(
            lambda: path.write_text(text, encoding="utf-8"),
            owner=self,
            done=lambda _: self.banner.set_message(self.tr("Saved {file} (secrets are left out).").format(file=path)),
            failed=failed,
        )

    # ------------------------------------------------------------------ presets and recent configs

    def builtin_presets(self) -> Mapping[str, Document]:
        """Return the built-in presets by name; the user's follow in the menu."""
        return {}

    def save_preset(self, name: str) -> None:
        if name.strip() and (configs := self._configs_or_report()):
            self.saved_configs.save_preset(name.strip(), configs)
            self.banner.set_message(self.tr("Saved the preset “{name}”.").format(name=name.strip()))

    # ------------------------------------------------------------------ helpers

    def _configs_or_report(self) -> list[dict[str, Any]]:
        """Return the configs; if there are none, show the reason."""
        try:
            return self.configs()
        except ValueError as error:
            self.banner.set_message(str(error), "warning")
            return []

    def changed(self) -> None:
        """Note that a field has changed; `refresh` follows when the user pauses."""
        self._refresh_timer.start()

    def fit_screen(self, requested: QSize) -> None:
        """Resize to the requested size, but not larger than the screen."""
        room = self.screen().availableGeometry().size()
        self.resize(min(requested.width(), room.width() - 40), min(requested.height(), room.height() - 60))

    def showEvent(self, event: QShowEvent) -> None:
        """Complete the tab order: the footer comes last."""
        if not self._is_footer_last:
            self._is_footer_last = True
            self._put_footer_last()
        super().showEvent(event)

    def _put_footer_last(self) -> None:
        last, widget = None, self.nextInFocusChain()
        while widget is not None and widget is not self:
            if widget not in self._footer and widget.focusPolicy() is not Qt.FocusPolicy.NoFocus:
                last = widget
            widget = widget.nextInFocusChain()
        for button in self._footer:
            if last is not None:
                QWidget.setTabOrder(last, button)
            last = button


def _can_install(problem: Problem) -> bool:
    return problem.path.endswith(".extras.install_missing")


def _queue(
    client: TrainerClient, configs: Sequence[Mapping[str, Any]], key: str
) -> tuple[tuple[pb.Run, ...], Exception | None]:
    """Submit the configs in order; on an error, the exception includes the runs already queued."""
    runs: list[pb.Run] = []
    for number, config in enumerate(configs):
        own_key = key if len(configs) == 1 else f"{key}-{number}"
        try:
            try:
                answer = client.submit(config, idempotency_key=own_key)
            except DaemonUnreachable:
                answer = client.submit(config, idempotency_key=own_key)
        except TrainerError as error:
            return tuple(runs), error
        runs.append(answer.run)
    return tuple(runs), None


def _read_json(path: Path) -> Document:
    with path.open("rb") as stream:
        data = stream.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise ValueError(f"it is larger than {_MAX_BYTES >> 20} MiB")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not valid JSON: {error}") from None
