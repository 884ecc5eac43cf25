"""Who is better over several environments: each counts alike, and runs are resampled within theirs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gym_gui.services.analytics.configurations import Configuration
from gym_gui.services.analytics.labels import configuration_labels
from gym_gui.services.analytics.statistics import Estimate, probability_of_improvement

MOST_COMPARED = 12
"""Of more configurations nobody reads every pair"""


@dataclass(frozen=True)
class OverallImprovement:
    """How likely a run of the first ends better than one of the second, in the environments both were trained in."""

    better: str
    """Labels without an environment: `ppo`, `ppo · lr 1e-3`"""
    worse: str
    environments: tuple[str, ...]
    probability: Estimate


def improvements_across(finals: Mapping[Configuration, Sequence[float]]) -> list[OverallImprovement]:
    """Pairs of configurations that met in at least two environments, by the final returns of their runs."""
    entries: dict[Configuration, dict[str, Sequence[float]]] = {}
    for configuration, values in finals.items():
        if values:
            anywhere = replace(configuration, env_id="", total=0)
            entries.setdefault(anywhere, {})[configuration.env_id] = values
    several = [entry for entry, where in entries.items() if len(where) > 1][:MOST_COMPARED]
    labels = dict(zip(several, configuration_labels(several), strict=True))
    found = []
    for first, second in itertools.combinations(several, 2):
        shared = tuple(env_id for env_id in entries[first] if env_id in entries[second])
        if len(shared) < 2:
            continue
        sides = [[entries[entry][env_id] for env_id in shared] for entry in (first, second)]
        probability = probability_of_improvement(*sides)
        if probability.value < 0.5:
            first, second, probability = second, first, probability.complement()
        found.append(OverallImprovement(labels[first], labels[second], shared, probability))
    return found
