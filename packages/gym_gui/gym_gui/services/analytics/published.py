"""Published returns to compare our own with: `published_returns.json`, the only copy of them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gym_gui.wording import formats

if TYPE_CHECKING:
    from gym_gui.services.analytics.comparison import Comparison, GroupFigures

FILE = Path(__file__).with_name("published_returns.json")
SAME_STEPS = 0.95
"""A training this much as long counts as equally long: the last batch may not have fitted in"""
_LEAST_MARGIN = 0.05


@dataclass(frozen=True)
class PublishedReturn:
    """A published return of an algorithm in an environment."""

    algo: str
    env_id: str
    """The published name: `Pong`, or another version of the requested environment"""
    mean: float
    std: float
    """Over the seeds"""
    seeds: int
    steps: int
    source: str
    is_same_environment: bool
    """False: another version; its values are only similar"""

    def least(self, random: float | None = None) -> float:
        """Return the threshold: two standard deviations below, or 5 % of the distance to a random policy if more."""
        margin = 2 * self.std
        if random is not None:
            margin = max(margin, _LEAST_MARGIN * abs(self.mean - random))
        return self.mean - margin

    def is_comparable(self, steps: float) -> bool:
        """Return whether it compares with a training of so many steps: at least as long, the same environment."""
        return self.is_same_environment and steps >= SAME_STEPS * self.steps


@cache
def published_scripts() -> dict[str, dict[str, Any]]:
    """Return the file by algorithm: `total_timesteps`, `source`, and `returns` by environment."""
    document = json.loads(FILE.read_text(encoding="utf-8"))
    seeds = document["seeds"]
    return {name: {**script, "seeds": seeds} for name, script in document["scripts"].items()}


def published_return(algo: str, env_id: str) -> PublishedReturn | None:
    """Return what was published for an algorithm in an environment, else in another version of it; None: nothing."""
    script = published_scripts().get(algo)
    name = published_name(env_id, script["returns"]) if script else None
    if script is None or name is None:
        return None
    reached = script["returns"][name]
    is_same = name == env_id or _version(name) in ("", _version(env_id))
    made = script["seeds"], script["total_timesteps"], script["source"]
    return PublishedReturn(algo, name, reached["mean"], reached["std"], *made, is_same_environment=is_same)


def published_name(env_id: str, names: Any) -> str | None:
    """Return which of the published names means this environment: `Pong` is `PongNoFrameskip-v4` and `ALE/Pong-v5`."""
    if env_id in names:
        return env_id
    return next((name for name in names if _stem(name) == _stem(env_id)), None)


def _stem(env_id: str) -> str:
    bare = env_id.rpartition(":")[2].removeprefix("ALE/").removeprefix("procgen-")
    return re.sub(r"(NoFrameskip|Deterministic)?-v\d+$", "", bare)


def _version(env_id: str) -> str:
    found = re.search(r"-v(\d+)$", env_id)
    return found[1] if found else ""


# ---------------------------------------------------------------- our groups beside them


@dataclass(frozen=True)
class PublishedComparison:
    """A group's return compared with a published one."""

    published: PublishedReturn
    steps: int
    """Steps of our training"""
    is_comparable: bool
    is_reached: bool
    """Only where it is comparable"""

    @property
    def short_text(self) -> str:
        """Return the verdict for a narrow table."""
        if not self.published.is_same_environment:
            return "other version"
        return "too short" if not self.is_comparable else "yes" if self.is_reached else "no"

    @property
    def text(self) -> str:
        """Return the verdict, or why there is none."""
        if not self.published.is_same_environment:
            return f"not comparable: published for {self.published.env_id}"
        if not self.is_comparable:
            ours, theirs = formats.count(self.steps), formats.count(self.published.steps)
            return f"not comparable: {ours} of {theirs} steps ({100 * self.steps / self.published.steps:.0f} %)"
        return "reached" if self.is_reached else "not reached"


def compare_with_published(group: GroupFigures, comparison: Comparison) -> PublishedComparison | None:
    """Return None when nothing was published, or the group has no return."""
    published = published_return(group.algo, group.environment)
    if published is None or group.final is None:
        return None
    baseline = comparison.baselines.get(group.environment)
    comparable = published.is_comparable(group.steps)
    least = published.least(baseline.mean if baseline else None)
    return PublishedComparison(published, group.steps, comparable, comparable and group.final.value >= least)


def compared_with_published(comparison: Comparison) -> list[tuple[GroupFigures, PublishedComparison]]:
    """Return the groups for which something was published."""
    found = ((group, compare_with_published(group, comparison)) for group in comparison.groups)
    return [(group, reference) for group, reference in found if reference is not None]
