"""Weights & Biases for a run: its variables, offline where there is no key or network, proxies as people set them."""

from __future__ import annotations

import netrc
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mosaic_wire import env

from cleanrl_worker.network import why_unreachable

ONLINE, OFFLINE = "online", "offline"

_DEFAULT_ADDRESS = "https://api.wandb.ai"
_PROXIES = {
    env.WANDB_HTTP_PROXY: (
        "wandb_http_proxy",
        (env.WANDB_VPN_HTTP_PROXY, env.WANDB_HTTP_PROXY, "HTTP_PROXY", "http_proxy"),
    ),
    env.WANDB_HTTPS_PROXY: (
        "wandb_https_proxy",
        (env.WANDB_VPN_HTTPS_PROXY, env.WANDB_HTTPS_PROXY, "HTTPS_PROXY", "https_proxy"),
    ),
}
"""The variable W&B reads: the form's field, then the variables that may hold it, the first that does wins"""


def is_tracked(extras: Mapping[str, Any]) -> bool:
    """Does this run log to W&B? `extras.track_wandb` says so, or the algorithm's flag `track`; only who trains does."""
    if extras.get("mode") in ("policy_eval", "interactive"):
        return False
    parameters = extras.get("algo_params")
    places = (extras, parameters if isinstance(parameters, Mapping) else {})
    return any(str(place.get(name)).lower() == "true" for place in places for name in ("track_wandb", "track"))


@dataclass(frozen=True)
class WandbSettings:
    """What the training process gets, and what people are told."""

    mode: str
    reason: str = ""
    """why it is offline"""
    variables: Mapping[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    """variables the training process must not see"""

    def apply_to(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The environment with these settings."""
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
    """Decide how this run talks to W&B; the network is asked only when there is a key to use it with."""
    variables = {env.WANDB_DIR: str(run_dir), env.WANDB_RUN_ID: run_id}
    named = {
        env.WANDB_NAME: extras.get("wandb_run_name"), env.WANDB_PROJECT: project, env.WANDB_ENTITY: entity,
        "WANDB_EMAIL": extras.get("wandb_email"),
    }  # fmt: skip
    variables |= {name: str(value) for name, value in named.items() if value}
    if isinstance(key := extras.get("wandb_api_key"), str) and key:
        variables[env.WANDB_API_KEY] = key  # by hand; the daemon hands it over in the environment
    if is_resumed:
        variables["WANDB_RESUME"] = "allow"
    proxies = _proxies(extras, environ)
    variables |= proxies
    removed = tuple(
        name for name in (*_PROXIES, env.WANDB_VPN_HTTP_PROXY, env.WANDB_VPN_HTTPS_PROXY) if name not in proxies
    )
    reason = _why_offline({**environ, **variables}, proxies, why_unreachable)
    mode = OFFLINE if reason else environ.get(env.WANDB_MODE) or ONLINE
    return WandbSettings(mode, reason, {**variables, env.WANDB_MODE: mode}, removed)


def _proxies(extras: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """Form fields first, then the VPN's variables, W&B's own, the general ones; none unless the box is ticked."""
    if extras.get("wandb_use_vpn_proxy") is not True:
        return {}
    found = {}
    for variable, (key, names) in _PROXIES.items():
        candidates = [extras.get(key), *(environ.get(name) for name in names)]
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
