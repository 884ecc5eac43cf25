"""Previews of observations, actions and infos: an image, a grid, or named values. No Qt."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.reasoning import KEY, Part, reasoning_of
from mosaic_wire.telemetry import decode
from numpy.typing import NDArray

from gym_gui.ui.replay.video_file import Image

MIN_IMAGE_SIDE = 16
"""Rows and columns of the smallest image: a smaller array is a board, better shown as numbers"""
_MAX_VALUES = 400
_MAX_CELLS = 64 * 64
_UNREADABLE = (ValueError, EOFError, OSError, zlib.error)
_IMAGE_KEYS = ("render", "frame", "image", "rgb", "pixels", "picture", "screen")


@dataclass(frozen=True)
class ObservationPreview:
    """A value ready to be shown: at most one image or grid, and other values."""

    image: Image | None = None
    grid: tuple[tuple[str, ...], ...] = ()
    values: tuple[tuple[str, str], ...] = ()
    text: str = ""
    note: str = ""
    """A note for users, e.g. that the value was shortened or is a frame stack"""


@dataclass(frozen=True)
class StepPreview:
    """A step, ready to be shown."""

    observation: ObservationPreview
    action: str
    info: tuple[tuple[str, str], ...]
    problem: str = ""
    reasoning: tuple[Part, ...] = ()


def preview_of_step(step: pb.RunStep) -> StepPreview:
    """Decode a stored step; `problem` describes undecodable parts."""
    problems = []
    try:
        observation = preview_of(decode(step.observation))
    except _UNREADABLE as error:
        observation = ObservationPreview()
        problems.append(f"the observation cannot be read: {error}")
    try:
        action = short(decode(step.action))
    except _UNREADABLE as error:
        action = ""
        problems.append(f"the action cannot be read: {error}")
    try:
        info = json.loads(step.info_json) if step.info_json else {}
    except ValueError as error:
        info = {}
        problems.append(f"the info cannot be read: {error}")
    if not isinstance(info, Mapping):
        info = {"info": info}
    rows = flattened({key: value for key, value in info.items() if key != KEY})
    return StepPreview(observation, action, tuple(rows[:_MAX_VALUES]), "; ".join(problems), reasoning_of(info))


def preview_of(value: Any) -> ObservationPreview:
    """Return the best presentation of a value."""
    if isinstance(value, np.ndarray):
        return _preview_of_array(value)
    if isinstance(value, Mapping):
        return _preview_of_mapping(value)
    if isinstance(value, str):
        return ObservationPreview(text=value)
    if isinstance(value, Sequence):
        array = _as_array(value)
        if array is not None:
            return _preview_of_array(array)
        return _values(flattened(dict(enumerate(value))))
    return ObservationPreview() if value is None else _values([("value", short(value))])


def flattened(value: Mapping[Any, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return `[("a.b", "1")]` for `{"a": {"b": 1}}`."""
    rows: list[tuple[str, str]] = []
    for key, entry in value.items():
        name = f"{prefix}{key}"
        if isinstance(entry, Mapping) and entry:
            rows += flattened(entry, f"{name}.")
        else:
            rows.append((name, short(entry)))
        if len(rows) > _MAX_VALUES:
            break
    return rows


def short(value: Any) -> str:
    """Return a value in one line."""
    if isinstance(value, np.ndarray):
        if value.ndim == 0:
            return short(value.item())
        if value.size <= 12:
            return "[" + ", ".join(short(entry.item()) for entry in value.ravel()) + "]"
        return f"array {'×'.join(map(str, value.shape))} of {value.dtype}"
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int | np.integer):
        return str(value)
    if isinstance(value, float | np.floating):
        return f"{float(value):.4g}"
    if isinstance(value, str):
        return value if len(value) <= 300 else value[:297] + "…"
    if isinstance(value, list | tuple):
        if len(value) <= 12:
            return "[" + ", ".join(short(entry) for entry in value) + "]"
        return f"{len(value)} values"
    text = json.dumps(value, default=str)
    return text if len(text) <= 300 else text[:297] + "…"


# ---------------------------------------------------------------- arrays


def _preview_of_array(array: NDArray[Any]) -> ObservationPreview:
    if array.dtype.kind not in "biuf":
        return ObservationPreview(text=short(array))
    image, note = _image_of(array)
    if image is not None:
        return ObservationPreview(image=image, note=note)
    if array.ndim == 0:
        return _values([("value", short(array))])
    if array.ndim == 1:
        return _values([(str(index), _number(entry)) for index, entry in enumerate(array[: _MAX_VALUES + 1])])
    if array.ndim in (2, 3) and array.shape[0] * array.shape[1] <= _MAX_CELLS:
        grid = tuple(tuple(_cell(entry) for entry in row) for row in array)
        return ObservationPreview(grid=grid, note="×".join(map(str, array.shape)))
    return ObservationPreview(
        text=f"array of {'×'.join(map(str, array.shape))}, {array.dtype}; from {_number(array.min())} to "
        f"{_number(array.max())}"
        if array.size
        else "an empty array"
    )


def _image_of(array: NDArray[Any]) -> tuple[Image | None, str]:
    """Return an array as an RGB image, if it is large enough."""
    if array.ndim == 2 and min(array.shape) >= MIN_IMAGE_SIDE:
        return _colored(array), ""
    if array.ndim != 3 or not array.size:
        return None, ""
    rows, columns, last = array.shape
    if last in (1, 3, 4) and min(rows, columns) >= MIN_IMAGE_SIDE:
        if last == 4 and array.dtype == np.uint8 and array[..., 3].min() < 255:
            return _side_by_side(np.moveaxis(array, -1, 0)), "4 frames, oldest left"
        return _colored(array[..., 0] if last == 1 else array[..., :3]), ""
    if rows in (1, 2, 3, 4, 8) and min(columns, last) >= MIN_IMAGE_SIDE:
        if rows == 3:
            return _colored(np.moveaxis(array, 0, -1)), ""
        if rows == 1:
            return _colored(array[0]), ""
        return _side_by_side(array), f"{rows} frames, oldest left"
    return None, ""


def _side_by_side(stack: NDArray[Any]) -> Image:
    return _colored(np.concatenate(list(stack), axis=1))


def _colored(array: NDArray[Any]) -> Image:
    if array.dtype != np.uint8:
        numbers = np.nan_to_num(array.astype(np.float64))
        low, high = numbers.min(), numbers.max()
        if low >= 0 and high <= 1:
            low, high = 0.0, 1.0
        elif low >= 0 and high <= 255:
            low, high = 0.0, 255.0
        array = ((numbers - low) * (255 / (high - low or 1))).astype(np.uint8)
    if array.ndim == 2:
        array = np.repeat(array[..., None], 3, axis=2)
    return np.ascontiguousarray(array)


def _cell(entry: Any) -> str:
    return ",".join(_number(part) for part in entry) if np.ndim(entry) else _number(entry)


def _number(entry: Any) -> str:
    number = entry.item() if hasattr(entry, "item") else entry
    if isinstance(number, bool | int):
        return str(int(number)) if not isinstance(number, bool) else str(number)
    return f"{number:.4g}" if math.isfinite(number) else str(number)


def _preview_of_mapping(value: Mapping[Any, Any]) -> ObservationPreview:
    """Show the first image of a dictionary, everything else as values."""
    named = [key for key in _IMAGE_KEYS if key in value]
    for key in (*named, *(key for key in value if key not in named)):
        entry = value[key]
        array = entry if isinstance(entry, np.ndarray) else _as_array(entry) if isinstance(entry, list) else None
        if array is None or array.dtype.kind not in "biuf":
            continue
        shown = _preview_of_array(array)
        if shown.image is not None or shown.grid:
            rest = flattened({other: value[other] for other in value if other != key})
            return ObservationPreview(
                shown.image, shown.grid, _cut(rest)[0], note=" · ".join(filter(None, (str(key), shown.note)))
            )
    return _values(flattened(value))


def _values(rows: list[tuple[str, str]]) -> ObservationPreview:
    kept, note = _cut(rows)
    return ObservationPreview(values=kept, note=note)


def _cut(rows: list[tuple[str, str]]) -> tuple[tuple[tuple[str, str], ...], str]:
    note = f"the first {_MAX_VALUES} values" if len(rows) > _MAX_VALUES else ""
    return tuple(rows[:_MAX_VALUES]), note


def _as_array(value: Sequence[Any]) -> NDArray[Any] | None:
    """Return an array for lists of numbers of equal length, which went through JSON."""
    try:
        array = np.asarray(value)
    except ValueError:  # of different lengths
        return None
    return array if array.dtype.kind in "biuf" else None
