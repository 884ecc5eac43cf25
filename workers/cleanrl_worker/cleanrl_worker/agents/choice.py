"""Which network plays which observations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
from torch import nn

from cleanrl_worker.agents.minigrid import MinigridAgent
from cleanrl_worker.agents.mlp import MLPAgent
from cleanrl_worker.errors import BadInput
from cleanrl_worker.training.envs import is_image

LARGEST_GRID = 32
"""Cells of a grid world's side; larger images are pictures, which ask for another network"""


def choose_agent(wanted: str, observations: gym.Space[Any], *, in_curriculum: bool = False) -> str:
    """Separate actor and critic as upstream has them; a shared trunk for grid-world images and in a curriculum."""
    if wanted != "auto":
        return wanted
    if is_image(observations) and max(observations.shape or ()) <= LARGEST_GRID:
        return "minigrid"
    return "mlp" if in_curriculum else "separate"


def make_agent(
    kind: str,
    env_id: str,
    observations: gym.Space[Any],
    actions: gym.Space[Any],
    *,
    separate: Callable[[int, int], nn.Module],
    algo: str = "ppo",
) -> nn.Module:
    """Build the network for these spaces; BadInput when it cannot play them."""
    if not isinstance(actions, gym.spaces.Discrete):
        raise BadInput(f"{algo} needs discrete actions; {env_id} has {type(actions).__name__} actions")
    shape, count = observations.shape or (), int(actions.n)
    if kind == "minigrid":
        if len(shape) != 3:
            raise BadInput(f"--agent minigrid needs images; the observations of {env_id} have shape {shape}")
        return MinigridAgent(count, shape)
    if len(shape) != 1:
        cure = "; --agent minigrid takes small images" if len(shape) == 3 else ""
        raise BadInput(f"{algo} needs observations that are vectors; those of {env_id} have shape {shape}{cure}")
    return MLPAgent(shape[0], count) if kind == "mlp" else separate(shape[0], count)
