"""Whether Weights & Biases can be reached, straight or through a proxy; and which proxy is meant by default. No Qt.

`probe` waits for the network: call it off the window's thread.
"""

from __future__ import annotations

import base64
import os
import socket
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mosaic_wire import env
from mosaic_wire.redaction import redact_text

WANDB_ADDRESS = "https://api.wandb.ai"
HTTP_NAMES = (env.WANDB_VPN_HTTP_PROXY, env.WANDB_HTTP_PROXY, "HTTP_PROXY", "http_proxy")
HTTPS_NAMES = (env.WANDB_VPN_HTTPS_PROXY, env.WANDB_HTTPS_PROXY, "HTTPS_PROXY", "https_proxy")
"""The variables a proxy may stand in; the first that holds one counts"""

_PORTS = {"http": 80, "https": 443}
_MOST_BYTES = 64 * 1024


@dataclass(frozen=True)
class Fallback:
    """A proxy that is used when the field is empty."""

    value: str = ""
    origin: str = ""
    """The variable, and the file where it stands in one"""

    @property
    def shown(self) -> str:
        """For people: without a password in it."""
        return f"{redact_text(self.value)} ({self.origin})" if self.value else ""


def fallback(names: Iterable[str], folders: Iterable[Path], environ: Mapping[str, str] | None = None) -> Fallback:
    """The first of these variables that is set, in the environment or in a `.env` of these folders."""
    variables = os.environ if environ is None else environ
    files = [(file, read_dotenv(file)) for file in dict.fromkeys(folder / ".env" for folder in folders)]
    for name in names:
        if variables.get(name):
            return Fallback(variables[name], name)
        for file, values in files:
            if values.get(name):
                return Fallback(values[name], f"{name}, {file}")
    return Fallback()


def read_dotenv(file: Path) -> dict[str, str]:
    """`NAME=value` lines; comments, `export` and quotes as people write them. Nothing when there is no such file."""
    try:
        with file.open(encoding="utf-8", errors="replace") as stream:
            text = stream.read(_MOST_BYTES)
    except OSError:
        return {}
    found = {}
    for line in text.splitlines():
        name, separator, value = line.strip().removeprefix("export ").partition("=")
        if not separator or name.startswith("#") or not name.strip().isidentifier():
            continue
        value = value.strip()
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        else:
            value = value.partition(" #")[0].strip()
        found[name.strip()] = value
    return found


def probe(address: str = WANDB_ADDRESS, *, proxy: str = "", timeout_s: float = 5.0) -> str:
    """Try to reach an address; what is in the way, or nothing."""
    target = urlsplit(address)
    host, port = target.hostname or "", target.port or _PORTS.get(target.scheme, 443)
    try:
        if not proxy:
            with socket.create_connection((host, port), timeout=timeout_s) as connection:
                return _tls_problem(connection, host) if target.scheme == "https" else ""
        return _through(proxy, host, port, timeout_s)
    except TimeoutError:
        return f"{redact_text(proxy) or host} did not answer within {timeout_s:g} s"
    except (OSError, ValueError) as error:
        return f"{redact_text(proxy) or host} cannot be reached ({getattr(error, 'strerror', None) or error})"


def _tls_problem(connection: socket.socket, host: str) -> str:
    try:
        with ssl.create_default_context().wrap_socket(connection, server_hostname=host):
            return ""
    except ssl.SSLError as error:
        return f"{host} answered, but its certificate is not accepted ({error.reason or error})"


def _through(proxy: str, host: str, port: int, timeout_s: float) -> str:
    """Ask the proxy for a tunnel, as W&B's client would."""
    parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if not parts.hostname:
        return f"{redact_text(proxy)!r} is no address of a proxy; write http://host:port"
    lines = [f"CONNECT {host}:{port} HTTP/1.1", f"Host: {host}:{port}"]
    if parts.username:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        lines.append(f"Proxy-Authorization: Basic {base64.b64encode(login.encode()).decode()}")
    with socket.create_connection((parts.hostname, parts.port or 3128), timeout=timeout_s) as connection:
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        answer = connection.recv(4096).decode("latin-1").splitlines()
    status = answer[0].split(None, 2) if answer else []
    if len(status) < 2 or not status[0].startswith("HTTP/"):
        return f"{parts.hostname} is no HTTP proxy"
    if status[1] == "200":
        return ""
    words = status[2] if len(status) > 2 else ""
    return f"the proxy {parts.hostname} refused the way to {host}: {status[1]} {words}".strip()
