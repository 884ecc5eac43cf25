"""The manifest of a run whose worker could not write its last one."""

from __future__ import annotations

import asyncio
import errno
import logging
from dataclasses import replace
from itertools import count

from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder
from mosaic_wire.run_artefacts import artefacts_of

from gym_gui.services.trainer.file_threads import work_on
from gym_gui.services.trainer.records import RunRecord

logger = logging.getLogger(__name__)

_TRY_AGAIN = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""Errors of the disk, which may be over in a moment"""
_TRY_AGAIN_S = 1.0
_MOST_FAILURES, _MOST_DISK_FAILURES = 5, 600


async def finalise(folder: RunFolder, record: RunRecord, outcome: str, reason: str) -> None:
    """Write the final manifest as soon as the disk takes it; at last a run ends without one."""
    told = ""
    for attempt in count(1):
        try:
            await work_on(finalise_manifest, folder, record, outcome, reason)
            return
        except Exception as error:
            # The boundary of a run: whatever its folder holds, it ends.
            is_the_disk = isinstance(error, OSError) and error.errno in _TRY_AGAIN
            if attempt >= (_MOST_DISK_FAILURES if is_the_disk else _MOST_FAILURES):
                logger.exception("run %s ends without a final manifest", record.run_id)
                return
            if str(error) != told:
                logger.error("run %s: its manifest cannot be written, trying again: %s", record.run_id, error)
                told = str(error)
        await asyncio.sleep(_TRY_AGAIN_S)


def finalise_manifest(folder: RunFolder, record: RunRecord, outcome: str, reason: str) -> bool:
    """Write the final manifest unless the worker did; True when the daemon had to.

    Whatever the worker had said stays; what lies in the folder is added. OSError when the disk does not take it now;
    a folder that the worker made unusable is left as it is: no run stays unfinished for it.
    """
    if not folder.root.is_dir():
        return False
    try:
        manifest = AnalyticsManifest.read(folder.manifest)
    except (OSError, ValueError):
        manifest = AnalyticsManifest(record.run_id)
    if manifest.finalised_by is not None and manifest.outcome == outcome:
        return False
    told = manifest.tensorboard_dir
    left = artefacts_of(folder, folder.root / told if told else None)
    found = replace(
        manifest,
        run_id=record.run_id,
        worker_type=manifest.worker_type or record.worker_type,
        algo=manifest.algo or record.algo,
        env_id=manifest.env_id or record.env_id,
        seed=manifest.seed if manifest.seed is not None else record.seed,
        outcome=outcome,
        reason=reason,
        tensorboard_dir=left.tensorboard_dir or told,
        checkpoints=left.checkpoints,
        videos=left.videos,
        policy=manifest.policy or left.policy,
        optuna_db_path=manifest.optuna_db_path or left.optuna_db_path,
        finalised_by="daemon",
    )
    try:
        found.write(folder.manifest)
    except OSError as error:
        if error.errno in _TRY_AGAIN:
            raise
        logger.error("run %s: its manifest cannot be written: %s", record.run_id, error)
        return False
    return True
