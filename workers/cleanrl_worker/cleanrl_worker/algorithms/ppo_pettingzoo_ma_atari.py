"""PPO for two-player Atari by self-play (Schulman et al. 2017; one network is both players, Terry et al. 2020).

The algorithm is that of `ppo.py`. Each game gives two rows of every batch, one per player; a player's observations
indicate which of the two it is. Flags and defaults are those of CleanRL's file. In an evaluation the policy is the
first player, against a random one.
Runs alone: python -m cleanrl_worker.algorithms ppo_pettingzoo_ma_atari --env-id pong_v3
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import Space

from cleanrl_worker.agents import AtariAgent
from cleanrl_worker.algorithms.ppo import PpoArgs, PpoLearner
from cleanrl_worker.errors import BadInput
from cleanrl_worker.training.args import Range, check_args
from cleanrl_worker.training.checkpointing import Weights, load_weights
from cleanrl_worker.training.envs import Step
from cleanrl_worker.training.policies import Categorical, DistributionPolicy, TorchActing, network_dtype
from cleanrl_worker.training.run import RunContext, TrainResult, device_for, run_training_loop

# ---------------------------------------------------------------- flags


@dataclass(frozen=True)
class Args(PpoArgs):
    """Flags; literals only, because forms and `--describe` read this class without running it."""

    exp_name: str = "ppo_pettingzoo_ma_atari"
    env_id: str = "pong_v3"
    """PettingZoo's name of a two-player Atari game"""
    total_timesteps: Annotated[int, Range(1)] = 20_000_000
    """steps to train for, over all players; whole iterations only"""
    num_envs: Annotated[int, Range(2)] = 16
    """players, two per game played in parallel"""
    num_steps: Annotated[int, Range(1)] = 128
    """steps per player between two updates"""
    clip_coef: Annotated[float, Range(0)] = 0.1


# ---------------------------------------------------------------- network


class PlayersAgent(AtariAgent):
    """The Atari network for images with channels last; the planes that indicate the player are channels, too."""

    def features(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the features of images (height, width, channels)."""
        return super().features(obs.permute(0, 3, 1, 2))


def agent_for(env_id: str, observations: gym.Space, actions: gym.Space, algo: str) -> PlayersAgent:
    """Build the network for these spaces; raise BadInput when there is none."""
    shape = observations.shape or ()
    if not isinstance(actions, gym.spaces.Discrete) or len(shape) != 3 or shape[:2] != (84, 84):
        raise BadInput(f"{algo} plays two-player Atari games; {env_id} has observations of shape {shape}")
    return PlayersAgent(int(actions.n), shape[2])


# ---------------------------------------------------------------- rollout, update, loop (all PPO's)


class SelfPlayLearner(PpoLearner):
    """PPO whose environments are players: both players of a game act with the same network."""

    def make_agent(self, kind: str) -> PlayersAgent:
        """Build the network for the games."""
        args, envs = self.args, self.envs
        return agent_for(args.env_id, envs.observation_space, envs.action_space, args.exp_name)

    def chart_episodes(self, step: Step, run: Any) -> list[tuple[float, int]]:
        """Write the players' returns under separate names, as CleanRL does: what one wins the other may lose."""
        finished = self.episodes.add(step)
        for row, (episode_return, length) in zip(np.flatnonzero(step.ended), finished, strict=True):
            charts = {f"charts/episodic_return-player{row % 2}": episode_return}
            if row % 2 == 0:
                charts |= {"charts/episodic_return": episode_return, "charts/episodic_length": float(length)}
            run.writer.add_scalars(charts, self.step)
        return finished


# ---------------------------------------------------------------- policy and run


NAME = Args.exp_name


def make_policy(
    env_id: str, observations: Space, actions: Space, weights: Weights, *, algo: str = NAME, normalizer: Any = None
) -> DistributionPolicy:
    """Return the policy with these weights; raise BadInput when they do not fit the environment."""
    agent = agent_for(env_id, observations, actions, algo)
    load_weights(agent, weights, what="the policy")
    acting, distribution = TorchActing(agent, torch.device("cpu")), Categorical(agent.actions)
    return DistributionPolicy(acting, distribution, network_dtype(observations), normalizer)


def check(args: Args) -> None:
    """Raise BadInput for invalid values."""
    check_args(args)


def train(args: Args, run: RunContext) -> TrainResult:
    """Train until the steps are used up, the return is reached or a stop is requested; then evaluate."""
    check(args)
    device = device_for(args)
    learner = SelfPlayLearner(args, run.make_envs(args), device)
    return run_training_loop(learner, run, total=learner.total)


if __name__ == "__main__":
    from cleanrl_worker.training.standalone import run_alone

    run_alone(NAME, Args, train)
