"""What every form that starts runs is: a body of fields, and below it load and save, presets, a check and the start.

A form knows fields; which config they make and what is wrong with it, its presenter knows. Nothing is sent before
everything that can be checked here is right, and what the daemon finds wrong is shown beside the field it is about.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mosaic_wire.errors import Problem
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QSize, Qt, QTimer, Signal
from PySide6.QtGui import QKeySequence, QShortcut, QShowEvent
from PySide6.QtWidgets import (
    QDialog,
    QFileDialog,
    QHBoxLayout,
    QLabel,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from gym_gui.services.run_configs import ConfigUnreadable, RunConfig, config_of
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import DaemonUnreachable, InvalidConfig, TrainerError
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.forms.config_menus import PresetButton, RecentButton
from gym_gui.ui.forms.config_shelf import ConfigShelf
from gym_gui.ui.presenters.workers.base import WorkerPresenter
from gym_gui.ui.presenters.workers.order import NotAConfig, saved_text
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.workers.catalog import WorkerEntry
from gym_gui.wording.run_view import short_id

_PAUSE_MS = 150
_MOST_BYTES = 16 << 20

Document = Any
"""A run config, or a list of them"""


class RunForm(QDialog):
    """A dialog that is not modal; `submitted` carries the ids of the runs that were queued."""

    submitted = Signal(object)  # tuple[str, ...]

    KIND = "form"
    """Under which name presets and recent configs of this form are kept"""

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
        """The run that it is about, if it is about one"""
        self.link, self.background, self.home = link, background, home
        self.shelf = ConfigShelf(self.KIND)
        self.setModal(False)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowFlag(Qt.WindowType.WindowMaximizeButtonHint, True)
        self.title = QLabel(self)
        self.title.setProperty("role", "title")
        self.title.setObjectName("form_title")
        self.subtitle = QLabel(self)
        self.subtitle.setProperty("role", "caption")
        self.subtitle.setWordWrap(True)
        self.banner = Banner(parent=self)
        self.body = QVBoxLayout()
        layout = QVBoxLayout(self)
        layout.setSpacing(6)
        layout.addWidget(self.title)
        layout.addWidget(self.subtitle)
        layout.addWidget(self.banner)
        layout.addLayout(self.body, 1)
        layout.addLayout(self._build_footer())
        self._look_again = QTimer(self)
        self._look_again.setSingleShot(True)
        self._look_again.setInterval(_PAUSE_MS)
        self._look_again.timeout.connect(self.refresh)
        self._key = ""
        self._is_sending = False
        self._is_footer_last = False
        QShortcut(QKeySequence("Ctrl+Return"), self, self.submit)
        self._set_up()

    # ------------------------------------------------------------------ what a form must have

    def _set_up(self) -> None:
        """Put its own parts in."""
        raise NotImplementedError

    def configs(self) -> list[dict[str, Any]]:
        """The run configs that the form says now; ValueError with words for people while it says none."""
        raise NotImplementedError

    def field_problems(self) -> dict[str, str]:
        """What is wrong with single fields, shown beside them."""
        raise NotImplementedError

    def show_problem(self, name: str, text: str) -> bool:
        """Say something beside a field; False when the form does not have it."""
        raise NotImplementedError

    def field_names(self) -> Sequence[str]:
        raise NotImplementedError

    def load(self, document: Document) -> None:
        """Show a config; NotAConfig when it is none that this form can show."""
        raise NotImplementedError

    def refresh(self) -> None:
        """Something changed a moment ago: previews and the like."""

    def run_title(self) -> str:
        """How the recent list calls what is submitted now."""
        return self.windowTitle()

    # ------------------------------------------------------------------ footer

    def _build_footer(self) -> QHBoxLayout:
        footer = QHBoxLayout()
        self.preset_button = PresetButton(self.shelf, self.builtin_presets, self)
        self.recent_button = RecentButton(self.shelf, self)
        for menu in (self.preset_button, self.recent_button):
            menu.document_chosen.connect(self.load_document)
        self.preset_button.name_chosen.connect(self.save_preset)
        load = self._button(self.tr("&Load JSON …"), "load_json", self._choose_file_to_load)
        save = self._button(self.tr("&Save JSON …"), "save_json", self._choose_file_to_save)
        self.dry_run_button = self._button(self.tr("&Dry run"), "dry_run", self.start_dry_run)
        self.dry_run_button.setToolTip(self.tr("Check everything as the worker would, without starting anything"))
        self.dry_run_button.setVisible(self.presenter.has_dry_run)
        cancel = self._button(self.tr("Close"), "close_form", self.close)
        self.submit_button = self._button(self.tr("&Start"), "submit", self.submit)
        self.submit_button.setProperty("role", "primary")
        # Not the default button: Enter in a field must not start a run. Ctrl+Enter does.
        self.submit_button.setToolTip(self.tr("Ctrl+Enter"))
        left, right = (self.preset_button, self.recent_button, load, save), (self.dry_run_button, cancel)
        for widget in left:
            footer.addWidget(widget)
        footer.addStretch(1)
        for widget in (*right, self.submit_button):
            footer.addWidget(widget)
        self._footer: tuple[QWidget, ...] = (*left, *right, self.submit_button)
        return footer

    def _button(self, text: str, name: str, do: Callable[[], object]) -> QPushButton:
        button = QPushButton(text, self)
        button.setObjectName(name)
        button.setAccessibleName(text.replace("&", ""))
        button.setAutoDefault(False)
        button.clicked.connect(lambda: do())
        return button

    # ------------------------------------------------------------------ submitting

    def problems(self) -> dict[str, str]:
        """Everything that is wrong, by field; under "" what belongs to none of them."""
        found = dict(self.field_problems())
        if found:
            return found  # a config cannot be made of values that are none
        for config in self.configs()[:1]:
            found |= self._placed(self.presenter.problems(config, self.entry.spec))
        return found

    def _placed(self, problems: Sequence[Problem]) -> dict[str, str]:
        from gym_gui.ui.presenters.workers.base import place_of

        found: dict[str, str] = {}
        for problem in problems:
            hint = self.tr(" Did you mean {name}?").format(name=problem.suggestion) if problem.suggestion else ""
            place = place_of(problem, tuple(self.field_names()))
            text = f"{problem.message}.{hint}" if hint else problem.message
            where = text if place or _can_install(problem) else f"{problem.path}: {text}"
            found[place] = f"{found[place]}\n{where}" if place in found else where
        return found

    def check(self) -> bool:
        """Show everything that is wrong; True when nothing is."""
        problems = self.problems()
        for name, text in problems.items():
            if name:
                self.show_problem(name, text)
        if not problems:
            self.banner.clear()
            return True
        self._say_problems(problems)
        return False

    def _say_problems(self, problems: Mapping[str, str], *, can_install: bool = False) -> None:
        fields = [name for name in problems if name]
        words = []
        if fields:
            words.append(self.tr("Please look at: {fields}").format(fields=", ".join(map(self._label_of, fields))))
        if "" in problems:
            words.append(problems[""])
        action = self.tr("Install and start") if can_install else ""
        self.banner.say("\n".join(words), "bad", action=action, on_action=lambda: self.submit(install_missing=True))
        if fields and (widget := self.findChild(QWidget, fields[0])) is not None:
            widget.setFocus(Qt.FocusReason.OtherFocusReason)

    def _label_of(self, name: str) -> str:
        widget = self.findChild(QWidget, name)
        return (widget.accessibleName() if widget is not None else "") or name

    def submit(self, *, install_missing: bool = False) -> None:
        """Check, then queue a run for each config; the form closes when the daemon has taken them."""
        if self._is_sending or not self.check():
            return
        configs = self.configs()
        if install_missing:  # the daemon does it before the run starts
            for config in configs:
                config["metadata"]["worker"]["config"].setdefault("extras", {})["install_missing"] = True
        # One key for as long as the form says the same: an answer that was lost does not make two runs.
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
            self.shelf.remember(self.run_title(), self.configs())
        if error is None:
            self.finish(ids)
            return
        if ids:
            self.submitted.emit(ids)
        told = error.problems if isinstance(error, InvalidConfig) else ()
        problems = self._placed(told) if told else {"": str(error)}
        for name, text in problems.items():
            if name:
                self.show_problem(name, text)
        if ids:
            problems = {**problems, "": self.tr("{count} of the runs were queued before this: {why}").format(
                count=len(ids), why=problems.get("", ""))}  # fmt: skip
        self._say_problems(problems, can_install=any(map(_can_install, told)))

    def finish(self, run_ids: tuple[str, ...]) -> None:
        """The daemon has them all."""
        self._key = ""
        self.submitted.emit(run_ids)
        self.close()

    def _not_queued(self, words: str) -> None:
        self._set_sending(False)
        self.banner.say(self.tr("Nothing was started: {why}").format(why=words), "bad")

    def _set_sending(self, sending: bool) -> None:
        self._is_sending = sending
        self.submit_button.setEnabled(not sending)

    # ------------------------------------------------------------------ dry run

    def start_dry_run(self) -> None:
        """Check as the worker would, off the window's thread."""
        if self.home is None:
            self.show_dry_run(False, self.tr("The daemon is on another machine; a dry run is possible only there."))
            return
        if not self.check():
            return
        config, home = self.configs()[0], self.home
        self.dry_run_button.setEnabled(False)
        self.dry_run_button.setText(self.tr("Checking …"))
        self.background.run(lambda: self.presenter.dry_run(config, home), owner=self, done=self._dry_run_done)

    def _dry_run_done(self, answer: tuple[bool, str]) -> None:
        self.dry_run_button.setEnabled(True)
        self.dry_run_button.setText(self.tr("&Dry run"))
        self.show_dry_run(*answer)

    def show_dry_run(self, good: bool, text: str) -> None:
        """What came of it; a form with a notes panel shows all of it there."""
        if good:
            self.banner.say(self.tr("The dry run found nothing wrong."), "info")
        else:
            self.banner.say(text, "bad")

    # ------------------------------------------------------------------ files

    def _choose_file_to_load(self) -> None:
        dialog = QFileDialog(self, self.tr("Load a run config"), "", self.tr("JSON (*.json);;All files (*)"))
        dialog.setObjectName("load_dialog")
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.setFileMode(QFileDialog.FileMode.ExistingFile)
        dialog.fileSelected.connect(lambda name: self.load_file(Path(name)))
        dialog.open()

    def _choose_file_to_save(self) -> None:
        dialog = QFileDialog(self, self.tr("Save this run config"), "", self.tr("JSON (*.json);;All files (*)"))
        dialog.setObjectName("save_dialog")
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setDefaultSuffix("json")
        dialog.fileSelected.connect(lambda name: self.save_file(Path(name)))
        dialog.open()

    def load_file(self, path: Path) -> None:
        """Read a config from a file and show it."""

        def failed(error: Exception) -> None:
            if not isinstance(error, OSError | ValueError):
                raise error
            words = getattr(error, "strerror", None) or str(error)
            self.banner.say(self.tr("{file} was not loaded: {why}").format(file=path.name, why=words), "bad")

        self.background.run(lambda: _read_json(path), owner=self, done=self.load_document, failed=failed)

    def load_document(self, document: Document) -> None:
        """Show a config; what is not one is said."""
        try:
            self.load(document)
        except NotAConfig as error:
            self.banner.say(self.tr("Not loaded: {why}").format(why=error), "bad")
            return
        self.banner.clear()
        self.refresh()

    def clone(self, run: pb.Run) -> None:
        """Show what a run was started with."""
        self.title.setText(self.tr("Clone of {run}").format(run=run.name or short_id(run.run_id)))

        def show(found: RunConfig) -> None:
            self.load_document(found.document)
            for notice in found.notices:
                self.banner.say(notice, "warning")

        def failed(error: Exception) -> None:
            if not isinstance(error, ConfigUnreadable):
                raise error
            self.banner.say(str(error), "bad")

        self.background.run(lambda: config_of(run), owner=self, done=show, failed=failed)

    def save_file(self, path: Path) -> None:
        """Write what the form says; secrets are left out."""
        configs = self._configs_or_say()
        if not configs:
            return
        text = saved_text(configs)

        def failed(error: Exception) -> None:
            if not isinstance(error, OSError):
                raise error
            words = self.tr("{file} was not saved: {why}").format(file=path, why=error.strerror or error)
            self.banner.say(words, "bad")

        self.background.run(
            lambda: path.write_text(text, encoding="utf-8"),
            owner=self,
            done=lambda _: self.banner.say(self.tr("Saved {file} (secrets are left out).").format(file=path)),
            failed=failed,
        )

    # ------------------------------------------------------------------ presets and recent configs

    def builtin_presets(self) -> Mapping[str, Document]:
        """By name; those a person saved stand below them."""
        return {}

    def save_preset(self, name: str) -> None:
        if name.strip() and (configs := self._configs_or_say()):
            self.shelf.save_preset(name.strip(), configs)
            self.banner.say(self.tr("Saved the preset “{name}”.").format(name=name.strip()))

    # ------------------------------------------------------------------ small things

    def _configs_or_say(self) -> list[dict[str, Any]]:
        """What the form says, or nothing and a word about why."""
        try:
            return self.configs()
        except ValueError as error:
            self.banner.say(str(error), "warning")
            return []

    def changed(self) -> None:
        """A field has changed; what depends on it follows when the typing pauses."""
        self._look_again.start()

    def fit_screen(self, wanted: QSize) -> None:
        """As large as wanted, never larger than the screen."""
        room = self.screen().availableGeometry().size()
        self.resize(min(wanted.width(), room.width() - 40), min(wanted.height(), room.height() - 60))

    def showEvent(self, event: QShowEvent) -> None:
        """The form is complete: the footer comes last for Tab."""
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
    """Submit one after the other; what was queued before something went wrong is told, too."""
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
        data = stream.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"it is larger than {_MOST_BYTES >> 20} MiB")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not valid JSON: {error}") from None
