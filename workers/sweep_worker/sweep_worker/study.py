"""The study: samplers, pruners, and the journal file that survives a full disk or a killed process."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import shutil
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from mosaic_wire.errors import ConfigProblems, Problem
from mosaic_wire.redaction import redact_text
from mosaic_wire.sweep_settings import JOURNAL, SQLITE, STUDY_FILES, ParameterRange, SweepSettings
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner, PercentilePruner
from optuna.pruners import SuccessiveHalvingPruner as AshaPruner
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, GridSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

SWEEP, RUNS, SEEDS, CONFIG = "mosaic_sweep", "mosaic_runs", "mosaic_seeds", "mosaic_config"
VALUES, REASON, VERDICT = "mosaic_values", "mosaic_reason", "mosaic_verdict"
INTERRUPTED, AGAIN = "mosaic_interrupted", "mosaic_again"


@dataclass(frozen=True)
class StudyPlace:
    """The storage and name of a study."""

    storage: str
    """journal, sqlite, or a URL (with its password)"""
    name: str
    folder: Path
    """The run folder"""

    @property
    def is_shared(self) -> bool:
        """Return whether it is a database, which other sweeps may use for the same study."""
        return self.storage not in STUDY_FILES

    @property
    def shown(self) -> str:
        """Return the storage for the manifest: a path in the run folder, or the URL without its password."""
        return STUDY_FILES.get(self.storage) or redact_text(self.storage)


class Study:
    """The Optuna study of a sweep."""

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
        report_problem: Callable[[str], None],
        is_stopping: Callable[[], bool],
    ) -> Study:
        """Open or create the study; raise ConfigProblems when it cannot be used."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            study = optuna.create_study(
                storage=_storage(place, report_problem, is_stopping),
                study_name=place.name,
                direction=StudyDirection[settings.direction.upper()],
                pruner=make_pruner(settings, total_timesteps),
                load_if_exists=True,
            )
        except (ImportError, ValueError, optuna.exceptions.OptunaError) as error:
            message = f"the study cannot be opened: {redact_text(str(error))}"
            raise ConfigProblems("the worker config", [Problem("storage", message)]) from error
        known = study.direction.name.lower()
        if known != settings.direction:
            message = (
                f"the study {place.name!r} already exists and has the direction {known}; choose another study_name"
            )
            raise ConfigProblems("the worker config", [Problem("direction", message)])
        return cls(study, settings, seed)

    def trials(self) -> list[FrozenTrial]:
        """Return every trial of the study."""
        return self._study.get_trials(deepcopy=False)

    def ask(self) -> Trial:
        """Return a new trial without values."""
        self._study.sampler = make_sampler(self._settings, self._seed, len(self.trials()))
        return Trial(self._study, self._study.ask())

    def recover(self, known: FrozenTrial) -> Trial:
        """Return a trial that was running when the controller died."""
        self._study.sampler = make_sampler(self._settings, self._seed, known.number)
        return Trial(self._study, optuna.Trial(self._study, known._trial_id))

    def give_up(self, known: FrozenTrial, reason: str) -> None:
        """End a trial of an earlier sweep, whose runs have ended."""
        Trial(self._study, optuna.Trial(self._study, known._trial_id)).interrupt(reason)

    def requeue_interrupted(self) -> None:
        """Enqueue the values of interrupted trials again, each once."""
        trials = self.trials()
        waiting = {each.user_attrs.get(AGAIN) for each in trials}
        for each in trials:
            complete = {known.name for known in self._settings.parameters} <= each.params.keys()
            if each.user_attrs.get(INTERRUPTED) and complete and each.number not in waiting:
                self._study.enqueue_trial(each.params, user_attrs={AGAIN: each.number})


class Trial:
    """A running trial, whose changes are stored in the study before they take effect."""

    def __init__(self, study: optuna.Study, trial: optuna.Trial) -> None:
        self._study, self._trial = study, trial

    @property
    def number(self) -> int:
        """Return its number in the study."""
        return self._trial.number

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Return what was stored with it."""
        return self._trial.user_attrs

    def note(self, **attributes: Any) -> None:
        """Store attributes that are new or have changed."""
        known = self._trial.user_attrs
        for name, value in attributes.items():
            if known.get(name) != value:
                self._trial.set_user_attr(name, value)

    def values(self, settings: SweepSettings) -> dict[str, Any]:
        """Return the values of all parameters, sampling those that are missing."""
        return {each.name: suggest(self._trial, each) for each in settings.parameters}

    def last_report(self) -> int:
        """Return the step of the last report."""
        trials = self._study.get_trials(deepcopy=False)
        return max(trials[self.number].intermediate_values, default=0)

    def is_pruned_at(self, value: float, step: int) -> bool:
        """Report a value; return whether the pruner would end the trial."""
        self._trial.report(value, step)
        return self._trial.should_prune()

    def complete(self, value: float, values: list[float]) -> None:
        """Store its objective."""
        self.note(**{VALUES: values})
        self._study.tell(self._trial, value, state=TrialState.COMPLETE)

    def prune(self) -> None:
        """Mark it as pruned."""
        self._study.tell(self._trial, state=TrialState.PRUNED)

    def fail(self) -> None:
        """Mark it as failed."""
        self._study.tell(self._trial, state=TrialState.FAIL)

    def interrupt(self, reason: str) -> None:
        """End a trial that was interrupted."""
        self.note(**{REASON: reason, INTERRUPTED: True})
        self.fail()


def _storage(place: StudyPlace, report_problem: Callable[[str], None], is_stopping: Callable[[], bool]) -> BaseStorage:
    if place.storage == JOURNAL:
        journal = StudyJournal(
            place.folder / STUDY_FILES[JOURNAL], report_problem=report_problem, is_stopping=is_stopping
        )
        return JournalStorage(journal)
    if place.storage == SQLITE:
        return RDBStorage(f"sqlite:///{place.folder / STUDY_FILES[SQLITE]}")
    return RDBStorage(place.storage)


def bring_along(place: StudyPlace, source: Path) -> None:
    """Copy the study of an earlier run's folder, unless there is a newer one."""
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
    """Return the trials that have not ended."""
    return (each for each in trials if each.state is TrialState.RUNNING)


# ---------------------------------------------------------------- samplers and pruners


_KEPT_PERCENT = 25.0
"""The percentile pruner keeps the best quarter"""
_REDUCTION = 3


class Grid(GridSampler):
    """Optuna's grid sampler for ask-and-tell: the controller determines when the grid is exhausted."""

    def after_trial(self, study: Any, trial: Any, state: Any, values: Any) -> None:
        return


def make_sampler(settings: SweepSettings, seed: int | None, number: int) -> BaseSampler:
    """Return a sampler with a seed for one trial, so that a resumed sweep samples the same values."""
    own = random.Random(f"{seed}/{number}").getrandbits(31) if seed is not None else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if settings.sampler == "grid":
            space = {each.name: list(each.values() or ()) for each in settings.parameters}
            return Grid(space, seed=seed or 0)  # the order of the grid is the same for every trial
        if settings.sampler == "cmaes":
            startup = max(1, settings.startup_trials)
            return CmaEsSampler(seed=own, n_startup_trials=startup, warn_independent_sampling=False)
        if settings.sampler == "gp":
            return GPSampler(seed=own, n_startup_trials=settings.startup_trials, warn_independent_sampling=False)
        if settings.sampler == "tpe":
            return TPESampler(seed=own, n_startup_trials=settings.startup_trials)
        return RandomSampler(seed=own)


def make_pruner(settings: SweepSettings, total_timesteps: int) -> BasePruner:
    """Return the pruner; trials are compared `reports` times, at the same steps."""
    first, warm = rungs(total_timesteps, settings.reports)[:1] or [total_timesteps], settings.warmup_trials
    if settings.pruner == "median":
        return MedianPruner(n_startup_trials=warm)
    if settings.pruner == "percentile":
        return PercentilePruner(_KEPT_PERCENT, n_startup_trials=warm)
    if settings.pruner == "hyperband":
        return HyperbandPruner(min_resource=first[0], max_resource=total_timesteps, reduction_factor=_REDUCTION)
    if settings.pruner == "asha":
        return AshaPruner(min_resource=first[0], reduction_factor=_REDUCTION)
    return NopPruner()


def rungs(total_timesteps: int, reports: int) -> list[int]:
    """Return the steps at which trials are compared, without the last one, where pruning saves nothing."""
    steps = {total_timesteps * index // reports for index in range(1, reports)}
    return sorted(step for step in steps if step > 0)


def suggest(trial: optuna.Trial, each: ParameterRange) -> Any:
    """Return the trial's value of one parameter, the same at every call."""
    if each.kind == "categorical":
        return trial.suggest_categorical(each.name, list(each.choices))
    if each.kind == "int":
        step = 1 if each.step is None else int(each.step)
        return trial.suggest_int(each.name, int(each.low), int(each.high), step=step, log=each.log)
    return trial.suggest_float(each.name, each.low, each.high, step=each.step, log=each.log)


# ---------------------------------------------------------------- the journal


_ROOM_CHECK_S = 1.0


class DamagedJournal(Exception):
    """The journal is damaged, and not by an interrupted write."""


class ProcessLock(JournalFileOpenLock):
    """A lock that the kernel releases when its process ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def acquire(self) -> bool:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        return True

    def release(self) -> None:
        os.close(self._descriptor)
        self._descriptor = -1


class StudyJournal(JournalFileBackend):
    """Appends whole entries; on a full disk it reports that once and waits for space."""

    def __init__(self, path: Path, *, report_problem: Callable[[str], None], is_stopping: Callable[[], bool]) -> None:
        repair(path, report_problem)
        super().__init__(str(path), lock_obj=ProcessLock(path.with_name(f".{path.name}.lock")))
        self._path, self._complain, self._is_stopping = path, report_problem, is_stopping

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        is_reported = False
        while True:
            size = self._path.stat().st_size
            try:
                super().append_logs(logs)
            except OSError as error:
                os.truncate(self._path, size)
                if error.errno not in (errno.ENOSPC, errno.EDQUOT) or self._is_stopping():
                    raise
                if not is_reported:
                    self._complain(f"the study cannot be written, waiting for room: {error}")
                    is_reported = True
                time.sleep(_ROOM_CHECK_S)
            else:
                return


def repair(path: Path, report_problem: Callable[[str], None]) -> None:
    """Truncate an incomplete entry at the end of the journal and save it beside the journal."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    good, broken_at = 0, -1
    for line in data.splitlines(keepends=True):
        if not _is_entry(line):
            if broken_at < 0:
                broken_at = good
        elif broken_at >= 0:
            raise DamagedJournal(
                f"{path} is damaged in the middle, at byte {broken_at}; restore it from a backup, or remove the line"
            )
        good += len(line)
    if broken_at < 0:
        return
    torn = path.with_name(f"{path.name}.torn")
    torn.write_bytes(data[broken_at:])
    os.truncate(path, broken_at)
    report_problem(
        f"the last {len(data) - broken_at} bytes of {path.name} were half an entry; they lie in {torn.name} now"
    )


def _is_entry(line: bytes) -> bool:
    if not line.endswith(b"\n"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def copy_journal(source: Path, target: Path) -> None:
    """Copy an earlier study atomically."""
    temporary = target.with_name(f".{target.name}.tmp")
    shutil.copyfile(source, temporary)
    temporary.replace(target)
