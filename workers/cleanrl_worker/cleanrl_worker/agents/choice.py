"""Which network plays which observations."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from cleanrl_worker.agents.atari import AtariAgent
from cleanrl_worker.agents.impala import ImpalaAgent
from cleanrl_worker.agents.layers import DiscreteAgent
from cleanrl_worker.agents.minigrid import MinigridAgent
from cleanrl_worker.agents.mlp import MLPAgent
from cleanrl_worker.agents.separate import Agent, GaussianAgent
from cleanrl_worker.errors import BadInput
from cleanrl_worker.training.envs import is_image

LARGEST_GRID = 32
"""Cells of a grid world's side; larger images are pictures, which ask for another network"""
STACKED_FRAMES = (84, 84)
"""Sides of the pictures the Atari network is made for"""


def choose_agent(wanted: str, observations: gym.Space[Any], *, in_curriculum: bool = False) -> str:
    """Separate actor and critic as upstream has them; a shared trunk for grid-world images and in a curriculum."""
    if wanted != "auto":
        return wanted
    if is_image(observations) and max(observations.shape or ()) <= LARGEST_GRID:
        return "minigrid"
    return "mlp" if in_curriculum else "separate"


def make_agent(
    kind: str, env_id: str, observations: gym.Space[Any], actions: gym.Space[Any], *, algo: str = "ppo"
) -> DiscreteAgent | GaussianAgent:
    """Build the network for these spaces; BadInput when it cannot play them."""
    if kind == "gaussian":
        return _gaussian(env_id, observations, actions, algo)
    if not isinstance(actions, gym.spaces.Discrete):
        raise BadInput(f"{algo} needs discrete actions; {env_id} has {type(actions).__name__} actions")
    shape, count = observations.shape or (), int(actions.n)
    if kind in _PICTURES:
        if not is_image(observations):
            needs = f"--agent {kind}" if kind == "minigrid" else algo
            raise BadInput(f"{needs} needs images; the observations of {env_id} have shape {shape}")
        return _PICTURES[kind](env_id, count, shape, algo)
    if len(shape) != 1:
        cure = "; --agent minigrid takes small images" if len(shape) == 3 else ""
        raise BadInput(f"{algo} needs observations that are vectors; those of {env_id} have shape {shape}{cure}")
    return MLPAgent(shape[0], count) if kind == "mlp" else Agent(shape[0], count)


def _gaussian(env_id: str, observations: gym.Space[Any], actions: gym.Space[Any], algo: str) -> GaussianAgent:
    if not isinstance(actions, gym.spaces.Box):
        raise BadInput(f"{algo} needs continuous actions; {env_id} has {type(actions).__name__} actions")
    if len(actions.shape) != 1:
        raise BadInput(f"{algo} needs actions that are vectors; those of {env_id} have shape {actions.shape}")
    shape = observations.shape or ()
    if len(shape) != 1:
        raise BadInput(f"{algo} needs observations that are vectors; those of {env_id} have shape {shape}")
    return GaussianAgent(shape[0], actions.shape[0])


def _minigrid(env_id: str, actions: int, shape: tuple[int, ...], algo: str) -> DiscreteAgent:
    return MinigridAgent(actions, shape)


def _atari(env_id: str, actions: int, shape: tuple[int, ...], algo: str) -> DiscreteAgent:
    if shape[1:] != STACKED_FRAMES:
        raise BadInput(f"{algo} needs stacked frames of 84 x 84; the observations of {env_id} have shape {shape}")
    return AtariAgent(actions, shape[0])


def _impala(env_id: str, actions: int, shape: tuple[int, ...], algo: str) -> DiscreteAgent:
    return ImpalaAgent(actions, shape)


_PICTURES = {"minigrid": _minigrid, "atari": _atari, "impala": _impala}
