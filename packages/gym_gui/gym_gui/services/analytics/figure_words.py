"""Figures of runs and groups as reports write them: with their uncertainty, and claiming no more than it allows."""

from __future__ import annotations

from gym_gui.services.analytics.comparison import Comparison, Improvement
from gym_gui.services.analytics.labels import NOT_GIVEN
from gym_gui.services.analytics.statistics import ENOUGH_SEEDS, FEWEST_RUNS, Estimate
from gym_gui.wording import formats


def number(value: float | None) -> str:
    return NOT_GIVEN if value is None else formats.quantity(value)


def estimate_text(estimate: Estimate | None) -> str:
    """`487.2 [470.1, 499.0]`"""
    if estimate is None:
        return NOT_GIVEN
    interval = estimate.interval
    if interval is None:
        return number(estimate.value)
    return f"{number(estimate.value)} [{number(interval.low)}, {number(interval.high)}]"


def probability_text(probability: Estimate) -> str:
    interval = probability.interval
    return f"{probability.value:.2f}" + (f" [{interval.low:.2f}, {interval.high:.2f}]" if interval else "")


def decided(probability: Estimate, seeds: int) -> str:
    """What an interval allows to say; of a handful of seeds a bootstrap knows too little to be trusted."""
    if probability.interval is None:
        return f"no: fewer than {FEWEST_RUNS} seeds"
    if 0.5 in probability.interval:
        return "no: 0.50 lies within"
    return "yes" if seeds >= ENOUGH_SEEDS else f"likely: only {formats.plural(seeds, 'seed')}"


def fewest_seeds(pair: Improvement, comparison: Comparison) -> int:
    return min(len(comparison.group(key).run_ids) for key in (pair.better, pair.worse))
