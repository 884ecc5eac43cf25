"""Networks: of actors and critics with a shared trunk, of continuous actions, and the layers they are made of."""

from collections.abc import Sequence

from cleanrl_worker.agents.atari import AtariAgent
from cleanrl_worker.agents.impala import ImpalaAgent
from cleanrl_worker.agents.layers import (
    POLICY_GAIN,
    DiscreteAgent,
    SharedTrunkAgent,
    categorical_log_probs,
    gaussian_log_probs,
    orthogonal,
)
from cleanrl_worker.agents.minigrid import MinigridAgent
from cleanrl_worker.agents.mlp import MLPAgent

__all__ = [
    "POLICY_GAIN",
    "AtariAgent",
    "DiscreteAgent",
    "ImpalaAgent",
    "MLPAgent",
    "MinigridAgent",
    "SharedTrunkAgent",
    "categorical_log_probs",
    "gaussian_log_probs",
    "make_image_agent",
    "orthogonal",
]


def make_image_agent(kind: str, actions: int, shape: Sequence[int]) -> DiscreteAgent:
    """Return the network for images of this shape: `minigrid`, `atari` (stacked frames) or `impala`."""
    if kind == "minigrid":
        return MinigridAgent(actions, shape)
    return AtariAgent(actions, shape[0]) if kind == "atari" else ImpalaAgent(actions, shape)
