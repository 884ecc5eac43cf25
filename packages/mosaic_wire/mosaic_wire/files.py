"""Files shared with other processes: written atomically, and read without trusting them.

A worker can put anything in the place of a file: a pipe without a writer, a link to somewhere else, a device
without an end. Whatever it could have written is opened with `open_plain` and found by `walk`.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

SEAL = "checksum"
"""Key of a JSON object's checksum, because valid JSON may still have a flipped bit"""


MAX_JSON_BYTES = 64 << 20
MAX_JSON_DEPTH = 32
"""Deeper documents are refused, because recursive functions copy, redact and write them"""
_MAX_JSON_CONTAINERS = 1_000_000


class NotAPlainFile(OSError):
    """The path is a link, pipe, device, folder or another user's file."""

    def __init__(self, path: str | Path, what: str) -> None:
        super().__init__(errno.EINVAL, f"it {what}", str(path))


def plain_file(path: str, flags: int, *, dir_fd: int | None = None) -> int:
    """Opener for a file that a worker could have written: no links, plain files only, never waits.

    For writing it must have no second name either: a hard link's other name may lie anywhere.
    """
    return _open_plain(path, flags | os.O_NOFOLLOW, dir_fd=dir_fd)


def open_plain(path: str | Path, mode: str = "rb", *, dir_fd: int | None = None) -> BinaryIO:
    """Open a file that a worker could have written; raise NotAPlainFile for anything else."""
    return cast(BinaryIO, open(path, mode, opener=partial(plain_file, dir_fd=dir_fd)))


def open_below(top: Path, name: str) -> BinaryIO:
    """Open a plain file below a folder for reading; no part of its name may be `..` or a link out of the folder."""
    *folders, last = PurePosixPath(name).parts or ("",)
    if name.startswith("/") or ".." in (*folders, last):
        raise NotAPlainFile(name, "lies outside of the folder")
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    place = os.open(top, flags)
    try:
        for folder in folders:
            try:
                inner = os.open(folder, flags, dir_fd=place)
            except NotADirectoryError:
                raise NotAPlainFile(name, "lies behind a link or a file") from None
            os.close(place)
            place = inner
        return open_plain(last, dir_fd=place)
    finally:
        os.close(place)


def open_chosen(path: str | Path) -> BinaryIO:
    """Open a file that the user may have chosen: links and other owners are allowed."""
    return cast(BinaryIO, open(path, "rb", opener=chosen_file))


def chosen_file(path: str, flags: int) -> int:
    """Opener for a path chosen by the user; anything but a plain file is refused."""
    return _open_plain(path, flags, is_chosen=True)


def _open_plain(path: str, flags: int, *, dir_fd: int | None = None, is_chosen: bool = False) -> int:
    safe = flags & ~os.O_TRUNC | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, safe, 0o600, dir_fd=dir_fd)
    except OSError as error:
        # ENXIO: a pipe without a reader, or a socket
        kinds = {errno.ELOOP: "link", errno.ENXIO: "pipe or socket", errno.EISDIR: "folder"}
        if error.errno not in kinds:
            raise
        raise NotAPlainFile(path, f"is a {kinds[error.errno]}, not a plain file") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            kind = "folder" if stat.S_ISDIR(status.st_mode) else "pipe, socket or device"
            raise NotAPlainFile(path, f"is a {kind}, not a plain file")
        if not is_chosen and status.st_uid != os.geteuid():
            folder = dir_fd if dir_fd is not None else os.path.dirname(path) or "."
            if status.st_uid != os.stat(folder).st_uid:  # root may read the runs of all users
                raise NotAPlainFile(path, f"belongs to user {status.st_uid}")
        if flags & (os.O_WRONLY | os.O_RDWR) and status.st_nlink > 1:
            raise NotAPlainFile(path, "has a second name (a hard link)")
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


Opener = Callable[[str, int], int]


def read_plain_file(path: Path, max_bytes: int = MAX_JSON_BYTES, *, opener: Opener | None = plain_file) -> bytes:
    """Return the content of a file that a worker could have written; raise ValueError when it is too large."""
    with open(path, "rb", opener=opener) as stream:
        data = stream.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"{path} is larger than {max_bytes} bytes")
    return data


def walk(
    top: str | Path,
    *,
    most: int = 20_000,
    depth: int = 64,
    enter: Callable[[os.DirEntry[str]], bool] = lambda entry: True,
    failed: Callable[[OSError], object] = lambda error: None,
) -> Iterator[os.DirEntry[str]]:
    """Yield every entry below a folder, a folder before its content; links are not followed.

    It ends after `most` entries and goes `depth` folders deep; `failed` is called with a folder that cannot be read.
    """
    waiting = [(os.fspath(top), 1)]
    while waiting:
        folder, level = waiting.pop()
        try:
            with os.scandir(folder) as found:
                entries = sorted(islice(found, most), key=lambda entry: entry.name)
        except OSError as error:
            failed(error)
            continue
        most -= len(entries)
        yield from entries
        if level < depth:
            inner = [entry for entry in entries if entry.is_dir(follow_symlinks=False) and enter(entry)]
            waiting += [(entry.path, level + 1) for entry in reversed(inner)]


def size_below(top: str | Path, *, most: int = 1_000_000) -> int:
    """Return the bytes of the files below a folder; unreadable ones do not count."""
    total = 0
    for entry in walk(top, most=most):
        with suppress(OSError):
            total += entry.stat(follow_symlinks=False).st_size if entry.is_file(follow_symlinks=False) else 0
    return total


def fsync_directory(folder: Path) -> None:
    """Make a rename in this folder survive a power failure."""
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
    except BaseException as error:
        # On a full disk, no incomplete temporary file must be left.
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)
        raise
    fsync_directory(path.parent)


def checksum_of(document: Mapping[str, Any]) -> str:
    """Return the checksum of a JSON object without `SEAL`, independent of its spacing."""
    content = {key: value for key, value in document.items() if key != SEAL}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"crc32:{zlib.crc32(text.encode()):08x}"


def unseal(document: dict[str, Any]) -> dict[str, Any]:
    """Return the object without its checksum; raise ValueError when that is wrong. Unsealed objects are accepted."""
    seal = document.get(SEAL)
    if not isinstance(seal, str) or not seal.startswith("crc32:"):
        return document
    if seal != checksum_of(document):
        raise ValueError("its checksum does not fit its content: it was damaged or edited")
    return {key: value for key, value in document.items() if key != SEAL}


def json_bytes(document: Mapping[str, Any], *, sealed: bool = False) -> bytes:
    """Return a JSON object as indented text; `sealed` adds its checksum."""
    if sealed:
        # As a reader sees it, with non-string keys as strings.
        content = json.loads(json.dumps(document, allow_nan=False))
        document = {**content, SEAL: checksum_of(content)}
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    # A lone surrogate (in a file name) becomes its \udcxx escape.
    return text.encode("utf-8", "backslashreplace")


def write_json_atomically(path: Path, document: Mapping[str, Any], *, mode: int = 0o644, sealed: bool = False) -> None:
    """Write a JSON object atomically; `sealed` lets readers detect flipped bits."""
    write_bytes_atomically(path, json_bytes(document, sealed=sealed), mode=mode)


def parse_json(data: bytes | str) -> Any:
    """Return a JSON value; raise ValueError when it is invalid, nested too deep or too large."""
    brackets = ("[", "{") if isinstance(data, str) else (b"[", b"{")
    if sum(map(data.count, brackets)) > _MAX_JSON_CONTAINERS:  # type: ignore[arg-type]
        raise ValueError(f"it holds more than {_MAX_JSON_CONTAINERS} lists and objects")
    try:
        document = json.loads(data)
    except RecursionError:
        document = None
    else:
        level = [document] if isinstance(document, dict | list) else []
        for _ in range(MAX_JSON_DEPTH):
            nested = [value.values() if isinstance(value, dict) else value for value in level]
            level = [item for values in nested for item in values if isinstance(item, dict | list)]
            if not level:
                return document
    raise ValueError(f"it is nested deeper than {MAX_JSON_DEPTH} levels")


def read_json_object(
    path: Path, *, max_bytes: int = MAX_JSON_BYTES, opener: Opener | None = plain_file
) -> dict[str, Any]:
    """Return the JSON object in a file; raise ValueError when it is damaged, too large or not an object.

    `opener=None` for a file of the user's own, which may be a link or a pipe.
    """
    data = read_plain_file(path, max_bytes, opener=opener)
    try:
        document = parse_json(data)
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise ValueError(f"{path} holds {type(document).__name__}, expected a JSON object")
    try:
        return unseal(document)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
