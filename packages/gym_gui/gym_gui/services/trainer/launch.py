"""From a worker's description and a run to argv and environment. Pure: the executor does the starting."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic_wire import env
from mosaic_wire.paths import Home
from mosaic_wire.redaction import is_secret_key
from mosaic_wire.worker_spec import WorkerSpec

from gym_gui.services.trainer.executors.base import Launch

if TYPE_CHECKING:
    from gym_gui.services.trainer.records import RunRecord

# The daemon's environment is the user's, so it is kept but for what would mislead a worker:
_DROPPED_PREFIXES = ("MOSAIC_", "CLEANRL_")  # meant for the daemon, or for the run it was itself started from
_KEPT = frozenset({env.CLEANRL_FASTLANE_INTERVAL_MS, env.CLEANRL_FASTLANE_MAX_DIM})  # the user's, as GYM_GUI_FASTLANE_…
_DROPPED = frozenset(
    {
        # The daemon's interpreter settings; a worker may live in another environment, with another Python.
        "PYTHONPATH",
        "PYTHONHOME",
        "PYTHONSTARTUP",
        "PYTHONEXECUTABLE",
        "PYTHONSAFEPATH",
        "PYTHONINSPECT",
        "__PYVENV_LAUNCHER__",
        # systemd's talk with the daemon.
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


def inherited_environment(base_env: Mapping[str, str]) -> dict[str, str]:
    """Return what of the daemon's environment a worker may have: no secrets, nothing meant for the daemon."""
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
    *,
    gpu_ids: Sequence[str],
    run_token: str,
    mark: str,
    attempt: int,
    grpc_target: str,
    grace_s: float,
    secrets: Mapping[str, str],
    base_env: Mapping[str, str],
    max_processes: int = 4096,
    script_folders: Sequence[Path] = (),
) -> Launch:
    """Say how to start this attempt. `secrets` are environment variables; what we set ourselves always wins."""
    run_id = record.run_id
    folder, logs, config = home.run_folder(run_id), home.run_logs(run_id), home.worker_config_file(run_id)
    environment = inherited_environment(base_env) | dict(spec.env) | dict(secrets)
    threads = str(max(1, int(record.cpus)))
    for name in env.THREAD_COUNTS:
        environment.setdefault(name, threads)
    environment |= {
        env.MOSAIC_HOME: str(home.root),
        env.MOSAIC_RUN_ID: run_id,
        env.MOSAIC_RUN_DIR: str(folder.root),
        env.MOSAIC_RUN_ATTEMPT: str(attempt),
        env.MOSAIC_RUN_TOKEN: run_token,
        env.MOSAIC_RUN_MARK: mark,
        env.MOSAIC_CONFIG_FILE: str(config),
        env.MOSAIC_CHECKPOINT_DIR: str(folder.checkpoints),
        env.MOSAIC_GRPC_TARGET: grpc_target,
        env.MOSAIC_GRACE_S: f"{grace_s:g}",
        # Empty, not absent: without a reservation a worker must see no GPU at all.
        env.CUDA_VISIBLE_DEVICES: ",".join(gpu_ids),
        env.MOSAIC_GPUS_MANDATORY: str(record.gpus_mandatory),
    }
    if script_folders:
        environment[env.MOSAIC_CUSTOM_SCRIPTS_DIR] = os.pathsep.join(map(str, script_folders))
    return Launch(
        run_id=run_id,
        attempt=attempt,
        argv=(*spec.argv, "--config", str(config), "--run-id", run_id, "--grpc", "--grpc-target", grpc_target),
        env=environment,
        cwd=folder.root,
        stdout=logs / "stdout.log",
        stderr=logs / "stderr.log",
        mark=mark,
        memory_mb=record.memory_mb,
        max_processes=max_processes,
        cpus=record.cpus,
    )


NOT_TRAINING = ("policy_eval", "interactive", "custom_script")
"""Modes that leave nothing to go on from; such a run is begun anew"""
RESUME_TRAINING = "resume_training"


def is_training(worker_config: Mapping[str, Any]) -> bool:
    """Whether this config trains, so that a checkpoint in its folder is one to go on from."""
    extras = worker_config.get("extras")
    return not isinstance(extras, Mapping) or extras.get("mode") not in NOT_TRAINING


def with_checkpoint(worker_config: Mapping[str, Any], checkpoint: Path) -> dict[str, Any]:
    """Copy a worker's config so that it goes on from this checkpoint."""
    extras = worker_config.get("extras")
    resumed = {"mode": RESUME_TRAINING, "checkpoint_path": str(checkpoint.absolute())}
    kept = {name: value for name, value in extras.items() if name != "policy_path"} if extras else {}
    return {**worker_config, "extras": {**kept, **resumed}}
