"""The interactive protocol (`mosaic_wire.interactive`) with a trained policy, whose steps without an action are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from mosaic_wire import interactive
from mosaic_wire.interactive import FrameSink, Send, plain

from cleanrl_worker.training.acting import Policy, considered
from cleanrl_worker.training.remembering import tell_episodes


class InteractiveSession(interactive.InteractiveSession):
    """One environment, and a policy that plays it when it is asked to."""

    def __init__(
        self,
        env: gym.Env[Any, Any],
        env_id: str,
        policy: Policy | None,
        frames: FrameSink,
        send: Send,
        *,
        run_id: str = "",
    ) -> None:
        super().__init__(env, env_id, frames, send, run_id=run_id)
        self._policy = policy
        self.has_policy = policy is not None

    def facts(self) -> dict[str, Any]:
        return interactive.facts_about(self.env)

    def choose(self) -> tuple[Any, str, Mapping[str, Any]]:
        space = self.env.action_space
        if self._policy is None:
            return super().choose()
        tell_episodes(self._policy, [self.episode])
        seen = np.asarray(self.obs)[None]
        chosen = self._policy.act(seen, None)[0]
        told = {name: plain(value) for name, value in considered(self._policy, seen).items()}
        if isinstance(space, gym.spaces.Discrete):
            return int(chosen) + int(space.start), "policy", told
        if isinstance(space, gym.spaces.Box):
            chosen = np.clip(chosen, space.low, space.high).astype(space.dtype)
        return chosen, "policy", told
