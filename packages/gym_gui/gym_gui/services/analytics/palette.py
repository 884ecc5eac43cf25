"""Colors of curves, for the window and for files alike: Okabe and Ito's, which color-blind people can distinguish."""

from __future__ import annotations

from dataclasses import dataclass

LIGHT_SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#9a7d00", "#56b4e9", "#7a4fbf", "#5d6878")
DARK_SERIES = ("#56b4e9", "#ff9a4d", "#35c496", "#e39bc6", "#f0e442", "#7fa8ff", "#b99cff", "#98a4b3")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""With the colors, so that lines differ in more than color"""


@dataclass(frozen=True)
class Scheme:
    """The colors of a figure."""

    background: str
    text: str
    muted: str
    grid: str
    series: tuple[str, ...]

    def color(self, index: int) -> str:
        """Return the color of a series; more series than colors start again."""
        return self.series[index % len(self.series)]


LIGHT = Scheme("#ffffff", "#1c2430", "#5d6878", "#d3d7de", LIGHT_SERIES)
DARK = Scheme("#1e242d", "#e4e8ee", "#98a4b3", "#38424f", DARK_SERIES)
