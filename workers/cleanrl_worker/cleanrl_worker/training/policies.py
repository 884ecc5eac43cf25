"""Acting: action distributions and policies, whose networks run in numpy where they are small, else in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from cleanrl_worker.agents import SharedTrunkAgent
from cleanrl_worker.agents.continuous import LOG_STD_MIDDLE, LOG_STD_REACH
from cleanrl_worker.agents.layers import HALF_LOG_TWO_PI
from cleanrl_worker.errors import BadInput
from cleanrl_worker.training.envs import ObservationNormalizer, is_image
from cleanrl_worker.training.fast_cpu import agreeing, synthetic_generator
from cleanrl_worker.training.fast_cpu.networks import NumpyMlp
from cleanrl_worker.training.optimizers import FlatParameters


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return log-probabilities along the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


class Distribution(Protocol):
    """A distribution of actions, sampled with noise drawn for many steps at once."""

    outputs: int
    action_dtype: np.dtype

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Return the shape of one action."""

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Return noise for `choose`: [*shape, outputs]."""

    def choose(self, outputs: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Return sampled actions."""

    def best(self, outputs: np.ndarray) -> np.ndarray:
        """Return the most likely actions."""

    def log_probs(self, outputs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return the log-probability (density) of each action."""


class Categorical:
    """Discrete actions; the outputs are logits."""

    action_shape = ()
    action_dtype = np.dtype(np.int64)

    def __init__(self, actions: int) -> None:
        self.outputs = actions

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Return Gumbel noise: the argmax of logits plus noise is a sample (Gumbel-max trick)."""
        return rng.gumbel(size=(*shape, self.outputs)).astype(np.float32)

    def choose(self, outputs: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Return sampled actions."""
        return (outputs + noise).argmax(axis=-1)

    def best(self, outputs: np.ndarray) -> np.ndarray:
        """Return the most likely actions."""
        return outputs.argmax(axis=-1)

    def log_probs(self, outputs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return the log-probability of each action."""
        return np.take_along_axis(log_softmax(outputs), actions[..., None], axis=-1)[..., 0]


class DiagonalGaussian:
    """Continuous actions with independent normal distributions; the outputs are the means."""

    action_dtype = np.dtype(np.float32)

    def __init__(self, log_std: np.ndarray) -> None:
        """`log_std` is a view of the parameters: it changes as they are trained."""
        self._log_std = log_std.reshape(-1)
        self.outputs = len(self._log_std)
        self.action_shape = (self.outputs,)

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Return normal noise with the policy's standard deviations."""
        return rng.standard_normal((*shape, self.outputs), dtype=np.float32) * np.exp(self._log_std)

    def choose(self, outputs: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Return sampled actions."""
        return outputs + noise

    def best(self, outputs: np.ndarray) -> np.ndarray:
        """Return the means, which are the most likely actions."""
        return outputs

    def log_probs(self, outputs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return the log-density of each action."""
        distances = (actions - outputs) * np.exp(-self._log_std)
        return (-0.5 * distances * distances - self._log_std - HALF_LOG_TWO_PI).sum(axis=-1)


class PolicyNetwork(Protocol):
    """A policy's network."""

    @property
    def policy(self) -> Callable[[np.ndarray], np.ndarray]:
        """Return the function from observations to outputs: logits of the actions, or their means."""


class Acting(PolicyNetwork, Protocol):
    """An actor-critic for whole batches of observations."""

    shared: bool
    """One forward pass gives policy and values; otherwise values are cheaper for a whole rollout at once"""

    def values(self, obs: np.ndarray) -> np.ndarray:
        """Return one value per row."""

    def both(self, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the policy's outputs and the values."""


class NumpyActing:
    """Separate multilayer perceptrons in numpy, which share memory with the torch parameters."""

    shared = False

    def __init__(self, parameters: FlatParameters, agent: Any) -> None:
        name = "actor" if hasattr(agent, "actor") else "actor_mean"
        self.policy = NumpyMlp(parameters, name, getattr(agent, name))
        self.critic = NumpyMlp(parameters, "critic", agent.critic)

    def values(self, obs: np.ndarray) -> np.ndarray:
        """Return one value per row."""
        return self.critic(obs)[:, 0]

    def both(self, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the policy's outputs and the values."""
        return self.policy(obs), self.values(obs)


def numpy_acting(agent: nn.Module, parameters: FlatParameters) -> NumpyActing | None:
    """Return the agent's perceptrons in numpy; None if its forward pass computes something else."""
    if isinstance(agent, SharedTrunkAgent):
        return None
    return agreeing(agent, parameters, lambda: NumpyActing(parameters, agent), NumpyActing.both, agent)


class TorchActing:
    """Any network whose forward pass returns the policy's outputs and values."""

    shared = True

    def __init__(self, agent: nn.Module, device: torch.device) -> None:
        self._agent, self._device = agent, device

    def policy(self, obs: np.ndarray) -> np.ndarray:
        """Return the policy's outputs."""
        return self.both(obs)[0]

    def values(self, obs: np.ndarray) -> np.ndarray:
        """Return one value per row."""
        return self.both(obs)[1]

    @torch.inference_mode()
    def both(self, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the policy's outputs and the values."""
        outputs, values = self._agent(torch.from_numpy(obs).to(self._device))
        return outputs.cpu().numpy(), values.squeeze(1).cpu().numpy()


class Policy(Protocol):
    """A trained policy, for evaluation and interactive play."""

    def act(self, obs: np.ndarray, rngs: Sequence[np.random.Generator] | None) -> np.ndarray:
        """Return one action per row: the best one, or sampled with the row's own generator."""


@runtime_checkable
class HasActionScores(Protocol):
    """A policy that can report probabilities or values of the actions, for viewers."""

    def action_scores(self, obs: np.ndarray) -> dict[str, np.ndarray]:
        """Return `action_probabilities` or `action_values`, one per action, and `value`, where known."""


def action_scores(policy: Policy, obs: np.ndarray) -> dict[str, np.ndarray]:
    """Return the policy's scores for the first of these observations; empty if it has none."""
    return policy.action_scores(obs) if isinstance(policy, HasActionScores) else {}


class DistributionPolicy:
    """A network and its action distribution, with the observation normalizer it was trained with."""

    def __init__(
        self,
        acting: PolicyNetwork,
        distribution: Distribution,
        dtype: np.dtype,
        normalizer: ObservationNormalizer | None = None,
    ) -> None:
        self._acting, self._distribution, self._dtype, self._normalizer = acting, distribution, dtype, normalizer

    def act(self, obs: np.ndarray, rngs: Sequence[np.random.Generator] | None) -> np.ndarray:
        """Return one action per row: the best one, or sampled with the row's own generator."""
        seen = self._normalizer(obs) if self._normalizer is not None else obs
        outputs = self._acting.policy(seen.astype(self._dtype, copy=False))
        if rngs is None:
            return self._distribution.best(outputs)
        return self._distribution.choose(outputs, np.stack([self._distribution.noise(rng, ()) for rng in rngs]))

    def action_scores(self, obs: np.ndarray) -> dict[str, np.ndarray]:
        """Return the first row's action probabilities and value, where known."""
        seen = (self._normalizer(obs) if self._normalizer is not None else obs).astype(self._dtype, copy=False)
        scores = {}
        if isinstance(self._distribution, Categorical):
            scores["action_probabilities"] = np.exp(log_softmax(self._acting.policy(seen)))[0]
        if hasattr(self._acting, "values"):
            scores["value"] = self._acting.values(seen)[0]
        return scores


def network_dtype(space: gym.Space) -> np.dtype:
    """Return the dtype of a network's inputs: images stay uint8 until the network divides them by 255."""
    return np.dtype(np.uint8 if space.dtype == np.uint8 and len(space.shape or ()) == 3 else np.float32)


ActionValues = Callable[[np.ndarray], np.ndarray]
"""Observations [row, …] → values [row, action]"""

EVALUATION_EPSILON = 0.05
"""Share of random actions of a sampled policy whose training flags are unknown"""


class EpsilonGreedy:
    """Epsilon-greedy actions of a block of steps; random numbers are drawn at once, as a generator is slow per call."""

    def __init__(self, rng: np.random.Generator, epsilons: np.ndarray, num_envs: int, actions: int) -> None:
        shape = (len(epsilons), num_envs)
        at_random = np.less(rng.random(shape), epsilons[:, None])
        self._random_actions = rng.integers(actions, size=shape)
        self._at_random = at_random
        self._all_at_random: list[bool] = at_random.all(axis=1).tolist()
        self._none_at_random: list[bool] = (~at_random.any(axis=1)).tolist()

    def actions(self, index: int, obs: np.ndarray, values: ActionValues) -> np.ndarray:
        """Return the actions of one step; the network is evaluated only if some action is greedy."""
        if self._all_at_random[index]:
            return self._random_actions[index]
        best = values(obs).argmax(axis=1)
        if self._none_at_random[index]:
            return best
        return np.where(self._at_random[index], self._random_actions[index], best)


class TorchValues:
    """Q-values of any network on any device, computed by `forward`."""

    def __init__(self, forward: Callable[[torch.Tensor], torch.Tensor], device: torch.device) -> None:
        self._forward, self._device = forward, device

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return self._forward(torch.from_numpy(np.ascontiguousarray(obs)).to(self._device)).cpu().numpy()


class GreedyPolicy:
    """A trained Q-network: the greedy action, or epsilon-greedy when sampled."""

    def __init__(
        self,
        values: ActionValues,
        dtype: np.dtype,
        normalizer: ObservationNormalizer | None = None,
        *,
        epsilon: float = EVALUATION_EPSILON,
    ) -> None:
        self._values, self._dtype, self._normalizer, self._epsilon = values, dtype, normalizer, epsilon

    def act(self, obs: np.ndarray, rngs: Sequence[np.random.Generator] | None) -> np.ndarray:
        """Return one action per row: the best one, or sampled with the row's own generator."""
        seen = self._normalizer(obs) if self._normalizer is not None else obs
        values = self._values(seen.astype(self._dtype, copy=False))
        actions = values.argmax(axis=1)
        for row, rng in enumerate(rngs or ()):
            if rng.random() < self._epsilon:
                actions[row] = rng.integers(values.shape[1])
        return actions

    def action_scores(self, obs: np.ndarray) -> dict[str, np.ndarray]:
        """Return the first row's Q-values."""
        seen = self._normalizer(obs) if self._normalizer is not None else obs
        return {"action_values": self._values(seen.astype(self._dtype, copy=False))[0]}


def count_actions(algo: str, env_id: str, actions: gym.Space) -> int:
    """Return the number of discrete actions; raise BadInput for other action spaces."""
    if not isinstance(actions, gym.spaces.Discrete):
        raise BadInput(f"{algo} needs discrete actions; {env_id} has {type(actions).__name__} actions")
    return int(actions.n)


def network_sizes(algo: str, env_id: str, observations: gym.Space, actions: gym.Space) -> tuple[bool, int, int]:
    """Return whether observations are stacked frames, the number of frames or features, and of actions."""
    count, shape = count_actions(algo, env_id, actions), observations.shape or ()
    is_stack = is_image(observations) and shape[1:] == (84, 84)
    if not is_stack and len(shape) != 1:
        raise BadInput(
            f"{algo} needs vectors or stacked frames of 84 x 84 as observations; those of {env_id} have shape {shape}"
        )
    return is_stack, shape[0], count


def atari_sizes(
    algo: str, env_id: str, observations: gym.Space, actions: gym.Space, *, needs: str = "stacked frames"
) -> tuple[int, int]:
    """Return the numbers of frames and of actions; raise BadInput where observations are not frames of 84 x 84."""
    count, shape = count_actions(algo, env_id, actions), observations.shape or ()
    if not is_image(observations) or shape[1:] != (84, 84):
        raise BadInput(f"{algo} needs {needs} of 84 x 84 as observations; those of {env_id} have shape {shape}")
    return shape[0], count


class NumpyActor:
    """Two hidden ReLU layers and their heads in numpy, on the torch parameters' memory (or its copy on the host)."""

    def __init__(self, parameters: FlatParameters, first: str, second: str, *heads: str) -> None:
        self._hidden = [_layer(parameters, name) for name in (first, second)]
        self._heads = [_layer(parameters, name) for name in heads]

    def __call__(self, obs: np.ndarray) -> list[np.ndarray]:
        hidden = obs
        for weight, bias in self._hidden:
            hidden = hidden @ weight
            hidden += bias
            np.maximum(hidden, 0, out=hidden)
        return [hidden @ weight + bias for weight, bias in self._heads]


def _layer(parameters: FlatParameters, name: str) -> tuple[np.ndarray, np.ndarray]:
    return parameters.array(f"{name}.weight").T, parameters.array(f"{name}.bias")


class ContinuousActing(Protocol):
    """Actions for a batch of observations, in float32."""

    in_numpy: bool
    """Whether numpy gives the same actions as the file's actor"""

    def best(self, obs: np.ndarray) -> np.ndarray:
        """Return the most likely actions."""

    def sample(self, obs: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Return actions sampled with standard normal `noise` of their shape."""


class NumpyBoundedActor:
    """`agents.continuous.Actor` in numpy."""

    def __init__(self, actor: Any, parameters: FlatParameters) -> None:
        self._outputs = NumpyActor(parameters, "fc1", "fc2", "fc_mu")
        self._scale, self._bias = (part.cpu().numpy().reshape(-1) for part in (actor.action_scale, actor.action_bias))

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        (outputs,) = self._outputs(obs)
        return np.tanh(outputs, out=outputs) * self._scale + self._bias


class NoisyActing:
    """A deterministic actor, in numpy unless its forward pass computes something else; samples have normal noise."""

    def __init__(
        self, actor: nn.Module, parameters: FlatParameters, low: np.ndarray, high: np.ndarray, noise: float
    ) -> None:
        call, device = NumpyBoundedActor.__call__, parameters.block.device
        fast = agreeing(actor, parameters, lambda: NumpyBoundedActor(actor, parameters), call, actor)
        self.best: Callable[[np.ndarray], np.ndarray] = fast or TorchValues(actor, device)
        self.in_numpy = fast is not None
        self._low, self._high, self._noise = low, high, np.float32(noise) * ((high - low) / 2)

    def sample(self, obs: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Return the actor's actions with scaled `noise`, clipped to the bounds."""
        return np.minimum(np.maximum(self.best(obs) + noise * self._noise, self._low), self._high)


Sample = Callable[[Any, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""(actor, observations, standard normal noise) → actions and their log-probabilities"""


class NumpySquashedActor:
    """`sac.sample` of an `agents.continuous.GaussianActor` in numpy."""

    def __init__(self, actor: Any, parameters: FlatParameters) -> None:
        self._outputs = NumpyActor(parameters, "fc1", "fc2", "fc_mean", "fc_logstd")
        self._scale, self._bias = actor.action_scale.cpu().numpy(), actor.action_bias.cpu().numpy()

    def __call__(self, obs: np.ndarray, noise: np.ndarray) -> np.ndarray:
        mean, within = self._outputs(obs)
        log_std = LOG_STD_MIDDLE + LOG_STD_REACH * np.tanh(within)
        return np.tanh(mean + np.exp(log_std) * noise) * self._scale + self._bias


class SampledActing:
    """An actor whose actions are those of `sample`, in numpy unless that computes something else."""

    def __init__(self, actor: nn.Module, parameters: FlatParameters, sample: Sample, actions: int) -> None:
        self._actions, device = actions, parameters.block.device

        def noise(rows: int) -> np.ndarray:
            return synthetic_generator().standard_normal((rows, actions), dtype=np.float32)

        def in_numpy(fast: NumpySquashedActor, obs: np.ndarray) -> np.ndarray:
            return fast(obs, noise(len(obs)))

        def in_torch(obs: torch.Tensor) -> torch.Tensor:
            return sample(actor, obs, torch.from_numpy(noise(len(obs))).to(device))[0]

        def act(obs: np.ndarray, noise: np.ndarray) -> np.ndarray:
            with torch.no_grad():
                return sample(actor, *(torch.from_numpy(array).to(device) for array in (obs, noise)))[0].cpu().numpy()

        fast = agreeing(actor, parameters, lambda: NumpySquashedActor(actor, parameters), in_numpy, in_torch)
        self.sample: Callable[[np.ndarray, np.ndarray], np.ndarray] = fast or act
        self.in_numpy = fast is not None

    def best(self, obs: np.ndarray) -> np.ndarray:
        """Return the actions without noise."""
        return self.sample(obs, np.zeros((len(obs), self._actions), dtype=np.float32))


class ContinuousPolicy:
    """A trained actor for continuous actions, with the observation normalizer it was trained with, if any."""

    def __init__(self, acting: ContinuousActing, actions: int, normalizer: ObservationNormalizer | None = None) -> None:
        self._acting, self._actions, self._normalizer = acting, actions, normalizer

    def act(self, obs: np.ndarray, rngs: Sequence[np.random.Generator] | None) -> np.ndarray:
        """Return one action per row: the best one, or sampled with the row's own generator."""
        seen = (self._normalizer(obs) if self._normalizer is not None else obs).astype(np.float32, copy=False)
        if rngs is None:
            return self._acting.best(seen)
        noise = np.stack([rng.standard_normal(self._actions, dtype=np.float32) for rng in rngs])
        return self._acting.sample(seen, noise)


@runtime_checkable
class HasEpisodeState(Protocol):
    """A policy or learner with a state per episode, such as that of an LSTM."""

    def set_episodes(self, episodes: Sequence[int]) -> None:
        """Set the episodes that the rows of the next `act` belong to; an episode not among the last set is new."""


def set_episodes(policy: object, episodes: Sequence[int]) -> None:
    """Set the episodes of the next rows if the policy has a state per episode; an empty list resets it."""
    if isinstance(policy, HasEpisodeState):
        policy.set_episodes(episodes)


Recurrent = Callable[
    [torch.Tensor, tuple[torch.Tensor, torch.Tensor], torch.Tensor],
    tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]],
]
"""(observations, state, where episodes start) → (outputs, state afterwards)"""


class RecurrentPlay:
    """Runs a recurrent network one step at a time, with one state per episode."""

    def __init__(self, forward: Recurrent, hidden: int, device: torch.device) -> None:
        self._forward, self._device, self._hidden = forward, device, hidden
        self._episodes: list[int] = []
        self._state = np.zeros((2, 1, 0, hidden), dtype=np.float32)

    def set_episodes(self, episodes: Sequence[int]) -> None:
        """Set the episodes of the next rows; states of known episodes are kept."""
        state = np.zeros((2, 1, len(episodes), self._hidden), dtype=np.float32)
        known = {episode: row for row, episode in enumerate(self._episodes)}
        for row, episode in enumerate(episodes):
            if episode in known:
                state[:, :, row] = self._state[:, :, known[episode]]
        self._episodes, self._state = list(episodes), state

    @torch.inference_mode()
    def __call__(self, obs: np.ndarray) -> np.ndarray:
        if len(obs) != len(self._episodes):  # not set: all rows are new episodes
            self.set_episodes([])
            self.set_episodes(range(len(obs)))
        hidden, cell = (torch.from_numpy(array).to(self._device) for array in self._state)
        seen = torch.from_numpy(np.ascontiguousarray(obs)).to(self._device)
        outputs, state = self._forward(seen, (hidden, cell), torch.zeros(1, len(obs), dtype=torch.bool))
        self._state = np.stack([part.cpu().numpy() for part in state])
        return outputs.cpu().numpy()

    def policy(self, obs: np.ndarray) -> np.ndarray:
        """Return the outputs; `DistributionPolicy` calls it by this name."""
        return self(obs)


class RecurrentPolicy:
    """A policy whose network is a `RecurrentPlay`."""

    def __init__(self, policy: Policy, play: RecurrentPlay) -> None:
        self.act, self.set_episodes = policy.act, play.set_episodes
