"""Record the trajectories of a trained policy: python -m cleanrl_worker.tools.record_trajectories …

`qdagger_dqn_atari_impalacnn` reads the file as --teacher-trajectories; the policy may be of any algorithm with
the same observations.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

import numpy as np

from cleanrl_worker.env_kwargs import read_env_kwargs
from cleanrl_worker.errors import BadInput
from cleanrl_worker.eval.policies import TrainedPolicy
from cleanrl_worker.modes.checkpoints import find_checkpoint, lacks_statistics
from cleanrl_worker.registry import pipeline_of, resolve
from cleanrl_worker.training.envs import VectorEnvs, make_envs
from cleanrl_worker.training.policies import Policy
from cleanrl_worker.training.teacher import Trajectories, TrajectoryRecorder


def record(policy: Policy, envs: VectorEnvs, *, games: int, seed: int, epsilon: float = 0.0) -> Trajectories:
    """Play whole games in the one environment, as a learner meets it; `epsilon` is the share of random actions."""
    rng = np.random.Generator(np.random.PCG64(seed))
    recorder, paid = TrajectoryRecorder(), 0.0
    obs = envs.reset(seed)
    while len(recorder.returns) < games:
        actions = policy.act(obs, None)
        if rng.random() < epsilon:
            actions = rng.integers(envs.action_space.n, size=1)  # type: ignore[attr-defined]  # it plays images
        step = envs.step(actions)
        terminated, ended = bool(step.terminated[0]), bool(step.ended[0])
        reward, action = float(step.rewards[0]), int(actions[0])
        recorder.add(obs[0], action, reward, step.final_obs[0], terminated=terminated, ended=ended)
        paid += float((step.rewards if step.raw_rewards is None else step.raw_rewards)[0])
        if (step.ended if step.over is None else step.over)[0]:
            recorder.returns.append(paid)
            paid = 0.0
        obs = step.obs
    return recorder.trajectories()


def main() -> int:
    """Record, and print how many steps were written."""
    parser = argparse.ArgumentParser(prog="python -m cleanrl_worker.tools.record_trajectories", allow_abbrev=False)
    parser.add_argument("--algo", default="dqn_atari", help="what the policy was trained with")
    parser.add_argument("--policy", required=True, help="checkpoint folder, run id or .cleanrl_model")
    parser.add_argument("--env-id", required=True)
    parser.add_argument("--env-kwargs", default="{}", help="arguments of the environment, a JSON object")
    parser.add_argument("--games", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epsilon", type=float, default=0.0, help="share of random actions")
    parser.add_argument("--to", type=Path, required=True, help="the file to write")
    given = parser.parse_args()
    try:
        entry = resolve(given.algo)
        source = find_checkpoint({"checkpoint_path": given.policy})
        assert source is not None
        if lacking := lacks_statistics(source, entry.name, entry.declaration):
            raise BadInput(lacking)
        trained = TrainedPolicy.load(source.path, entry.name)
        envs = make_envs(given.env_id, 1, read_env_kwargs(given.env_kwargs), pipeline=pipeline_of(entry.name))
        policy = trained.for_env(importlib.import_module(entry.module), given.env_id, envs)  # type: ignore[arg-type]  # only its spaces are read
        found = record(policy, envs, games=given.games, seed=given.seed, epsilon=given.epsilon)
    except BadInput as error:
        sys.stderr.write(f"{error}\n")
        return 2
    found.write(given.to)
    sys.stdout.write(f"{len(found)} steps of {given.games} games, mean return {found.returns.mean():g}: {given.to}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
