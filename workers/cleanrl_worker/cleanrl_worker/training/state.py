"""What a checkpoint holds, as plain arrays and JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cleanrl_worker.training.envs import EnvState
from cleanrl_worker.training.replay import ReplayBuffer


@dataclass(frozen=True)
class TrainingState:
    """Everything learning depends on at one step; array names have a prefix per part (`agent.`, `adam.`, `envs.`)."""

    step: int
    arrays: Mapping[str, np.ndarray]
    values: Mapping[str, Any]
    replay: ReplayBuffer | None = None
    """Saved as segments beside the checkpoints, each written once"""

    def part(self, prefix: str) -> dict[str, np.ndarray]:
        """The arrays of one part, without its prefix."""
        start = f"{prefix}."
        return {name.removeprefix(start): array for name, array in self.arrays.items() if name.startswith(start)}

    def environments(self) -> EnvState:
        return EnvState(self.part("envs"), self.values["envs"])
