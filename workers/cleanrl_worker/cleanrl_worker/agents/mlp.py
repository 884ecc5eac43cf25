"""`MLPAgent`: two hidden layers that actor and critic share, for flat observations.

Input (B, obs_dim) -> Linear(obs_dim, 64) + Tanh -> Linear(64, 64) + Tanh, then a head each.
"""

from __future__ import annotations

from torch import nn

from cleanrl_worker.agents.layers import POLICY_GAIN, SharedTrunkAgent, orthogonal

HIDDEN = 64


class MLPAgent(SharedTrunkAgent):
    """For CartPole, MountainCar, LunarLander and the like."""

    def __init__(self, observations: int, actions: int, hidden: int = HIDDEN) -> None:
        super().__init__(actions)
        self.network = nn.Sequential(
            orthogonal(nn.Linear(observations, hidden)), nn.Tanh(), orthogonal(nn.Linear(hidden, hidden)), nn.Tanh()
        )
        self.actor = orthogonal(nn.Linear(hidden, actions), POLICY_GAIN)
        self.critic = orthogonal(nn.Linear(hidden, 1), 1.0)
