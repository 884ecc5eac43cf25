"""A Gymnasium environment as a live worker steps it: seeded by episode, recorded, shown to viewers, resumable.

    live = LiveEnvironment(env, session, seed=config.seed, total=config.total_timesteps)
    observation = live.reset()
    observation, reward, terminated, truncated, _ = live.step(action, info=reasoning_info(parts))

Steps and episodes go to the telemetry lane, returns to event files, frames to FastLane. The environment is duck-typed,
because this package does not import gymnasium.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic_wire.event_files import ScalarEventWriter
from mosaic_wire.frames import FrameWriter, fastlane_path
from mosaic_wire.interactive import as_frame, png
from mosaic_wire.telemetry import encode

if TYPE_CHECKING:
    from mosaic_wire.session import WorkerSession

Info = Mapping[str, Any] | Callable[[Any, float, bool, bool, Any], Mapping[str, Any]] | None
RETURNS = 100
"""Episodes in the mean return that is reported"""
FRAMES = Path("play") / "pictures.bin"
"""Recorded frames, one PNG after another; steps name theirs by offset and size"""
_MOST_FRAME_BYTES = 2 << 30
"""Limit of recorded frames per run; later steps are recorded without frames"""
_REPORT_S = 0.2


class FrameFile:
    """The file of recorded frames, created with the first one."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FRAMES
        self._stream: Any = None
        self._size = 0
        self.problem = ""
        """Why no more frames are stored, or empty"""

    def add(self, image: Any) -> tuple[int, int] | None:
        """Store a frame and return its position, or None when there is none or it cannot be stored."""
        frame = as_frame(image)
        if frame is None or self.problem:
            return None
        data = png(frame)
        if self._size + len(data) > _MOST_FRAME_BYTES:
            self.problem = f"its frames take {_MOST_FRAME_BYTES >> 30} GiB; from here on it is recorded without"
            return None
        try:
            if self._stream is None:
                self._path.parent.mkdir(exist_ok=True)
                self._stream = self._path.open("ab", buffering=0)
                self._size = self._stream.tell()
            self._stream.write(data)
        except OSError as error:  # a full disk ends the frames, not the run
            self.problem = f"frames cannot be written any more: {error.strerror or error}"
            return None
        place = (self._size, len(data))
        self._size += len(data)
        return place

    def close(self) -> None:
        """Close the file."""
        if self._stream is not None:
            self._stream.close()


class EnvironmentFrames:
    """Publishes the newest frame of an environment through FastLane while there is a viewer."""

    def __init__(self, run_id: str, env: Any) -> None:
        self._writer, self._env = FrameWriter(fastlane_path(run_id)), env
        self._waiting: Any = None
        self._stepped_at = 0.0
        if env.render_mode != "rgb_array":
            self._writer.notice("this environment cannot be rendered here")

    def show(self, image: Any) -> None:
        """Publish a frame that was rendered, now or when a viewer comes."""
        self._waiting = image
        self.publish()

    def publish(self) -> None:
        """Publish the last frame if there is a viewer and it is new."""
        if self._waiting is None or not self._writer.is_watched:
            return
        frame, self._waiting = as_frame(self._waiting), None
        if frame is not None:
            self._writer.publish(frame.data, frame.shape[1], frame.shape[0])

    def redraw(self) -> None:
        """Render and publish a frame if there is a viewer and it is due."""
        if self._writer.is_due() and self._env.render_mode == "rgb_array":
            began = time.monotonic()
            self.show(self._env.render())
            self._writer.record_render_time(time.monotonic() - began)

    def set_statistics(self, reward: float, episode_return: float) -> None:
        """Set the statistics shown beside the frame."""
        now = time.monotonic()
        rate, self._stepped_at = 1 / max(1e-3, now - self._stepped_at), now
        self._writer.set_statistics(last_reward=reward, rolling_return=episode_return, step_rate_hz=rate)

    def close(self) -> None:
        """Remove the shared memory."""
        self._writer.close()


class LiveEnvironment:
    """An environment and its record; every episode begins with a seed that follows from the run's.

    Environments that are stepped at the same time share the numbers of episodes, the curves and the frames of the
    first one: `LiveEnvironment(another_env, session, beside=first, …)`.
    """

    def __init__(
        self,
        env: Any,
        session: WorkerSession,
        *,
        seed: int | None,
        total: int,
        records_steps: bool = True,
        records_frames: bool = False,
        resumed_at: int | None = None,
        beside: LiveEnvironment | None = None,
        counts_episodes: bool = False,
    ) -> None:
        self.env, self._session, self._total = env, session, total
        self._counts_episodes, self._ended = counts_episodes, 0
        self._first = beside or self
        self._seed = 0 if seed is None else seed
        self.steps = resumed_at or 0
        """Steps of this and those beside it, which only the first counts"""
        self.episode = -1
        """Number of the current episode"""
        self._begun = 0
        self.episode_return, self.length = 0.0, 0
        self.observation: Any = None
        self.returns: deque[float] = deque(maxlen=RETURNS)
        self.last_return: float | None = None
        self.is_over = True
        """Whether the next thing to do is `reset`"""
        self._actions: list[Any] = []
        self._telemetry = session.telemetry() if records_steps else None
        self._number, self._recorded = 0, 0
        self._place: tuple[int, int] | None = None
        self._began, self._began_at, self._report_at = time.monotonic(), self.steps, 0.0
        if beside is None:
            self._frames: EnvironmentFrames | None = EnvironmentFrames(session.run_id, env)
            self._file = FrameFile(session.run_folder.root) if records_frames else None
            self._writer = ScalarEventWriter(session.run_folder.tensorboard, resume_at=resumed_at)
        else:
            self._frames, self._file, self._writer = None, self._first._file, self._first._writer

    # ------------------------------------------------------------------ stepping

    @property
    def seed_of_episode(self) -> int:
        """Return the seed of the current episode."""
        return (self._seed * 1_000_003 + self.episode) & 0x7FFF_FFFF

    def reset(self) -> Any:
        """Begin the next episode; return its first observation."""
        self.episode = self._first._begun
        self._first._begun += 1
        self.observation, _ = self.env.reset(seed=self.seed_of_episode)
        self.episode_return, self.length, self.is_over = 0.0, 0, False
        self._actions.clear()
        self._place = self._render()
        self._begin_record()
        return self.observation

    def _begin_record(self) -> None:
        self._recorded = 0
        if self._telemetry is not None:
            self._number = self._telemetry.begin_episode()
        if self._frames is not None:
            self._frames.redraw()

    def step(self, action: Any, info: Info = None) -> tuple[Any, float, bool, bool, Any]:
        """Step the environment; `info` is stored with the step; a function makes it of what `step` returned."""
        before = self.observation
        self.observation, reward, terminated, truncated, facts = self.env.step(action)
        reward = float(reward)
        self._actions.append(action)
        self._first.steps += 1
        self.length += 1
        self.episode_return += reward
        if self._telemetry is not None and not self._telemetry.refused:
            step_info = info(self.observation, reward, terminated, truncated, facts) if callable(info) else info
            if self._place is not None:
                step_info = {**(step_info or {}), "picture": self._place}
            place = self._number, self._recorded
            self._telemetry.step(
                before, action, reward, terminated=terminated, truncated=truncated, info=step_info, place=place
            )
            self._recorded += 1
        if self._file is not None:
            self._place = self._render()
        if self._frames is not None:
            self._frames.redraw()
        if terminated or truncated:
            self._end_episode(terminated, truncated)
        if (now := time.monotonic()) >= self._report_at:
            self._report_at = now + _REPORT_S
            if self._frames is not None:
                self._frames.set_statistics(reward, self.episode_return)
            self._first.report()
        return self.observation, reward, terminated, truncated, facts

    def add_scalars(self, values: Mapping[str, float]) -> None:
        """Write curves at the current step, or episode; a full disk costs points, not the run."""
        try:
            self._writer.add_scalars(values, self._first.done)
        except OSError as error:
            self._session.print_error(f"curves could not be written: {error.strerror or error}")

    @property
    def mean_return(self) -> float | None:
        """Return the mean of the last returns; None before the first."""
        return sum(self.returns) / len(self.returns) if self.returns else None

    @property
    def done(self) -> int:
        """Return what progress and curves count: the steps, or the episodes of an evaluation."""
        return self._ended if self._counts_episodes else self.steps

    @property
    def sps(self) -> float:
        """Return steps per second since the start."""
        return (self.steps - self._began_at) / (time.monotonic() - self._began + 1e-9)

    def report(self) -> None:
        """Report progress with the next heartbeat."""
        self._session.progress(self.done, self._total, self.mean_return, self.sps)

    def _render(self) -> tuple[int, int] | None:
        if self._file is None or self.env.render_mode != "rgb_array":
            return None
        return self._file.add(self.env.render())

    def _end_episode(self, terminated: bool, truncated: bool) -> None:
        self.is_over, self.last_return = True, self.episode_return
        self._first.returns.append(self.episode_return)
        self._first._ended += 1
        self.add_scalars(
            {
                "charts/episodic_return": self.episode_return,
                "charts/episodic_length": self.length,
                "charts/SPS": self._first.sps,
            }
        )
        if self._telemetry is not None and not self._telemetry.refused:
            facts: dict[str, Any] = {"seed": self.seed_of_episode, "step": self._first.steps}
            if self._place is not None:
                facts["picture"] = self._place
            self._telemetry.episode(
                self.episode_return,
                self.length,
                terminated=terminated,
                truncated=truncated,
                info=facts,
                number=self._number,
            )

    # ------------------------------------------------------------------ checkpoints

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds: the episode is continued by replaying its actions."""
        return {
            "episode": self.episode,
            "begun": self._begun,
            "is_over": self.is_over,
            "actions": json.loads(json.dumps(self._actions, default=_plain)),
            "observation": _digest(self.observation),
            "returns": list(self.returns),
        }

    def restore(self, state: Mapping[str, Any]) -> str:
        """Continue the episode of a checkpoint; return why it could not be continued, or an empty text."""
        self.episode, self._begun = state["episode"], state.get("begun", state["episode"] + 1)
        self.returns.extend(state["returns"])
        if state["is_over"]:
            return ""
        self.observation, _ = self.env.reset(seed=self.seed_of_episode)
        self.is_over = False
        for action in state["actions"]:
            self.observation, reward, *_ = self.env.step(action)
            self._actions.append(action)
            self.episode_return += float(reward)
        self.length = len(self._actions)
        self._begin_record()
        if _digest(self.observation) == state["observation"]:
            return ""
        self.is_over = True
        return "the environment took another course when its episode was replayed; a new episode begins"

    def close(self) -> None:
        """Close the environment; the first one also frames and files."""
        if self._frames is not None:
            self._frames.close()
            self._writer.close()
            if self._file is not None:
                self._file.close()
        self.env.close()


def _plain(value: Any) -> Any:
    """Return numpy arrays and scalars as JSON values."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _digest(observation: Any) -> str:
    return hashlib.sha256(encode(observation).data).hexdigest()
