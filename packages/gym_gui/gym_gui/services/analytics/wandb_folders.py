"""The folders that W&B makes inside a run's folder: `wandb/run-<when>-<id>` online, `wandb/offline-run-…` offline.

Its links (`latest-run`, `debug.log`) are passed over: they would show a run twice.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_NAME = re.compile(r"(?P<offline>offline-)?run-(?P<when>\d{8}_\d{6})-(?P<id>.+)")


@dataclass(frozen=True)
class WandbFolder:
    """One run as W&B keeps it; a run of ours that was resumed has several."""

    path: Path
    run_id: str
    when: str
    """YYYYMMDD_HHMMSS, as W&B writes it"""
    is_offline: bool
    is_synced: bool = False
    """`wandb sync` has sent it"""

    @property
    def file(self) -> Path:
        """The transaction log."""
        return self.path / f"run-{self.run_id}.wandb"


def find_wandb_folders(folder: Path) -> tuple[WandbFolder, ...]:
    """Those in a run's `wandb/`, the oldest first; none when there is no such folder."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                matched = _NAME.fullmatch(entry.name)
                if matched and entry.is_dir(follow_symlinks=False):
                    path = Path(entry.path)
                    file = path / f"run-{matched['id']}.wandb"
                    found.append(
                        WandbFolder(
                            path, matched["id"], matched["when"], matched["offline"] is not None,
                            os.path.lexists(f"{file}.synced"),
                        )
                    )  # fmt: skip
    except OSError:
        return ()
    return tuple(sorted(found, key=lambda entry: (entry.when, entry.path.name)))
