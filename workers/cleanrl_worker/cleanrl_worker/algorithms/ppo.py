"""Proximal policy optimisation (Schulman et al. 2017) with generalised advantage estimation.

For discrete actions, under the flags and defaults of CleanRL's `ppo.py`. Observations are vectors, or the small images
of grid worlds.
Runs alone: python -m cleanrl_worker.algorithms.ppo --env-id CartPole-v1
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.nn import functional

from cleanrl_worker.agents.choice import choose_agent, make_agent
from cleanrl_worker.env_kwargs import read_env_kwargs
from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.ranges import Range
from cleanrl_worker.training.acting import Acting, CategoricalPolicy, NumpyActing, TorchActing, network_dtype
from cleanrl_worker.training.arguments import check_args
from cleanrl_worker.training.envs import EpisodeTracker, VectorEnvs
from cleanrl_worker.training.evaluation import Evaluation, evaluate
from cleanrl_worker.training.parameters import FlatParameters
from cleanrl_worker.training.returns import generalised_advantages, log_softmax
from cleanrl_worker.training.run_context import RunContext
from cleanrl_worker.training.state import TrainingState
from cleanrl_worker.training.weights import agent_of, load_weights


@dataclass(frozen=True)
class Args:
    """Flags of `ppo`; literals only, because forms and `--describe` read this class without running it."""

    exp_name: str = "ppo"
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

    env_id: str = "CartPole-v1"
    """Gymnasium id, or module:id for one of your own; actions must be discrete, observations vectors or images"""
    env_kwargs: str = "{}"
    """arguments of the environment, a JSON object: {"is_slippery": false}"""
    total_timesteps: Annotated[int, Range(1)] = 500_000
    """steps to train for, over all environments; whole iterations only"""
    learning_rate: Annotated[float, Range(0)] = 2.5e-4
    """Adam's step size (at the start, with anneal_lr)"""
    num_envs: Annotated[int, Range(1)] = 4
    """environments stepped in parallel"""
    num_steps: Annotated[int, Range(1)] = 128
    """steps per environment between two updates"""
    anneal_lr: bool = True
    """let the learning rate fall linearly to zero"""
    gamma: Annotated[float, Range(0, 1)] = 0.99
    """discount factor"""
    gae_lambda: Annotated[float, Range(0, 1)] = 0.95
    """lambda of generalised advantage estimation"""
    num_minibatches: Annotated[int, Range(1)] = 4
    """minibatches per epoch; must divide num_envs × num_steps"""
    update_epochs: Annotated[int, Range(1)] = 4
    """passes over each batch"""
    norm_adv: bool = True
    """normalise advantages per minibatch"""
    clip_coef: Annotated[float, Range(0)] = 0.2
    """how far the policy may move before its objective is clipped"""
    clip_vloss: bool = True
    """clip the value loss in the same way"""
    ent_coef: float = 0.01
    """weight of the entropy bonus"""
    vf_coef: Annotated[float, Range(0)] = 0.5
    """weight of the value loss"""
    max_grad_norm: Annotated[float, Range(0)] = 0.5
    """gradients are scaled down to this norm"""
    target_kl: Annotated[float | None, Range(0)] = None
    """stop the epochs of an update early beyond this KL divergence"""

    batch_size: int = 0
    """computed: num_envs × num_steps (a value given here is ignored)"""
    minibatch_size: int = 0
    """computed: batch size / num_minibatches (a value given here is ignored)"""
    num_iterations: int = 0
    """computed: total_timesteps / batch size (a value given here is ignored)"""

    agent: Literal["auto", "separate", "mlp", "minigrid"] = "auto"
    """network: separate actor and critic, or one trunk for both (auto: what fits the environment)"""
    eval_episodes: Annotated[int, Range(0)] = 0
    """episodes of a deterministic evaluation after training"""
    stop_at_return: float | None = None
    """end training once the last 100 episodes average this return"""
    checkpoint_freq: Annotated[int, Range(0)] = 0
    """steps between checkpoints; 0: only one at the end"""
    torch_threads: Annotated[int, Range(1, 1024)] = 1
    """CPU threads; for networks this small more than one costs time"""


RULES = (
    (
        "num_envs * num_steps % num_minibatches == 0",
        "--num-minibatches {num_minibatches} does not divide the batch of {num_envs * num_steps} steps "
        "(--num-envs {num_envs} × --num-steps {num_steps})",
    ),
    (
        "num_envs * num_steps // num_minibatches >= 2",
        "a minibatch of {num_envs * num_steps // num_minibatches} step is too small: lower --num-minibatches",
    ),
    (
        "total_timesteps >= num_envs * num_steps",
        "--total-timesteps {total_timesteps} is less than one batch of {num_envs * num_steps} steps "
        "(--num-envs {num_envs} × --num-steps {num_steps})",
    ),
)
"""What must hold between the flags; text, because a dry run reads it without importing torch"""

MEMORY = {
    "rollout": "num_envs * (num_steps + 1) * (4 * obs_size + 4 * actions + 24)",
    "batch and its gradients": "num_envs * num_steps * (4 * obs_size + 8 * 64)",
}
"""Bytes that training allocates on top of the process itself; `obs_size` and `actions` are the environment's"""

CHECKPOINT = "3 * 4 * (2 * 64 * (obs_size + 65) + 65 * (actions + 1)) + 8192 * num_envs"
"""Bytes of one checkpoint: weights, Adam's two moments, the environments"""

RESUME_NEEDS = ("env_id", "env_kwargs", "num_envs")
"""A checkpoint is refused when it was made with other values of these"""

SHAPES = {"agent.actor.0.weight": ("64", "obs_size"), "agent.actor.4.weight": ("actions", "64")}
"""Shapes of the checkpoint's arrays, where it has arrays of these names"""

AGENTS = {"separate": "vector", "mlp": "vector", "minigrid": "image"}
"""The observations that each --agent plays; `auto` finds the right one"""

LARGEST_IMAGE = 32
"""Cells of a grid world's side; larger images are pictures, for which this file has no network of its own accord"""


# ---------------------------------------------------------------- network


def _linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def _mlp(inputs: int, outputs: int, output_gain: float) -> nn.Sequential:
    return nn.Sequential(
        _linear(inputs, 64, math.sqrt(2)),
        nn.Tanh(),
        _linear(64, 64, math.sqrt(2)),
        nn.Tanh(),
        _linear(64, outputs, output_gain),
    )


class Agent(nn.Module):
    """Separate critic and actor; parameter names and shapes are those of CleanRL's models."""

    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.critic = _mlp(observations, 1, output_gain=1.0)
        # A small output gain makes the first policy nearly uniform.
        self.actor = _mlp(observations, actions, output_gain=0.01)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of the actions, and values [batch, 1]."""
        return self.actor(obs), self.critic(obs)


def acting_with(agent: nn.Module, parameters: FlatParameters, device: torch.device) -> Acting:
    return NumpyActing(parameters, agent) if isinstance(agent, Agent) else TorchActing(agent, device)


def make_policy(
    env_id: str, observations: gym.Space, actions: gym.Space, weights: Mapping[str, np.ndarray], **options: Any
) -> CategoricalPolicy:
    """The policy these weights are, to be played; BadInput when they do not fit the environment."""
    agent = make_agent(agent_of(weights), env_id, observations, actions, separate=Agent)
    load_weights(agent, weights, what="the policy")
    acting = acting_with(agent, FlatParameters(agent), torch.device("cpu"))
    return CategoricalPolicy(acting, network_dtype(observations), **options)


# ---------------------------------------------------------------- arithmetic


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


def ppo_losses(agent: nn.Module, batch: Batch, args: Args) -> Losses:
    """The clipped surrogate objective, the value loss and the entropy bonus of one minibatch."""
    logits, predictions = agent(batch.obs)
    log_probs = functional.log_softmax(logits, dim=1)
    chosen = log_probs.gather(1, batch.actions.unsqueeze(1)).squeeze(1)
    entropy = -(log_probs.exp() * log_probs).sum(dim=1).mean()
    log_ratio = chosen - batch.log_probs
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


# ---------------------------------------------------------------- one run


class Rollout:
    """Buffers of one iteration, [time, environment]; made once and overwritten."""

    def __init__(self, num_steps: int, num_envs: int, observations: gym.Space, actions: int) -> None:
        shape = (num_steps, num_envs)
        self.obs = np.zeros((num_steps + 1, num_envs, *(observations.shape or ())), dtype=network_dtype(observations))
        self.logits = np.zeros((*shape, actions), dtype=np.float32)
        self.actions = np.zeros(shape, dtype=np.int64)
        self.rewards = np.zeros(shape, dtype=np.float32)
        self.terminated = np.zeros(shape, dtype=np.bool_)
        self.ended = np.zeros(shape, dtype=np.bool_)
        self.truncations: list[tuple[int, np.ndarray, np.ndarray]] = []
        """(time, environments, their last observations) where a time limit ended episodes"""


class Trainer:
    """The state of a run and the two halves of an iteration: collect, then update."""

    def __init__(self, args: Args, envs: VectorEnvs, device: torch.device, *, agent: str = "separate") -> None:
        self.args = args
        self.envs = envs
        self.rng = np.random.Generator(np.random.PCG64(args.seed))
        torch.manual_seed(args.seed)
        spaces = (envs.observation_space, envs.action_space)
        self.agent = make_agent(agent, args.env_id, *spaces, separate=Agent).to(device)
        self.parameters = FlatParameters(self.agent)
        self.optimizer = torch.optim.Adam([self.parameters.block], lr=args.learning_rate, eps=1e-5, fused=True)
        self.acting = acting_with(self.agent, self.parameters, device)
        actions = int(envs.action_space.n)  # type: ignore[attr-defined]  # discrete, make_agent has seen to it
        self.rollout = Rollout(args.num_steps, args.num_envs, envs.observation_space, actions)
        self.episodes = EpisodeTracker(args.num_envs)
        self.device = device
        self.step = 0
        self.next_obs = np.zeros_like(self.rollout.obs[0])

    def begin_episodes(self) -> None:
        self.next_obs = self.envs.reset(self.args.seed + self.step).astype(self.next_obs.dtype)

    def act_deterministically(self, obs: np.ndarray) -> np.ndarray:
        return self.acting.logits(obs.astype(self.next_obs.dtype, copy=False)).argmax(axis=1)

    def collect(self, run: RunContext) -> None:
        """Play num_steps in every environment."""
        args, rollout = self.args, self.rollout
        # Gumbel noise on the logits, then the largest: a sample of the categorical distribution.
        noise = self.rng.gumbel(size=rollout.logits.shape).astype(np.float32)
        rollout.truncations.clear()
        rollout.obs[0] = self.next_obs
        for t in range(args.num_steps):
            logits = self.acting.logits(rollout.obs[t])
            actions = (logits + noise[t]).argmax(axis=1)
            step = self.envs.step(actions)
            self.step += args.num_envs
            rollout.logits[t] = logits
            rollout.actions[t] = actions
            rollout.rewards[t] = step.rewards
            rollout.terminated[t] = step.terminated
            rollout.ended[t] = step.ended
            rollout.obs[t + 1] = step.obs
            for episode_return, length in self.episodes.add(step):
                run.writer.add_scalars(
                    {"charts/episodic_return": episode_return, "charts/episodic_length": length}, self.step
                )
            if step.truncated.any():
                cut = np.flatnonzero(step.truncated & ~step.terminated)
                rollout.truncations.append((t, cut, step.final_obs[cut].astype(rollout.obs.dtype)))
        self.next_obs = rollout.obs[-1].copy()

    def batch(self) -> Batch:
        """Values, advantages and log-probabilities of the rollout, each computed for all rows at once."""
        args, rollout = self.args, self.rollout
        obs = rollout.obs.reshape(-1, *rollout.obs.shape[2:])
        all_values = self.acting.values(obs).reshape(args.num_steps + 1, args.num_envs)
        values, next_values = all_values[:-1], all_values[1:].copy()
        for t, cut, last_obs in rollout.truncations:
            next_values[t, cut] = self.acting.values(last_obs)
        advantages = generalised_advantages(
            rollout.rewards, values, next_values, rollout.terminated, rollout.ended, args.gamma, args.gae_lambda
        )
        log_probs = np.take_along_axis(log_softmax(rollout.logits), rollout.actions[..., None], axis=-1)
        columns = (rollout.actions, log_probs, advantages, advantages + values, values)
        flat = [obs[: -args.num_envs], *(column.reshape(-1) for column in columns)]
        return Batch(*(torch.from_numpy(array).to(self.device) for array in flat))

    def update(self, batch: Batch) -> dict[str, float]:
        """Several epochs of minibatch descent; return what the charts show."""
        args = self.args
        count = len(batch.actions)
        size = count // args.num_minibatches
        clip_fractions = []
        for _ in range(args.update_epochs):
            order = torch.from_numpy(self.rng.permutation(count)).to(self.device)
            shuffled = [tensor[order] for tensor in batch]
            for start in range(0, count, size):
                minibatch = Batch(*(tensor[start : start + size] for tensor in shuffled))
                losses = ppo_losses(self.agent, minibatch, args)
                self.parameters.zero_gradients()
                losses.total.backward()  # type: ignore[no-untyped-call]
                self.parameters.clip_gradients(args.max_grad_norm)
                self.optimizer.step()
                clip_fractions.append(losses.clip_fraction)
            if args.target_kl is not None and losses.approx_kl.item() > args.target_kl:
                break
        self.parameters.refresh_host()
        # Before anything of this iteration is saved: a checkpoint of such weights would be worth nothing.
        if not (math.isfinite(losses.total.item()) and math.isfinite(self.parameters.block.data.sum().item())):
            cause = "lower --learning-rate"
            if not (batch.obs.isfinite().all() and torch.from_numpy(self.rollout.rewards).isfinite().all()):
                cause = "the environment gave observations or rewards that are not finite"
            raise TrainingStopped(f"loss or weights are not finite at step {self.step}: {cause}")
        returns_variance = batch.returns.var(correction=0)
        explained = 1 - (batch.returns - batch.values).var(correction=0) / returns_variance
        return {
            "losses/value_loss": losses.value.item(),
            "losses/policy_loss": losses.policy.item(),
            "losses/entropy": losses.entropy.item(),
            "losses/old_approx_kl": losses.old_approx_kl.item(),
            "losses/approx_kl": losses.approx_kl.item(),
            "losses/clipfrac": torch.stack(clip_fractions).mean().item(),
            "losses/explained_variance": explained.item() if returns_variance > 0 else math.nan,
        }

    # -- checkpoints

    def snapshot(self) -> TrainingState:
        """Everything learning depends on, between two iterations."""
        moments = self.optimizer.state[self.parameters.block]
        envs = self.envs.snapshot()
        arrays = {f"agent.{name}": tensor.cpu().numpy() for name, tensor in self.agent.state_dict().items()}
        arrays |= {f"adam.{name}": moments[name].cpu().numpy() for name in ("step", "exp_avg", "exp_avg_sq") if moments}
        arrays |= {f"envs.{name}": array for name, array in envs.arrays.items()}
        arrays["next_obs"] = self.next_obs
        values = {
            "args": asdict(self.args),
            "rng": self.rng.bit_generator.state,
            "episodes": self.episodes.snapshot(),
            "envs": dict(envs.values),
        }
        return TrainingState(self.step, arrays, values)

    def restore(self, state: TrainingState) -> str:
        """Go on from a snapshot; return how the environments were brought back."""
        _check_it_fits(self.args, state.values["args"])
        self.take_weights(state.part("agent"), "the checkpoint")
        if moments := state.part("adam"):
            block = self.parameters.block
            self.optimizer.state[block] = {
                name: torch.from_numpy(array.copy()).to("cpu" if name == "step" else block.device)
                for name, array in moments.items()
            }
        self.rng.bit_generator.state = state.values["rng"]
        self.step = state.step
        obs = self.envs.restore(state.environments())
        self.episodes.restore(state.values["episodes"], mid_episode=obs is not None)
        if obs is None:
            self.begin_episodes()
            return "new episodes: these environments cannot be restored within one"
        self.next_obs = state.arrays["next_obs"].copy()
        return "exact"

    def take_weights(self, weights: Mapping[str, np.ndarray], what: str) -> None:
        load_weights(self.agent, weights, what=what)
        self.parameters.refresh_host()


def _check_it_fits(args: Args, earlier: dict[str, Any]) -> None:
    for name in RESUME_NEEDS:
        then, now = earlier.get(name, getattr(Args, name)), getattr(args, name)
        if then != now:
            raise BadInput(f"the checkpoint was made with {name}={then!r}, this run has {now!r}")


def check(args: Args) -> None:
    """Refuse values that no run can be made of."""
    check_args(args, RULES)
    if args.capture_video:
        raise BadInput("--capture-video: recording videos is not there yet; leave it out")


def train(args: Args, run: RunContext) -> Evaluation | None:
    """Train until the steps are used up, the return is reached or somebody asks to stop; then evaluate."""
    check(args)
    device = torch.device("cuda" if args.cuda and torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.deterministic = args.torch_deterministic
    env_kwargs = read_env_kwargs(args.env_kwargs)
    envs = run.make_envs(args)
    weights = run.weights()
    kind = choose_agent(args.agent, envs.observation_space, in_curriculum=run.curriculum is not None)
    trainer = Trainer(args, envs, device, agent=agent_of(weights) if weights and args.agent == "auto" else kind)
    if run.checkpoint is not None:
        run.loaded(trainer.restore(run.checkpoint))
    else:
        trainer.begin_episodes()
        if weights:
            trainer.take_weights(weights, "the model")
            run.loaded_weights()

    batch_size = args.num_envs * args.num_steps
    iterations = args.total_timesteps // batch_size
    run.begin(trainer.step, iterations * batch_size, args)
    try:
        while trainer.step < iterations * batch_size:
            if run.should_stop(trainer.step, trainer.snapshot) or trainer.episodes.has_reached(args.stop_at_return):
                break
            learning_rate = args.learning_rate
            if args.anneal_lr:
                learning_rate *= 1 - trainer.step / (iterations * batch_size)
            trainer.optimizer.param_groups[0]["lr"] = learning_rate
            trainer.collect(run)
            charts = trainer.update(trainer.batch())
            charts |= {"charts/learning_rate": learning_rate, "charts/SPS": run.steps_per_second(trainer.step)}
            run.writer.add_scalars(charts, trainer.step)
            run.report(trainer.step, trainer.episodes.mean_return)
            run.save_if_due(trainer.step, args.checkpoint_freq, trainer.snapshot)
        run.save_last(trainer.step, trainer.snapshot)
    finally:
        envs.close()
    run.save_policy(trainer.agent.state_dict(), f"{args.exp_name}.cleanrl_model")
    if run.stopped or not args.eval_episodes:
        return None
    return evaluate(
        run.env_to_evaluate(args.env_id),
        trainer.act_deterministically,
        episodes=args.eval_episodes,
        seed=args.seed,
        should_stop=run.stop_requested,
        env_kwargs=env_kwargs,
    )


if __name__ == "__main__":
    from cleanrl_worker.training.standalone import run_alone

    run_alone("ppo", Args, train)
