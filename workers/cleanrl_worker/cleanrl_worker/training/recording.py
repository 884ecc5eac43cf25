"""Videos of the agent: whole episodes of the policy as it is, drawn in an environment of its own.

Training neither sees nor feels it: the environment has seeds of its own, actions are drawn from a generator of their
own, and the process' random streams are left as they were. Pictures go to ffmpeg as they are drawn, so a long episode
takes no memory; a video has its name only once it is whole.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from cleanrl_worker.env_kwargs import read_env_kwargs
from cleanrl_worker.errors import BadInput
from cleanrl_worker.fastlane import as_picture
from cleanrl_worker.training.envs import make_single, said_of
from cleanrl_worker.training.evaluating import Acts, undisturbed_generators
from cleanrl_worker.training.evaluation import Limits, play_episodes
from cleanrl_worker.training.remembering import tell_episodes

if TYPE_CHECKING:
    from cleanrl_worker.training.loop import Learner
    from cleanrl_worker.training.run_context import RunContext

logger = logging.getLogger(__name__)

SEED_OFFSET = 2_000_000
"""Other episodes than those of training and of evaluation"""
MOST_STEPS = 3_000
"""Of a video; an episode without an end has one all the same"""
DEFAULT_FPS = 30
_PICTURES = "rgb_array"
_FFMPEG_S = 60.0
"""How long ffmpeg may take for the rest once it has every picture"""


class CannotRecordError(Exception):
    """Why there is no video."""


def newest_due(finished: int) -> int:
    """Of gymnasium's moments (episodes 0, 1, 8, 27 … 1000, then every thousandth) the newest that has come."""
    if finished >= 1000:
        return finished // 1000 * 1000
    root = 0
    while (root + 1) ** 3 <= finished:
        root += 1
    return root**3


class Film:
    """One video that is being written."""

    def __init__(self, path: Path, fps: float) -> None:
        self.path, self._fps = path, fps
        self._unfinished = path.with_name(f".{path.name}.part")
        self._writer: Generator[None, np.ndarray | None, None] | None = None
        self._shape: tuple[int, ...] = ()
        self.pictures = 0

    def add(self, picture: np.ndarray) -> None:
        """One more picture, as large as the others."""
        height, width = picture.shape[:2]
        # What every player can show has an even number of rows and columns.
        even = np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        if self._writer is None:
            self._writer = self._open(even)
        elif even.shape != self._shape:
            raise CannotRecordError(f"its pictures are of shape {self._shape}, then of {even.shape}")
        self._writer.send(even)
        self.pictures += 1

    def _open(self, first: np.ndarray) -> Generator[None, np.ndarray | None, None]:
        import imageio_ffmpeg

        self._shape = first.shape
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # One thread: the others are training's.
        params = ["-f", "mp4", "-movflags", "+faststart", "-preset", "veryfast", "-threads", "1"]
        writer: Generator[None, np.ndarray | None, None] = imageio_ffmpeg.write_frames(
            str(self._unfinished), (first.shape[1], first.shape[0]), fps=self._fps, codec="libx264", quality=7,
            macro_block_size=1, ffmpeg_log_level="error", ffmpeg_timeout=_FFMPEG_S, output_params=params,
        )  # fmt: skip
        writer.send(None)
        return writer

    def finish(self) -> None:
        """Let it have its name; CannotRecordError when ffmpeg did not get it whole."""
        import imageio_ffmpeg

        self._close()
        # ffmpeg's exit code is lost, so what it has written is looked at: a full disk cuts the end off.
        try:
            written, _ = imageio_ffmpeg.count_frames_and_secs(str(self._unfinished))
        except RuntimeError as error:
            raise CannotRecordError(f"ffmpeg has left no readable video in {self.path.parent}") from error
        if written != self.pictures:
            raise CannotRecordError(f"of {self.pictures} pictures {written} were written to {self.path.parent}")
        self._unfinished.replace(self.path)

    def discard(self) -> None:
        """Leave nothing of it."""
        with suppress(Exception):  # it did not work before, either
            self._close()
        self._unfinished.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class Filmed(gym.Wrapper):
    """Draws one episode from beginning to end, when told to; where that fails it says so once and never draws again."""

    def __init__(self, env: gym.Env, env_id: str) -> None:
        super().__init__(env)
        self._env_id = env_id
        self._film: Film | None = None
        self._gave_up = False

    def film(self, path: Path) -> None:
        """Record the next episode."""
        if not self._gave_up:
            self._film = Film(path, fps_of(self.env))

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """An episode that was cut from outside ends here."""
        if self._film is not None and self._film.pictures:
            self.end()
        begun = self.env.reset(**options)
        self._draw()
        return begun

    def step(self, action: Any) -> Any:
        """With the last step the video is whole."""
        stepped = self.env.step(action)
        self._draw()
        if stepped[2] or stepped[3]:
            self.end()
        return stepped

    def _draw(self) -> None:
        film = self._film
        if film is None or film.pictures > MOST_STEPS:
            return
        try:
            film.add(draw(self.env))
        except Exception as error:  # noqa: BLE001 - other people's code draws, and may raise anything
            self._give_up(error)

    def end(self) -> None:
        """Finish the video, if one is being made."""
        if self._film is None:
            return
        try:
            self._film.finish()
        except (CannotRecordError, OSError) as error:
            self._give_up(error)
        self._film = None

    def discard(self) -> None:
        """Drop the video, if one is being made."""
        if self._film is not None:
            self._film.discard()
            self._film = None

    def _give_up(self, error: Exception) -> None:
        self._gave_up = True
        self.discard()
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        logger.warning("no more videos of %s are recorded; everything else goes on: %s", self._env_id, reason)

    def close(self) -> None:
        """What was recorded stays."""
        self.end()
        super().close()


def draw(env: gym.Env) -> np.ndarray:
    """A picture of it; CannotRecordError where it has none."""
    picture = as_picture(env.render())
    if picture is None:
        raise CannotRecordError("it draws no pictures")
    return picture


def fps_of(env: gym.Env) -> float:
    """Pictures per second: what the environment says."""
    fps = env.metadata.get("render_fps")
    return float(fps) if isinstance(fps, int | float) and fps > 0 else DEFAULT_FPS


def draws(env: gym.Env) -> bool:
    """Whether it says that it can be drawn."""
    return _PICTURES in (env.metadata.get("render_modes") or ())


def make_filmed(
    env_id: str, env_kwargs: Mapping[str, Any] | None = None, *, pipeline: str = "plain", flag: str
) -> Filmed:
    """An environment to be recorded; BadInput when there is nothing to record it with, or it cannot be drawn.

    `flag` is what asked for it.
    """
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        raise BadInput(
            f"{flag}: videos need packages that are not installed (imageio-ffmpeg); install them: "
            "mosaic extras install video; or go without videos"
        )
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    with said_of(env_id):
        plain = make_single(env_id, env_kwargs, pipeline=pipeline)
        can_draw = draws(plain)
        plain.close()
        if not can_draw:
            raise BadInput(no_pictures(flag, env_id))
        env = make_single(env_id, env_kwargs, pipeline=pipeline, render_mode=_PICTURES)
    try:
        env.reset(seed=SEED_OFFSET)
        draw(env)
    except Exception as error:
        env.close()
        raise BadInput(no_pictures(flag, env_id, str(error) or type(error).__name__)) from error
    return Filmed(env, env_id)


def no_pictures(flag: str, env_id: str, reason: str = "it has no picture to show (rgb_array)") -> str:
    """The sentence for an environment that cannot be drawn."""
    return f"{flag}: {env_id} cannot be drawn: {(reason.splitlines() or [''])[0]}; go without videos"


class Recorder:
    """Records the policy of a training now and then; what differs from one video to the next is what it has learnt."""

    def __init__(
        self, env_id: str, folder: Path, *, seed: int, env_kwargs: Mapping[str, Any] | None = None,
        pipeline: str = "plain",
    ) -> None:  # fmt: skip
        self._folder, self._seed = folder, seed + SEED_OFFSET
        with undisturbed_generators():
            self._env = make_filmed(env_id, env_kwargs, pipeline=pipeline, flag="--capture-video")
        self._newest = -1

    @classmethod
    def of(cls, args: Any, run: RunContext) -> Recorder:
        """As the flags say."""
        return cls(
            run.env_to_evaluate(args.env_id), run.folder.videos, seed=args.seed, pipeline=run.pipeline,
            env_kwargs=read_env_kwargs(args.env_kwargs),
        )  # fmt: skip

    def record_if_due(self, learner: Learner, run: RunContext) -> None:
        """At a safe point: one video, where training has finished enough episodes since the last."""
        number = newest_due(learner.episodes.episodes)
        if number > self._newest:
            self._newest = number
            run.record(learner.step, partial(self.record, learner, number), learner.snapshot)

    def record(self, learner: Acts, number: int, should_stop: Callable[[], bool] = lambda: False) -> Path | None:
        """Play an episode as training would; None when asked to stop on the way, or when it cannot be recorded."""
        path = self._folder / f"rl-video-episode-{number}.mp4"
        if path.exists():  # an earlier attempt, which was further than its checkpoint
            return path
        seed = self._seed + number
        rng = np.random.Generator(np.random.PCG64(seed))
        with undisturbed_generators():
            self._env.film(path)
            played = play_episodes(
                [self._env], lambda obs, _: learner.act(obs, rng), episodes=1, seed=seed, should_stop=should_stop,
                limits=Limits(MOST_STEPS), follow=partial(tell_episodes, learner),
            )  # fmt: skip
            if played is None:
                self._env.discard()
            self._env.end()
        return path if path.exists() else None

    def close(self) -> None:
        """Close the environment; a video that is not whole is dropped."""
        self._env.discard()
        self._env.close()
