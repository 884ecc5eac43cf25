"""A socket on the node that leads to the daemon over TLS: workers connect to it as they would to the daemon's own."""

from __future__ import annotations

import asyncio
import ssl
import threading
from contextlib import suppress
from pathlib import Path

from mosaic_wire.errors import SessionError
from mosaic_wire.node import Bootstrap

_CHUNK_BYTES = 64 * 1024
_CONNECT_S = 10.0


class TlsRelay:
    """Relays connections to a unix socket in a private folder; runs in a thread of its own."""

    def __init__(self, bootstrap: Bootstrap, socket: Path) -> None:
        self._bootstrap, self._socket = bootstrap, socket
        try:
            self._tls = ssl.create_default_context(cadata=bootstrap.authority)
        except (ssl.SSLError, ValueError) as error:
            raise SessionError(f"the authority in the bootstrap is not a certificate: {error}") from None
        self._tls.set_alpn_protocols(["h2"])
        self._relays: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="mosaic-relay", daemon=True)
        self._ready = threading.Event()
        self.problem = ""
        """Why the last connection failed; empty after one that did not"""
        self.is_distrusted = False
        """Whether the certificate was refused, which does not pass by itself"""

    def start(self) -> None:
        """Listen on the socket."""
        self._loop = asyncio.new_event_loop()
        self._thread.start()
        self._ready.wait()
        if self.problem:
            raise SessionError(f"the socket {self._socket} cannot be made: {self.problem}")

    def close(self) -> None:
        """End all connections and the thread."""
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        try:
            server = self._loop.run_until_complete(asyncio.start_unix_server(self._accept, self._socket))
        except OSError as error:
            self.problem = str(error)
            self._loop.close()
            return
        finally:
            self._ready.set()
        self._loop.run_forever()
        server.close()
        for relay in self._relays:
            relay.cancel()
        self._loop.run_until_complete(asyncio.gather(*self._relays, return_exceptions=True))
        self._loop.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relay = asyncio.current_task()
        assert relay is not None
        self._relays.add(relay)
        try:
            # A broken link is what callers see as a daemon that is away; they retry.
            with suppress(OSError, TimeoutError, asyncio.CancelledError):
                await self._relay(reader, writer)
        finally:
            self._relays.discard(relay)
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_CONNECT_S):
                there, outward = await asyncio.open_connection(
                    self._bootstrap.host, self._bootstrap.port, ssl=self._tls, limit=_CHUNK_BYTES
                )
        except (OSError, TimeoutError) as error:
            self.problem, self.is_distrusted = _reason(error), isinstance(error, ssl.SSLCertVerificationError)
            raise
        self.problem = ""
        pumps = [asyncio.create_task(_pump(reader, outward)), asyncio.create_task(_pump(there, writer))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            outward.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, TimeoutError):
        return "it does not answer"
    if isinstance(error, ssl.SSLError):
        return f"no TLS connection: {error.reason or error}"
    return getattr(error, "strerror", None) or str(error)
