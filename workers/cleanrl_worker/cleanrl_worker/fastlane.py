"""FastLane in the training process: draws what viewers on this machine watch, and nothing while nobody does.

Our own algorithms are watched through `training/watching.py`, scripts through `FastLaneTelemetryWrapper`, which the
hooks put around what `gym.make` gives them. Settings come from the environment, see `FastLaneSettings`.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mosaic_wire import env as names
from mosaic_wire.extras_checks import NUMBERS, VIDEO_MODES
from mosaic_wire.frames import FrameWriter, fastlane_path

if TYPE_CHECKING:
    import numpy as np

LOOK_S = 0.01
"""How often at most it is asked whether somebody watches"""
_NOTICE_S = 20.0
_SMOOTHING = 0.9
"""How much of the smoothed return an episode leaves as it is"""


@dataclass(frozen=True)
class FastLaneSettings:
    """What is drawn: the environment `slot`, or in mode `grid` up to `grid_limit` of them as tiles."""

    run_id: str = ""
    mode: str = "off"
    slot: int = 0
    grid_limit: int = 4
    interval_s: float = 1 / 30
    max_side: int = 0
    """pixels; larger pictures are made smaller. 0: as they are drawn"""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> FastLaneSettings:
        """What the worker exported; without a run there is nobody to watch."""
        run_id = environ.get(names.MOSAIC_RUN_ID, "")
        mode = environ.get(names.GYM_GUI_FASTLANE_VIDEO_MODE, "single")
        if not run_id or mode not in VIDEO_MODES:
            mode = "off"
        return cls(
            run_id=run_id,
            mode=mode,
            slot=_number(environ.get(names.GYM_GUI_FASTLANE_SLOT), 0),
            grid_limit=max(1, _number(environ.get(names.GYM_GUI_FASTLANE_GRID_LIMIT), 4)),
            interval_s=max(1, _number(environ.get(names.CLEANRL_FASTLANE_INTERVAL_MS), 33)) / 1000,
            max_side=_number(environ.get(names.CLEANRL_FASTLANE_MAX_DIM), 0),
        )

    @property
    def is_on(self) -> bool:
        return self.mode != "off"

    def slots(self, count: int) -> list[int]:
        """Which of so many environments are drawn."""
        if self.mode == "grid":
            return list(range(min(count, self.grid_limit)))
        return [min(self.slot, count - 1)]


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text and text.isascii() and text.isdigit() else otherwise


def fastlane_variables(extras: Mapping[str, Any]) -> dict[str, str]:
    """What the worker exports for these extras; where they say nothing the user's own variables count."""
    chosen: dict[str, str] = {}
    if extras.get("fastlane_enabled") is False:
        chosen[names.GYM_GUI_FASTLANE_VIDEO_MODE] = "off"
    elif extras.get("fastlane_video_mode") in VIDEO_MODES:
        chosen[names.GYM_GUI_FASTLANE_VIDEO_MODE] = extras["fastlane_video_mode"]
    for key, (_, variable) in NUMBERS.items():
        if type(extras.get(key)) is int:
            chosen[variable] = str(extras[key])
    if "fastlane_only" in extras:
        chosen[names.GYM_GUI_FASTLANE_ONLY] = "1" if extras["fastlane_only"] else "0"
    return chosen


class Painter:
    """Writes pictures into a run's FastLane, with the figures beside them."""

    def __init__(self, settings: FastLaneSettings) -> None:
        self._settings = settings
        self._writer = FrameWriter(fastlane_path(settings.run_id), interval_s=settings.interval_s)
        self._told = ""

    @property
    def is_watched(self) -> bool:
        return self._writer.is_watched

    def is_due(self) -> bool:
        return self._writer.is_due()

    def show(self, pictures: Sequence[np.ndarray], drawing_s: float) -> None:
        """Publish one picture, or several as tiles; `drawing_s` is what it took to draw them."""
        began = time.monotonic()
        picture = shrink(tiled(pictures), self._settings.max_side)
        height, width = picture.shape[:2]
        self._writer.publish(picture.data, width, height)
        self._writer.drawn(drawing_s + time.monotonic() - began)

    def tell(self, last_reward: float, rolling_return: float, step_rate_hz: float) -> None:
        self._writer.tell(last_reward=last_reward, rolling_return=rolling_return, step_rate_hz=step_rate_hz)

    def explain(self, notice: str) -> None:
        """Words instead of a picture."""
        if notice != self._told:
            self._told = notice
            self._writer.notice(notice)
        self._writer.wait(_NOTICE_S)  # no need to hurry

    def close(self) -> None:
        self._writer.close()


def tiled(pictures: Sequence[np.ndarray]) -> np.ndarray:
    """Several pictures as one, in rows; smaller ones stand on black."""
    import numpy as np

    if len(pictures) == 1:
        return np.ascontiguousarray(pictures[0])
    columns = int(np.ceil(np.sqrt(len(pictures))))
    rows = -(-len(pictures) // columns)
    height, width = (max(picture.shape[axis] for picture in pictures) for axis in (0, 1))
    whole = np.zeros((rows * height, columns * width, 3), dtype=np.uint8)
    for index, picture in enumerate(pictures):
        top, left = index // columns * height, index % columns * width
        whole[top : top + picture.shape[0], left : left + picture.shape[1]] = picture
    return whole


def shrink(picture: np.ndarray, max_side: int) -> np.ndarray:
    """The picture with no side longer than this; every so many pixels one is kept."""
    import numpy as np

    longest = max(picture.shape[:2])
    if not max_side or longest <= max_side:
        return picture
    keep = -(-longest // max_side)
    return np.ascontiguousarray(picture[::keep, ::keep])


def as_picture(drawn: Any) -> np.ndarray | None:
    """What an environment drew, if it is a picture: grey ones get colours, anything else is none."""
    import numpy as np

    if isinstance(drawn, list) and drawn:
        drawn = drawn[-1]
    if not isinstance(drawn, np.ndarray) or drawn.dtype != np.uint8:
        return None
    if drawn.ndim == 2:
        drawn = np.repeat(drawn[:, :, None], 3, axis=2)
    if drawn.ndim != 3 or drawn.shape[2] != 3 or not drawn.size:
        return None
    return np.ascontiguousarray(drawn)


# ------------------------------------------------------------------ scripts


def env_index(made_before: int) -> int:
    """Which environment this is: counted in this process, or by the name of one that a vector environment started."""
    found = re.fullmatch(r"Worker<\w+>-(\d+)", multiprocessing.current_process().name)
    return int(found[1]) if found else made_before


class _ScriptLane:
    """What the wrapped environments of one process share: the painter, and in mode `grid` the tiles."""

    def __init__(self, settings: FastLaneSettings) -> None:
        self.settings = settings
        self.painter: Painter | None = None
        self.made = 0
        self.is_watched = False
        self.tiles: dict[int, np.ndarray] = {}
        self.drawing_s = 0.0


_lane: _ScriptLane | None = None


def install(wrappers: list[Any]) -> None:
    """Have the environments a script makes wrapped, as the environment variables say."""
    global _lane
    settings = FastLaneSettings.from_environment()
    if settings.is_on and _lane is None:
        _lane = _ScriptLane(settings)
        wrappers.append(wrap)


def wrap(environment: Any) -> Any:
    """Put the wrapper around an environment that is to be drawn; others stay as they are, and cost nothing."""
    assert _lane is not None
    index = env_index(_lane.made)
    _lane.made += 1
    settings = _lane.settings
    is_drawn = index < settings.grid_limit if settings.mode == "grid" else index == settings.slot
    library = next((sys.modules[name] for name in ("gymnasium", "gym") if _is_from(environment, name)), None)
    if not is_drawn or library is None:
        return environment
    wrapper = type("FastLaneTelemetryWrapper", (FastLaneTelemetryWrapper, library.Wrapper), {})
    return wrapper(environment, index, _lane)


def _is_from(environment: Any, library: str) -> bool:
    return library in sys.modules and isinstance(environment, sys.modules[library].Env)


class FastLaneTelemetryWrapper:
    """Around one environment of a script; mixed with the Wrapper class of the library the environment is from."""

    def __init__(self, environment: Any, index: int, lane: _ScriptLane) -> None:
        super().__init__(environment)  # type: ignore[call-arg]
        self._index, self._lane = index, lane
        # One of them publishes: the one that is watched, or of a grid the first.
        self._publishes = index == (0 if lane.settings.mode == "grid" else lane.settings.slot)
        self._countdown = self._gap = 1
        self._looked_at = time.monotonic()
        self._drawn_at = 0.0
        self._return = self._smoothed = 0.0

    def step(self, action: Any) -> Any:
        result = super().step(action)  # type: ignore[misc]
        self._return += float(result[1])
        if result[2] or (len(result) == 5 and result[3]):
            self._smoothed += (1 - _SMOOTHING) * (self._return - self._smoothed)
            self._return = 0.0
        self._countdown -= 1
        if not self._countdown:
            self._look(float(result[1]))
        return result

    def _look(self, reward: float) -> None:
        now = time.monotonic()
        rate = self._gap / max(1e-9, now - self._looked_at)
        self._looked_at = now
        self._gap = self._countdown = max(1, min(10_000, int(rate * LOOK_S)))
        if self._publishes:
            self._publish(reward, rate)
        elif self._lane.is_watched and now - self._drawn_at >= self._lane.settings.interval_s:
            self._draw()

    def _publish(self, reward: float, rate: float) -> None:
        lane = self._lane
        if lane.painter is None:
            lane.painter = Painter(lane.settings)
        lane.is_watched = lane.painter.is_watched
        if not lane.painter.is_due():
            return
        lane.painter.tell(reward, self._smoothed, rate)
        notice = self._draw()
        if notice:
            lane.painter.explain(notice)
        else:
            lane.painter.show([lane.tiles[index] for index in sorted(lane.tiles)], lane.drawing_s)
        lane.drawing_s = 0.0

    def _draw(self) -> str:
        """Draw this one's tile; return why that cannot be."""
        self._drawn_at = began = time.monotonic()
        picture, notice = draw(self)
        self._lane.drawing_s += time.monotonic() - began
        if picture is not None:
            self._lane.tiles[self._index] = picture
        return notice

    def close(self) -> Any:
        if self._publishes and self._lane.painter is not None:
            self._lane.painter.close()
            self._lane.painter = None
        return super().close()  # type: ignore[misc]


def draw(environment: Any) -> tuple[np.ndarray | None, str]:
    """The picture of an environment, or why there is none."""
    base = environment.unwrapped
    name = getattr(getattr(base, "spec", None), "id", None) or type(base).__name__
    if getattr(base, "render_mode", None) is None:
        if "rgb_array" not in (getattr(base, "metadata", None) or {}).get("render_modes", ()):
            return None, f"{name} cannot be drawn: it has no pictures (render mode rgb_array)"
        try:
            base.render_mode = "rgb_array"  # looked at when it draws, not when it is made
        except AttributeError:
            return None, f"{name} cannot be drawn: it was made without pictures"
    try:
        picture = as_picture(base.render())
    except Exception as error:  # noqa: BLE001 - drawing needs packages and libraries of many kinds
        words = str(error).strip().splitlines() or [type(error).__name__]
        return None, f"{name} cannot be drawn here: {words[0]}"
    return picture, "" if picture is not None else f"{name} drew something that is no picture"
