"""Files that other processes read: written whole or not at all, read with the doubt they deserve."""

from __future__ import annotations

import json
import os
import secrets
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SEAL = "checksum"
"""Key of a JSON object's own checksum: valid JSON with a flipped bit is still damaged."""


def fsync_directory(folder: Path) -> None:
    """Make a rename in this folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes_atomically(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write to a temporary name beside `path`, fsync, rename: readers see the old file or the new one."""
    temporary = path.parent / f".{path.name}.{secrets.token_hex(6)}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            os.fchmod(stream.fileno(), mode)
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        # A full disk must not leave a half-written neighbour behind.
        temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def checksum_of(document: Mapping[str, Any]) -> str:
    """Checksum of a JSON object's meaning, whatever its spacing; `SEAL` itself is left out."""
    content = {key: value for key, value in document.items() if key != SEAL}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"crc32:{zlib.crc32(text.encode()):08x}"


def unseal(document: dict[str, Any]) -> dict[str, Any]:
    """Return the object without its checksum; raise ValueError when that does not fit. Unsealed objects pass."""
    seal = document.get(SEAL)
    if not isinstance(seal, str) or not seal.startswith("crc32:"):
        return document
    if seal != checksum_of(document):
        raise ValueError("its checksum does not fit its content: it was damaged or edited")
    return {key: value for key, value in document.items() if key != SEAL}


def json_bytes(document: Mapping[str, Any], *, sealed: bool = False) -> bytes:
    """A JSON object as people can read it; `sealed` adds its checksum."""
    if sealed:
        # What a reader will see: non-string keys are strings by then.
        content = json.loads(json.dumps(document, allow_nan=False))
        document = {**content, SEAL: checksum_of(content)}
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    # A lone surrogate (an odd file name) becomes its \udcxx escape, which is what JSON calls it.
    return text.encode("utf-8", "backslashreplace")


def write_json_atomically(path: Path, document: Mapping[str, Any], *, mode: int = 0o644, sealed: bool = False) -> None:
    """Write a JSON object so that nobody ever reads half of it; `sealed` lets readers notice flipped bits too."""
    write_bytes_atomically(path, json_bytes(document, sealed=sealed), mode=mode)


def read_json_object(path: Path, *, max_bytes: int = 64 * 2**20) -> dict[str, Any]:
    """Read a JSON object; ValueError when it is cut, damaged, too large or no object, OSError when unreadable."""
    with path.open("rb") as stream:
        data = stream.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"{path} is larger than {max_bytes} bytes")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise ValueError(f"{path} holds {type(document).__name__}, expected a JSON object")
    try:
        return unseal(document)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from error
