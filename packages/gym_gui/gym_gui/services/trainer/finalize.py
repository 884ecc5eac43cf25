"""The final manifest of a run whose worker could not write it."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from dataclasses import replace
from itertools import count

from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder
from mosaic_wire.run_artifacts import artifacts_of

from gym_gui.services.trainer.file_threads import run_long_io
from gym_gui.services.trainer.records import RunRecord

logger = logging.getLogger(__name__)

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""Disk errors that may pass"""
_RETRY_S = 1.0
_MAX_ATTEMPTS, _MAX_DISK_ATTEMPTS = 5, 600


async def finalize(
    folder: RunFolder, record: RunRecord, outcome: str, reason: str, report_trouble: Callable[[str, str], None]
) -> None:
    """Write the final manifest, retrying while the disk fails; after too many attempts the run ends without one."""
    logged = ""
    for attempt in count(1):
        try:
            await run_long_io(finalize_manifest, folder, record, outcome, reason)
            return
        except Exception as error:
            # Boundary of a run: it ends whatever its folder contains.
            is_disk_error = isinstance(error, OSError) and error.errno in _DISK_ERRORS
            if attempt >= (_MAX_DISK_ATTEMPTS if is_disk_error else _MAX_ATTEMPTS):
                logger.exception("run %s ends without a final manifest", record.run_id)
                return
            # Without the name of the temporary file, which differs each time.
            why = error.strerror if is_disk_error and isinstance(error, OSError) else error
            trouble = f"run {record.run_id}: its manifest cannot be written; will retry: {why}"
            report_trouble("manifest", trouble)
            if trouble != logged:
                logger.error("%s", trouble)
                logged = trouble
        await asyncio.sleep(_RETRY_S)


def finalize_manifest(folder: RunFolder, record: RunRecord, outcome: str, reason: str) -> bool:
    """Write the final manifest unless the worker did; return whether the daemon wrote it.

    Entries of the worker are kept; artifacts in the folder are added. Raise OSError for disk errors that may pass; a
    folder that the worker made unusable is left as it is, so that the run still ends.
    """
    if not folder.root.is_dir():
        return False
    manifest = AnalyticsManifest.find(folder.manifest) or AnalyticsManifest(record.run_id)
    if manifest.finalised_by is not None and manifest.outcome == outcome:
        return False
    tensorboard_dir = manifest.tensorboard_dir
    artifacts = artifacts_of(folder, folder.root / tensorboard_dir if tensorboard_dir else None)
    found = replace(
        manifest,
        run_id=record.run_id,
        worker_type=manifest.worker_type or record.worker_type,
        algo=manifest.algo or record.algo,
        env_id=manifest.env_id or record.env_id,
        seed=manifest.seed if manifest.seed is not None else record.seed,
        outcome=outcome,
        reason=reason,
        tensorboard_dir=artifacts.tensorboard_dir or tensorboard_dir,
        checkpoints=artifacts.checkpoints,
        videos=artifacts.videos,
        policy=manifest.policy or artifacts.policy,
        optuna_db_path=manifest.optuna_db_path or artifacts.optuna_db_path,
        finalised_by="daemon",
    )
    try:
        found.write(folder.manifest)
    except OSError as error:
        if error.errno in _DISK_ERRORS:
            raise
        logger.error("run %s: its manifest cannot be written: %s", record.run_id, error)
        return False
    return True
