"""What `--describe` prints. Nothing here imports Optuna: a description is asked for often and must come at once."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from mosaic_wire.sweep_settings import ALGORITHM, WORKER_TYPE, sweep_fields
from mosaic_wire.worker_spec import AlgorithmSpec, WorkerSpec

from sweep_worker import __version__, get_worker_metadata


def describe() -> WorkerSpec:
    """Data enough to draw a form, check a config and start this worker."""
    return WorkerSpec(
        name=WORKER_TYPE,
        display_name="Sweep (Optuna)",
        version=__version__,
        capabilities=get_worker_metadata(),
        module="sweep_worker.cli",
        argv=(sys.executable, "-m", "sweep_worker.cli"),
        checks=True,
        algorithms=(
            AlgorithmSpec(
                ALGORITHM, "looks for good hyper-parameters; every trial is a run", sweep_fields(),
                modes=("train", "resume_training"), unavailable=missing_packages("optuna"),
            ),
        ),
    )  # fmt: skip


SAMPLER_NEEDS = {"cmaes": ("cmaes",), "gp": ("scipy", "torch")}


def missing_packages(*names: str) -> str:
    """Which of these packages are missing, and what to do; empty: none. Looks for them without importing them."""
    missing = [name for name in names if find_spec(name) is None]
    if not missing:
        return ""
    beside = " (the CPU build will do; the CleanRL worker's environment has it)" if "torch" in missing else ""
    words = " ".join(missing)
    return f"{' and '.join(missing)} must be installed{beside}: {sys.executable} -m pip install {words}"
