"""What a checkpoint holds, as plain arrays and JSON values, and the replay buffer beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cleanrl_worker.training.envs import EnvState
from cleanrl_worker.training.replay_segments import SavedReplay, SegmentedReplay


@dataclass(frozen=True)
class TrainingState:
    """Everything learning depends on at one step; array names have a prefix per part (`agent.`, `adam.`, `envs.`)."""

    step: int
    arrays: Mapping[str, np.ndarray]
    values: Mapping[str, Any]
    replay: SegmentedReplay | None = None
    """The learner's own buffer, of a snapshot: saved as segments beside the checkpoints, each written once"""
    saved_replay: SavedReplay | None = None
    """The buffer's content, of a checkpoint that was loaded; None: it holds none. See `restore_replay`"""
    run: Mapping[str, Any] = field(default_factory=dict)
    """What the run knows besides the learner: its best checkpoint"""

    def part(self, prefix: str) -> dict[str, np.ndarray]:
        """The arrays of one part, without its prefix."""
        start = f"{prefix}."
        return {name.removeprefix(start): array for name, array in self.arrays.items() if name.startswith(start)}

    def environments(self) -> EnvState:
        return EnvState(self.part("envs"), self.values["envs"])

    def restore_replay(self, buffer: SegmentedReplay) -> bool:
        """Fill a new learner's buffer with what the checkpoint holds, exactly as it was; for `Learner.restore`.

        False: the checkpoint was written with `--checkpoint-replay none`. The buffer stays empty, and the learner fills
        it anew as at the beginning: with `learning_starts` steps before the next update, counted from `state.step`.
        The run says so; the learner need not.
        """
        if self.saved_replay is None:
            return False
        self.saved_replay.read_into(buffer)
        return True
