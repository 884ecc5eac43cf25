"""Configs to submit a run again, to continue it, or to evaluate its policy."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic_wire.files import read_json_object
from mosaic_wire.paths import RunFolder
from mosaic_wire.redaction import SECRET_REF, is_secret_ref
from mosaic_wire.run_request import (
    RUN_ID_PLACEHOLDER,
    Extras,
    Mode,
    run_request,
    with_checkpoint,
    with_worker_part,
    worker_part,
)

from gym_gui.services.trainer.secrets import to_environment

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

MADE_UP_NAME = re.compile(r".+-\d{8}-\d{6}(-s\d+)?")
"""A name the daemon chose: the clone gets one of its own time"""


def seed_name(name: str, worker: str, algo: str, seed: int | None, seeds: Sequence[int | None]) -> str:
    """Return the name of the run with this seed: of several, each has its own; empty: the daemon chooses one."""
    if len(seeds) < 2:
        return name
    return f"{name or f'{worker}-{algo}-' + time.strftime('%Y%m%d-%H%M%S')}-s{seed}"


class ConfigUnreadable(ValueError):
    """The config of a run is missing or cannot be read here."""


@dataclass(frozen=True)
class RunConfig:
    """A config, and notes for the user on how it differs from the run's."""

    document: dict[str, Any]
    notices: tuple[str, ...] = ()


def config_of(run: pb.Run) -> RunConfig:
    """Return the run's config for another submission; raise ConfigUnreadable with the reason."""
    return config_in(Path(run.run_dir), run.run_id)


def config_in(run_dir: Path, run_id: str) -> RunConfig:
    """Return the config of the run in this folder for another submission."""
    try:
        document = _without_id(read_json_object(RunFolder(run_dir).home.config_file(run_id)), run_id)
        worker = worker_part(document)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigUnreadable(f"the config of {run_id} cannot be read here: {error}") from error
    worker["run_id"] = RUN_ID_PLACEHOLDER
    if MADE_UP_NAME.fullmatch(str(document.get("run_name") or "")):
        document["run_name"] = None
    notices = _use_the_copied_script(worker.get("extras") or {}, run_dir)
    return RunConfig({key: value for key, value in document.items() if value is not None}, notices)


def _without_id(value: Any, run_id: str) -> Any:
    """Return the value without paths below the run's folder, because a clone has its own."""
    if isinstance(value, dict):
        return {key: _without_id(item, run_id) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_id(item, run_id) for item in value]
    # An absolute path (a checkpoint to continue from) means that very place.
    is_place = isinstance(value, str) and os.path.isabs(value)
    return value.replace(run_id, RUN_ID_PLACEHOLDER) if isinstance(value, str) and not is_place else value


def _use_the_copied_script(extras: Extras, run_dir: Path) -> tuple[str, ...]:
    expected, script = extras.get("script_sha256"), extras.get("script_path")
    if not expected or not script or _sha256(Path(script)) == expected:
        return ()
    copy = run_dir / "scripts" / Path(script).name
    if _sha256(copy) != expected:
        return ()
    extras["script_path"] = str(copy)
    return (f"{script} has changed since; the new run runs the copy {copy}",)


def _sha256(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""


def take_secrets_from(environ: Mapping[str, str], part: Any) -> list[str]:
    """Replace references by secrets; return the environment variables that are missing."""
    missing = []
    for key, value in list(part.items()) if isinstance(part, MutableMapping) else []:
        if is_secret_ref(value):
            (variable,) = to_environment({value[SECRET_REF]: ""})
            if environ.get(variable):
                part[key] = environ[variable]
            else:
                del part[key]
                missing.append(variable)
        else:
            missing += take_secrets_from(environ, value)
    return missing


# ---------------------------------------------------------------- runs that begin with a checkpoint


def continued_config(document: Mapping[str, Any], checkpoint: Path, *, step: int, more: int) -> dict[str, Any]:
    """Return the config of a run that continues this checkpoint for so many more steps (0: to what was planned).

    Raise ValueError when there is nothing left to do.
    """
    config = with_checkpoint(worker_part(document), checkpoint)
    planned = config.get("total_timesteps") or 0
    if more <= 0 and step >= planned:
        raise ValueError(f"it has trained all of its {planned} timesteps: choose how many more")
    config["total_timesteps"] = step + more if more > 0 else planned
    return with_worker_part(document, config)


def evaluation_config(
    *,
    worker_type: str,
    module: str,
    algo: str,
    env_id: str,
    checkpoint: str | None,
    episodes: int,
    repeat: int = 1,
    seed: int | None = None,
    name: str = "",
    tags: Sequence[str] = (),
    settings: Extras | None = None,
) -> dict[str, Any]:
    """Return the config of a run that plays a policy (without a checkpoint: one that acts at random).

    `settings` are other `eval_…` extras, None where there is none.
    """
    extras: Extras = {
        "mode": Mode.EVALUATE,
        "checkpoint_path": checkpoint,
        "eval_policy": "random" if checkpoint is None else None,
        "eval_episodes": episodes,
        "eval_repeat": repeat,
        **(settings or {}),
    }
    return run_request(
        worker_type,
        module=module,
        algo=algo,
        env_id=env_id,
        total_timesteps=episodes * repeat,  # it counts episodes
        seed=seed,
        extras=extras,
        run_name=name,
        tags=tags,
    )
