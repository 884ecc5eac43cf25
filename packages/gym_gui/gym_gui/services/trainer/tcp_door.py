"""TCP for clients: connections are limited per peer and relayed to the daemon's unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import socket
import ssl
import stat
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from gym_gui.services.trainer.errors import ListenFailed

logger = logging.getLogger(__name__)

DEFAULT_PORT = 50055
SOON_DAYS = 14
"""A certificate that expires within this time is reported"""
LOOPBACK = "127.0.0.1"

_GREETING_S = 10.0
"""A connection that sends nothing for this long after its start is closed"""
_LOG_EVERY_S = 60.0
_CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True)
class Listening:
    """Where the daemon listens in addition to its unix socket."""

    host: str = LOOPBACK
    port: int | None = None
    """None: 50055, or any free port when that one is busy"""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    """The authority that signed the certificate, where clients trust that instead of the certificate itself"""
    port_setting: str = "--port"
    name: str = ""
    """The name or address by which other machines know this one; empty: `host`, or the machine's name"""

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False

    def known_as(self, bound: str) -> str:
        """Return the address that other machines connect to, for the one that was bound."""
        host, _, port = bound.rpartition(":")
        name = self.name or (socket.gethostname() if host in ("0.0.0.0", "[::]") else host)
        name = name.strip("[]")
        return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"

    def check(self) -> None:
        """Raise ListenFailed for unsafe options."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ListenFailed("TLS needs both a certificate and a key: --tls-cert FILE --tls-key FILE")
        if not self.is_loopback and self.tls_cert is None:
            raise ListenFailed(
                f"listening on {self.host!r} without TLS would expose this machine to the network; give --tls-cert and "
                "--tls-key, or listen on 127.0.0.1 and use an SSH tunnel"
            )

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context, or None without a certificate."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        context, expires_at = load_tls(self.tls_cert, self.tls_key, self.tls_ca)
        if (days := (expires_at - time.time()) / 86_400) < SOON_DAYS:
            logger.warning("the TLS certificate %s expires in %.0f days; clients then refuse it", self.tls_cert, days)
        return context


def load_tls(certificate: Path, key: Path, authority: Path | None = None) -> tuple[ssl.SSLContext, float]:
    """Return the server's TLS context and when its certificate expires; raise ListenFailed when it cannot be used."""
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.set_alpn_protocols(["h2"])
        # The empty password keeps OpenSSL from asking for one.
        context.load_cert_chain(certificate, key, password="")
        is_readable = key.stat().st_mode & stat.S_IRWXO
        expires_at = _expiry_of(context, authority or certificate)
    except OSError as error:
        reason = getattr(error, "verify_message", "") or error.strerror or str(error)
        raise ListenFailed(f"the TLS certificate {certificate} and its key {key} cannot be used: {reason}") from error
    if is_readable:
        raise ListenFailed(f"other users can read the TLS key {key}; run `chmod 600` on it, or create a new one")
    return context, expires_at


def _expiry_of(server: ssl.SSLContext, trusted: Path) -> float:
    """Return until when clients that trust this file accept the certificate; raise SSLCertVerificationError otherwise.

    The standard library shows the dates of a certificate only to the peer of a handshake, so this makes one.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # it need not be a CA's
    client.load_verify_locations(trusted)
    inward, outward = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = client.wrap_bio(outward, inward), server.wrap_bio(inward, outward, server_side=True)
    for side in sides * 3:
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return ssl.cert_time_to_seconds(str((sides[0].getpeercert() or {})["notAfter"]))


class TcpRelay:
    """Relays TCP connections to a unix socket; at most `limit` in all and `limit_per_peer` from one address."""

    def __init__(self, inside: Path, *, limit: int, limit_per_peer: int) -> None:
        self._inside, self._limit, self._limit_per_peer = inside, limit, limit_per_peer
        self._peers: Counter[str] = Counter()
        self._server: asyncio.Server | None = None
        self._relays: set[asyncio.Task[None]] = set()
        self._logged_at = float("-inf")

    async def bind(self, listening: Listening) -> str:
        """Bind the port without accepting connections yet; return the address."""
        host = LOOPBACK if listening.host == "localhost" else listening.host.strip("[]")
        tls = listening.tls()
        ports = [listening.port] if listening.port is not None else [DEFAULT_PORT, 0]
        for port in ports:
            try:
                self._server = await asyncio.start_server(
                    self._accept,
                    host,
                    port,
                    ssl=tls,
                    ssl_handshake_timeout=_GREETING_S if tls else None,
                    limit=_CHUNK_BYTES,
                    start_serving=False,
                )
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL):
                    raise ListenFailed(f"cannot listen on {listening.host!r}: {error.strerror or error}") from error
                continue
            bound = self._server.sockets[0].getsockname()[1]
            return f"[{host}]:{bound}" if ":" in host else f"{host}:{bound}"
        raise ListenFailed(
            f"{listening.host}:{listening.port} is busy or not an address of this machine; "
            f"choose another with {listening.port_setting}, or leave it out for a free one"
        )

    async def open(self) -> None:
        """Start to accept connections."""
        if self._server is not None:
            await self._server.start_serving()

    def close(self) -> None:
        """Accept no more connections and end those that are open."""
        if self._server is not None:
            self._server.close()
        for relay in self._relays:
            relay.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relay = asyncio.current_task()
        assert relay is not None
        peer = str(writer.get_extra_info("peername", ("?",))[0])
        if self._peers.total() >= self._limit or self._peers[peer] >= self._limit_per_peer:
            self._log_refusal(peer)
            writer.transport.abort()
            return
        self._peers[peer] += 1
        self._relays.add(relay)
        try:
            # Errors of a connection must not affect others.
            with contextlib.suppress(OSError, TimeoutError, asyncio.CancelledError):
                await self._relay(reader, writer)
        finally:
            self._relays.discard(relay)
            self._peers[peer] -= 1
            self._peers += Counter()  # drops peers that have none left
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_GREETING_S):
            greeting = await reader.read(_CHUNK_BYTES)
        if not greeting:
            return
        inner_reader, inner_writer = await asyncio.open_unix_connection(self._inside, limit=_CHUNK_BYTES)
        inward = asyncio.create_task(_pump(reader, inner_writer))
        try:
            inner_writer.write(greeting)
            await _pump(inner_reader, writer)  # ends when the daemon closes the connection, as it does after the peer
            with contextlib.suppress(OSError):
                writer.close()
                await writer.wait_closed()
        finally:
            inward.cancel()
            inner_writer.transport.abort()

    def _log_refusal(self, peer: str) -> None:
        if time.monotonic() - self._logged_at > _LOG_EVERY_S:
            self._logged_at = time.monotonic()
            text = "refused a TCP connection from %s: %d are open, %d of them from there; at most %d and %d"
            logger.warning(text, peer, self._peers.total(), self._peers[peer], self._limit, self._limit_per_peer)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
