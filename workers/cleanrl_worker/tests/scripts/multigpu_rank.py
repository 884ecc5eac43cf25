"""One process of a `ppo_atari_multigpu` training in a world of small pictures, for tests.

python multigpu_rank.py RANK SIZE STORE FOLDER '{"total_timesteps": 64, …}' [CHECKPOINT | stop | die-at-STEP]

Writes FOLDER/rank-<n>.txt: a hash of its weights at the end.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import torch
from cleanrl_worker.algorithms.ppo_atari_multigpu import Args, MultiGpuLearner, follow_leader
from cleanrl_worker.training.channel import Command
from cleanrl_worker.training.distributed import Team
from cleanrl_worker.training.envs import make_envs
from cleanrl_worker.training.run import RunContext, run_training_loop


class Told:
    """A channel that says what it was given to say, at the second safe point."""

    def __init__(self, *commands: Command) -> None:
        self._commands, self._polls = list(commands), 0

    def send(self, kind, message, *, must_arrive=True):
        sys.stdout.write(f"{kind} {json.dumps(dict(message))}\n")
        sys.stdout.flush()

    def poll(self, timeout_s=0):
        self._polls += 1
        return [self._commands.pop(0)] if self._commands and self._polls > 1 else []


class Mortal(MultiGpuLearner):
    """A process that dies in the middle of an iteration."""

    dies_at = 0

    def collect(self, run) -> None:
        if self.step >= self.dies_at:
            os._exit(3)
        super().collect(run)


def main(rank: int, size: int, store: str, folder: Path, flags: dict, how: str) -> None:
    torch.set_num_threads(1)
    args = Args(env_id="picture_worlds:Quadrants-v0", **flags)
    team = Team(rank, size, store=store)
    envs = make_envs(args.env_id, args.local_num_envs)
    learner_type = MultiGpuLearner
    if how.startswith("die-at-") and rank == size - 1:
        learner_type, Mortal.dies_at = Mortal, int(how.removeprefix("die-at-"))
    learner = learner_type(args, envs, torch.device("cpu"), team)
    if rank > 0:
        follow_leader(learner)
    else:
        commands = [Command.PAUSE, Command.RESUME, Command.STOP] if how == "stop" else []
        resume = Path(how) if how.startswith("/") else None
        run = RunContext("ppo_atari_multigpu", folder, Told(*commands), resume=resume)
        try:
            run_training_loop(learner, run, total=learner.total)
        finally:
            run.writer.close()
            team.close()
    weights = hashlib.sha256(learner.parameters.block.detach().numpy().tobytes()).hexdigest()
    (folder / f"rank-{rank}.txt").write_text(weights)
    if rank > 0:
        team.close()


if __name__ == "__main__":
    main(
        int(sys.argv[1]),
        int(sys.argv[2]),
        sys.argv[3],
        Path(sys.argv[4]),
        json.loads(sys.argv[5]),
        sys.argv[6] if len(sys.argv) > 6 else "",
    )
