"""PPO (Schulman et al. 2017) with an LSTM, for Atari games with a single frame per observation.

Under the flags and defaults of CleanRL's `ppo_atari_lstm.py`. Unlike ppo.py it keeps sequences whole, so minibatches
consist of environments instead of steps; each sequence begins with the LSTM state at the beginning of the rollout, and
the state is reset where an episode starts.
Runs alone: python -m cleanrl_worker.algorithms ppo_atari_lstm --env-id PongNoFrameskip-v4
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import Space
from torch import nn

from cleanrl_worker.agents.atari import HIDDEN, RecurrentAgent, State, initial_state
from cleanrl_worker.agents.layers import POLICY_GAIN, categorical_log_probs, orthogonal
from cleanrl_worker.algorithms.ppo import (
    Batch,
    Losses,
    PpoArgs,
    Rollout,
    explained_variance,
    generalized_advantages,
    loss_charts,
    normalized,
    policy_change,
    policy_loss,
    value_loss,
)
from cleanrl_worker.training.args import Range, check_args
from cleanrl_worker.training.checkpointing import Weights, load_weights
from cleanrl_worker.training.envs import VectorEnvs
from cleanrl_worker.training.optimizers import FlatAdam, FlatParameters, compiled
from cleanrl_worker.training.policies import (
    Categorical,
    DistributionPolicy,
    RecurrentPlay,
    RecurrentPolicy,
    atari_sizes,
    count_actions,
    network_dtype,
)
from cleanrl_worker.training.run import (
    RecurrentLearner,
    RunContext,
    TrainResult,
    device_for,
    run_training_loop,
    whole_iterations,
)

# ---------------------------------------------------------------- flags


@dataclass(frozen=True)
class Args(PpoArgs):
    """Flags of `ppo_atari_lstm`."""

    exp_name: str = "ppo_atari_lstm"
    env_id: str = "BreakoutNoFrameskip-v4"
    """Atari game"""
    total_timesteps: Annotated[int, Range(1)] = 10_000_000
    num_envs: Annotated[int, Range(1)] = 8
    num_steps: Annotated[int, Range(1)] = 128
    """steps per environment between two updates; also the length of backpropagation through time"""
    num_minibatches: Annotated[int, Range(1)] = 4
    """minibatches per epoch, each of whole sequences; must divide num_envs"""
    clip_coef: Annotated[float, Range(0)] = 0.1


# ---------------------------------------------------------------- network


class Agent(RecurrentAgent):
    """An actor and a critic on top of an LSTM."""

    def __init__(self, frames: int, actions: int) -> None:
        super().__init__(frames)
        self.actor = orthogonal(nn.Linear(HIDDEN, actions), POLICY_GAIN)
        self.critic = orthogonal(nn.Linear(HIDDEN, 1), 1.0)

    def forward(
        self, obs: torch.Tensor, state: State, starts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, State]:
        """Return logits of the actions, values (one per row), and the next LSTM state."""
        features, state = self.features(obs, state, starts)
        return self.actor(features), self.critic(features).squeeze(1), state

    def logits(self, obs: torch.Tensor, state: State, starts: torch.Tensor) -> tuple[torch.Tensor, State]:
        """Return logits and the next LSTM state, for acting without values."""
        features, state = self.features(obs, state, starts)
        return self.actor(features), state


def make_agent(algo: str, env_id: str, observations: gym.Space, actions: gym.Space) -> Agent:
    """Build the network for these spaces; raise BadInput when there is none."""
    return Agent(*atari_sizes(algo, env_id, observations, actions, needs="images"))


# ---------------------------------------------------------------- the loss


class Sequences(Batch):
    """What an update learns from, [time, environment]."""

    def of(self, environments: torch.Tensor) -> Sequences:
        """Return some of the environments as rows: all of them at the first step, then at the second, and so on."""
        return Sequences(*(column[:, environments].flatten(0, 1) for column in self))


def recurrent_losses(agent: Agent, batch: Sequences, state: State, starts: torch.Tensor, args: Args) -> Losses:
    """Return PPO's loss of whole sequences; `state` is the LSTM state at their beginning."""
    logits, values, _ = agent(batch.obs, state, starts)
    log_probs, entropies = categorical_log_probs(logits, batch.actions)
    advantages = normalized(batch.advantages) if args.norm_adv else batch.advantages
    log_ratio = log_probs - batch.log_probs
    policy = policy_loss(log_ratio, advantages, args.clip_coef)
    value = value_loss(values, batch.returns, batch.values, args.clip_coef if args.clip_vloss else None)
    entropy = entropies.mean()
    total = policy - args.ent_coef * entropy + args.vf_coef * value
    return Losses(total, policy, value, entropy, *policy_change(log_ratio, args.clip_coef))


# ---------------------------------------------------------------- rollout, update, loop


class RecurrentRollout(Rollout):
    """Buffers of one iteration, [time, environment], with the beginnings of episodes."""

    def __init__(self, num_steps: int, num_envs: int, observations: Space, distribution: Categorical) -> None:
        super().__init__(num_steps, num_envs, observations, distribution)
        self.starts = np.ones((num_steps + 1, num_envs), dtype=np.bool_)
        """Whether the observation is the first of an episode"""


class RecurrentPpoLearner(RecurrentLearner):
    """The state of a run and the two halves of an iteration: collect, then update."""

    def __init__(self, args: Args, envs: VectorEnvs, device: torch.device, *, total: int) -> None:
        super().__init__(args, envs, device)
        self.total = total
        self.agent = make_agent(args.exp_name, args.env_id, envs.observation_space, envs.action_space).to(device)
        self.parameters = FlatParameters(self.agent)
        self.adam = FlatAdam(self.parameters.block, eps=1e-5)
        self.distribution = Categorical(count_actions(args.exp_name, args.env_id, envs.action_space))
        self.losses = compiled(recurrent_losses, enabled=args.compile)
        self.play = RecurrentPlay(self.agent.logits, HIDDEN, device)
        self.rollout = RecurrentRollout(args.num_steps, args.num_envs, envs.observation_space, self.distribution)
        self.next_obs = np.zeros_like(self.rollout.obs[0])
        self.next_starts = np.ones(args.num_envs, dtype=np.bool_)
        self.lstm_state = initial_state(args.num_envs, device)

    def act(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        """Return the best actions, or actions sampled with `rng`."""
        outputs = self.play(obs.astype(self.next_obs.dtype, copy=False))
        if rng is None:
            return self.distribution.best(outputs)
        return self.distribution.choose(outputs, self.distribution.noise(rng, outputs.shape[:1]))

    def learn(self, run: RunContext) -> None:
        """Collect a rollout, then update the network with it."""
        learning_rate = self.learning_rate()
        before = self.lstm_state
        charts = self.update(self.collect(run), before, learning_rate)
        charts |= {"charts/learning_rate": learning_rate, "charts/SPS": run.steps_per_second(self.step)}
        run.writer.add_scalars(charts, self.step)

    @torch.inference_mode()
    def _forward(self, obs: np.ndarray, state: State, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray, State]:
        """Return logits and values of one step, and the next LSTM state."""
        seen = torch.from_numpy(obs).to(self.device)
        logits, values, state = self.agent(seen, state, torch.from_numpy(starts[None]))
        return logits.cpu().numpy(), values.cpu().numpy(), state

    def collect(self, run: RunContext) -> Sequences:
        """Play num_steps in every environment."""
        args, rollout = self.args, self.rollout
        noise = self.distribution.noise(self.rng, rollout.rewards.shape)
        truncations: list[tuple[int, np.ndarray, np.ndarray]] = []
        rollout.obs[0], rollout.starts[0] = self.next_obs, self.next_starts
        for t in range(args.num_steps):
            logits, rollout.values[t], self.lstm_state = self._forward(
                rollout.obs[t], self.lstm_state, rollout.starts[t]
            )
            actions = self.distribution.choose(logits, noise[t])
            step = self.envs.step(actions)
            self.step += args.num_envs
            rollout.outputs[t], rollout.actions[t], rollout.rewards[t] = logits, actions, step.rewards
            rollout.terminated[t], rollout.ended[t] = step.terminated, step.ended
            rollout.obs[t + 1], rollout.starts[t + 1] = step.obs, step.ended
            self.chart_episodes(step, run)
            cut = np.flatnonzero(step.truncated & ~step.terminated)
            if len(cut):  # bootstrap from the last observation, with the LSTM state of the episode
                hidden, cell = (part[:, cut] for part in self.lstm_state)
                last_obs = step.final_obs[cut].astype(rollout.obs.dtype)
                no_starts = np.zeros(len(cut), dtype=np.bool_)
                truncations.append((t, cut, self._forward(last_obs, (hidden, cell), no_starts)[1]))
        rollout.values[-1] = self._forward(rollout.obs[-1], self.lstm_state, rollout.starts[-1])[1]
        self.next_obs, self.next_starts = rollout.obs[-1].copy(), rollout.starts[-1].copy()
        values, next_values = rollout.values[:-1], rollout.values[1:].copy()
        for t, cut, last_values in truncations:
            next_values[t, cut] = last_values
        advantages = generalized_advantages(
            rollout.rewards, values, next_values, rollout.terminated, rollout.ended, args.gamma, args.gae_lambda
        )
        log_probs = self.distribution.log_probs(rollout.outputs, rollout.actions)
        columns = (rollout.obs[:-1], rollout.actions, log_probs, advantages, advantages + values, values)
        return Sequences(*(torch.from_numpy(column).to(self.device) for column in columns))

    def update(self, batch: Sequences, before: State, learning_rate: float) -> dict[str, float]:
        """Run epochs of updates, each minibatch some of the environments; return the charts."""
        args = self.args
        starts = torch.from_numpy(self.rollout.starts[:-1].copy())
        clip_fractions = []
        for _ in range(args.update_epochs):
            order = torch.from_numpy(self.rng.permutation(args.num_envs))
            for chosen in order.reshape(args.num_minibatches, -1):
                on_device = chosen.to(self.device)
                state = (before[0][:, on_device].clone(), before[1][:, on_device].clone())
                losses = self.losses(self.agent, batch.of(on_device), state, starts[:, chosen], args)
                self.parameters.backward(losses.total)
                self.parameters.clip_gradients(args.max_grad_norm)
                self.adam.step(learning_rate)
                clip_fractions.append(losses.clip_fraction)
            if args.target_kl is not None and losses.approx_kl.item() > args.target_kl:
                break
        self.parameters.refresh_host()
        self.stop_unless_finite(losses.total.item(), self.rollout.rewards)
        returns, values = batch.returns.cpu().numpy(), batch.values.cpu().numpy()
        return {**loss_charts(losses, clip_fractions), "losses/explained_variance": explained_variance(values, returns)}

    # -- checkpoints

    @property
    def optimizers(self) -> Mapping[str, Any]:
        """Return the optimizers by their names in checkpoints."""
        return {"adam": self.adam}


# ---------------------------------------------------------------- policy and run


NAME = Args.exp_name


def make_policy(
    env_id: str, observations: Space, actions: Space, weights: Weights, *, algo: str = NAME, normalizer: Any = None
) -> RecurrentPolicy:
    """Return the policy with these weights; raise BadInput when they do not fit the environment."""
    agent = make_agent(algo, env_id, observations, actions)
    load_weights(agent, weights, what="the policy")
    play = RecurrentPlay(agent.logits, HIDDEN, torch.device("cpu"))
    distribution = Categorical(count_actions(algo, env_id, actions))
    return RecurrentPolicy(DistributionPolicy(play, distribution, network_dtype(observations), normalizer), play)


def train(args: Args, run: RunContext) -> TrainResult:
    """Train until the steps are used up, the return is reached or a stop is requested; then evaluate."""
    check_args(args)
    total = whole_iterations(args)
    learner = RecurrentPpoLearner(args, run.make_envs(args), device_for(args), total=total)
    return run_training_loop(learner, run, total=total)


if __name__ == "__main__":
    from cleanrl_worker.training.standalone import run_alone

    run_alone(NAME, Args, train)
