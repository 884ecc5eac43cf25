"""PPO for Atari over several processes (Schulman et al. 2017; gradients averaged as in data-parallel training).

Every process steps its own environments and computes the gradient of its own minibatch; all apply the mean of the
gradients to the same weights. The processes share the random numbers and each uses its part of them: two processes with
four environments each collect the transitions that one with eight would. Flags and defaults are CleanRL's.

One process:    python -m cleanrl_worker.algorithms ppo_atari_multigpu
Several:        … --world-size 2            which is also how it runs through the daemon
By torchrun:    torchrun --standalone --nproc_per_node 2 -m cleanrl_worker.algorithms ppo_atari_multigpu
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import gymnasium as gym
import numpy as np
import torch
from gymnasium import Space

from cleanrl_worker.algorithms.ppo import Batch, PpoArgs, PpoLearner, make_agent
from cleanrl_worker.env_kwargs import read_env_kwargs
from cleanrl_worker.errors import BadInput
from cleanrl_worker.training.args import Range, check_args
from cleanrl_worker.training.checkpointing import NEW_EPISODES, TrainingState, Weights, check_flags_match, load_weights
from cleanrl_worker.training.distributed import Instruction, LeaderLost, Team, pack, unpack
from cleanrl_worker.training.envs import Step, VectorEnvs, make_envs
from cleanrl_worker.training.policies import Categorical, DistributionPolicy, TorchActing, network_dtype
from cleanrl_worker.training.run import RunContext, TrainResult, run_training_loop

EXACT = b"exact"
"""A follower's answer: its environments were restored exactly"""


# ---------------------------------------------------------------- flags


@dataclass(frozen=True)
class Args(PpoArgs):
    """Flags; literals only, because forms and `--describe` read this class without running it."""

    exp_name: str = "ppo_atari_multigpu"
    env_id: str = "BreakoutNoFrameskip-v4"
    """Atari game"""
    total_timesteps: Annotated[int, Range(1)] = 10_000_000
    """steps to train for, over all environments of all processes; whole iterations only"""
    local_num_envs: Annotated[int, Range(1)] = 8
    """environments of each process"""
    num_minibatches: Annotated[int, Range(1)] = 4
    """minibatches per epoch; must divide local_num_envs × num_steps"""
    norm_adv: bool = True
    """normalize advantages per minibatch of a process"""
    clip_coef: Annotated[float, Range(0)] = 0.1
    max_grad_norm: Annotated[float, Range(0)] = 0.5
    """the averaged gradients are scaled down to this norm"""
    target_kl: Annotated[float | None, Range(0)] = None
    """stop the epochs of an update early beyond this KL divergence, the mean of all processes"""
    device_ids: str = ""
    """GPU of each process (0 1, or 0,1); empty: one after the other if there are enough, otherwise the CPU"""
    backend: Literal["gloo", "nccl", "mpi"] = "gloo"
    """how the processes exchange gradients: gloo for CPUs, nccl for GPUs"""
    world_size: Annotated[int, Range(0, 1024)] = 0
    """number of processes, started by this one; 0: those of torchrun, or this one alone"""

    local_batch_size: int = 0
    """computed: local_num_envs × num_steps (a value given here is ignored)"""
    local_minibatch_size: int = 0
    """computed: local batch size / num_minibatches (a value given here is ignored)"""
    num_envs: Annotated[int, Range(0)] = 0
    """computed: local_num_envs × processes (a value given here is ignored)"""
    batch_size: int = 0
    """computed: local batch size × processes (a value given here is ignored)"""


# ---------------------------------------------------------------- rollout, update, loop


class MultiGpuLearner(PpoLearner):
    """PPO's learner in each process; only the leader's is known to the run."""

    def __init__(self, args: Args, envs: VectorEnvs, device: torch.device, team: Team) -> None:
        self.team = team
        super().__init__(args, envs, device, agent="atari")
        self.own_envs = slice(team.rank * args.local_num_envs, (team.rank + 1) * args.local_num_envs)
        self.games = np.zeros((2, args.num_steps, args.local_num_envs), dtype=np.float32)
        """Unclipped rewards and ends of games, from which the leader counts the episodes of all processes"""

    def count_envs(self) -> int:
        """Return the number of environments over all processes."""
        return int(self.args.local_num_envs) * self.team.size

    # -- called by the run in the leader, which instructs all processes

    def begin_episodes(self) -> None:
        """Reset the environments of all processes."""
        self.team.order(Instruction.BEGIN)
        self.reset()

    def learn(self, run: RunContext) -> None:
        """Run an iteration in all processes, and write the charts."""
        self.team.order(Instruction.LEARN)
        first_step = self.step
        charts = self.iterate()
        for t, episodes in self._episodes_of_all():
            for episode_return, length in episodes:
                ended = {"charts/episodic_return": episode_return, "charts/episodic_length": length}
                run.writer.add_scalars(ended, first_step + (t + 1) * self.num_envs)
        run.writer.add_scalars({**charts, "charts/SPS": run.steps_per_second(self.step)}, self.step)

    def _episodes_of_all(self) -> list[tuple[int, list[tuple[float, int]]]]:
        """Return (time, episodes that ended then) of the last rollout, over all processes."""
        all_rewards, all_over = np.concatenate(self.team.gather(self.games), axis=2)
        steps = (_as_step(rewards, over != 0) for rewards, over in zip(all_rewards, all_over, strict=True))
        return [(t, self.episodes.add(step)) for t, step in enumerate(steps)]

    # -- an iteration of PPO, with the mean of the gradients over all processes

    def reset(self) -> None:
        """Reset the environments of this process."""
        seed = self.args.seed + self.step + self.own_envs.start
        self.next_obs = self.envs.reset(seed).astype(self.next_obs.dtype)

    def iterate(self) -> dict[str, float]:
        """Collect and update together with all processes; return the charts."""
        learning_rate = self.learning_rate()
        self.collect(None)
        return {**self.update(self.batch(), learning_rate), "charts/learning_rate": learning_rate}

    def noise(self) -> np.ndarray:
        """Return this process's part of the noise, which all processes draw alike."""
        return self.distribution.noise(self.rng, (self.args.num_steps, self.num_envs))[:, self.own_envs]

    def after_step(self, t: int, step: Step, run: Any) -> None:
        """Store what the leader needs for the charts of episodes."""
        self.games[0, t] = step.rewards if step.raw_rewards is None else step.raw_rewards
        self.games[1, t] = step.ended if step.over is None else step.over

    def backward(self, minibatch: Batch) -> Any:
        """Set the mean of the gradients over all processes."""
        losses = super().backward(minibatch)
        assert self.parameters.block.grad is not None
        self.team.average(self.parameters.block.grad)
        return losses

    def divergence(self, losses: Any) -> float:
        """Return the mean over all processes, so that all stop the epochs together."""
        divergence = losses.approx_kl.clone()
        self.team.average(divergence)
        return float(divergence)

    def stop_unless_finite(self, loss: float, *given: Any, blame: str = "") -> None:
        """Stop the run from the leader."""
        if self.team.leads:
            super().stop_unless_finite(loss, *given, blame=blame)

    # -- checkpoints: the leader's state, and the environments of every other process

    def snapshot(self) -> TrainingState:
        """Return everything learning depends on, in all processes."""
        self.team.order(Instruction.SNAPSHOT)
        state = super().snapshot()
        others = [unpack(self.team.receive(rank)) for rank in range(1, self.team.size)]
        arrays = {
            f"process{rank}.{name}": array for rank, (own, _) in enumerate(others, 1) for name, array in own.items()
        }
        values = {"processes": self.team.size, "environments_of_others": [envs for _, envs in others]}
        return TrainingState(state.step, {**state.arrays, **arrays}, {**state.values, **values})

    def own_state(self) -> bytes:
        """Return a follower's environments; everything else is the same in every process."""
        envs = self.envs.snapshot()
        arrays = {f"envs.{name}": array for name, array in envs.arrays.items()}
        return pack({**arrays, "next_obs": self.next_obs}, envs.values)

    def restore(self, state: TrainingState) -> str:
        """Continue from a snapshot; return how the environments were restored."""
        check_flags_match(self.args, state.values["args"])
        if (made_by := state.values["processes"]) != self.team.size:
            raise BadInput(f"the checkpoint was made by {made_by} processes, this run has {self.team.size}")
        self.team.order(Instruction.RESTORE)
        shared = {name: array for name, array in state.arrays.items() if name.startswith(("agent.", "adam."))}
        for rank, envs in enumerate(state.values["environments_of_others"], start=1):
            values = {"step": state.step, "rng": state.values["rng"], "envs": envs}
            self.team.send(rank, pack({**shared, **state.part(f"process{rank}")}, values))
        exact = [self.restore_process(state), *(self.team.receive(rank) == EXACT for rank in range(1, self.team.size))]
        self.episodes.restore(state.values["episodes"], mid_episode=all(exact))
        if not all(exact):
            self.begin_episodes()
            return NEW_EPISODES
        return "exact"

    def restore_process(self, state: TrainingState) -> bool:
        """Restore this process; return whether its environments were restored."""
        load_weights(self.agent, state.part("agent"), what="the checkpoint")
        self.parameters.refresh_host()
        self.adam.restore(state.part("adam"))
        self.rng.bit_generator.state = state.values["rng"]
        self.step = state.step
        self.next_obs = state.arrays["next_obs"].copy()
        return self.envs.restore(state.environments()) is not None

    def load_agent(self, weights: Mapping[str, np.ndarray], what: str) -> None:
        """Load the network's weights in all processes."""
        load_weights(self.agent, weights, what=what)
        self.team.order(Instruction.WEIGHTS)
        self.share_weights()

    def share_weights(self) -> None:
        """Send the leader's weights to all processes."""
        self.team.share(self.parameters.block.data)
        self.parameters.refresh_host()


def _as_step(rewards: np.ndarray, over: np.ndarray) -> Step:
    """Return a step with what the episode tracker needs."""
    nothing = np.empty(0)
    return Step(nothing, rewards, over, np.zeros_like(over), nothing, over)


# ---------------------------------------------------------------- policy and run: leader and followers


NAME = Args.exp_name


def make_policy(
    env_id: str, observations: Space, actions: Space, weights: Weights, *, algo: str = NAME, normalizer: Any = None
) -> DistributionPolicy:
    """Return the policy with these weights; raise BadInput when they do not fit the environment."""
    agent = make_agent("atari", env_id, observations, actions, algo=algo)
    load_weights(agent, weights, what="the policy")
    assert isinstance(actions, gym.spaces.Discrete)
    acting, distribution = TorchActing(agent, torch.device("cpu")), Categorical(int(actions.n))
    return DistributionPolicy(acting, distribution, network_dtype(observations), normalizer)


def check(args: Args) -> None:
    """Raise BadInput for invalid values."""
    check_args(args)


def device_of(args: Args, team: Team) -> torch.device:
    """Return this process's GPU; the CPU for all processes if there are not enough GPUs."""
    torch.backends.cudnn.deterministic = args.torch_deterministic
    ids = [number.strip() for number in args.device_ids.split(",") if number.strip()]
    if ids and (len(ids) != team.size or not all(number.isdigit() for number in ids)):
        raise BadInput(f"--device-ids {args.device_ids!r}: one number for each of the {team.size} processes, like 0 1")
    if not args.cuda or torch.cuda.device_count() < max([team.size, *(int(number) + 1 for number in ids)]):
        return torch.device("cpu")
    return torch.device("cuda", int(ids[team.rank]) if ids else team.rank)


def train(args: Args, run: RunContext) -> TrainResult:
    """Lead: train until the steps are used up, the return is reached or a stop is requested; then evaluate."""
    check(args)
    team = Team.lead("ppo_atari_multigpu", args)
    try:
        device = device_of(args, team)
        envs = run.make_envs(replace(args, num_envs=args.local_num_envs))
        learner = MultiGpuLearner(args, envs, device, team)
        return run_training_loop(learner, run, total=learner.total)
    finally:
        team.close()


def follow(args: Args) -> None:
    """Train as a follower until the leader ends."""
    torch.set_num_threads(args.torch_threads)
    env_kwargs = read_env_kwargs(args.env_kwargs)
    try:
        team = Team.join(args)
        envs = make_envs(args.env_id, args.local_num_envs, env_kwargs, pipeline="atari", backend=args.env_backend)
        follow_leader(MultiGpuLearner(args, envs, device_of(args, team), team))
        envs.close()
        team.close()
    except LeaderLost:
        # The leader has reported why. gloo's threads sometimes abort a process that exits normally after the
        # connection was lost.
        os._exit(1)


def follow_leader(learner: MultiGpuLearner) -> None:
    """Follow the leader's instructions until it dismisses this process; raise LeaderLost if the leader has exited."""
    team = learner.team
    while (order := team.next_order()) is not Instruction.DISMISS:
        if order is Instruction.BEGIN:
            learner.reset()
        elif order is Instruction.LEARN:
            learner.iterate()
            team.gather(learner.games)
        elif order is Instruction.SNAPSHOT:
            team.send(0, learner.own_state())
        elif order is Instruction.RESTORE:
            arrays, values = unpack(team.receive(0))
            exact = learner.restore_process(TrainingState(values["step"], arrays, values))
            team.send(0, EXACT if exact else b"new")
        elif order is Instruction.WEIGHTS:
            learner.share_weights()


if __name__ == "__main__":
    from cleanrl_worker.training.standalone import run_alone

    run_alone(NAME, Args, train)
