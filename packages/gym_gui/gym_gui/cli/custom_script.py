"""`mosaic train FILE.sh`: a shell script as a run. What it says about itself stands in its first lines."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from mosaic_wire.files import write_bytes_atomically
from mosaic_wire.paths import person_path
from mosaic_wire.script_header import read_script_header
from mosaic_wire.worker_spec import AlgorithmSpec

from gym_gui.cli.algorithms import PREFERRED_WORKER, InstalledWorker

if TYPE_CHECKING:
    from gym_gui.cli.context import Cli
    from gym_gui.cli.train import Order

_OF_AN_ALGORITHM = ("stop_at_return", "expect_return", "source")


def shell_order(
    cli: Cli, workers: Sequence[InstalledWorker], word: str, arguments: Sequence[str], options: dict[str, Any]
) -> Order:
    """What to run, checked; `arguments` go to the script as they are."""
    from gym_gui.cli.train import Order

    if wrong := [f"--{name.replace('_', '-')}" for name in _OF_AN_ALGORITHM if options[name]]:
        raise click.UsageError(f"{wrong[0]} is for algorithms; arguments of the script stand behind --")
    if options["seed"] is not None and options["seeds"] is not None:
        raise click.UsageError("give --seed or --seeds, not both")
    spec = next((w.spec for w in workers if w.spec is not None and w.name == PREFERRED_WORKER), None)
    if spec is None:
        raise click.UsageError(f"scripts are run by the worker {PREFERRED_WORKER!r}, which is not installed")
    path = Path(word)
    facts = facts_of(path)
    options["name"] = options["name"] or path.name
    env_id = options["env_id"] or str(facts.get("env_family") or "custom")
    total = options["total_timesteps"] or facts.get("total_timesteps") or 1  # 1: nobody knows
    place = path if cli.connect else _allowed(cli, path)
    extras: dict[str, Any] = {"mode": "custom_script", "script_path": str(place)}
    if arguments:
        extras["script_arguments"] = list(arguments)
    seeds = tuple(options["seeds"] or [options["seed"]])
    return Order(spec, AlgorithmSpec("custom_script"), env_id, seeds, total, {}, extras=extras)


def facts_of(path: Path) -> dict[str, Any]:
    """What a script says about itself in its first lines."""
    if path.exists() and not path.is_file():  # a pipe would be waited on for ever
        raise click.UsageError(f"{path} is {'a folder' if path.is_dir() else 'no regular file'}, not a script")
    try:
        return read_script_header(path.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise click.UsageError(f"cannot read {path}: {error.strerror}") from error


def find_file(cli: Cli, word: str) -> Path:
    """The file a person means: by its path, or by its name in the home's folder for scripts."""
    path = person_path(word)
    kept = cli.home.custom_scripts / word
    return kept if not path.exists() and Path(word).name == word and kept.exists() else path


def _allowed(cli: Cli, path: Path) -> Path:
    """A file of the user's own, where the daemon runs scripts from: there, or as a copy of what it says now."""
    from gym_gui.config.settings import load_settings
    from gym_gui.services.trainer.validation.custom_scripts import script_folders

    folders = script_folders(cli.home, load_settings().custom_scripts)
    if any(path.resolve().is_relative_to(folder.resolve()) for folder in folders):
        return path
    content = path.read_bytes()
    copy = cli.home.custom_scripts / hashlib.sha256(content).hexdigest()[:16] / path.name
    copy.parent.mkdir(parents=True, exist_ok=True)
    write_bytes_atomically(copy, content)
    return copy
