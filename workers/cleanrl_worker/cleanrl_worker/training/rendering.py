"""Videos of the agent: whole episodes of the current policy, drawn in a separate environment.

Training is not affected: the environment and the actions have their own seeds and generators, and the process's global
generators are restored. Frames are sent to ffmpeg as they are drawn, so a long episode takes no memory; a video file
gets its name when it is complete.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from cleanrl_worker.env_kwargs import read_env_kwargs
from cleanrl_worker.errors import BadInput
from cleanrl_worker.fastlane import POLL_S, FastLaneSettings, Painter, as_frame
from cleanrl_worker.training.envs import EnvState, EpisodeTracker, Step, VectorEnvs, environment_errors, make_single
from cleanrl_worker.training.evaluation import Acts, Limits, play_episodes, preserved_generators
from cleanrl_worker.training.policies import set_episodes

if TYPE_CHECKING:
    from cleanrl_worker.training.run import Learner, RunContext


logger = logging.getLogger(__name__)

SEED_OFFSET = 2_000_000
"""Recorded episodes differ from those of training and of evaluation"""
MAX_STEPS = 3_000
"""Limit of a video, for episodes that do not end"""
DEFAULT_FPS = 30
_RENDER_MODE = "rgb_array"
_FFMPEG_S = 60.0
"""How long ffmpeg may take to finish after the last frame"""


class CannotRecordError(Exception):
    """A video cannot be recorded; the message is the reason."""


def newest_due(finished: int) -> int:
    """Return the newest of gymnasium's video episodes (0, 1, 8, 27 … 1000, then every thousandth) up to `finished`."""
    if finished >= 1000:
        return finished // 1000 * 1000
    root = 0
    while (root + 1) ** 3 <= finished:
        root += 1
    return root**3


class VideoWriter:
    """Writes one video with ffmpeg."""

    def __init__(self, path: Path, fps: float) -> None:
        self.path, self._fps = path, fps
        self._unfinished = path.with_name(f".{path.name}.part")
        self._writer: Generator[None, np.ndarray | None, None] | None = None
        self._shape: tuple[int, ...] = ()
        self.frames = 0

    def add(self, frame: np.ndarray) -> None:
        """Write one more frame, of the same size as earlier ones."""
        height, width = frame.shape[:2]
        # Some players need an even number of rows and columns.
        even = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        if self._writer is None:
            self._writer = self._open(even)
        elif even.shape != self._shape:
            raise CannotRecordError(f"its frames are of shape {self._shape}, then of {even.shape}")
        self._writer.send(even)
        self.frames += 1

    def _open(self, first: np.ndarray) -> Generator[None, np.ndarray | None, None]:
        import imageio_ffmpeg

        self._shape = first.shape
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # One thread, to leave other threads to training.
        params = ["-f", "mp4", "-movflags", "+faststart", "-preset", "veryfast", "-threads", "1"]
        writer: Generator[None, np.ndarray | None, None] = imageio_ffmpeg.write_frames(
            str(self._unfinished),
            (first.shape[1], first.shape[0]),
            fps=self._fps,
            codec="libx264",
            quality=7,
            macro_block_size=1,
            ffmpeg_log_level="error",
            ffmpeg_timeout=_FFMPEG_S,
            output_params=params,
        )
        writer.send(None)
        return writer

    def finish(self) -> None:
        """Complete and name the file; raise CannotRecordError if ffmpeg did not write every frame."""
        import imageio_ffmpeg

        self._close()
        # imageio drops ffmpeg's exit code, so the frames written are counted: a full disk loses the last ones.
        try:
            written, _ = imageio_ffmpeg.count_frames_and_secs(str(self._unfinished))
        except RuntimeError as error:
            raise CannotRecordError(f"ffmpeg has left no readable video in {self.path.parent}") from error
        if written != self.frames:
            raise CannotRecordError(f"of {self.frames} frames {written} were written to {self.path.parent}")
        self._unfinished.replace(self.path)

    def discard(self) -> None:
        """Remove the incomplete file."""
        with suppress(Exception):  # it failed before
            self._close()
        self._unfinished.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class RecordedEnv(gym.Wrapper):
    """Records one episode on request; after a failure it logs a warning and records no more."""

    def __init__(self, env: gym.Env, env_id: str) -> None:
        super().__init__(env)
        self._env_id = env_id
        self._film: VideoWriter | None = None
        self._gave_up = False

    def record_next(self, path: Path) -> None:
        """Record the next episode."""
        if not self._gave_up:
            self._film = VideoWriter(path, fps_of(self.env))

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Reset; a recorded episode that was cut ends here."""
        if self._film is not None and self._film.frames:
            self.end()
        started = self.env.reset(**options)
        self._draw()
        return started

    def step(self, action: Any) -> Any:
        """Step, and finish the video with the last step."""
        stepped = self.env.step(action)
        self._draw()
        if stepped[2] or stepped[3]:
            self.end()
        return stepped

    def _draw(self) -> None:
        film = self._film
        if film is None or film.frames > MAX_STEPS:
            return
        try:
            film.add(draw(self.env))
        except Exception as error:  # noqa: BLE001 - other people's code draws, and may raise anything
            self._give_up(error)

    def end(self) -> None:
        """Finish the video, if there is one."""
        if self._film is None:
            return
        try:
            self._film.finish()
        except (CannotRecordError, OSError) as error:
            self._give_up(error)
        self._film = None

    def discard(self) -> None:
        """Remove the incomplete video, if there is one."""
        if self._film is not None:
            self._film.discard()
            self._film = None

    def _give_up(self, error: Exception) -> None:
        self._gave_up = True
        self.discard()
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        logger.warning("no more videos of %s are recorded; everything else continues: %s", self._env_id, reason)

    def close(self) -> None:
        """Finish the video and close the environment."""
        self.end()
        super().close()


def draw(env: gym.Env) -> np.ndarray:
    """Return the environment's frame; raise CannotRecordError if it has none."""
    frame = as_frame(env.render())
    if frame is None:
        raise CannotRecordError("it draws no frames")
    return frame


def fps_of(env: gym.Env) -> float:
    """Return the frames per second of the environment's metadata."""
    fps = env.metadata.get("render_fps")
    return float(fps) if isinstance(fps, int | float) and fps > 0 else DEFAULT_FPS


def draws(env: gym.Env) -> bool:
    """Return whether the environment declares the render mode for frames."""
    return _RENDER_MODE in (env.metadata.get("render_modes") or ())


def make_recorded_env(
    env_id: str, env_kwargs: Mapping[str, Any] | None = None, *, pipeline: str = "plain", flag: str
) -> RecordedEnv:
    """Make an environment for recording; raise BadInput if packages are missing or it cannot be drawn.

    `flag` is the flag that requested it, for the message.
    """
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        raise BadInput(
            f"{flag}: videos need packages that are not installed (imageio-ffmpeg); install them: "
            "mosaic extras install video; or go without videos"
        )
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    with environment_errors(env_id):
        plain = make_single(env_id, env_kwargs, pipeline=pipeline)
        can_draw = draws(plain)
        plain.close()
        if not can_draw:
            raise BadInput(cannot_be_drawn(flag, env_id))
        env = make_single(env_id, env_kwargs, pipeline=pipeline, render_mode=_RENDER_MODE)
    try:
        env.reset(seed=SEED_OFFSET)
        draw(env)
    except Exception as error:
        env.close()
        raise BadInput(cannot_be_drawn(flag, env_id, str(error) or type(error).__name__)) from error
    return RecordedEnv(env, env_id)


def cannot_be_drawn(flag: str, env_id: str, reason: str = "it has no frame to show (rgb_array)") -> str:
    """Return the message for an environment that cannot be drawn."""
    return f"{flag}: {env_id} cannot be drawn: {(reason.splitlines() or [''])[0]}; go without videos"


class Recorder:
    """Records the current policy during training, at gymnasium's schedule of episodes."""

    def __init__(
        self,
        env_id: str,
        folder: Path,
        *,
        seed: int,
        env_kwargs: Mapping[str, Any] | None = None,
        pipeline: str = "plain",
    ) -> None:
        self._folder, self._seed = folder, seed + SEED_OFFSET
        with preserved_generators():
            self._env = make_recorded_env(env_id, env_kwargs, pipeline=pipeline, flag="--capture-video")
        self._newest = -1

    @classmethod
    def of(cls, args: Any, run: RunContext) -> Recorder:
        """Return the recorder for these flags."""
        return cls(
            run.env_to_evaluate(args.env_id),
            run.folder.videos,
            seed=args.seed,
            pipeline=run.pipeline,
            env_kwargs=read_env_kwargs(args.env_kwargs),
        )

    def record_if_due(self, learner: Learner, run: RunContext) -> None:
        """Record a video if enough episodes have finished since the last one; called at a safe point."""
        number = newest_due(learner.episodes.episodes)
        if number > self._newest:
            self._newest = number
            run.record(learner.step, partial(self.record, learner, number), learner.snapshot)

    def record(self, learner: Acts, number: int, should_stop: Callable[[], bool] = lambda: False) -> Path | None:
        """Record an episode with sampled actions; return None if stopped meanwhile or if recording fails."""
        path = self._folder / f"rl-video-episode-{number}.mp4"
        if path.exists():  # recorded by an earlier attempt, after its last checkpoint
            return path
        seed = self._seed + number
        rng = np.random.Generator(np.random.PCG64(seed))
        with preserved_generators():
            self._env.record_next(path)
            played = play_episodes(
                [self._env],
                lambda obs, _: learner.act(obs, rng),
                episodes=1,
                seed=seed,
                should_stop=should_stop,
                limits=Limits(MAX_STEPS),
                set_episodes=partial(set_episodes, learner),
            )
            if played is None:
                self._env.discard()
            self._env.end()
        return path if path.exists() else None

    def close(self) -> None:
        """Close the environment; an incomplete video is removed."""
        self._env.discard()
        self._env.close()


Drawn = Sequence[np.ndarray] | str
"""Frames, or why there are none"""


def watched(envs: VectorEnvs, settings: FastLaneSettings | None = None) -> VectorEnvs:
    """Return the environments, drawn for viewers if FastLane is on."""
    settings = settings or FastLaneSettings.from_environment()
    return WatchedEnvs(envs, settings) if settings.is_on else envs


class WatchedEnvs:
    """Environments that are drawn for viewers at FastLane's frame rate."""

    def __init__(self, envs: VectorEnvs, settings: FastLaneSettings) -> None:
        self._envs, self._painter = envs, Painter(settings)
        self._slots = settings.slots(envs.num_envs)
        self.num_envs = envs.num_envs
        self.observation_space, self.action_space = envs.observation_space, envs.action_space
        self._episodes: EpisodeTracker | None = None
        self._countdown = self._gap = 1
        self._polled_at = time.monotonic()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._envs, name)

    def follow(self, episodes: EpisodeTracker) -> None:
        """Show viewers the smoothed return of these episodes."""
        self._episodes = episodes

    def step(self, actions: np.ndarray) -> Step:
        """Step, and draw if a frame is due."""
        step = self._envs.step(actions)
        self._countdown -= 1
        if not self._countdown:
            self._poll(step)
        return step

    def step_wait(self) -> Step:
        """Finish a step begun with `step_async`, and draw if a frame is due."""
        step: Step = self._envs.step_wait()  # type: ignore[attr-defined]
        self._countdown -= 1
        if not self._countdown:
            self._poll(step)
        return step

    def _poll(self, step: Step) -> None:
        now = time.monotonic()
        rate = self._gap / max(1e-9, now - self._polled_at)
        self._polled_at = now
        self._gap = self._countdown = max(1, min(10_000, int(rate * POLL_S)))
        if not self._painter.is_due():
            return
        rewards = step.rewards if step.raw_rewards is None else step.raw_rewards
        smoothed = self._episodes.smoothed_return if self._episodes is not None else 0.0
        self._painter.show_values(float(rewards[self._slots[0]]), smoothed, rate * self.num_envs)
        started_at = time.monotonic()
        drawn = self._draw(step)
        if isinstance(drawn, str):
            self._painter.explain(drawn)
        else:
            self._painter.show(drawn, time.monotonic() - started_at)

    def _draw(self, step: Step) -> Drawn:
        draw = getattr(self._envs, "draw", None)
        if draw is not None:
            drawn: Drawn = draw(self._slots)
            return drawn
        frames = [_frame_of(step.obs[slot]) for slot in self._slots]
        if all(frame is not None for frame in frames):
            return [frame for frame in frames if frame is not None]  # the agent's own view
        return "these environments cannot be drawn: --env-backend sync has frames where the environment has"

    def reset(self, seed: int) -> np.ndarray:
        """Reset the environments."""
        return self._envs.reset(seed)

    def snapshot(self) -> EnvState:
        """Return the environments' state."""
        return self._envs.snapshot()

    def restore(self, state: EnvState) -> np.ndarray | None:
        """Restore the environments' state."""
        return self._envs.restore(state)

    def close(self) -> None:
        """Remove the FastLane and close the environments."""
        self._painter.close()
        self._envs.close()


def _frame_of(obs: np.ndarray) -> np.ndarray | None:
    """Return an observation as a frame: the newest of a grayscale stack, or an RGB image; None for others."""
    if obs.ndim == 3 and obs.shape[0] in (1, 4) and obs.dtype == np.uint8:
        return as_frame(obs[-1])
    return as_frame(obs)
