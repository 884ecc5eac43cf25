"""`CleanRlScriptForm`: run a script of one's own, as it is or, for a Python file that trains, with its own flags."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mosaic_wire.errors import SpecError
from mosaic_wire.worker_spec import FieldSpec, ScriptSpec
from PySide6.QtCore import QSize, Qt
from PySide6.QtWidgets import (
    QLabel,
    QRadioButton,
    QScrollArea,
    QSplitter,
    QVBoxLayout,
    QWidget,
)

from gym_gui.services.trainer.describe import describe_script
from gym_gui.ui.forms.field_form import FieldForm, ParsedEditor
from gym_gui.ui.forms.schema_form import SchemaForm
from gym_gui.ui.forms.script_table import ScriptTable
from gym_gui.ui.presenters.workers.order import NotAConfig, order_of
from gym_gui.ui.widgets.run_form import Document, RunForm
from gym_gui.ui.workers.scripts import FoundScript, find_scripts, script_at
from gym_gui.wording.values import parse_steps

CUSTOM_SCRIPT = "custom_script"
_OWN = ("env_id", "seed", "total_timesteps")
_NO_ENVIRONMENT = "none"


class CleanRlScriptForm(RunForm):
    """Scripts with what they say of themselves; the arguments of the chosen one."""

    KIND = "cleanrl_script"

    def _set_up(self) -> None:
        self.current: FoundScript | None = None
        self.script_spec: ScriptSpec | None = None
        self._unread = ""
        self._wanted: dict[str, Any] = {}
        self.setObjectName("script_form")
        self.setWindowTitle(self.tr("Run a script"))
        self.title.setText(self.windowTitle())
        self.subtitle.setText(
            self.tr("Runs with MOSAIC's variables, in a folder of its own; its logs, curves and checkpoints are kept.")
        )
        self._build()
        self.fit_screen(QSize(1120, 680))
        self._find()

    # ------------------------------------------------------------------ building

    def _build(self) -> None:
        self.table = ScriptTable(self.background, self.home, self)
        self.table.chosen.connect(self._chosen)
        self.table.problem.connect(lambda words: self.banner.say(words, "bad"))
        splitter = QSplitter(Qt.Orientation.Horizontal, self)
        splitter.addWidget(self.table)
        splitter.addWidget(self._build_right())
        splitter.setSizes([640, 460])
        self.body.addWidget(splitter)

    def _build_right(self) -> QWidget:
        self._about = QLabel(self)
        self._about.setObjectName("script_about")
        self._about.setWordWrap(True)
        self._about.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.as_it_is = QRadioButton(self.tr("Run it as it is (phases, any program)"), self)
        self.as_it_is.setObjectName("script_as_it_is")
        self.as_training = QRadioButton(self.tr("Train with it: its own flags below"), self)
        self.as_training.setObjectName("script_as_training")
        for button in (self.as_it_is, self.as_training):
            button.setAccessibleName(button.text())
        self.as_it_is.setChecked(True)
        self.as_training.toggled.connect(self._show_mode)
        self.fields = FieldForm(self)
        self.fields.add(
            FieldSpec("total_timesteps", "json", 0, self.tr("what it is to reach; empty: what the script says")),
            self.tr("Total timesteps"),
            editor=ParsedEditor(parse_steps, str, placeholder=self.tr("as the script says"), empty=0),
        )  # fmt: skip
        self.fields.add(FieldSpec("env_id", "str", "", self.tr("empty: the script's own")), self.tr("Environment"))
        self.fields.add(FieldSpec("seed", "int", 1, minimum=0), self.tr("Seed"))
        self.fields.add(
            FieldSpec("run_name", "str", "", self.tr("the script's name when it is empty")), self.tr("Run name")
        )
        self.fields.add(
            FieldSpec("cpus", "float", 1, self.tr("CPUs to reserve"), minimum=0, maximum=4096), self.tr("CPUs")
        )
        self.fields.add(
            FieldSpec("gpus", "int", 0, self.tr("GPUs to reserve"), minimum=0, maximum=4096), self.tr("GPUs")
        )
        self.fields.add(
            FieldSpec("arguments", "json", {}, self.tr("a JSON object; the script finds it in $MOSAIC_CONFIG_FILE")),
            self.tr("Arguments"),
            editor=ParsedEditor(_arguments, json.dumps, placeholder='{"size": 8}', empty={}),
            hint=self.tr("The script finds them in $MOSAIC_CONFIG_FILE, under extras.algo_params."),
        )  # fmt: skip
        self.parameters = SchemaForm((), self)
        right = QWidget(self)
        column = QVBoxLayout(right)
        column.setContentsMargins(6, 0, 6, 0)
        for widget in (self._about, self.as_it_is, self.as_training, self.fields, self.parameters):
            column.addWidget(widget)
        column.addStretch(1)
        scroll = QScrollArea(self)
        scroll.setWidgetResizable(True)
        scroll.setFrameShape(QScrollArea.Shape.NoFrame)
        scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        scroll.setWidget(right)
        self.fields.changed.connect(self.changed)
        self.parameters.changed.connect(self.changed)
        self._show_mode()
        return scroll

    # ------------------------------------------------------------------ finding

    def _find(self) -> None:
        if self.home is None:
            words = self.tr("The daemon is on another machine; scripts that lie there are run from there.")
            self.banner.say(words, "warning")
            self.table.say("")
            return
        home = self.home
        self.background.run(lambda: find_scripts(home), owner=self, done=self._found)

    def _found(self, scripts: list[FoundScript]) -> None:
        self.table.set_scripts(scripts)
        if not scripts and self.home is not None:
            words = self.tr("There is no script in {folder} yet; put one there, or choose a file.")
            self.table.say(words.format(folder=self.home.custom_scripts))

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
            self.banner.say(
                self.tr("It lies in no folder that scripts may be run from; add its folder to custom_scripts in "
                        "settings.toml, or move it."),
                "warning",
            )  # fmt: skip
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
        self.parameters.set_values(self._wanted)
        self._wanted = {}
        usual = spec.algorithm.field("env_id")
        placeholder = str(usual.default) if usual is not None and usual.default else self.tr("the script's own")
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

    # ------------------------------------------------------------------ what it says

    def configs(self) -> list[dict[str, Any]]:
        script, values = self.current, self.fields.values()
        if script is None:
            raise ValueError(self.tr("Choose a script first."))
        config = self._training(script, values) if self.as_training.isChecked() else self._as_it_is(script, values)
        return [
            {
                "run_name": values["run_name"].strip() or script.name,
                "resources": {
                    "cpus": {"requested": values["cpus"]},
                    "gpus": {"requested": values["gpus"], "mandatory": values["gpus"]},
                },
                "metadata": {"worker": {"type": self.entry.name, "module": self.spec.module, "config": config}},
            }
        ]

    def _as_it_is(self, script: FoundScript, values: dict[str, Any]) -> dict[str, Any]:
        arguments = {"algo_params": values["arguments"]} if values["arguments"] else {}
        return {
            "run_id": "${RUN_ID}", "algo": CUSTOM_SCRIPT, "env_id": script.env_family or "custom",
            "total_timesteps": values["total_timesteps"] or script.total_timesteps or 1,
            "extras": {"mode": CUSTOM_SCRIPT, "script_path": str(script.path), **arguments},
        }  # fmt: skip

    def _training(self, script: FoundScript, values: dict[str, Any]) -> dict[str, Any]:
        if self.script_spec is None:
            raise ValueError(self._unread or self.tr("The script is still being read."))
        algorithm = self.script_spec.algorithm
        defaults = {name: field.default for name in _OWN if (field := algorithm.field(name)) is not None}
        total = values["total_timesteps"] or script.total_timesteps or defaults.get("total_timesteps")
        if not total:
            raise ValueError(self.tr("Say how many timesteps it is to train for."))
        changed = self.parameters.changed_values()
        return {
            "run_id": "${RUN_ID}", "algo": algorithm.name,
            "env_id": values["env_id"].strip() or defaults.get("env_id") or _NO_ENVIRONMENT,
            "seed": values["seed"], "total_timesteps": total,
            "extras": {"script_path": str(script.path), **({"algo_params": changed} if changed else {})},
        }  # fmt: skip

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
        order = order_of(document)
        path = order.other_extras.get("script_path")
        if not isinstance(path, str) or not path:
            raise NotAConfig(self.tr("it runs no script"))
        trains = order.other_extras.get("mode") != CUSTOM_SCRIPT
        self._wanted = dict(order.parameters) if trains else {}
        values = {
            "run_name": order.run_name, "cpus": order.cpus, "gpus": order.gpus,
            "total_timesteps": order.total_timesteps, "arguments": {} if trains else dict(order.parameters),
            "env_id": order.env_id if trains else "", "seed": order.seeds[0] if order.seeds[0] is not None else 1,
        }  # fmt: skip
        home = self.home

        def found(script: FoundScript) -> None:
            self.table.select(script)
            self.as_training.setChecked(trains)
            self.as_it_is.setChecked(not trains)
            self.fields.set_values(values)
            if self.script_spec is not None:
                self.parameters.set_values(self._wanted)
            self.refresh()

        def failed(error: Exception) -> None:
            if not isinstance(error, OSError | ValueError):
                raise error
            self.banner.say(str(error), "bad")

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
