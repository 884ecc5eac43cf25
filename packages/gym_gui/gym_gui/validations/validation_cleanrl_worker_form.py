"""The dry run behind the CleanRL form's button: the worker's own `--dry-run`, in a process and a folder of its own.

Call it off the window's thread: it waits for the process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mosaic_wire import env
from mosaic_wire.errors import SpecError
from mosaic_wire.paths import Home, find_home
from mosaic_wire.redaction import redact_text, secret_values

from gym_gui.services.trainer.catalog import WorkerCatalog
from gym_gui.services.trainer.errors import UnknownWorker

WORKER = "cleanrl"
TIMEOUT_S = 60.0
_MAX_OUTPUT_CHARACTERS = 64 * 1024


def run_cleanrl_dry_run(
    config: Mapping[str, Any],
    *,
    home: Home | None = None,
    catalog: WorkerCatalog | None = None,
    timeout_s: float = TIMEOUT_S,
) -> tuple[bool, str]:
    """Check a run config (nested) or worker config (flat) as the worker would; return whether it would run, and what
    the worker said: what it would run, or everything that is wrong. Secrets are removed from the words.
    """
    home = home or find_home()
    secrets = secret_values(config)
    try:
        spec = (catalog or WorkerCatalog(home)).get(WORKER)
    except (UnknownWorker, SpecError) as error:
        return False, redact_text(str(error), secrets)
    with tempfile.TemporaryDirectory(prefix="mosaic-dry-run-") as folder:
        file = Path(folder) / "config.json"
        file.touch(mode=0o600)  # it may hold a key
        file.write_text(json.dumps(config), encoding="utf-8")
        command = [*spec.argv, "--config", str(file), "--dry-run"]
        # The home's requirement sets and caches are the run's; no GPU is woken up for a check.
        variables = {**os.environ, **spec.env, env.MOSAIC_HOME: str(home.root), env.CUDA_VISIBLE_DEVICES: ""}
        variables.pop(env.MOSAIC_RUN_DIR, None)
        try:
            code, told = _run(command, Path(folder), variables, timeout_s)
        except subprocess.TimeoutExpired:
            return False, f"the dry run gave no answer within {timeout_s:g} s"
        except OSError as error:
            return False, f"the worker cannot be started: {error.strerror or error}; {' '.join(command)}"
    told = told.replace(str(file), "the config")
    return code == 0, redact_text(told, secrets)[:_MAX_OUTPUT_CHARACTERS]


def _run(command: Sequence[str], folder: Path, variables: Mapping[str, str], timeout_s: float) -> tuple[int, str]:
    """Exit code and words; nothing of the process' session outlives this, however it ends."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=dict(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    with process:
        try:
            parts = process.communicate(timeout=timeout_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    words = b"\n".join(filter(None, (part.strip() for part in parts)))
    return process.returncode, words.decode("utf-8", "replace")
