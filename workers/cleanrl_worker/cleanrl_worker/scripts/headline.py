"""How far a script is, read from the event files it writes: nobody has to change it for that."""

from __future__ import annotations

import ast
import math
import re
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mosaic_wire.event_files import EventFolderReader
from mosaic_wire.paths import RunFolder
from mosaic_wire.system_metrics import FOLDER as SYSTEM_FOLDER

LOOK_EVERY_S = 2.0
"""How often the event files are looked at"""

RETURN_TAGS = ("charts/episodic_return", "charts/episode_return", "rollout/ep_rew_mean", "episodic_return")
SPS_TAGS = ("charts/SPS", "time/fps", "SPS")
_EPISODES = 100
"""Of which the return is the mean: as many as of every other run"""


def parameters_in(table: str) -> dict[str, str]:
    """The rows of the Markdown table that every run of ours and of CleanRL's writes as `hyperparameters`."""
    rows = re.findall(r"^\|([A-Za-z0-9_]+)\|(.*)\|\s*$", table, re.MULTILINE)
    return {name: value for name, value in rows if name != "param"}


def _value(word: str) -> Any:
    """`True`, `2.5e-4`, `None` as what they mean; anything else stays a text."""
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return word


@dataclass(frozen=True)
class Headline:
    """What a heartbeat says of a run."""

    step: int = 0
    episodic_return: float | None = None
    """mean of the last 100 episodes"""
    sps: float | None = None


class HeadlineFollower:
    """Reads what was added to the event files of a run; those of an earlier attempt do not count."""

    def __init__(self, folder: RunFolder, *, in_phases: bool = False) -> None:
        """`in_phases`: trainings follow one another, each with a folder of its own, and their steps are added up."""
        self.newest = Headline()
        self.parameters: dict[str, Any] = {}
        """What the script says of its hyper-parameters"""
        self._looked_at = time.monotonic()
        self._reader = EventFolderReader(folder.tensorboard, beside=True, bulk=False, texts=True)
        self._in_phases = in_phases
        self._returns: deque[float] = deque(maxlen=_EPISODES)
        self._steps: dict[str, int] = {}
        """Folder → its largest step"""
        self._trainings: set[str] = set()
        """Folders with returns or a speed"""
        self._sps: float | None = None
        self._reader.read()
        while self._reader.has_more:
            self._reader.read()

    def has_news(self, *, now: bool = False) -> bool:
        """Look when it is time to (or `now`); tell whether `newest` has changed."""
        if not now and time.monotonic() - self._looked_at < LOOK_EVERY_S:
            return False
        self._looked_at = time.monotonic()
        earlier, self.newest = self.newest, self._read()
        return self.newest != earlier

    def _read(self) -> Headline:
        while True:
            for batch in self._reader.read():
                for text in batch.texts:
                    if text.tag.split("/")[0] == "hyperparameters":
                        self.parameters |= {name: _value(word) for name, word in parameters_in(text.text).items()}
                for tag, column in batch.columns.items():
                    self._take(batch.folder, tag, column.steps, column.values)
            if not self._reader.has_more:
                break
        mean = sum(self._returns) / len(self._returns) if self._returns else None
        largest = max(self._steps.values(), default=0)
        added = sum(self._steps[folder] for folder in self._trainings) if self._in_phases else 0
        return Headline(max(largest, added), mean, self._sps)

    def _take(self, folder: str, tag: str, steps: Sequence[int], values: Sequence[float]) -> None:
        if tag.startswith("eval/") or folder == SYSTEM_FOLDER:  # evaluations count episodes, not steps
            return
        self._steps[folder] = max(self._steps.get(folder, 0), *steps)
        finite = [value for value in values if math.isfinite(value)]
        if tag in RETURN_TAGS or tag in SPS_TAGS:
            self._trainings.add(folder)
        if tag in RETURN_TAGS:
            self._returns.extend(finite)
        elif tag in SPS_TAGS and finite:
            self._sps = finite[-1]
