"""`CleanRlPolicyForm`: play a trained policy, and see how well it does without leaving the form."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mosaic_wire.ids import is_run_id
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.worker_spec import FieldSpec
from PySide6.QtCore import QSize, Qt
from PySide6.QtWidgets import QSplitter, QVBoxLayout, QWidget

from gym_gui.services.run_configs import evaluation_config
from gym_gui.ui.forms.checkpoint_table import CheckpointTable
from gym_gui.ui.forms.field_form import FieldForm
from gym_gui.ui.presenters.workers.order import NotAConfig, order_of
from gym_gui.ui.widgets.evaluation_view import EvaluationView
from gym_gui.ui.widgets.run_form import Document, RunForm
from gym_gui.ui.workers.checkpoints import FoundCheckpoint, find_checkpoints
from gym_gui.wording.run_view import short_id

POLICY_EVAL = "policy_eval"


class CleanRlPolicyForm(RunForm):
    """Stays open after the start: its right half shows the episodes as they come."""

    KIND = "cleanrl_policy"

    def _set_up(self) -> None:
        self._awaited: Path | None = None
        """The policy of a config that was loaded, until it is there"""
        self.setObjectName("policy_form")
        self.setWindowTitle(self.tr("Evaluate a policy"))
        run = self.run
        name = (run.name or short_id(run.run_id)) if run is not None else ""
        self.title.setText(self.tr("Evaluate: {run}").format(run=name) if run is not None else self.windowTitle())
        self.subtitle.setText(self.tr("Plays the policy without training it. The evaluation is a run of its own."))
        self._build()
        self.fit_screen(QSize(1160, 700))
        self._find()

    def _build(self) -> None:
        self.table = CheckpointTable(self.background, self)
        self.table.chosen.connect(self._chosen)
        self.table.named.connect(self._named)
        self.fields = FieldForm(self)
        add = self.fields.add
        add(FieldSpec("episodes", "int", 20, self.tr("played in each batch"), minimum=1), self.tr("Episodes"))
        add(FieldSpec("repeat", "int", 1, self.tr("batches of so many episodes"), minimum=1), self.tr("Repeat"))
        add(
            FieldSpec(
                "gamma",
                "float",
                None,
                self.tr("of the discounted return; empty: as it was trained"),
                nullable=True,
                minimum=0,
                maximum=1,
            ),
            self.tr("Gamma"),
        )
        add(
            FieldSpec("seed", "int", None, self.tr("empty: the training's"), nullable=True, minimum=0), self.tr("Seed")
        )  # fmt: skip
        add(
            FieldSpec("env_id", "str", "", self.tr("another environment than it was trained in; empty: the same")),
            self.tr("Environment"),
        )
        add(FieldSpec("algo", "str", "", self.tr("for a file that does not say it")), self.tr("Algorithm"))
        add(
            FieldSpec(
                "max_steps", "int", None, self.tr("episodes are cut there; empty: never"), nullable=True, minimum=1
            ),
            self.tr("Steps at most"),
        )
        add(
            FieldSpec("deterministic", "bool", True, self.tr("take the best action, do not sample one")),
            self.tr("Best action"),
        )
        add(
            FieldSpec(
                "video", "bool", False, self.tr("record the first episode of each batch (requirement set video)")
            ),
            self.tr("Record a video"),
        )
        add(FieldSpec("run_name", "str", "", self.tr("chosen for you when it is empty")), self.tr("Run name"))
        self.fields["algo"].set_visible(False)
        for name, words in (("gamma", self.tr("as trained")), ("seed", self.tr("as trained"))):
            self.fields[name].editor.widget.setPlaceholderText(words)  # type: ignore[attr-defined]
        left = QSplitter(Qt.Orientation.Vertical, self)
        holder = QWidget(left)
        column = QVBoxLayout(holder)
        column.setContentsMargins(0, 0, 0, 0)
        column.addWidget(self.fields)
        column.addStretch(1)
        left.addWidget(self.table)
        left.addWidget(holder)
        left.setSizes([260, 320])
        self.results = EvaluationView(self.link, self)
        splitter = QSplitter(Qt.Orientation.Horizontal, self)
        splitter.addWidget(left)
        splitter.addWidget(self.results)
        splitter.setSizes([620, 500])
        self.body.addWidget(splitter)
        self.fields.changed.connect(self.changed)
        self.submit_button.setText(self.tr("&Evaluate"))

    # ------------------------------------------------------------------ finding

    def _find(self) -> None:
        if self.home is None:
            self.table.setEnabled(False)
            self.table.say(self.tr("The daemon is on another machine: the run's last checkpoint is evaluated."))
            self._chosen(None)
            return
        home = self.home
        self.background.run(lambda: find_checkpoints(home), owner=self, done=self._found)

    def _found(self, checkpoints: list[FoundCheckpoint]) -> None:
        playable = [one for one in checkpoints if self._can_play(one.algo)]
        own = [one for one in playable if self.run is not None and one.run_id == self.run.run_id]
        newest = max(own, key=lambda one: one.step, default=None)
        current = self.table.current
        select = current.path if current is not None else newest.path if newest is not None else None
        self.table.set_checkpoints(playable, select=select)
        if self.run is not None and newest is None:
            self.banner.say(
                self.tr("{run} left no checkpoint that can be played; choose another one.").format(
                    run=self.run.name or short_id(self.run.run_id)
                ),
                "warning",
            )

    def _can_play(self, algo: str) -> bool:
        known = self.spec.algorithm(algo)
        return known is not None and POLICY_EVAL in known.modes

    def _chosen(self, checkpoint: FoundCheckpoint | None) -> None:
        unknown = checkpoint is not None and not checkpoint.algo
        self.fields["algo"].set_visible(unknown)
        self.fields["env_id"].editor.widget.setPlaceholderText(self._trained_in())  # type: ignore[attr-defined]
        self.changed()

    def _named(self, checkpoint: FoundCheckpoint) -> None:
        if self._awaited in (checkpoint.path, *checkpoint.path.parents):
            self._awaited = None
            self._leave_out_what_goes_without_saying(checkpoint)

    def _leave_out_what_goes_without_saying(self, checkpoint: FoundCheckpoint) -> None:
        """A config says everything; a form shows only what is otherwise than it was trained."""
        usual = {"env_id": checkpoint.env_id, "seed": checkpoint.seed, "algo": checkpoint.algo}
        usual["run_name"] = _name_of(checkpoint.title)
        for name, value in usual.items():
            row = self.fields[name]
            if not row.own_problem and row.value() == value:
                row.reset()

    def _trained_in(self) -> str:
        checkpoint = self.table.current
        if checkpoint is not None:
            return checkpoint.env_id
        return self.run.env_id if self.run is not None else ""

    # ------------------------------------------------------------------ what it says

    def configs(self) -> list[dict[str, Any]]:
        checkpoint, values = self.table.current, self.fields.values()
        if checkpoint is None and (self.home is not None or self.run is None):
            raise ValueError(self.tr("Choose a checkpoint first."))
        if checkpoint is not None:
            algo, seed, place, title = checkpoint.algo, checkpoint.seed, str(checkpoint.path), checkpoint.title
        else:
            assert self.run is not None
            algo, place, title = self.run.algo, self.run.run_id, short_id(self.run.run_id)
            seed = self.run.seed if self.run.HasField("seed") else None
        algo = algo or values["algo"].strip()
        if not algo:
            raise ValueError(self.tr("The file does not say which algorithm it is of; name it."))
        if not self._can_play(algo):
            raise ValueError(self.tr("Policies of {algo} cannot be evaluated.").format(algo=algo))
        env_id = values["env_id"].strip() or self._trained_in()
        if not env_id:
            raise ValueError(self.tr("The file does not say where it was trained; name the environment."))
        return [
            evaluation_config(
                worker_type=self.entry.name, module=self.spec.module, algo=algo, env_id=env_id, checkpoint=place,
                episodes=values["episodes"], repeat=values["repeat"],
                seed=seed if values["seed"] is None else values["seed"],
                name=values["run_name"].strip() or _name_of(title),
                settings={
                    "eval_gamma": values["gamma"], "eval_max_episode_steps": values["max_steps"],
                    "eval_capture_video": True if values["video"] else None,
                    "eval_deterministic": None if values["deterministic"] else False,
                },
            )
        ]  # fmt: skip

    def field_names(self) -> Sequence[str]:
        return self.fields.names()

    def field_problems(self) -> dict[str, str]:
        found = self.fields.problems()
        if not found:
            try:
                self.configs()
            except ValueError as error:
                found["algo" if self.fields["algo"].box.isVisibleTo(self.fields) else ""] = str(error)
        return found

    def show_problem(self, name: str, text: str) -> bool:
        place = {"eval_gamma": "gamma", "eval_episodes": "episodes", "eval_repeat": "repeat"}.get(name, name)
        row = self.fields.row(place)
        if row is not None:
            row.show_problem(text)
        return row is not None

    def load(self, document: Document) -> None:
        order = order_of(document)
        extras = order.other_extras
        place = extras.get("checkpoint_path") or extras.get("policy_path")
        if extras.get("mode") != POLICY_EVAL or not isinstance(place, str):
            raise NotAConfig(self.tr("it evaluates no policy"))
        self.fields.set_values(
            {
                "episodes": extras.get("eval_episodes", 20), "repeat": extras.get("eval_repeat", 1),
                "gamma": extras.get("eval_gamma"), "max_steps": extras.get("eval_max_episode_steps"),
                "seed": order.seeds[0], "env_id": order.env_id, "algo": order.algo, "run_name": order.run_name,
                "deterministic": extras.get("eval_deterministic", True),
                "video": extras.get("eval_capture_video", False),
            }
        )  # fmt: skip
        # `mosaic eval RUN` names the run; its newest checkpoint is meant.
        path = self.home.run_folder(place).root if self.home is not None and is_run_id(place) else Path(place)
        current = self.table.current
        if current is not None and current.path == path:
            self._leave_out_what_goes_without_saying(current)
        else:
            self._awaited = path
            self.table.choose_path(path)

    def run_title(self) -> str:
        checkpoint = self.table.current
        return self.tr("evaluation of {what}").format(what=checkpoint.title if checkpoint is not None else "")

    # ------------------------------------------------------------------ results

    def finish(self, run_ids: tuple[str, ...]) -> None:
        """The form stays: it shows what comes of it."""
        self._key = ""
        self.banner.clear()
        values = self.fields.values()
        self.results.follow(
            pb.Run(run_id=run_ids[0], status="INIT", total=values["episodes"] * values["repeat"]),
            per_batch=values["episodes"],
        )
        self.submitted.emit(run_ids)


def _name_of(title: str) -> str:
    return f"eval of {title}"[:200]
