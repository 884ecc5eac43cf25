"""Single environments stepped in a loop, in this process."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

import gymnasium as gym
import numpy as np

from cleanrl_worker.fastlane import draw
from cleanrl_worker.training.envs.construction import SeenImage, make_single
from cleanrl_worker.training.envs.vector import EnvState, KeepsState, Step, none_of

_COMPUTED = (
    "xpos xquat xmat xipos ximat xanchor xaxis geom_xpos geom_xmat site_xpos site_xmat cdof cinert crb "
    "cvel cdof_dot ten_length ten_velocity actuator_length actuator_velocity actuator_force sensordata "
    "subtree_com subtree_linvel subtree_angmom qacc qfrc_actuator qfrc_constraint qfrc_passive qfrc_bias "
    "cacc cfrc_int cfrc_ext"
)
"""Results of a simulation step that the state does not include; arrays of constant length only"""


def keeper_of(env: gym.Env) -> KeepsState | None:
    """Return what saves this environment's state; None if its actions must be replayed."""
    if hasattr(env, "save_state"):
        return cast(KeepsState, env)
    robot = env.unwrapped
    if (
        type(robot).__module__.startswith("gymnasium.envs.mujoco.")
        and hasattr(robot, "data")
        and "mujoco" in sys.modules
    ):
        return MujocoKeeper(robot)
    return None


class MujocoKeeper:
    """Saves the simulation of one of gymnasium's MuJoCo robots."""

    def __init__(self, robot: Any) -> None:
        import mujoco

        self._mujoco, self._robot = mujoco, robot
        robot.reset(seed=0)  # creates the generator
        self._spec = mujoco.mjtState.mjSTATE_INTEGRATION
        self._size = mujoco.mj_stateSize(robot.model, self._spec)

    def save_state(self) -> EnvState:
        """Return the state of simulation and generator."""
        data = self._robot.data
        integrator = np.empty(self._size)
        self._mujoco.mj_getState(self._robot.model, data, integrator, self._spec)
        computed = np.concatenate([getattr(data, name).ravel() for name in _COMPUTED.split()])
        rng = dict(self._robot.np_random.bit_generator.state)
        return EnvState({"integrator": integrator, "computed": computed}, {"rng": rng, "mujoco": self._version})

    @property
    def _version(self) -> str:
        return str(self._mujoco.__version__)

    def load_state(self, state: EnvState) -> np.ndarray | None:
        """Restore the state; return None for a state of another MuJoCo version or robot."""
        if state.values["mujoco"] != self._version or state.arrays["integrator"].size != self._size:
            return None  # other versions compute other results
        data = self._robot.data
        self._mujoco.mj_setState(self._robot.model, data, state.arrays["integrator"], self._spec)
        start = 0
        for name in _COMPUTED.split():
            array = getattr(data, name)
            array[...] = state.arrays["computed"][start : start + array.size].reshape(array.shape)
            start += array.size
        self._robot.np_random.bit_generator.state = dict(state.values["rng"])
        obs: np.ndarray = self._robot._get_obs()
        return obs


class SyncEnvs:
    """Single environments stepped in a loop.

    A snapshot is the origin of the episode (seed or generator state) and the actions since; restoring replays them.
    That works for any environment and costs at most one episode. Environments whose state can be saved (`keeper_of`)
    are restored from that instead.
    """

    backend = "single"
    """In snapshots, which `AsyncEnvs` can restore, too"""

    def __init__(
        self, env_id: str, num_envs: int, env_kwargs: Mapping[str, Any] | None = None, *, pipeline: str = "plain"
    ) -> None:
        self._adopt([make_single(env_id, env_kwargs, pipeline=pipeline, training=True) for _ in range(num_envs)])

    def _adopt(self, envs: Sequence[gym.Env]) -> None:
        self.num_envs = num_envs = len(envs)
        self.observation_space = envs[0].observation_space
        self.action_space = envs[0].action_space
        self._discrete = isinstance(self.action_space, gym.spaces.Discrete)
        self._first_action = int(self.action_space.start) if isinstance(self.action_space, gym.spaces.Discrete) else 0
        stripped = [_stripped(env) for env in envs]
        self._envs = [env for env, _ in stripped]
        self._limits = [limit if limit is not None else _NEVER for _, limit in stripped]
        self._elapsed = [0] * num_envs
        keepers = [keeper_of(env) for env in self._envs]
        self._keepers = [keeper for keeper in keepers if keeper is not None] if None not in keepers else None
        self._is_scored = all(hasattr(env, "raw_reward") for env in self._envs)
        self._origins: list[dict[str, Any]] = [{} for _ in self._envs]
        self._actions: list[list[Any]] = [[] for _ in self._envs]
        self._shape = (num_envs, *self.observation_space.shape)  # type: ignore[misc]
        self._obs = np.zeros(self._shape, dtype=self.observation_space.dtype)
        self._nothing_ended = none_of(num_envs)
        self._alone = num_envs == 1 and type(self) is SyncEnvs and not self._is_scored

    def reset(self, seed: int) -> np.ndarray:
        """Begin new episodes and return their observations."""
        self._obs = np.empty_like(self._obs)  # the last one may be kept by the caller
        for index, env in enumerate(self._envs):
            self._origins[index], self._actions[index] = {"seed": seed + index}, []
            self._elapsed[index] = 0
            self._obs[index] = env.reset(seed=seed + index)[0]
        return self._obs.copy()

    def step(self, actions: np.ndarray) -> Step:
        """Step all environments; ended episodes are reset."""
        if self._alone:
            return self._step_alone(actions)
        choices: Any
        if self._discrete:
            choices = actions.tolist() if not self._first_action else (actions + self._first_action).tolist()
        else:
            choices = actions.copy()  # kept until the episode ends
        final_obs = np.empty(self._shape, self._obs.dtype)
        rewards, terminated, truncated = [], [], []
        any_ended = False
        replays = self._keepers is None
        for index, env in enumerate(self._envs):
            action = choices[index]
            if replays:
                self._actions[index].append(action)
            final_obs[index], reward, is_over, is_cut, _ = env.step(action)
            self._elapsed[index] = length = self._elapsed[index] + 1
            if length >= self._limits[index]:
                is_cut = True
            if is_over or is_cut:
                any_ended = True
            rewards.append(reward)
            terminated.append(is_over)
            truncated.append(is_cut)
        rewards_array = np.array(rewards, np.float32)
        if not any_ended:
            none = self._nothing_ended
            self._count(rewards_array, none)
            self._obs = final_obs
            step = Step(final_obs, rewards_array, none, none, final_obs, none)
        else:
            ends = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
            step = self._begin_episodes(final_obs, rewards_array, *ends)
        return self._scored(step) if self._is_scored else step

    def _step_alone(self, actions: np.ndarray) -> Step:
        """Step a single environment, for which a loop and lists would cost as much as the environment itself."""
        action = actions.item() + self._first_action if self._discrete else actions[0].copy()
        if self._keepers is None:
            self._actions[0].append(action)
        obs, reward, is_over, is_cut, _ = self._envs[0].step(action)
        self._elapsed[0] = length = self._elapsed[0] + 1
        final_obs = np.empty(self._shape, self._obs.dtype)
        final_obs[0] = obs
        rewards = np.array((reward,), np.float32)
        if is_over or is_cut or length >= self._limits[0]:
            cut = np.array((is_cut or length >= self._limits[0],), np.bool_)
            return self._begin_episodes(final_obs, rewards, np.array((is_over,), np.bool_), cut)
        self._obs = final_obs
        none = self._nothing_ended
        return Step(final_obs, rewards, none, none, final_obs, none)

    def _begin_episodes(
        self, final_obs: np.ndarray, rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> Step:
        ended = terminated | truncated
        self._count(rewards, ended)
        self._obs = obs = final_obs.copy()
        for index in np.flatnonzero(ended).tolist():
            self._elapsed[index] = 0
            obs[index] = self._start_episode(index)
        return Step(obs, rewards, terminated, truncated, final_obs, ended)

    def _scored(self, step: Step) -> Step:
        """Return the step with raw rewards and ends of games; after the resets, in which a game may end, too."""
        games: Any = self._envs
        return step._replace(
            raw_rewards=np.array([game.raw_reward for game in games], np.float32),
            over=step.ended & np.array([game.game_over for game in games], np.bool_),
        )

    def _count(self, rewards: np.ndarray, ended: np.ndarray) -> None:
        """Count rewards and ends before the next episodes begin; for curricula."""

    def _start_episode(self, index: int) -> np.ndarray:
        env = self._envs[index]
        if self._keepers is None:
            self._origins[index], self._actions[index] = _origin_of(env), []
        return env.reset()[0]

    # -- snapshots

    def snapshot(self) -> EnvState:
        """Return the state for a checkpoint."""
        states = [self._state_of(index) for index in range(self.num_envs)]
        return join_states(self._obs, states, self.backend)

    def _state_of(self, index: int) -> EnvState:
        if self._keepers is not None:
            state = self._keepers[index].save_state()
            return EnvState(state.arrays, {"kept": dict(state.values), "length": self._elapsed[index]})
        return EnvState({"actions": np.array(self._actions[index])}, {"origin": self._origins[index]})

    def restore(self, state: EnvState) -> np.ndarray | None:
        """Restore a snapshot and return its observations; None if that is not possible."""
        if state.values.get("backend") != self.backend or len(state.values["states"]) != self.num_envs:
            return None
        self._obs = np.empty_like(self._obs)
        for index, known in enumerate(split_states(state)):
            obs = self._restore_one(index, known)
            if obs is None:
                return None
            self._obs[index] = obs
        # An environment with another source of randomness ends in another state: begin new episodes instead.
        if not np.array_equal(self._obs, state.arrays["obs"], equal_nan=self._obs.dtype.kind == "f"):
            return None
        return self._obs.copy()

    def _restore_one(self, index: int, state: EnvState) -> np.ndarray | None:
        if self._keepers is not None:
            if "kept" not in state.values:
                return None
            self._elapsed[index] = state.values["length"]
            return self._keepers[index].load_state(EnvState(state.arrays, state.values["kept"]))
        if not state.values.get("origin"):
            return None
        recorded = state.arrays["actions"]
        self._actions[index] = actions = recorded.tolist() if self._discrete else list(recorded)
        self._origins[index], self._elapsed[index] = state.values["origin"], len(actions)
        return _replay(self._envs[index], state.values["origin"], actions)

    def draw(self, indices: Sequence[int]) -> list[np.ndarray] | str:
        """Return frames of some of the environments, or why there are none."""
        frames = []
        for index in indices:
            frame, notice = draw(self._envs[index])
            if frame is None:
                return notice
            frames.append(frame)
        return frames

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs:
            env.close()


_NEVER = 2**62


def join_states(obs: np.ndarray, states: Sequence[EnvState], backend: str = SyncEnvs.backend) -> EnvState:
    """Join the snapshots of single environments; arrays are prefixed with the index."""
    arrays = {f"{index}.{name}": array for index, state in enumerate(states) for name, array in state.arrays.items()}
    return EnvState({"obs": obs.copy(), **arrays}, {"backend": backend, "states": [dict(s.values) for s in states]})


def split_states(state: EnvState) -> list[EnvState]:
    """Return the snapshots that `join_states` joined."""
    arrays: list[dict[str, np.ndarray]] = [{} for _ in state.values["states"]]
    for name, array in state.arrays.items():
        index, dot, rest = name.partition(".")
        if dot:
            arrays[int(index)][rest] = array
    return [EnvState(own, values) for own, values in zip(arrays, state.values["states"], strict=True)]


def _stripped(env: gym.Env) -> tuple[gym.Env, int | None]:
    """Return the environment without TimeLimit and OrderEnforcing wrappers, and its time limit.

    The limit is counted here at less cost. The wrappers are removed only if above them are at most our own observation
    wrappers, where counting here is equivalent.
    """
    above: gym.Wrapper | None = None
    layer = env
    while isinstance(layer, SeenImage | gym.wrappers.FlattenObservation):
        above, layer = layer, layer.env
    limit = None
    if type(layer) is gym.wrappers.TimeLimit:
        limit, layer = layer._max_episode_steps, layer.env
    if type(layer) is gym.wrappers.OrderEnforcing:
        layer = layer.env
    if above is None:
        return layer, limit
    above.env = layer
    return env, limit


def _origin_of(env: gym.Env) -> dict[str, Any]:
    """Return the generator's state before the next episode; empty if it is not one of numpy's."""
    generator = getattr(env.unwrapped, "np_random", None)
    if isinstance(generator, np.random.RandomState):  # dm_control's, and that of old environments
        return {"rng": _without_arrays(generator.get_state(legacy=False))}
    return {"rng": _without_arrays(generator.bit_generator.state)} if isinstance(generator, np.random.Generator) else {}


def _without_arrays(state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _without_arrays(value)
        if isinstance(value, dict)
        else value.tolist()
        if isinstance(value, np.ndarray)
        else value
        for name, value in state.items()
    }


def _generator_at(state: Mapping[str, Any]) -> np.random.RandomState | np.random.Generator:
    if "has_gauss" in state:
        legacy = np.random.RandomState()
        legacy.set_state(dict(state))
        return legacy
    bits = getattr(np.random, state["bit_generator"])()
    bits.state = dict(state)
    return np.random.Generator(bits)


def _replay(env: gym.Env, origin: Mapping[str, Any], actions: Sequence[Any]) -> np.ndarray | None:
    if "task" in origin:
        env.get_wrapper_attr("change_task")(origin["task"])  # one of a curriculum
    if "seed" in origin:
        obs = env.reset(seed=origin["seed"])[0]
    else:
        # Set, not reset with a seed: BipedalWalker keeps something of every episode it has begun.
        try:
            env.unwrapped.np_random = _generator_at(origin["rng"])  # type: ignore[assignment]  # a legacy one may be there
        except AttributeError:
            return None  # its generator cannot be set
        obs = env.reset()[0]
    for action in actions:
        obs = env.step(action)[0]
    return np.asarray(obs)
