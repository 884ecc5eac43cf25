"""The files of a run: measure and remove them without following links."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from mosaic_wire.files import size_below
from mosaic_wire.frames import remove_frames
from mosaic_wire.ids import check_run_id
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import Home

from gym_gui.services.trainer.errors import NotPossibleNow

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def places_of_run(home: Home, run_id: str) -> dict[str, Path]:
    """Return the paths of a run's files and folders, by their name in an archive."""
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
    """Return the bytes of all files of a run."""
    return sum(_size(path) for path in places_of_run(home, run_id).values())


def last_checkpoint_step(home: Home, run_id: str) -> int:
    """Return the highest step of the checkpoints in its manifest, or 0."""
    manifest = AnalyticsManifest.find(home.run_folder(run_id).manifest)
    return max((entry.step for entry in manifest.checkpoints), default=0) if manifest is not None else 0


def delete_run_files(home: Home, run_id: str) -> int:
    """Remove every file of a run and its frames in shared memory; return the bytes freed on the disk.

    Its parts are first renamed, so that a deletion that fails or is cut short leaves no half of a run. It can be asked
    for again: parts that are not there are skipped.
    """
    asides = {place: place.with_name(f".{place.name}.removed") for place in places_of_run(home, run_id).values()}
    freed = 0
    try:
        for place in (*asides, *asides.values()):
            _refuse_mounts(place)
            freed += _size(place)
        for aside in asides.values():
            remove(aside)
        _rename(asides)
        remove_frames(run_id)
        for aside in asides.values():
            remove(aside)
    except OSError as error:
        raise NotPossibleNow(
            f"run {run_id} cannot be deleted: {error.filename or 'its files'}: {error.strerror or error}"
        ) from error
    return freed


def _rename(names: dict[Path, Path]) -> None:
    """Rename all of these that exist, or none."""
    done = []
    try:
        for old, new in names.items():
            with suppress(FileNotFoundError, NotADirectoryError):
                old.rename(new)
                done.append(old)
    except OSError:
        for old in done:
            names[old].rename(old)
        raise


def _refuse_mounts(path: Path) -> None:
    """Raise OSError when something is mounted on the path or below it; device numbers do not show bind mounts."""
    top = os.path.join(os.path.realpath(path.parent), path.name)
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        point = os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), line.split()[4]))
        if point == top or point.startswith(f"{top}/"):
            raise OSError(errno.EBUSY, "something is mounted there; unmount it first", point)


def remove(path: Path) -> None:
    """Remove a file, a link (not its target) or a whole folder, if it exists."""
    try:
        path.unlink()
    except (FileNotFoundError, NotADirectoryError):
        return
    except (IsADirectoryError, PermissionError):
        if not stat.S_ISDIR(path.lstat().st_mode):
            raise
        _refuse_mounts(path)
        path.chmod(0o700)  # a worker may have removed the permissions
        top = os.open(path, _FOLDER)
        try:
            while names := os.listdir(top):
                for name in names:
                    _remove_from(top, name)
        finally:
            os.close(top)
        path.rmdir()


def _remove_from(top: int, name: str) -> None:
    """Remove an entry of a folder; subfolders are first moved up, so that no path becomes too long."""
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
    """Unlink an entry that is not a folder and return True; make a folder accessible otherwise."""
    try:
        if stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
            os.chmod(name, 0o700, dir_fd=folder)
            return False
        os.unlink(name, dir_fd=folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, f"{os.readlink(f'/proc/self/fd/{folder}')}/{name}") from error
    return True


def _size(path: Path) -> int:
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return 0
    if not stat.S_ISDIR(status.st_mode):
        return status.st_size if stat.S_ISREG(status.st_mode) else 0
    return size_below(path)
