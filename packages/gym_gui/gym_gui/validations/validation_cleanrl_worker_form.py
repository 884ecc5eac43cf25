"""The CleanRL worker's dry run under the name that documents of others use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mosaic_wire.errors import SpecError
from mosaic_wire.paths import Home, find_home
from mosaic_wire.redaction import redact_text, secret_values

from gym_gui.services.trainer.catalog import WorkerCatalog
from gym_gui.services.trainer.errors import UnknownWorker
from gym_gui.validations.worker_questions import TIMEOUT_S, ask_worker

WORKER = "cleanrl"


def run_cleanrl_dry_run(
    config: Mapping[str, Any],
    *,
    home: Home | None = None,
    catalog: WorkerCatalog | None = None,
    timeout_s: float = TIMEOUT_S,
) -> tuple[bool, str]:
    """Check a run config (nested) or worker config (flat); return whether it would run, and what the worker printed."""
    home = home or find_home()
    try:
        spec = (catalog or WorkerCatalog(home)).get(WORKER)
    except (UnknownWorker, SpecError) as error:
        return False, redact_text(str(error), secret_values(config))
    return ask_worker(spec, config, "--dry-run", home=home, timeout_s=timeout_s)
