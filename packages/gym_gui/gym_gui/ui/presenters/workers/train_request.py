"""Convert training requests to run configs and back, and to the equivalent `mosaic train` command.

`configs_of(request_of(config)) == [config]` for every config a form wrote; keys without a field in any form are kept
in `other_extras`. No Qt.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from mosaic_wire.files import read_json_object
from mosaic_wire.paths import RunFolder
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.redaction import is_secret_key, redact_text
from mosaic_wire.run_request import NOT_TRAINING, Extras, Mode, run_request, without
from mosaic_wire.worker_spec import AlgorithmSpec, WorkerSpec

from gym_gui.services.run_configs import MADE_UP_NAME, seed_name

FASTLANE_MODES = ("single", "grid")
FASTLANE_EXTRAS = {
    "mode": "fastlane_video_mode",
    "slot": "fastlane_slot",
    "grid_limit": "fastlane_grid_limit",
    "interval_ms": "fastlane_interval_ms",
    "max_dim": "fastlane_max_dim",
}
"""Fields of `FastLaneChoice` → extras of a config and fields of a form"""
WANDB_PARAMETERS = {"project": "wandb_project_name", "entity": "wandb_entity"}
WANDB_EXTRAS = {name: f"wandb_{name}" for name in ("run_name", "email", "api_key", "http_proxy", "https_proxy")}
"""Fields of `WandbChoice` → parameters of the algorithm, extras, and fields of a form"""


@dataclass(frozen=True)
class FastLaneChoice:
    """Frames that a run renders while it is watched."""

    enabled: bool = True
    mode: str = "single"
    slot: int = 0
    grid_limit: int = 4
    interval_ms: int = 33
    max_dim: int = 0

    def extras(self) -> Extras:
        """Return the extras that differ from their defaults."""
        if not self.enabled:
            return {"fastlane_enabled": False}
        chosen, default_values = vars(self), vars(FastLaneChoice())
        differing = {
            extra: chosen[name] for name, extra in FASTLANE_EXTRAS.items() if chosen[name] != default_values[name]
        }
        return cast(Extras, differing)


@dataclass(frozen=True)
class WandbChoice:
    """Weights & Biases; the API key is a secret and never saved in a config."""

    enabled: bool = False
    project: str = ""
    entity: str = ""
    run_name: str = ""
    email: str = ""
    api_key: str = ""
    use_proxy: bool = False
    http_proxy: str = ""
    https_proxy: str = ""

    def extras(self) -> Extras:
        if not self.enabled:
            return {}
        return {
            "track_wandb": True,
            "wandb_run_name": self.run_name or None,
            "wandb_email": self.email or None,
            "wandb_api_key": self.api_key or None,
            "wandb_use_vpn_proxy": self.use_proxy or None,
            "wandb_http_proxy": (self.use_proxy and self.http_proxy) or None,
            "wandb_https_proxy": (self.use_proxy and self.https_proxy) or None,
        }

    def parameters(self) -> dict[str, Any]:
        """Return the settings that are flags of the algorithms."""
        named = {parameter: getattr(self, name) for name, parameter in WANDB_PARAMETERS.items()}
        return {name: value for name, value in named.items() if value} if self.enabled else {}


@dataclass(frozen=True)
class TrainRequest:
    """Everything entered in a training form."""

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
    """Hyper-parameters that differ from the algorithm's defaults"""
    requirements: tuple[str, ...] = ()
    """Requirement sets selected in addition to those that the run needs"""
    install_missing: bool = False
    fastlane: FastLaneChoice = FastLaneChoice()
    minimal_telemetry: bool = False
    tensorboard: bool = True
    wandb: WandbChoice = WandbChoice()
    notes: str = ""
    other_extras: Extras = field(default_factory=Extras)


_OTHER_FIELDS = (
    "algo_params agent_id requirements install_missing minimal_telemetry notes track_wandb wandb_use_vpn_proxy "
    "fastlane_enabled"
)
_OWN_EXTRAS = frozenset((*_OTHER_FIELDS.split(), *FASTLANE_EXTRAS.values(), *WANDB_EXTRAS.values()))


def configs_of(request: TrainRequest, spec: WorkerSpec | None) -> list[dict[str, Any]]:
    """Return a run config for each seed."""
    return [_config(request, seed, spec) for seed in request.seeds]


def _config(request: TrainRequest, seed: int | None, spec: WorkerSpec | None) -> dict[str, Any]:
    extras: Extras = {
        **request.other_extras,
        "algo_params": {**request.parameters, **request.wandb.parameters()} or None,
        "agent_id": request.agent_id or None,
        "requirements": list(request.requirements) or None,
        "install_missing": request.install_missing or None,
        "minimal_telemetry": request.minimal_telemetry or None,
        "notes": request.notes or None,
        **request.fastlane.extras(),
        **request.wandb.extras(),
    }
    return run_request(
        request.worker_type,
        module=spec.module if spec is not None else None,
        algo=request.algo,
        env_id=request.env_id,
        seed=seed,
        total_timesteps=request.total_timesteps,
        worker_id=request.worker_id,
        extras=extras,
        run_name=seed_name(request.run_name, request.worker_type, request.algo, seed, request.seeds),
        resources={
            "cpus": {"requested": request.cpus},
            "gpus": {"requested": request.gpus, "mandatory": request.gpus_mandatory},
            "memory_mb": request.memory_mb,
            "max_wallclock_minutes": request.max_wallclock_minutes,
        },
        scheduling={"priority": request.priority, "retries": request.retries},
        tags=request.tags,
        artifacts={"tensorboard": {"enabled": request.tensorboard}, "wandb": {"enabled": request.wandb.enabled}},
    )


# ---------------------------------------------------------------- configs to requests


class NotAConfig(ValueError):
    """A document that is not a run config of a known shape."""


def request_of(document: Any) -> TrainRequest:
    """Return the request of a run config: nested, flat (a worker's part), or a list with several seeds of one run."""
    if isinstance(document, list):
        return _request_of_several(document)
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
    return TrainRequest(
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
        parameters={
            key: value for key, value in parameters.items() if not (tracked and key in WANDB_PARAMETERS.values())
        },
        requirements=tuple(map(str, extras.get("requirements") or ())),
        install_missing=extras.get("install_missing") is True,
        fastlane=_fastlane_of(extras),
        minimal_telemetry=extras.get("minimal_telemetry") is True,
        tensorboard=_object(artifacts, "tensorboard").get("enabled", extras.get("tensorboard_dir") != "") is True,
        wandb=_wandb_of(extras, parameters, enabled=tracked),
        notes=_text(extras, "notes"),
        other_extras=without(extras, _OWN_EXTRAS),
    )


def _request_of_several(documents: Sequence[Any]) -> TrainRequest:
    if not documents:
        raise NotAConfig("the list holds no run config")
    requests = [request_of(document) for document in documents]
    alike = [replace(request, seeds=(), run_name="") for request in requests]
    if any(request != alike[0] for request in alike[1:]):
        raise NotAConfig("the list holds different runs; a form shows several seeds of one run only")
    seeds = tuple(seed for request in requests for seed in request.seeds)
    name, suffix = requests[0].run_name, f"-s{seeds[0]}"
    if len(requests) > 1 and name.endswith(suffix):
        name = "" if MADE_UP_NAME.fullmatch(name) else name.removesuffix(suffix)
    return replace(requests[0], seeds=seeds, run_name=name)


def _resources_of(resources: Mapping[str, Any]) -> dict[str, Any]:
    cpus, gpus = resources.get("cpus", 1), resources.get("gpus", 0)
    cpus = cpus.get("requested", 1) if isinstance(cpus, Mapping) else cpus
    both = gpus if isinstance(gpus, Mapping) else {"requested": gpus, "mandatory": gpus}
    return {
        "cpus": _amount(cpus, 1),
        "gpus": _whole(both.get("requested"), 0),
        "gpus_mandatory": _whole(both.get("mandatory"), 0),
        "memory_mb": _whole(resources.get("memory_mb"), None),
        "max_wallclock_minutes": _amount(resources.get("max_wallclock_minutes"), None),
    }


def _fastlane_of(extras: Mapping[str, Any]) -> FastLaneChoice:
    mode = extras.get("fastlane_video_mode", "single")
    enabled = extras.get("fastlane_enabled", True) is not False and mode != "off"
    numbers = {name: extras[extra] for name, extra in FASTLANE_EXTRAS.items() if type(extras.get(extra)) is int}
    return FastLaneChoice(enabled, mode if mode in FASTLANE_MODES else "single", **numbers)


def _wandb_of(extras: Mapping[str, Any], parameters: Mapping[str, Any], *, enabled: bool) -> WandbChoice:
    if not enabled:
        return WandbChoice()
    # In the config of a submitted run the key is a reference to the secret store.
    named = {name: _text(extras, extra) for name, extra in WANDB_EXTRAS.items()}
    named |= {name: _text(parameters, parameter) for name, parameter in WANDB_PARAMETERS.items()}
    return WandbChoice(True, use_proxy=extras.get("wandb_use_vpn_proxy") is True, **named)


def saved_text(configs: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of a file: one config, or a list for several seeds; without secrets."""
    clean = [without_secrets(config) for config in configs]
    return json.dumps(clean[0] if len(clean) == 1 else clean, indent=2, ensure_ascii=False) + "\n"


def without_secrets(value: Any) -> Any:
    """Return a copy without secrets and references to them."""
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


PREFERRED_WORKER = "cleanrl"
"""The worker that `mosaic train` prefers when several have an algorithm of this name"""
_LINE_CHARACTERS = 56
"""Line length that fits next to a form"""


@dataclass(frozen=True)
class CommandLine:
    """A command, and the settings that it cannot express."""

    argv: tuple[str, ...]
    only_in_json: tuple[str, ...] = ()
    """Settings without a flag of `mosaic train`; the saved JSON and `mosaic submit` include them"""

    @property
    def text(self) -> str:
        """Return the command on several lines, ready to paste into a shell."""
        lines, line = [], " ".join(self.argv[:2])
        rest = list(self.argv[2:])
        while rest:
            piece = shlex.quote(rest.pop(0))
            if piece.startswith("--") and rest and not rest[0].startswith("--"):
                piece += f" {shlex.quote(rest.pop(0))}"
            if len(line) + len(piece) > _LINE_CHARACTERS:
                lines.append(line)
                line = " "
            line += f" {piece}"
        return " \\\n".join([*lines, line])


def command_of(request: TrainRequest, algorithm: AlgorithmSpec | None) -> CommandLine:
    """Return the command with the settings that differ from its defaults."""
    argv = ["mosaic", "train", request.algo, request.env_id, "--total-timesteps", str(request.total_timesteps)]
    argv += _seeds(request.seeds)
    for flag, value, default_values in (
        ("--cpus", request.cpus, 1),
        ("--gpus", request.gpus, 0),
        ("--memory-mb", request.memory_mb, None),
        ("--max-wallclock", request.max_wallclock_minutes, None),
        ("--priority", request.priority, 0),
        ("--retries", request.retries, 0),
        ("--name", request.run_name, ""),
        ("--notes", request.notes, ""),
    ):
        if value != default_values:
            argv += _flag(flag, value)
    for tag in request.tags:
        argv += ["--tag", tag]
    if request.install_missing:
        argv.append("--install-missing")
    parameters = {**request.parameters, **request.wandb.parameters()}
    if request.wandb.enabled and (algorithm is None or algorithm.field("track") is not None):
        parameters["track"] = True
    for name, value in parameters.items():
        argv += _parameter(name, value)
    if request.worker_type not in ("", PREFERRED_WORKER):
        argv += ["--worker", request.worker_type]
    return CommandLine(tuple(argv), _not_in_command(request))


def _seeds(seeds: Sequence[int | None]) -> list[str]:
    known = [seed for seed in seeds if seed is not None]
    if not known:
        return []
    return ["--seed", str(known[0])] if len(known) == 1 else ["--seeds", seeds_text(known)]


def seeds_text(seeds: Sequence[int]) -> str:
    """Return `1-3,7` for 1, 2, 3, 7."""
    parts: list[list[int]] = []
    for seed in seeds:
        if parts and seed == parts[-1][-1] + 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def _flag(flag: str, value: Any) -> list[str]:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return [f"{flag}={text}"] if text.startswith("-") else [flag, text]


def _parameter(name: str, value: Any) -> list[str]:
    flag = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    if value is None:
        return [flag, "none"]
    text = value if isinstance(value, str) else json.dumps(value)
    return [f"{flag}={text}"] if text.startswith("-") or not text else [flag, text]


def _not_in_command(request: TrainRequest) -> tuple[str, ...]:
    wandb = request.wandb
    configured: Mapping[str, bool] = {
        "agent_id": bool(request.agent_id),
        "worker_id": bool(request.worker_id),
        "gpus.mandatory": request.gpus_mandatory not in (request.gpus, 0)
        or bool(request.gpus and not request.gpus_mandatory),
        "requirements": bool(request.requirements),
        "fastlane": request.fastlane != FastLaneChoice(),
        "minimal_telemetry": request.minimal_telemetry,
        "tensorboard": not request.tensorboard,
        "wandb_run_name": wandb.enabled and bool(wandb.run_name),
        "wandb_email": wandb.enabled and bool(wandb.email),
        "wandb_api_key": wandb.enabled and bool(wandb.api_key),
        "wandb_proxy": wandb.enabled and wandb.use_proxy,
        **dict.fromkeys(request.other_extras, True),
    }
    return tuple(name for name, is_set in configured.items() if is_set)


_OF_THE_RUN = frozenset({"tensorboard_dir", "mode", "checkpoint_path", "script_path", "script_sha256", "source"})
"""Extras that the daemon or the worker filled in, or that the command expresses otherwise"""


@dataclass(frozen=True)
class CommandText:
    text: str
    left_out: tuple[str, ...] = ()
    """Settings without a flag"""


def command_of_run(run: pb.Run) -> CommandText:
    """Return `mosaic train …`, or `mosaic clone …` for runs that it cannot express (evaluated or continued ones).

    Raises OSError or ValueError when the config cannot be read here.
    """
    request = request_of(without_secrets(read_json_object(config_file(run))))
    extras = request.other_extras
    if extras.get("mode") in (*NOT_TRAINING, Mode.RESUME) or extras.get("source"):
        return CommandText(f"mosaic clone {run.run_id}")
    if script := extras.get("script_path"):
        request = replace(request, algo=str(script))
    request = replace(request, other_extras=without(extras, _OF_THE_RUN))
    command = command_of(request, None)
    return CommandText(command.text, command.only_in_json)


def config_file(run: pb.Run) -> Path:
    """Return the path of the run's config."""
    return RunFolder(Path(run.run_dir)).home.config_file(run.run_id)
