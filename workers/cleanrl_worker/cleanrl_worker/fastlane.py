"""FastLane in the training process: draw what viewers on this machine watch, and nothing while there is no viewer.

Our own algorithms are drawn by `training/rendering.py`, scripts through `FastLaneTelemetryWrapper`, which the
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
from mosaic_wire.frames import FrameWriter, fastlane_path
from mosaic_wire.run_request import FASTLANE_NUMBERS, VIDEO_MODES

if TYPE_CHECKING:
    import numpy as np

POLL_S = 0.01
"""How often at most it is checked whether there is a viewer"""
_NOTICE_S = 20.0
_SMOOTHING = 0.9
"""Weight of the earlier episodes in the smoothed return"""


@dataclass(frozen=True)
class FastLaneSettings:
    """What is drawn: the environment `slot`, or in mode `grid` up to `grid_limit` of them as tiles."""

    run_id: str = ""
    mode: str = "off"
    slot: int = 0
    grid_limit: int = 4
    interval_s: float = 1 / 30
    max_side: int = 0
    """pixels; larger frames are scaled down. 0: as they are drawn"""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> FastLaneSettings:
        """Read what the worker exported; without a run there are no viewers."""
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
        """Return whether anything is drawn."""
        return self.mode != "off"

    def slots(self, count: int) -> list[int]:
        """Return which of `count` environments are drawn."""
        if self.mode == "grid":
            return list(range(min(count, self.grid_limit)))
        return [min(self.slot, count - 1)]


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text and text.isascii() and text.isdigit() else otherwise


def fastlane_variables(extras: Mapping[str, Any]) -> dict[str, str]:
    """Return what the worker exports for these extras; where they set nothing, the user's own variables hold."""
    chosen: dict[str, str] = {}
    if extras.get("fastlane_enabled") is False:
        chosen[names.GYM_GUI_FASTLANE_VIDEO_MODE] = "off"
    elif extras.get("fastlane_video_mode") in VIDEO_MODES:
        chosen[names.GYM_GUI_FASTLANE_VIDEO_MODE] = extras["fastlane_video_mode"]
    for key, (_, variable) in FASTLANE_NUMBERS.items():
        if type(extras.get(key)) is int:
            chosen[variable] = str(extras[key])
    if "fastlane_only" in extras:
        chosen[names.GYM_GUI_FASTLANE_ONLY] = "1" if extras["fastlane_only"] else "0"
    return chosen


class Painter:
    """Write frames into a run's FastLane, with the values beside them."""

    def __init__(self, settings: FastLaneSettings) -> None:
        self._settings = settings
        self._writer = FrameWriter(fastlane_path(settings.run_id), interval_s=settings.interval_s)
        self._notice = ""

    @property
    def is_watched(self) -> bool:
        """Return whether there is a viewer."""
        return self._writer.is_watched

    def is_due(self) -> bool:
        """Return whether it is time for the next frame."""
        return self._writer.is_due()

    def show(self, frames: Sequence[np.ndarray], drawing_s: float) -> None:
        """Publish one frame, or several as tiles; `drawing_s` is how long it took to draw them."""
        began = time.monotonic()
        frame = shrink(tiled(frames), self._settings.max_side)
        height, width = frame.shape[:2]
        self._writer.publish(frame.data, width, height)
        self._writer.record_render_time(drawing_s + time.monotonic() - began)

    def show_values(self, last_reward: float, rolling_return: float, step_rate_hz: float) -> None:
        """Publish the values shown beside the frame."""
        self._writer.set_statistics(last_reward=last_reward, rolling_return=rolling_return, step_rate_hz=step_rate_hz)

    def explain(self, notice: str) -> None:
        """Publish a text instead of a frame."""
        if notice != self._notice:
            self._notice = notice
            self._writer.notice(notice)
        self._writer.wait(_NOTICE_S)

    def close(self) -> None:
        """Remove the FastLane."""
        self._writer.close()


def tiled(frames: Sequence[np.ndarray]) -> np.ndarray:
    """Return several frames as one, in rows; smaller ones are padded with black."""
    import numpy as np

    if len(frames) == 1:
        return np.ascontiguousarray(frames[0])
    columns = int(np.ceil(np.sqrt(len(frames))))
    rows = -(-len(frames) // columns)
    height, width = (max(frame.shape[axis] for frame in frames) for axis in (0, 1))
    whole = np.zeros((rows * height, columns * width, 3), dtype=np.uint8)
    for index, frame in enumerate(frames):
        top, left = index // columns * height, index % columns * width
        whole[top : top + frame.shape[0], left : left + frame.shape[1]] = frame
    return whole


def shrink(frame: np.ndarray, max_side: int) -> np.ndarray:
    """Return the frame with no side longer than this, by dropping pixels."""
    import numpy as np

    longest = max(frame.shape[:2])
    if not max_side or longest <= max_side:
        return frame
    keep = -(-longest // max_side)
    return np.ascontiguousarray(frame[::keep, ::keep])


def as_frame(drawn: Any) -> np.ndarray | None:
    """Return what an environment rendered as an RGB frame; None when it is no image."""
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
    """Return the environment's index: counted in this process, or from the name of a vector environment's process."""
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
    """Wrap the environments a script makes, as the environment variables request."""
    global _lane
    settings = FastLaneSettings.from_environment()
    if settings.is_on and _lane is None:
        _lane = _ScriptLane(settings)
        wrappers.append(wrap)


def wrap(environment: Any) -> Any:
    """Wrap an environment that is to be drawn; others are returned unchanged, and cost nothing."""
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
    """Wrapper of one environment of a script, mixed with the Wrapper class of the library the environment is from."""

    def __init__(self, environment: Any, index: int, lane: _ScriptLane) -> None:
        super().__init__(environment)  # type: ignore[call-arg]
        self._index, self._lane = index, lane
        # One of them publishes: the one that is drawn, or the first of a grid.
        self._publishes = index == (0 if lane.settings.mode == "grid" else lane.settings.slot)
        self._countdown = self._gap = 1
        self._polled_at = time.monotonic()
        self._drawn_at = 0.0
        self._return = self._smoothed = 0.0

    def step(self, action: Any) -> Any:
        """Step, count the return, and draw when a frame is due."""
        result = super().step(action)  # type: ignore[misc]
        self._return += float(result[1])
        if result[2] or (len(result) == 5 and result[3]):
            self._smoothed += (1 - _SMOOTHING) * (self._return - self._smoothed)
            self._return = 0.0
        self._countdown -= 1
        if not self._countdown:
            self._poll(float(result[1]))
        return result

    def _poll(self, reward: float) -> None:
        now = time.monotonic()
        rate = self._gap / max(1e-9, now - self._polled_at)
        self._polled_at = now
        self._gap = self._countdown = max(1, min(10_000, int(rate * POLL_S)))
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
        lane.painter.show_values(reward, self._smoothed, rate)
        notice = self._draw()
        if notice:
            lane.painter.explain(notice)
        else:
            lane.painter.show([lane.tiles[index] for index in sorted(lane.tiles)], lane.drawing_s)
        lane.drawing_s = 0.0

    def _draw(self) -> str:
        """Draw this environment's tile; return why that is not possible."""
        self._drawn_at = began = time.monotonic()
        frame, notice = draw(self)
        self._lane.drawing_s += time.monotonic() - began
        if frame is not None:
            self._lane.tiles[self._index] = frame
        return notice

    def close(self) -> Any:
        """Close the environment, and the FastLane of the one that publishes."""
        if self._publishes and self._lane.painter is not None:
            self._lane.painter.close()
            self._lane.painter = None
        return super().close()  # type: ignore[misc]


def draw(environment: Any) -> tuple[np.ndarray | None, str]:
    """Return the frame of an environment, or why there is none."""
    base = environment.unwrapped
    name = getattr(getattr(base, "spec", None), "id", None) or type(base).__name__
    if getattr(base, "render_mode", None) is None:
        if "rgb_array" not in (getattr(base, "metadata", None) or {}).get("render_modes", ()):
            return None, f"{name} cannot be drawn: it has no render mode rgb_array"
        try:
            base.render_mode = "rgb_array"  # read when it draws, not when it is made
        except AttributeError:
            return None, f"{name} cannot be drawn: it was made without a render mode"
    try:
        frame = as_frame(base.render())
    except Exception as error:  # noqa: BLE001 - drawing needs packages and libraries of many kinds
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return None, f"{name} cannot be drawn here: {lines[0]}"
    return frame, "" if frame is not None else f"{name} rendered something that is no image"
