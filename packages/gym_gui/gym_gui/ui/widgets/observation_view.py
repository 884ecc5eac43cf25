"""What an agent saw in one step: a picture, a board of coloured cells, or values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from mosaic_wire.proto import trainer_pb2 as pb
from numpy.typing import NDArray
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QLabel, QPlainTextEdit, QSplitter, QVBoxLayout, QWidget

from gym_gui.ui import theme
from gym_gui.ui.background import Background
from gym_gui.ui.presenters.grid_picture import grid_picture
from gym_gui.ui.replay.observations import look_of_step
from gym_gui.ui.widgets.live_picture import LivePicture
from gym_gui.wording import formats


@dataclass(frozen=True)
class _Ready:
    seq: int
    picture: NDArray[np.uint8] | None
    is_grid: bool
    text: str


class ObservationView(QWidget):
    """Unpacks steps in the background, one at a time: what comes meanwhile is passed over but for the newest."""

    def __init__(self, background: Background, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("observation_view")
        self._background = background
        self._waiting: pb.RunStep | None = None
        self._is_busy = False
        self.shown_seq = 0
        self._caption = QLabel()
        self._caption.setProperty("role", "caption")
        self.picture = LivePicture()
        self.picture.setObjectName("observation_picture")
        self.picture.setAccessibleName(self.tr("Observation as a picture"))
        self.values = QPlainTextEdit()
        self.values.setObjectName("observation_values")
        self.values.setAccessibleName(self.tr("Observation as values"))
        self.values.setReadOnly(True)
        self.values.setFont(theme.monospace())
        self._parts = QSplitter()
        self._parts.addWidget(self.picture)
        self._parts.addWidget(self.values)
        self._parts.setChildrenCollapsible(False)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self._caption)
        layout.addWidget(self._parts, 1)
        self.clear()

    def clear(self, words: str = "") -> None:
        """Words while there is nothing to show."""
        self._waiting = None
        self.shown_seq = 0
        self._caption.setText("")
        self.picture.show_words(words or self.tr("No step yet."))
        self.picture.show()
        self.values.hide()

    def show_step(self, step: pb.RunStep) -> None:
        self._waiting = step
        if not self._is_busy:
            self._next()

    def _next(self) -> None:
        step, self._waiting = self._waiting, None
        if step is not None:
            self._is_busy = True
            self._background.run(lambda: _unpacked(step), owner=self, done=self._show)

    def _show(self, ready: _Ready) -> None:
        self._is_busy = False
        self.shown_seq = ready.seq
        self._caption.setText(self.tr("What the agent saw at step {0}").format(formats.count(ready.seq)))
        if ready.picture is not None:
            height, width = ready.picture.shape[:2]
            pixels = ready.picture.tobytes()
            self.picture.set_smooth(not ready.is_grid and width >= 96)
            self.picture.show_image(QImage(pixels, width, height, 3 * width, QImage.Format.Format_RGB888))
        self.picture.setVisible(ready.picture is not None)
        self.values.setVisible(bool(ready.text) or ready.picture is None)
        if self.values.toPlainText() != ready.text:
            self.values.setPlainText(ready.text)
        self._next()


def _unpacked(step: pb.RunStep) -> _Ready:
    look = look_of_step(step)
    seen, picture, is_grid = look.observation, look.observation.picture, False
    if picture is None and seen.grid:
        picture = grid_picture(seen.grid)
        is_grid = picture is not None
    lines = [look.problem, seen.text, *_aligned(seen.values)]
    if picture is None and seen.grid:
        lines += ["  ".join(row) for row in seen.grid]
    return _Ready(step.seq, picture, is_grid, "\n".join(filter(None, lines)))


def _aligned(rows: tuple[tuple[str, str], ...]) -> list[str]:
    wide = min(32, max((len(name) for name, _ in rows), default=0))
    return [f"{name:<{wide}}  {value}" for name, value in rows]
