"""The study: opened where the settings say, taken along from an earlier sweep, and asked in the words of a sweep."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from mosaic_wire.errors import ConfigProblems, Problem
from mosaic_wire.redaction import redact_text
from mosaic_wire.sweep_settings import JOURNAL, SQLITE, STUDY_FILES, SweepSettings
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from sweep_worker.journal_file import StudyJournal, copy_journal
from sweep_worker.searching import make_pruner, make_sampler, suggest

SWEEP, RUNS, SEEDS, CONFIG = "mosaic_sweep", "mosaic_runs", "mosaic_seeds", "mosaic_config"
VALUES, REASON, VERDICT = "mosaic_values", "mosaic_reason", "mosaic_verdict"
INTERRUPTED, AGAIN = "mosaic_interrupted", "mosaic_again"


@dataclass(frozen=True)
class StudyPlace:
    """Where a study lies and what it is called."""

    storage: str
    """journal, sqlite, or a URL (with its password)"""
    name: str
    folder: Path
    """The run folder"""

    @property
    def is_shared(self) -> bool:
        """A database, where others may have trials in the same study"""
        return self.storage not in STUDY_FILES

    @property
    def told(self) -> str:
        """For the manifest: relative to the run folder, or the URL without its password."""
        return STUDY_FILES.get(self.storage) or redact_text(self.storage)


class Study:
    """One Optuna study as a sweep uses it."""

    def __init__(self, study: optuna.Study, settings: SweepSettings, seed: int | None) -> None:
        self._study, self._settings, self._seed = study, settings, seed

    @classmethod
    def open(
        cls,
        place: StudyPlace,
        settings: SweepSettings,
        *,
        seed: int | None,
        total_timesteps: int,
        complain: Callable[[str], None],
        is_stopping: Callable[[], bool],
    ) -> Study:
        """Open or make the study; ConfigProblems when it cannot be used."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            study = optuna.create_study(
                storage=_storage(place, complain, is_stopping), study_name=place.name,
                direction=StudyDirection[settings.direction.upper()],
                pruner=make_pruner(settings, total_timesteps), load_if_exists=True,
            )  # fmt: skip
        except (ImportError, ValueError, optuna.exceptions.OptunaError) as error:
            told = f"the study cannot be opened: {redact_text(str(error))}"
            raise ConfigProblems("the worker config", [Problem("storage", told)]) from error
        known = study.direction.name.lower()
        if known != settings.direction:
            told = f"the study {place.name!r} is there already and has the direction {known}; choose another study_name"
            raise ConfigProblems("the worker config", [Problem("direction", told)])
        return cls(study, settings, seed)

    def trials(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def ask(self) -> Trial:
        """A new trial, without its values yet."""
        self._study.sampler = make_sampler(self._settings, self._seed, len(self.trials()))
        return Trial(self._study, self._study.ask())

    def take_up(self, known: FrozenTrial) -> Trial:
        """A trial that was running when the controller died."""
        self._study.sampler = make_sampler(self._settings, self._seed, known.number)
        return Trial(self._study, optuna.Trial(self._study, known._trial_id))

    def give_up(self, known: FrozenTrial, reason: str) -> None:
        """A trial of an earlier sweep whose runs are gone."""
        Trial(self._study, optuna.Trial(self._study, known._trial_id)).interrupt(reason)

    def try_again(self) -> None:
        """Put the values of interrupted trials in line again, each once."""
        trials = self.trials()
        waiting = {each.user_attrs.get(AGAIN) for each in trials}
        for each in trials:
            complete = {known.name for known in self._settings.parameters} <= each.params.keys()
            if each.user_attrs.get(INTERRUPTED) and complete and each.number not in waiting:
                self._study.enqueue_trial(each.params, user_attrs={AGAIN: each.number})


class Trial:
    """A running trial: everything said about it is in the study before anything is done about it."""

    def __init__(self, study: optuna.Study, trial: optuna.Trial) -> None:
        self._study, self._trial = study, trial

    @property
    def number(self) -> int:
        return self._trial.number

    @property
    def attributes(self) -> Mapping[str, Any]:
        return self._trial.user_attrs

    def note(self, **attributes: Any) -> None:
        """Write attributes down; those that are there already with that value are left alone."""
        known = self._trial.user_attrs
        for name, value in attributes.items():
            if known.get(name) != value:
                self._trial.set_user_attr(name, value)

    def values(self, settings: SweepSettings) -> dict[str, Any]:
        """The trial's values of all parameters; those it has already stay."""
        return {each.name: suggest(self._trial, each) for each in settings.parameters}

    def last_report(self) -> int:
        """The step up to which it was compared with others."""
        trials = self._study.get_trials(deepcopy=False)
        return max(trials[self.number].intermediate_values, default=0)

    def is_pruned_at(self, value: float, step: int) -> bool:
        """Report a figure; True: the pruner would end the trial."""
        self._trial.report(value, step)
        return self._trial.should_prune()

    def complete(self, value: float, values: list[float]) -> None:
        self.note(**{VALUES: values})
        self._study.tell(self._trial, value, state=TrialState.COMPLETE)

    def prune(self) -> None:
        self._study.tell(self._trial, state=TrialState.PRUNED)

    def fail(self) -> None:
        self._study.tell(self._trial, state=TrialState.FAIL)

    def interrupt(self, reason: str) -> None:
        """End a trial that got no chance."""
        self.note(**{REASON: reason, INTERRUPTED: True})
        self.fail()


def _storage(place: StudyPlace, complain: Callable[[str], None], is_stopping: Callable[[], bool]) -> BaseStorage:
    if place.storage == JOURNAL:
        journal = StudyJournal(place.folder / STUDY_FILES[JOURNAL], complain=complain, is_stopping=is_stopping)
        return JournalStorage(journal)
    if place.storage == SQLITE:
        return RDBStorage(f"sqlite:///{place.folder / STUDY_FILES[SQLITE]}")
    return RDBStorage(place.storage)


def bring_along(place: StudyPlace, source: Path) -> None:
    """Take the study of an earlier run's folder along; what is here already is newer."""
    name = STUDY_FILES.get(place.storage)
    if name is None or (place.folder / name).exists() or not (source / name).exists():
        return
    if place.storage == JOURNAL:
        copy_journal(source / name, place.folder / name)
        return
    temporary = place.folder / f".{name}.tmp"
    temporary.unlink(missing_ok=True)
    with closing(sqlite3.connect(source / name)) as old, closing(sqlite3.connect(temporary)) as new:
        old.backup(new)
    temporary.replace(place.folder / name)


def running(trials: list[FrozenTrial]) -> Iterator[FrozenTrial]:
    return (each for each in trials if each.state is TrialState.RUNNING)
