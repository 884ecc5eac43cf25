"""Around every algorithm: where it begins, when it stops, what it saves, how it is evaluated.

An algorithm file holds a `Learner`; this module drives it from one safe point to the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch

from cleanrl_worker.env_kwargs import read_env_kwargs
from cleanrl_worker.training.envs import EpisodeTracker, VectorEnvs
from cleanrl_worker.training.evaluation import Evaluation, evaluate
from cleanrl_worker.training.run_context import RunContext
from cleanrl_worker.training.state import TrainingState


class Learner(Protocol):
    """An algorithm at work: everything learning depends on, and how to go on with it."""

    args: Any
    envs: VectorEnvs
    episodes: EpisodeTracker
    step: int
    """Steps taken so far, over all environments"""

    def begin_episodes(self) -> None:
        """Reset the environments for a training from scratch."""

    def learn(self, run: RunContext) -> None:
        """Go on to the next safe point (an iteration, or some hundred steps) and write charts on the way.

        Where safe points lie, and what is charted when, depends on the step alone: a resumed run must do the same.
        """

    def act(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        """Actions for a batch of observations as the environments give them: the best, or sampled with `rng`."""

    def snapshot(self) -> TrainingState:
        """Everything of this moment, in arrays of its own: training goes on while they are written."""

    def restore(self, state: TrainingState) -> str:
        """Go on from a snapshot; return how the environments were brought back."""

    def take_weights(self, weights: Mapping[str, np.ndarray], what: str) -> None:
        """Begin from weights alone."""

    def model(self) -> Any:
        """What a `.cleanrl_model` of this name holds upstream: a state dict, or a tuple of them."""


def device_for(args: Any) -> torch.device:
    """The GPU where there is one and it is wanted."""
    torch.backends.cudnn.deterministic = args.torch_deterministic
    return torch.device("cuda" if args.cuda and torch.cuda.is_available() else "cpu")


def train_to_the_end(learner: Learner, run: RunContext, *, total: int) -> Evaluation | None:
    """Train until `total` steps, the wished-for return, or somebody asks to stop; then evaluate. Closes the envs."""
    args = learner.args
    try:
        if run.checkpoint is not None:
            run.loaded(learner.restore(run.checkpoint))
        else:
            learner.begin_episodes()
            if weights := run.weights():
                learner.take_weights(weights, "the model")
                run.loaded_weights()
        run.begin(learner.step, total, args)
        while learner.step < total:
            if run.should_stop(learner.step, learner.snapshot) or learner.episodes.has_reached(args.stop_at_return):
                break
            learner.learn(run)
            run.report(learner.step, learner.episodes.mean_return)
            run.save_if_due(learner.step, args.checkpoint_freq, learner.snapshot)
        run.save_last(learner.step, learner.snapshot)
    finally:
        learner.envs.close()
    run.save_policy(learner.model(), f"{args.exp_name}.cleanrl_model")
    if run.stopped or not args.eval_episodes:
        return None
    return evaluate(
        run.env_to_evaluate(args.env_id),
        lambda obs: learner.act(obs, None),
        episodes=args.eval_episodes,
        seed=args.seed,
        should_stop=run.stop_requested,
        env_kwargs=read_env_kwargs(args.env_kwargs),
    )
