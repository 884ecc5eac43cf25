"""`CleanRlPolicyForm`: evaluate a trained policy and show its returns in the form."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mosaic_wire.ids import is_run_id
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_status import RunOutcome, RunStatus
from PySide6.QtCore import QEvent, QSize
from PySide6.QtWidgets import QHeaderView, QLabel, QProgressBar, QVBoxLayout, QWidget

from gym_gui.services.run_configs import evaluation_config
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.ui import theme
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.forms.checkpoint_table import CheckpointTable
from gym_gui.ui.forms.run_form import Document, RunForm
from gym_gui.ui.forms.schema_form import FieldForm
from gym_gui.ui.presenters.evaluation_result import ReturnStatistics, bars_of, table_of
from gym_gui.ui.presenters.workers.train_request import NotAConfig, request_of
from gym_gui.ui.widgets.parts import fill, named, split
from gym_gui.ui.widgets.tables import ColumnSpec, RowsTable, TableRow
from gym_gui.ui.workers.checkpoints import FoundCheckpoint, find_checkpoints
from gym_gui.wording.formats import quantity
from gym_gui.wording.run_view import short_id, state_of

_TAG = "eval/episode_return"


class EvaluationView(QWidget):
    """Follows an evaluation run: its progress, a table of its returns, a histogram."""

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("evaluation_view")
        self._link = link
        self._run_id = ""
        self._per_batch = 1
        self._is_loading = False
        self._is_outdated = False
        self.returns: tuple[float, ...] = ()
        self._state = named(QLabel(self.tr("Results appear here."), self), "evaluation_state")
        self._state.setWordWrap(True)
        self._progress = named(QProgressBar(self), "evaluation_progress", self.tr("Episodes played"))
        self._progress.hide()
        numbers = (self.tr("Mean"), self.tr("Std"), self.tr("Min"), self.tr("Median"), self.tr("Max"))
        titles = (self.tr("Episodes"), *numbers)
        columns = (ColumnSpec(self.tr("Batch"), 6), *(ColumnSpec(title, 7, right=True) for title in titles))
        accessible = self.tr("Returns of the evaluation")
        self.table = RowsTable(columns, name="evaluation_table", accessible=accessible, parent=self)
        self.table.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Stretch)
        self._layout = fill(QVBoxLayout(self), self._state, self._progress, (self.table, 2), margins=(8, 0, 0, 0))
        self._plot: Any = None
        link.runs_changed.connect(self._update_run)

    @property
    def state(self) -> str:
        return self._state.text()

    def follow(self, run: pb.Run, *, per_batch: int) -> None:
        """Follow this run."""
        self._run_id, self._per_batch = run.run_id, per_batch
        self.returns = ()
        self._update_run([run])

    def _update_run(self, runs: Sequence[pb.Run]) -> None:
        run = next((run for run in runs if run.run_id == self._run_id), None)
        if run is None:
            return
        has_ended = run.status == RunStatus.TERM
        self._progress.setVisible(not has_ended)
        self._progress.setRange(0, max(1, run.total))
        self._progress.setValue(min(run.step, run.total))
        text = self.tr("Evaluation {state}").format(state=state_of(run))
        if has_ended and run.outcome != RunOutcome.COMPLETED and run.reason:
            text += f": {run.reason}"
        elif run.queue_reason and run.status == RunStatus.INIT:
            text += f": {run.queue_reason}"
        self._state.setText(text)
        self._load()

    def _load(self) -> None:
        """Load the return of every episode so far, from the run's curve."""
        self._is_outdated = self._is_loading
        if self._is_loading:
            return
        self._is_loading = True
        run_id = self._run_id

        def read(client: TrainerClient) -> tuple[str, tuple[float, ...]]:
            with client.metrics(run_id, [_TAG], max_points=-1) as messages:
                values = [value for message in messages for curve in message.curves for value in curve.values]
            return run_id, tuple(values)

        self._link.call(read, owner=self, done=self._show, failed=self._fail)

    def _fail(self, message: str) -> None:
        self._is_loading = False
        self._state.setText(self.tr("The results cannot be read: {why}").format(why=message))

    def _show(self, answer: tuple[str, tuple[float, ...]]) -> None:
        self._is_loading = False
        run_id, returns = answer
        if run_id == self._run_id and len(returns) >= len(self.returns):
            self.returns = returns
            self.table.fill(self._row(row) for row in table_of(returns, self._per_batch))
            self._draw()
        if self._is_outdated:
            self._load()

    def _row(self, row: ReturnStatistics) -> TableRow:
        numbers = (row.mean, row.std, row.minimum, row.median, row.maximum)
        return TableRow(row.title, [row.title or self.tr("all"), str(row.episodes), *map(quantity, numbers)])

    def _draw(self) -> None:
        if not self.returns:
            return
        from gym_gui.ui.charts.plot import ScrolledPlot, bars_item  # pyqtgraph is slow to load

        if self._plot is None:
            self._plot = ScrolledPlot("evaluation_histogram", self)
            self._plot.setAccessibleName(self.tr("Histogram of episode returns"))
            self._plot.setMinimumHeight(self.fontMetrics().height() * 10)
            self._plot.setMouseEnabled(x=False, y=False)
            self._layout.addWidget(self._plot, 3)
        plot, muted = self._plot, theme.colors().muted
        bars = bars_of(self.returns)
        plot.clear()
        plot.apply_theme()
        plot.bottom.setLabel(self.tr("Episode return"), color=muted)
        plot.left.setLabel(self.tr("Episodes"), color=muted)
        plot.addItem(bars_item(bars.starts, bars.width, bars.counts))

    def changeEvent(self, event: QEvent) -> None:
        if event.type() is QEvent.Type.PaletteChange and getattr(self, "_plot", None) is not None:
            self._draw()
        super().changeEvent(event)


POLICY_EVAL = "policy_eval"


class CleanRlPolicyForm(RunForm):
    """Stays open after the start: its right half shows the returns of the evaluation."""

    KIND = "cleanrl_policy"

    def _set_up(self) -> None:
        self._awaited: Path | None = None
        """The policy of a loaded config, until the checkpoints are listed"""
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
        add(self.tr("Episodes"), "episodes", "int", 20, self.tr("played in each batch"), minimum=1)
        add(self.tr("Repeat"), "repeat", "int", 1, self.tr("number of batches"), minimum=1)
        add(
            self.tr("Gamma"),
            "gamma",
            "float",
            None,
            self.tr("of the discounted return; empty: as in training"),
            nullable=True,
            minimum=0,
            maximum=1,
        )
        add(self.tr("Seed"), "seed", "int", None, self.tr("empty: as in training"), nullable=True, minimum=0)
        add(self.tr("Environment"), "env_id", "str", "", self.tr("environment to evaluate in; empty: as in training"))
        add(self.tr("Algorithm"), "algo", "str", "", self.tr("for a file that does not name it"))
        add(
            self.tr("Maximum steps"),
            "max_steps",
            "int",
            None,
            self.tr("episodes are truncated there; empty: never"),
            nullable=True,
            minimum=1,
        )
        add(self.tr("Best action"), "deterministic", "bool", True, self.tr("take the best action, do not sample one"))
        add(
            self.tr("Record a video"),
            "video",
            "bool",
            False,
            self.tr("record the first episode of each batch (requirement set video)"),
        )
        add(self.tr("Run name"), "run_name", "str", "", self.tr("empty: generated"))
        self.fields["algo"].set_visible(False)
        for name, text in (("gamma", self.tr("as trained")), ("seed", self.tr("as trained"))):
            self.fields[name].editor.widget.setPlaceholderText(text)  # type: ignore[attr-defined]
        holder = QWidget()
        fill(QVBoxLayout(holder), self.fields, 1, margins=0)
        left = split("policy_parts", (self.table, 0), (holder, 0), is_vertical=True, sizes=(260, 320))
        self.results = EvaluationView(self.link, self)
        self.body.addWidget(split("policy_split", (left, 0), (self.results, 0), sizes=(620, 500)))
        self.fields.changed.connect(self.changed)
        self.submit_button.setText(self.tr("&Evaluate"))

    # ------------------------------------------------------------------ checkpoints

    def _find(self) -> None:
        if self.home is None:
            self.table.setEnabled(False)
            self.table.set_message(self.tr("The daemon is on another machine: the run's last checkpoint is evaluated."))
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
            self.banner.set_message(
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
            self._omit_values_of_checkpoint(checkpoint)

    def _omit_values_of_checkpoint(self, checkpoint: FoundCheckpoint) -> None:
        """Remove values of a loaded config that equal those of the training."""
        implied = {"env_id": checkpoint.env_id, "seed": checkpoint.seed, "algo": checkpoint.algo}
        implied["run_name"] = _name_of(checkpoint.title)
        for name, value in implied.items():
            row = self.fields[name]
            if not row.own_problem and row.value() == value:
                row.reset()

    def _trained_in(self) -> str:
        checkpoint = self.table.current
        if checkpoint is not None:
            return checkpoint.env_id
        return self.run.env_id if self.run is not None else ""

    # ------------------------------------------------------------------ values

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
            raise ValueError(self.tr("The file does not name its algorithm; choose it."))
        if not self._can_play(algo):
            raise ValueError(self.tr("Policies of {algo} cannot be evaluated.").format(algo=algo))
        env_id = values["env_id"].strip() or self._trained_in()
        if not env_id:
            raise ValueError(self.tr("The file does not name its environment; enter it."))
        return [
            evaluation_config(
                worker_type=self.entry.name,
                module=self.spec.module,
                algo=algo,
                env_id=env_id,
                checkpoint=place,
                episodes=values["episodes"],
                repeat=values["repeat"],
                seed=seed if values["seed"] is None else values["seed"],
                name=values["run_name"].strip() or _name_of(title),
                settings={
                    "eval_gamma": values["gamma"],
                    "eval_max_episode_steps": values["max_steps"],
                    "eval_capture_video": True if values["video"] else None,
                    "eval_deterministic": None if values["deterministic"] else False,
                },
            )
        ]

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
        request = request_of(document)
        extras = request.other_extras
        place = extras.get("checkpoint_path") or extras.get("policy_path")
        if extras.get("mode") != POLICY_EVAL or not isinstance(place, str):
            raise NotAConfig(self.tr("it does not evaluate a policy"))
        self.fields.set_values(
            {
                "episodes": extras.get("eval_episodes", 20),
                "repeat": extras.get("eval_repeat", 1),
                "gamma": extras.get("eval_gamma"),
                "max_steps": extras.get("eval_max_episode_steps"),
                "seed": request.seeds[0],
                "env_id": request.env_id,
                "algo": request.algo,
                "run_name": request.run_name,
                "deterministic": extras.get("eval_deterministic", True),
                "video": extras.get("eval_capture_video", False),
            }
        )
        # `mosaic eval RUN` names the run and evaluates its newest checkpoint.
        path = self.home.run_folder(place).root if self.home is not None and is_run_id(place) else Path(place)
        current = self.table.current
        if current is not None and current.path == path:
            self._omit_values_of_checkpoint(current)
        else:
            self._awaited = path
            self.table.choose_path(path)

    def run_title(self) -> str:
        checkpoint = self.table.current
        return self.tr("evaluation of {what}").format(what=checkpoint.title if checkpoint is not None else "")

    # ------------------------------------------------------------------ results

    def finish(self, run_ids: tuple[str, ...]) -> None:
        """Keep the form open and follow the run."""
        self._key = ""
        self.banner.clear()
        values = self.fields.values()
        self.results.follow(
            pb.Run(run_id=run_ids[0], status=RunStatus.INIT, total=values["episodes"] * values["repeat"]),
            per_batch=values["episodes"],
        )
        self.submitted.emit(run_ids)


def _name_of(title: str) -> str:
    return f"eval of {title}"[:200]
