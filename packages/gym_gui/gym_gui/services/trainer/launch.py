"""Build argv and environment of an attempt from its run and its worker's description (pure)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic_wire import env
from mosaic_wire.paths import Home
from mosaic_wire.redaction import is_secret_key
from mosaic_wire.run_request import NOT_TRAINING
from mosaic_wire.worker_spec import WorkerSpec

if TYPE_CHECKING:
    from gym_gui.config.settings import Settings
    from gym_gui.services.trainer.records import RunRecord

# The daemon's environment is the user's, so workers inherit it except for variables that would mislead them:
_DROPPED_PREFIXES = ("MOSAIC_", "CLEANRL_")  # of the daemon, or of the run that started it
_KEPT = frozenset({env.CLEANRL_FASTLANE_INTERVAL_MS, env.CLEANRL_FASTLANE_MAX_DIM})  # the user's, as GYM_GUI_FASTLANE_…
_DROPPED = frozenset(
    {
        # Interpreter settings of the daemon; a worker may use another environment or Python.
        "PYTHONPATH",
        "PYTHONHOME",
        "PYTHONSTARTUP",
        "PYTHONEXECUTABLE",
        "PYTHONSAFEPATH",
        "PYTHONINSPECT",
        "__PYVENV_LAUNCHER__",
        # systemd's variables for the daemon.
        "NOTIFY_SOCKET",
        "WATCHDOG_PID",
        "WATCHDOG_USEC",
        "LISTEN_PID",
        "LISTEN_FDS",
        "LISTEN_FDNAMES",
        "PYTEST_CURRENT_TEST",
        env.CUDA_VISIBLE_DEVICES,
    }
)


@dataclass(frozen=True)
class Launch:
    """Everything needed to start one attempt of a run."""

    run_id: str
    attempt: int
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    """The whole environment; it contains secrets, so it is never printed"""
    cwd: Path
    stdout: Path
    stderr: Path
    mark: str
    memory_mb: int | None = None
    max_processes: int = 4096
    """Processes and threads of the whole tree"""
    cpus: float = 1.0
    """The CPU weight of the group, not a limit"""
    gpus: int = 0
    """For an engine, which chooses them; those of this machine are in the environment"""
    max_wallclock_minutes: float | None = None
    grace_s: float = 30.0
    """Between SIGTERM and SIGKILL"""


def inherited_environment(base_env: Mapping[str, str]) -> dict[str, str]:
    """Return the daemon's environment for a worker, without secrets and the daemon's own variables."""
    return {
        name: value
        for name, value in base_env.items()
        if name in _KEPT
        or (name not in _DROPPED and not name.startswith(_DROPPED_PREFIXES) and not is_secret_key(name))
    }


def build_launch(
    spec: WorkerSpec,
    record: RunRecord,
    home: Home,
    settings: Settings,
    *,
    mark: str,
    base_env: Mapping[str, str],
    gpu_ids: Sequence[str] = (),
    run_token: str = "",
    grpc_target: str = "",
    secrets: Mapping[str, str] | None = None,
) -> Launch:
    """Return how to start this attempt; variables of MOSAIC override `secrets`, which are also variables."""
    run_id = record.run_id
    folder, logs, config = home.run_folder(run_id), home.run_logs(run_id), home.worker_config_file(run_id)
    environment = inherited_environment(base_env) | dict(spec.env) | dict(secrets or {})
    threads = str(max(1, int(record.cpus)))
    for name in env.THREAD_COUNTS:
        environment.setdefault(name, threads)
    environment |= {
        env.MOSAIC_HOME: str(home.root),
        env.MOSAIC_RUN_ID: run_id,
        env.MOSAIC_RUN_DIR: str(folder.root),
        env.MOSAIC_RUN_ATTEMPT: str(record.attempt),
        env.MOSAIC_RUN_TOKEN: run_token,
        env.MOSAIC_RUN_MARK: mark,
        env.MOSAIC_CONFIG_FILE: str(config),
        env.MOSAIC_CHECKPOINT_DIR: str(folder.checkpoints),
        env.MOSAIC_GRPC_TARGET: grpc_target,
        env.MOSAIC_GRACE_S: f"{settings.grace_s:g}",
        # Empty, not absent: without a reservation a worker must see no GPU at all.
        env.CUDA_VISIBLE_DEVICES: ",".join(gpu_ids),
        env.MOSAIC_GPUS_MANDATORY: str(record.gpus_mandatory),
    }
    if settings.custom_scripts:
        environment[env.MOSAIC_CUSTOM_SCRIPTS_DIR] = os.pathsep.join(map(str, settings.custom_scripts))
    return Launch(
        run_id=run_id,
        attempt=record.attempt,
        argv=(*spec.argv, "--config", str(config), "--run-id", run_id, "--grpc", "--grpc-target", grpc_target),
        env=environment,
        cwd=folder.root,
        stdout=logs / "stdout.log",
        stderr=logs / "stderr.log",
        mark=mark,
        memory_mb=record.memory_mb,
        max_processes=settings.max_processes,
        cpus=record.cpus,
        gpus=record.gpus,
        max_wallclock_minutes=record.max_wallclock_minutes,
        grace_s=settings.grace_s,
    )


def is_training(worker_config: Mapping[str, Any]) -> bool:
    """Return whether this config trains, so that it can resume from a checkpoint in its folder."""
    extras = worker_config.get("extras")
    return not isinstance(extras, Mapping) or extras.get("mode") not in NOT_TRAINING
