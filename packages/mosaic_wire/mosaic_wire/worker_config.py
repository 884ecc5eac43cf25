"""`WorkerConfig`: the worker's part of a run config, read from a file and from flags that override it.

Two ways to write the file are accepted: flat, as the daemon writes `worker-<ULID>.json`, and nested, the whole run
config with the worker's part at `metadata.worker.config`.
"""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from mosaic_wire import env
from mosaic_wire.errors import ConfigProblems, Problem
from mosaic_wire.files import read_json_object
from mosaic_wire.ids import is_run_id
from mosaic_wire.paths import RunFolder, find_home
from mosaic_wire.run_request import (
    PART_KEYS,
    PART_PATH,
    RUN_ID_PLACEHOLDER,
    Extras,
    Mode,
    expand_placeholders,
    part_problem,
    plain_parameters,
)
from mosaic_wire.worker_spec import nearest

_REQUIRED = ("run_id", "algo", "env_id", "total_timesteps")


@dataclass(frozen=True)
class WorkerConfig:
    """The worker's part of a run config; workers may derive from it."""

    run_id: str
    algo: str
    env_id: str
    total_timesteps: int
    seed: int | None = None
    extras: Extras = field(default_factory=Extras, repr=False)  # may hold a secret
    worker_id: str | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The document as it was read"""

    @property
    def parameters(self) -> dict[str, Any]:
        """Return the algorithm's parameters: `extras.algo_params` and extras that are not settings of the worker."""
        return {**plain_parameters(self.extras), **(self.extras.get("algo_params") or {})}

    @property
    def checkpoint_to_resume(self) -> Path | None:
        """Return the checkpoint folder this run resumes from, or None."""
        path = self.extras.get("checkpoint_path")
        return Path(path) if self.extras.get("mode") == Mode.RESUME and path else None

    @classmethod
    def load(
        cls,
        file: Path | None,
        overrides: Mapping[str, Any] | None = None,
        *,
        make_run_id: Callable[[], str] | None = None,
    ) -> Self:
        """Return the config in a file with `overrides` applied; raise ConfigProblems with every problem.

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
        """Return the config in a document; raise ConfigProblems with every problem."""
        problems: list[Problem] = []
        part, path = _worker_part(document, problems)
        given = {name: value for name, value in (overrides or {}).items() if value is not None}
        values = {**part, **given, "extras": _merged_extras(part, given, path, problems)}
        if make_run_id and values.get("run_id") in (None, RUN_ID_PLACEHOLDER):
            values["run_id"] = make_run_id()
        if isinstance(values.get("run_id"), str):
            values = expand_placeholders(values, values["run_id"])
        unknown = "is not a key of a worker config; the worker's own settings go under extras"
        problems += [
            Problem(path + str(key), unknown, nearest(str(key), PART_KEYS)) for key in part if key not in PART_KEYS
        ]
        for name in PART_KEYS:
            if values.get(name) is None:
                if name in _REQUIRED:
                    problems.append(Problem(path + name, f"is missing; give it in the file or with {_flag(name)}"))
            elif (wrong := _problem_with(name, values[name])) is not None:
                problems.append(Problem(_flag(name) if name in given else path + name, wrong))
        if problems:
            raise ConfigProblems(what, problems)
        chosen = {name: values[name] for name in PART_KEYS if values.get(name) is not None}
        return cls(**chosen, raw=dict(document))


def _read(what: str, file: Path) -> dict[str, Any]:
    try:
        return read_json_object(file, opener=None)
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
    except ValueError as error:
        reason = f"{error}; it may be half-written: write it again"
    raise ConfigProblems(what, [Problem("", reason)])


def _worker_part(document: Mapping[str, Any], problems: list[Problem]) -> tuple[dict[str, Any], str]:
    """Return the worker's part of either format, and the path prefix of its keys."""
    if "metadata" not in document:
        return dict(document), ""
    if mixed := sorted(set(document) & set(PART_KEYS)):
        message = f"is the worker's, but this file also has `metadata`; put it under {PART_PATH}, or leave metadata out"
        problems.extend(Problem(name, message) for name in mixed)
    part: Any = document
    walked: list[str] = []
    worker_id = None
    for key in PART_PATH.split("."):
        walked.append(key)
        if not isinstance(part.get(key), dict):
            found = "is missing" if key not in part else f"must be an object, not {type(part[key]).__name__}"
            problems.append(Problem(".".join(walked), found))
            return {}, f"{PART_PATH}."
        worker_id = part.get("worker_id")
        part = part[key]
    return {**({"worker_id": worker_id} if worker_id is not None else {}), **part}, f"{PART_PATH}."


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


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _problem_with(name: str, value: Any) -> str | None:
    if name == "extras":
        return None  # checked while they are merged
    if name == "run_id":
        return None if is_run_id(value) else f"must be a ULID (26 characters), not {str(value)[:80]!r}"
    return part_problem(name, value)


# -- the command line every worker has


def add_worker_arguments(parser: ArgumentParser) -> None:
    """Add the flags that the daemon and users start a worker with."""
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


def canonical_flags(arguments: Sequence[str]) -> list[str]:
    """Return flags in normalized spelling: `--env_id=X` → `--env-id=X`, `--x 0.1 2` → `--x 0.1,2`."""
    flags: list[str] = []
    for argument in arguments:
        if argument.startswith("--"):
            name, has_value, value = argument.partition("=")
            flags.append(name.replace("_", "-") + has_value + value)
        elif len(flags) > 1 and flags[-2].startswith("--") and all(map(_NUMBERS.fullmatch, (flags[-1], argument))):
            flags[-1] += f",{argument}"
        else:
            flags.append(argument)
    return flags


def overrides_from(arguments: Namespace) -> dict[str, Any]:
    """Return the config values given by the flags of `add_worker_arguments`."""
    return {name: getattr(arguments, name) for name in PART_KEYS if name != "extras"}


def daemon_target(arguments: Namespace) -> str | None:
    """Return the daemon's address, or None without `--grpc`, when the worker only writes files and output."""
    if not arguments.grpc:
        return None
    return arguments.grpc_target or os.environ.get(env.MOSAIC_GRPC_TARGET) or "127.0.0.1:50055"


def run_folder_of(run_id: str) -> RunFolder:
    """Return the run's folder, from the environment or else in the home."""
    chosen = os.environ.get(env.MOSAIC_RUN_DIR)
    return RunFolder(Path(chosen).absolute()) if chosen else find_home().run_folder(run_id)
