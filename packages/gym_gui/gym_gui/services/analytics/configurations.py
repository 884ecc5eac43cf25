"""The settings that runs share if only their seeds differ, and their names: `ppo · CartPole-v1 · lr 2.5e-4`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mosaic_wire.env_kwargs import parse_env_kwargs
from mosaic_wire.run_request import Extras, Mode, algo_params

from gym_gui.wording import formats
from gym_gui.wording.run_view import algo_of, extras_of, parsed, short_id

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb


SCRIPT_HASH = "script_sha256"
_SHORT_NAMES = {
    "learning_rate": "lr",
    "num_envs": "envs",
    "num_steps": "steps",
    "batch_size": "batch",
    "buffer_size": "buffer",
    "update_epochs": "epochs",
    "num_minibatches": "minibatches",
    "gae_lambda": "λ",
    "gamma": "γ",
    SCRIPT_HASH: "script",
}
_SHOWN_DIGITS = 7
_SHOWN_PARAMETERS = 3
_NOT_THE_CONFIGURATION = frozenset({"seed", "env_id", "total_timesteps", "exp_name", "run_name"})
_MODES_OF_TRAINING = ("train", "resume_training")


@dataclass(frozen=True)
class Configuration:
    """The settings of runs that differ only in their seeds; there is one object for each, see `_known`."""

    worker: str
    algo: str
    env_id: str
    environment: str
    """See `environment_of`"""
    total: int
    mode: str
    parameters: tuple[tuple[str, str], ...]
    """Parameters that may affect learning and differ from their defaults: name, value as JSON; sorted"""

    @cached_property
    def key(self) -> str:
        """The id of its line in the table"""
        return f"group:{self.worker}|{self.algo}|{self.env_id}|{self.total}|{self.mode}|{self.parameters}"

    @cached_property
    def family(self) -> tuple[object, ...]:
        """All of it but how long it trains"""
        return self.worker, self.algo, self.env_id, self.mode, self.parameters

    @cached_property
    def title(self) -> str:
        """Return `ppo · CartPole-v1 · lr 2.5e-4`, with a few parameters at most."""
        parts = [self.algo or self.worker, self.env_id, self.mode, *self.parameter_texts(_SHOWN_PARAMETERS)]
        return " · ".join(filter(None, parts))

    def parameter_texts(self, most: int | None = None) -> list[str]:
        """Return the parameters as people write them, `+3` for those beyond `most`."""
        texts = [parameter_text(name, value) for name, value in self.parameters]
        if most is not None and len(texts) > most:
            return [*texts[:most], f"+{len(texts) - most}"]
        return texts


_known: dict[Configuration, Configuration] = {}
"""Ten thousand runs have a few hundred configurations; the same object each time makes grouping cheap"""


def configuration_of(run: pb.Run) -> Configuration:
    """Return a run's configuration; it never changes, so callers may cache it."""
    extras = extras_of(run)
    mode = str(extras.get("mode") or "")
    found = Configuration(
        run.worker_type,
        algo_of(run),
        run.env_id,
        environment_of(run),
        run.total,
        "" if mode in _MODES_OF_TRAINING else mode,
        _parameters(run, extras),
    )
    return _known.setdefault(found, found)


def kind_of(run: pb.Run) -> str:
    """Return the kind of a run: a trial, a sweep, an evaluation, a watched policy; empty for a training."""
    if run.submitted_by:
        return "trial"
    if (parsed(run.capabilities_json) or {}).get("submits_runs"):
        return "sweep"
    kinds: dict[str, str] = {Mode.EVALUATE: "evaluation", Mode.INTERACTIVE: "watched run"}
    return kinds.get(configuration_of(run).mode, "")


def parameters_of(run: pb.Run) -> dict[str, Any]:
    """Return the parameters a run was given, defaults and bookkeeping among them."""
    given = algo_params(extras_of(run))
    return {name: given[name] for name in sorted(set(given) - _NOT_THE_CONFIGURATION)}


def environment_kwargs_of(run: pb.Run) -> dict[str, Any]:
    """Return what its environment is made with besides its name."""
    if "env_kwargs" not in run.extras_json:  # most runs, and listings are long
        return {}
    extras = extras_of(run)
    given: Any = extras.get("env_kwargs") or algo_params(extras).get("env_kwargs")
    with suppress(ValueError):
        return dict(given) if isinstance(given, Mapping) else parse_env_kwargs(str(given or ""))
    return {}


def environment_of(run: pb.Run) -> str:
    """Return the environment's id with the arguments it is made with: runs in different ones are not compared."""
    kwargs = environment_kwargs_of(run)
    return f"{run.env_id} {json.dumps(kwargs, sort_keys=True)}" if kwargs else run.env_id


def parameter_text(name: str, value: str) -> str:
    """`learning_rate`, `0.00025` → `lr 2.5e-4`"""
    return f"{_SHORT_NAMES.get(name, name)} {short_value(value)}"


def short_value(text: str) -> str:
    """Return a JSON value as people write it: 0.00025 → 2.5e-4, true, adam."""
    value = parsed(text)
    if isinstance(value, float) and value != 0 and (abs(value) < 1e-2 or abs(value) >= 1e6):
        mantissa, _, exponent = f"{value:.4g}".partition("e")
        if not exponent:
            mantissa, _, exponent = f"{value:.3e}".partition("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{mantissa}e{int(exponent)}"
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else text


def _parameters(run: pb.Run, extras: Extras) -> tuple[tuple[str, str], ...]:
    """Return what may change learning as the daemon reports it, else what was given."""
    given = parsed(run.learning_json) if run.learning_json else extras.get("algo_params")
    given = given if isinstance(given, dict) else {}
    if script := extras.get("script_sha256"):  # an edited script is another algorithm
        given = {**given, SCRIPT_HASH: script[:_SHOWN_DIGITS]}
    names = sorted(set(given) - _NOT_THE_CONFIGURATION)
    return tuple((name, json.dumps(given[name], sort_keys=True, ensure_ascii=False)) for name in names)


# ---------------------------------------------------------------- labels


NOT_GIVEN = "–"


def configuration_labels(configurations: Sequence[Configuration]) -> list[str]:
    """`ppo · CartPole-v1`; those that would be called alike have the parameters, or the steps, in which they differ."""
    plain = [" · ".join(filter(None, (own.algo or own.worker, own.environment, own.mode))) for own in configurations]
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
    """Names of parameters that not all of them have with the same value; a script's hash only for one script edited.

    Arguments of the environment belong to its name.
    """
    configurations = list(configurations)
    given = [dict(own.parameters) for own in configurations]
    names = {name for own in given for name in own} - {"env_kwargs"}
    codes = {(own.algo, values.get(SCRIPT_HASH)) for own, values in zip(configurations, given, strict=True)}
    if len(codes) == len({algo for algo, _ in codes}):
        names.discard(SCRIPT_HASH)
    return [name for name in sorted(names) if len({own.get(name) for own in given}) > 1]


def parameter_value(configuration: Configuration, name: str) -> str:
    """Return the value as users write it, or – for the algorithm's default."""
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
