"""Optuna's samplers and pruners by the names of our settings."""

from __future__ import annotations

import random
import warnings
from typing import Any

import optuna
from mosaic_wire.sweep_ranges import ParameterRange
from mosaic_wire.sweep_settings import SweepSettings
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner, PercentilePruner
from optuna.pruners import SuccessiveHalvingPruner as AshaPruner
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, GridSampler, RandomSampler, TPESampler

_KEPT_PERCENT = 25.0
"""The percentile pruner keeps the best quarter"""
_REDUCTION = 3


class Grid(GridSampler):
    """Optuna's grid for those who ask and tell: the controller knows itself when all of it was tried."""

    def after_trial(self, study: Any, trial: Any, state: Any, values: Any) -> None:
        return


def make_sampler(settings: SweepSettings, seed: int | None, number: int) -> BaseSampler:
    """A sampler for one trial, with a seed of its own: an interrupted sweep goes on as it would have."""
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
    """The pruner; trials are compared `reports` times, at the same steps."""
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
    """The steps at which trials are compared. Not the last one: what is nearly done is not worth ending."""
    steps = {total_timesteps * index // reports for index in range(1, reports)}
    return sorted(step for step in steps if step > 0)


def suggest(trial: optuna.Trial, each: ParameterRange) -> Any:
    """The trial's value of one parameter; asked again, the same."""
    if each.kind == "categorical":
        return trial.suggest_categorical(each.name, list(each.choices))
    if each.kind == "int":
        step = 1 if each.step is None else int(each.step)
        return trial.suggest_int(each.name, int(each.low), int(each.high), step=step, log=each.log)
    return trial.suggest_float(each.name, each.low, each.high, step=each.step, log=each.log)
