"""Files that other processes read: written whole or not at all, read with the doubt they deserve."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def fsync_directory(folder: Path) -> None:
    """Make a rename in this folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes_atomically(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write to a temporary name beside `path`, fsync, rename: readers see the old file or the new one."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            os.fchmod(stream.fileno(), mode)
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        # A full disk must not leave a half-written neighbour behind.
        Path(temporary).unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def write_json_atomically(path: Path, document: Mapping[str, Any], *, mode: int = 0o644) -> None:
    """Write a JSON object so that nobody ever reads half of it."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_bytes_atomically(path, text.encode(), mode=mode)


def read_json_object(path: Path, *, max_bytes: int = 64 * 2**20) -> dict[str, Any]:
    """Read a JSON object; ValueError when it is cut, damaged, too large or no object, OSError when unreadable."""
    with path.open("rb") as stream:
        data = stream.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"{path} is larger than {max_bytes} bytes")
    try:
        document = json.loads(data)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise ValueError(f"{path} holds {type(document).__name__}, expected a JSON object")
    return document
