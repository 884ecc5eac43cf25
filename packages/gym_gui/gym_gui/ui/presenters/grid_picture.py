"""A board of numbers as coloured cells: what an agent on a grid saw, at one look. No widgets here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

CELLS = (
    (38, 44, 54), (120, 128, 140), (0, 114, 178), (213, 94, 0), (0, 158, 115), (204, 121, 167), (230, 159, 0),
    (86, 180, 233), (240, 228, 66), (122, 79, 191), (228, 232, 238), (150, 75, 0),
)  # fmt: skip
"""Colours of the kinds of cells: those of Okabe and Ito, on a dark floor"""


def grid_picture(grid: Sequence[Sequence[str]]) -> NDArray[np.uint8] | None:
    """One pixel for each cell; None when a cell holds no number.

    Of a cell with several numbers the first counts: MiniGrid's is the kind of thing, then its colour and its state.
    Whole numbers get a colour each, others a shade of grey between the smallest and the largest.
    """
    try:
        numbers = np.array([[float(cell.partition(",")[0]) for cell in row] for row in grid], np.float64)
    except ValueError:  # words, or rows of different lengths
        return None
    if numbers.ndim != 2 or not numbers.size:
        return None
    numbers = np.nan_to_num(numbers)
    if not np.any(numbers % 1) and np.abs(numbers).max() < 2**31:
        colours = np.array(CELLS, np.uint8)
        return np.ascontiguousarray(colours[numbers.astype(np.int64) % len(colours)])
    low, reach = float(numbers.min()), float(np.ptp(numbers)) or 1.0
    grey = ((numbers - low) / reach * 255).astype(np.uint8)
    return np.ascontiguousarray(np.repeat(grey[:, :, None], 3, axis=2))
