"""The same colour for the same configuration in all figures of a report, whichever of them a figure shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gym_gui.services.analytics.configurations import configuration_of
from gym_gui.services.analytics.figure import Figure

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb


class SteadyColours:
    """Gives colours in the order in which configurations come among all runs of a report, environments apart."""

    def __init__(self, runs: Sequence[pb.Run]) -> None:
        self._keys = {run.run_id: _key(run) for run in runs}
        self._numbers = {key: number for number, key in enumerate(dict.fromkeys(self._keys.values()))}

    def number(self, run_id: str) -> int:
        return self._numbers[self._keys[run_id]]

    def on(self, figure: Figure) -> Figure:
        """The figure with these colours; as it is when two of its lines would look alike."""
        numbers = [self.number(line.run_ids[-1]) for line in figure.lines]
        shown = [number for number, line in zip(numbers, figure.lines, strict=True) if not line.is_faint]
        if len(set(shown)) < len(shown):
            return figure
        lines = (replace(line, colour=number) for line, number in zip(figure.lines, numbers, strict=True))
        return replace(figure, lines=tuple(lines))


def _key(run: pb.Run) -> tuple[object, ...]:
    own = configuration_of(run)
    return own.worker, own.algo, own.mode, own.parameters, own.total
