"""Environments whose state can be written down, so that resuming replays no action.

An Atari game keeps its own (`AtariGame.save_state`). MuJoCo's simulation is kept here, for the robots that come with
gymnasium: they have no state besides it. What the integrator starts from is not enough: observations and rewards also
read what the last step computed (contact forces, positions of bodies), so those arrays are kept as well.
"""

from __future__ import annotations

import sys
from typing import Any, cast

import gymnasium as gym
import numpy as np

from cleanrl_worker.training.envs.convention import EnvState, KeepsState

_COMPUTED = (
    "xpos", "xquat", "xmat", "xipos", "ximat", "xanchor", "xaxis", "geom_xpos", "geom_xmat", "site_xpos", "site_xmat",
    "cdof", "cinert", "crb", "cvel", "cdof_dot", "ten_length", "ten_velocity", "actuator_length", "actuator_velocity",
    "actuator_force", "sensordata", "subtree_com", "subtree_linvel", "subtree_angmom", "qacc", "qfrc_actuator",
    "qfrc_constraint", "qfrc_passive", "qfrc_bias", "cacc", "cfrc_int", "cfrc_ext",
)  # fmt: skip
"""What a step leaves for whoever looks at the simulation; of the arrays that are equally long in every step"""


def keeper_of(env: gym.Env) -> KeepsState | None:
    """Who writes this environment's state down; None: nobody can, its actions have to be replayed."""
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
    """The simulation of one of gymnasium's robots."""

    def __init__(self, robot: Any) -> None:
        import mujoco

        self._mujoco, self._robot = mujoco, robot
        robot.reset(seed=0)  # makes the generator
        self._spec = mujoco.mjtState.mjSTATE_INTEGRATION
        self._size = mujoco.mj_stateSize(robot.model, self._spec)

    def save_state(self) -> EnvState:
        data = self._robot.data
        integrator = np.empty(self._size)
        self._mujoco.mj_getState(self._robot.model, data, integrator, self._spec)
        computed = np.concatenate([getattr(data, name).ravel() for name in _COMPUTED])
        rng = dict(self._robot.np_random.bit_generator.state)
        return EnvState({"integrator": integrator, "computed": computed}, {"rng": rng, "mujoco": self._version})

    @property
    def _version(self) -> str:
        return str(self._mujoco.__version__)

    def load_state(self, state: EnvState) -> np.ndarray | None:
        if state.values["mujoco"] != self._version or state.arrays["integrator"].size != self._size:
            return None  # other versions compute otherwise
        data = self._robot.data
        self._mujoco.mj_setState(self._robot.model, data, state.arrays["integrator"], self._spec)
        start = 0
        for name in _COMPUTED:
            array = getattr(data, name)
            array[...] = state.arrays["computed"][start : start + array.size].reshape(array.shape)
            start += array.size
        self._robot.np_random.bit_generator.state = dict(state.values["rng"])
        obs: np.ndarray = self._robot._get_obs()
        return obs
