"""Read W&B files in a run's folder; find the API key and proxies; sync offline runs. No Qt.

`WandbReader.read` reads files: call it outside the window's thread, one call at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from mosaic_wire.paths import RunFolder

from gym_gui.services.analytics.curves import Curve, curve_of
from gym_gui.services.analytics.wandb_access import (
    Key,
    Proxies,
    SyncFailed,
    SyncJob,
    address,
    find_interpreter,
    find_key,
    find_proxies,
    probe,
    variables_for,
    way_to,
)
from gym_gui.services.analytics.wandb_file import (
    NotAWandbFile,
    WandbCurve,
    WandbFolder,
    WandbLog,
    WandbSnapshot,
    find_wandb_folders,
)
from gym_gui.services.trainer.errors import SecretStoreError
from gym_gui.services.user_secrets import UserSecrets
from gym_gui.ui.charts.curves import downsampled, headline_tags
from gym_gui.ui.presenters.run_files import home_of
from gym_gui.ui.run_page.run_details import Pairs, text_of

_HIDDEN = frozenset({"_wandb", "_step", "_timestamp", "_runtime"})
_FIRST_SYSTEM = (
    "cpu",
    "proc.cpu.threads",
    "memory_percent",
    "proc.memory.rssMB",
    "disk./.usagePercent",
    "network.recv",
    "gpu.0.gpu",
    "gpu.0.memory",
)
"""Common system metrics first; other metrics follow by name"""
_SHOWN_SYSTEM = frozenset(key.replace("./.", " ") for key in _FIRST_SYSTEM)
_CHARTS_AT_FIRST = 6
_LONGEST = 400
"""Characters shown of a value: users log whole documents, which are slow to draw in a table"""


@dataclass(frozen=True)
class WandbShown:
    """One W&B run, ready to be shown."""

    folders: tuple[WandbFolder, ...] = ()
    """Folders of the shown W&B run, oldest first"""
    run_ids: tuple[str, ...] = ()
    """All W&B runs of this run; usually one"""
    snapshot: WandbSnapshot = field(default_factory=WandbSnapshot)
    summary: Pairs = field(default_factory=list)
    config: Pairs = field(default_factory=list)
    history: Mapping[str, Curve] = field(default_factory=dict)
    system: Mapping[str, Curve] = field(default_factory=dict)
    problem: str = ""

    @property
    def is_offline(self) -> bool:
        return bool(self.folders) and self.folders[-1].is_offline

    @property
    def unsent(self) -> tuple[WandbFolder, ...]:
        """Return folders of offline runs that were not synced yet."""
        return tuple(folder for folder in self.folders if folder.is_offline and not folder.is_synced)

    @property
    def run_path(self) -> str:
        """Return entity/project/id, as far as the file contains them."""
        known = self.snapshot
        parts = (known.entity, known.project, known.run_id)
        return "/".join(parts) if all(parts) else ""


class WandbReader:
    """Read the files of one run and follow their growth."""

    def __init__(self, run_dir: str) -> None:
        self._folder = RunFolder(Path(run_dir)).wandb

    def move(self, run_dir: str) -> None:
        """Read the run from this folder from now on."""
        self._folder = RunFolder(Path(run_dir)).wandb

        self._log = WandbLog([])
        self._shown = WandbShown()

    def read(self, requested: str = "") -> WandbShown:
        """Return the current content; `requested` selects one of several W&B runs (default: the newest)."""
        everything = find_wandb_folders(self._folder)
        run_ids = tuple(dict.fromkeys(folder.run_id for folder in everything))
        chosen = requested if requested in run_ids else run_ids[-1] if run_ids else ""
        folders = tuple(folder for folder in everything if folder.run_id == chosen)
        files = tuple(folder.file for folder in folders)
        has_changed = files != self._log.files
        if has_changed:
            self._log = WandbLog(files)
        problem = ""
        try:
            while True:
                has_changed = self._log.read() or has_changed
                if not self._log.has_more:
                    break
        except NotAWandbFile as error:
            problem = str(error)
            self._log = WandbLog([])  # reread the file from its beginning, it was replaced
        except OSError as error:
            problem = f"{error.filename or files[-1]} cannot be read: {error.strerror or error}"
        before = self._shown
        if has_changed or problem:
            self._shown = _shown(folders, run_ids, self._log.snapshot(), problem)
        elif (before.folders, before.run_ids, before.problem) != (folders, run_ids, ""):
            self._shown = _shown(folders, run_ids, before.snapshot, "")
        return self._shown


def _shown(
    folders: tuple[WandbFolder, ...], run_ids: tuple[str, ...], snapshot: WandbSnapshot, problem: str
) -> WandbShown:
    times = (curve.times for curves in (snapshot.history, snapshot.system) for curve in curves.values())
    began = float(min((np.nanmin(own) for own in times if np.isfinite(own).any()), default=0.0))
    return WandbShown(
        folders,
        run_ids,
        snapshot,
        list(_flat(snapshot.summary)),
        list(_flat(snapshot.config)),
        {key: _curve(curve, began) for key, curve in snapshot.history.items() if len(curve.values)},
        {_readable(key): _curve(snapshot.system[key], began) for key in sorted(snapshot.system, key=_system_order)},
        problem,
    )


def _system_order(key: str) -> tuple[int, str]:
    return (_FIRST_SYSTEM.index(key) if key in _FIRST_SYSTEM else len(_FIRST_SYSTEM), key)


def _readable(key: str) -> str:
    """Return `disk usagePercent` for `disk./.usagePercent`: most users have only the root file system."""
    return key.replace("./.", " ")


def _flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield `{"a": {"b": 1}}` as a.b 1, without W&B's own keys."""
    for key, value in sorted(document.items()):
        if not prefix and key in _HIDDEN:
            continue
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and "_type" not in value:
            yield from _flat(value, f"{name}.")
        else:
            text = text_of(value)
            yield name, text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _curve(curve: WandbCurve, began: float) -> Curve:
    times = np.where(np.isnan(curve.times), began, curve.times)
    found = curve_of("", curve.key, curve.steps, times, curve.values, len(curve.values))
    return downsampled(replace(found, began=began))


def history_keys(known: Iterable[str]) -> list[str]:
    """Return the curves shown by default: the usual ones of a training, or the first few of other names."""
    keys = list(known)
    return headline_tags(keys) or [key for key in keys if key != "global_step"][:_CHARTS_AT_FIRST]


def system_keys(known: Iterable[str]) -> list[str]:
    keys = list(known)
    return [key for key in keys if key in _SHOWN_SYSTEM] or keys[:_CHARTS_AT_FIRST]


@dataclass(frozen=True)
class Access:
    """Whether W&B can be used from here, as far as known without a request."""

    key_place: str = ""
    """Where the API key was found; empty: nowhere"""
    proxy: str = ""
    """The proxy for pages; empty: a direct connection"""
    problem: str = ""


def check_access(run_dir: str, extras: Mapping[str, Any]) -> Access:
    """Find the API key and the proxy of a run."""
    proxy = _proxies(run_dir, extras).first.value
    try:
        return Access(find_key(UserSecrets()).place, proxy)
    except SecretStoreError as error:
        return Access("", proxy, str(error))


def prepare_sync(
    run_dir: str, extras: Mapping[str, Any], folders: Sequence[WandbFolder], trained_with: Sequence[str]
) -> SyncJob:
    """Return a prepared `wandb sync` of these folders; raise SyncFailed if the key or the package is missing."""
    try:
        key = find_key(UserSecrets())
    except SecretStoreError as error:
        raise SyncFailed(f"The key cannot be read: {error}") from error
    if not key.is_there:
        raise SyncFailed("There is no API key for Weights & Biases yet. “Enter a key” stores one in the secret store.")
    proxies = _proxies(run_dir, extras)
    # wandb itself would retry silently for many minutes.
    if trouble := probe(address(), proxy=way_to(address(), proxies)):
        raise SyncFailed(f"W&B cannot be reached: {trouble}. Everything stays in the run's folder.")
    python = find_interpreter(home_of(run_dir), trained_with)
    return SyncJob(python, folders, variables_for(key, proxies), _secrets(key, proxies))


def _proxies(run_dir: str, extras: Mapping[str, Any]) -> Proxies:
    home = home_of(run_dir).root
    return find_proxies(extras, dict.fromkeys((home, home.parent, Path.cwd())))


def _secrets(key: Key, proxies: Proxies) -> list[str]:
    return [value for value in (key.value, proxies.http.value, proxies.https.value) if value]
