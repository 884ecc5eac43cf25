"""`mosaic doctor --wandb`: whether Weights & Biases can be reached from here, step by step."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gym_gui.cli.findings import Finding

if TYPE_CHECKING:
    from gym_gui.cli.context import Cli
    from gym_gui.services.analytics.wandb_access import Key, Proxies

_AUTHORIZE = "https://wandb.ai/authorize"


def wandb_findings(cli: Cli) -> Iterator[Finding]:
    """The address, the way to it, the key, and what W&B says to it."""
    from gym_gui.services.analytics.wandb_access import address, find_proxies

    api = address()
    folders = dict.fromkeys((Path.cwd(), cli.home.root, cli.home.root.parent))
    proxies = find_proxies({"wandb_use_vpn_proxy": True}, folders)
    yield _address(api)
    yield _proxy(proxies)
    way = list(_way(api, proxies))
    yield from way
    key, finding = _key()
    yield finding
    is_reachable = all(finding.state != "broken" for finding in way)
    if is_reachable and key is not None:
        yield _api(api, key, proxies)
    yield _package(cli)


def _address(api: str) -> Finding:
    origin = " (WANDB_BASE_URL)" if os.environ.get("WANDB_BASE_URL") else ""
    if not urlsplit(api).hostname:
        return Finding("W&B address", "broken", f"{api!r} is no address", "unset WANDB_BASE_URL, or write https://host")
    return Finding("W&B address", "ok", f"{api}{origin}")


def _proxy(proxies: Proxies) -> Finding:
    if not proxies.first.value:
        return Finding("W&B proxy", "ok", "none; straight (WANDB_VPN_HTTPS_PROXY, HTTPS_PROXY … would name one)")
    return Finding("W&B proxy", "ok", f"{proxies.first.shown}; loopback is not proxied")


def _way(api: str, proxies: Proxies) -> Iterator[Finding]:
    """DNS of the first hop, then the connection (TLS, or the proxy's tunnel)."""
    from gym_gui.services.analytics.wandb_access import way_to
    from gym_gui.services.connectivity import probe

    proxy = way_to(api, proxies)
    hop = urlsplit(proxy if "://" in proxy else f"http://{proxy}") if proxy else urlsplit(api)
    host = hop.hostname or ""
    try:
        found = sorted({entry[4][0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)})
    except OSError as error:
        cure = "is this machine online? Behind a firewall: set WANDB_VPN_HTTPS_PROXY, or train with WANDB_MODE=offline"
        yield Finding("W&B DNS", "broken", f"{host} has no address ({error.strerror or error})", cure)
        return
    yield Finding("W&B DNS", "ok", f"{host} is {', '.join(map(str, found[:2]))}{' …' if len(found) > 2 else ''}")
    if trouble := probe(api, proxy=proxy):
        cure = "a proxy or firewall is in the way; until then WANDB_MODE=offline keeps everything, `Sync now` sends it"
        yield Finding("W&B connection", "broken", trouble, cure)
    else:
        how = "through the proxy" if proxy else "TLS" if urlsplit(api).scheme == "https" else "without TLS"
        yield Finding("W&B connection", "ok", f"established ({how})")


def _key() -> tuple[Key | None, Finding]:
    from gym_gui.services.analytics.wandb_access import find_key
    from gym_gui.services.trainer.errors import SecretStoreError
    from gym_gui.services.user_secrets import UserSecrets

    try:
        key = find_key(UserSecrets())
    except SecretStoreError as error:
        return None, Finding("W&B key", "broken", str(error), "unlock the keyring, or set WANDB_API_KEY")
    if not key.is_there:
        cure = f"get one at {_AUTHORIZE}, then: the W&B tab's “Enter a key”, WANDB_API_KEY, or `wandb login`"
        return None, Finding("W&B key", "broken", "none; runs that log to W&B stay offline", cure)
    return key, Finding("W&B key", "ok", f"found in {key.place}")


def _api(api: str, key: Key, proxies: Proxies) -> Finding:
    from gym_gui.services.analytics.wandb_access import who_am_i

    name, trouble = who_am_i(key, proxies, api=api)
    if trouble:
        return Finding("W&B API", "broken", trouble, f"check the key at {_AUTHORIZE}")
    return Finding("W&B API", "ok", f"the key is that of {name}")


def _package(cli: Cli) -> Finding:
    from gym_gui.services.analytics.wandb_sync import SyncFailed, find_interpreter

    try:
        python = find_interpreter(cli.home)
    except SyncFailed:
        return Finding(
            "W&B package", "note", "not installed; offline runs are shown without it", "mosaic extras install wandb"
        )
    return Finding("W&B package", "ok", f"in {python}")
