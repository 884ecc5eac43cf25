"""Makes the figures of a board in a thread, one set at a time, and not more often than the machine likes."""

from __future__ import annotations

import time
from collections.abc import Callable

from PySide6.QtCore import QObject, QTimer, Signal

from gym_gui.services.analytics.figure import Figure
from gym_gui.ui.background import Background
from gym_gui.ui.presenters.charts import ChartChoice, build_figures, loaded_tags
from gym_gui.ui.widgets.chart_feed import ChartFeed

_AT_ONCE_MS = 60
_WHILE_LOADING_MS = 600
"""Between two figures while more curves are on their way: each is computed from all that have come"""
_SHARE, _SHARE_WHILE_LOADING = 2, 5
"""And at least so many times as long as the last ones took: a bootstrap of many runs is not made for each piece"""


class FigureMaker(QObject):
    """`made` carries the choice that the figures were made by, and the figures by tag."""

    made = Signal(object, object)  # ChartChoice, dict[str, Figure]

    def __init__(
        self, feed: ChartFeed, background: Background, choice: Callable[[], ChartChoice], parent: QObject
    ) -> None:
        super().__init__(parent)
        self._feed, self._background, self._choice = feed, background, choice
        self._is_computing = False
        self._is_wanted_again = False
        self._has_made = False
        self._took_ms = 0.0
        self._timer = QTimer(self, singleShot=True)
        self._timer.timeout.connect(self._compute)

    @property
    def is_busy(self) -> bool:
        return self._is_computing or self._is_wanted_again or self._timer.isActive()

    def soon(self) -> None:
        """There are more curves."""
        wait = _AT_ONCE_MS
        if self._has_made and self._feed.is_complete:
            wait = max(wait, round(_SHARE * self._took_ms))
        elif self._has_made:
            wait = max(_WHILE_LOADING_MS, round(_SHARE_WHILE_LOADING * self._took_ms))
        if not self._timer.isActive() or self._timer.remainingTime() > wait:
            self._timer.start(wait)

    def at_once(self) -> None:
        """Somebody chose something."""
        self._timer.start(_AT_ONCE_MS)

    def _compute(self) -> None:
        if self._is_computing:
            self._is_wanted_again = True
            return
        self._is_wanted_again = False
        runs, tags, choice = list(self._feed.runs.values()), self._feed.tags, self._choice()
        if not runs or not tags:
            self._has_made = False
            self.made.emit(choice, {})
            return
        self._is_computing = True
        curves = self._feed.store.curves(runs, loaded_tags(tags))

        def compute() -> tuple[dict[str, Figure], float]:
            began = time.thread_time()
            return build_figures(runs, curves, choice, tags), (time.thread_time() - began) * 1000

        self._background.run(compute, owner=self, done=lambda answer: self._take(choice, *answer), failed=self._fail)

    def _take(self, choice: ChartChoice, figures: dict[str, Figure], took_ms: float) -> None:
        self._is_computing, self._has_made, self._took_ms = False, True, took_ms
        if self._is_wanted_again:
            self.at_once()
        self.made.emit(choice, figures)

    def _fail(self, error: Exception) -> None:
        self._is_computing = False
        raise error
