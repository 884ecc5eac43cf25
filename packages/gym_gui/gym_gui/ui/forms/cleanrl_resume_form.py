"""`CleanRlResumeForm`: continue training from a checkpoint, with more steps and changed parameters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_request import Mode, run_request, worker_part
from mosaic_wire.worker_spec import AlgorithmSpec
from PySide6.QtCore import QSize
from PySide6.QtWidgets import QLabel, QVBoxLayout, QWidget

from gym_gui.services.run_configs import ConfigUnreadable, RunConfig, config_of, continued_config
from gym_gui.ui.forms.checkpoint_table import CheckpointTable
from gym_gui.ui.forms.run_form import Document, RunForm
from gym_gui.ui.forms.schema_form import FieldForm, ParsedEditor, SchemaForm
from gym_gui.ui.presenters.workers.train_request import NotAConfig, request_of
from gym_gui.ui.widgets.parts import caption, fill, named, scrolled, split
from gym_gui.ui.workers.checkpoints import FoundCheckpoint, find_checkpoints
from gym_gui.wording.formats import count, parse_steps
from gym_gui.wording.run_view import short_id


class CleanRlResumeForm(RunForm):
    """Also extends a finished run: then the number of added steps is required."""

    KIND = "cleanrl_resume"

    def _set_up(self) -> None:
        self._base: dict[str, Any] | None = None
        """The config of the continued run"""
        self._requested: dict[str, Any] = {}
        """Parameters of a loaded config, until the checkpoints are listed"""
        self.setObjectName("resume_form")
        self.setWindowTitle(self.tr("Continue training from a checkpoint"))
        run = self.run
        name = (run.name or short_id(run.run_id)) if run is not None else ""
        continued = self.tr("Continue training: {run}") if run is not None else self.windowTitle()
        self.title.setText(continued.format(run=name))
        self.subtitle.setText(
            self.tr("A new run continues from the checkpoint; the old one is unchanged. Both are shown as one curve.")
        )
        self._build()
        self.fit_screen(QSize(1120, 680))
        self._find()

    def _build(self) -> None:
        self.table = CheckpointTable(self.background, self)
        self.table.chosen.connect(self._chosen)
        self.fields = FieldForm(self)
        self.fields.add(
            self.tr("Timesteps to add"),
            "more",
            "json",
            0,
            self.tr("500000, 500k or 5e5; empty: up to what was planned"),
            editor=ParsedEditor(parse_steps, str, placeholder=self.tr("up to what was planned"), empty=0),
        )
        self.fields.add(self.tr("Run name"), "run_name", "str", "", self.tr("empty: generated"))
        self.fields.add(
            self.tr("Priority"), "priority", "int", 0, self.tr("higher goes first"), minimum=-1000, maximum=1000
        )
        self._plan = named(QLabel(self, wordWrap=True), "resume_plan", role="caption")
        self.parameters = SchemaForm((), self, open_groups=1)
        about = caption(
            "",
            self.tr(
                "Parameters that may change when training continues. Others determine the restored state and stay."
            ),
            wraps=True,
        )
        right = QWidget(self)
        column = QVBoxLayout(right)
        column.setContentsMargins(6, 0, 6, 0)
        fill(column, self.fields, self._plan, about, self.parameters, 1)
        side = scrolled(right, only_vertical=True)
        self.body.addWidget(split("resume_split", (self.table, 0), (side, 0), sizes=(660, 440)))
        self.fields.changed.connect(self.changed)
        self.parameters.changed.connect(self.changed)
        self.submit_button.setText(self.tr("&Continue training"))

    # ------------------------------------------------------------------ checkpoints

    def _find(self) -> None:
        if self.home is None:
            self.table.setEnabled(False)
            self.table.set_message(
                self.tr("The daemon is on another machine: the run continues from its last checkpoint, unchanged.")
            )
            return
        home = self.home
        self.background.run(lambda: find_checkpoints(home), owner=self, done=self._found)

    def _found(self, checkpoints: list[FoundCheckpoint]) -> None:
        trainable = [one for one in checkpoints if self._algorithm(one.algo) is not None]
        if self.run is not None:
            own = [one for one in trainable if one.run_id == self.run.run_id]
            first = max(own, key=lambda one: one.step, default=None)
            self.table.set_checkpoints(trainable, select=first.path if first is not None else None)
            if first is None:
                self.banner.set_message(
                    self.tr("{run} left no checkpoint that can be used; choose another one.").format(
                        run=self.run.name or short_id(self.run.run_id)
                    ),
                    "warning",
                )
        else:
            self.table.set_checkpoints(trainable)

    def _algorithm(self, name: str) -> AlgorithmSpec | None:
        known = self.spec.algorithm(name)
        return known if known is not None and Mode.RESUME in known.modes else None

    def _chosen(self, checkpoint: FoundCheckpoint | None) -> None:
        self._base = None
        if checkpoint is None:
            self.parameters.set_fields(())
            self.refresh()
            return
        algorithm = self._algorithm(checkpoint.algo)
        self.parameters.set_fields(self.presenter.changeable_on_resume(algorithm) if algorithm is not None else ())
        self.parameters.set_defaults(checkpoint.args)
        self.parameters.set_values(self._requested)
        self._requested = {}
        if not checkpoint.run_id or self.home is None:
            self._base = self._config_from(checkpoint, algorithm)
            self.refresh()
            return
        run = pb.Run(run_id=checkpoint.run_id, run_dir=str(self.home.run_folder(checkpoint.run_id).root))

        def found(config: RunConfig) -> None:
            if self.table.current == checkpoint:
                self._base = config.document
                self.refresh()

        def failed(error: Exception) -> None:
            if not isinstance(error, ConfigUnreadable):
                raise error
            if self.table.current == checkpoint:  # a copied folder may have no config
                self._base = self._config_from(checkpoint, algorithm)
                self.refresh()

        self.background.run(lambda: config_of(run), owner=self, done=found, failed=failed)

    def _config_from(self, checkpoint: FoundCheckpoint, algorithm: AlgorithmSpec | None) -> dict[str, Any]:
        """Return a config from the checkpoint's flags that the algorithm still has."""
        own_fields = ("env_id", "seed", "total_timesteps", "track", "cuda")
        kept = {
            name: value
            for name, value in checkpoint.args.items()
            if algorithm is not None
            and name not in own_fields
            and (known := algorithm.field(name)) is not None
            and value != known.default
            and known.problem_with(value) is None
        }
        return run_request(
            self.entry.name,
            module=self.spec.module,
            algo=checkpoint.algo,
            env_id=checkpoint.env_id,
            total_timesteps=checkpoint.args.get("total_timesteps") or checkpoint.step,
            seed=checkpoint.seed,
            extras={"algo_params": kept or None},
        )

    # ------------------------------------------------------------------ values

    def configs(self) -> list[dict[str, Any]]:
        checkpoint = self.table.current
        if checkpoint is None or self._base is None:
            raise ValueError(self.tr("Choose a checkpoint first."))
        values = self.fields.values()
        document = continued_config(self._base, checkpoint.path, step=checkpoint.step, more=values["more"])
        worker = worker_part(document)
        changed = self.parameters.changed_values()
        if changed:
            extras = worker["extras"]
            extras["algo_params"] = {**(extras.get("algo_params") or {}), **changed}
        if values["run_name"].strip():
            document["run_name"] = values["run_name"].strip()
        if values["priority"]:
            document["scheduling"] = {**(document.get("scheduling") or {}), "priority": values["priority"]}
        return [document]

    def field_names(self) -> Sequence[str]:
        return (*self.fields.names(), *(field.name for field in self.parameters.fields))

    def field_problems(self) -> dict[str, str]:
        found = {**self.fields.problems(), **self.parameters.problems()}
        if not found and self.home is not None:
            try:
                self.configs()
            except ValueError as error:
                found["more" if self.table.current is not None else ""] = str(error)
        return found

    def show_problem(self, name: str, text: str) -> bool:
        place = "more" if name == "total_timesteps" else name
        if (row := self.fields.row(place)) is not None:
            row.show_problem(text)
            return True
        return self.parameters.show_problem(name, text)

    def load(self, document: Document) -> None:
        request = request_of(document)
        extras = request.other_extras
        chosen = extras.get("checkpoint_path")
        if extras.get("mode") != Mode.RESUME or not isinstance(chosen, str):
            raise NotAConfig(self.tr("it does not continue from a checkpoint"))
        path = Path(chosen)
        self._requested = dict(request.parameters)
        self.fields.set_values({"run_name": request.run_name, "priority": request.priority})
        step = path.name.removeprefix("step-")
        if step.isdigit() and request.total_timesteps > int(step):
            self.fields.set_values({"more": request.total_timesteps - int(step)})
        current = self.table.current
        if current is not None and current.path == path:
            self.parameters.set_values(self._requested)
            self._requested = {}
        else:
            self.table.choose_path(path)

    def refresh(self) -> None:
        checkpoint = self.table.current
        try:
            (config,) = self.configs()
        except ValueError as error:
            self._plan.setText(str(error))
            return
        assert checkpoint is not None
        total = worker_part(config)["total_timesteps"]
        self._plan.setText(
            self.tr("From step {step} to step {total}: {more} more.").format(
                step=count(checkpoint.step), total=count(total), more=count(total - checkpoint.step)
            )
        )

    def run_title(self) -> str:
        checkpoint = self.table.current
        return self.tr("on from {what}").format(what=checkpoint.title if checkpoint is not None else "")

    # ------------------------------------------------------------------ another machine

    def submit(self, *, install_missing: bool = False) -> None:
        if self.home is not None or self.run is None:
            super().submit(install_missing=install_missing)
            return
        if self.fields.problems():
            return
        run_id, more = self.run.run_id, self.fields.values()["more"]
        self._set_sending(True)
        self.link.call(
            lambda client: client.resume(run_id, additional_timesteps=more),
            owner=self,
            done=lambda run: self.finish((run.run_id,)),
            failed=self._not_queued,
        )
