"""Scripts by path, and those of a CleanRL checkout: found by the client, read by the worker."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from mosaic_wire import env
from mosaic_wire.errors import ConfigProblems, SpecError
from mosaic_wire.paths import person_path
from mosaic_wire.worker_spec import ScriptSpec, WorkerSpec

if TYPE_CHECKING:
    from gym_gui.cli.algorithms import InstalledWorker

UPSTREAM = "upstream"
SHELL = ".sh"
OWN = ("", "mosaic")
NO_ENVIRONMENT = "none"
"""What is written for the environment of a script that has no parameter for it"""


def is_script(word: str) -> bool:
    """`./my_ppo.py` and `/home/me/my_ppo.py` are files, `ppo` is an algorithm."""
    return word.endswith((".py", SHELL)) or os.sep in word


def choose_script(
    workers: Sequence[InstalledWorker], word: str, worker_name: str | None, source: str
) -> tuple[WorkerSpec, ScriptSpec]:
    """The worker that runs this script, and what it makes of it."""
    from gym_gui.services.trainer.describe import describe_script

    able = [worker.spec for worker in workers if worker.spec is not None and worker.spec.runs_scripts]
    if worker_name is not None:
        able = [spec for spec in able if spec.name == worker_name]
    if not able:
        raise click.UsageError(f"no installed worker runs scripts{f' as {worker_name!r}' if worker_name else ''}")
    name, place = (str(person_path(word)), "") if is_script(word) else (word, checkout_of(source))
    try:
        script = describe_script(able[0].argv, name, source=place)
    except SpecError as error:
        raise click.UsageError(str(error)) from None
    return script.added_to(able[0]), script


def checkout_of(source: str) -> str:
    """The folder of the CleanRL checkout that `--source` means."""
    if source != UPSTREAM:
        return str(person_path(source))
    if chosen := os.environ.get(env.CLEANRL_HOME):
        return str(person_path(chosen))
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
    """A run config in which `source: upstream` and a relative `script_path` have become the path of a file."""
    worker: Any = config
    for key in ("metadata", "worker", "config"):
        worker = worker.get(key) if isinstance(worker, dict) else None
    extras = worker.get("extras") if isinstance(worker, dict) else None
    if not isinstance(extras, dict):
        return config  # whatever is wrong with it, the daemon tells
    path, source, algo = extras.get("script_path"), extras.get("source"), worker.get("algo")
    if isinstance(path, str) and path:
        extras["script_path"] = str(person_path(path))
    elif (
        isinstance(source, str)
        and source not in OWN
        and isinstance(algo, str)
        and extras.get("mode") != "custom_script"
    ):
        extras["script_path"] = str(Path(checkout_of(source), "cleanrl", f"{algo}.py"))
        extras["source"] = UPSTREAM
    return config
