"""Whether a service on the network can be reached from here; asked before a run depends on it."""

from __future__ import annotations

import socket
import threading
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


def why_unreachable(address: str, *, timeout_s: float = 3.0) -> str | None:
    """Say why nobody answers at this address (http, https or host:port), or None."""
    parts = urlsplit(address if "//" in address else f"//{address}")
    host, port = parts.hostname, parts.port or _PORTS.get(parts.scheme, 443)
    if not host:
        return f"{address!r} is no address"
    answer: list[str | None] = []

    def connect() -> None:
        try:
            socket.create_connection((host, port), timeout=timeout_s).close()
            answer.append(None)
        except OSError as error:
            answer.append(f"{host} cannot be reached ({error.strerror or error})")

    # In a thread, because looking a name up knows no time limit.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(timeout_s + 1)
    return answer[0] if answer else f"{host} did not answer within {timeout_s:g} s"
