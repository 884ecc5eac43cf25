"""The curves of one run in `<run>/metrics/`: an index, and a pyramid for each tag.

The index states up to where the event files were read; points beyond it do not count. So a new daemon continues from
the last index, and a missing or damaged folder is rebuilt from the event files.
"""

from __future__ import annotations

import json
import logging
import math
import time
import zlib
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from mosaic_wire.event_files import EventFolderReader
from mosaic_wire.files import parse_json, read_plain_file, write_bytes_atomically
from mosaic_wire.limits import MAX_METRIC_TAG, MAX_STEP, too_long
from mosaic_wire.system_metrics import FOLDER as SYSTEM_FOLDER

from gym_gui.services.trainer.metrics.series import DamagedSeries, Points, Series
from gym_gui.services.trainer.records import RunStatistics, plausible_step
from gym_gui.services.trainer.run_files import remove

logger = logging.getLogger(__name__)

VERSION = 3
MAX_TAGS = 2_000
"""Keeps a script that creates a tag for every step from filling the disk with files"""
EPISODES = 100
_INDEX = "index.json"
_RETURN_TAG, SPS_TAG = "charts/episodic_return", "charts/SPS"
MEAN_RETURN = "mean_return_100"
"""Key in the last values of the mean return of the last hundred episodes"""
NOT_FINITE = "returns_not_finite"
"""Key of the number of returns that are NaN or infinite and not part of the mean"""
_SHOWN_TAGS = 24
_SHOWN_PREFIXES = ("charts/", "losses/", "eval/", "rollout/", "train/")
_CATCH_UP_BYTES, _CATCH_UP_S = 4 << 20, 30.0


@dataclass
class Folder:
    """New points in the event files of one folder (see `mosaic_wire.event_records`)."""

    name: str = ""
    is_reset: bool = False
    drop_from: int | None = None
    columns: dict[str, Points] = field(default_factory=dict)


@dataclass(frozen=True)
class CurveValues:
    """Values of a run's curves."""

    last: Mapping[str, float]
    """Last values of the important curves, and `MEAN_RETURN`"""
    step: int


def run_statistics(reported: RunStatistics, curves: CurveValues | None, *, checkpoint_step: int = 0) -> RunStatistics:
    """Return a run's statistics from its curves, completed by those of its last heartbeat or ending (`reported`).

    The step is the highest one: a heartbeat may be ahead of the curves, and the curves and checkpoints of a killed run
    ahead of its last heartbeat.
    """
    values = curves.last if curves is not None else {}
    known = (curves.step if curves is not None else 0, checkpoint_step)
    return replace(
        reported,
        step=max(reported.step, *(plausible_step(step, reported.total) for step in known)),
        episodic_return=values.get(MEAN_RETURN, reported.episodic_return),
        sps=values.get(SPS_TAG, reported.sps),
        metrics=dict(values) or None,
    )


def _begin_of(folder: Folder) -> float:
    """Return when the first of its points was written: the main folder is the one that began first."""
    return min((points.times[0] for points in folder.columns.values() if points), default=math.inf)


class RunMetrics:
    """Ingests and reads the curves of one run; used by one thread at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._series: dict[str, Series] = {}
        self._files: dict[str, int] = {}
        self._homes: dict[str, str] = {}
        """By tag, the event folder that it comes from"""
        self._main: str | None = None
        """The first folder with curves; its name (scripts choose one) is not prefixed to tags"""
        self._newest: dict[str, tuple[int, float]] = {}
        """By tag without a folder, the last step and value of the important curves"""
        self._returns: deque[float] = deque(maxlen=EPISODES)
        self.latest: dict[str, tuple[int, float]] = {}
        """By tag, the last step and value"""
        self.position: Any = None
        """Position up to which the event files were read, as the reader serializes it"""
        self.epoch = 0
        """Increases when points are dropped, so that clients reset their curves"""
        self._has_skipped = False
        self._is_dirty = False
        try:
            self._load()
        except (DamagedSeries, ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            if folder.exists():
                logger.warning("%s is rebuilt from the event files: %s", folder, error)
            self._clear()

    def _load(self) -> None:
        if self._folder.is_symlink():
            raise ValueError("it is a link")
        document = _read_index(read_plain_file(self._folder / _INDEX))
        if document["version"] != VERSION:
            raise ValueError(f"version {document['version']}")
        for tag, entry in document["tags"].items():
            self._files[tag], self._homes[tag] = entry["file"], entry["folder"]
            self._series[tag] = Series(self._stem(entry["file"]), entry["count"], is_sorted=entry["sorted"])
            self.latest[tag] = (self._series[tag].last_step, entry["last"])
        self._returns.extend(document["returns"])
        self._main, self.position = document["main"], document["position"]
        self._find_newest()

    def _clear(self) -> None:
        with suppress(OSError):
            remove(self._folder)
        self._series, self._files, self._homes, self.latest, self.position = {}, {}, {}, {}, None
        self._main, self._newest = None, {}
        self._returns.clear()
        self.epoch += 1

    def _stem(self, number: int) -> Path:
        return self._folder / f"{number:05d}"

    # ------------------------------------------------------------------ writing

    def ingest(self, folders: Iterable[Folder], before: Any, after: Any) -> bool:
        """Add new points that begin at `position`; return False when they do not."""
        if before != self.position:
            return False
        for folder in folders if self._main is not None else sorted(folders, key=_begin_of):
            self._apply(folder)
        self.position = after
        self._is_dirty = True
        return True

    def _apply(self, folder: Folder) -> None:
        if len(folder.name) > MAX_METRIC_TAG:
            self._skip(too_long("a folder", len(folder.name), MAX_METRIC_TAG))
            return
        if folder.is_reset or folder.drop_from is not None:
            self._drop(folder.name, None if folder.is_reset else folder.drop_from)
        if self._main is None and folder.columns and folder.name != SYSTEM_FOLDER:
            self._main = folder.name
        for tag, points in folder.columns.items():
            key = self._key(folder.name, tag)
            series = self._series_of(key, folder.name) if points else None
            if series is None:
                continue
            series.append(points)
            self.latest[key] = (points.steps[-1], points.values[-1])
            if tag.startswith(_SHOWN_PREFIXES):
                self._newest[tag] = self.latest[key]
            if tag == _RETURN_TAG:
                self._returns.extend(points.values[-EPISODES:])

    def _key(self, folder: str, tag: str) -> str:
        """Return `system/cpu` for tag `cpu` of folder `system`, or `system:cpu` if the main folder has such a tag."""
        shown = folder.removeprefix("../")
        key = tag if folder in ("", self._main) else f"{shown}/{tag}"
        return key if self._homes.get(key, folder) == folder else f"{shown}:{tag}"

    def _find_newest(self) -> None:
        """Rebuild `_newest`; values of the main folder override others."""
        self._newest = {}
        for key in sorted(self.latest, key=lambda key: self._homes[key] == self._main):
            home = self._homes[key].removeprefix("../")
            tag = key[len(home) + 1 :] if home and key.startswith((f"{home}/", f"{home}:")) else key
            if tag.startswith(_SHOWN_PREFIXES):
                self._newest[tag] = self.latest[key]

    def _drop(self, folder: str, step: int | None) -> None:
        """Drop the curves of a folder from a step on, or completely (None)."""
        self.epoch += 1
        for tag, series in list(self._series.items()):
            if self._homes[tag] == folder:
                series.drop_from(-(2**62) if step is None else step)
                if len(series):
                    last = series.points(len(series) - 1, len(series), 1)
                    self.latest[tag] = (last.steps[0], last.values[0])
                else:
                    self.latest.pop(tag, None)
        self._find_newest()
        known = self._series.get(_RETURN_TAG)
        self._returns.clear()
        if known is not None and len(known):
            self._returns.extend(known.points(len(known) - EPISODES, len(known), EPISODES).values)

    def _series_of(self, tag: str, folder: str) -> Series | None:
        series = self._series.get(tag)
        if series is None:
            if problem := self._problem_with(tag):
                self._skip(problem)
                return None
            self._files[tag], self._homes[tag] = len(self._files), folder
            series = self._series[tag] = Series(self._stem(self._files[tag]))
        return series

    def _problem_with(self, tag: str) -> str:
        if len(tag) > MAX_METRIC_TAG:
            return too_long(f"the tag {tag[:40]!r}…", len(tag), MAX_METRIC_TAG)
        return f"more than {MAX_TAGS} tags" if len(self._series) >= MAX_TAGS else ""

    def _skip(self, why: str) -> None:
        if not self._has_skipped:
            logger.warning("%s: %s; such curves are skipped", self._folder, why)
        self._has_skipped = True

    def catch_up(self, events: Path) -> None:
        """Read the event files beyond `position`: after a worker's end, or when the folder is missing.

        This stops after a time limit, because other runs wait for the thread; the next call continues.
        """
        until = time.monotonic() + _CATCH_UP_S
        try:
            reader = EventFolderReader(events, beside=True, position=self.position)
        except ValueError:
            self._clear()
            reader = EventFolderReader(events, beside=True)
        while True:
            batches = reader.read(_CATCH_UP_BYTES)
            folders = []
            for batch in batches:
                columns = {tag: Points(c.steps, c.wall_times, c.values) for tag, c in batch.columns.items()}
                folders.append(Folder(batch.folder, batch.is_reset, batch.drop_from, columns))
            if folders:
                self.ingest(folders, self.position, reader.position())
            if not reader.has_more or time.monotonic() > until:
                return

    @property
    def unstored(self) -> int:
        """Return the number of points that are not on disk."""
        return sum(series.unstored for series in self._series.values())

    def flush(self) -> None:
        """Write everything to disk, the index last."""
        if not self._is_dirty:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        for series in self._series.values():
            series.flush()
        tags = {}
        for tag, series in self._series.items():
            place = {"file": self._files[tag], "folder": self._homes[tag], "count": len(series)}
            tags[tag] = {**place, "sorted": series.is_sorted, "last": self.latest.get(tag, (0, 0.0))[1]}
        document = {"version": VERSION, "position": self.position, "returns": list(self._returns), "main": self._main}
        document["tags"] = tags
        write_bytes_atomically(self._folder / _INDEX, _index_bytes(document))
        self._is_dirty = False

    # ------------------------------------------------------------------ reading

    def tags(self) -> dict[str, int]:
        """Return every tag with its number of points."""
        return {tag: len(series) for tag, series in self._series.items() if len(series)}

    def since(self, tag: str, index: int, most: int, *, means: bool = False) -> Points:
        """Return points from this index on, thinned to about `most` extremes or means."""
        if (series := self._series.get(tag)) is None:
            return Points()
        return (series.means if means else series.points)(index, len(series), most)

    def between(self, tag: str, first_step: int, last_step: int, most: int, *, means: bool = False) -> Points:
        """Return points of a range of steps, both ends included."""
        series = self._series.get(tag)
        return Points() if series is None else series.between(first_step, last_step, most, means=means)

    def current(self) -> CurveValues:
        """Return the current values of the curves."""
        return CurveValues(self.last_values(), self.last_step())

    def last_values(self) -> dict[str, float]:
        """Return the last values of the important curves."""
        values = {tag: value for tag, (_, value) in islice(self._newest.items(), _SHOWN_TAGS)}
        finite = [value for value in self._returns if math.isfinite(value)]
        if finite:
            values[MEAN_RETURN] = sum(finite) / len(finite)
        if not_finite := len(self._returns) - len(finite):
            values[NOT_FINITE] = not_finite
        return {tag: value for tag, value in values.items() if math.isfinite(value)}

    def last_step(self) -> int:
        """Return the last step in the curves."""
        return max((step for step, _ in self._newest.values() if step <= MAX_STEP), default=0)


def _index_bytes(document: Mapping[str, Any]) -> bytes:
    """Return the index with its checksum; NaN is allowed, because only this module reads the file."""
    text = json.dumps(document).encode()
    return text + f"\n{zlib.crc32(text):08x}\n".encode()


def _read_index(data: bytes) -> dict[str, Any]:
    text, _, checksum = data.rstrip(b"\n").rpartition(b"\n")
    if checksum != f"{zlib.crc32(text):08x}".encode():
        raise ValueError("the checksum of its index is wrong")
    document: dict[str, Any] = parse_json(text)
    return document
