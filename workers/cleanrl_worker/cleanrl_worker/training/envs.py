"""Vector environments with one convention: an ended episode is reset in the same step.

`step` returns the observation to act on next, and for episodes that just ended also the last observation of
the old episode (`final_obs`). No transition between two episodes is ever returned, so whatever an algorithm
stores really happened. Gymnasium's own NEXT_STEP autoreset would add one phantom transition per episode.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from cleanrl_worker.errors import BadInput

NATIVE_CARTPOLE_FROM = 6
"""From this many environments on the native vector CartPole costs less per step than a loop over single ones"""


class Step(NamedTuple):
    """What one step of all environments gave."""

    obs: np.ndarray
    """To act on next: the first observation of the new episode where one ended"""
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final_obs: np.ndarray
    """What followed the action, before any reset"""
    ended: np.ndarray
    """terminated or truncated"""
    raw_rewards: np.ndarray | None = None
    """What the environment paid, where `rewards` are clipped or scaled"""
    over: np.ndarray | None = None
    """Where the game itself is over, if `ended` can also mean a lost life"""


@dataclass(frozen=True)
class EnvState:
    """Everything needed to go on in another process as if nothing had happened."""

    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)


class VectorEnvs(Protocol):
    """Several copies of one environment, stepped together."""

    num_envs: int
    observation_space: gym.Space
    action_space: gym.Space

    def reset(self, seed: int) -> np.ndarray: ...

    def step(self, actions: np.ndarray) -> Step: ...

    def snapshot(self) -> EnvState: ...

    def restore(self, state: EnvState) -> np.ndarray | None:
        """Go back to a snapshot and return the observations there; None: this environment cannot."""

    def close(self) -> None: ...


class NativeCartPole:
    """Gymnasium's vectorised CartPole, with the reset moved into the step that ends the episode."""

    def __init__(self, env_id: str, num_envs: int) -> None:
        env = gym.make_vec(env_id, num_envs=num_envs, vectorization_mode="vector_entry_point").unwrapped
        if not isinstance(env, CartPoleVectorEnv):
            raise TypeError(f"{env_id} has no native vector CartPole")
        self._env: Any = env  # its arrays are read and set here; gymnasium declares them as None
        self.num_envs = num_envs
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space

    def reset(self, seed: int) -> np.ndarray:
        return self._env.reset(seed=seed)[0]

    def step(self, actions: np.ndarray) -> Step:
        env = self._env
        final_obs, rewards, terminated, truncated, _ = env.step(actions)
        ended = env.prev_done
        if not ended.any():
            return Step(final_obs, rewards, terminated, truncated, final_obs, ended)
        obs = final_obs.copy()
        env.state[:, ended] = env.np_random.uniform(env.low, env.high, size=(4, int(ended.sum())))
        env.steps[ended] = 0
        obs[ended] = env.state[:, ended].T
        env.prev_done = np.zeros(self.num_envs, dtype=np.bool_)
        return Step(obs, rewards, terminated, truncated, final_obs, ended)

    def snapshot(self) -> EnvState:
        env = self._env
        return EnvState(
            {"state": np.array(env.state), "steps": env.steps.copy()},
            {"backend": "native-cartpole", "rng": env.np_random.bit_generator.state},
        )

    def restore(self, state: EnvState) -> np.ndarray | None:
        if state.values.get("backend") != "native-cartpole":
            return None
        env = self._env
        env.reset(seed=0)
        env.np_random.bit_generator.state = state.values["rng"]
        env.state = state.arrays["state"].copy()
        env.steps = state.arrays["steps"].copy()
        return env.state.T.astype(np.float32)

    def close(self) -> None:
        self._env.close()


class SyncEnvs:
    """Single environments stepped in a loop.

    A snapshot is what the episode started from (seed or generator state) and the actions since; restoring
    replays them. That needs no knowledge of the environment and costs at most one episode.
    """

    backend = "sync"

    def __init__(self, env_id: str, num_envs: int, env_kwargs: Mapping[str, Any] | None = None) -> None:
        self._take([make_single(env_id, env_kwargs) for _ in range(num_envs)])

    def _take(self, envs: Sequence[gym.Env]) -> None:
        self._envs = list(envs)
        self.num_envs = num_envs = len(self._envs)
        self.observation_space = self._envs[0].observation_space
        self.action_space = self._envs[0].action_space
        self._discrete = isinstance(self.action_space, gym.spaces.Discrete)
        self._first_action = int(self.action_space.start) if isinstance(self.action_space, gym.spaces.Discrete) else 0
        self._origins: list[dict[str, Any]] = [{} for _ in self._envs]
        self._actions: list[list[Any]] = [[] for _ in self._envs]
        self._obs = np.zeros((num_envs, *self.observation_space.shape), dtype=self.observation_space.dtype)  # type: ignore[misc]

    def reset(self, seed: int) -> np.ndarray:
        for index, env in enumerate(self._envs):
            self._origins[index], self._actions[index] = {"seed": seed + index}, []
            self._obs[index] = env.reset(seed=seed + index)[0]
        return self._obs.copy()

    def step(self, actions: np.ndarray) -> Step:
        num_envs = self.num_envs
        rewards = np.empty(num_envs, dtype=np.float32)
        terminated, truncated = np.zeros(num_envs, dtype=np.bool_), np.zeros(num_envs, dtype=np.bool_)
        final_obs = np.empty_like(self._obs)
        choices = (actions + self._first_action).tolist() if self._discrete else actions
        for index, env in enumerate(self._envs):
            action = choices[index]
            self._actions[index].append(action)
            final_obs[index], rewards[index], terminated[index], truncated[index], _ = env.step(action)
        ended = terminated | truncated
        self._count(rewards, ended)
        if not ended.any():
            self._obs = final_obs
            return Step(final_obs, rewards, terminated, truncated, final_obs, ended)
        obs = final_obs.copy()
        for index in np.flatnonzero(ended).tolist():
            obs[index] = self._start_episode(index)
        self._obs = obs
        return Step(obs, rewards, terminated, truncated, final_obs, ended)

    def _count(self, rewards: np.ndarray, ended: np.ndarray) -> None:
        """What a step gave, before the next episodes begin; for those who choose them by it."""

    def _start_episode(self, index: int) -> np.ndarray:
        env = self._envs[index]
        self._origins[index], self._actions[index] = {"rng": _rng_state(env)}, []
        return env.reset()[0]

    def snapshot(self) -> EnvState:
        arrays = {f"actions.{index}": np.array(actions) for index, actions in enumerate(self._actions)}
        return EnvState({"obs": self._obs.copy(), **arrays}, {"backend": self.backend, "origins": list(self._origins)})

    def restore(self, state: EnvState) -> np.ndarray | None:
        if state.values.get("backend") != self.backend or len(state.values["origins"]) != self.num_envs:
            return None
        for index, (env, origin) in enumerate(zip(self._envs, state.values["origins"], strict=True)):
            recorded = state.arrays[f"actions.{index}"]
            actions = recorded.tolist() if self._discrete else list(recorded)
            self._origins[index], self._actions[index] = origin, actions
            self._obs[index] = _replay(env, origin, actions)
        # An environment with randomness of its own comes out elsewhere; better a new episode than a false one.
        if not np.array_equal(self._obs, state.arrays["obs"], equal_nan=True):
            return None
        return self._obs.copy()

    def close(self) -> None:
        for env in self._envs:
            env.close()


def make_single(env_id: str, env_kwargs: Mapping[str, Any] | None = None, **options: Any) -> gym.Env:
    """Make one environment with observations an algorithm can use: a box; of grid worlds, what the agent sees."""
    register_family(env_id)
    env = gym.make(env_id, **(env_kwargs or {}), **options)
    space = env.observation_space
    if isinstance(space, gym.spaces.Box):
        return env
    if isinstance(space, gym.spaces.Dict) and is_image(space.spaces.get("image")):
        return SeenImage(env)
    if not space.is_np_flattenable:
        raise BadInput(f"{env_id}: observations of type {type(space).__name__} cannot be made a flat vector")
    return gym.wrappers.FlattenObservation(env)


def is_image(space: gym.Space | None) -> bool:
    """Whether observations are pictures: bytes of height, width and channels."""
    return isinstance(space, gym.spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3


class SeenImage(gym.ObservationWrapper):
    """Of a grid world's observation (image, direction, mission) the image alone."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        assert isinstance(env.observation_space, gym.spaces.Dict)
        self.observation_space = env.observation_space["image"]

    def observation(self, observation: Any) -> Any:
        return observation["image"]


_FAMILIES = {"MiniGrid-": "minigrid", "BabyAI-": "minigrid", "ALE/": "ale_py", "dm_control/": "shimmy"}
"""Packages that register their ids only when they are imported"""


def register_family(env_id: str) -> None:
    """Import the package an id comes from: `package.module:Env-v0`, or a family whose package is known."""
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    elif name not in gym.registry:
        package = next((package for prefix, package in _FAMILIES.items() if name.startswith(prefix)), None)
        if package is not None:
            importlib.import_module(package)


def _rng_state(env: gym.Env) -> dict[str, Any]:
    return dict(env.unwrapped.np_random.bit_generator.state)


def _replay(env: gym.Env, origin: Mapping[str, Any], actions: Sequence[Any]) -> np.ndarray:
    if "task" in origin:
        env.get_wrapper_attr("change_task")(origin["task"])  # one of a curriculum
    if "seed" in origin:
        obs = env.reset(seed=origin["seed"])[0]
    else:
        env.reset(seed=0)  # makes the generator whose state is then set
        env.unwrapped.np_random.bit_generator.state = dict(origin["rng"])
        obs = env.reset()[0]
    for action in actions:
        obs = env.step(action)[0]
    return obs


def make_envs(env_id: str, num_envs: int, env_kwargs: Mapping[str, Any] | None = None) -> VectorEnvs:
    """Make the environments with the cheapest backend that behaves the same."""
    with said_of(env_id):
        register_family(env_id)
        native = str(gym.spec(env_id.rpartition(":")[2]).vector_entry_point).endswith("cartpole:CartPoleVectorEnv")
        if native and num_envs >= NATIVE_CARTPOLE_FROM and not env_kwargs:
            return NativeCartPole(env_id, num_envs)
        return SyncEnvs(env_id, num_envs, env_kwargs)


@contextmanager
def said_of(env_id: str) -> Iterator[None]:
    """Turn what gymnasium raises when an environment cannot be made into a sentence about it."""
    try:
        yield
    except gym.error.DependencyNotInstalled as error:
        raise BadInput(f"{env_id} needs a package that is not installed: {error}") from error
    except (gym.error.Error, ModuleNotFoundError) as error:
        raise BadInput(f"environment {env_id!r} cannot be made: {error}") from error
    except TypeError as error:
        if "got an unexpected keyword argument" not in str(error):
            raise
        raise BadInput(f"environment {env_id!r} cannot be made with these --env-kwargs: {error}") from error


class EpisodeTracker:
    """Returns and lengths of the running episodes, and the last hundred that ended."""

    def __init__(self, num_envs: int) -> None:
        self._returns = np.zeros(num_envs, dtype=np.float64)
        self._lengths = np.zeros(num_envs, dtype=np.int64)
        self._recent: deque[float] = deque(maxlen=100)
        self.episodes = 0

    def add(self, step: Step) -> list[tuple[float, int]]:
        """Count one step; return (return, length) of the episodes that ended with it."""
        self._returns += step.rewards if step.raw_rewards is None else step.raw_rewards
        self._lengths += 1
        over = step.ended if step.over is None else step.over
        if not over.any():
            return []
        finished = [(float(self._returns[i]), int(self._lengths[i])) for i in np.flatnonzero(over)]
        self._returns[over] = 0
        self._lengths[over] = 0
        self._recent.extend(episode_return for episode_return, _ in finished)
        self.episodes += len(finished)
        return finished

    @property
    def mean_return(self) -> float | None:
        """Mean over the last hundred episodes (fewer at the beginning); None before the first."""
        return sum(self._recent) / len(self._recent) if self._recent else None

    def has_reached(self, episode_return: float | None) -> bool:
        """Tell whether a full hundred episodes average at least this return."""
        mean = self.mean_return
        return episode_return is not None and mean is not None and len(self._recent) == 100 and mean >= episode_return

    def snapshot(self) -> dict[str, Any]:
        return {
            "returns": self._returns.tolist(), "lengths": self._lengths.tolist(),
            "recent": list(self._recent), "episodes": self.episodes,
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any], *, mid_episode: bool) -> None:
        """Take the counts back; without `mid_episode` the running episodes start anew."""
        if mid_episode:
            self._returns[:] = state["returns"]
            self._lengths[:] = state["lengths"]
        self._recent.extend(state["recent"])
        self.episodes = int(state["episodes"])
