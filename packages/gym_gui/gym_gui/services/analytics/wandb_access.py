"""Access to W&B: its address, the key and its source, the proxies. No Qt, no W&B package.

Asking the network or the keyring takes time: not for the window's thread.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import netrc
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from mosaic_wire import env
from mosaic_wire.paths import Home
from mosaic_wire.redaction import redact_text, spellings_of

from gym_gui.services.analytics.wandb_file import WandbFolder
from gym_gui.services.analytics.web_servers import has_package
from gym_gui.services.user_secrets import WANDB_API_KEY, UserSecrets

WANDB_ADDRESS = "https://api.wandb.ai"
HTTP_NAMES = (env.WANDB_VPN_HTTP_PROXY, env.WANDB_HTTP_PROXY, "HTTP_PROXY", "http_proxy")
HTTPS_NAMES = (env.WANDB_VPN_HTTPS_PROXY, env.WANDB_HTTPS_PROXY, "HTTPS_PROXY", "https_proxy")
"""The variables a proxy may stand in; the first that holds one counts"""

_PORTS = {"http": 80, "https": 443}
_MOST_DOTENV_BYTES = 64 * 1024
_PROBE_S = 5.0


@dataclass(frozen=True)
class Fallback:
    """A proxy that is used when the field is empty."""

    value: str = ""
    origin: str = ""
    """The variable, and the file where it stands in one"""

    @property
    def shown(self) -> str:
        """Return it without its password."""
        return f"{redact_text(self.value)} ({self.origin})" if self.value else ""


def fallback(names: Iterable[str], folders: Iterable[Path], environ: Mapping[str, str] | None = None) -> Fallback:
    """Return the first of these variables that is set, in the environment or in a `.env` of these folders."""
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
            text = stream.read(_MOST_DOTENV_BYTES)
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


def probe(address: str = WANDB_ADDRESS, *, proxy: str = "") -> str:
    """Try to reach an address; what is in the way, or nothing."""
    target = urlsplit(address)
    host, port = target.hostname or "", target.port or _PORTS.get(target.scheme, 443)
    try:
        if not proxy:
            with socket.create_connection((host, port), timeout=_PROBE_S) as connection:
                return _tls_problem(connection, host) if target.scheme == "https" else ""
        return _through(proxy, host, port)
    except TimeoutError:
        return f"{redact_text(proxy) or host} did not answer within {_PROBE_S:g} s"
    except (OSError, ValueError) as error:
        return f"{redact_text(proxy) or host} cannot be reached ({getattr(error, 'strerror', None) or error})"


def _tls_problem(connection: socket.socket, host: str) -> str:
    try:
        with ssl.create_default_context().wrap_socket(connection, server_hostname=host):
            return ""
    except ssl.SSLError as error:
        return f"{host} answered, but its certificate is not accepted ({error.reason or error})"


def _through(proxy: str, host: str, port: int) -> str:
    """Ask the proxy for a tunnel, as W&B's client would."""
    parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if not parts.hostname:
        return f"{redact_text(proxy)!r} is no address of a proxy; write http://host:port"
    lines = [f"CONNECT {host}:{port} HTTP/1.1", f"Host: {host}:{port}"]
    if parts.username:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        lines.append(f"Proxy-Authorization: Basic {base64.b64encode(login.encode()).decode()}")
    with socket.create_connection((parts.hostname, parts.port or 3128), timeout=_PROBE_S) as connection:
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        answer = connection.recv(4096).decode("latin-1").splitlines()
    status = answer[0].split(None, 2) if answer else []
    if len(status) < 2 or not status[0].startswith("HTTP/"):
        return f"{parts.hostname} is no HTTP proxy"
    if status[1] == "200":
        return ""
    text = status[2] if len(status) > 2 else ""
    return f"the proxy {parts.hostname} refused the way to {host}: {status[1]} {text}".strip()


LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PAGES = {"https://api.wandb.ai": "https://wandb.ai"}
"""The address of the API → its web pages"""
_GENERAL = frozenset({"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"})
_MOST_BYTES = 1 << 20
_ANSWER_S = 10.0


@dataclass(frozen=True)
class Key:
    """A key for W&B, and where it came from. `value` is empty when W&B's own program finds it (netrc)."""

    value: str = ""
    place: str = ""

    @property
    def is_there(self) -> bool:
        """Whether a key was found, or W&B's own program finds one."""
        return bool(self.place)


@dataclass(frozen=True)
class Proxies:
    """The proxies of requests; empty: none."""

    http: Fallback = field(default_factory=Fallback)
    https: Fallback = field(default_factory=Fallback)

    @property
    def first(self) -> Fallback:
        """The one an https address is reached through."""
        return self.https if self.https.value else self.http


def address(environ: Mapping[str, str] | None = None) -> str:
    """W&B's API: the public one, or a server of one's own (WANDB_BASE_URL)."""
    variables = os.environ if environ is None else environ
    return (variables.get("WANDB_BASE_URL") or WANDB_ADDRESS).rstrip("/")


def page_of(run_path: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the web page of a run `entity/project/id`; empty when the path is none."""
    parts = run_path.split("/")
    if len(parts) != 3 or not all(parts):
        return ""
    entity, project, run_id = parts
    api = address(environ)
    return f"{_PAGES.get(api, api)}/{entity}/{project}/runs/{run_id}"


def find_key(secrets: UserSecrets, environ: Mapping[str, str] | None = None) -> Key:
    """Return the key that was entered here, else the variable's, else that of `wandb login`."""
    variables = os.environ if environ is None else environ
    if value := secrets.get(WANDB_API_KEY):
        return Key(value, secrets.place_of(WANDB_API_KEY))
    if value := variables.get(env.WANDB_API_KEY, ""):
        return Key(value, f"the variable {env.WANDB_API_KEY}")
    file = Path(variables.get("NETRC") or Path("~/.netrc").expanduser())
    try:
        login = netrc.netrc(str(file)).authenticators(urlsplit(address(variables)).hostname or "")
    except (OSError, netrc.NetrcParseError):
        login = None
    return Key(login[2] or "", f"{file} (wandb login)") if login is not None else Key()


def find_proxies(
    extras: Mapping[str, Any], folders: Iterable[Path] = (), environ: Mapping[str, str] | None = None
) -> Proxies:
    """With the VPN box a run's own fields, then WANDB_VPN_*, WANDB_*, the general ones; else only the general ones."""
    places = tuple(folders)
    uses_vpn = extras.get("wandb_use_vpn_proxy") is True
    found = []
    for name, variables in (("wandb_http_proxy", HTTP_NAMES), ("wandb_https_proxy", HTTPS_NAMES)):
        chosen = extras.get(name)
        if uses_vpn and isinstance(chosen, str) and chosen:
            found.append(Fallback(chosen, "the run's config"))
            continue
        names = [variable for variable in variables if uses_vpn or variable in _GENERAL]
        found.append(fallback(names, places if uses_vpn else (), environ))
    return Proxies(*found)


def way_to(api: str, proxies: Proxies) -> str:
    """Return the proxy an address is reached through; empty: straight, as this machine's own addresses always are."""
    if (urlsplit(api).hostname or "") in LOOPBACK:
        return ""
    return proxies.first.value if urlsplit(api).scheme == "https" else proxies.http.value


def variables_for(key: Key, proxies: Proxies, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a process that talks to W&B: the key and the proxies; loopback is never proxied."""
    variables = dict(os.environ if environ is None else environ)
    if key.value:
        variables[env.WANDB_API_KEY] = key.value
    for names, proxy in (
        (("HTTP_PROXY", "http_proxy", env.WANDB_HTTP_PROXY), proxies.http),
        (("HTTPS_PROXY", "https_proxy", env.WANDB_HTTPS_PROXY), proxies.https),
    ):
        if proxy.value:
            variables |= dict.fromkeys(names, proxy.value)
    kept = [name for name in (variables.get("NO_PROXY") or variables.get("no_proxy") or "").split(",") if name]
    excluded = ",".join(dict.fromkeys([*kept, *LOOPBACK]))
    variables |= {"NO_PROXY": excluded, "no_proxy": excluded}
    variables[env.WANDB_MODE] = "online"  # a variable that says offline is about training
    return variables


def who_am_i(key: Key, proxies: Proxies, *, api: str) -> tuple[str, str]:
    """Ask W&B whose key this is: the user's name and an empty text, or an empty name and what is in the way."""
    query = json.dumps({"query": "query Viewer { viewer { username entity } }"}).encode()
    request = urllib.request.Request(f"{api}/graphql", query, {"Content-Type": "application/json"})
    if key.value:
        request.add_header("Authorization", f"Basic {base64.b64encode(f'api:{key.value}'.encode()).decode()}")
    proxy = way_to(api, proxies)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({urlsplit(api).scheme: proxy} if proxy else {}))
    try:
        with opener.open(request, timeout=_ANSWER_S) as answer:
            document = json.loads(answer.read(_MOST_BYTES))
        viewer = document["data"]["viewer"]
        if viewer is None:
            return "", "W&B does not know this key; make a new one at https://wandb.ai/authorize"
        return str(viewer.get("entity") or viewer.get("username") or "?"), ""
    except urllib.error.HTTPError as error:
        with error:
            if error.code in (401, 403):
                return "", f"W&B refuses this key ({error.code}); make a new one at https://wandb.ai/authorize"
            return "", f"{api} answered {error.code} {error.reason}"
    except (OSError, urllib.error.URLError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        return "", redact_text(f"{api} cannot be asked: {reason}")
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", f"{api} answers, but not as W&B does; is WANDB_BASE_URL right?"


# ---------------------------------------------------------------- wandb sync


_LAST_LINES = 12
_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PREFIX = re.compile(r"^wandb:\s*")
_SPINNER = re.compile(r"^[⠀-⣿|/\\-]\s+")
_ADDRESS = re.compile(r"https?://\S+/runs/\S+")


class SyncFailed(Exception):
    """Not everything was sent; the message is the reason."""


@dataclass(frozen=True)
class SyncResult:
    """The result of a sync."""

    folders: int
    url: str = ""
    """Its web page, when W&B printed one"""


def find_interpreter(home: Home | None, trained_with: Sequence[str] = ()) -> str:
    """Return a Python that has the package wandb: this one, the one the run trained with, a requirement set's.

    SyncFailed when there is none. Starts a short process for each it asks: not for the window's thread.
    """
    if getattr(importlib.util.find_spec("wandb"), "origin", None) is not None:
        return sys.executable
    candidates = [*trained_with[:1], *map(str, _sets(home))]
    for python in dict.fromkeys(candidates):
        if Path(python).is_file() and has_package(python, "wandb"):
            return python
    raise SyncFailed("The package wandb is not installed. Install its requirement set: mosaic extras install wandb")


def _sets(home: Home | None) -> list[Path]:
    if home is None:
        return []
    found = (home.trainer / "venvs" / "wandb").glob("*/bin/python")
    return sorted(found, key=lambda path: path.lstat().st_mtime, reverse=True)


class SyncJob:
    """One `wandb sync`. `run` blocks until it has ended; `cancel` may be called from any thread."""

    def __init__(
        self, python: str, folders: Iterable[WandbFolder], environment: Mapping[str, str], secrets: Iterable[str] = ()
    ) -> None:
        self._folders = tuple(folders)
        self._environment = {**environment, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}
        paths = [str(folder.path) for folder in self._folders]
        self._argv = [python, "-P", "-m", "wandb", "sync", "--include-online", "--include-synced", *paths]
        self._secrets = spellings_of(secrets)
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._is_cancelled = False

    def cancel(self) -> None:
        """Stop sending; runs already sent stay at W&B."""
        with self._lock:
            self._is_cancelled = True
            if self._process is not None and self._process.poll() is None:
                self._process.terminate()

    def run(self, report: Callable[[str], Any]) -> SyncResult:
        """Send, reporting each line; raise SyncFailed with W&B's last output if not everything was sent."""
        with self._lock:
            if self._is_cancelled:
                raise SyncFailed("Stopped before anything was sent.")
            try:
                process = self._process = subprocess.Popen(
                    self._argv,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                    start_new_session=True,
                    # It leaves a folder `wandb` with its own log where it is started: in the run's folder there is one.
                    cwd=self._folders[0].path.parent.parent if self._folders else None,
                )
            except OSError as error:
                raise SyncFailed(f"{self._argv[0]} cannot be started: {error.strerror or error}") from error
        reported: deque[str] = deque(maxlen=_LAST_LINES)
        url = ""
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                text = self._readable(line)
                if not text:
                    continue
                if found := _ADDRESS.search(text):
                    url = found[0].rstrip(".")
                if not reported or reported[-1] != text:
                    reported.append(text)
                    report(text)
            code = process.wait()
        if self._is_cancelled:
            raise SyncFailed("Stopped. What W&B has got by then stays there; syncing again sends the rest.")
        missing = [folder.path.name for folder in self._folders if not Path(f"{folder.file}.synced").exists()]
        if code != 0 or missing:
            last = " · ".join(reported) or f"wandb sync ended with exit code {code}"
            raise SyncFailed(f"W&B did not receive everything. Its output: {last}")
        return SyncResult(len(self._folders), url)

    def _readable(self, line: str) -> str:
        text = _PREFIX.sub("", _STYLE.sub("", line).strip())
        return redact_text(_SPINNER.sub("", text).strip(), self._secrets)
