"""What a training form asks for, as one value; and how it becomes run configs, and a config becomes it again.

`configs_of(order_of(config)) == [config]` for every config a form wrote; keys no form has a field for survive in
`other_extras`. Nothing here knows a widget.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mosaic_wire.redaction import is_secret_key, redact_text
from mosaic_wire.worker_config import RUN_ID_PLACEHOLDER
from mosaic_wire.worker_spec import WorkerSpec

from gym_gui.services.run_configs import MADE_UP_NAME, seed_name

FASTLANE_MODES = ("single", "grid")
FASTLANE_EXTRAS = {
    "mode": "fastlane_video_mode", "slot": "fastlane_slot", "grid_limit": "fastlane_grid_limit",
    "interval_ms": "fastlane_interval_ms", "max_dim": "fastlane_max_dim",
}  # fmt: skip
"""Fields of `FastLaneChoice` → extras of a config and fields of a form"""


@dataclass(frozen=True)
class FastLaneChoice:
    """What a run draws while somebody looks."""

    enabled: bool = True
    mode: str = "single"
    slot: int = 0
    grid_limit: int = 4
    interval_ms: int = 33
    max_dim: int = 0

    def extras(self) -> dict[str, Any]:
        """Only what differs from what a run does anyway."""
        if not self.enabled:
            return {"fastlane_enabled": False}
        said, usual = vars(self), FastLaneChoice()
        return {extra: said[name] for name, extra in FASTLANE_EXTRAS.items() if said[name] != getattr(usual, name)}


@dataclass(frozen=True)
class WandbChoice:
    """Weights & Biases; the key is a secret and never in a saved config."""

    enabled: bool = False
    project: str = ""
    entity: str = ""
    run_name: str = ""
    email: str = ""
    api_key: str = ""
    use_proxy: bool = False
    http_proxy: str = ""
    https_proxy: str = ""

    def extras(self) -> dict[str, Any]:
        if not self.enabled:
            return {}
        named = {"wandb_run_name": self.run_name, "wandb_email": self.email, "wandb_api_key": self.api_key}
        if self.use_proxy:
            named |= {"wandb_http_proxy": self.http_proxy, "wandb_https_proxy": self.https_proxy}
        said = {name: value for name, value in named.items() if value}
        return {"track_wandb": True, **said, **({"wandb_use_vpn_proxy": True} if self.use_proxy else {})}

    def parameters(self) -> dict[str, Any]:
        """Those that are flags of the algorithms."""
        named = {"wandb_project_name": self.project, "wandb_entity": self.entity}
        return {name: value for name, value in named.items() if value} if self.enabled else {}


@dataclass(frozen=True)
class TrainOrder:
    """Everything a person said in a training form."""

    worker_type: str = ""
    algo: str = ""
    env_id: str = ""
    seeds: tuple[int | None, ...] = (1,)
    total_timesteps: int = 0
    run_name: str = ""
    tags: tuple[str, ...] = ()
    agent_id: str = ""
    worker_id: str = ""
    cpus: float = 1
    gpus: int = 0
    gpus_mandatory: int = 0
    memory_mb: int | None = None
    max_wallclock_minutes: float | None = None
    priority: int = 0
    retries: int = 0
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Hyper-parameters that differ from the algorithm's own defaults"""
    requirements: tuple[str, ...] = ()
    """Requirement sets asked for by name, besides those the run needs anyway"""
    install_missing: bool = False
    fastlane: FastLaneChoice = FastLaneChoice()
    minimal_telemetry: bool = False
    tensorboard: bool = True
    wandb: WandbChoice = WandbChoice()
    notes: str = ""
    other_extras: Mapping[str, Any] = field(default_factory=dict)


_OWN_EXTRAS = frozenset(
    {
        "algo_params", "agent_id", "requirements", "install_missing", "minimal_telemetry", "notes", "track_wandb",
        "fastlane_enabled", *FASTLANE_EXTRAS.values(), "wandb_run_name",
        "wandb_email", "wandb_api_key", "wandb_use_vpn_proxy", "wandb_http_proxy", "wandb_https_proxy",
    }
)  # fmt: skip
_WANDB_PARAMETERS = ("wandb_project_name", "wandb_entity")


def configs_of(order: TrainOrder, spec: WorkerSpec | None) -> list[dict[str, Any]]:
    """A run config for each seed."""
    return [_config(order, seed, spec) for seed in order.seeds]


def _config(order: TrainOrder, seed: int | None, spec: WorkerSpec | None) -> dict[str, Any]:
    parameters = {**order.parameters, **order.wandb.parameters()}
    extras: dict[str, Any] = {
        **order.other_extras,
        **({"algo_params": parameters} if parameters else {}),
        **({"agent_id": order.agent_id} if order.agent_id else {}),
        **({"requirements": list(order.requirements)} if order.requirements else {}),
        **({"install_missing": True} if order.install_missing else {}),
        **order.fastlane.extras(),
        **({"minimal_telemetry": True} if order.minimal_telemetry else {}),
        **order.wandb.extras(),
        **({"notes": order.notes} if order.notes else {}),
    }
    worker_config: dict[str, Any] = {
        "run_id": RUN_ID_PLACEHOLDER, "algo": order.algo, "env_id": order.env_id,
        **({"seed": seed} if seed is not None else {}),
        "total_timesteps": order.total_timesteps,
        **({"worker_id": order.worker_id} if order.worker_id else {}),
        "extras": extras,
    }  # fmt: skip
    name = seed_name(order.run_name, order.worker_type, order.algo, seed, order.seeds)
    limits = {"memory_mb": order.memory_mb, "max_wallclock_minutes": order.max_wallclock_minutes}
    module = {"module": spec.module} if spec is not None else {}
    return {
        **({"run_name": name} if name else {}),
        "resources": {
            "cpus": {"requested": order.cpus},
            "gpus": {"requested": order.gpus, "mandatory": order.gpus_mandatory},
            **{key: value for key, value in limits.items() if value is not None},
        },
        "scheduling": {"priority": order.priority, "retries": order.retries},
        **({"tags": list(order.tags)} if order.tags else {}),
        "artifacts": {"tensorboard": {"enabled": order.tensorboard}, "wandb": {"enabled": order.wandb.enabled}},
        "metadata": {"worker": {"type": order.worker_type, **module, "config": worker_config}},
    }


# ---------------------------------------------------------------- and back


class NotAConfig(ValueError):
    """A document that is no run config of any shape we know."""


def order_of(document: Any) -> TrainOrder:
    """What a run config says: nested, flat (a worker's own part), or a list of the same run with several seeds."""
    if isinstance(document, list):
        return _order_of_several(document)
    if not isinstance(document, dict):
        raise NotAConfig(f"a run config is a JSON object, this is {type(document).__name__}")
    worker = _object(_object(document, "metadata"), "worker")
    flat = _object(worker, "config") or document
    if not isinstance(flat.get("algo"), str):
        raise NotAConfig("this is no run config: it names no algorithm (metadata.worker.config.algo)")
    extras, resources = dict(_object(flat, "extras")), _object(document, "resources")
    scheduling, parameters = _object(document, "scheduling"), dict(_object(extras, "algo_params"))
    artifacts = _object(document, "artifacts")
    tracked = _object(artifacts, "wandb").get("enabled", extras.get("track_wandb", False)) is True
    return TrainOrder(
        worker_type=_text(worker, "type"),
        algo=flat["algo"],
        env_id=_text(flat, "env_id"),
        seeds=(flat.get("seed"),),
        total_timesteps=_whole(flat.get("total_timesteps"), 0),
        run_name=_text(document, "run_name"),
        tags=tuple(map(str, document.get("tags") or ())),
        agent_id=_text(extras, "agent_id"),
        worker_id=_text(worker, "worker_id") or _text(flat, "worker_id"),
        **_resources_of(resources),
        priority=_whole(scheduling.get("priority"), 0),
        retries=_whole(scheduling.get("retries"), 0),
        parameters={key: value for key, value in parameters.items() if not (tracked and key in _WANDB_PARAMETERS)},
        requirements=tuple(map(str, extras.get("requirements") or ())),
        install_missing=extras.get("install_missing") is True,
        fastlane=_fastlane_of(extras),
        minimal_telemetry=extras.get("minimal_telemetry") is True,
        tensorboard=_object(artifacts, "tensorboard").get("enabled", extras.get("tensorboard_dir") != "") is True,
        wandb=_wandb_of(extras, parameters, enabled=tracked),
        notes=_text(extras, "notes"),
        other_extras={key: value for key, value in extras.items() if key not in _OWN_EXTRAS},
    )


def _order_of_several(documents: Sequence[Any]) -> TrainOrder:
    if not documents:
        raise NotAConfig("the list holds no run config")
    orders = [order_of(document) for document in documents]
    alike = [replace(order, seeds=(), run_name="") for order in orders]
    if any(order != alike[0] for order in alike[1:]):
        raise NotAConfig("the list holds different runs; a form shows several seeds of one run only")
    seeds = tuple(seed for order in orders for seed in order.seeds)
    name, suffix = orders[0].run_name, f"-s{seeds[0]}"
    if len(orders) > 1 and name.endswith(suffix):
        name = "" if MADE_UP_NAME.fullmatch(name) else name.removesuffix(suffix)
    return replace(orders[0], seeds=seeds, run_name=name)


def _resources_of(resources: Mapping[str, Any]) -> dict[str, Any]:
    cpus, gpus = resources.get("cpus", 1), resources.get("gpus", 0)
    cpus = cpus.get("requested", 1) if isinstance(cpus, Mapping) else cpus
    both = gpus if isinstance(gpus, Mapping) else {"requested": gpus, "mandatory": gpus}
    return {
        "cpus": _amount(cpus, 1), "gpus": _whole(both.get("requested"), 0),
        "gpus_mandatory": _whole(both.get("mandatory"), 0),
        "memory_mb": _whole(resources.get("memory_mb"), None),
        "max_wallclock_minutes": _amount(resources.get("max_wallclock_minutes"), None),
    }  # fmt: skip


def _fastlane_of(extras: Mapping[str, Any]) -> FastLaneChoice:
    mode = extras.get("fastlane_video_mode", "single")
    enabled = extras.get("fastlane_enabled", True) is not False and mode != "off"
    numbers = {name: extras[extra] for name, extra in FASTLANE_EXTRAS.items() if type(extras.get(extra)) is int}
    return FastLaneChoice(enabled, mode if mode in FASTLANE_MODES else "single", **numbers)


def _wandb_of(extras: Mapping[str, Any], parameters: Mapping[str, Any], *, enabled: bool) -> WandbChoice:
    if not enabled:
        return WandbChoice()
    key = extras.get("wandb_api_key")  # a reference to the secret store in the config of a run that was submitted
    return WandbChoice(
        True, _text(parameters, "wandb_project_name"), _text(parameters, "wandb_entity"),
        _text(extras, "wandb_run_name"), _text(extras, "wandb_email"), key if isinstance(key, str) else "",
        extras.get("wandb_use_vpn_proxy") is True, _text(extras, "wandb_http_proxy"),
        _text(extras, "wandb_https_proxy"),
    )  # fmt: skip


def saved_text(configs: Sequence[Mapping[str, Any]]) -> str:
    """What is written into a file: one config, or a list of them for several seeds; never a secret."""
    clean = [without_secrets(config) for config in configs]
    return json.dumps(clean[0] if len(clean) == 1 else clean, indent=2, ensure_ascii=False) + "\n"


def without_secrets(value: Any) -> Any:
    """A copy in which no secret is left, nor a reference to one."""
    if isinstance(value, Mapping):
        return {
            key: without_secrets(item)
            for key, item in value.items()
            if not is_secret_key(str(key)) and not _is_address_with_password(item)
        }
    if isinstance(value, list | tuple):
        return [without_secrets(item) for item in value]
    return redact_text(value) if isinstance(value, str) else value


def _is_address_with_password(value: Any) -> bool:
    return isinstance(value, str) and "://" in value and " " not in value and redact_text(value) != value


def _object(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = value.get(key)
    return found if isinstance(found, Mapping) else {}


def _text(value: Mapping[str, Any], key: str) -> str:
    found = value.get(key)
    return found if isinstance(found, str) else ""


def _whole(value: Any, otherwise: Any) -> Any:
    return value if type(value) is int else otherwise


def _amount(value: Any, otherwise: Any) -> Any:
    return value if type(value) in (int, float) else otherwise
