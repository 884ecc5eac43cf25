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
from mosaic_wire.redaction import SECRET_REF, is_secret_ref, secret_variable
from mosaic_wire.run_request import (
    RUN_ID_PLACEHOLDER,
    Extras,
    Mode,
    algo_params,
    run_request,
    with_checkpoint,
    with_worker_part,
    worker_part,
)

from gym_gui.services.trainer.secrets import naming_run

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


def config_of(run: pb.Run, here: pb.Run | None = None) -> RunConfig:
    """Return the run's config for another submission; raise ConfigUnreadable with the reason.

    `here`: the run with folders on this machine (`TrainerClient.local`), when its daemon may be on another one.
    """
    return config_in(Path((here or run).run_dir), run.run_id, Path(run.run_dir))


def config_in(run_dir: Path, run_id: str, daemons_dir: Path | None = None) -> RunConfig:
    """Return the config of the run in this folder, which the daemon has as `daemons_dir`, for another submission."""
    try:
        stored = read_json_object(RunFolder(run_dir).home.config_file(run_id))
        document = naming_run(_without_id(stored, run_id), run_id)
        worker = worker_part(document)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigUnreadable(f"the config of {run_id} cannot be read here: {error}") from error
    worker["run_id"] = RUN_ID_PLACEHOLDER
    if MADE_UP_NAME.fullmatch(str(document.get("run_name") or "")):
        document["run_name"] = None
    notices = _use_the_copied_script(worker.get("extras") or {}, run_dir, daemons_dir or run_dir)
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


def _use_the_copied_script(extras: Extras, run_dir: Path, daemons_dir: Path) -> tuple[str, ...]:
    expected, script = extras.get("script_sha256"), extras.get("script_path")
    is_here = run_dir == daemons_dir
    if not expected or not script or (is_here and _sha256(Path(script)) == expected):
        return ()
    copy = Path("scripts") / Path(script).name
    if _sha256(run_dir / copy) != expected:
        return ()
    extras["script_path"] = str(daemons_dir / copy)
    reason = "has changed since" if is_here else "is on the daemon's machine and may have changed"
    return (f"{script} {reason}; the new run runs the copy {daemons_dir / copy}",)


def _sha256(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""


def take_secrets_from(environ: Mapping[str, str], part: Any) -> None:
    """Replace references by the secrets of environment variables that are set; the others stay those of the run."""
    for key, value in part.items() if isinstance(part, MutableMapping) else ():
        if is_secret_ref(value):
            part[key] = environ.get(secret_variable(value[SECRET_REF].rpartition("/")[2])) or value
        else:
            take_secrets_from(environ, value)


def secret_references(document: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the references of a config's extras, and those of its `algo_params`, by key."""
    extras = worker_part(document).get("extras") or {}
    of_extras = {key: value for key, value in extras.items() if is_secret_ref(value)}
    return of_extras, {key: value for key, value in algo_params(extras).items() if is_secret_ref(value)}


def refer_to(references: tuple[Mapping[str, Any], Mapping[str, Any]], document: Mapping[str, Any]) -> None:
    """Add these references where the config gives no secret of its own."""
    of_extras, of_parameters = references
    extras: dict[str, Any] = worker_part(document).setdefault("extras", {})  # type: ignore[assignment]  # by other keys
    extras |= {key: value for key, value in of_extras.items() if not extras.get(key)}
    if of_parameters:
        own = algo_params(extras)
        extras["algo_params"] = {**own, **{key: value for key, value in of_parameters.items() if not own.get(key)}}


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
