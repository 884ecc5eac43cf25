"""The curves of one run in `<run>/metrics/`: an index, and a pyramid for each tag.

The index holds how far the event files were read; what is added without it does not count. So a daemon that dies goes
on where its last index stood, and a folder that is missing or damaged is made again from the event files.
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
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from mosaic_wire.event_files import EventFolderReader
from mosaic_wire.files import parse_json, read_plain_file, write_bytes_atomically
from mosaic_wire.limits import MAX_METRIC_TAG, MAX_STEP, too_long
from mosaic_wire.system_metrics import FOLDER as SYSTEM_FOLDER

from gym_gui.services.trainer.metrics.series import DamagedSeries, Points, Series
from gym_gui.services.trainer.run_files import remove

logger = logging.getLogger(__name__)

VERSION = 3
MOST_TAGS = 2_000
"""A script that makes up a tag for every step must not fill the disk with files"""
EPISODES = 100
_INDEX = "index.json"
_RETURN_TAG, SPS_TAG = "charts/episodic_return", "charts/SPS"
MEAN_RETURN = "mean_return_100"
"""Among the headline values: the mean return of the last hundred episodes"""
NOT_FINITE = "returns_not_finite"
"""How many of these are NaN or infinite, and not in the mean"""
_SHOWN_TAGS = 24
_SHOWN_PREFIXES = ("charts/", "losses/", "eval/", "rollout/", "train/")
_CATCH_UP_BYTES, _CATCH_UP_S = 4 << 20, 30.0


@dataclass
class Folder:
    """What was added to the event files of one folder; to apply it see `mosaic_wire.event_batch`."""

    name: str = ""
    is_reset: bool = False
    drop_from: int | None = None
    columns: dict[str, Points] = field(default_factory=dict)


class RunMetrics:
    """Takes news of a run's curves and answers questions about them. Used by one thread at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._series: dict[str, Series] = {}
        self._files: dict[str, int] = {}
        self._homes: dict[str, str] = {}
        """By tag, the folder below the event files' that it comes from"""
        self._main: str | None = None
        """The first folder with curves: scripts write into one of their own, whose name nobody wants before each tag"""
        self._newest: dict[str, tuple[int, float]] = {}
        """By tag without a folder, the last step and value of those that tell how a run goes"""
        self._returns: deque[float] = deque(maxlen=EPISODES)
        self.latest: dict[str, tuple[int, float]] = {}
        """By tag, its last step and value"""
        self.position: Any = None
        """Up to where the event files were read, as the reader writes it"""
        self.epoch = 0
        """Grows when points were taken back, so that what a client has no longer fits"""
        self._has_left_out = False
        self._is_dirty = False
        try:
            self._load()
        except (DamagedSeries, ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            if folder.exists():
                logger.warning("%s is made again from the event files: %s", folder, error)
            self._forget_everything()

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

    def _forget_everything(self) -> None:
        with suppress(OSError):
            remove(self._folder)
        self._series, self._files, self._homes, self.latest, self.position = {}, {}, {}, {}, None
        self._main, self._newest = None, {}
        self._returns.clear()
        self.epoch += 1

    def _stem(self, number: int) -> Path:
        return self._folder / f"{number:05d}"

    # ------------------------------------------------------------------ growing

    def take(self, folders: Iterable[Folder], before: Any, after: Any) -> bool:
        """Add news that begin where the last ended; False: they do not, send them from `position` on."""
        if before != self.position:
            return False
        for folder in folders:
            self._apply(folder)
        self.position = after
        self._is_dirty = True
        return True

    def _apply(self, folder: Folder) -> None:
        if len(folder.name) > MAX_METRIC_TAG:
            self._leave_out(too_long("a folder", len(folder.name), MAX_METRIC_TAG))
            return
        if folder.is_reset or folder.drop_from is not None:
            self._take_back(folder.name, None if folder.is_reset else folder.drop_from)
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
        """`system/cpu` for tag `cpu` of folder `system`; where the main folder has a tag of that name, `system:cpu`."""
        shown = folder.removeprefix("../")
        key = tag if folder in ("", self._main) else f"{shown}/{tag}"
        return key if self._homes.get(key, folder) == folder else f"{shown}:{tag}"

    def _find_newest(self) -> None:
        """After a restart, or when points were taken back; the main folder has the last word."""
        self._newest = {}
        for key in sorted(self.latest, key=lambda key: self._homes[key] == self._main):
            home = self._homes[key].removeprefix("../")
            tag = key[len(home) + 1 :] if home and key.startswith((f"{home}/", f"{home}:")) else key
            if tag.startswith(_SHOWN_PREFIXES):
                self._newest[tag] = self.latest[key]

    def _take_back(self, folder: str, step: int | None) -> None:
        """Forget the curves of a folder from a step on; None: altogether."""
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
                self._leave_out(problem)
                return None
            self._files[tag], self._homes[tag] = len(self._files), folder
            series = self._series[tag] = Series(self._stem(self._files[tag]))
        return series

    def _problem_with(self, tag: str) -> str:
        if len(tag) > MAX_METRIC_TAG:
            return too_long(f"the tag {tag[:40]!r}…", len(tag), MAX_METRIC_TAG)
        return f"more than {MOST_TAGS} tags" if len(self._series) >= MOST_TAGS else ""

    def _leave_out(self, why: str) -> None:
        if not self._has_left_out:
            logger.warning("%s: %s; such curves are left out", self._folder, why)
        self._has_left_out = True

    def catch_up(self, events: Path) -> None:
        """Read what the event files have beyond `position`: after a worker's end, or when nothing was kept at all.

        Not for longer than others can wait for their curves: the next call goes on.
        """
        until = time.monotonic() + _CATCH_UP_S
        try:
            reader = EventFolderReader(events, beside=True, position=self.position)
        except ValueError:
            self._forget_everything()
            reader = EventFolderReader(events, beside=True)
        while True:
            batches = reader.read(_CATCH_UP_BYTES)
            folders = [
                Folder(
                    batch.folder, batch.is_reset, batch.drop_from,
                    {tag: Points(c.steps, c.wall_times, c.values) for tag, c in batch.columns.items()},
                )
                for batch in batches
            ]  # fmt: skip
            if folders:
                self.take(folders, self.position, reader.position())
            if not reader.has_more or time.monotonic() > until:
                return

    @property
    def unstored(self) -> int:
        """Points that only memory has."""
        return sum(series.unstored for series in self._series.values())

    def flush(self) -> None:
        """Write everything down; the index last."""
        if not self._is_dirty:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        for series in self._series.values():
            series.flush()
        tags = {
            tag: {
                "file": self._files[tag], "folder": self._homes[tag], "count": len(series),
                "sorted": series.is_sorted, "last": self.latest.get(tag, (0, 0.0))[1],
            }
            for tag, series in self._series.items()
        }  # fmt: skip
        document = {
            "version": VERSION, "position": self.position, "returns": list(self._returns), "main": self._main,
            "tags": tags,
        }  # fmt: skip
        write_bytes_atomically(self._folder / _INDEX, _index_bytes(document))
        self._is_dirty = False

    # ------------------------------------------------------------------ reading

    def tags(self) -> dict[str, int]:
        """Every tag and how many points it has."""
        return {tag: len(series) for tag, series in self._series.items() if len(series)}

    def since(self, tag: str, index: int, most: int, *, means: bool = False) -> Points:
        """Points from this number on; thinned, they are extremes or means of stretches."""
        if (series := self._series.get(tag)) is None:
            return Points()
        return (series.means if means else series.points)(index, len(series), most)

    def between(self, tag: str, first_step: int, last_step: int, most: int, *, means: bool = False) -> Points:
        """Points of a stretch of steps, both ends included."""
        series = self._series.get(tag)
        return Points() if series is None else series.between(first_step, last_step, most, means=means)

    def headline(self) -> dict[str, float]:
        """The last values of the curves that tell how a run goes."""
        values = {tag: value for tag, (_, value) in islice(self._newest.items(), _SHOWN_TAGS)}
        finite = [value for value in self._returns if math.isfinite(value)]
        if finite:
            values[MEAN_RETURN] = sum(finite) / len(finite)
        if odd := len(self._returns) - len(finite):
            values[NOT_FINITE] = odd
        return {tag: value for tag, value in values.items() if math.isfinite(value)}

    def last_step(self) -> int:
        """How far the run is by its curves."""
        return max((step for step, _ in self._newest.values() if step <= MAX_STEP), default=0)


def _index_bytes(document: Mapping[str, Any]) -> bytes:
    """The index and its checksum. NaN is a value like another here: nobody but this module reads the file."""
    text = json.dumps(document).encode()
    return text + f"\n{zlib.crc32(text):08x}\n".encode()


def _read_index(data: bytes) -> dict[str, Any]:
    text, _, checksum = data.rstrip(b"\n").rpartition(b"\n")
    if checksum != f"{zlib.crc32(text):08x}".encode():
        raise ValueError("the checksum of its index does not fit")
    document: dict[str, Any] = parse_json(text)
    return document
