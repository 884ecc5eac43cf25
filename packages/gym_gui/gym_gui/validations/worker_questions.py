"""A worker's answers about a config: its own `--dry-run`, or a question such as `--models`, in a process of its own.

Call it off the window's thread: it waits for the process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mosaic_wire import env
from mosaic_wire.paths import Home
from mosaic_wire.redaction import redact_text, secret_values
from mosaic_wire.worker_spec import WorkerSpec

TIMEOUT_S = 60.0
_MAX_OUTPUT_CHARACTERS = 64 * 1024


def ask_worker(
    spec: WorkerSpec, config: Mapping[str, Any], *flags: str, home: Home, timeout_s: float = TIMEOUT_S
) -> tuple[bool, str]:
    """Start the worker with a config and these flags; return whether it exited with 0, and what it printed.

    Secrets of the config are removed from the text. Nothing of the process' session outlives this, however it ends.
    """
    with tempfile.TemporaryDirectory(prefix="mosaic-question-") as folder:
        file = Path(folder) / "config.json"
        file.touch(mode=0o600)  # it may hold a key
        file.write_text(json.dumps(config), encoding="utf-8")
        command = [*spec.argv, "--config", str(file), *flags]
        # The home's requirement sets and caches are the run's; no GPU is woken up for a check.
        variables = {**os.environ, **spec.env, env.MOSAIC_HOME: str(home.root), env.CUDA_VISIBLE_DEVICES: ""}
        variables.pop(env.MOSAIC_RUN_DIR, None)
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        try:
            process = subprocess.Popen(command, cwd=folder, env=variables, start_new_session=True, **streams)
        except OSError as error:
            return False, f"the worker cannot be started: {error.strerror or error}; {' '.join(command)}"
        with process:
            try:
                parts = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                return False, f"the worker gave no answer within {timeout_s:g} s"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    succeeded = process.returncode == 0
    # Warnings of libraries do not belong to an answer.
    shown = parts[:1] if succeeded and parts[0].strip() else parts
    text = b"\n".join(filter(None, (part.strip() for part in shown))).decode("utf-8", "replace")
    if not succeeded and text.startswith("the worker config has "):
        text = "\n".join(line.strip() for line in text.splitlines()[1:])
    clean = redact_text(text.replace(str(file), "the config"), secret_values(config))
    return succeeded, clean[:_MAX_OUTPUT_CHARACTERS]
