"""Python scripts by path, those of a CleanRL checkout, and shell scripts as runs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from mosaic_wire import env
from mosaic_wire.errors import ConfigProblems, SpecError
from mosaic_wire.files import write_bytes_atomically
from mosaic_wire.paths import user_path
from mosaic_wire.run_request import OWN_SOURCES, UPSTREAM, Extras, Mode
from mosaic_wire.worker_spec import AlgorithmSpec, ScriptSpec, WorkerSpec, read_script_header

from gym_gui.cli.algorithms import PREFERRED_WORKER, InstalledWorker

if TYPE_CHECKING:
    from gym_gui.cli.algorithms import InstalledWorker
    from gym_gui.cli.context import Cli
    from gym_gui.cli.train import TrainingTask

SHELL = ".sh"
NO_ENVIRONMENT = "none"
"""The environment of a script that has no parameter for it"""


def is_script(name: str) -> bool:
    """`./my_ppo.py` and `/home/me/my_ppo.py` are files, `ppo` is an algorithm."""
    return name.endswith((".py", SHELL)) or os.sep in name


def choose_script(
    workers: Sequence[InstalledWorker], name: str, worker_name: str | None, source: str
) -> tuple[WorkerSpec, ScriptSpec]:
    """Return the worker that runs this script, and its description of it."""
    from gym_gui.services.trainer.describe import describe_script

    able = [worker.spec for worker in workers if worker.spec is not None and worker.spec.runs_scripts]
    if worker_name is not None:
        able = [spec for spec in able if spec.name == worker_name]
    if not able:
        raise click.UsageError(f"no installed worker runs scripts{f' as {worker_name!r}' if worker_name else ''}")
    name, place = (str(user_path(name)), "") if is_script(name) else (name, checkout_of(source))
    try:
        script = describe_script(able[0].argv, name, source=place)
    except SpecError as error:
        raise click.UsageError(str(error)) from None
    return script.added_to(able[0]), script


def checkout_of(source: str) -> str:
    """Return the folder of the CleanRL checkout that `--source` means."""
    if source != UPSTREAM:
        return str(user_path(source))
    if chosen := os.environ.get(env.CLEANRL_HOME):
        return str(user_path(chosen))
    from gym_gui.config.settings import load_settings, settings_file

    try:
        chosen_folder = load_settings().cleanrl_home
    except ConfigProblems as error:
        raise click.UsageError(str(error)) from None
    if chosen_folder is None:
        raise click.UsageError(
            f"where is the CleanRL checkout? Set {env.CLEANRL_HOME}, or cleanrl_home in {settings_file()}, "
            "or give its folder: --source /path/to/cleanrl"
        )
    return str(chosen_folder)


def with_script_found(config: dict[str, Any]) -> dict[str, Any]:
    """Return a run config in which `source: upstream` and a relative `script_path` have become the path of a file."""
    worker: Any = config
    for key in ("metadata", "worker", "config"):
        worker = worker.get(key) if isinstance(worker, dict) else None
    extras = worker.get("extras") if isinstance(worker, dict) else None
    if not isinstance(extras, dict):
        return config  # the daemon reports its problems
    path, source, algo = extras.get("script_path"), extras.get("source"), worker.get("algo")
    if isinstance(path, str) and path:
        extras["script_path"] = str(user_path(path))
    elif (
        isinstance(source, str)
        and source not in OWN_SOURCES
        and isinstance(algo, str)
        and extras.get("mode") != Mode.CUSTOM_SCRIPT
    ):
        extras["script_path"] = str(Path(checkout_of(source), "cleanrl", f"{algo}.py"))
        extras["source"] = UPSTREAM
    return config


# ---------------------------------------------------------------- shell scripts


_OF_AN_ALGORITHM = ("stop_at_return", "expect_return", "source")


def shell_request(
    cli: Cli, workers: Sequence[InstalledWorker], file: str, arguments: Sequence[str], options: dict[str, Any]
) -> TrainingTask:
    """Return what to run, checked; `arguments` go to the script as they are."""
    from gym_gui.cli.train import TrainingTask

    if wrong := [f"--{name.replace('_', '-')}" for name in _OF_AN_ALGORITHM if options[name]]:
        raise click.UsageError(f"{wrong[0]} is for algorithms; arguments of the script stand behind --")
    if options["seed"] is not None and options["seeds"] is not None:
        raise click.UsageError("give --seed or --seeds, not both")
    spec = next((w.spec for w in workers if w.spec is not None and w.name == PREFERRED_WORKER), None)
    if spec is None:
        raise click.UsageError(f"scripts are run by the worker {PREFERRED_WORKER!r}, which is not installed")
    path = Path(file)
    facts = facts_of(path)
    options["name"] = options["name"] or path.name
    env_id = options["env_id"] or str(facts.get("env_family") or "custom")
    total = options["total_timesteps"] or facts.get("total_timesteps") or 1  # 1: not known
    place = path if cli.connect else _allowed(cli, path)
    extras: Extras = {
        "mode": Mode.CUSTOM_SCRIPT,
        "script_path": str(place),
        "script_arguments": list(arguments) or None,
    }
    seeds = tuple(options["seeds"] or [options["seed"]])
    return TrainingTask(spec, AlgorithmSpec(Mode.CUSTOM_SCRIPT), env_id, seeds, total, {}, extras=extras)


def facts_of(path: Path) -> dict[str, Any]:
    """Return what a script says about itself in its first lines."""
    if path.exists() and not path.is_file():  # a pipe would be waited on for ever
        raise click.UsageError(f"{path} is {'a folder' if path.is_dir() else 'no regular file'}, not a script")
    try:
        return read_script_header(path.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise click.UsageError(f"cannot read {path}: {error.strerror}") from error


def find_file(cli: Cli, name: str) -> Path:
    """Find a script by its path, or by its name in the home's folder for scripts."""
    path = user_path(name)
    kept = cli.home.custom_scripts / name
    return kept if not path.exists() and Path(name).name == name and kept.exists() else path


def _allowed(cli: Cli, path: Path) -> Path:
    """Return a file of the user's own, where the daemon runs scripts from: there, or as a copy of what it says now."""
    from gym_gui.config.settings import load_settings
    from gym_gui.services.trainer.validation.worker_part import script_folders

    folders = script_folders(cli.home, load_settings().custom_scripts)
    if any(path.resolve().is_relative_to(folder.resolve()) for folder in folders):
        return path
    content = path.read_bytes()
    copy = cli.home.custom_scripts / hashlib.sha256(content).hexdigest()[:16] / path.name
    copy.parent.mkdir(parents=True, exist_ok=True)
    write_bytes_atomically(copy, content)
    return copy
