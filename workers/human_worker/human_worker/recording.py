"""What a player did, written down: steps and episodes to the telemetry lane, pictures into a file of the run folder.

`play/pictures.bin` holds PNG files one after the other; a step's record says where its own lies (`picture`:
offset and length). A step is recorded with what was seen before it, observation and picture; what was seen last is in
the episode's record.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from mosaic_wire.interactive import as_picture, png
from mosaic_wire.telemetry import TelemetryPublisher, encode

PICTURES = Path("play") / "pictures.bin"
_MOST_BYTES = 2 << 30
"""Of pictures a run; then it is recorded without"""


class PictureFile:
    """Made with the first picture."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / PICTURES
        self._stream: Any = None
        self._size = 0
        self.problem = ""
        """Why no more pictures are kept"""

    def add(self, image: Any) -> tuple[int, int] | None:
        """Keep a picture; where it lies, None when it is none or cannot be kept."""
        picture = as_picture(image)
        if picture is None or self.problem:
            return None
        data = png(picture)
        if self._size + len(data) > _MOST_BYTES:
            self.problem = f"its pictures take {_MOST_BYTES >> 30} GiB; from here on it is recorded without"
            return None
        try:
            if self._stream is None:
                self._path.parent.mkdir(exist_ok=True)
                self._stream = self._path.open("ab", buffering=0)
                self._size = self._stream.tell()
            self._stream.write(data)
        except OSError as error:  # a full disk ends the pictures, not the game
            self.problem = f"pictures cannot be written any more: {error.strerror or error}"
            return None
        place = (self._size, len(data))
        self._size += len(data)
        return place

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()


class Recorder:
    """Hears what happens in a session."""

    def __init__(self, telemetry: TelemetryPublisher | None, pictures: PictureFile | None) -> None:
        self._telemetry, self._pictures = telemetry, pictures
        self._seed: int | None = None
        self._image: Any = None
        self._place: tuple[int, int] | None = None
        self._is_first = True

    def drawn(self, image: Any) -> None:
        """The first picture of an episode is what its first step is taken on."""
        self._image = image
        if self._is_first:
            self._is_first, self._place = False, self._keep_picture()

    def began(self, seed: int | None) -> None:
        self._seed, self._image, self._place, self._is_first = seed, None, None, True

    def stepped(self, seen: Any, action: Any, reward: float, terminated: bool, truncated: bool, source: str) -> None:
        info: dict[str, Any] = {"source": source}
        if self._place is not None:
            info["picture"] = self._place
        self._place = self._keep_picture()
        if self._telemetry is not None and not self._telemetry.refused:
            self._telemetry.step(seen, action, reward, terminated=terminated, truncated=truncated, info=info)

    def _keep_picture(self) -> tuple[int, int] | None:
        image, self._image = self._image, None
        return self._pictures.add(image) if self._pictures is not None and image is not None else None

    def over(self, by: str, terminated: bool, truncated: bool, episode_return: float, length: int, last: Any) -> None:
        if self._telemetry is None or self._telemetry.refused:
            return
        payload = encode(last)
        info: dict[str, Any] = {
            "seed": self._seed, "ended_by": by,
            "final_observation": {"encoding": payload.encoding, "data": base64.b64encode(payload.data).decode()},
        }  # fmt: skip
        if self._place is not None:
            info["picture"] = self._place
        self._telemetry.leave_episode()
        self._telemetry.episode(episode_return, length, terminated=terminated, truncated=truncated, info=info)

    def close(self) -> None:
        if self._pictures is not None:
            self._pictures.close()
