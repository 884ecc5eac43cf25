"""ale-py's own vector environment: Atari games in C++ threads.

Near to what `atari.AtariGame` gives, and not the same:
- after a lost life the game simply continues: nothing is pressed (Breakout then waits for FIRE) and the stacked frames
  stay, where `AtariGame` waits a step, presses FIRE and begins a new stack;
- a game begins after 0 to 30 frames of nothing and, where it has the button, one frame of FIRE;
- sticky actions are the emulator's;
- it cannot be restored within an episode: a resumed run begins new games.
Frames are made in the same way (the brighter of two frames, gray, 84 × 84 by area), to within a shade.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from ale_py.vector_env import AtariVectorEnv

from cleanrl_worker.training.envs.vector import EnvState, Step


class AleVectorEnvs:
    """The C++ vector environment under our convention; a life is an episode; `over` marks the end of a game."""

    def __init__(self, game: str, num_envs: int, *, stack: int, sticky: float, skip: int, num_threads: int) -> None:
        # life_loss_info reports lost lives without resetting the game, which episodic_life would do.
        self._env: Any = AtariVectorEnv(
            game,
            num_envs,
            stack_num=stack,
            frameskip=skip,
            repeat_action_probability=sticky,
            num_threads=num_threads,
            life_loss_info=True,
            reward_clipping=False,
            autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,
        )
        self.num_envs = num_envs
        self.observation_space = self._env.single_observation_space
        self.action_space = self._env.single_action_space
        self._frames = np.zeros(num_envs, dtype=np.int32)

    def reset(self, seed: int) -> np.ndarray:
        """Begin new episodes and return their observations."""
        obs, info = self._env.reset(seed=seed)
        self._frames = info["episode_frame_number"]
        return obs.copy()

    def step(self, actions: np.ndarray) -> Step:
        """Step all environments; ended episodes are reset."""
        obs, raw_rewards, terminated, truncated, info = self._env.step(actions.astype(np.int32, copy=False))
        ended = terminated | truncated
        # Frames are counted per game: a smaller number than before is one that has just begun.
        over = ended & (info["episode_frame_number"] <= self._frames)
        self._frames = info["episode_frame_number"]
        final_obs = obs
        if np.count_nonzero(over):
            final_obs = obs.copy()
            final_obs[over] = info["final_obs"][over]  # of lost lives it is not what followed the action; `obs` is
        raw = raw_rewards.astype(np.float32)
        return Step(obs, np.sign(raw), terminated, truncated, final_obs, ended, raw, over)

    def snapshot(self) -> EnvState:
        """Return an empty state: the games cannot be saved."""
        return EnvState({}, {"backend": "ale"})

    def restore(self, state: EnvState) -> np.ndarray | None:
        """Never: what its threads are at cannot be read."""
        return None

    def close(self) -> None:
        """Close the environments."""
        self._env.close()
