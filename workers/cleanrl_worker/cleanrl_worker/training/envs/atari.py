"""An Atari game as algorithms use it: 84 × 84 grayscale frames, four at a time, an episode per life, signs of rewards.

The emulator is stepped frame by frame here instead of through wrappers, so that unused frames are not rendered. Unlike
CleanRL, and like gymnasium's AtariPreprocessing, frames are resized after the conversion to grayscale, which differs by
a shade. Sticky actions are implemented here, because the emulator's are not part of its state, and a game could not
continue exactly from a snapshot (`save_state`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
import gymnasium as gym
import numpy as np
from ale_py import Action, ALEInterface, ALEState, LoggerMode
from gymnasium.utils import seeding

from cleanrl_worker.training.envs.vector import EnvState

SIDE = 84

ALEInterface.setLoggerMode(LoggerMode.Error)  # a greeting per game is noise
cv2.setNumThreads(1)  # frames this small are not worth waking threads for


@dataclass(frozen=True)
class AtariSettings:
    """What lies between the game and the algorithm."""

    stack: int = 4
    """frames in an observation"""
    noops: int = 30
    """a game begins after up to so many frames of doing nothing"""
    sticky: float | None = None
    """probability that a frame repeats the last action; None: what the id stands for (v5: 0.25, NoFrameskip-v4: 0)"""
    life_is_episode: bool = True
    """a lost life ends the episode, and the next one continues in the same game"""
    clip: bool = True
    """rewards are -1, 0 or 1"""


class AtariGame(gym.Wrapper):
    """One game; `raw_reward` and `game_over` are what the game itself paid in the last step, and whether it ended.

    With `whole_games` (for evaluation) an episode is a game and rewards are the game's, over observations that are the
    same: after a lost life the same buttons are pressed as between two episodes of training.
    """

    def __init__(
        self,
        env: gym.Env,
        settings: AtariSettings,
        *,
        skip: int = 4,
        sticky: float = 0.0,
        limit: int | None = None,
        whole_games: bool = False,
    ) -> None:
        super().__init__(env)
        self._settings, self._skip, self._sticky, self._limit = settings, skip, sticky, limit
        self._whole_games = whole_games
        self._ale: Any = env.unwrapped.ale  # type: ignore[attr-defined]
        self._buttons = list(env.unwrapped._action_set)  # type: ignore[attr-defined]
        meanings = env.unwrapped.get_action_meanings()  # type: ignore[attr-defined]
        self._fires = len(meanings) >= 3 and meanings[1] == "FIRE"
        self.observation_space = gym.spaces.Box(0, 255, (settings.stack, SIDE, SIDE), dtype=np.uint8)
        self.metadata = {**env.metadata, "render_fps": 60 / skip}  # drawn once a step, the game runs at 60
        height, width = self._ale.getScreenDims()
        self._screens = (np.zeros((height, width), np.uint8), np.zeros((height, width), np.uint8))
        self._stack = np.zeros((settings.stack, SIDE, SIDE), dtype=np.uint8)
        self._ale.reset_game()
        # Seeds do not reach the game (only sticky actions are random), so a seeded reset can go back to here; loading
        # the cartridge again, which the emulator requires, takes a fifth of a second.
        self._beginning = self._ale.cloneSystemState()
        self._rng = env.unwrapped.np_random
        self._pressed = Action.NOOP
        self._lives = self._length = 0
        self._owed = 0.0
        self._playing = False
        self.raw_reward, self.game_over = 0.0, False

    # -- playing

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin a game, or after a lost life continue with the one there is; a seed always begins one."""
        if seed is not None:
            self.env.unwrapped.np_random, _ = seeding.np_random(seed)
            self._rng = self.env.unwrapped.np_random
            self._go_to(self._beginning)
            self._begin_game()
        elif self._whole_games or not self._playing:
            self._ale.reset_game()
            self._begin_game()
        else:
            self._begin_life()
        return self._stack.copy(), {"lives": self._lives}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Hold a button for four frames."""
        reward = self._hold(self._buttons[action])
        self._push_frame()
        self.raw_reward, self._owed = reward + self._owed, 0.0
        self._length += 1
        terminated = self._ale.game_over(with_truncation=False)
        truncated = self._ale.game_truncated() or (self._limit is not None and self._length >= self._limit)
        self.game_over = terminated or truncated
        self._playing = not self.game_over
        lives = self._ale.lives()
        lost = 0 < lives < self._lives
        self._lives = lives
        if self._whole_games:
            if lost and self._settings.life_is_episode and not self.game_over:
                self._begin_life()
                self.raw_reward, self._owed = self.raw_reward + self._owed, 0.0
                terminated = self.game_over
            return self._stack.copy(), self.raw_reward, terminated, truncated, {"lives": self._lives}
        if lost and self._settings.life_is_episode:
            terminated = True
        seen = float((reward > 0) - (reward < 0)) if self._settings.clip else reward
        return self._stack.copy(), seen, terminated, truncated, {"lives": lives}

    def _hold(self, button: Any) -> float:
        """Hold a button for the frames of one step; the last two screens are kept."""
        total, last = 0.0, self._skip - 1
        for frame in range(self._skip):
            total += self._frame(button)
            over = self._ale.game_over()
            if frame >= last - 1 or over:
                self._ale.getScreenGrayscale(self._screens[frame % 2])
            if over:
                break
        if frame < last or last == 0:
            self._screens[1 - frame % 2][:] = self._screens[frame % 2]
        return total

    def _frame(self, button: Any) -> float:
        if not self._sticky or self._rng.random() >= self._sticky:
            self._pressed = button
        return float(self._ale.act(self._pressed))

    def _push_frame(self) -> None:
        """Sprites may be drawn in every other frame only, hence the brighter of two."""
        stack = self._stack
        stack[:-1] = stack[1:]
        brighter = np.maximum(*self._screens, out=self._screens[0])
        cv2.resize(brighter, (SIDE, SIDE), dst=stack[-1], interpolation=cv2.INTER_AREA)

    def render(self) -> Any:
        """Return the screen; this class plays past gymnasium's wrapper, which therefore thinks nothing has begun."""
        return self.env.unwrapped.render()

    # -- beginnings

    def _begin_game(self) -> None:
        self._pressed, self._length, self._owed, self._playing = Action.NOOP, 0, 0.0, True
        for _ in range(int(self._rng.integers(1, self._settings.noops + 1)) if self._settings.noops else 0):
            self._owed += self._frame(Action.NOOP)
            if self._ale.game_over():
                self._ale.reset_game()
        for screen in self._screens:
            self._ale.getScreenGrayscale(screen)
        self._press_fire()

    def _begin_life(self) -> None:
        self._owed = self._hold(Action.NOOP)
        if self._ale.game_over():  # the game ended between two steps: the step before was its last
            self.raw_reward, self._owed, self.game_over, self._playing = self.raw_reward + self._owed, 0.0, True, False
            self._push_frame()
            if not self._whole_games:
                self._ale.reset_game()
                self._begin_game()
            return
        self._press_fire()

    def _press_fire(self) -> None:
        """Games with a FIRE button wait for it; then fill the stack with what is seen."""
        if self._fires:
            for button in self._buttons[1:3]:
                self._owed += self._hold(button)
                if self._ale.game_over():
                    self._ale.reset_game()
                    self._pressed = Action.NOOP
        self._push_frame()
        self._stack[:] = self._stack[-1]
        self._lives = self._ale.lives()

    # -- snapshots

    def save_state(self) -> EnvState:
        """Return the emulator with its timers, and everything above it."""
        emulator = np.frombuffer(self._ale.cloneSystemState().serialize(), dtype=np.uint8)
        values = {
            "rng": self._rng.bit_generator.state,
            "pressed": int(self._pressed.value),
            "lives": self._lives,
            "length": self._length,
            "owed": self._owed,
        }
        return EnvState({"emulator": emulator.copy(), "stack": self._stack.copy()}, values)

    def load_state(self, state: EnvState) -> np.ndarray:
        """Continue from there, to the bit."""
        values = state.values
        self._go_to(ALEState(state.arrays["emulator"].tobytes()))
        self._rng.bit_generator.state = values["rng"]
        self._pressed, self._lives, self._length = Action(values["pressed"]), values["lives"], values["length"]
        self._owed, self._playing = values["owed"], True
        self._stack[:] = state.arrays["stack"]
        return self._stack.copy()

    def _go_to(self, state: ALEState) -> None:
        # Q*bert comes out elsewhere when a state is put into a game that has not been stepped since its reset. And the
        # screen is not part of the state: Yars' Revenge leaves some of the last one there, so that has to be ours, too.
        for _ in range(2):
            self._ale.act(Action.NOOP)
            self._ale.restoreSystemState(state)
