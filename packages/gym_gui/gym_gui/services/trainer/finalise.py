"""The manifest of a run whose worker could not write its last one."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from mosaic_wire.checkpoints import good_checkpoints
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder

from gym_gui.services.trainer.records import RunRecord

logger = logging.getLogger(__name__)

_TRY_AGAIN = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""Errors of the disk, which may be over in a moment"""
_VIDEO_SUFFIXES = (".mp4", ".gif", ".webm")


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
    found = replace(
        manifest,
        run_id=record.run_id,
        worker_type=manifest.worker_type or record.worker_type,
        algo=manifest.algo or record.algo,
        env_id=manifest.env_id or record.env_id,
        seed=manifest.seed if manifest.seed is not None else record.seed,
        outcome=outcome,
        reason=reason,
        tensorboard_dir=manifest.tensorboard_dir or _tensorboard_dir(folder.root),
        checkpoints=tuple(good_checkpoints(folder)),
        videos=_relative(folder.root, (path for path in folder.root.rglob("*") if path.suffix in _VIDEO_SUFFIXES)),
        policy=manifest.policy or next(iter(_relative(folder.root, folder.root.rglob("*.cleanrl_model"))), None),
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


def _relative(root: Path, paths: Iterable[Path]) -> tuple[str, ...]:
    return tuple(sorted(str(path.relative_to(root)) for path in paths if path.is_file()))


def _tensorboard_dir(root: Path) -> str | None:
    events = sorted(root.rglob("events.out.tfevents.*"))
    return str(events[0].parent.relative_to(root)) if events else None
