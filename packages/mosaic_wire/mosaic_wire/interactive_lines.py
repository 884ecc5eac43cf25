"""Where the lines of an interactive run come from: two descriptors, or whoever connects to a unix socket."""

from __future__ import annotations

import hashlib
import json
import os
import selectors
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from mosaic_wire.paths import RunFolder, make_private_folder

_READ_BYTES = 65536
_LONGEST_SOCKET_PATH = 100
"""The kernel takes 107 bytes"""


def socket_of(folder: RunFolder) -> Path:
    """Where the run listens; short enough for the kernel even when the run folder is not."""
    inside = folder.root / "interactive.sock"
    if len(os.fsencode(inside)) <= _LONGEST_SOCKET_PATH:
        return inside
    import tempfile  # rarely needed, and not cheap

    private = Path(tempfile.gettempdir()) / f"mosaic-{os.getuid()}"
    make_private_folder(private)
    return private / f"{hashlib.sha256(os.fsencode(folder.root)).hexdigest()[:16]}.sock"


class LineEnd(Protocol):
    """The other end."""

    def send(self, message: Mapping[str, Any]) -> None: ...

    def lines(self, timeout_s: float, longest: int) -> Iterator[bytes | None]:
        """Whole lines that came within this time; None: somebody new is at the other end and wants to be greeted.

        A line that is too long comes cut, one byte longer than allowed; the rest of it is dropped.
        """

    @property
    def is_over(self) -> bool:
        """True when nobody can say anything any more."""

    def close(self) -> None: ...


class _Lines:
    """Bytes to lines, with bounded memory."""

    def __init__(self) -> None:
        self._unread = b""
        self._skipping = False

    def feed(self, data: bytes, longest: int) -> Iterator[bytes]:
        *whole, rest = (self._unread + data).split(b"\n")
        self._unread = rest
        for line in whole:
            if self._skipping:
                self._skipping = False  # the end of a line that was told about already
                continue
            yield line[: longest + 1]
        if len(self._unread) > longest:
            if not self._skipping:
                yield self._unread[: longest + 1]
            self._skipping, self._unread = True, b""


class Descriptors:
    """Standard input and output, handed over by the worker."""

    def __init__(self, input_fd: int, output_fd: int) -> None:
        self._input, self._output = input_fd, output_fd
        self._lines = _Lines()
        self._greeted = self._ended = False
        self._selector = selectors.DefaultSelector()
        try:
            self._selector.register(input_fd, selectors.EVENT_READ)
        except PermissionError:  # a plain file is always ready
            self._selector.close()
            self._selector = None  # type: ignore[assignment]

    def send(self, message: Mapping[str, Any]) -> None:
        data = _encode(message)
        try:
            while data:
                data = data[os.write(self._output, data) :]
        except BrokenPipeError:
            self._ended = True

    def lines(self, timeout_s: float, longest: int) -> Iterator[bytes | None]:
        if not self._greeted:
            self._greeted = True
            yield None
        if self._selector is not None and not self._selector.select(timeout_s):
            return
        data = os.read(self._input, _READ_BYTES)
        if not data:
            self._ended = True
            yield from self._lines.feed(b"\n", longest)  # a last line without its end
            return
        yield from self._lines.feed(data, longest)

    @property
    def is_over(self) -> bool:
        return self._ended

    def close(self) -> None:
        if self._selector is not None:
            self._selector.close()


class SocketServer:
    """One client at a time; when it leaves, the next may come and go on where the environment stands."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.unlink(missing_ok=True)
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        earlier = os.umask(0o177)  # the file is this user's alone from its first moment
        try:
            self._server.bind(str(path))
        finally:
            os.umask(earlier)
        self._server.listen(1)
        self._client: socket.socket | None = None
        self._lines = _Lines()

    def send(self, message: Mapping[str, Any]) -> None:
        if self._client is not None:
            try:
                self._client.sendall(_encode(message))
            except OSError:
                self._leave()

    def lines(self, timeout_s: float, longest: int) -> Iterator[bytes | None]:
        if self._client is None:
            self._server.settimeout(timeout_s)
            try:
                self._client, _ = self._server.accept()
            except TimeoutError:
                return
            self._lines = _Lines()
            yield None
            return
        self._client.settimeout(timeout_s)
        try:
            data = self._client.recv(_READ_BYTES)
        except TimeoutError:
            return
        except OSError:
            data = b""
        finally:
            if self._client is not None:
                self._client.settimeout(None)
        if not data:
            self._leave()
            return
        yield from self._lines.feed(data, longest)

    def _leave(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    @property
    def has_client(self) -> bool:
        """Whether somebody is connected."""
        return self._client is not None

    @property
    def is_over(self) -> bool:
        return False

    def close(self) -> None:
        self._leave()
        self._server.close()
        self._path.unlink(missing_ok=True)


def _encode(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode() + b"\n"
