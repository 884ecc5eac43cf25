"""What the W&B tab shows of the files that W&B keeps in a run's folder. No Qt.

`WandbReader.read` reads files: call it off the window's thread, one call at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from mosaic_wire.paths import RunFolder

from gym_gui.services.analytics.curves import extremes
from gym_gui.services.analytics.wandb_file import NotAWandbFile, WandbCurve, WandbLog, WandbSnapshot
from gym_gui.services.analytics.wandb_folders import WandbFolder, find_wandb_folders
from gym_gui.ui.presenters.live_curves import MOST_POINTS, Curve, shown_tags
from gym_gui.ui.presenters.run_details import Pairs, text_of

_HIDDEN = frozenset({"_wandb", "_step", "_timestamp", "_runtime"})
_FIRST_SYSTEM = (
    "cpu", "proc.cpu.threads", "memory_percent", "proc.memory.rssMB", "disk./.usagePercent", "network.recv",
    "gpu.0.gpu", "gpu.0.memory",
)  # fmt: skip
"""System metrics that people look for; the others follow by name"""
_SHOWN_SYSTEM = frozenset(key.replace("./.", " ") for key in _FIRST_SYSTEM)
_CHARTS_AT_FIRST = 6
_LONGEST = 400
"""Letters of a value in a table: people log whole documents, and a cell of them takes long to draw"""


@dataclass(frozen=True)
class WandbShown:
    """One W&B run, ready to be shown."""

    folders: tuple[WandbFolder, ...] = ()
    """Of the run that is shown, the oldest first"""
    run_ids: tuple[str, ...] = ()
    """Every W&B run that this run of ours made; most have one"""
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
        """Folders of offline runs that nobody has sent yet."""
        return tuple(folder for folder in self.folders if folder.is_offline and not folder.is_synced)

    @property
    def run_path(self) -> str:
        """entity/project/id, as far as the file says."""
        known = self.snapshot
        parts = (known.entity, known.project, known.run_id)
        return "/".join(parts) if all(parts) else ""


class WandbReader:
    """Follows the files of one run."""

    def __init__(self, run_dir: str) -> None:
        self._folder = RunFolder(Path(run_dir)).wandb
        self._log = WandbLog([])
        self._shown = WandbShown()

    def read(self, wanted: str = "") -> WandbShown:
        """What is there now; `wanted` is one of several W&B runs (else the newest)."""
        everything = find_wandb_folders(self._folder)
        run_ids = tuple(dict.fromkeys(folder.run_id for folder in everything))
        chosen = wanted if wanted in run_ids else run_ids[-1] if run_ids else ""
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
            self._log = WandbLog([])  # a file that was replaced is read from its beginning next time
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
    return WandbShown(
        folders,
        run_ids,
        snapshot,
        list(_flat(snapshot.summary)),
        list(_flat(snapshot.config)),
        {key: _curve(curve) for key, curve in snapshot.history.items() if len(curve.values)},
        {_readable(key): _curve(snapshot.system[key]) for key in sorted(snapshot.system, key=_system_order)},
        problem,
    )


def _system_order(key: str) -> tuple[int, str]:
    return (_FIRST_SYSTEM.index(key) if key in _FIRST_SYSTEM else len(_FIRST_SYSTEM), key)


def _readable(key: str) -> str:
    """`disk./.usagePercent` → `disk usagePercent`: the root of the file system is the only one most people have."""
    return key.replace("./.", " ")


def _flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """`{"a": {"b": 1}}` → a.b 1; W&B's own keys are left out."""
    for key, value in sorted(document.items()):
        if not prefix and key in _HIDDEN:
            continue
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and "_type" not in value:
            yield from _flat(value, f"{name}.")
        else:
            text = text_of(value)
            yield name, text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _curve(curve: WandbCurve) -> Curve:
    """As charts draw it: thinned, its extremes kept."""
    steps, times, values = curve.steps, curve.times, curve.values
    if len(values) > 2 * MOST_POINTS:
        kept = extremes(values, MOST_POINTS)
        steps, times, values = steps[kept], times[kept], values[kept]
    times = np.where(np.isnan(times), 0.0, times)
    return Curve(curve.key, steps, times, values, len(curve.values))


def history_keys(known: Iterable[str], choices: Mapping[str, bool]) -> list[str]:
    """Which curves have a chart: the usual ones of a training, or the first few of a run that names them otherwise."""
    keys = list(known)
    shown = shown_tags(keys, choices)
    return shown if shown or choices else [key for key in keys if key != "global_step"][:_CHARTS_AT_FIRST]


def system_keys(known: Iterable[str], choices: Mapping[str, bool]) -> list[str]:
    keys = list(known)
    usual = [key for key in keys if key in _SHOWN_SYSTEM] or keys[:_CHARTS_AT_FIRST]
    return [key for key in keys if choices.get(key, key in usual)]
