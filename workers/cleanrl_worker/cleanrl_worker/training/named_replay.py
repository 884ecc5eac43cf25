"""Several replay buffers in the checkpoints of one run, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cleanrl_worker.training.replay_segments import Segment, SegmentedReplay


class NamedReplay:
    """A replay buffer whose segments have its name: those of another one may be on disk under the same numbers."""

    def __init__(self, name: str, buffer: SegmentedReplay) -> None:
        self._name, self._buffer = name, buffer

    def facts(self) -> dict[str, Any]:
        return self._buffer.facts()

    def segments(self) -> list[Segment]:
        return [replace(segment, name=f"{self._name}/{segment.name}") for segment in self._buffer.segments()]

    def restore(self, facts: Mapping[str, Any], read: Callable[[str, Sequence[np.ndarray]], None]) -> None:
        self._buffer.restore(facts, lambda name, columns: read(f"{self._name}/{name}", columns))
