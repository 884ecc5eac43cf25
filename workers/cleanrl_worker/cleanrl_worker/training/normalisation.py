"""Running normalisers: observations to mean 0 and variance 1, rewards by the spread of the discounted return.

`NormalisedEnvs` puts both around environments. With one environment it gives what gymnasium's ClipAction,
NormalizeObservation and NormalizeReward give, each followed by a clip to ±10; with several, all share the statistics.
An evaluation must not move them: it reads the part `obs_norm` of a checkpoint (`ObservationNormaliser`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import gymnasium as gym
import numpy as np

from cleanrl_worker.training.acting import ObservationNormaliser
from cleanrl_worker.training.envs import EnvState, Step, VectorEnvs

EPSILON = 1e-8
CLIP = 10.0
_FIRST_COUNT = 1e-4
"""What the prior of mean 0 and variance 1 weighs"""


class RunningMoments:
    """Mean and variance of everything seen so far, over batches (Chan et al. 1983)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.mean = np.zeros(shape)
        self.var = np.ones(shape)
        self.count = _FIRST_COUNT

    def add(self, batch: np.ndarray) -> None:
        """Take one more batch in, [rows, …] in double precision."""
        rows = len(batch)
        total = self.count + rows
        # In place, and with as few calls as possible: this is done in every step.
        if rows == 1:
            delta = batch[0] - self.mean
        else:
            delta = batch.mean(axis=0) - self.mean
            self.var += batch.var(axis=0) * (rows / self.count)
        self.mean += delta * (rows / total)
        delta *= delta
        delta *= rows / total
        self.var += delta
        self.var *= self.count / total
        self.count = total

    def arrays(self) -> dict[str, np.ndarray]:
        return {"mean": self.mean.copy(), "var": self.var.copy(), "count": np.array(self.count)}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.mean, self.var = arrays["mean"].astype(np.float64), arrays["var"].astype(np.float64)
        self.count = float(arrays["count"])


class RunningScale:
    """The same for single numbers, in plain ones: of one or a few, that is several times as quick."""

    def __init__(self) -> None:
        self.mean, self.var, self.count = 0.0, 1.0, _FIRST_COUNT

    def add(self, values: Sequence[float]) -> None:
        """Take one more batch in."""
        rows = len(values)
        total = self.count + rows
        middle = sum(values) / rows
        spread = sum((value - middle) ** 2 for value in values) if rows > 1 else 0.0
        delta = middle - self.mean
        self.mean += delta * rows / total
        self.var = (self.var * self.count + spread + delta * delta * self.count * rows / total) / total
        self.count = total

    def arrays(self) -> dict[str, np.ndarray]:
        return {"mean": np.array(self.mean), "var": np.array(self.var), "count": np.array(self.count)}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.mean, self.var, self.count = (float(arrays[name]) for name in ("mean", "var", "count"))


class NormalisedEnvs:
    """Environments whose observations and rewards are normalised, and whose actions are clipped to their bounds.

    `raw_rewards` of a step are what the environments paid. `norm_arrays()` are the arrays of a checkpoint's parts
    `obs_norm` and `return_norm`; `take_norm` takes them back.
    """

    def __init__(
        self,
        envs: VectorEnvs,
        gamma: float,
        *,
        observations: bool = True,
        rewards: bool = True,
        clip_actions: bool = True,
        zero_after_end: bool = False,
    ) -> None:
        """`zero_after_end`: the discounted return of an episode counts whole and then becomes 0, as CleanRL's Procgen
        scripts have it (gym 0.23). Otherwise as in gymnasium: a termination drops what came before its own reward, and
        that reward and truncated episodes count on into the next episode.
        """
        self.inner = envs
        self.num_envs = envs.num_envs
        self.action_space = envs.action_space
        shape = envs.observation_space.shape or ()
        self.observation_space: gym.Space = envs.observation_space
        if observations:
            self.observation_space = gym.spaces.Box(-CLIP, CLIP, shape, dtype=np.float32)
        self.obs_moments = RunningMoments(shape) if observations else None
        self.return_moments = RunningScale() if rewards else None
        self._gamma, self._zero_after_end = gamma, zero_after_end
        self._returns = [0.0] * self.num_envs
        space = envs.action_space
        self._bounds = (space.low, space.high) if clip_actions and isinstance(space, gym.spaces.Box) else None

    def reset(self, seed: int) -> np.ndarray:
        self._returns = [0.0] * self.num_envs
        return self._seen(self.inner.reset(seed))

    def step(self, actions: np.ndarray) -> Step:
        if self._bounds is not None:
            low, high = self._bounds
            actions = np.minimum(np.maximum(actions, low), high)
        step = self.inner.step(actions)
        rewards = self._scaled(step)
        final_obs = obs = self._seen(step.final_obs)
        if self.obs_moments is not None and np.count_nonzero(step.ended):
            # After the last observations of the old episodes, the first ones of the new.
            obs = final_obs.copy()
            obs[step.ended] = self._seen(step.obs[step.ended])
        elif self.obs_moments is None:
            obs = step.obs
        raw = step.rewards if step.raw_rewards is None else step.raw_rewards
        return Step(obs, rewards, step.terminated, step.truncated, final_obs, step.ended, raw, step.over)

    def _seen(self, obs: np.ndarray) -> np.ndarray:
        moments = self.obs_moments
        if moments is None:
            return obs
        normalised = obs.astype(np.float64)  # arithmetic between two precisions costs three times as much
        moments.add(normalised)
        normalised -= moments.mean
        normalised /= np.sqrt(moments.var + EPSILON)
        np.minimum(normalised, CLIP, out=normalised)
        return np.maximum(normalised, -CLIP, out=normalised).astype(np.float32)

    def _scaled(self, step: Step) -> np.ndarray:
        moments = self.return_moments
        if moments is None:
            return step.rewards
        rewards, terminated = step.rewards.tolist(), step.terminated.tolist()
        self._returns = [
            (0.0 if over and not self._zero_after_end else earlier * self._gamma) + reward
            for earlier, reward, over in zip(self._returns, rewards, terminated, strict=True)
        ]
        moments.add(self._returns)
        if self._zero_after_end:
            self._returns = [0.0 if over else kept for kept, over in zip(self._returns, step.ended, strict=True)]
        scale = math.sqrt(moments.var + EPSILON)
        return np.array([max(min(reward / scale, CLIP), -CLIP) for reward in rewards], np.float32)

    # -- snapshots

    def normaliser(self) -> ObservationNormaliser | None:
        """As the statistics stand now, for an evaluation."""
        if self.obs_moments is None:
            return None
        return ObservationNormaliser(self.obs_moments.mean.copy(), self.obs_moments.var.copy())

    def norm_arrays(self) -> dict[str, np.ndarray]:
        """For a checkpoint: `obs_norm.mean`, `.var` and `.count`, and the same of `return_norm` with its `.returns`."""
        arrays: dict[str, np.ndarray] = {}
        if self.obs_moments is not None:
            arrays |= {f"obs_norm.{name}": array for name, array in self.obs_moments.arrays().items()}
        if self.return_moments is not None:
            arrays |= {f"return_norm.{name}": array for name, array in self.return_moments.arrays().items()}
            arrays["return_norm.returns"] = np.array(self._returns)
        return arrays

    def statistics(self) -> dict[str, np.ndarray]:
        """For a file with weights: the same without the returns of episodes under way."""
        return {name: array for name, array in self.norm_arrays().items() if name != "return_norm.returns"}

    def take_norm(self, observations: Mapping[str, np.ndarray], returns: Mapping[str, np.ndarray]) -> None:
        """The parts `obs_norm` and `return_norm` of a checkpoint or of a file with weights."""
        if self.obs_moments is not None and observations:
            self.obs_moments.restore(observations)
        if self.return_moments is not None and returns:
            self.return_moments.restore(returns)
            self._returns = returns["returns"].tolist() if "returns" in returns else self._returns

    def snapshot(self) -> EnvState:
        """That of the environments; the statistics go beside it (`norm_arrays`)."""
        return self.inner.snapshot()

    def restore(self, state: EnvState) -> np.ndarray | None:
        """Restore the environments; the observations returned are theirs, normalised without counting them again."""
        obs = self.inner.restore(state)
        normaliser = self.normaliser()
        return obs if obs is None or normaliser is None else normaliser(obs)

    def close(self) -> None:
        self.inner.close()
