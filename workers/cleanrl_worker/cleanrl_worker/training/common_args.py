"""Flags that every algorithm has. An algorithm's own `Args` inherits them; literals only, for they are read as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from cleanrl_worker.ranges import Range


@dataclass(frozen=True)
class CommonArgs:
    """What CleanRL's scripts have in common, then what MOSAIC adds to all of them."""

    exp_name: str = ""
    """the name of this experiment"""
    seed: Annotated[int, Range(0)] = 1
    """seed of the network, of action sampling and of the environments"""
    torch_deterministic: bool = True
    """choose deterministic GPU kernels"""
    cuda: bool = True
    """use the GPU if one is reserved for the run"""
    track: bool = False
    """log to Weights & Biases"""
    wandb_project_name: str = "cleanRL"
    """W&B project"""
    wandb_entity: str | None = None
    """W&B team"""
    capture_video: bool = False
    """record videos of the agent"""

    env_kwargs: str = "{}"
    """arguments of the environment, a JSON object: {"is_slippery": false}"""
    env_backend: Literal["auto", "native", "sync", "async", "ale", "envpool"] = "auto"
    """how the environments are stepped (auto: the cheapest way that gives the same transitions)"""
    eval_episodes: Annotated[int, Range(0)] = 0
    """episodes of an evaluation: after training, and during it with eval_freq"""
    eval_freq: Annotated[int, Range(0)] = 0
    """steps between evaluations during training; 0: none"""
    eval_deterministic: bool = True
    """evaluate the best action instead of sampling as in training"""
    stop_at_return: float | None = None
    """end training once the last 100 episodes average this return"""
    checkpoint_freq: Annotated[int, Range(0)] = 0
    """steps between checkpoints; 0: only one at the end"""
    keep_checkpoints: Annotated[int, Range(1)] = 3
    """how many periodic checkpoints stay; the best and the last one always do"""
    torch_threads: Annotated[int, Range(1, 1024)] = 1
    """CPU threads; for small networks more than one costs time"""
    compile: bool = False
    """let torch.compile speed the update up; it takes a minute to warm up"""


@dataclass(frozen=True)
class ModelArgs(CommonArgs):
    """For names whose CleanRL script has flags about its model file."""

    save_model: bool = False
    """accepted because CleanRL has it; the model is always written"""
    upload_model: bool = False
    """not offered: nothing is sent to a hub"""
    hf_entity: str = ""
    """accepted because CleanRL has it; without effect"""


@dataclass(frozen=True)
class ReplayArgs(ModelArgs):
    """For algorithms that learn from a replay buffer."""

    checkpoint_replay: Literal["full", "none"] = "full"
    """whether checkpoints hold the replay buffer: without it a resumed run has to fill it anew"""
    replay_storage: Literal["memory", "disk"] = "memory"
    """where the replay buffer lies; on disk it is a memory-mapped file in the run's folder"""
