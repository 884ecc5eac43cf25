"""`CleanRlScriptForm`: run the user's own script, unchanged or as a training with its own flags."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mosaic_wire.errors import SpecError
from mosaic_wire.paths import Home
from mosaic_wire.run_request import Mode, run_request
from mosaic_wire.worker_spec import ScriptSpec
from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtWidgets import (
    QHBoxLayout,
    QHeaderView,
    QLabel,
    QPushButton,
    QRadioButton,
    QTableWidget,
    QTableWidgetItem,
    QVBoxLayout,
    QWidget,
)

from gym_gui.services.trainer.describe import describe_script
from gym_gui.ui.background import Background
from gym_gui.ui.forms.run_form import Document, RunForm
from gym_gui.ui.forms.schema_form import FieldForm, ParsedEditor, SchemaForm
from gym_gui.ui.presenters.workers.train_request import NotAConfig, request_of
from gym_gui.ui.widgets.parts import ask_for_file, fill, named, scrolled, split
from gym_gui.ui.widgets.tables import show_as_rows
from gym_gui.ui.workers.scripts import FoundScript, find_scripts, script_at
from gym_gui.wording.formats import count, parse_steps


class ScriptTable(QWidget):
    """A table with one row per script."""

    chosen = Signal(object)  # FoundScript
    problem = Signal(str)

    def __init__(self, background: Background, home: Home | None, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._background, self._home = background, home
        self._scripts: list[FoundScript] = []
        titles = [self.tr("Script"), self.tr("Description"), self.tr("Phases"), self.tr("Steps"), self.tr("SHA-256")]
        self.view = show_as_rows(named(QTableWidget(0, len(titles), self), "scripts", self.tr("Scripts")))
        self.view.setHorizontalHeaderLabels(titles)
        header = self.view.horizontalHeader()
        header.setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
        header.setSectionResizeMode(1, QHeaderView.ResizeMode.Stretch)
        char_width = self.fontMetrics().averageCharWidth()
        for place, width in ((0, 22), (2, 20), (3, 10), (4, 15)):
            header.resizeSection(place, char_width * width)
        self.view.currentCellChanged.connect(self._row_chosen)
        other = named(QPushButton(self.tr("&Other file …"), self, autoDefault=False), "other_script")
        other.setAccessibleName(self.tr("Open a script that is not in the table"))
        other.clicked.connect(self._choose_file)
        self._state = named(QLabel(self.tr("Searching for scripts …"), self), "script_state", role="caption")
        self._state.setWordWrap(True)
        column = fill(QVBoxLayout(self), (self.view, 1), margins=0)
        below = fill(QHBoxLayout(), (self._state, 1), other)
        column.addLayout(below)

    def set_message(self, text: str) -> None:
        self._state.setText(text)

    def set_scripts(self, scripts: Sequence[FoundScript]) -> None:
        """Show these, and select the first."""
        self._scripts = list(scripts)
        self._fill()
        if scripts:
            self.view.selectRow(0)

    def select(self, script: FoundScript) -> None:
        """Select a script, adding it to the table if necessary."""
        if script.path not in [known.path for known in self._scripts]:
            self._scripts.append(script)
            self._fill()
        self.view.selectRow([known.path for known in self._scripts].index(script.path))

    def choose_path(self, path: Path) -> None:
        """Add and select a file that the user named."""

        def failed(error: Exception) -> None:
            if not isinstance(error, OSError | ValueError):
                raise error
            self.problem.emit(str(error))

        home = self._home
        self._background.run(lambda: script_at(path, home), owner=self, done=self.select, failed=failed)

    def _fill(self) -> None:
        self.view.setRowCount(len(self._scripts))
        for row, script in enumerate(self._scripts):
            steps = count(script.total_timesteps) if script.total_timesteps else ""
            cells = (script.name, script.description, ", ".join(script.phases), steps, script.sha256[:10])
            for column, text in enumerate(cells):
                item = QTableWidgetItem(text)
                item.setToolTip(script.sha256 if column == 4 else str(script.path))
                self.view.setItem(row, column, item)
        self._state.setText(self.tr("Scripts: {count}").format(count=len(self._scripts)))

    def _choose_file(self) -> None:
        ask_for_file(self, self.tr("Choose a script"), self.tr("Scripts (*.py *.sh)"), self.choose_path)

    def _row_chosen(self, row: int, *_others: int) -> None:
        if 0 <= row < len(self._scripts):
            self.chosen.emit(self._scripts[row])


_OWN = ("env_id", "seed", "total_timesteps")
_NO_ENVIRONMENT = "none"


class CleanRlScriptForm(RunForm):
    """A table of scripts with their headers; the arguments of the selected one."""

    KIND = "cleanrl_script"

    def _set_up(self) -> None:
        self.current: FoundScript | None = None
        self.script_spec: ScriptSpec | None = None
        self._unread = ""
        self._requested: dict[str, Any] = {}
        self.setObjectName("script_form")
        self.setWindowTitle(self.tr("Run a script"))
        self.title.setText(self.windowTitle())
        self.subtitle.setText(
            self.tr("Runs with MOSAIC's variables, in its own folder; its logs, curves and checkpoints are stored.")
        )
        self._build()
        self.fit_screen(QSize(1120, 680))
        self._find()

    # ------------------------------------------------------------------ construction

    def _build(self) -> None:
        self.table = ScriptTable(self.background, self.home, self)
        self.table.chosen.connect(self._chosen)
        self.table.problem.connect(lambda text: self.banner.set_message(text, "bad"))
        self.body.addWidget(split("script_split", (self.table, 0), (self._build_right(), 0), sizes=(640, 460)))

    def _build_right(self) -> QWidget:
        self._about = QLabel(self, wordWrap=True, textInteractionFlags=Qt.TextInteractionFlag.TextSelectableByMouse)
        self._about.setObjectName("script_about")
        self.as_it_is = named(QRadioButton(self.tr("Run it as it is (phases, any program)"), self), "script_as_it_is")
        self.as_training = QRadioButton(self.tr("Train with it, using its flags below"), self)
        self.as_training.setObjectName("script_as_training")
        for button in (self.as_it_is, self.as_training):
            button.setAccessibleName(button.text())
        self.as_it_is.setChecked(True)
        self.as_training.toggled.connect(self._show_mode)
        self.fields = FieldForm(self)
        self.fields.add(
            self.tr("Total timesteps"),
            "total_timesteps",
            "json",
            0,
            self.tr("training length; empty: the script's own"),
            editor=ParsedEditor(parse_steps, str, placeholder=self.tr("the script's default"), empty=0),
        )
        self.fields.add(self.tr("Environment"), "env_id", "str", "", self.tr("empty: the script's own"))
        self.fields.add(self.tr("Seed"), "seed", "int", 1, minimum=0)
        self.fields.add(self.tr("Run name"), "run_name", "str", "", self.tr("the script's name when it is empty"))
        self.fields.add(self.tr("CPUs"), "cpus", "float", 1, self.tr("CPUs to reserve"), minimum=0, maximum=4096)
        self.fields.add(self.tr("GPUs"), "gpus", "int", 0, self.tr("GPUs to reserve"), minimum=0, maximum=4096)
        self.fields.add(
            self.tr("Arguments"),
            "arguments",
            "json",
            {},
            self.tr("a JSON object; the script finds it in $MOSAIC_CONFIG_FILE"),
            editor=ParsedEditor(_arguments, json.dumps, placeholder='{"size": 8}', empty={}),
            hint=self.tr("The script finds them in $MOSAIC_CONFIG_FILE, under extras.algo_params."),
        )
        self.parameters = SchemaForm((), self)
        right = QWidget(self)
        column = QVBoxLayout(right)
        column.setContentsMargins(6, 0, 6, 0)
        fill(column, self._about, self.as_it_is, self.as_training, self.fields, self.parameters, 1)
        self.fields.changed.connect(self.changed)
        self.parameters.changed.connect(self.changed)
        self._show_mode()
        return scrolled(right, only_vertical=True)

    # ------------------------------------------------------------------ scripts

    def _find(self) -> None:
        if self.home is None:
            text = self.tr("The daemon is on another machine; scripts on it can be run only there.")
            self.banner.set_message(text, "warning")
            self.table.set_message("")
            return
        home = self.home
        self.background.run(lambda: find_scripts(home), owner=self, done=self._found)

    def _found(self, scripts: list[FoundScript]) -> None:
        self.table.set_scripts(scripts)
        if not scripts and self.home is not None:
            text = self.tr("There is no script in {folder} yet; put one there, or choose a file.")
            self.table.set_message(text.format(folder=self.home.custom_scripts))

    def _chosen(self, script: FoundScript) -> None:
        self.current = script
        self.script_spec, self._unread = None, ""
        lines = [script.description, str(script.path), f"SHA-256 {script.sha256[:32]}…"]
        if script.phases:
            lines.insert(1, self.tr("Phases: {phases}").format(phases=" → ".join(script.phases)))
        if script.env_family:
            lines.insert(1, self.tr("Environments: {family}").format(family=script.env_family))
        self._about.setText("\n".join(filter(None, lines)))
        self._about.setToolTip(script.sha256)
        steps = self.fields["total_timesteps"]
        steps.default = script.total_timesteps or 0
        steps.reset()
        self.as_training.setEnabled(script.is_python)
        self.as_it_is.setEnabled(script.is_allowed)
        self.as_training.setChecked(script.is_python and not script.is_allowed)
        self.as_it_is.setChecked(not self.as_training.isChecked())
        if not script.is_allowed and not script.is_python:
            self.banner.set_message(
                self.tr(
                    "It is not in a folder from which scripts may be run; add its folder to custom_scripts in "
                    "settings.toml, or move it."
                ),
                "warning",
            )
        else:
            self.banner.clear()
        if script.is_python:
            argv, path = self.spec.argv, str(script.path)
            self.background.run(
                lambda: describe_script(argv, path), owner=self, done=self._described, failed=self._not_described
            )
        self._show_mode()

    def _described(self, spec: ScriptSpec) -> None:
        if self.current is None or str(self.current.path) != spec.path:
            return
        self.script_spec = spec
        self.parameters.set_fields(
            tuple(field for field in self.presenter.hyper_parameters(spec.algorithm) if field.name not in _OWN)
        )
        self.parameters.set_values(self._requested)
        self._requested = {}
        env_field = spec.algorithm.field("env_id")
        placeholder = (
            str(env_field.default) if env_field is not None and env_field.default else self.tr("the script's own")
        )
        self.fields["env_id"].editor.widget.setPlaceholderText(placeholder)  # type: ignore[attr-defined]
        self._show_mode()
        self.changed()

    def _not_described(self, error: Exception) -> None:
        if not isinstance(error, SpecError):
            raise error
        self._unread = str(error)
        self._show_mode()

    def _show_mode(self) -> None:
        trains = self.as_training.isChecked()
        self.parameters.setVisible(trains and self.script_spec is not None)
        for name in ("env_id", "seed"):
            self.fields[name].set_visible(trains)
        self.fields["arguments"].set_visible(not trains)
        self.changed()

    # ------------------------------------------------------------------ values

    def configs(self) -> list[dict[str, Any]]:
        script, values = self.current, self.fields.values()
        if script is None:
            raise ValueError(self.tr("Choose a script first."))
        part = self._training(script, values) if self.as_training.isChecked() else self._as_it_is(script, values)
        return [
            run_request(
                self.entry.name,
                module=self.spec.module,
                **part,
                run_name=values["run_name"].strip() or script.name,
                resources={
                    "cpus": {"requested": values["cpus"]},
                    "gpus": {"requested": values["gpus"], "mandatory": values["gpus"]},
                },
            )
        ]

    def _as_it_is(self, script: FoundScript, values: dict[str, Any]) -> dict[str, Any]:
        arguments = {"algo_params": values["arguments"]} if values["arguments"] else {}
        return {
            "algo": Mode.CUSTOM_SCRIPT.value,
            "env_id": script.env_family or "custom",
            "total_timesteps": values["total_timesteps"] or script.total_timesteps or 1,
            "extras": {"mode": Mode.CUSTOM_SCRIPT, "script_path": str(script.path), **arguments},
        }

    def _training(self, script: FoundScript, values: dict[str, Any]) -> dict[str, Any]:
        if self.script_spec is None:
            raise ValueError(self._unread or self.tr("The script is still being read."))
        algorithm = self.script_spec.algorithm
        defaults = {name: field.default for name in _OWN if (field := algorithm.field(name)) is not None}
        total = values["total_timesteps"] or script.total_timesteps or defaults.get("total_timesteps")
        if not total:
            raise ValueError(self.tr("Enter the number of timesteps to train."))
        changed = self.parameters.changed_values()
        return {
            "algo": algorithm.name,
            "env_id": values["env_id"].strip() or defaults.get("env_id") or _NO_ENVIRONMENT,
            "seed": values["seed"],
            "total_timesteps": total,
            "extras": {"script_path": str(script.path), **({"algo_params": changed} if changed else {})},
        }

    def problems(self) -> dict[str, str]:
        found = self.field_problems()
        if found:
            return found
        for config in self.configs():
            trains = self.script_spec is not None and self.as_training.isChecked()
            spec = self.script_spec.added_to(self.spec) if trains and self.script_spec else self.spec
            found |= self._placed(self.presenter.problems(config, spec))
        return found

    def field_names(self) -> Sequence[str]:
        return (*self.fields.names(), *(field.name for field in self.parameters.fields))

    def field_problems(self) -> dict[str, str]:
        found = self.fields.problems()
        if self.as_training.isChecked():
            found |= self.parameters.problems()
        if not found:
            try:
                self.configs()
            except ValueError as error:
                found[""] = str(error)
        return found

    def show_problem(self, name: str, text: str) -> bool:
        if (row := self.fields.row(name)) is not None:
            row.show_problem(text)
            return True
        return self.parameters.show_problem(name, text)

    def load(self, document: Document) -> None:
        request = request_of(document)
        path = request.other_extras.get("script_path")
        if not isinstance(path, str) or not path:
            raise NotAConfig(self.tr("it does not run a script"))
        trains = request.other_extras.get("mode") != Mode.CUSTOM_SCRIPT
        self._requested = dict(request.parameters) if trains else {}
        values = {
            "run_name": request.run_name,
            "cpus": request.cpus,
            "gpus": request.gpus,
            "total_timesteps": request.total_timesteps,
            "arguments": {} if trains else dict(request.parameters),
            "env_id": request.env_id if trains else "",
            "seed": request.seeds[0] if request.seeds[0] is not None else 1,
        }
        home = self.home

        def found(script: FoundScript) -> None:
            self.table.select(script)
            self.as_training.setChecked(trains)
            self.as_it_is.setChecked(not trains)
            self.fields.set_values(values)
            if self.script_spec is not None:
                self.parameters.set_values(self._requested)
            self.refresh()

        def failed(error: Exception) -> None:
            if not isinstance(error, OSError | ValueError):
                raise error
            self.banner.set_message(str(error), "bad")

        self.background.run(lambda: script_at(Path(path), home), owner=self, done=found, failed=failed)

    def run_title(self) -> str:
        return self.current.name if self.current is not None else self.windowTitle()


def _arguments(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError('expected a JSON object such as {"size": 8}')
    return found
