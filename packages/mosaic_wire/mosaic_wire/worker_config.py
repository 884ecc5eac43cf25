"""`WorkerConfig`: what a worker is asked to do, read from a file and from flags that win over it.

Two ways to write the file are accepted: flat, as the daemon writes `worker-<ULID>.json`, and nested, the whole run
config with the worker's part at `metadata.worker.config`.
"""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from mosaic_wire import env
from mosaic_wire.errors import ConfigProblems, Problem
from mosaic_wire.extras_checks import FASTLANE_PREFIX
from mosaic_wire.files import read_json_object
from mosaic_wire.ids import is_run_id
from mosaic_wire.paths import RunFolder, find_home
from mosaic_wire.worker_spec import nearest

NESTED_PATH = "metadata.worker.config"

RUN_ID_PLACEHOLDER = "${RUN_ID}"
"""What a config that has no run yet says in place of its id."""
TENSORBOARD_PLACEHOLDER = "${VAR_TENSORBOARD_DIR}"
"""What a config says in place of the run's folder of event files."""

MAX_SEED = 2**63 - 1
MAX_TIMESTEPS = 10**15

EXTRAS_THAT_ARE_NOT_PARAMETERS = frozenset({
    "tensorboard_dir", "track_wandb", "algo_params", "notes", "cuda", "use_cuda", "gpu", "wandb_run_name",
    "wandb_email", "wandb_api_key", "wandb_http_proxy", "wandb_https_proxy", "wandb_use_vpn_proxy", "agent_id",
    "mode", "policy_path", "checkpoint_path", "checkpoint_dir", "checkpoint_freq", "curriculum_schedule",
    "eval_capture_video", "eval_episodes", "eval_gamma", "eval_max_episode_steps", "eval_max_episode_seconds",
    "eval_batch_size", "eval_repeat", "eval_deterministic", "eval_policy", "requirements", "source", "script_path",
    "minimal_telemetry", "optuna_db", "agent", "env_kwargs", "script_sha256", "no_progress", "no_progress_s",
    "install_missing", "script_arguments", "policy_statistics",
})  # fmt: skip
"""Extras that tell the worker how to run; every other one is a parameter of the algorithm."""


@dataclass(frozen=True)
class WorkerConfig:
    """The worker's part of a run config; workers with more to say inherit from it."""

    run_id: str
    algo: str
    env_id: str
    total_timesteps: int
    seed: int | None = None
    extras: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may hold a secret
    worker_id: str | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The document as it was read"""

    @property
    def parameters(self) -> dict[str, Any]:
        """The algorithm's parameters: `extras.algo_params`, and every extra that is not about the worker."""
        plain = {
            key: value
            for key, value in self.extras.items()
            if key not in EXTRAS_THAT_ARE_NOT_PARAMETERS and not key.startswith(FASTLANE_PREFIX)
        }
        return {**plain, **(self.extras.get("algo_params") or {})}

    @property
    def checkpoint_to_resume(self) -> Path | None:
        """The checkpoint folder this run goes on from, if it is to."""
        path = self.extras.get("checkpoint_path")
        return Path(path) if self.extras.get("mode") == "resume_training" and path else None

    @classmethod
    def load(
        cls,
        file: Path | None,
        overrides: Mapping[str, Any] | None = None,
        *,
        make_run_id: Callable[[], str] | None = None,
    ) -> Self:
        """Read a config file, let `overrides` win, and raise ConfigProblems with everything that is wrong.

        `make_run_id` names a run that neither has an id for (by hand, or a dry run of a draft).
        """
        what = f"worker config {file}" if file else "the worker config"
        document = _read(what, file) if file else {}
        return cls.from_json(document, overrides, what=what, make_run_id=make_run_id)

    @classmethod
    def from_json(
        cls,
        document: Mapping[str, Any],
        overrides: Mapping[str, Any] | None = None,
        *,
        what: str = "the worker config",
        make_run_id: Callable[[], str] | None = None,
    ) -> Self:
        """The same, from a document that was read already."""
        problems: list[Problem] = []
        part, path = _worker_part(document, problems)
        given = {name: value for name, value in (overrides or {}).items() if value is not None}
        values = {**part, **given, "extras": _merged_extras(part, given, path, problems)}
        if make_run_id and values.get("run_id") in (None, RUN_ID_PLACEHOLDER):
            values["run_id"] = make_run_id()
        if isinstance(values.get("run_id"), str):
            values = expand_placeholders(values, values["run_id"])
        problems += _unknown_keys(part, path)
        for name, (check, required) in _CHECKS.items():
            if name not in values or values[name] is None:
                if required:
                    problems.append(Problem(path + name, f"is missing; give it in the file or with {_flag(name)}"))
            elif (wrong := check(values[name])) is not None:
                problems.append(Problem(_flag(name) if name in given else path + name, wrong))
        if problems:
            raise ConfigProblems(what, problems)
        chosen = {name: values[name] for name in _CHECKS if values.get(name) is not None}
        return cls(**chosen, raw=dict(document))


def expand_placeholders(value: Any, run_id: str) -> Any:
    """Return a copy of a JSON value with the run's id and its folder of event files in place of the placeholders."""
    if isinstance(value, dict):
        return {key: expand_placeholders(item, run_id) for key, item in value.items()}
    if isinstance(value, list):
        return [expand_placeholders(item, run_id) for item in value]
    if isinstance(value, str):
        return value.replace(RUN_ID_PLACEHOLDER, run_id).replace(TENSORBOARD_PLACEHOLDER, "tensorboard")
    return value


def _read(what: str, file: Path) -> dict[str, Any]:
    try:
        return read_json_object(file, opener=None)
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
    except ValueError as error:
        reason = f"{error}; it may be half-written: write it again"
    raise ConfigProblems(what, [Problem("", reason)])


def _worker_part(document: Mapping[str, Any], problems: list[Problem]) -> tuple[dict[str, Any], str]:
    """The worker's own part of either format, and the path in front of its keys."""
    if "metadata" not in document:
        return dict(document), ""
    if mixed := sorted(set(document) & set(_CHECKS)):
        message = (
            f"is the worker's, but this file also has `metadata`; put it under {NESTED_PATH}, or leave metadata out"
        )
        problems.extend(Problem(name, message) for name in mixed)
    part: Any = document
    walked: list[str] = []
    worker_id = None
    for key in NESTED_PATH.split("."):
        walked.append(key)
        if not isinstance(part.get(key), dict):
            found = "is missing" if key not in part else f"must be an object, not {type(part[key]).__name__}"
            problems.append(Problem(".".join(walked), found))
            return {}, f"{NESTED_PATH}."
        worker_id = part.get("worker_id")
        part = part[key]
    return {**({"worker_id": worker_id} if worker_id is not None else {}), **part}, f"{NESTED_PATH}."


def _merged_extras(
    part: Mapping[str, Any], given: Mapping[str, Any], path: str, problems: list[Problem]
) -> dict[str, Any]:
    extras = part.get("extras")
    if extras is None:
        extras = {}
    if not isinstance(extras, dict):
        problems.append(Problem(f"{path}extras", f"must be an object, not {type(extras).__name__}"))
        extras = {}
    if not isinstance(extras.get("algo_params") or {}, dict):
        kind = type(extras["algo_params"]).__name__
        problems.append(Problem(f"{path}extras.algo_params", f"must be an object, not {kind}"))
    if not isinstance(extras.get("checkpoint_path") or "", str):
        problems.append(Problem(f"{path}extras.checkpoint_path", "must be the path of a checkpoint folder"))
    return {**extras, **given.get("extras", {})}


def _unknown_keys(part: Mapping[str, Any], path: str) -> list[Problem]:
    return [
        Problem(path + str(key), "is not a key of a worker config; the worker's own settings go under extras",
                nearest(str(key), _CHECKS))
        for key in part if key not in _CHECKS
    ]  # fmt: skip


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _problem_with_run_id(value: Any) -> str | None:
    return None if is_run_id(value) else f"must be a ULID (26 characters), not {str(value)[:80]!r}"


def _problem_with_name(value: Any) -> str | None:
    if not isinstance(value, str) or not value.strip() or len(value) > 256:
        return f"must be a name (1 to 256 characters), not {str(value)[:80]!r}"
    return None


def _whole_number(low: int, high: int) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int):
            return f"must be a whole number, not {type(value).__name__} {str(value)[:80]!r}"
        return None if low <= value <= high else f"must be from {low} to {high}, not {value if value < low else 'more'}"

    return check


def _accept(value: Any) -> str | None:
    return None


_CHECKS: Mapping[str, tuple[Callable[[Any], str | None], bool]] = {
    "run_id": (_problem_with_run_id, True),
    "algo": (_problem_with_name, True),
    "env_id": (_problem_with_name, True),
    "total_timesteps": (_whole_number(1, MAX_TIMESTEPS), True),
    "seed": (_whole_number(0, MAX_SEED), False),
    "extras": (_accept, False),  # checked while it is merged
    "worker_id": (_problem_with_name, False),
}
"""Keys of a worker config: what is wrong with a value, and whether it must be there."""

assert set(_CHECKS) == {field.name for field in fields(WorkerConfig)} - {"raw"}


# -- the command line every worker has


def add_worker_arguments(parser: ArgumentParser) -> None:
    """Add the flags the daemon starts a worker with, and those people use by hand."""
    parser.add_argument("--describe", action="store_true", help="print what this worker can do, as JSON, and exit")
    parser.add_argument("--dry-run", action="store_true", help="check the config, print what would run, and exit")
    parser.add_argument("--config", type=Path, metavar="FILE", help="worker config, flat or nested JSON")
    parser.add_argument("--run-id", help="run id (a ULID); made up when neither this nor the file has one")
    parser.add_argument("--algo", help="algorithm")
    parser.add_argument("--env-id", help="environment")
    parser.add_argument("--total-timesteps", type=int, help="how many steps to take")
    parser.add_argument("--seed", type=int, help="seed of every random stream")
    parser.add_argument("--worker-id", help="a name for this worker, shown with its run")
    parser.add_argument("--grpc", action="store_true", help="register with the trainer daemon and report to it")
    parser.add_argument(
        "--grpc-target", metavar="ADDRESS", help="where the daemon listens, e.g. unix:/path or host:port"
    )


_NUMBER = r"-?\d+\.?\d*(?:[eE][-+]?\d+)?"
_NUMBERS = re.compile(f"{_NUMBER}(?:,{_NUMBER})*")


def canonical_flags(words: Sequence[str]) -> list[str]:
    """Return flags in the spelling that parsers here know: `--env_id=X` → `--env-id=X`, `--x 0.1 2` → `--x 0.1,2`."""
    flags: list[str] = []
    for word in words:
        if word.startswith("--"):
            name, has_value, value = word.partition("=")
            flags.append(name.replace("_", "-") + has_value + value)
        elif len(flags) > 1 and flags[-2].startswith("--") and all(map(_NUMBERS.fullmatch, (flags[-1], word))):
            flags[-1] += f",{word}"
        else:
            flags.append(word)
    return flags


def overrides_from(arguments: Namespace) -> dict[str, Any]:
    """What the flags of `add_worker_arguments` say about the config."""
    return {name: getattr(arguments, name) for name in _CHECKS if name != "extras"}


def daemon_target(arguments: Namespace) -> str | None:
    """Where to register; None without `--grpc`: then files and standard output are all there is."""
    if not arguments.grpc:
        return None
    return arguments.grpc_target or os.environ.get(env.MOSAIC_GRPC_TARGET) or "127.0.0.1:50055"


def run_folder_of(run_id: str) -> RunFolder:
    """The run's folder: as the daemon says, else in the home."""
    chosen = os.environ.get(env.MOSAIC_RUN_DIR)
    return RunFolder(Path(chosen).absolute()) if chosen else find_home().run_folder(run_id)
