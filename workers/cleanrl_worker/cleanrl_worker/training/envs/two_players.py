"""PettingZoo's two-player Atari games, both players learning one policy.

Rows 2i and 2i + 1 of everything are the two players of game i, so the number of environments is even. What a player
sees, uint8 (84, 84, 6): the last four frames (blue, bilinear; none at the beginning, so zeros), then two planes of
which its own is 255 throughout. Actions are held for four frames and rewards clipped to ±1: what CleanRL's script makes
with SuperSuit's wrappers. The games have no randomness of their own and all begin alike. A snapshot holds the
emulator's state, so resume is exact.

For evaluation `AgainstRandom` plays the first player against an opponent with random actions: against itself a policy
always scores as much as it loses.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import tinyscaler

from cleanrl_worker.errors import BadInput
from cleanrl_worker.training.envs.vector import EnvState, Step

SIDE, STACK, FRAMES_PER_STEP, PLAYERS = 84, 4, 4, 2
_BLUE = 2


class TwoPlayerGame:
    """One game and the frames of it."""

    def __init__(self, game: str, env_kwargs: Mapping[str, Any]) -> None:
        self._env = _make(game, env_kwargs)
        self._ale: Any = self._env.ale
        self._buttons = self._env.action_mapping
        self.action_space = gym.spaces.Discrete(len(self._buttons))
        self._stack = np.zeros((SIDE, SIDE, STACK), dtype=np.uint8)
        self._frames = 0

    def reset(self, seed: int | None = None) -> None:
        """Begin a game."""
        # A seed loads the cartridge anew; otherwise some games keep a little of the last one.
        self._env.reset(seed=seed)
        self._frames = 0
        self._stack[:] = 0
        self._push(self._screen())

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, bool, bool]:
        """Rewards of the two players, and whether the game is over or cut."""
        buttons = self._buttons[actions]
        rewards, before, now = np.zeros(PLAYERS, dtype=np.float32), None, None
        over = False
        for frame in range(FRAMES_PER_STEP):
            rewards += self._ale.act(buttons)
            self._frames += 1
            over = self._ale.game_over() or bool((self._ale.allLives() < 0).any())
            if frame >= FRAMES_PER_STEP - 2 or over:
                before, now = now, self._screen()
            if over or self._frames >= self._env.max_cycles:
                break
        now = self._screen() if now is None else now
        self._push(now if before is None else np.maximum(before, now))
        return rewards, over, self._frames >= self._env.max_cycles

    def see(self, out: np.ndarray) -> None:
        """Write both players' observations, [2, 84, 84, 6]; the indicator planes are there already."""
        out[..., :STACK] = self._stack

    def _screen(self) -> np.ndarray:
        screen: np.ndarray = self._ale.getScreenRGB()
        return screen[:, :, _BLUE]

    def _push(self, screen: np.ndarray) -> None:
        self._stack[..., :-1] = self._stack[..., 1:]
        small = tinyscaler.scale(np.ascontiguousarray(screen)[..., None], (SIDE, SIDE), mode="bilinear")
        self._stack[..., -1] = small[..., 0]

    def save_state(self) -> EnvState:
        """Return the state."""
        system = self._ale.cloneSystemState()
        emulator = np.array(self._ale.encodeState(system), dtype=np.uint8)
        self._ale.deleteState(system)
        return EnvState({"emulator": emulator, "stack": self._stack.copy()}, {"frames": self._frames})

    def load_state(self, state: EnvState) -> None:
        """Restore the state."""
        self._ale.act(
            self._buttons[np.zeros(PLAYERS, dtype=np.int64)]
        )  # see AtariGame: a state goes into a moving game
        system = self._ale.decodeState(state.arrays["emulator"])
        self._ale.restoreSystemState(system)
        self._ale.deleteState(system)
        self._stack[:] = state.arrays["stack"]
        self._frames = int(state.values["frames"])

    def render(self) -> np.ndarray:
        """Return the screen."""
        frame: np.ndarray = self._ale.getScreenRGB()
        return frame


class TwoPlayerEnvs:
    """Both players of several games."""

    def __init__(self, game: str, num_envs: int, env_kwargs: Mapping[str, Any]) -> None:
        if num_envs % PLAYERS:
            raise BadInput(f"--num-envs {num_envs}: each game has two players, so the number must be even")
        self._games = [TwoPlayerGame(game, env_kwargs) for _ in range(num_envs // PLAYERS)]
        self.num_envs = num_envs
        self.observation_space: gym.Space = observation_space()
        self.action_space: gym.Space = self._games[0].action_space
        self._blank = np.zeros((num_envs, SIDE, SIDE, STACK + PLAYERS), dtype=np.uint8)
        for player in range(PLAYERS):
            self._blank[player::PLAYERS, :, :, STACK + player] = 255

    def reset(self, seed: int) -> np.ndarray:
        """Begin new episodes and return their observations."""
        for index, game in enumerate(self._games):
            game.reset(seed + index)
        return self._see()

    def step(self, actions: np.ndarray) -> Step:
        """Step all environments; ended episodes are reset."""
        outcomes = [game.step(actions[PLAYERS * i : PLAYERS * i + PLAYERS]) for i, game in enumerate(self._games)]
        raw = np.concatenate([rewards for rewards, _, _ in outcomes])
        terminated = np.repeat([over for _, over, _ in outcomes], PLAYERS)
        truncated = np.repeat([cut for _, _, cut in outcomes], PLAYERS)
        ended = terminated | truncated
        final_obs = obs = self._see()
        if np.count_nonzero(ended):
            for index in np.flatnonzero(ended[::PLAYERS]):
                self._games[index].reset()
            obs = self._see()
        return Step(obs, raw.clip(-1, 1), terminated, truncated, final_obs, ended, raw)

    def _see(self) -> np.ndarray:
        obs = self._blank.copy()
        for index, game in enumerate(self._games):
            game.see(obs[PLAYERS * index : PLAYERS * index + PLAYERS])
        return obs

    def snapshot(self) -> EnvState:
        """Return the state for a checkpoint."""
        states = [game.save_state() for game in self._games]
        arrays = {f"{i}.{name}": array for i, state in enumerate(states) for name, array in state.arrays.items()}
        return EnvState(arrays, {"backend": "two-players", "states": [dict(state.values) for state in states]})

    def restore(self, state: EnvState) -> np.ndarray | None:
        """Restore a snapshot and return its observations; None if that is not possible."""
        values = state.values
        if values.get("backend") != "two-players" or len(values["states"]) != len(self._games):
            return None
        for index, (game, known) in enumerate(zip(self._games, values["states"], strict=True)):
            arrays = {name: state.arrays[f"{index}.{name}"] for name in ("emulator", "stack")}
            game.load_state(EnvState(arrays, known))
        return self._see()

    def close(self) -> None:
        """Nothing is open."""


class AgainstRandom(gym.Env):
    """The first player's game against an opponent with random actions; rewards are the game's."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}

    def __init__(self, game: str, env_kwargs: Mapping[str, Any], *, render_mode: str | None = None) -> None:
        self._game = TwoPlayerGame(game, env_kwargs)
        self.observation_space, self.action_space = observation_space(), self._game.action_space
        self.render_mode = render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin a game; the seed is that of the opponent."""
        super().reset(seed=seed)
        self._game.reset(seed)
        return self._see(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Hold two buttons for four frames."""
        other = int(self.np_random.integers(self._game.action_space.n))
        rewards, over, cut = self._game.step(np.array([int(action), other]))
        return self._see(), float(rewards[0]), over, cut, {}

    def _see(self) -> np.ndarray:
        obs = np.zeros((SIDE, SIDE, STACK + PLAYERS), dtype=np.uint8)
        obs[..., STACK] = 255
        self._game.see(obs)
        return obs

    def render(self) -> np.ndarray:
        """Return the whole screen."""
        return self._game.render()


def observation_space() -> gym.spaces.Box:
    """Four frames and two planes that encode the player."""
    return gym.spaces.Box(0, 255, (SIDE, SIDE, STACK + PLAYERS), dtype=np.uint8)


def _make(game: str, env_kwargs: Mapping[str, Any]) -> Any:
    name = game.removeprefix("pettingzoo/")
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # its module opens a display
    try:
        module = importlib.import_module(f"pettingzoo.atari.{name}")
    except (ModuleNotFoundError, AttributeError) as error:
        raise BadInput(f"PettingZoo has no Atari game {name!r} ({error}); write one like pong_v3") from error
    import ale_py  # the games' cartridges are in its wheel

    roms = os.path.join(os.path.dirname(ale_py.__file__), "roms")
    env = module.parallel_env(**{"auto_rom_install_path": roms, **env_kwargs}).unwrapped
    if len(env.possible_agents) != PLAYERS:
        raise BadInput(f"{name} is played by {len(env.possible_agents)}; this algorithm is for games of two")
    env.reset(seed=0)
    return env
