"""The form that starts a training of any worker, made from what the worker says of itself.

Two columns: what is trained, on what, and with which hyper-parameters; and what is watched and written down. A worker
that wants more in the second column derives from this form (`cleanrl_train_form`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mosaic_wire.worker_spec import AlgorithmSpec, FieldSpec
from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtWidgets import (
    QHBoxLayout,
    QScrollArea,
    QSizePolicy,
    QSplitter,
    QVBoxLayout,
    QWidget,
)

from gym_gui.services.trainer.launch import NOT_TRAINING
from gym_gui.ui.forms.algorithm_editor import AlgorithmEditor
from gym_gui.ui.forms.environment_editor import EnvironmentEditor
from gym_gui.ui.forms.field_form import FieldForm, ParsedEditor
from gym_gui.ui.forms.notes_panel import NotesPanel
from gym_gui.ui.forms.schema_form import SchemaForm
from gym_gui.ui.forms.section import Section
from gym_gui.ui.forms.train_side import TrainSide
from gym_gui.ui.presenters.workers.command_line import seeds_text
from gym_gui.ui.presenters.workers.order import NotAConfig, TrainOrder, order_of
from gym_gui.ui.widgets.run_form import Document, RunForm
from gym_gui.ui.workers.environment_families import environments_of, fits
from gym_gui.ui.workers.environment_look import EnvironmentLook, look_at
from gym_gui.wording.values import parse_minutes, parse_seeds, parse_steps

_FIRST_CHOICE = "ppo"
_looks: dict[tuple[str, str], EnvironmentLook] = {}
"""What was found out about environments, for every form of this session"""


class TrainForm(RunForm):
    """Any worker's training."""

    KIND = "train"

    sweep_wanted = Signal(object)  # the config that every trial is to be like

    def _set_up(self) -> None:
        self._other_extras: Mapping[str, Any] = {}
        self._unknown_parameters: dict[str, Any] = {}
        self._shown_algorithm: AlgorithmSpec | None = None
        self.setWindowTitle(self.tr("Train with {worker}").format(worker=self.entry.display_name))
        self.setObjectName("train_form")
        self.title.setText(self.tr("New training"))
        self.subtitle.setText(f"{self.entry.display_name} {self.spec.version}")
        self._build()
        self._begin()
        self.fit_screen(QSize(1240, 760))
        if self.run is not None:  # the one to be like
            self.clone(self.run)

    # ------------------------------------------------------------------ building

    def _build_footer(self) -> QHBoxLayout:
        footer = super()._build_footer()
        self.sweep_button = self._button(self.tr("S&weep …"), "to_sweep", self._go_to_sweep)
        self.sweep_button.setToolTip(self.tr("Search good hyper-parameters instead: a form with these settings"))
        self.sweep_button.setVisible(False)
        footer.insertWidget(footer.indexOf(self.dry_run_button), self.sweep_button)
        self._footer = (*self._footer[:4], self.sweep_button, *self._footer[4:])
        return footer

    def _go_to_sweep(self) -> None:
        if configs := self._configs_or_say():
            self.sweep_wanted.emit(configs[0] if len(configs) == 1 else configs)

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
        scroll = QScrollArea(self)
        scroll.setObjectName("columns")
        scroll.setWidgetResizable(True)
        scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        scroll.setFrameShape(QScrollArea.Shape.NoFrame)
        scroll.setWidget(columns)
        splitter = QSplitter(Qt.Orientation.Horizontal, self)
        splitter.addWidget(scroll)
        self.side = TrainSide(self.presenter, self.spec, self)
        self.side.currentChanged.connect(self.refresh)
        splitter.addWidget(self.side)
        splitter.setStretchFactor(0, 5)
        splitter.setStretchFactor(1, 2)
        splitter.setSizes([800, 430])
        splitter.setChildrenCollapsible(True)
        self.body.addWidget(splitter)

    def _fill_core(self, column: QVBoxLayout) -> None:
        self.core = FieldForm(self)
        self.algorithm = AlgorithmEditor()
        self.environment = EnvironmentEditor()
        add = self.core.add
        add(FieldSpec("algo", "str", ""), self.tr("Algorithm"), editor=self.algorithm, can_reset=False)
        add(FieldSpec("env_id", "str", ""), self.tr("Environment"), editor=self.environment, can_reset=False)
        add(
            FieldSpec("seeds", "json", (1,), self.tr("one run for each: 1, or 1-5, or 1,3,7")), self.tr("Seed(s)"),
            editor=ParsedEditor(lambda text: tuple(parse_seeds(text)), seeds_text, empty=...),
        )  # fmt: skip
        add(
            FieldSpec("total_timesteps", "json", 1, self.tr("500000, 500k or 5e5")), self.tr("Total timesteps"),
            editor=ParsedEditor(parse_steps, str, empty=...),
        )  # fmt: skip
        add(FieldSpec("run_name", "str", "", self.tr("chosen for you when it is empty")), self.tr("Run name"))
        add(
            FieldSpec("tags", "json", (), self.tr("several with commas between them")), self.tr("Tags"),
            editor=ParsedEditor(_tags, ", ".join, empty=()),
        )  # fmt: skip
        add(FieldSpec("agent_id", "str", "", self.tr("how the agent is called in telemetry")), self.tr("Agent id"))
        add(FieldSpec("worker_id", "str", "", self.tr("tells workers apart that work together")), self.tr("Worker id"))
        core = self._section(self.tr("What to train"), "section_core", self.core)
        column.addWidget(core)
        self.parameters = SchemaForm((), self)
        column.addWidget(self._section(self.tr("Hyper-parameters"), "section_parameters", self.parameters))
        self.resources = FieldForm(self)
        self._fill_resources(self.resources)
        column.addWidget(self._section(self.tr("Resources"), "section_resources", self.resources))
        self.core.changed.connect(self._core_changed)
        self.parameters.changed.connect(self.changed)
        self.resources.changed.connect(self.changed)
        self.environment.look_wanted.connect(self._look)

    def _fill_resources(self, form: FieldForm) -> None:
        form.add(FieldSpec("cpus", "float", 1, self.tr("CPUs to reserve"), minimum=0, maximum=4096), self.tr("CPUs"))
        form.add(FieldSpec("gpus", "int", 0, self.tr("GPUs to reserve"), minimum=0, maximum=4096), self.tr("GPUs"))
        form.add(
            FieldSpec("memory_mb", "int", None, self.tr("a limit; empty: none"), nullable=True, minimum=16),
            self.tr("Memory (MB)"),
        )
        form.add(
            FieldSpec("max_wallclock", "json", None, self.tr("90 (minutes), 2h, 1d; empty: no limit"), nullable=True),
            self.tr("Wall-clock limit"),
            editor=ParsedEditor(parse_minutes, lambda value: f"{value:g}", placeholder=self.tr("none"), empty=None),
        )  # fmt: skip
        form.add(
            FieldSpec("priority", "int", 0, self.tr("higher goes first"), minimum=-1000, maximum=1000),
            self.tr("Priority"),
        )
        form.add(
            FieldSpec("retries", "int", 0, self.tr("of a fault, from the last checkpoint"), minimum=0, maximum=100),
            self.tr("Retries"),
        )

    def _fill_analytics(self, column: QVBoxLayout) -> None:
        self.notes = NotesPanel(self)
        self.notes.changed.connect(self.changed)
        column.addWidget(self._section(self.tr("Notes"), "section_notes", self.notes))

    def _section(self, title: str, name: str, content: QWidget, *, is_open: bool = True) -> Section:
        section = Section(title, name, self, is_open=is_open)
        layout = QVBoxLayout(section.body)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(content)
        return section

    def _begin(self) -> None:
        """What a form shows before anybody touched it."""
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

    # ------------------------------------------------------------------ what depends on what

    def _core_changed(self) -> None:
        self._show_algorithm()
        self._show_fitting()
        self.changed()

    def _show_algorithm(self) -> None:
        """Another algorithm: its parameters, and its defaults where nobody said otherwise."""
        chosen = self.algorithm.algorithm()
        if chosen is None or chosen == self._shown_algorithm:
            return
        self._shown_algorithm = chosen
        self.parameters.set_fields(self.presenter.hyper_parameters(chosen))
        steps = self.core["total_timesteps"]
        usual = chosen.field("total_timesteps")
        if usual is not None and usual.default:
            was_changed = steps.is_changed
            steps.default = usual.default
            steps.set_value(steps.value() if was_changed and not steps.own_problem else usual.default)
        env_field = chosen.field("env_id")
        if env_field is not None and env_field.default and not self.environment.combo.currentText():
            self.core.set_values({"env_id": env_field.default})

    def _show_fitting(self) -> None:
        self.algorithm.set_algorithms(
            self.presenter.algorithms(self.spec),
            self.presenter.fitting(self.spec, self.environment.actions, self.environment.observations),
        )

    def _look(self, env_id: str) -> None:
        """Ask about an environment, off the window's thread; once for each id and interpreter."""
        python = self.presenter.interpreter(self.spec) if self.home is not None else ""
        known = _looks.get((python, env_id))
        if known is not None or not python:
            self._show_look(known or EnvironmentLook(env_id))
            return
        self.background.run(lambda: _looked_at(python, env_id), owner=self, done=self._show_look)

    def _show_look(self, look: EnvironmentLook) -> None:
        self.environment.show_look(look)
        self._show_fitting()
        self.core["algo"].show_problem(self._misfit())
        self.changed()

    def _misfit(self) -> str:
        """Why the chosen algorithm cannot learn in the chosen environment; empty when it can, or nobody knows."""
        chosen, environment = self.algorithm.algorithm(), self.environment
        if chosen is None or not environment.is_known:
            return ""
        if fits(chosen, environment.actions, environment.observations):
            return ""
        return self.tr("{algo} needs {needed}; {env} has {has}").format(
            algo=chosen.name,
            needed=self._spaces(" / ".join(chosen.action_spaces), " / ".join(chosen.observation_spaces)),
            env=environment.look.env_id,
            has=self._spaces(environment.actions, environment.observations),
        )

    def _spaces(self, actions: str, observations: str) -> str:
        parts = [
            self.tr("{kind} actions").format(kind=actions) if actions else "",
            self.tr("{kind} observations").format(kind=observations) if observations else "",
        ]
        return ", ".join(filter(None, parts))

    # ------------------------------------------------------------------ values

    def order(self) -> TrainOrder:
        """Everything the form says."""
        core, resources = self.core.values(), self.resources.values()
        return TrainOrder(
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

    def set_order(self, order: TrainOrder) -> None:
        """Show an order; what it does not say goes back to how a new form is."""
        self.core.set_values({"algo": order.algo})
        self._show_algorithm()
        self.core.set_values(
            {
                "env_id": order.env_id,
                "seeds": tuple(1 if seed is None else seed for seed in order.seeds),
                "total_timesteps": order.total_timesteps or self.core["total_timesteps"].default,
                "run_name": order.run_name, "tags": order.tags, "agent_id": order.agent_id,
                "worker_id": order.worker_id,
            }
        )  # fmt: skip
        self.resources.set_values(
            {
                "cpus": order.cpus, "gpus": order.gpus, "memory_mb": order.memory_mb,
                "max_wallclock": order.max_wallclock_minutes, "priority": order.priority, "retries": order.retries,
            }
        )  # fmt: skip
        shown = {field.name for field in self.parameters.fields}
        self.parameters.set_values(order.parameters)
        self._unknown_parameters = {key: value for key, value in order.parameters.items() if key not in shown}
        self._other_extras = dict(order.other_extras)
        self.notes.set_notes(order.notes)

    def configs(self) -> list[dict[str, Any]]:
        return self.presenter.configs(self.order(), self.spec)

    def load(self, document: Document) -> None:
        order = order_of(document)
        if order.worker_type not in ("", self.entry.name, *self.entry.other_names):
            raise NotAConfig(self.tr("it is for the worker {name}").format(name=order.worker_type))
        if (mode := order.other_extras.get("mode")) in NOT_TRAINING:
            raise NotAConfig(self.tr("it trains nothing (its mode is {mode})").format(mode=mode))
        self.set_order(order)

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
        if "algo" not in found and (misfit := self._misfit()):
            found["algo"] = misfit
        return found

    def show_problem(self, name: str, text: str) -> bool:
        for form in self.field_forms():
            if (row := form.row(name)) is not None:
                row.show_problem(text)
                return True
        return self.parameters.show_problem(name, text)

    # ------------------------------------------------------------------ what is shown beside it

    def refresh(self) -> None:
        self.side.show_order(self.order(), self.algorithm.algorithm())

    def show_dry_run(self, good: bool, text: str) -> None:
        title = self.tr("Dry run: it would run") if good else self.tr("Dry run: it would not run")
        self.notes.add_check(title, text)
        if good:
            self.banner.say(self.tr("The dry run found nothing wrong; what it said is under Notes."), "info")
        else:
            self.banner.say(self.tr("The dry run found something wrong; what it said is under Notes."), "warning")

    def run_title(self) -> str:
        order = self.order()
        seeds = seeds_text([seed for seed in order.seeds if seed is not None])
        return self.tr("{algo} {env} seed {seeds}").format(algo=order.algo, env=order.env_id, seeds=seeds)

    def dotenv_folders(self) -> list[Path]:
        """Where a `.env` may lie: where the window was started, in the home and beside it."""
        home = [self.home.root, self.home.root.parent] if self.home is not None else []
        return [Path.cwd(), *home]


def _looked_at(python: str, env_id: str) -> EnvironmentLook:
    """In a thread; an answer is kept also when the form that asked has been closed meanwhile."""
    look = look_at(python, env_id)
    if not look.problem:
        _looks[python, env_id] = look
    return look


def _column() -> QVBoxLayout:
    column = QVBoxLayout()
    column.setContentsMargins(0, 0, 0, 0)
    column.setSpacing(8)
    return column


def _tags(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (tag.strip() for tag in text.split(","))))
