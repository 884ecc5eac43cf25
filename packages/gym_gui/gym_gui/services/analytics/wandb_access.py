"""How W&B is reached from here: its address, the key and where it was found, the proxies. No Qt, no W&B package.

Asking the network or the keyring takes time: not for the window's thread.
"""

from __future__ import annotations

import base64
import json
import netrc
import os
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mosaic_wire import env
from mosaic_wire.redaction import redact_text

from gym_gui.services.connectivity import HTTP_NAMES, HTTPS_NAMES, WANDB_ADDRESS, Fallback, fallback
from gym_gui.services.user_secrets import WANDB_API_KEY, UserSecrets

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PAGES = {"https://api.wandb.ai": "https://wandb.ai"}
"""The address of the API → the one people look at"""
_GENERAL = frozenset({"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"})
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Key:
    """A key for W&B, and where it came from. `value` is empty when W&B's own program finds it (netrc)."""

    value: str = ""
    place: str = ""

    @property
    def is_there(self) -> bool:
        return bool(self.place)


@dataclass(frozen=True)
class Proxies:
    """What requests go through; empty: straight."""

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
    """The web page of a run `entity/project/id`; empty when the path is none."""
    parts = run_path.split("/")
    if len(parts) != 3 or not all(parts):
        return ""
    entity, project, run_id = parts
    api = address(environ)
    return f"{_PAGES.get(api, api)}/{entity}/{project}/runs/{run_id}"


def find_key(secrets: UserSecrets, environ: Mapping[str, str] | None = None) -> Key:
    """The key that was entered here, else the variable's, else that of `wandb login`."""
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
    """The proxy an address is reached through; empty: straight, as this machine's own addresses always are."""
    if (urlsplit(api).hostname or "") in LOOPBACK:
        return ""
    return proxies.first.value if urlsplit(api).scheme == "https" else proxies.http.value


def variables_for(key: Key, proxies: Proxies, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a process that talks to W&B: the key and the proxies; loopback is never proxied."""
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


def who_am_i(key: Key, proxies: Proxies, *, api: str, timeout_s: float = 10.0) -> tuple[str, str]:
    """Ask W&B whose key this is: the user's name and an empty text, or an empty name and what is in the way."""
    query = json.dumps({"query": "query Viewer { viewer { username entity } }"}).encode()
    request = urllib.request.Request(f"{api}/graphql", query, {"Content-Type": "application/json"})
    if key.value:
        request.add_header("Authorization", f"Basic {base64.b64encode(f'api:{key.value}'.encode()).decode()}")
    proxy = way_to(api, proxies)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({urlsplit(api).scheme: proxy} if proxy else {}))
    try:
        with opener.open(request, timeout=timeout_s) as answer:
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
