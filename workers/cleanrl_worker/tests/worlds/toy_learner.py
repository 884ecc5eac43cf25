"""The smallest learner with everything a checkpoint can hold: weights, a generator, environments, a replay buffer.

python toy_learner.py RUN_FOLDER [CHECKPOINT] [--flags]   trains alone; a test kills it whenever it likes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cleanrl_worker.training.args import ReplayArgs
from cleanrl_worker.training.checkpointing import TrainingState
from cleanrl_worker.training.envs import EpisodeTracker, VectorEnvs
from cleanrl_worker.training.evaluation import Evaluation
from cleanrl_worker.training.replay import make_replay
from cleanrl_worker.training.run import RunContext, run_training_loop

STRIDE = 50
"""Steps between safe points"""


@dataclass(frozen=True)
class ToyArgs(ReplayArgs):
    """Few flags, so that tests say what they mean."""

    exp_name: str = "toy"
    env_id: str = "CartPole-v1"
    total_timesteps: int = 1000
    num_envs: int = 2
    buffer_size: int = 300
    learning_starts: int = 100
    step_s: float = 0.0
    """time a step takes, for tests that come in between"""
    break_at: int = -1
    """the step at which training raises"""


class ToyLearner:
    """Moves its weights by what it finds in its buffer; that this makes little sense does not matter here."""

    def __init__(self, args: ToyArgs, envs: VectorEnvs, folder: Path | None = None) -> None:
        self.args, self.envs = args, envs
        self.rng = np.random.Generator(np.random.PCG64(args.seed))
        self.weights = self.rng.normal(size=(4, 2)).astype(np.float32)
        self.buffer = make_replay(args, envs, folder=folder)
        self.episodes = EpisodeTracker(envs.num_envs)
        self.step = 0
        self.learns_from = args.learning_starts
        self.obs = np.zeros((envs.num_envs, 4), dtype=np.float32)

    def begin_episodes(self) -> None:
        self.obs = self.envs.reset(self.args.seed + self.step)

    def learn(self, run: RunContext) -> None:
        for _ in range(STRIDE // self.envs.num_envs):
            actions = (self.obs @ self.weights + self.rng.gumbel(size=(self.envs.num_envs, 2))).argmax(axis=1)
            step = self.envs.step(actions)
            self.step += self.envs.num_envs
            self.buffer.add(self.obs, actions, step.rewards, step.final_obs, step.terminated)
            self.obs = step.obs
            for episode_return, length in self.episodes.add(step):
                run.writer.add_scalars(
                    {"charts/episodic_return": episode_return, "charts/episodic_length": length}, self.step
                )
            if self.step > self.learns_from:
                batch = self.buffer.sample(self.rng, 8)
                self.weights += 0.01 * (batch.obs - batch.next_obs).T @ np.eye(2, dtype=np.float32)[batch.actions]
        if self.step == self.args.break_at:
            raise ZeroDivisionError("the test wants it so")
        if self.args.step_s:
            import time

            time.sleep(self.args.step_s * STRIDE)
        run.writer.add_scalars(
            {"charts/replay_size": len(self.buffer), "weights": float(self.weights.sum())}, self.step
        )

    def act(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        scores = obs @ self.weights
        if rng is not None:
            torch.rand(1), np.random.random()  # as a careless network would
            scores = scores + rng.gumbel(size=scores.shape)
        return scores.argmax(axis=1)

    def snapshot(self) -> TrainingState:
        envs = self.envs.snapshot()
        arrays = {"agent.weights": self.weights.copy(), "obs": self.obs.copy()}
        arrays |= {f"envs.{name}": array for name, array in envs.arrays.items()}
        values = {
            "args": asdict(self.args),
            "rng": self.rng.bit_generator.state,
            "envs": dict(envs.values),
            "episodes": self.episodes.snapshot(),
            "learns_from": self.learns_from,
        }
        return TrainingState(self.step, arrays, values, replay=self.buffer)

    def restore(self, state: TrainingState) -> str:
        self.weights, self.step = state.arrays["agent.weights"].copy(), state.step
        self.rng.bit_generator.state = state.values["rng"]
        obs = self.envs.restore(state.environments())
        assert obs is not None
        self.obs = obs
        self.episodes.restore(state.values["episodes"], mid_episode=True)
        exact = state.restore_replay(self.buffer)
        self.learns_from = state.values["learns_from"] if exact else state.step + self.args.learning_starts
        return "exact"

    def load_agent(self, weights: Mapping[str, np.ndarray], what: str) -> None:
        self.weights = weights["weights"].copy()

    def model(self) -> Any:
        return {"weights": torch.from_numpy(self.weights)}


def train(args: ToyArgs, run: RunContext) -> Evaluation | None:
    """As an algorithm file does it."""
    learner = ToyLearner(args, run.make_envs(args), run.folder.root)
    evaluation = run_training_loop(learner, run, total=args.total_timesteps)
    np.save(run.folder.root / "weights.npy", learner.weights)
    return evaluation


if __name__ == "__main__":
    import tyro
    from cleanrl_worker.training.channel import ConsoleChannel
    from cleanrl_worker.training.standalone import run_algorithm

    folder, resume = Path(sys.argv[1]), Path(sys.argv[2]) if sys.argv[2:3] and not sys.argv[2].startswith("-") else None
    flags = sys.argv[3 if resume is not None else 2 :]
    run_algorithm("toy", tyro.cli(ToyArgs, args=flags), train, folder, ConsoleChannel(), resume=resume)
