"""Everything a run has on disk: how large it is, and how it is removed. Links are never followed."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from mosaic_wire.files import size_below
from mosaic_wire.frames import remove_frames
from mosaic_wire.ids import check_run_id
from mosaic_wire.paths import Home

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


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
        path.unlink()
    except (FileNotFoundError, NotADirectoryError):
        return
    except (IsADirectoryError, PermissionError):
        if not stat.S_ISDIR(path.lstat().st_mode):
            raise
        path.chmod(0o700)  # a worker may have taken its own rights away; the folder is ours all the same
        top = os.open(path, _FOLDER)
        try:
            while names := os.listdir(top):
                for name in names:
                    _remove_from(top, name)
        finally:
            os.close(top)
        path.rmdir()


def _remove_from(top: int, name: str) -> None:
    """Remove a file of a folder, or a folder in it once its own folders were moved up: none lies too deep for that."""
    if _is_unlinked(top, name):
        return
    folder = os.open(name, _FOLDER, dir_fd=top)
    try:
        for inner in os.listdir(folder):
            if not _is_unlinked(folder, inner):
                os.rename(inner, f"{secrets.token_hex(8)}.removed", src_dir_fd=folder, dst_dir_fd=top)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=top)


def _is_unlinked(folder: int, name: str) -> bool:
    """Whether this was no folder, and is gone now; a folder can be opened afterwards."""
    if stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
        os.chmod(name, 0o700, dir_fd=folder)
        return False
    os.unlink(name, dir_fd=folder)
    return True


def _size(path: Path) -> int:
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return 0
    if not stat.S_ISDIR(status.st_mode):
        return status.st_size if stat.S_ISREG(status.st_mode) else 0
    return size_below(path)
