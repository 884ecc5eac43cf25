"""How good is a policy: whole episodes, one per environment, so that short ones do not crowd out long ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cleanrl_worker.training.envs import VectorEnvs, make_envs

_MOST_ENVS = 64
_MOST_STEPS = 100_000
"""An environment without a time limit must not hold the run for ever"""


@dataclass(frozen=True)
class Evaluation:
    """Returns over the evaluated episodes."""

    episodes: int
    mean_return: float
    std_return: float
    min_return: float
    max_return: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def evaluate(
    env_id: str,
    act: Callable[[np.ndarray], np.ndarray],
    *,
    episodes: int,
    seed: int,
    should_stop: Callable[[], bool] = lambda: False,
    env_kwargs: Mapping[str, Any] | None = None,
) -> Evaluation | None:
    """Run whole episodes of `act` in environments of their own; None when asked to stop on the way."""
    returns: list[float] = []
    while len(returns) < episodes:
        envs = make_envs(env_id, min(_MOST_ENVS, episodes - len(returns)), env_kwargs)
        try:
            batch = _one_episode_each(envs, act, seed + len(returns), should_stop)
        finally:
            envs.close()
        if batch is None:
            return None
        returns.extend(batch)
    values = np.array(returns)
    return Evaluation(episodes, float(values.mean()), float(values.std()), float(values.min()), float(values.max()))


def _one_episode_each(
    envs: VectorEnvs, act: Callable[[np.ndarray], np.ndarray], seed: int, should_stop: Callable[[], bool]
) -> list[float] | None:
    obs = envs.reset(seed)
    returns = np.zeros(envs.num_envs)
    running = np.ones(envs.num_envs, dtype=np.bool_)
    for count in range(_MOST_STEPS):
        if count % 256 == 0 and should_stop():
            return None
        step = envs.step(act(obs))
        returns += step.rewards * running
        running &= ~step.ended
        obs = step.obs
        if not running.any():
            break
    return [float(value) for value in returns]
