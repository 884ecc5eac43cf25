"""A game and who plays it: the interactive protocol with a recorder behind it, and FastLane for whoever watches."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from mosaic_wire.frames import FrameWriter, fastlane_path
from mosaic_wire.interactive import FrameSink, InteractiveSession, Send, as_picture, facts_about

from human_worker.recording import Recorder


class Game(InteractiveSession):
    """One environment that is played, recorded and shown."""

    def __init__(
        self, env: Any, env_id: str, recorder: Recorder, frames: FrameSink, send: Send, *, run_id: str
    ) -> None:
        super().__init__(env, env_id, frames, send, run_id=run_id)
        self._recorder = recorder
        self._source = "human"
        self._lane = _Lane(run_id, env)

    def facts(self) -> dict[str, Any]:
        return facts_about(self.env)

    def choose(self) -> tuple[Any, str, Mapping[str, Any]]:
        action, self._source, told = super().choose()
        return action, self._source, told

    def began(self, seed: int | None) -> None:
        self._recorder.began(seed)

    def drawn(self, image: Any) -> None:
        self._recorder.drawn(image)
        self._lane.show(image)

    def stepped(self, seen: Any, action: Any, reward: float, terminated: bool, truncated: bool, info: Any) -> None:
        self._recorder.stepped(seen, action, reward, terminated, truncated, self._source)
        self._source = "human"
        self._lane.tell(reward, self._episode_reward)

    def over(self, by: str, terminated: bool, truncated: bool, episode_return: float, length: int) -> None:
        self._recorder.over(by, terminated, truncated, episode_return, length, self.obs)

    def show_to_viewers(self) -> None:
        """A moment without a command: a viewer that has come meanwhile sees how the game stands."""
        self._lane.publish()

    def redraw(self) -> None:
        """A step that nobody wanted a picture of: draw one for viewers, if there are any and it is time."""
        if self.env.render_mode == "rgb_array":
            self._lane.redraw(self.env)

    def close(self) -> None:
        self._recorder.close()
        self._lane.close()


class _Lane:
    """FastLane: the newest picture, for as long as somebody looks."""

    def __init__(self, run_id: str, env: Any) -> None:
        self._writer = FrameWriter(fastlane_path(run_id))
        self._waiting: Any = None
        self._stepped_at = 0.0
        if env.render_mode != "rgb_array":
            self._writer.notice("this environment cannot be drawn here")

    def show(self, image: Any) -> None:
        self._waiting = image
        self.publish()

    def publish(self) -> None:
        """Show what was drawn last, if that has not been done and somebody looks."""
        if self._waiting is None or not self._writer.is_watched:
            return
        picture, self._waiting = as_picture(self._waiting), None
        if picture is not None:
            self._writer.publish(picture.data, picture.shape[1], picture.shape[0])

    def redraw(self, env: Any) -> None:
        if self._writer.is_due():
            began = time.monotonic()
            self.show(env.render())
            self._writer.drawn(time.monotonic() - began)

    def tell(self, reward: float, episode_return: float) -> None:
        now = time.monotonic()
        rate, self._stepped_at = 1 / max(1e-3, now - self._stepped_at), now
        self._writer.tell(last_reward=reward, rolling_return=episode_return, step_rate_hz=rate)

    def close(self) -> None:
        self._writer.close()


class Demonstration:
    """Nobody plays: random actions, so many a second. It is how the worker is tried out and tested."""

    def __init__(self, game: Game, seed: int | None) -> None:
        self._game, self._seed = game, seed

    def step(self) -> None:
        if not self._game.is_playing:
            seed = "null" if self._seed is None else str(self._seed % 2**31)
            self._seed = None
            self._game.answer(f'{{"cmd": "reset", "seed": {seed}, "frames": "none"}}'.encode())
        self._game.answer(b'{"cmd": "step"}')
        self._game.redraw()
