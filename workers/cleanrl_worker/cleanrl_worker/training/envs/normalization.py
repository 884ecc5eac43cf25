"""Running normalizers: observations to mean 0 and variance 1, rewards by the standard deviation of discounted returns.

`NormalizedEnvs` applies both. With one environment it is equivalent to gymnasium's ClipAction, NormalizeObservation and
NormalizeReward, each followed by a clip to ±10; several environments share the statistics. An evaluation must not
update them: it reads the part `obs_norm` of a checkpoint (`ObservationNormalizer`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import gymnasium as gym
import numpy as np

from cleanrl_worker.errors import BadInput
from cleanrl_worker.training.envs.vector import EnvState, Step, VectorEnvs

EPSILON = 1e-8
CLIP = 10.0
_FIRST_COUNT = 1e-4
"""Weight of the prior with mean 0 and variance 1"""


class RunningMoments:
    """Running mean and variance over batches (Chan et al. 1983)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.mean = np.zeros(shape)
        self.var = np.ones(shape)
        self.count = _FIRST_COUNT

    def add(self, batch: np.ndarray) -> None:
        """Update with one batch, [rows, …] in double precision."""
        rows = len(batch)
        total = self.count + rows
        # In place, with few calls: this runs in every step.
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
        """Return copies of what a checkpoint needs."""
        return {"mean": self.mean.copy(), "var": self.var.copy(), "count": np.array(self.count)}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Load what `arrays` returned."""
        self.mean, self.var = arrays["mean"].astype(np.float64), arrays["var"].astype(np.float64)
        self.count = float(arrays["count"])


class RunningScale:
    """Running mean and variance of scalars in Python floats: several times faster for a few values."""

    def __init__(self) -> None:
        self.mean, self.var, self.count = 0.0, 1.0, _FIRST_COUNT

    def add(self, values: Sequence[float]) -> None:
        """Update with one batch."""
        rows = len(values)
        total = self.count + rows
        middle = sum(values) / rows
        spread = sum((value - middle) ** 2 for value in values) if rows > 1 else 0.0
        delta = middle - self.mean
        self.mean += delta * rows / total
        self.var = (self.var * self.count + spread + delta * delta * self.count * rows / total) / total
        self.count = total

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what a checkpoint needs."""
        return {"mean": np.array(self.mean), "var": np.array(self.var), "count": np.array(self.count)}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Load what `arrays` returned."""
        self.mean, self.var, self.count = (float(arrays[name]) for name in ("mean", "var", "count"))


class ObservationNormalizer:
    """The fixed mean and variance of a checkpoint, for evaluation."""

    def __init__(self, mean: np.ndarray, variance: np.ndarray) -> None:
        self._mean, self._scale = mean, np.sqrt(variance + EPSILON)

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray]) -> ObservationNormalizer | None:
        """Return the normalizer of a checkpoint's part `obs_norm` (arrays `mean` and `var`); None if it is empty."""
        if not arrays:
            return None
        if not all(np.isfinite(arrays[name]).all() for name in ("mean", "var")):
            raise BadInput("the statistics of the policy's observations hold NaN or infinite numbers; it is damaged")
        return cls(arrays["mean"], arrays["var"])

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        return np.clip((obs - self._mean) / self._scale, -CLIP, CLIP).astype(np.float32)


class NormalizedEnvs:
    """Environments whose observations and rewards are normalized, and whose actions are clipped to their bounds.

    `raw_rewards` of a step are the environments' rewards. `norm_arrays()` returns the arrays of a checkpoint's parts
    `obs_norm` and `return_norm`; `load_norm` loads them.
    """

    def __init__(
        self, envs: VectorEnvs, gamma: float, *, observations: bool = True, zero_after_end: bool = False
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
        self.return_moments = RunningScale()
        self._gamma, self._zero_after_end = gamma, zero_after_end
        self._returns = [0.0] * self.num_envs
        space = envs.action_space
        self._bounds = (space.low, space.high) if isinstance(space, gym.spaces.Box) else None

    def reset(self, seed: int) -> np.ndarray:
        """Begin new episodes and return their normalized observations."""
        self._returns = [0.0] * self.num_envs
        return self._seen(self.inner.reset(seed))

    def step(self, actions: np.ndarray) -> Step:
        """Step with clipped actions; return normalized observations and rewards."""
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
        normalized = obs.astype(np.float64)  # arithmetic between two precisions costs three times as much
        moments.add(normalized)
        normalized -= moments.mean
        normalized /= np.sqrt(moments.var + EPSILON)
        np.minimum(normalized, CLIP, out=normalized)
        return np.maximum(normalized, -CLIP, out=normalized).astype(np.float32)

    def _scaled(self, step: Step) -> np.ndarray:
        moments = self.return_moments
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

    def normalizer(self) -> ObservationNormalizer | None:
        """As the statistics stand now, for an evaluation."""
        if self.obs_moments is None:
            return None
        return ObservationNormalizer(self.obs_moments.mean.copy(), self.obs_moments.var.copy())

    def norm_arrays(self) -> dict[str, np.ndarray]:
        """For a checkpoint: `obs_norm.mean`, `.var` and `.count`, and the same of `return_norm` with its `.returns`."""
        arrays: dict[str, np.ndarray] = {}
        if self.obs_moments is not None:
            arrays |= {f"obs_norm.{name}": array for name, array in self.obs_moments.arrays().items()}
        arrays |= {f"return_norm.{name}": array for name, array in self.return_moments.arrays().items()}
        arrays["return_norm.returns"] = np.array(self._returns)
        return arrays

    def statistics(self) -> dict[str, np.ndarray]:
        """Return the same without the returns of running episodes, for a file with weights."""
        return {name: array for name, array in self.norm_arrays().items() if name != "return_norm.returns"}

    def load_norm(self, observations: Mapping[str, np.ndarray], returns: Mapping[str, np.ndarray]) -> None:
        """Load the parts `obs_norm` and `return_norm` of a checkpoint or of a file with weights."""
        if self.obs_moments is not None and observations:
            self.obs_moments.restore(observations)
        if returns:
            self.return_moments.restore(returns)
            self._returns = returns["returns"].tolist() if "returns" in returns else self._returns

    def snapshot(self) -> EnvState:
        """Return the environments' state; the statistics are saved separately (`norm_arrays`)."""
        return self.inner.snapshot()

    def restore(self, state: EnvState) -> np.ndarray | None:
        """Restore the environments; return their observations, normalized without updating the statistics."""
        obs = self.inner.restore(state)
        normalizer = self.normalizer()
        return obs if obs is None or normalizer is None else normalizer(obs)

    def close(self) -> None:
        """Close the environments."""
        self.inner.close()
