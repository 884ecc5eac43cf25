"""A small policy gradient on CartPole, as a person would write it who has never heard of MOSAIC."""

import os
import random
import time
from dataclasses import dataclass
from typing import Literal, Optional

import gymnasium as gym
import numpy as np
import torch
import tyro
from torch.utils.tensorboard import SummaryWriter

DEFAULT_STEPS = 10 * 1000


@dataclass
class Args:
    exp_name: str = os.path.basename(__file__)[: -len(".py")]
    """the name of this experiment"""
    seed: int = 1
    """seed of the experiment"""
    cuda: bool = True
    """train on a GPU if there is one"""
    track: bool = False
    save_model: bool = False
    """leave the weights in the runs folder"""
    upload_model: bool = False
    hf_entity: str = ""

    # what it trains
    env_id: str = "CartPole-v1"
    """the id of the environment"""
    total_timesteps: int = DEFAULT_STEPS
    """stop after this many steps"""
    learning_rate: float = 1e-2
    hidden: Optional[int] = None  # noqa: UP045 - as many people write it
    """size of a hidden layer, or none"""
    optimizer: Literal["sgd", "adam"] = "adam"


if __name__ == "__main__":
    args = tyro.cli(Args)
    run_name = f"{args.env_id}__{args.exp_name}__{args.seed}__{int(time.time())}"
    writer = SummaryWriter(f"runs/{run_name}")
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    envs = gym.vector.SyncVectorEnv([lambda: gym.wrappers.RecordEpisodeStatistics(gym.make(args.env_id))])
    width = args.hidden or 8
    policy = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Tanh(), torch.nn.Linear(width, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=args.learning_rate)
    start = time.time()
    observation, _ = envs.reset(seed=args.seed)
    log_probabilities, rewards = [], []
    for step in range(1, args.total_timesteps + 1):
        distribution = torch.distributions.Categorical(logits=policy(torch.as_tensor(observation)))
        action = distribution.sample()
        log_probabilities.append(distribution.log_prob(action))
        observation, reward, ended, cut, _ = envs.step(action.numpy())
        rewards.append(float(reward[0]))
        if ended[0] or cut[0]:
            total = sum(rewards)
            loss = -torch.cat(log_probabilities).sum() * total / 100
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            writer.add_scalar("charts/episodic_return", total, step)
            writer.add_scalar("charts/SPS", int(step / (time.time() - start)), step)
            writer.add_scalar("losses/policy_loss", loss.item(), step)
            log_probabilities, rewards = [], []
    if args.save_model:
        torch.save(policy.state_dict(), f"runs/{run_name}/{args.exp_name}.cleanrl_model")
    # It forgets to close its writer.
