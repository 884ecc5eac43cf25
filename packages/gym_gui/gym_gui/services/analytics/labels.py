"""What lines and groups are called: as short as tells them apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gym_gui.services.analytics.configurations import SCRIPT_HASH, Configuration, parameter_text, short_value
from gym_gui.wording import formats
from gym_gui.wording.run_view import short_id

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

NOT_GIVEN = "–"


def configuration_labels(configurations: Sequence[Configuration]) -> list[str]:
    """`ppo · CartPole-v1`; those that would be called alike have the parameters, or the steps, in which they differ."""
    plain = [" · ".join(filter(None, (own.algo or own.worker, own.env_id, own.mode))) for own in configurations]
    labels = list(plain)
    for name in _repeated(plain):
        alike = [index for index, label in enumerate(plain) if label == name]
        differing = differing_parameters([configurations[index] for index in alike])
        for index in alike:
            given = dict(configurations[index].parameters)
            texts = [parameter_text(key, given[key]) for key in differing if key in given]
            labels[index] = " · ".join((name, *texts))
    for name in _repeated(labels):
        for index in [index for index, label in enumerate(labels) if label == name]:
            own = configurations[index]
            steps = f"{formats.short_count(own.total)} steps" if own.total else own.worker
            labels[index] = f"{name} · {steps}"
    return labels


def differing_parameters(configurations: Iterable[Configuration]) -> list[str]:
    """Names of parameters that not all of them have with the same value; a script's hash only for one script edited."""
    configurations = list(configurations)
    given = [dict(own.parameters) for own in configurations]
    names = {name for own in given for name in own}
    codes = {(own.algo, values.get(SCRIPT_HASH)) for own, values in zip(configurations, given, strict=True)}
    if len(codes) == len({algo for algo, _ in codes}):
        names.discard(SCRIPT_HASH)
    return [name for name in sorted(names) if len({own.get(name) for own in given}) > 1]


def parameter_value(configuration: Configuration, name: str) -> str:
    """As people write it; – where it was left to the algorithm."""
    given = dict(configuration.parameters)
    return short_value(given[name]) if name in given else NOT_GIVEN


def how_many(runs: Sequence[pb.Run]) -> str:
    """`5 seeds`, or `5 runs` when some share a seed."""
    seeds = {run.seed for run in runs if run.HasField("seed")}
    return f"{len(runs)} {'seeds' if len(seeds) == len(runs) else 'runs'}"


def run_labels(runs: Sequence[pb.Run], configurations: Sequence[Configuration]) -> list[str]:
    """`ppo · CartPole-v1 · seed 3`, and the end of its id where another run is called the same."""
    labels = [
        f"{label} · seed {run.seed}" if run.HasField("seed") else label
        for run, label in zip(runs, _labels_of_all(configurations), strict=True)
    ]
    again = _repeated(labels)
    return [
        f"{label} · {short_id(run.run_id)}" if label in again else label
        for run, label in zip(runs, labels, strict=True)
    ]


def _labels_of_all(configurations: Sequence[Configuration]) -> list[str]:
    different = list(dict.fromkeys(configurations))
    labels = dict(zip(different, configuration_labels(different), strict=True))
    return [labels[own] for own in configurations]


def _repeated(labels: Sequence[str]) -> set[str]:
    return {label for label, count in Counter(labels).items() if count > 1}
