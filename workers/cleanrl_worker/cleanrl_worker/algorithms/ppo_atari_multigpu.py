"""PPO for Atari over several processes (Schulman et al. 2017; gradients averaged as in data-parallel training).

Every process plays its own environments and computes the gradient of its own minibatch; the mean of all gradients
moves the same weights everywhere. The processes draw from the same random numbers and each takes its share: two of four
environments each see the transitions that one with eight would see. Flags and defaults are those of CleanRL's file.

One process:    python -m cleanrl_worker.algorithms ppo_atari_multigpu
Several:        … --world-size 2            which is also how it runs through the daemon
By torchrun:    torchrun --standalone --nproc_per_node 2 -m cleanrl_worker.algorithms ppo_atari_multigpu
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch.nn import functional

from cleanrl_worker.agents.choice import make_agent
from cleanrl_worker.agents.layers import DiscreteAgent
from cleanrl_worker.env_kwargs import read_env_kwargs
from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.ranges import Range
from cleanrl_worker.training.acting import DistributionPolicy, ObservationNormaliser, TorchActing, network_dtype
from cleanrl_worker.training.adam import FlatAdam
from cleanrl_worker.training.arguments import check_args
from cleanrl_worker.training.common_args import CommonArgs
from cleanrl_worker.training.compiling import compiled
from cleanrl_worker.training.distributions import Categorical
from cleanrl_worker.training.envs import EpisodeTracker, Step, VectorEnvs, make_envs
from cleanrl_worker.training.evaluation import Evaluation
from cleanrl_worker.training.loop import train_to_the_end
from cleanrl_worker.training.parameters import FlatParameters
from cleanrl_worker.training.returns import generalised_advantages
from cleanrl_worker.training.rollout_state import NEW_EPISODES, check_it_fits, snapshot_of
from cleanrl_worker.training.run_context import RunContext
from cleanrl_worker.training.state import TrainingState
from cleanrl_worker.training.team import LeaderGone, Order, Team, pack, unpack
from cleanrl_worker.training.weights import load_weights


@dataclass(frozen=True)
class Args(CommonArgs):
    """Flags; literals only, because forms and `--describe` read this class without running it."""

    exp_name: str = "ppo_atari_multigpu"
    env_id: str = "BreakoutNoFrameskip-v4"
    """Atari game"""
    total_timesteps: Annotated[int, Range(1)] = 10_000_000
    """steps to train for, over all environments of all processes; whole iterations only"""
    learning_rate: Annotated[float, Range(0)] = 2.5e-4
    """Adam's step size (at the start, with anneal_lr)"""
    local_num_envs: Annotated[int, Range(1)] = 8
    """environments of each process"""
    num_steps: Annotated[int, Range(1)] = 128
    """steps per environment between two updates"""
    anneal_lr: bool = True
    """let the learning rate fall linearly to zero"""
    gamma: Annotated[float, Range(0, 1)] = 0.99
    """discount factor"""
    gae_lambda: Annotated[float, Range(0, 1)] = 0.95
    """lambda of generalised advantage estimation"""
    num_minibatches: Annotated[int, Range(1)] = 4
    """minibatches per epoch; must divide local_num_envs × num_steps"""
    update_epochs: Annotated[int, Range(1)] = 4
    """passes over each batch"""
    norm_adv: bool = True
    """normalise advantages per minibatch of a process"""
    clip_coef: Annotated[float, Range(0)] = 0.1
    """how far the policy may move before its objective is clipped"""
    clip_vloss: bool = True
    """clip the value loss in the same way"""
    ent_coef: float = 0.01
    """weight of the entropy bonus"""
    vf_coef: Annotated[float, Range(0)] = 0.5
    """weight of the value loss"""
    max_grad_norm: Annotated[float, Range(0)] = 0.5
    """the averaged gradients are scaled down to this norm"""
    target_kl: Annotated[float | None, Range(0)] = None
    """stop the epochs of an update early beyond this KL divergence, the mean of all processes"""
    device_ids: str = ""
    """GPU of each process (0 1, or 0,1); empty: one after the other if there are enough, otherwise the CPU"""
    backend: Literal["gloo", "nccl", "mpi"] = "gloo"
    """how the processes exchange gradients: gloo for CPUs, nccl for GPUs"""
    world_size: Annotated[int, Range(0, 1024)] = 0
    """how many processes this one starts besides itself, and itself; 0: those of torchrun, or one alone"""

    local_batch_size: int = 0
    """computed: local_num_envs × num_steps (a value given here is ignored)"""
    local_minibatch_size: int = 0
    """computed: local batch size / num_minibatches (a value given here is ignored)"""
    num_envs: int = 0
    """computed: local_num_envs × processes (a value given here is ignored)"""
    batch_size: int = 0
    """computed: local batch size × processes (a value given here is ignored)"""
    minibatch_size: int = 0
    """computed: batch size / num_minibatches (a value given here is ignored)"""
    num_iterations: int = 0
    """computed: total_timesteps / batch size (a value given here is ignored)"""


RULES = (
    (
        "local_num_envs * num_steps % num_minibatches == 0",
        "--num-minibatches {num_minibatches} does not divide the batch of {local_num_envs * num_steps} steps "
        "(--local-num-envs {local_num_envs} × --num-steps {num_steps})",
    ),
    (
        "local_num_envs * num_steps // num_minibatches >= 2",
        "a minibatch of {local_num_envs * num_steps // num_minibatches} step is too small: lower --num-minibatches",
    ),
)
"""What must hold between the flags; text, because a dry run reads it without importing torch"""

NOTES = (
    (
        "total_timesteps >= local_num_envs * num_steps * max(world_size, 1)",
        "--total-timesteps {total_timesteps} is less than one batch of "
        "{local_num_envs * num_steps * max(world_size, 1)} steps (--local-num-envs {local_num_envs} × --num-steps "
        "{num_steps} × {max(world_size, 1)} processes): nothing will be trained",
    ),
)
"""What a run is told about its flags and can be run with"""

MEMORY = {
    "rollout and its shuffled copy":
        "2 * max(world_size, 1) * local_num_envs * (num_steps + 1) * (obs_bytes + 4 * actions + 24)",
    "a minibatch and its gradients":
        "max(world_size, 1) * local_num_envs * num_steps // num_minibatches * (4 * obs_size + 250000)",
    "other processes": "max(world_size - 1, 0) * 500000000",
}  # fmt: skip
"""Bytes that training allocates on top of the first process; `obs_size` and `actions` are the environment's"""

CHECKPOINT = "3 * 4 * (1684000 + 513 * (actions + 1)) + max(world_size, 1) * local_num_envs * (2 * obs_bytes + 65536)"
"""Bytes of one checkpoint: weights, Adam's two moments, the environments of all processes"""

RESUME_NEEDS = ("env_id", "env_kwargs", "local_num_envs")
"""A checkpoint is refused when it was made with other values of these; also by another number of processes"""

EXACT = b"exact"

SHAPES = {"agent.actor.weight": ("actions", "512")}
"""Shapes of the checkpoint's arrays"""


# ---------------------------------------------------------------- the objective


class Batch(NamedTuple):
    """What an update learns from; one row per transition."""

    obs: torch.Tensor
    actions: torch.Tensor
    log_probs: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor
    values: torch.Tensor


class Losses(NamedTuple):
    total: torch.Tensor
    policy: torch.Tensor
    value: torch.Tensor
    entropy: torch.Tensor
    old_approx_kl: torch.Tensor
    approx_kl: torch.Tensor
    clip_fraction: torch.Tensor


def ppo_losses(agent: torch.nn.Module, batch: Batch, args: Args) -> Losses:
    """The clipped surrogate objective, the value loss and the entropy bonus of one minibatch."""
    logits, predictions = agent(batch.obs)
    log_probs = functional.log_softmax(logits, dim=1)
    entropy = -(log_probs.exp() * log_probs).sum(dim=1).mean()
    log_ratio = log_probs.gather(1, batch.actions.unsqueeze(1)).squeeze(1) - batch.log_probs
    ratio = log_ratio.exp()
    advantages = batch.advantages
    if args.norm_adv:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    clipped_ratio = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
    policy = -torch.minimum(advantages * ratio, advantages * clipped_ratio).mean()

    values = predictions.squeeze(1)
    squared_error = (values - batch.returns).square()
    if args.clip_vloss:
        clipped = batch.values + (values - batch.values).clamp(-args.clip_coef, args.clip_coef)
        squared_error = torch.maximum(squared_error, (clipped - batch.returns).square())
    value = 0.5 * squared_error.mean()

    total = policy - args.ent_coef * entropy + args.vf_coef * value
    with torch.no_grad():
        old_approx_kl = -log_ratio.mean()
        approx_kl = (ratio - 1 - log_ratio).mean()
        clip_fraction = ((ratio - 1).abs() > args.clip_coef).float().mean()
    return Losses(total, policy, value, entropy, old_approx_kl, approx_kl, clip_fraction)


# ---------------------------------------------------------------- one process of a run


class Rollout:
    """Buffers of one iteration, [time, environment of this process]; made once and overwritten."""

    def __init__(self, num_steps: int, num_envs: int, observations: gym.Space, actions: int) -> None:
        shape = (num_steps, num_envs)
        self.obs = np.zeros((num_steps + 1, num_envs, *(observations.shape or ())), dtype=network_dtype(observations))
        self.logits = np.zeros((*shape, actions), dtype=np.float32)
        self.actions = np.zeros(shape, dtype=np.int64)
        self.values = np.zeros((num_steps + 1, num_envs), dtype=np.float32)
        self.rewards = np.zeros(shape, dtype=np.float32)
        self.terminated = np.zeros(shape, dtype=np.bool_)
        self.ended = np.zeros(shape, dtype=np.bool_)
        self.games = np.zeros((2, *shape), dtype=np.float32)
        """What the game itself paid, and where it was over: for the leader, who counts the episodes of all"""
        self.truncations: list[tuple[int, np.ndarray, np.ndarray]] = []
        """(time, environments, their last observations) where a time limit ended episodes"""


class MultiGpuLearner:
    """The same in every process, but for its environments; the leader's is the one the run knows."""

    def __init__(self, args: Args, envs: VectorEnvs, device: torch.device, team: Team) -> None:
        self.args, self.envs, self.device, self.team = args, envs, device, team
        # One generator for all: each process draws for everybody and takes its share.
        self.rng = np.random.Generator(np.random.PCG64(args.seed))
        torch.manual_seed(args.seed)
        self.agent = agent_for(args.env_id, envs.observation_space, envs.action_space, args.exp_name).to(device)
        self.parameters = FlatParameters(self.agent)
        self.adam = FlatAdam(self.parameters.block, eps=1e-5)
        self.acting = TorchActing(self.agent, device)
        self.losses = compiled(ppo_losses, wanted=args.compile)
        self.distribution = Categorical(self.agent.actions)
        self.num_envs = args.local_num_envs * team.size
        self.share = slice(team.rank * args.local_num_envs, (team.rank + 1) * args.local_num_envs)
        self.rollout = Rollout(args.num_steps, args.local_num_envs, envs.observation_space, self.agent.actions)
        self.next_obs = np.zeros_like(self.rollout.obs[0])
        self.episodes = EpisodeTracker(self.num_envs)
        self.step = 0
        batch_size = self.num_envs * args.num_steps
        self.total = args.total_timesteps // batch_size * batch_size

    # -- what the run asks the leader for, and the leader everybody

    def begin_episodes(self) -> None:
        self.team.order(Order.BEGIN)
        self.reset()

    def learn(self, run: RunContext) -> None:
        self.team.order(Order.LEARN)
        began_at = self.step
        charts = self.iterate()
        for t, episodes in self._episodes_of_all():
            for episode_return, length in episodes:
                figures = {"charts/episodic_return": episode_return, "charts/episodic_length": length}
                run.writer.add_scalars(figures, began_at + (t + 1) * self.num_envs)
        run.writer.add_scalars({**charts, "charts/SPS": run.steps_per_second(self.step)}, self.step)

    def _episodes_of_all(self) -> list[tuple[int, list[tuple[float, int]]]]:
        """(time, episodes that ended there) of the last rollout, over all processes."""
        rewards, over = np.concatenate(self.team.gather(self.rollout.games), axis=2)
        steps = (_as_step(paid, done != 0) for paid, done in zip(rewards, over, strict=True))
        return [(t, self.episodes.add(step)) for t, step in enumerate(steps)]

    def act(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        logits = self.acting.policy(obs.astype(self.next_obs.dtype, copy=False))
        if rng is None:
            return self.distribution.best(logits)
        return self.distribution.choose(logits, self.distribution.noise(rng, logits.shape[:1]))

    # -- an iteration

    def reset(self) -> None:
        seed = self.args.seed + self.step + self.share.start
        self.next_obs = self.envs.reset(seed).astype(self.next_obs.dtype)

    def iterate(self) -> dict[str, float]:
        """Play and learn, together with all others; return what the charts show."""
        learning_rate = self.args.learning_rate
        if self.args.anneal_lr:
            learning_rate *= 1 - self.step / self.total
        self.collect()
        return {**self.update(self.batch(), learning_rate), "charts/learning_rate": learning_rate}

    def collect(self) -> None:
        """Play num_steps in every environment."""
        args, rollout = self.args, self.rollout
        noise = self.distribution.noise(self.rng, (args.num_steps, self.num_envs))[:, self.share]
        rollout.truncations.clear()
        rollout.obs[0] = self.next_obs
        for t in range(args.num_steps):
            logits, rollout.values[t] = self.acting.both(rollout.obs[t])
            actions = self.distribution.choose(logits, noise[t])
            step = self.envs.step(actions)
            self.step += self.num_envs
            rollout.logits[t] = logits
            rollout.actions[t] = actions
            rollout.rewards[t] = step.rewards
            rollout.terminated[t] = step.terminated
            rollout.ended[t] = step.ended
            rollout.games[0, t] = step.rewards if step.raw_rewards is None else step.raw_rewards
            rollout.games[1, t] = step.ended if step.over is None else step.over
            rollout.obs[t + 1] = step.obs
            if step.truncated.any():
                cut = np.flatnonzero(step.truncated & ~step.terminated)
                rollout.truncations.append((t, cut, step.final_obs[cut].astype(rollout.obs.dtype)))
        self.next_obs = rollout.obs[-1].copy()

    def batch(self) -> Batch:
        """The rollout as rows, with advantages, returns and the log-probabilities the actions had."""
        args, rollout = self.args, self.rollout
        rollout.values[-1] = self.acting.values(rollout.obs[-1])
        values, next_values = rollout.values[:-1], rollout.values[1:].copy()
        for t, cut, last_obs in rollout.truncations:
            next_values[t, cut] = self.acting.values(last_obs)
        advantages = generalised_advantages(
            rollout.rewards, values, next_values, rollout.terminated, rollout.ended, args.gamma, args.gae_lambda
        )
        log_probs = self.distribution.log_probs(rollout.logits, rollout.actions)
        columns = (rollout.actions, log_probs, advantages, advantages + values, values)
        obs = rollout.obs[:-1].reshape(-1, *rollout.obs.shape[2:])
        rows = (obs, *(column.reshape(-1) for column in columns))
        return Batch(*(torch.from_numpy(array).to(self.device) for array in rows))

    def update(self, batch: Batch, learning_rate: float) -> dict[str, float]:
        """Several epochs of minibatch descent along the gradients' mean."""
        args = self.args
        assert self.parameters.block.grad is not None
        count = len(batch.actions)
        size = count // args.num_minibatches
        clip_fractions = []
        for _ in range(args.update_epochs):
            order = torch.from_numpy(self.rng.permutation(count)).to(self.device)
            shuffled = [column[order] for column in batch]
            for start in range(0, count, size):
                losses = self.losses(self.agent, Batch(*(column[start : start + size] for column in shuffled)), args)
                self.parameters.zero_gradients()
                losses.total.backward()  # type: ignore[no-untyped-call]
                self.team.average(self.parameters.block.grad)
                self.parameters.clip_gradients(args.max_grad_norm)
                self.adam.step(learning_rate)
                clip_fractions.append(losses.clip_fraction)
            if args.target_kl is not None:
                divergence = losses.approx_kl.clone()
                self.team.average(divergence)  # all must agree whether to go on
                if divergence.item() > args.target_kl:
                    break
        self.parameters.refresh_host()
        self._check_finite(losses.total)
        variance = batch.returns.var(correction=0)
        explained = 1 - (batch.returns - batch.values).var(correction=0) / variance
        return {
            "losses/value_loss": losses.value.item(),
            "losses/policy_loss": losses.policy.item(),
            "losses/entropy": losses.entropy.item(),
            "losses/old_approx_kl": losses.old_approx_kl.item(),
            "losses/approx_kl": losses.approx_kl.item(),
            "losses/clipfrac": torch.stack(clip_fractions).mean().item(),
            "losses/explained_variance": explained.item() if variance > 0 else math.nan,
        }

    def _check_finite(self, loss: torch.Tensor) -> None:
        """Before anything of this iteration is saved: a checkpoint of such weights would be worth nothing."""
        if self.team.leads and not math.isfinite(float(loss.detach()) + float(self.parameters.block.data.sum())):
            raise TrainingStopped(f"loss or weights are not finite at step {self.step}: lower --learning-rate")

    # -- checkpoints: the leader's, and of every other process what is not the same there

    def snapshot(self) -> TrainingState:
        self.team.order(Order.SNAPSHOT)
        state = snapshot_of(self, {"adam": self.adam.arrays()})
        others = [unpack(self.team.receive(rank)) for rank in range(1, self.team.size)]
        arrays = {
            f"process{rank}.{name}": array for rank, (own, _) in enumerate(others, 1) for name, array in own.items()
        }
        values = {"processes": self.team.size, "environments_of_others": [envs for _, envs in others]}
        return TrainingState(state.step, {**state.arrays, **arrays}, {**state.values, **values})

    def own_state(self) -> bytes:
        """What a follower adds: everything else is the same in every process."""
        envs = self.envs.snapshot()
        arrays = {f"envs.{name}": array for name, array in envs.arrays.items()}
        return pack({**arrays, "next_obs": self.next_obs}, envs.values)

    def restore(self, state: TrainingState) -> str:
        check_it_fits(self.args, state.values["args"], RESUME_NEEDS)
        if (made_by := state.values["processes"]) != self.team.size:
            raise BadInput(f"the checkpoint was made by {made_by} processes, this run has {self.team.size}")
        self.team.order(Order.RESTORE)
        of_all = {name: array for name, array in state.arrays.items() if name.startswith(("agent.", "adam."))}
        for rank, envs in enumerate(state.values["environments_of_others"], start=1):
            values = {"step": state.step, "rng": state.values["rng"], "envs": envs}
            self.team.send(rank, pack({**of_all, **state.part(f"process{rank}")}, values))
        exact = [self.take_back(state), *(self.team.receive(rank) == EXACT for rank in range(1, self.team.size))]
        self.episodes.restore(state.values["episodes"], mid_episode=all(exact))
        if not all(exact):
            self.begin_episodes()
            return NEW_EPISODES
        return "exact"

    def take_back(self, state: TrainingState) -> bool:
        """In each process: what concerns it; False when its environments could not be brought back."""
        load_weights(self.agent, state.part("agent"), what="the checkpoint")
        self.parameters.refresh_host()
        self.adam.restore(state.part("adam"))
        self.rng.bit_generator.state = state.values["rng"]
        self.step = state.step
        self.next_obs = state.arrays["next_obs"].copy()
        return self.envs.restore(state.environments()) is not None

    def take_weights(self, weights: Mapping[str, np.ndarray], what: str) -> None:
        load_weights(self.agent, weights, what=what)
        self.team.order(Order.WEIGHTS)
        self.share_weights()

    def share_weights(self) -> None:
        self.team.share(self.parameters.block.data)
        self.parameters.refresh_host()

    def model(self) -> Mapping[str, torch.Tensor]:
        return self.agent.state_dict()


def _as_step(paid: np.ndarray, over: np.ndarray) -> Step:
    """What the episode tracker wants to know of a step."""
    nothing = np.empty(0)
    return Step(nothing, paid, over, np.zeros_like(over), nothing, over)


# ---------------------------------------------------------------- leader and followers


def make_policy(
    env_id: str, observations: gym.Space, actions: gym.Space, weights: Mapping[str, np.ndarray],
    *, algo: str = "ppo_atari_multigpu", normaliser: ObservationNormaliser | None = None,
) -> DistributionPolicy:  # fmt: skip
    """The policy these weights are, to be played; BadInput when they do not fit the environment."""
    agent = agent_for(env_id, observations, actions, algo)
    load_weights(agent, weights, what="the policy")
    acting = TorchActing(agent, torch.device("cpu"))
    return DistributionPolicy(acting, Categorical(agent.actions), network_dtype(observations), normaliser)


def agent_for(env_id: str, observations: gym.Space, actions: gym.Space, algo: str) -> DiscreteAgent:
    """Build the network for these spaces; BadInput when it cannot play them."""
    agent = make_agent("atari", env_id, observations, actions, algo=algo)
    assert isinstance(agent, DiscreteAgent)
    return agent


def check(args: Args) -> None:
    """Refuse values that no run can be made of."""
    check_args(args, RULES)


def device_of(args: Args, team: Team) -> torch.device:
    """Each process its own GPU; the CPU for all where there are not enough."""
    torch.backends.cudnn.deterministic = args.torch_deterministic
    ids = [word.strip() for word in args.device_ids.split(",") if word.strip()]
    if ids and (len(ids) != team.size or not all(word.isdigit() for word in ids)):
        raise BadInput(f"--device-ids {args.device_ids!r}: one number for each of the {team.size} processes, like 0 1")
    if not args.cuda or torch.cuda.device_count() < max([team.size, *(int(word) + 1 for word in ids)]):
        return torch.device("cpu")
    return torch.device("cuda", int(ids[team.rank]) if ids else team.rank)


def train(args: Args, run: RunContext) -> Evaluation | None:
    """Lead: train until the steps are used up, the return is reached or somebody asks to stop; then evaluate."""
    check(args)
    team = Team.lead("ppo_atari_multigpu", args)
    try:
        device = device_of(args, team)
        envs = run.make_envs(replace(args, num_envs=args.local_num_envs))
        learner = MultiGpuLearner(args, envs, device, team)
        return train_to_the_end(learner, run, total=learner.total)
    finally:
        team.close()


def follow(args: Args) -> None:
    """Be one of the others."""
    torch.set_num_threads(args.torch_threads)
    env_kwargs = read_env_kwargs(args.env_kwargs)
    try:
        team = Team.join(args)
        envs = make_envs(args.env_id, args.local_num_envs, env_kwargs, pipeline="atari", backend=args.env_backend)
        obey(MultiGpuLearner(args, envs, device_of(args, team), team))
        envs.close()
        team.close()
    except LeaderGone:
        # Whatever ended it has been said there. gloo's threads now and then abort a process that leaves a team which
        # broke apart in the usual way.
        os._exit(1)


def obey(learner: MultiGpuLearner) -> None:
    """Do what the leader says until it dismisses us; LeaderGone when it left without a word."""
    team = learner.team
    while (order := team.next_order()) is not Order.DISMISS:
        if order is Order.BEGIN:
            learner.reset()
        elif order is Order.LEARN:
            learner.iterate()
            team.gather(learner.rollout.games)
        elif order is Order.SNAPSHOT:
            team.send(0, learner.own_state())
        elif order is Order.RESTORE:
            arrays, values = unpack(team.receive(0))
            exact = learner.take_back(TrainingState(values["step"], arrays, values))
            team.send(0, EXACT if exact else b"new")
        elif order is Order.WEIGHTS:
            learner.share_weights()


if __name__ == "__main__":
    from cleanrl_worker.training.standalone import run_alone

    run_alone("ppo_atari_multigpu", Args, train)
