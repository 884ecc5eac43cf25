"""The form that starts a training of any worker, made from the worker's description.

Two columns: what to train and with which hyper-parameters; monitoring and logging. Workers that need more in the second
column derive from this form (`cleanrl_train_form`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from mosaic_wire.redaction import redact_document, secret_values
from mosaic_wire.run_request import NOT_TRAINING, Extras
from mosaic_wire.worker_spec import AlgorithmSpec, WorkerSpec
from PySide6.QtCore import QCoreApplication, QObject, QSize, Qt, Signal
from PySide6.QtGui import QFontMetricsF, QGuiApplication, QStandardItem, QStandardItemModel
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QCompleter,
    QHBoxLayout,
    QLabel,
    QPlainTextEdit,
    QPushButton,
    QSizePolicy,
    QTabWidget,
    QTextBrowser,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from gym_gui.ui import theme
from gym_gui.ui.forms.editors import ComboBox, Editor
from gym_gui.ui.forms.environment_editor import EnvironmentEditor
from gym_gui.ui.forms.run_form import Document, RunForm
from gym_gui.ui.forms.schema_form import FieldForm, ParsedEditor, SchemaForm, Section
from gym_gui.ui.presenters.workers.registry import WorkerPresenter
from gym_gui.ui.presenters.workers.train_request import NotAConfig, TrainRequest, request_of, seeds_text
from gym_gui.ui.widgets.parts import fill, named, scrolled, split, styled
from gym_gui.ui.workers.environments import EnvironmentPreview, environments_of, fits, inspect_environment
from gym_gui.ui.workers.translation import PRESENTERS
from gym_gui.wording.commands import with_options
from gym_gui.wording.formats import parse_minutes, parse_seeds, parse_steps


class AlgorithmEditor(Editor):
    """A searchable list; `value()` is the name of the algorithm."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._all: tuple[AlgorithmSpec, ...] = ()
        self._fitting: tuple[AlgorithmSpec, ...] = ()
        self.widget = QWidget()
        self.combo = named(ComboBox(), "algo_choice", self.tr("Algorithm"))
        self.combo.setEditable(True)
        self.combo.setInsertPolicy(QComboBox.InsertPolicy.NoInsert)
        self.combo.setMaxVisibleItems(20)
        self._model = QStandardItemModel(self.combo)
        self.combo.setModel(self._model)
        completer = QCompleter(self._model, self.combo)
        completer.setFilterMode(Qt.MatchFlag.MatchContains)
        completer.setCaseSensitivity(Qt.CaseSensitivity.CaseInsensitive)
        completer.setCompletionMode(QCompleter.CompletionMode.PopupCompletion)
        self.combo.setCompleter(completer)
        self.show_all = named(QCheckBox(self.tr("Show all algorithms")), "algo_show_all")
        self.show_all.setToolTip(self.tr("Also those that do not fit the environment"))
        self.show_all.setAccessibleName(self.show_all.text())
        self._about = named(QLabel(wordWrap=True), "algo_about", role="caption")
        layout = QVBoxLayout(self.widget)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(2)
        fill(layout, self.combo, self._about, self.show_all)
        self.widget.setFocusProxy(self.combo)
        self.combo.currentTextChanged.connect(self._on_text)
        self.show_all.toggled.connect(lambda: self._fill())

    def set_algorithms(self, known: Sequence[AlgorithmSpec], fitting: Sequence[AlgorithmSpec]) -> None:
        """Set all algorithms of the worker and those that fit the environment; keep the selection."""
        if (tuple(known), tuple(fitting)) == (self._all, self._fitting):
            return
        self._all, self._fitting = tuple(known), tuple(fitting)
        self.show_all.setVisible(len(self._fitting) < len(self._all))
        self._fill()

    def algorithm(self) -> AlgorithmSpec | None:
        """Return the selected algorithm, if it exists."""
        name = self.combo.currentText().strip()
        return next((known for known in self._all if known.name == name), None)

    def value(self) -> str:
        text = self.combo.currentText().strip()
        if not text:
            raise ValueError(self.tr("choose an algorithm"))
        return text

    def set_value(self, value: object) -> None:
        text = str(value or "")
        if text != self.combo.currentText():
            place = self.combo.findText(text, Qt.MatchFlag.MatchExactly)
            if place >= 0:
                self.combo.setCurrentIndex(place)
            else:
                self.combo.setEditText(text)

    def _fill(self) -> None:
        chosen = self.combo.currentText()
        shown = self._all if self.show_all.isChecked() else self._fitting
        self.combo.blockSignals(True)
        self._model.clear()
        for known in sorted(shown, key=lambda algorithm: bool(algorithm.unavailable)):
            item = QStandardItem(known.name)
            item.setToolTip(known.unavailable or known.help)
            if known.unavailable:
                item.setFlags(item.flags() & ~Qt.ItemFlag.ItemIsEnabled)
            self._model.appendRow(item)
        place = self.combo.findText(chosen, Qt.MatchFlag.MatchExactly)
        self.combo.setCurrentIndex(place)
        if place < 0:
            self.combo.setEditText(chosen)
        self.combo.blockSignals(False)
        self._describe()

    def _on_text(self) -> None:
        self._describe()
        self.changed.emit()

    def _describe(self) -> None:
        known = self.algorithm()
        if known is None:
            text = self.tr("Algorithms that fit this environment: {count}")
            self._about.setText(text.format(count=len(self._fitting)))
            return
        spaces = " · ".join(
            filter(None, (known.help, ", ".join(known.action_spaces), ", ".join(known.observation_spaces)))
        )
        self._about.setText(spaces)


class NotesPanel(QWidget):
    """`notes` belong to the user; the log of checks is never part of them."""

    changed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("notes_panel")
        self._notes = named(QPlainTextEdit(self), "notes", self.tr("Notes, stored with the run"))
        self._notes.setPlaceholderText(self.tr("Why this run? Stored with it and shown on its page."))
        self._notes.setTabChangesFocus(True)
        self._notes.textChanged.connect(self.changed)
        self._checks = QPlainTextEdit(self, readOnly=True, tabChangesFocus=True, maximumBlockCount=2000)
        self._checks.setObjectName("dry_run_output")
        self._checks.setAccessibleName(self.tr("Results of checks; not stored with the run"))
        self._checks.setFont(theme.monospace())
        self._checks.setLineWrapMode(QPlainTextEdit.LineWrapMode.WidgetWidth)
        self._checks.setPlaceholderText(
            self.tr("A dry run checks this form as the worker does; its result appears here.")
        )
        line = QFontMetricsF(self.font()).lineSpacing()
        self._notes.setMinimumHeight(round(line * 3.5))
        self._notes.setMaximumHeight(round(line * 7))
        self._checks.setMinimumHeight(round(line * 9))
        self._checks.setMaximumHeight(round(line * 18))
        clear = named(QToolButton(self), "dry_run_clear", self.tr("Clear the results of checks"))
        clear.setText(self.tr("Clear"))
        clear.clicked.connect(self._checks.clear)
        layout = fill(QVBoxLayout(self), self._notes, margins=(8, 2, 0, 6), spacing=4)
        heading = QHBoxLayout()
        caption = styled(QLabel(self.tr("Checks (not stored with the run)"), self), "caption")
        fill(heading, (caption, 1), clear)
        fill(layout, heading, (self._checks, 1))

    @property
    def notes(self) -> str:
        """Return the user's notes."""
        return self._notes.toPlainText().strip()

    def set_notes(self, text: str) -> None:
        if text != self._notes.toPlainText():
            self._notes.setPlainText(text)

    @property
    def checks(self) -> str:
        """Return the results of all checks."""
        return self._checks.toPlainText()

    def add_check(self, title: str, text: str, when: datetime | None = None) -> None:
        """Append a result with its time."""
        stamp = (when or datetime.now()).strftime("%Y-%m-%d %H:%M:%S")
        if self.checks:
            self._checks.appendPlainText("")
        self._checks.appendPlainText(f"[{stamp}] {title}")
        heading = self._checks.document().lastBlock()
        self._checks.appendPlainText(text.strip())
        # Scroll to the first line, which has the verdict.
        self._checks.verticalScrollBar().setValue(heading.firstLineNumber())


class TextPreview(QWidget):
    """A read-only text in a monospaced font, with a note above it and a copy button."""

    def __init__(self, name: str, title: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._text = named(QPlainTextEdit(self, readOnly=True), name, title)
        self._text.setFont(theme.monospace())
        self._text.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self._text.setTabChangesFocus(True)
        self._remark = named(QLabel(self, wordWrap=True), f"{name}_remark", role="caption")
        copy = named(QPushButton(self.tr("&Copy"), self), f"{name}_copy", self.tr("Copy {what}").format(what=title))
        copy.clicked.connect(lambda: QGuiApplication.clipboard().setText(self.text))
        layout = QVBoxLayout(self)
        top = fill(QHBoxLayout(), (self._remark, 1), copy)
        fill(layout, top, (self._text, 1))

    @property
    def text(self) -> str:
        return self._text.toPlainText()

    @property
    def remark(self) -> str:
        return self._remark.text()

    def show_text(self, text: str, remark: str = "") -> None:
        if text != self.text:
            place = self._text.verticalScrollBar().value()
            self._text.setPlainText(text)
            self._text.verticalScrollBar().setValue(place)
        self._remark.setText(remark)


def shown_json(configs: Sequence[Mapping[str, Any]]) -> str:
    """Return the first config as indented JSON without secrets."""
    if not configs:
        return ""
    first = configs[0]
    return json.dumps(redact_document(first, secret_values(first)), indent=2, ensure_ascii=False)


class TrainSide(QTabWidget):
    """Fills only the visible tab."""

    def __init__(
        self, presenter: WorkerPresenter, spec: WorkerSpec, parent: QWidget | None = None, *, connect_options: str = ""
    ) -> None:
        super().__init__(parent)
        self._presenter, self._spec, self._connect_options = presenter, spec, connect_options
        self._shown_help: str | None = None
        named(self, "side_tabs", self.tr("Help and preview"))
        self.help = named(QTextBrowser(self), "algorithm_help", self.tr("About the algorithm"))
        self.help.setOpenExternalLinks(True)
        self.json_preview = TextPreview("json_preview", self.tr("the config"), self)
        self.command_preview = TextPreview("command_preview", self.tr("the command line"), self)
        self.addTab(self.help, self.tr("About"))
        self.addTab(self.json_preview, self.tr("JSON"))
        self.addTab(self.command_preview, self.tr("Command"))

    def show_request(self, request: TrainRequest, algorithm: AlgorithmSpec | None) -> None:
        shown = self.currentWidget()
        if shown is self.help:
            self._show_help(algorithm)
        elif shown is self.json_preview:
            self._show_json(request)
        else:
            self._show_command(request)

    def _show_help(self, algorithm: AlgorithmSpec | None) -> None:
        name = algorithm.name if algorithm is not None else ""
        if self._shown_help != name:
            self._shown_help = name
            self.help.setHtml(self._presenter.help_page(algorithm) if algorithm is not None else "")

    def _show_json(self, request: TrainRequest) -> None:
        configs = self._presenter.configs(request, self._spec)
        more = len(configs) - 1
        remark = self.tr("And {count} more, for the other seeds. ").format(count=more) if more else ""
        self.json_preview.show_text(shown_json(configs), remark + self.tr("Secrets are not shown."))

    def _show_command(self, request: TrainRequest) -> None:
        command = self._presenter.command(request, self._spec)
        remark = ""
        if command.only_in_json:
            text = self.tr("There is no flag for: {names}. Save the JSON and use `mosaic submit FILE` for these.")
            remark = text.format(names=", ".join(command.only_in_json))
        self.command_preview.show_text(with_options(command.text, self._connect_options), remark)


_FIRST_CHOICE = "ppo"
_previews: dict[tuple[str, str], EnvironmentPreview] = {}
"""Previews of environments, shared by all forms of this session"""


class TrainForm(RunForm):
    """The training form of any worker."""

    KIND = "train"

    sweep_requested = Signal(object)  # the config of every trial

    def _set_up(self) -> None:
        self._other_extras = Extras()
        self._unknown_parameters: dict[str, Any] = {}
        self._shown_algorithm: AlgorithmSpec | None = None
        self.setWindowTitle(self.tr("Train with {worker}").format(worker=self.entry.display_name))
        self.setObjectName("train_form")
        self.title.setText(self.tr("New training"))
        self.subtitle.setText(f"{self.entry.display_name} {self.spec.version}")
        self._build()
        self._begin()
        self.fit_screen(QSize(1240, 760))
        if self.run is not None:  # the run to clone
            self.clone(self.run)

    # ------------------------------------------------------------------ construction

    def _build_footer(self) -> QHBoxLayout:
        footer = super()._build_footer()
        self.sweep_button = self._button(self.tr("S&weep …"), "to_sweep", self._go_to_sweep)
        self.sweep_button.setToolTip(self.tr("Search for good hyper-parameters instead, starting from these settings"))
        self.sweep_button.setVisible(False)
        footer.insertWidget(footer.indexOf(self.dry_run_button), self.sweep_button)
        self._footer = (*self._footer[:4], self.sweep_button, *self._footer[4:])
        return footer

    def _go_to_sweep(self) -> None:
        if configs := self._configs_or_report():
            self.sweep_requested.emit(configs[0] if len(configs) == 1 else configs)

    def _build(self) -> None:
        self.core_column, self.analytics_column = _column(), _column()
        self._fill_core(self.core_column)
        self._fill_analytics(self.analytics_column)
        for column in (self.core_column, self.analytics_column):
            column.addStretch(1)
        columns = QWidget(self)
        side_by_side = QHBoxLayout(columns)
        side_by_side.setContentsMargins(0, 0, 6, 0)
        side_by_side.setSpacing(14)
        for column in (self.core_column, self.analytics_column):
            holder = QWidget(columns)
            holder.setLayout(column)
            holder.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
            side_by_side.addWidget(holder, 1)
        scroll = named(scrolled(columns, only_vertical=True), "columns")
        self.side = TrainSide(self.presenter, self.spec, self, connect_options=self.link.connect_options)
        self.side.currentChanged.connect(self.refresh)
        splitter = split("train_split", (scroll, 5), (self.side, 2), is_collapsible=True, sizes=(800, 430))
        self.body.addWidget(splitter)

    def _fill_core(self, column: QVBoxLayout) -> None:
        self.core = FieldForm(self)
        self.algorithm = AlgorithmEditor()
        self.environment = EnvironmentEditor()
        add = self.core.add
        add(self.tr("Algorithm"), "algo", "str", "", editor=self.algorithm, can_reset=False)
        add(self.tr("Environment"), "env_id", "str", "", editor=self.environment, can_reset=False)
        add(
            self.tr("Seed(s)"),
            "seeds",
            "json",
            (1,),
            self.tr("one run for each: 1, or 1-5, or 1,3,7"),
            editor=ParsedEditor(lambda text: tuple(parse_seeds(text)), seeds_text, empty=...),
        )
        add(
            self.tr("Total timesteps"),
            "total_timesteps",
            "json",
            1,
            self.tr("500000, 500k or 5e5"),
            editor=ParsedEditor(parse_steps, str, empty=...),
        )
        add(self.tr("Run name"), "run_name", "str", "", self.tr("empty: generated"))
        add(
            self.tr("Tags"),
            "tags",
            "json",
            (),
            self.tr("several with commas between them"),
            editor=ParsedEditor(_tags, ", ".join, empty=()),
        )
        add(self.tr("Agent id"), "agent_id", "str", "", self.tr("the agent's name in telemetry"))
        add(self.tr("Worker id"), "worker_id", "str", "", self.tr("distinguishes cooperating workers"))
        core = self._section(self.tr("Training"), "section_core", self.core)
        column.addWidget(core)
        self.parameters = SchemaForm((), self)
        column.addWidget(self._section(self.tr("Hyper-parameters"), "section_parameters", self.parameters))
        self.resources = FieldForm(self)
        self._fill_resources(self.resources)
        column.addWidget(self._section(self.tr("Resources"), "section_resources", self.resources))
        self.core.changed.connect(self._core_changed)
        self.parameters.changed.connect(self.changed)
        self.resources.changed.connect(self.changed)
        self.environment.preview_requested.connect(self._poll)

    def _fill_resources(self, form: FieldForm) -> None:
        form.add(self.tr("CPUs"), "cpus", "float", 1, self.tr("CPUs to reserve"), minimum=0, maximum=4096)
        form.add(self.tr("GPUs"), "gpus", "int", 0, self.tr("GPUs to reserve"), minimum=0, maximum=4096)
        form.add(
            self.tr("Memory (MB)"), "memory_mb", "int", None, self.tr("a limit; empty: none"), nullable=True, minimum=16
        )
        form.add(
            self.tr("Wall-clock limit"),
            "max_wallclock",
            "json",
            None,
            self.tr("90 (minutes), 2h, 1d; empty: no limit"),
            nullable=True,
            editor=ParsedEditor(parse_minutes, lambda value: f"{value:g}", placeholder=self.tr("none"), empty=None),
        )
        form.add(self.tr("Priority"), "priority", "int", 0, self.tr("higher goes first"), minimum=-1000, maximum=1000)
        form.add(
            self.tr("Retries"),
            "retries",
            "int",
            0,
            self.tr("after a fault, from the last checkpoint"),
            minimum=0,
            maximum=100,
        )

    def _fill_analytics(self, column: QVBoxLayout) -> None:
        self.notes = NotesPanel(self)
        self.notes.changed.connect(self.changed)
        column.addWidget(self._section(self.tr("Notes"), "section_notes", self.notes))

    def _section(self, title: str, name: str, content: QWidget, *, is_open: bool = True) -> Section:
        section = Section(title, name, self, is_open=is_open)
        fill(QVBoxLayout(section.body), content, margins=0)
        return section

    def _begin(self) -> None:
        """Show the initial values of a new form."""
        known = self.presenter.algorithms(self.spec)
        usable = [algorithm for algorithm in known if not algorithm.unavailable]
        self.environment.set_environments(environments_of(self.spec))
        self.algorithm.set_algorithms(known, known)
        preferred = [algorithm for algorithm in usable if algorithm.name == _FIRST_CHOICE]
        first = next(iter((*preferred, *usable)), None)
        if first is not None:
            self.core.set_values({"algo": first.name})
            self._show_algorithm()
        self.changed()

    # ------------------------------------------------------------------ dependent fields

    def _core_changed(self) -> None:
        self._show_algorithm()
        self._show_fitting()
        self.changed()

    def _show_algorithm(self) -> None:
        """Show the parameters of the selected algorithm, and its defaults for unchanged fields."""
        chosen = self.algorithm.algorithm()
        if chosen is None or chosen == self._shown_algorithm:
            return
        self._shown_algorithm = chosen
        self.parameters.set_fields(self.presenter.hyper_parameters(chosen))
        steps = self.core["total_timesteps"]
        steps_field = chosen.field("total_timesteps")
        if steps_field is not None and steps_field.default:
            was_changed = steps.is_changed
            steps.default = steps_field.default
            steps.set_value(steps.value() if was_changed and not steps.own_problem else steps_field.default)
        env_field = chosen.field("env_id")
        if env_field is not None and env_field.default and not self.environment.combo.currentText():
            self.core.set_values({"env_id": env_field.default})

    def _show_fitting(self) -> None:
        self.algorithm.set_algorithms(
            self.presenter.algorithms(self.spec),
            self.presenter.fitting(self.spec, self.environment.actions, self.environment.observations),
        )

    def _poll(self, env_id: str) -> None:
        """Preview an environment in the background, once per id and interpreter."""
        python = self.presenter.interpreter(self.spec) if self.home is not None else ""
        known = _previews.get((python, env_id))
        if known is not None or not python:
            self._show_preview(known or EnvironmentPreview(env_id))
            return
        self.background.run(lambda: _preview_environment(python, env_id), owner=self, done=self._show_preview)

    def _show_preview(self, preview: EnvironmentPreview) -> None:
        self.environment.show_preview(preview)
        self._show_fitting()
        self.core["algo"].show_problem(self._incompatibility())
        self.changed()

    def _incompatibility(self) -> str:
        """Return why the algorithm does not support the environment; empty if it does or this is unknown."""
        chosen, environment = self.algorithm.algorithm(), self.environment
        if chosen is None or not environment.is_known:
            return ""
        if fits(chosen, environment.actions, environment.observations):
            return ""
        return self.tr("{algo} needs {needed}; {env} has {has}").format(
            algo=chosen.name,
            needed=self._spaces(" / ".join(chosen.action_spaces), " / ".join(chosen.observation_spaces)),
            env=environment.preview.env_id,
            has=self._spaces(environment.actions, environment.observations),
        )

    def _spaces(self, actions: str, observations: str) -> str:
        parts = [
            self.tr("{kind} actions").format(kind=actions) if actions else "",
            self.tr("{kind} observations").format(kind=observations) if observations else "",
        ]
        return ", ".join(filter(None, parts))

    # ------------------------------------------------------------------ values

    def request(self) -> TrainRequest:
        """Return the request of the form."""
        core, resources = self.core.values(), self.resources.values()
        return TrainRequest(
            worker_type=self.entry.name,
            algo=self.algorithm.combo.currentText().strip(),
            env_id=self.environment.combo.currentText().strip(),
            seeds=tuple(core["seeds"]),
            total_timesteps=core["total_timesteps"],
            run_name=core["run_name"].strip(),
            tags=core["tags"],
            agent_id=core["agent_id"].strip(),
            worker_id=core["worker_id"].strip(),
            cpus=resources["cpus"],
            gpus=resources["gpus"],
            gpus_mandatory=resources["gpus"],
            memory_mb=resources["memory_mb"],
            max_wallclock_minutes=resources["max_wallclock"],
            priority=resources["priority"],
            retries=resources["retries"],
            parameters={**self.parameters.changed_values(), **self._unknown_parameters},
            notes=self.notes.notes,
            other_extras=self._other_extras,
        )

    def set_request(self, request: TrainRequest) -> None:
        """Show a request; omitted values return to the defaults of a new form."""
        self.core.set_values({"algo": request.algo})
        self._show_algorithm()
        self.core.set_values(
            {
                "env_id": request.env_id,
                "seeds": tuple(1 if seed is None else seed for seed in request.seeds),
                "total_timesteps": request.total_timesteps or self.core["total_timesteps"].default,
                "run_name": request.run_name,
                "tags": request.tags,
                "agent_id": request.agent_id,
                "worker_id": request.worker_id,
            }
        )
        self.resources.set_values(
            {
                "cpus": request.cpus,
                "gpus": request.gpus,
                "memory_mb": request.memory_mb,
                "max_wallclock": request.max_wallclock_minutes,
                "priority": request.priority,
                "retries": request.retries,
            }
        )
        shown = {field.name for field in self.parameters.fields}
        self.parameters.set_values(request.parameters)
        self._unknown_parameters = {key: value for key, value in request.parameters.items() if key not in shown}
        self._other_extras = request.other_extras.copy()
        self.notes.set_notes(request.notes)

    def configs(self) -> list[dict[str, Any]]:
        return self.presenter.configs(self.request(), self.spec)

    def builtin_presets(self) -> Mapping[str, Document]:
        known = {algorithm.name for algorithm in self.spec.algorithms if not algorithm.unavailable}
        return {
            QCoreApplication.translate(PRESENTERS, title): self.presenter.configs(
                replace(request, worker_type=self.entry.name), self.spec
            )
            for title, request in self.presenter.presets().items()
            if request.algo in known
        }

    def load(self, document: Document) -> None:
        request = request_of(document)
        if request.worker_type not in ("", self.entry.name, *self.entry.other_names):
            raise NotAConfig(self.tr("it is for the worker {name}").format(name=request.worker_type))
        if (mode := request.other_extras.get("mode")) in NOT_TRAINING:
            raise NotAConfig(self.tr("it does not train (its mode is {mode})").format(mode=mode))
        self.set_request(request)

    # ------------------------------------------------------------------ problems

    def field_forms(self) -> Sequence[FieldForm]:
        return (self.core, self.resources)

    def field_names(self) -> Sequence[str]:
        own = [name for form in self.field_forms() for name in form.names()]
        return (*own, *(field.name for field in self.parameters.fields))

    def field_problems(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for form in self.field_forms():
            found |= form.problems()
        found |= self.parameters.problems()
        if "algo" not in found and (misfit := self._incompatibility()):
            found["algo"] = misfit
        return found

    def show_problem(self, name: str, text: str) -> bool:
        for form in self.field_forms():
            if (row := form.row(name)) is not None:
                row.show_problem(text)
                return True
        return self.parameters.show_problem(name, text)

    # ------------------------------------------------------------------ previews

    def refresh(self) -> None:
        self.side.show_request(self.request(), self.algorithm.algorithm())

    def show_dry_run(self, good: bool, text: str) -> None:
        title = self.tr("Dry run: it can run") if good else self.tr("Dry run: it cannot run")
        self.notes.add_check(title, text)
        if good:
            self.banner.set_message(self.tr("The dry run found nothing wrong; its output is under Notes."), "info")
        else:
            self.banner.set_message(self.tr("The dry run found something wrong; its output is under Notes."), "warning")

    def run_title(self) -> str:
        request = self.request()
        seeds = seeds_text([seed for seed in request.seeds if seed is not None])
        return self.tr("{algo} {env} seed {seeds}").format(algo=request.algo, env=request.env_id, seeds=seeds)

    def dotenv_folders(self) -> list[Path]:
        """Return the folders searched for `.env`: the working directory, the home and its parent."""
        home = [self.home.root, self.home.root.parent] if self.home is not None else []
        return [Path.cwd(), *home]


def _preview_environment(python: str, env_id: str) -> EnvironmentPreview:
    """Preview in a thread and cache the result, even if the form was closed meanwhile."""
    preview = inspect_environment(python, env_id)
    if not preview.problem:
        _previews[python, env_id] = preview
    return preview


def _column() -> QVBoxLayout:
    column = QVBoxLayout()
    column.setContentsMargins(0, 0, 0, 0)
    column.setSpacing(8)
    return column


def _tags(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (tag.strip() for tag in text.split(","))))
