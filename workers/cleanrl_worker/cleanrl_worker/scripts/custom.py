"""custom_script: a user's own `*.sh` or `*.py` that drives a training of several phases.

Only files in the configured folders are run: `custom_scripts` of the settings (the daemon passes them on), and
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mosaic_wire import env
from mosaic_wire.errors import ConfigProblems, Problem
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder, find_home
from mosaic_wire.session import WorkerSession
from mosaic_wire.worker_spec import SCRIPT_SUFFIXES, read_script_header

from cleanrl_worker.analytics import copy_script
from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.runtime import TrainingProcess
from cleanrl_worker.scripts.runtime import ScriptRun

_MAX_BYTES = 4 << 20


@dataclass(frozen=True)
class CustomScript:
    """A script that may be run, with the text it had then."""

    path: Path
    content: bytes
    root: Path
    """the configured folder it lies in"""
    facts: Mapping[str, Any]
    """what its header declares"""

    @property
    def sha256(self) -> str:
        """Return the hash of the text."""
        return hashlib.sha256(self.content).hexdigest()


def find_custom_script(extras: Mapping[str, Any]) -> CustomScript:
    """Return the script a config names, or raise ConfigProblems with why it cannot be run."""
    chosen = extras.get("script_path")
    if not isinstance(chosen, str) or not chosen:
        raise _refusal("is missing: which script?")
    home = find_home()
    path = home.custom_scripts / Path(chosen).expanduser()
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise _refusal(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    configured = os.environ.get(env.MOSAIC_CUSTOM_SCRIPTS_DIR, "").split(os.pathsep)
    folders = [*(Path(folder) for folder in configured if folder), home.custom_scripts]
    # Links are followed first: what counts is where the file really lies.
    root = next((folder for folder in folders if real.is_relative_to(folder.resolve())), None)
    if root is None:
        where = ", ".join(map(str, folders))
        cure = "move it there, or add its folder to `custom_scripts` in settings.toml"
        raise _refusal(f"{real} lies in none of the folders scripts may come from ({where}); {cure}")
    if real.suffix not in SCRIPT_SUFFIXES or not real.is_file():
        raise _refusal(f"{real} must be a file that ends in {' or '.join(SCRIPT_SUFFIXES)}")
    try:
        if real.stat().st_size > _MAX_BYTES:
            raise _refusal(f"{real} is larger than {_MAX_BYTES >> 20} MiB")
        content = real.read_bytes()
    except OSError as error:
        raise _refusal(f"{real} cannot be read: {error.strerror}") from error
    return CustomScript(real, content, root, read_script_header(content.decode(errors="replace")))


def _refusal(message: str) -> ConfigProblems:
    return ConfigProblems("the worker config", [Problem("extras.script_path", message)])


class CustomScriptRun(ScriptRun):
    """One run of a user's own script; the whole process group ends with it."""

    _in_phases = True

    def __init__(
        self, config: CleanRLWorkerConfig, script: CustomScript, folder: RunFolder, *, target: str | None
    ) -> None:
        super().__init__(config, folder, target=target)
        self._script = script

    @property
    def script_path(self) -> Path:
        """The script's file."""
        return self._script.path

    @cached_property
    def command(self) -> list[str]:
        """The script behind its interpreter, never a shell line."""
        interpreter = ["bash"] if self.script_path.suffix == ".sh" else [sys.executable, "-u"]
        return [*interpreter, str(self.script_path), *(self._config.extras.get("script_arguments") or ())]

    @cached_property
    def variables(self) -> dict[str, str]:
        """The environment variables of the script, besides the worker's own."""
        return {
            env.MOSAIC_RUN_ID: self._config.run_id,
            env.MOSAIC_RUN_DIR: str(self._folder.root),
            env.MOSAIC_CHECKPOINT_DIR: str(self._folder.checkpoints),
            env.MOSAIC_CUSTOM_SCRIPTS_DIR: str(self._script.root),
            env.MOSAIC_SCRIPT_RUN: self._config.run_id,  # a worker the script starts makes a phase of this run
            # `python` and `cleanrl-worker` in the script are those of this installation.
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
            "PYTHONUNBUFFERED": "1",
        }

    @property
    def _total_timesteps(self) -> int:
        """The steps the script is to take; 0: neither the config nor the script declares them."""
        given = self._config.total_timesteps  # a config cannot leave it out: 1 is as good as nothing
        return given if given > 1 else int(self._script.facts.get("total_timesteps") or 0)

    @property
    def _facts(self) -> dict[str, Any]:
        return {**self._script.facts, "script": str(self.script_path), "sha256": self._script.sha256}

    def summary(self) -> dict[str, Any]:
        """Return what a dry run shows."""
        return {**super().summary(), **self._facts}

    def started_facts(self) -> dict[str, Any]:
        """Return the payload of `run_started`."""
        return {**self._facts, **super().started_facts()}

    def first_manifest(self, session: WorkerSession) -> AnalyticsManifest:
        """Return the manifest at the start, with the script's copy and header."""
        manifest = super().first_manifest(session)
        facts = {**copy_script(self.script_path, self._script.content, self._folder), **self._script.facts}
        return replace(manifest, extra={**manifest.extra, "script": facts})

    def start(self, keep_open: Sequence[int]) -> TrainingProcess:
        """Start the script in the run folder."""
        folder = self._folder
        folder.checkpoints.mkdir(parents=True, exist_ok=True)
        environ = {**os.environ, **self.variables}
        return TrainingProcess(self.command, environ, cwd=folder.root, logs=folder.logs, own_group=True)
