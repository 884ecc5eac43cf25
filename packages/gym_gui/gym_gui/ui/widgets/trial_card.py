"""One trial of a study: how it did, what it was tried with, and its runs."""

from __future__ import annotations

import json
import math

from PySide6.QtCore import QCoreApplication, Qt, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QSizePolicy, QVBoxLayout, QWidget

from gym_gui.services.analytics.studies import Study, Trial, TrialState
from gym_gui.services.analytics.studies.distributions import Distribution, Kind
from gym_gui.ui.presenters.study_rows import STATE_SIGNS, STATE_WORDS, number_text, value_text
from gym_gui.ui.widgets.pairs_table import PairsTable
from gym_gui.ui.workers.words import PRESENTERS
from gym_gui.wording import formats
from gym_gui.wording.run_view import short_id

_MOST_RUNS = 6


class TrialCard(QFrame):
    """The best trial, or the one that is chosen."""

    run_wanted = Signal(str)
    train_wanted = Signal(object)  # Trial

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("trial_card")
        self.setProperty("role", "card")
        self.trial: Trial | None = None
        self._caption = QLabel()
        self._caption.setObjectName("trial_caption")
        self._caption.setProperty("role", "caption")
        self._figure = QLabel()
        self._figure.setObjectName("trial_value")
        self._figure.setProperty("role", "figure")
        self._about = QLabel()
        self._about.setObjectName("trial_about")
        self._about.setProperty("role", "caption")
        self._about.setWordWrap(True)
        self._about.setTextFormat(Qt.TextFormat.PlainText)  # a reason may hold anything
        self.parameters = PairsTable(self.tr("Parameter"), self.tr("Value"), accessible=self.tr("Its parameters"))
        self.parameters.setObjectName("trial_parameters")
        self.train = QPushButton(self.tr("&Train this configuration…"))
        self.train.setObjectName("train_configuration")
        self.train.setAccessibleName(self.tr("Train this configuration"))
        self.train.setProperty("role", "primary")
        self.train.setToolTip(self.tr("Open the form that trains, filled with these parameters"))
        self.train.clicked.connect(lambda: self.train_wanted.emit(self.trial))
        self.copy = QPushButton(self.tr("Cop&y parameters"))
        self.copy.setObjectName("copy_parameters")
        self.copy.setAccessibleName(self.tr("Copy parameters"))
        self.copy.setToolTip(self.tr("As JSON"))
        self.copy.clicked.connect(self.copy_parameters)
        buttons = QHBoxLayout()
        buttons.addWidget(self.train)
        buttons.addWidget(self.copy)
        buttons.addStretch(1)
        self._runs = QHBoxLayout()
        self._runs.setSpacing(4)
        runs = QWidget()
        runs.setLayout(self._runs)
        self._runs.setContentsMargins(0, 0, 0, 0)
        runs.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Maximum)
        self._runs_box = runs
        layout = QVBoxLayout(self)
        layout.setContentsMargins(10, 8, 10, 8)
        layout.setSpacing(4)
        for part in (self._caption, self._figure, self._about):
            layout.addWidget(part)
        layout.addLayout(buttons)
        layout.addWidget(runs)
        layout.addWidget(self.parameters, 1)
        self.show_trial(None, None, is_best=True)

    def show_trial(self, study: Study | None, trial: Trial | None, *, is_best: bool) -> None:
        """This trial; None: there is none to show yet."""
        self.trial = trial
        for button in (self.train, self.copy):
            button.setEnabled(trial is not None and bool(trial.internals))
        if study is None or trial is None:
            self._caption.setText(self.tr("Best configuration"))
            self._figure.setText("–")
            self._about.setText(self.tr("No trial has been completed yet.") if study is not None else "")
            self.parameters.show_pairs([])
            self._show_runs(())
            return
        number = self.tr("trial {number}").format(number=trial.number)
        self._caption.setText(
            self.tr("Best configuration: {trial}").format(trial=number)
            if is_best
            else self.tr("Chosen: {trial}").format(trial=number)
        )
        values = ", ".join(map(number_text, trial.values))
        self._figure.setText(values or "–")
        self._about.setText(self._facts(study, trial))
        self.parameters.show_pairs(
            (name, f"{value_text(value)}   {_range_text(trial.distributions[name])}")
            for name, value in trial.params.items()
        )
        self._show_runs(trial.run_ids)

    def _facts(self, study: Study, trial: Trial) -> str:
        word = QCoreApplication.translate(PRESENTERS, STATE_WORDS[trial.state])
        facts = [f"{STATE_SIGNS[trial.state]} {word}"]
        if math.isfinite(trial.duration_s):
            facts.append(formats.duration(trial.duration_s))
        seeds, values = trial.user_attrs.get("mosaic_seeds"), trial.user_attrs.get("mosaic_values")
        if isinstance(seeds, list) and isinstance(values, list) and len(seeds) == len(values) > 1:
            told = ", ".join(
                f"{seed}: {number_text(value)}"
                for seed, value in zip(seeds, values, strict=True)
                if isinstance(value, int | float)
            )
            facts.append(self.tr("by seed {values}").format(values=told))
        if study.has_several_objectives and study.best_rows:
            facts.append(self.tr("one of {count} that no other trial beats").format(count=len(study.best_rows)))
        reason = trial.user_attrs.get("mosaic_reason")
        if reason and trial.state is not TrialState.COMPLETE:  # it was to be ended, and completed before that
            facts.append(str(reason))
        return " · ".join(facts)

    def _show_runs(self, run_ids: tuple[str, ...]) -> None:
        while (item := self._runs.takeAt(0)) is not None:
            if (widget := item.widget()) is not None:
                widget.hide()
                widget.deleteLater()
        self._runs_box.setVisible(bool(run_ids))
        for run_id in run_ids[:_MOST_RUNS]:
            button = QPushButton(self.tr("Run {run}").format(run=short_id(run_id)))
            button.setObjectName(f"open_run_{run_id}")
            button.setAccessibleName(self.tr("Open run {run}").format(run=short_id(run_id)))
            button.setToolTip(run_id)
            button.clicked.connect(lambda _on=False, run_id=run_id: self.run_wanted.emit(run_id))
            self._runs.addWidget(button)
        if len(run_ids) > _MOST_RUNS:
            more = QLabel(self.tr("and {count} more").format(count=len(run_ids) - _MOST_RUNS))
            more.setProperty("role", "caption")
            self._runs.addWidget(more)
        self._runs.addStretch(1)

    def copy_parameters(self) -> None:
        """As a JSON object, for a config or a script."""
        if self.trial is not None:
            QGuiApplication.clipboard().setText(json.dumps(self.trial.params, indent=2, ensure_ascii=False))


def _range_text(distribution: Distribution) -> str:
    if distribution.kind is Kind.CATEGORICAL:
        return f"({' | '.join(map(value_text, distribution.choices))})"
    low, high = number_text(distribution.low), number_text(distribution.high)
    step = f", step {number_text(distribution.step)}" if distribution.step not in (None, 1.0) else ""
    return f"({low} … {high}{', log' if distribution.log else ''}{step})"
