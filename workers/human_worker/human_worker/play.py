"""A game and its player: the interactive protocol with a recorder behind it, and FastLane for viewers."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from mosaic_wire.interactive import FrameSink, InteractiveSession, Send, facts_about
from mosaic_wire.live_environment import EnvironmentFrames, FrameFile
from mosaic_wire.telemetry import TelemetryPublisher, encode


class Game(InteractiveSession):
    """One environment that is played, recorded and published to viewers."""

    def __init__(
        self, env: Any, env_id: str, recorder: Recorder, frames: FrameSink, send: Send, *, run_id: str
    ) -> None:
        super().__init__(env, env_id, frames, send, run_id=run_id)
        self._recorder = recorder
        self._source = "human"
        self._lane = EnvironmentFrames(run_id, env)

    def facts(self) -> dict[str, Any]:
        return facts_about(self.env)

    def choose(self) -> tuple[Any, str, Mapping[str, Any]]:
        action, self._source, facts = super().choose()
        return action, self._source, facts

    def on_reset(self, seed: int | None) -> None:
        self._recorder.on_reset(seed)

    def on_render(self, image: Any) -> None:
        self._recorder.on_render(image)
        self._lane.show(image)

    def on_step(self, seen: Any, action: Any, reward: float, terminated: bool, truncated: bool, info: Any) -> None:
        self._recorder.on_step(seen, action, reward, terminated, truncated, self._source)
        self._source = "human"
        self._lane.set_statistics(reward, self._episode_reward)

    def on_episode_end(self, by: str, terminated: bool, truncated: bool, episode_return: float, length: int) -> None:
        self._recorder.on_episode_end(by, terminated, truncated, episode_return, length, self.obs)

    def show_to_viewers(self) -> None:
        """Publish the current frame to new viewers while there is no command."""
        self._lane.publish()

    def redraw(self) -> None:
        """Render a frame after a step without one, if there are viewers and it is due."""
        self._lane.redraw()

    def close(self) -> None:
        self._recorder.close()
        self._lane.close()


class Demonstration:
    """Plays random actions at a fixed rate, to demonstrate and test the worker."""

    def __init__(self, game: Game, seed: int | None) -> None:
        self._game, self._seed = game, seed

    def step(self) -> None:
        if not self._game.is_playing:
            seed = "null" if self._seed is None else str(self._seed % 2**31)
            self._seed = None
            self._game.answer(f'{{"cmd": "reset", "seed": {seed}, "frames": "none"}}'.encode())
        self._game.answer(b'{"cmd": "step"}')
        self._game.redraw()


class Recorder:
    """Records the steps and episodes of a session."""

    def __init__(self, telemetry: TelemetryPublisher | None, frames: FrameFile | None) -> None:
        self._telemetry, self._frames = telemetry, frames
        self._seed: int | None = None
        self._image: Any = None
        self._place: tuple[int, int] | None = None
        self._is_first = True

    def on_render(self, image: Any) -> None:
        """Store the frame that the next step is based on."""
        self._image = image
        if self._is_first:
            self._is_first, self._place = False, self._keep_frame()

    def on_reset(self, seed: int | None) -> None:
        self._seed, self._image, self._place, self._is_first = seed, None, None, True

    def on_step(self, seen: Any, action: Any, reward: float, terminated: bool, truncated: bool, source: str) -> None:
        info: dict[str, Any] = {"source": source}
        if self._place is not None:
            info["picture"] = self._place
        self._place = self._keep_frame()
        if self._telemetry is not None and not self._telemetry.refused:
            self._telemetry.step(seen, action, reward, terminated=terminated, truncated=truncated, info=info)

    def _keep_frame(self) -> tuple[int, int] | None:
        image, self._image = self._image, None
        return self._frames.add(image) if self._frames is not None and image is not None else None

    def on_episode_end(
        self, by: str, terminated: bool, truncated: bool, episode_return: float, length: int, last: Any
    ) -> None:
        if self._telemetry is None or self._telemetry.refused:
            return
        payload = encode(last)
        info: dict[str, Any] = {
            "seed": self._seed,
            "ended_by": by,
            "final_observation": {"encoding": payload.encoding, "data": base64.b64encode(payload.data).decode()},
        }
        if self._place is not None:
            info["picture"] = self._place
        self._telemetry.leave_episode()
        self._telemetry.episode(episode_return, length, terminated=terminated, truncated=truncated, info=info)

    def close(self) -> None:
        if self._frames is not None:
            self._frames.close()
