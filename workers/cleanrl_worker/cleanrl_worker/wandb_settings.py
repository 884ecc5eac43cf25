"""Weights & Biases for a run: its variables, offline where there is no key or network, proxies as configured."""

from __future__ import annotations

import netrc
import os
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mosaic_wire import env
from mosaic_wire.run_request import Mode

ONLINE, OFFLINE = "online", "offline"

_DEFAULT_ADDRESS = "https://api.wandb.ai"
_PORTS = {"http": 80, "https": 443}
_PROXIES = {
    env.WANDB_HTTP_PROXY: ("wandb_http_proxy", env.WANDB_VPN_HTTP_PROXY),
    env.WANDB_HTTPS_PROXY: ("wandb_https_proxy", env.WANDB_VPN_HTTPS_PROXY),
}
"""The variable W&B reads: the form's field, and the VPN's variable"""


def why_unreachable(address: str, *, timeout_s: float = 3.0) -> str | None:
    """Return why there is no answer at this address (http, https or host:port), or None."""
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

    # In a thread, because a name lookup has no time limit.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(timeout_s + 1)
    return answer[0] if answer else f"{host} did not answer within {timeout_s:g} s"


def is_tracked(extras: Mapping[str, Any]) -> bool:
    """Return whether a run logs to W&B: by `extras.track_wandb` or the algorithm's flag `track`; only trainings do."""
    if extras.get("mode") in (Mode.EVALUATE, Mode.INTERACTIVE):
        return False
    parameters = extras.get("algo_params")
    places = (extras, parameters if isinstance(parameters, Mapping) else {})
    return any(str(place.get(name)).lower() == "true" for place in places for name in ("track_wandb", "track"))


@dataclass(frozen=True)
class WandbSettings:
    """What the training process gets, and what is shown to the user."""

    mode: str
    reason: str = ""
    """why it is offline"""
    variables: Mapping[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    """variables the training process must not see"""

    def __str__(self) -> str:
        return f"{self.mode}: {self.reason}".removesuffix(": ")

    def apply_to(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment with these settings."""
        kept = {name: value for name, value in environ.items() if name not in self.removed}
        return {**kept, **self.variables}


def wandb_settings(
    run_id: str,
    run_dir: Path,
    extras: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    project: str = "",
    entity: str = "",
    is_resumed: bool = False,
    why_unreachable: Callable[[str], str | None] = why_unreachable,
) -> WandbSettings:
    """Decide how this run logs to W&B; the network is tried only when there is a key to use it with."""
    variables = {env.WANDB_DIR: str(run_dir), env.WANDB_RUN_ID: run_id}
    named = {
        env.WANDB_NAME: extras.get("wandb_run_name"),
        env.WANDB_PROJECT: project,
        env.WANDB_ENTITY: entity,
        "WANDB_EMAIL": extras.get("wandb_email"),
    }
    variables |= {name: str(value) for name, value in named.items() if value}
    if isinstance(key := extras.get("wandb_api_key"), str) and key:
        variables[env.WANDB_API_KEY] = key  # given by hand; the daemon passes it in the environment
    if is_resumed:
        variables["WANDB_RESUME"] = "allow"
    proxies = _proxies(extras, environ)
    variables |= proxies
    known = (*_PROXIES, env.WANDB_VPN_HTTP_PROXY, env.WANDB_VPN_HTTPS_PROXY)
    removed = tuple(name for name in known if name not in proxies)
    reason = _why_offline({**environ, **variables}, proxies, why_unreachable)
    mode = OFFLINE if reason else environ.get(env.WANDB_MODE) or ONLINE
    return WandbSettings(mode, reason, {**variables, env.WANDB_MODE: mode}, removed)


def _proxies(extras: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the form's fields, else the VPN's variables, W&B's own, the general ones; none unless enabled."""
    if extras.get("wandb_use_vpn_proxy") is not True:
        return {}
    found = {}
    for variable, (key, vpn) in _PROXIES.items():
        general = variable.removeprefix("WANDB_")
        candidates = [extras.get(key), *map(environ.get, (vpn, variable, general, general.lower()))]
        chosen = next((value for value in candidates if isinstance(value, str) and value), None)
        if chosen is not None:
            found[variable] = chosen
    return found


def _why_offline(
    environ: Mapping[str, str], proxies: Mapping[str, str], why_unreachable: Callable[[str], str | None]
) -> str:
    if environ.get(env.WANDB_MODE) in (OFFLINE, "disabled", "dryrun"):
        return "" if environ.get(env.WANDB_MODE) == "disabled" else f"{env.WANDB_MODE} says so"
    address = environ.get("WANDB_BASE_URL") or _DEFAULT_ADDRESS
    if not environ.get(env.WANDB_API_KEY) and not _is_logged_in(address, environ):
        return f"there is no W&B key ({env.WANDB_API_KEY}, or `wandb login`)"
    first_hop = proxies.get(env.WANDB_HTTPS_PROXY) or proxies.get(env.WANDB_HTTP_PROXY) or address
    return why_unreachable(first_hop) or ""


def _is_logged_in(address: str, environ: Mapping[str, str]) -> bool:
    file = environ.get("NETRC") or os.path.expanduser("~/.netrc")
    try:
        return netrc.netrc(file).authenticators(urlsplit(address).hostname or "") is not None
    except (OSError, netrc.NetrcParseError):
        return False
