"""How much a folder takes, links not followed. Slow for large ones: for background threads. No Qt."""

from __future__ import annotations

import os
from pathlib import Path


def size_of_folder(top: Path) -> int:
    """Bytes of every file below; what cannot be looked into counts nothing."""
    total, waiting = 0, [str(top)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        total += entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue
    return total
