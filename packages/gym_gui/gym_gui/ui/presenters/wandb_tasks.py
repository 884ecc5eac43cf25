"""What the W&B tab does besides showing: find the key and the proxies, send an offline run. No Qt.

Everything here asks a process, the keyring or the network: call it off the window's thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gym_gui.services.analytics.wandb_access import (
    Key,
    Proxies,
    address,
    find_key,
    find_proxies,
    variables_for,
    way_to,
)
from gym_gui.services.analytics.wandb_folders import WandbFolder
from gym_gui.services.analytics.wandb_sync import SyncFailed, SyncJob, find_interpreter
from gym_gui.services.connectivity import probe
from gym_gui.services.trainer.errors import SecretStoreError
from gym_gui.services.user_secrets import UserSecrets
from gym_gui.ui.presenters.analytics_artefacts import home_of


@dataclass(frozen=True)
class Access:
    """Whether W&B can be talked to from here, as far as that is known without asking it."""

    key_place: str = ""
    """Where the key was found; empty: there is none"""
    proxy: str = ""
    """What pages are reached through; empty: straight"""
    problem: str = ""


def look_at_access(run_dir: str, extras: Mapping[str, Any]) -> Access:
    """The key's place and the proxy of a run."""
    proxy = _proxies(run_dir, extras).first.value
    try:
        return Access(find_key(UserSecrets()).place, proxy)
    except SecretStoreError as error:
        return Access("", proxy, str(error))


def prepare_sync(
    run_dir: str, extras: Mapping[str, Any], folders: Sequence[WandbFolder], trained_with: Sequence[str]
) -> SyncJob:
    """A `wandb sync` of these folders; SyncFailed when there is no key or no package to do it with."""
    try:
        key = find_key(UserSecrets())
    except SecretStoreError as error:
        raise SyncFailed(f"The key cannot be read: {error}") from error
    if not key.is_there:
        raise SyncFailed("There is no key for Weights & Biases yet. “Enter a key” keeps one in the secret store.")
    proxies = _proxies(run_dir, extras)
    # W&B's own program would try for many minutes without a word.
    if trouble := probe(address(), proxy=way_to(address(), proxies)):
        raise SyncFailed(f"W&B cannot be reached: {trouble}. Everything stays in the run's folder.")
    python = find_interpreter(home_of(run_dir), trained_with)
    return SyncJob(python, folders, variables_for(key, proxies), _secrets(key, proxies))


def _proxies(run_dir: str, extras: Mapping[str, Any]) -> Proxies:
    home = home_of(run_dir).root
    return find_proxies(extras, dict.fromkeys((home, home.parent, Path.cwd())))


def _secrets(key: Key, proxies: Proxies) -> list[str]:
    return [value for value in (key.value, proxies.http.value, proxies.https.value) if value]
