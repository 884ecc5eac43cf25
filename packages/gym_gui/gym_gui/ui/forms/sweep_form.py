"""The form that starts a sweep: the settings of every trial, the search space, the search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from mosaic_wire.sweep_settings import WORKER_TYPE, sweep_fields
from mosaic_wire.worker_spec import AlgorithmSpec, FieldSpec
from PySide6.QtCore import QCoreApplication, Qt, QTimer, Signal
from PySide6.QtWidgets import (
    QComboBox,
    QGridLayout,
    QLabel,
    QLineEdit,
    QPushButton,
    QStyle,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from gym_gui.ui.forms.editors import ComboBox
from gym_gui.ui.forms.run_form import Document
from gym_gui.ui.forms.schema_form import SchemaForm
from gym_gui.ui.forms.train_form import TrainForm
from gym_gui.ui.presenters.workers.registry import WorkerPresenter
from gym_gui.ui.presenters.workers.sweep import (
    CHOICE,
    KINDS,
    RangeText,
    SweepPresenter,
    SweepRequest,
    suggested,
    sweep_request_of,
    text_of,
)
from gym_gui.ui.presenters.workers.train_request import TrainRequest
from gym_gui.ui.widgets.parts import caption, fill, named
from gym_gui.ui.workers.catalog import WorkerEntry
from gym_gui.ui.workers.translation import PRESENTERS

_FIRST = ("learning_rate", "policy_lr", "gamma", "num_steps")
"""Parameters that are suggested first, if the algorithm has them"""


class RangeRow(QWidget):
    """One parameter and its range."""

    changed = Signal()
    removed = Signal()

    def __init__(self, number: int, names: Sequence[str], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName(f"range_{number}")
        self._algorithm: AlgorithmSpec | None = None
        self._message = ""
        self.name = named(ComboBox(self), f"range_{number}_name", self.tr("Parameter to search"))
        self.name.setEditable(True)
        self.name.setInsertPolicy(QComboBox.InsertPolicy.NoInsert)
        self.kind = named(ComboBox(self), f"range_{number}_kind", self.tr("Kind of range"))
        for kind, text in KINDS.items():
            self.kind.addItem(QCoreApplication.translate(PRESENTERS, text), kind)
        self.low = self._line(f"range_{number}_low", self.tr("from"))
        self.high = self._line(f"range_{number}_high", self.tr("to"))
        self.step = self._line(f"range_{number}_step", self.tr("step"))
        self.step.setToolTip(self.tr("Empty: any number (whole numbers: every one)"))
        self.choices = self._line(f"range_{number}_choices", self.tr("several with commas between them"))
        self.remove = named(QToolButton(self), f"range_{number}_remove", self.tr("Do not search this parameter"))
        self.remove.setAutoRaise(True)
        self.remove.setIcon(self.style().standardIcon(QStyle.StandardPixmap.SP_TitleBarCloseButton))
        self.remove.setToolTip(self.remove.accessibleName())
        self.remove.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.problem = named(QLabel(self, wordWrap=True), f"range_{number}_problem", role="problem")
        self.problem.hide()
        grid = QGridLayout(self)
        grid.setContentsMargins(0, 0, 0, 6)
        grid.setHorizontalSpacing(4)
        grid.setVerticalSpacing(2)
        grid.addWidget(self.name, 0, 0, 1, 2)
        grid.addWidget(self.kind, 0, 2)
        grid.addWidget(self.remove, 0, 3)
        for place, line in enumerate((self.low, self.high, self.step)):
            grid.addWidget(line, 1, place)
        grid.addWidget(self.choices, 1, 0, 1, 3)
        grid.addWidget(self.problem, 2, 0, 1, 4)
        for column in range(3):
            grid.setColumnStretch(column, 1)
        self.set_names(names)
        self.name.currentTextChanged.connect(lambda _text: self._on_change())
        self.kind.currentIndexChanged.connect(lambda _place: self._on_kind())
        for line in (self.low, self.high, self.step, self.choices):
            line.textChanged.connect(lambda _text: self._on_change())
        self.remove.clicked.connect(self.removed)
        self._on_kind()

    def _line(self, name: str, text: str) -> QLineEdit:
        line = named(QLineEdit(self, placeholderText=text), name, text)
        line.setMinimumWidth(self.fontMetrics().averageCharWidth() * 6)
        return line

    def set_names(self, names: Sequence[str]) -> None:
        """Set the offered parameters; keep the selection."""
        chosen = self.name.currentText()
        self.name.blockSignals(True)
        self.name.clear()
        self.name.addItems(list(names))
        self.name.setEditText(chosen)
        self.name.blockSignals(False)

    def set_algorithm(self, algorithm: AlgorithmSpec | None) -> None:
        self._algorithm = algorithm

    @property
    def parameter(self) -> str:
        return self.name.currentText().strip().lstrip("-").replace("-", "_")

    @property
    def text(self) -> RangeText:
        return RangeText(
            str(self.kind.currentData()), self.low.text(), self.high.text(), self.step.text(), self.choices.text()
        )

    def set_range(self, name: str, text: RangeText) -> None:
        self.name.setEditText(name)
        self.kind.setCurrentIndex(self.kind.findData(text.kind))
        for line, message in (
            (self.low, text.low),
            (self.high, text.high),
            (self.step, text.step),
            (self.choices, text.choices),
        ):
            line.setText(message)

    def check(self) -> str:
        """Validate the row, show the problem and return it."""
        if not self.parameter:
            wrong = self.tr("choose a parameter")
        else:
            wrong = self.text.problem(self.parameter, self._algorithm)
        self.set_message(wrong)
        return wrong

    def set_message(self, text: str) -> None:
        self._message = text
        self.problem.setText(text)
        self.problem.setVisible(bool(text))
        self.name.setAccessibleDescription(text)

    def _on_kind(self) -> None:
        is_choice = self.kind.currentData() == CHOICE
        self.choices.setVisible(is_choice)
        self.low.setVisible(not is_choice)
        self.high.setVisible(not is_choice)
        self.step.setVisible(not is_choice)
        self.step.setEnabled(self.text.has_step)
        self._on_change()

    def _on_change(self) -> None:
        if self._message:
            self.check()  # clear a shown problem; do not show new ones while the user is typing
        self.changed.emit()


class SearchSpace(QWidget):
    """The rows of ranges and a button that adds one."""

    changed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("search_space")
        self._fields: tuple[FieldSpec, ...] = ()
        self._algorithm: AlgorithmSpec | None = None
        self.rows: list[RangeRow] = []
        self._made = 0
        self._is_new = True
        """Whether the initial row is still to be added"""
        self._rows_layout = QVBoxLayout()
        self._rows_layout.setSpacing(2)
        about = caption("", self.tr("Searched parameters override the hyper-parameters."), wraps=True)
        self.add = named(QPushButton(self.tr("&Add a parameter"), self, autoDefault=False), "range_add")
        self.add.setAccessibleName(self.tr("Add a parameter to search"))
        self.add.clicked.connect(lambda: self.add_row())
        layout = fill(QVBoxLayout(self), about, self._rows_layout, margins=(8, 2, 0, 6), spacing=4)
        layout.addWidget(self.add, 0, Qt.AlignmentFlag.AlignLeft)

    # ------------------------------------------------------------------ parameters

    def set_algorithm(self, algorithm: AlgorithmSpec | None, searchable: Sequence[FieldSpec]) -> None:
        """Set the algorithm; ranges of parameters it does not have are reported as problems, not removed."""
        self._algorithm, self._fields = algorithm, tuple(searchable)
        for row in self.rows:
            row.set_algorithm(algorithm)
            row.set_names(self._names())
            if row.problem.text():
                row.check()
        if self._is_new and self._fields:
            QTimer.singleShot(0, self, self._begin)

    def _begin(self) -> None:
        """Add an initial row unless the user has added one."""
        if self._is_new:
            self.add_row()

    def _names(self) -> list[str]:
        return [field.name for field in self._fields]

    def add_row(self) -> RangeRow:
        """Add a row for the next suggested parameter."""
        taken = {row.parameter for row in self.rows}
        names = self._names()
        requested = next((name for name in (*_FIRST, *names) if name in names and name not in taken), "")
        row = self._make_row()
        known = next((field for field in self._fields if field.name == requested), None)
        if known is not None:
            row.set_range(requested, suggested(known))
        row.name.activated.connect(lambda _place, row=row: self._suggest(row))
        self.changed.emit()
        return row

    def _make_row(self) -> RangeRow:
        self._is_new = False
        row = RangeRow(self._made, self._names(), self)
        self._made += 1
        row.set_algorithm(self._algorithm)
        row.changed.connect(self.changed)
        row.removed.connect(lambda row=row: self._remove(row))
        self.rows.append(row)
        self._rows_layout.addWidget(row)
        return row

    def _suggest(self, row: RangeRow) -> None:
        known = next((field for field in self._fields if field.name == row.parameter), None)
        if known is not None:
            row.set_range(known.name, suggested(known))

    def _remove(self, row: RangeRow) -> None:
        self.rows.remove(row)
        self._rows_layout.removeWidget(row)
        row.hide()
        row.deleteLater()
        self.changed.emit()

    # ------------------------------------------------------------------ values

    def ranges(self) -> dict[str, dict[str, Any]]:
        """Return the valid ranges as a config has them."""
        found = {}
        for row in self.rows:
            known = self._algorithm.field(row.parameter) if self._algorithm is not None else None
            try:
                found[row.parameter] = row.text.document(row.parameter, known)
            except ValueError:
                continue
        return found

    def set_ranges(self, ranges: Mapping[str, Mapping[str, Any]]) -> None:
        self._is_new = False
        for row in list(self.rows):
            self._remove(row)
        for name, entry in ranges.items():
            row = self._make_row()
            row.set_range(name, text_of(entry))
            row.name.activated.connect(lambda _place, row=row: self._suggest(row))
        self.changed.emit()

    def problems(self) -> dict[str, str]:
        """Validate all rows, show their problems and return them by parameter."""
        found = {}
        seen: set[str] = set()
        for number, row in enumerate(self.rows):
            if wrong := row.check():
                found[row.parameter or f"range {number + 1}"] = wrong
            elif row.parameter in seen:
                row.set_message(self.tr("it is searched twice; keep one of the two"))
                found[row.parameter] = row.problem.text()
            seen.add(row.parameter)
        if not self.rows:
            found["range_add"] = self.tr("choose parameters to search")
        return found

    def show_problem(self, name: str, text: str) -> bool:
        row = next((row for row in self.rows if row.parameter == name), None)
        if row is not None:
            row.set_message(text)
        return row is not None


_TRIALS, _SAMPLER_SEED = "trials", "sampler_seed"
_RENAMED = {"total_timesteps": _TRIALS, "seed": _SAMPLER_SEED}
"""Fields of the sweep that are renamed: trials have fields of the same names"""
_SHOWN = (_TRIALS, "parallel", "sampler", "pruner", "metric", "direction", "aggregate")
_FINE = (
    "startup_trials",
    "warmup_trials",
    "reports",
    "timeout_minutes",
    "give_up_after",
    "storage",
    "study_name",
    _SAMPLER_SEED,
)


class SweepForm(TrainForm):
    """A training form for a whole sweep."""

    KIND = "sweep"
    _base: TrainRequest = TrainRequest()
    """Settings of a loaded config without a field in this form"""

    def __init__(self, entry: WorkerEntry, presenter: WorkerPresenter, **others: Any) -> None:
        super().__init__(entry, SweepPresenter(presenter), **others)

    def _set_up(self) -> None:
        super()._set_up()
        self.setObjectName("sweep_form")
        self.setWindowTitle(self.tr("Sweep with {worker}").format(worker=self.entry.display_name))
        self.title.setText(self.tr("New sweep"))
        self.subtitle.setText(
            self.tr(
                "{worker}: every trial is a run; the sweep itself is a run, too, and continues without this window"
            ).format(worker=self.entry.display_name)
        )
        self.submit_button.setText(self.tr("&Start the sweep"))
        for name, text in (
            ("seeds", self.tr("Seeds per trial")),
            ("total_timesteps", self.tr("Timesteps per trial")),
            ("run_name", self.tr("Name of the sweep")),
        ):
            row = self.core[name]
            row.text = text
            row.label.setText(text)
            row.editor.widget.setAccessibleName(text)
        for name in ("agent_id", "worker_id"):
            self.core[name].set_visible(False)

    @property
    def _sweep_presenter(self) -> SweepPresenter:
        assert isinstance(self.presenter, SweepPresenter)
        return self.presenter

    # ------------------------------------------------------------------ construction

    def _fill_analytics(self, column: QVBoxLayout) -> None:
        self.space = SearchSpace(self)
        self.space.changed.connect(self.changed)
        column.addWidget(self._section(self.tr("Search space"), "section_space", self.space))
        labels, groups = (
            self._labels(),
            {**dict.fromkeys(_SHOWN, self.tr("Search method")), **dict.fromkeys(_FINE, self.tr("More settings"))},
        )
        known = {(name := _RENAMED.get(field.name, field.name)): replace(field, name=name) for field in sweep_fields()}
        # Deferred, or built when it is expanded: the form appears sooner.
        self.search = SchemaForm(
            [replace(known[name], group=group) for name, group in groups.items()],
            self,
            label=lambda field: labels[field.name],
            searchable=False,
        )
        column.addWidget(self.search)
        self.search.changed.connect(self.changed)
        super()._fill_analytics(column)

    def _labels(self) -> Mapping[str, str]:
        return {
            _TRIALS: self.tr("Trials"),
            "parallel": self.tr("Trials at a time"),
            "sampler": self.tr("Sampler"),
            "pruner": self.tr("Pruner"),
            "metric": self.tr("Metric"),
            "direction": self.tr("Direction"),
            "aggregate": self.tr("Over seeds"),
            "startup_trials": self.tr("Random trials first"),
            "warmup_trials": self.tr("Trials before pruning"),
            "reports": self.tr("Comparisons per trial"),
            "timeout_minutes": self.tr("Timeout (minutes)"),
            "storage": self.tr("Storage"),
            "give_up_after": self.tr("Stop after failures in a row"),
            "study_name": self.tr("Name of the study"),
            _SAMPLER_SEED: self.tr("Seed of the sampler"),
        }

    def _show_algorithm(self) -> None:
        super()._show_algorithm()
        chosen = self.algorithm.algorithm()
        if chosen is not None:
            self.space.set_algorithm(chosen, self._sweep_presenter.searchable(chosen))

    # ------------------------------------------------------------------ values

    def request(self) -> SweepRequest:
        """Return the request of the form."""
        trial = super().request()
        kept = {
            name: getattr(self._base, name)
            for name in ("requirements", "install_missing", "fastlane", "minimal_telemetry", "tensorboard", "wandb")
        }
        plain = {each.name: getattr(trial, each.name) for each in fields(TrainRequest)} | kept
        unknown = self._base.settings if isinstance(self._base, SweepRequest) else {}
        defaults = {field.name: field.default for field in self.search.fields}
        settings = {**unknown, **defaults, **self.search.changed_values()}
        trials, seed = settings.pop(_TRIALS), settings.pop(_SAMPLER_SEED)
        return SweepRequest(**plain, ranges=self.space.ranges(), trials=trials, sampler_seed=seed, settings=settings)

    def set_request(self, request: TrainRequest) -> None:
        self._base = request
        if isinstance(request, SweepRequest):
            seed = 1 if request.sampler_seed is None else request.sampler_seed
            values = {**request.settings, _TRIALS: request.trials, _SAMPLER_SEED: seed}
            self.search.set_values(values)
        super().set_request(request)
        if isinstance(request, SweepRequest):
            self.space.set_ranges(request.ranges)

    def load(self, document: Document) -> None:
        """Load the config of a sweep, or of a training, which then applies to every trial."""
        worker = document.get("metadata", {}).get("worker", {}) if isinstance(document, dict) else {}
        if isinstance(worker, dict) and worker.get("type") == WORKER_TYPE:
            self.set_request(sweep_request_of(document))
        else:
            super().load(document)

    # ------------------------------------------------------------------ problems

    def field_names(self) -> Sequence[str]:
        own = (*(row.parameter for row in self.space.rows), *(field.name for field in self.search.fields))
        return (*own, *super().field_names())

    def field_problems(self) -> dict[str, str]:
        return {**super().field_problems(), **self.search.problems(), **self.space.problems()}

    def show_problem(self, name: str, text: str) -> bool:
        is_shown = self.space.show_problem(name, text) or self.search.show_problem(name, text)
        return is_shown or super().show_problem(name, text)

    def run_title(self) -> str:
        request = self.request()
        searched = ", ".join(request.ranges)
        return self.tr("sweep {algo} {env}: {searched}").format(
            algo=request.algo, env=request.env_id, searched=searched
        )
