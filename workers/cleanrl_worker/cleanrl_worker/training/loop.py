"""Around every algorithm: where it begins, when it stops, what it saves, how it is evaluated.

An algorithm file holds a `Learner`; this module drives it from one safe point to the next.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from mosaic_wire import env

from cleanrl_worker.errors import BadInput
from cleanrl_worker.training.envs import EpisodeTracker, VectorEnvs
from cleanrl_worker.training.evaluating import Evaluator
from cleanrl_worker.training.evaluation import Evaluation
from cleanrl_worker.training.normalisation import NormalisedEnvs
from cleanrl_worker.training.recording import Recorder
from cleanrl_worker.training.run_context import RunContext, policy_bytes
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
        """Everything of this moment, in arrays of its own: training goes on while they are written.

        A replay buffer (made by `make_replay`) is passed as it is: `TrainingState(step, arrays, values,
        replay=self.buffer)`. Its segments are written in the background, each once, and it waits where it would
        overwrite one that is not on disk yet.
        """

    def restore(self, state: TrainingState) -> str:
        """Go on from a snapshot; return how the environments were brought back.

        `state.restore_replay(self.buffer)` fills the buffer as it was. Where it returns False the checkpoint holds none
        (`--checkpoint-replay none`): the learner then collects `learning_starts` steps, counted from `state.step`,
        before it learns again. The run says so.
        """

    def take_weights(self, weights: Mapping[str, np.ndarray], what: str) -> None:
        """Begin from weights alone."""

    def model(self) -> Any:
        """What a `.cleanrl_model` of this name holds upstream: a state dict, or a tuple of them."""


def device_for(args: Any) -> torch.device:
    """The GPU where there is one and it is wanted; BadInput where it was asked for by name and there is none."""
    torch.backends.cudnn.deterministic = args.torch_deterministic
    if not args.cuda:
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda")
    if os.environ.get(env.MOSAIC_GPUS_MANDATORY) not in (None, "", "0"):
        if torch.version.cuda is None:
            reason = "the torch that is installed is built for processors only"
        elif os.environ.get(env.CUDA_VISIBLE_DEVICES) == "":
            reason = "none is reserved for this run (resources.gpus)"
        else:
            reason = "torch finds no NVIDIA driver or device"
        raise BadInput(f"a GPU was asked for and there is none to use: {reason}; leave --cuda out to train without one")
    return torch.device("cpu")


def train_to_the_end(learner: Learner, run: RunContext, *, total: int) -> Evaluation | None:
    """Train until `total` steps, the wished-for return, or somebody asks to stop; then evaluate. Closes the envs."""
    args = learner.args
    evaluator = Evaluator.of(args, run.env_to_evaluate(args.env_id), run.pipeline) if args.eval_episodes else None
    recorder = None
    try:
        recorder = Recorder.of(args, run) if args.capture_video else None
        _begin(learner, run, total)
        while True:
            _keep_what_is_due(learner, run, evaluator, total)
            if recorder is not None:
                recorder.record_if_due(learner, run)
            if learner.step >= total or run.should_stop(learner.step, learner.snapshot):
                break
            if learner.episodes.has_reached(args.stop_at_return):
                run.stopped_early = f"100 episodes averaged a return of {args.stop_at_return:g} (--stop-at-return)"
                break
            learner.learn(run)
            run.report(learner.step, learner.episodes.mean_return)
        run.save_last(learner.step, learner.snapshot, score=_training_score(learner), model=lambda: _policy_of(learner))
        run.save_policy(_policy_of(learner), f"{args.exp_name}.cleanrl_model")
        if evaluator is None or run.stopped:
            return None
        return run.evaluation_at(learner.step) or evaluator.judge(learner, run.stop_requested)
    finally:
        learner.envs.close()
        if evaluator is not None:
            evaluator.close()
        if recorder is not None:
            recorder.close()


def _begin(learner: Learner, run: RunContext, total: int) -> None:
    if run.checkpoint is not None:
        run.loaded(learner.restore(run.checkpoint))
    else:
        if run.model is not None and isinstance(learner.envs, NormalisedEnvs):
            learner.envs.take_norm(run.model.part("obs_norm"), run.model.part("return_norm"))
        learner.begin_episodes()
        if weights := run.weights():
            learner.take_weights(weights, "the model")
            run.loaded_weights()
    run.note_flags(learner.args)
    run.follow_episodes(learner.episodes)
    run.begin(learner.step, total, learner.args)


def _keep_what_is_due(learner: Learner, run: RunContext, evaluator: Evaluator | None, total: int) -> None:
    args, step, snapshot = learner.args, learner.step, learner.snapshot

    def policy() -> bytes:
        return _policy_of(learner)

    if evaluator is not None:
        run.evaluate_if_due(step, args.eval_freq, lambda stop: evaluator.judge(learner, stop), snapshot, policy)
    if step < total:  # there the last one is saved
        run.save_if_due(step, args.checkpoint_freq, snapshot, score=_training_score(learner), model=policy)


def _policy_of(learner: Learner) -> bytes:
    """Return what a `.cleanrl_model` of this learner holds: weights, and the statistics they were learned with."""
    statistics = learner.envs.statistics() if isinstance(learner.envs, NormalisedEnvs) else {}
    return policy_bytes(learner.model(), statistics)


def _training_score(learner: Learner) -> float | None:
    """What the best checkpoint is chosen by where nothing is evaluated: the mean of a full hundred episodes."""
    has_hundred = learner.episodes.has_reached(-math.inf)
    return learner.episodes.mean_return if has_hundred and not learner.args.eval_freq else None
