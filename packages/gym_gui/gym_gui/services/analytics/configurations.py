"""What runs have in common when only their seeds differ, and how that is called: `ppo · CartPole-v1 · lr 2.5e-4`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gym_gui.wording.run_view import algo_of, parsed

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
    """What two runs have in common when only their seeds differ; there is one object for each, see `_known`."""

    worker: str
    algo: str
    env_id: str
    total: int
    mode: str
    parameters: tuple[tuple[str, str], ...]
    """Those that may change what is learned and are not the defaults: name, value as JSON; sorted"""

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
        parts = [self.algo or self.worker, self.env_id, self.mode, *self.parameter_texts(_SHOWN_PARAMETERS)]
        return " · ".join(filter(None, parts))

    def parameter_texts(self, most: int | None = None) -> list[str]:
        texts = [parameter_text(name, value) for name, value in self.parameters]
        if most is not None and len(texts) > most:
            return [*texts[:most], f"+{len(texts) - most}"]
        return texts


_known: dict[Configuration, Configuration] = {}
"""Ten thousand runs have a few hundred configurations; the same object each time makes grouping cheap"""


def configuration_of(run: pb.Run) -> Configuration:
    """Its config never changes, so whoever asks often keeps the answer."""
    extras = parsed(run.extras_json)
    extras = extras if isinstance(extras, dict) else {}
    mode = str(extras.get("mode") or "")
    found = Configuration(
        run.worker_type,
        algo_of(run),
        run.env_id,
        run.total,
        "" if mode in _MODES_OF_TRAINING else mode,
        _parameters(run, extras),
    )
    return _known.setdefault(found, found)


def kind_of(run: pb.Run) -> str:
    """What a run is besides a training: a trial, a sweep, an evaluation, a watched policy; empty for a training."""
    if run.submitted_by:
        return "trial"
    if (parsed(run.capabilities_json) or {}).get("submits_runs"):
        return "sweep"
    return {"policy_eval": "evaluation", "interactive": "watched run"}.get(configuration_of(run).mode, "")


def parameters_of(run: pb.Run) -> dict[str, Any]:
    """The parameters a run was given, defaults and bookkeeping among them."""
    extras = parsed(run.extras_json)
    given = extras.get("algo_params") if isinstance(extras, dict) else None
    return (
        {name: given[name] for name in sorted(set(given) - _NOT_THE_CONFIGURATION)} if isinstance(given, dict) else {}
    )


def environment_kwargs_of(run: pb.Run) -> dict[str, Any]:
    """What its environment is made with besides its name."""
    extras = parsed(run.extras_json)
    if not isinstance(extras, dict):
        return {}
    given = extras.get("env_kwargs") or (extras.get("algo_params") or {}).get("env_kwargs")
    if isinstance(given, str):
        given = parsed(given)
    return dict(given) if isinstance(given, Mapping) else {}


def parameter_text(name: str, value: str) -> str:
    """`learning_rate`, `0.00025` → `lr 2.5e-4`"""
    return f"{_SHORT_NAMES.get(name, name)} {short_value(value)}"


def short_value(text: str) -> str:
    """A JSON value as people write it: 0.00025 → 2.5e-4, true, adam."""
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


def _parameters(run: pb.Run, extras: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """What may change learning, as the daemon tells; what was given, where it does not know the worker."""
    given = parsed(run.learning_json) if run.learning_json else extras.get("algo_params")
    given = given if isinstance(given, dict) else {}
    if extras.get(SCRIPT_HASH):  # an edited script is another algorithm
        given = {**given, SCRIPT_HASH: str(extras[SCRIPT_HASH])[:_SHOWN_DIGITS]}
    names = sorted(set(given) - _NOT_THE_CONFIGURATION)
    return tuple((name, json.dumps(given[name], sort_keys=True, ensure_ascii=False)) for name in names)
