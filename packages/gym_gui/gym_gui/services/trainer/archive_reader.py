"""Read an untrusted `.tar.gz` member by member.

Python's tarfile reads extended headers of any size into memory and knows links, devices and sparse files.
An archive of a run needs none of that, so this reader takes the few header kinds that `archives.export_archive` writes.
"""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gym_gui.services.trainer.errors import ArchiveRefused

_BLOCK = tarfile.BLOCKSIZE
_PIECE = 1 << 20
_MAX_EXTENDED_HEADER = 64 * 1024
_MAX_NAME_BYTES = 1024
_MAX_PART_BYTES = 255
_HARMLESS = frozenset({"mtime", "atime", "ctime", "uid", "gid", "uname", "gname", "comment"})
_KINDS = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a named pipe",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\\]")


@dataclass(frozen=True)
class ArchiveLimits:
    """Limits of an archive; `export_archive` stays far below the ratio."""

    members: int = 200_000
    member_bytes: int = 64 << 30
    total_bytes: int = 256 << 30
    ratio: int = 300
    """Unpacked to packed size. gzip reaches 1030 for zeros, but the level that exports use at most 230"""
    ratio_from_bytes: int = 32 << 20
    """The ratio is not checked below this size"""


@dataclass(frozen=True)
class Member:
    """A file or folder of an archive with a checked name."""

    name: str
    is_folder: bool
    size: int


def problem_with_name(name: str) -> str | None:
    """Return why a member must not have this name, or None."""
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        return "its name is not valid Unicode"
    if not name or len(encoded) > _MAX_NAME_BYTES:
        return "its name is empty or too long"
    if name.startswith("/"):
        return "its path is absolute"
    if _UNPRINTABLE.search(name):
        return "its name contains a backslash or a control character"
    parts = name.split("/")
    if ".." in parts:
        return "its path leaves the archive ('..')"
    if any(part in ("", ".") or len(part.encode()) > _MAX_PART_BYTES for part in parts):
        return "its path has an empty, '.' or over-long part"
    return None


class ArchiveReader:
    """`for member in reader.members(): … reader.content(member)`; anything suspicious raises ArchiveRefused."""

    def __init__(self, packed: BinaryIO, limits: ArchiveLimits) -> None:
        self._packed, self._limits = packed, limits
        self._unpacked = gzip.GzipFile(fileobj=packed, mode="rb")
        self._count = 0
        self._left = 0
        self._padding = 0

    def members(self) -> Iterator[Member]:
        """Yield the members in order; content that the caller does not read is skipped."""
        seen: set[str] = set()
        while (member := self._next()) is not None:
            if member.name in seen:
                raise ArchiveRefused(f"{member.name!r} is in the archive twice")
            seen.add(member.name)
            if len(seen) > self._limits.members:
                raise ArchiveRefused(f"the archive contains more than {self._limits.members} members")
            yield member
            self._skip_the_rest()
        self._expect_nothing_more()

    def content(self, member: Member) -> Iterator[bytes]:
        """Yield the content of the current member in pieces."""
        while self._left:
            data = self._exactly(min(self._left, _PIECE), f"inside {member.name!r}")
            self._left -= len(data)
            yield data

    def _next(self) -> Member | None:
        extended: dict[str, str] = {}
        header = self._header()
        while header is not None and header.type == tarfile.XHDTYPE:
            if extended:
                raise ArchiveRefused("the archive has an extended header for an extended header")
            extended = self._extended(header)
            header = self._header()
        if header is None:
            if extended:
                raise ArchiveRefused("the archive ends after an extended header")
            return None
        name = extended.get("path", header.name)
        is_folder = header.type == tarfile.DIRTYPE
        if header.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE):
            kind = _KINDS.get(header.type, f"of an unknown kind {header.type!r}")
            raise ArchiveRefused(f"{name[:200]!r} is {kind}; only files and folders are imported")
        if is_folder:
            name = name.rstrip("/")
        if (wrong := problem_with_name(name)) is not None:
            raise ArchiveRefused(f"{name[:200]!r} is refused: {wrong}")
        return self._begin(name, is_folder, header.size, extended.get("size"))

    def _begin(self, name: str, is_folder: bool, size: int, stated_size: str | None) -> Member:
        if stated_size is not None:
            if not re.fullmatch(r"\d{1,18}", stated_size, re.ASCII):
                raise ArchiveRefused(f"{name!r} has an impossible size")
            size = int(stated_size)
        if size < 0 or (is_folder and size):
            raise ArchiveRefused(f"{name!r} has an impossible size")
        if size > self._limits.member_bytes:
            raise ArchiveRefused(f"{name!r} is larger than {self._limits.member_bytes} bytes")
        self._left, self._padding = size, -size % _BLOCK
        return Member(name, is_folder, size)

    def _skip_the_rest(self) -> None:
        while self._left:
            self._left -= len(self._exactly(min(self._left, _PIECE), "inside a member"))
        self._exactly(self._padding, "between two members")
        self._padding = 0

    def _header(self) -> tarfile.TarInfo | None:
        block = self._exactly(_BLOCK, "at a header")
        try:
            return tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        except UnicodeDecodeError:
            raise ArchiveRefused("a member's name is not UTF-8") from None
        except tarfile.HeaderError as error:
            if block.count(0) == _BLOCK:
                return None  # the end mark
            raise ArchiveRefused(f"a header is damaged: {error}") from None

    def _extended(self, header: tarfile.TarInfo) -> dict[str, str]:
        if not 0 < header.size <= _MAX_EXTENDED_HEADER:
            raise ArchiveRefused(f"an extended header has {header.size} bytes, more than {_MAX_EXTENDED_HEADER}")
        data = self._exactly(header.size, "in an extended header")
        self._exactly(-header.size % _BLOCK, "after an extended header")
        extended: dict[str, str] = {}
        while data:
            digits = data.partition(b" ")[0]
            if not re.fullmatch(rb"\d{1,5}", digits) or not len(digits) + 2 < int(digits) <= len(data):
                raise ArchiveRefused("an extended header is damaged")
            length = int(digits)
            record, data = data[len(digits) + 1 : length], data[length:]
            key, equals, value = record.removesuffix(b"\n").partition(b"=")
            try:
                name, text = key.decode("ascii"), value.decode()
            except UnicodeDecodeError:
                raise ArchiveRefused("an extended header is damaged") from None
            if not equals or not record.endswith(b"\n") or name in extended:
                raise ArchiveRefused("an extended header is damaged")
            if name not in ("path", "size") and name not in _HARMLESS:
                raise ArchiveRefused(f"an extended header contains {name[:60]!r}, which no run needs")
            extended[name] = text
        return extended

    def _expect_nothing_more(self) -> None:
        while data := self._some(_PIECE):
            if data.count(0) != len(data):
                raise ArchiveRefused("the archive contains data after its end")

    def _exactly(self, size: int, where: str) -> bytes:
        pieces = io.BytesIO()
        while (missing := size - pieces.tell()) > 0:
            data = self._some(missing)
            if not data:
                raise ArchiveRefused(f"the archive is truncated {where}")
            pieces.write(data)
        return pieces.getvalue()

    def _some(self, size: int) -> bytes:
        try:
            data = self._unpacked.read(min(size, _PIECE))
        except EOFError:
            raise ArchiveRefused("the archive is truncated") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise ArchiveRefused(f"the archive is not a valid .tar.gz: {error}") from None
        self._count += len(data)
        if self._count > self._limits.total_bytes:
            raise ArchiveRefused(f"the archive unpacks to more than {self._limits.total_bytes} bytes")
        packed = max(self._packed.tell(), 1)
        if self._count > self._limits.ratio_from_bytes and self._count > self._limits.ratio * packed:
            raise ArchiveRefused(f"the archive unpacks to more than {self._limits.ratio} times its size: a zip bomb")
        return data


def open_archive(path: Path) -> BinaryIO:
    """Open an archive for `ArchiveReader`; raise ArchiveRefused when it cannot be read."""
    try:
        return path.open("rb")
    except OSError as error:
        raise ArchiveRefused(f"{path} cannot be read: {error.strerror}") from error
