"""Everything a run has on disk: how large it is, and how it is removed. Links are never followed."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from mosaic_wire.frames import remove_frames
from mosaic_wire.ids import check_run_id
from mosaic_wire.paths import Home


def places_of_run(home: Home, run_id: str) -> dict[str, Path]:
    """Where the parts of a run lie, by their name in an archive."""
    check_run_id(run_id)
    return {
        "run": home.run_folder(run_id).root,
        "logs": home.run_logs(run_id),
        "evals": home.evaluation_folder(run_id),
        "scripts": home.custom_scripts / run_id,
        "config/config.json": home.config_file(run_id),
        "config/worker.json": home.worker_config_file(run_id),
    }


def size_of_run(home: Home, run_id: str) -> int:
    """Bytes of all files of a run; what is missing counts nothing."""
    return sum(_size(path) for path in places_of_run(home, run_id).values())


def delete_run_files(home: Home, run_id: str) -> int:
    """Remove every file of a run and its frames in shared memory; return the bytes that became free on the disk.

    Parts that are not there are skipped, so a deletion that was cut short can be asked for again.
    """
    remove_frames(run_id)
    freed = 0
    for place in places_of_run(home, run_id).values():
        size = _size(place)
        remove(place)
        freed += size
    return freed


def remove(path: Path) -> None:
    """Remove a file, a link (never what it points to) or a whole folder; nothing happens when it is not there."""
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if not stat.S_ISDIR(mode):
        path.unlink(missing_ok=True)
        return
    for folder in _folders(path):
        # A worker may have taken its own rights away; the folder is ours all the same.
        if stat.S_IMODE(folder.lstat().st_mode) & 0o700 != 0o700:
            folder.chmod(0o700)
    shutil.rmtree(path)


def _size(path: Path) -> int:
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return 0
    if stat.S_ISREG(status.st_mode):
        return status.st_size
    if not stat.S_ISDIR(status.st_mode):
        return 0
    total = 0
    for folder in _folders(path):
        try:
            with os.scandir(folder) as entries:
                total += sum(e.stat(follow_symlinks=False).st_size for e in entries if e.is_file(follow_symlinks=False))
        except (FileNotFoundError, PermissionError):
            continue  # a worker that still writes, or one that closed a folder
    return total


def _folders(top: Path) -> Iterator[Path]:
    """The folder and every folder below it, each told before it is looked into."""
    waiting = [top]
    while waiting:
        folder = waiting.pop()
        yield folder
        try:
            with os.scandir(folder) as entries:
                waiting += [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
        except (FileNotFoundError, PermissionError):
            continue
