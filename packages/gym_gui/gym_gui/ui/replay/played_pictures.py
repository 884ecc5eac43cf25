"""Steps of a game a person played: what the player saw lies in the run folder, and says more than the observation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtGui import QImage

from gym_gui.ui.play.recorded import place_of_picture, read_picture
from gym_gui.ui.replay.observations import StepLook, look_of_step
from gym_gui.ui.replay.video_file import Picture


def look_of_played_step(step: pb.RunStep, run_dir: str) -> StepLook:
    """The step with the player's picture, where there is one and the run folder is on this machine."""
    look = look_of_step(step)
    place = place_of_picture(step.info_json)
    picture = _decoded(read_picture(Path(run_dir), place)) if place is not None and run_dir else None
    if picture is None:
        return look
    info = tuple((name, value) for name, value in look.info if name != "picture")
    return replace(look, observation=replace(look.observation, picture=picture, grid=(), note=""), info=info)


def _decoded(data: bytes) -> Picture | None:
    image = QImage.fromData(data) if data else QImage()
    if image.isNull():
        return None
    image = image.convertToFormat(QImage.Format.Format_RGB888)
    rows = np.frombuffer(image.constBits(), np.uint8).reshape(image.height(), image.bytesPerLine())
    return rows[:, : 3 * image.width()].reshape(image.height(), image.width(), 3).copy()
