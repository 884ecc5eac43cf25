"""Returns that others published, to hold our own against: `published_returns.json`, the only copy of them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("published_returns.json")
SAME_STEPS = 0.95
"""A training this much as long counts as equally long: the last batch may not have fitted in"""
_LEAST_MARGIN = 0.05


@dataclass(frozen=True)
class PublishedReturn:
    """What somebody reached with an algorithm of that name."""

    algo: str
    env_id: str
    """As it was published: `Pong`, or another version of the environment that was asked for"""
    mean: float
    std: float
    """Over the seeds"""
    seeds: int
    steps: int
    source: str
    is_same_environment: bool
    """False: another version; figures of one do not carry over to the other one to one"""

    def least(self, random: float | None = None) -> float:
        """What counts as reached: two standard deviations less, or 5 % of the way from a random policy if more."""
        margin = 2 * self.std
        if random is not None:
            margin = max(margin, _LEAST_MARGIN * abs(self.mean - random))
        return self.mean - margin

    def is_comparable(self, steps: float) -> bool:
        """Whether a training of so many steps may be held against it at all: no shorter, the same environment."""
        return self.is_same_environment and steps >= SAME_STEPS * self.steps


@cache
def published_scripts() -> dict[str, dict[str, Any]]:
    """The file by algorithm: `total_timesteps`, `source`, and `returns` by environment."""
    document = json.loads(FILE.read_text(encoding="utf-8"))
    seeds = document["seeds"]
    return {name: {**script, "seeds": seeds} for name, script in document["scripts"].items()}


def published_return(algo: str, env_id: str) -> PublishedReturn | None:
    """What was published for an algorithm in an environment, else in another version of it; None: nothing."""
    script = published_scripts().get(algo)
    name = published_name(env_id, script["returns"]) if script else None
    if script is None or name is None:
        return None
    reached = script["returns"][name]
    return PublishedReturn(
        algo, name, reached["mean"], reached["std"], script["seeds"], script["total_timesteps"], script["source"],
        is_same_environment=name == env_id or _version(name) in ("", _version(env_id)),
    )  # fmt: skip


def published_name(env_id: str, names: Any) -> str | None:
    """Which of the published names means this environment: `Pong` is `PongNoFrameskip-v4` and `ALE/Pong-v5`."""
    if env_id in names:
        return env_id
    return next((name for name in names if _stem(name) == _stem(env_id)), None)


def _stem(env_id: str) -> str:
    bare = env_id.rpartition(":")[2].removeprefix("ALE/").removeprefix("procgen-")
    return re.sub(r"(NoFrameskip|Deterministic)?-v\d+$", "", bare)


def _version(env_id: str) -> str:
    found = re.search(r"-v(\d+)$", env_id)
    return found[1] if found else ""
