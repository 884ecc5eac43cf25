"""Our own environments, watched: a thin layer that draws them for FastLane when somebody looks.

Between two looks a step costs one subtraction more; looks come at most every ten milliseconds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from cleanrl_worker.fastlane import LOOK_S, FastLaneSettings, Painter, as_picture
from cleanrl_worker.training.envs import EnvState, EpisodeTracker, Step, VectorEnvs

Drawn = Sequence[np.ndarray] | str
"""Pictures, or why there are none"""


def watched(envs: VectorEnvs, settings: FastLaneSettings | None = None) -> VectorEnvs:
    """The environments, watched where FastLane is on."""
    settings = settings or FastLaneSettings.from_environment()
    return WatchedEnvs(envs, settings) if settings.is_on else envs


class WatchedEnvs:
    """Passes everything through; now and then it draws."""

    def __init__(self, envs: VectorEnvs, settings: FastLaneSettings) -> None:
        self._envs, self._painter = envs, Painter(settings)
        self._slots = settings.slots(envs.num_envs)
        self.num_envs = envs.num_envs
        self.observation_space, self.action_space = envs.observation_space, envs.action_space
        self._episodes: EpisodeTracker | None = None
        self._countdown = self._gap = 1
        self._looked_at = time.monotonic()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._envs, name)

    def follow(self, episodes: EpisodeTracker) -> None:
        """Where the smoothed return comes from."""
        self._episodes = episodes

    def step(self, actions: np.ndarray) -> Step:
        step = self._envs.step(actions)
        self._countdown -= 1
        if not self._countdown:
            self._look(step)
        return step

    def step_wait(self) -> Step:
        step: Step = self._envs.step_wait()  # type: ignore[attr-defined]
        self._countdown -= 1
        if not self._countdown:
            self._look(step)
        return step

    def _look(self, step: Step) -> None:
        now = time.monotonic()
        rate = self._gap / max(1e-9, now - self._looked_at)
        self._looked_at = now
        self._gap = self._countdown = max(1, min(10_000, int(rate * LOOK_S)))
        if not self._painter.is_due():
            return
        rewards = step.rewards if step.raw_rewards is None else step.raw_rewards
        smoothed = self._episodes.smoothed_return if self._episodes is not None else 0.0
        self._painter.tell(float(rewards[self._slots[0]]), smoothed, rate * self.num_envs)
        began = time.monotonic()
        drawn = self._draw(step)
        if isinstance(drawn, str):
            self._painter.explain(drawn)
        else:
            self._painter.show(drawn, time.monotonic() - began)

    def _draw(self, step: Step) -> Drawn:
        draw = getattr(self._envs, "draw", None)
        if draw is not None:
            drawn: Drawn = draw(self._slots)
            return drawn
        seen = [_seen(step.obs[slot]) for slot in self._slots]
        if all(picture is not None for picture in seen):
            return [picture for picture in seen if picture is not None]  # the agent's own view
        return "these environments cannot be drawn: --env-backend sync has pictures where the environment has"

    def reset(self, seed: int) -> np.ndarray:
        return self._envs.reset(seed)

    def snapshot(self) -> EnvState:
        return self._envs.snapshot()

    def restore(self, state: EnvState) -> np.ndarray | None:
        return self._envs.restore(state)

    def close(self) -> None:
        self._painter.close()
        self._envs.close()


def _seen(obs: np.ndarray) -> np.ndarray | None:
    """An observation that is a picture: the newest of a stack of grey ones, or one in colour."""
    if obs.ndim == 3 and obs.shape[0] in (1, 4) and obs.dtype == np.uint8:
        return as_picture(obs[-1])
    return as_picture(obs)
