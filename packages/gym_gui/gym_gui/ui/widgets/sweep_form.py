"""The form that starts a sweep: what every trial has, which parameters are searched where, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from mosaic_wire.sweep_settings import WORKER_TYPE, sweep_fields
from PySide6.QtWidgets import QVBoxLayout

from gym_gui.ui.forms.schema_form import SchemaForm
from gym_gui.ui.forms.search_space import SearchSpace
from gym_gui.ui.presenters.workers.base import WorkerPresenter
from gym_gui.ui.presenters.workers.order import TrainOrder
from gym_gui.ui.presenters.workers.sweep import SweepOrder, SweepPresenter, sweep_order_of
from gym_gui.ui.widgets.run_form import Document
from gym_gui.ui.widgets.train_form import TrainForm
from gym_gui.ui.workers.catalog import WorkerEntry

_TRIALS, _SAMPLER_SEED = "trials", "sampler_seed"
_RENAMED = {"total_timesteps": _TRIALS, "seed": _SAMPLER_SEED}
"""Of the sweep worker's fields: the trials have fields of these names"""
_SHOWN = (_TRIALS, "parallel", "sampler", "pruner", "metric", "direction", "aggregate")
_FINE = ("startup_trials", "warmup_trials", "reports", "timeout_minutes", "give_up_after", "storage", "study_name",
         _SAMPLER_SEED)  # fmt: skip


class SweepForm(TrainForm):
    """A training form whose run is a whole sweep."""

    KIND = "sweep"
    _base: TrainOrder = TrainOrder()
    """What a loaded config says that this form has no field for"""

    def __init__(self, entry: WorkerEntry, presenter: WorkerPresenter, **others: Any) -> None:
        super().__init__(entry, SweepPresenter(presenter), **others)

    def _set_up(self) -> None:
        super()._set_up()
        self.setObjectName("sweep_form")
        self.setWindowTitle(self.tr("Sweep with {worker}").format(worker=self.entry.display_name))
        self.title.setText(self.tr("New sweep"))
        self.subtitle.setText(
            self.tr("{worker}: every trial is a run; the sweep itself is one, too, and goes on without this window")
            .format(worker=self.entry.display_name)
        )  # fmt: skip
        self.submit_button.setText(self.tr("&Start the sweep"))
        for name, words in (
            ("seeds", self.tr("Seeds per trial")),
            ("total_timesteps", self.tr("Timesteps per trial")),
            ("run_name", self.tr("Name of the sweep")),
        ):
            row = self.core[name]
            row.text = words
            row.label.setText(words)
            row.editor.widget.setAccessibleName(words)
        for name in ("agent_id", "worker_id"):
            self.core[name].set_visible(False)

    @property
    def _sweep_presenter(self) -> SweepPresenter:
        assert isinstance(self.presenter, SweepPresenter)
        return self.presenter

    # ------------------------------------------------------------------ building

    def _fill_analytics(self, column: QVBoxLayout) -> None:
        self.space = SearchSpace(self)
        self.space.changed.connect(self.changed)
        column.addWidget(self._section(self.tr("What to search"), "section_space", self.space))
        labels, groups = self._labels(), {**dict.fromkeys(_SHOWN, self.tr("How to search")),
                                           **dict.fromkeys(_FINE, self.tr("More settings"))}  # fmt: skip
        known = {(name := _RENAMED.get(field.name, field.name)): replace(field, name=name) for field in sweep_fields()}
        # Made a turn later, or when it is opened: a form is seen sooner.
        self.search = SchemaForm(
            [replace(known[name], group=group) for name, group in groups.items()], self,
            label=lambda field: labels[field.name], searchable=False,
        )  # fmt: skip
        column.addWidget(self.search)
        self.search.changed.connect(self.changed)
        super()._fill_analytics(column)

    def _labels(self) -> Mapping[str, str]:
        return {
            _TRIALS: self.tr("Trials"), "parallel": self.tr("Trials at a time"), "sampler": self.tr("Sampler"),
            "pruner": self.tr("Pruner"), "metric": self.tr("Metric"), "direction": self.tr("Direction"),
            "aggregate": self.tr("Over seeds"), "startup_trials": self.tr("Random trials first"),
            "warmup_trials": self.tr("Trials before pruning"), "reports": self.tr("Comparisons per trial"),
            "timeout_minutes": self.tr("No new trials after (minutes)"), "storage": self.tr("Storage"),
            "give_up_after": self.tr("Failures in a row to end it"), "study_name": self.tr("Name of the study"),
            _SAMPLER_SEED: self.tr("Seed of the sampler"),
        }  # fmt: skip

    def _show_algorithm(self) -> None:
        super()._show_algorithm()
        chosen = self.algorithm.algorithm()
        if chosen is not None:
            self.space.set_algorithm(chosen, self._sweep_presenter.searchable(chosen))

    # ------------------------------------------------------------------ values

    def order(self) -> SweepOrder:
        """Everything the form says."""
        trial = super().order()
        kept = {
            name: getattr(self._base, name)
            for name in ("requirements", "install_missing", "fastlane", "minimal_telemetry", "tensorboard", "wandb")
        }
        plain = {each.name: getattr(trial, each.name) for each in fields(TrainOrder)} | kept
        unknown = self._base.settings if isinstance(self._base, SweepOrder) else {}
        usual = {field.name: field.default for field in self.search.fields}
        settings = {**unknown, **usual, **self.search.changed_values()}
        trials, seed = settings.pop(_TRIALS), settings.pop(_SAMPLER_SEED)
        return SweepOrder(**plain, ranges=self.space.ranges(), trials=trials, sampler_seed=seed, settings=settings)

    def set_order(self, order: TrainOrder) -> None:
        self._base = order
        if isinstance(order, SweepOrder):
            seed = 1 if order.sampler_seed is None else order.sampler_seed
            values = {**order.settings, _TRIALS: order.trials, _SAMPLER_SEED: seed}
            self.search.set_values(values)
        super().set_order(order)
        if isinstance(order, SweepOrder):
            self.space.set_ranges(order.ranges)

    def load(self, document: Document) -> None:
        """A sweep's config, or that of a training: then every trial is like it."""
        worker = document.get("metadata", {}).get("worker", {}) if isinstance(document, dict) else {}
        if isinstance(worker, dict) and worker.get("type") == WORKER_TYPE:
            self.set_order(sweep_order_of(document))
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
        order = self.order()
        searched = ", ".join(order.ranges)
        return self.tr("sweep {algo} {env}: {searched}").format(algo=order.algo, env=order.env_id, searched=searched)
