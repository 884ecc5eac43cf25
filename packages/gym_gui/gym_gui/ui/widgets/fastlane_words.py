"""What a run's record says about its picture: which environments are drawn, and why there is none."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QCoreApplication

from gym_gui.wording.run_view import parsed

_GRID_LIMIT = 4
_LIVE = ("HSHK", "RDY", "EXEC", "PAUSE")


def tr(text: str) -> str:
    return QCoreApplication.translate("FastLane", text)


@dataclass(frozen=True)
class Drawing:
    """How a run was told to draw itself."""

    mode: str
    """single | grid | off"""
    slot: int = 0
    tiles: int = 0
    """Of a grid: how many environments are in it; 0: not known here"""

    @property
    def columns_and_rows(self) -> tuple[int, int]:
        """The same arrangement as the worker's."""
        columns = math.ceil(math.sqrt(max(1, self.tiles)))
        return columns, -(-max(1, self.tiles) // columns)

    @property
    def caption(self) -> str:
        if self.mode == "off":
            return tr("FastLane is off")
        if self.mode == "grid":
            return tr("grid of {0} environments").format(self.tiles) if self.tiles else tr("grid of environments")
        return tr("environment {0}").format(self.slot)


def drawing_of(run: pb.Run) -> Drawing:
    """From the run's extras; what they do not say is as the worker does it by default."""
    extras = parsed(run.extras_json)
    extras = extras if isinstance(extras, dict) else {}
    if extras.get("fastlane_enabled") is False or extras.get("fastlane_video_mode") == "off":
        return Drawing("off")
    if extras.get("fastlane_video_mode") == "grid":
        parameters = extras.get("algo_params")
        environments = _whole(parameters.get("num_envs") if isinstance(parameters, dict) else None)
        limit = _whole(extras.get("fastlane_grid_limit")) or _GRID_LIMIT
        return Drawing("grid", tiles=min(environments, limit) if environments else 0)
    return Drawing("single", slot=_whole(extras.get("fastlane_slot")))


def is_live(run: pb.Run) -> bool:
    """Whether it has a process that may draw and send."""
    return run.status in _LIVE


def why_no_picture(run: pb.Run, writers_words: str) -> str:
    """A sentence for a person who looks at an empty view."""
    if run.status == "TERM":
        return tr("This run is over and draws no more. Its recorded episodes are under Replay.")
    if run.status == "INIT":
        reason = f" ({run.queue_reason})" if run.queue_reason else ""
        return tr("The run waits in the queue{0}. Its picture appears here when it trains.").format(reason)
    if drawing_of(run).mode == "off":
        return tr("FastLane was switched off for this run, so it draws nothing. Clone it with FastLane on to watch it.")
    if run.status in ("HSHK", "RDY"):
        return tr("The run is starting.")
    if run.status == "PAUSE":
        return tr("The run is paused. It draws again when it goes on.")
    if writers_words:
        return writers_words[:1].upper() + writers_words[1:]
    return tr("No picture yet. The run draws as soon as its environment takes steps.")


def _whole(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0
