"""Tabular Q-learning, and its linear form for states that are lists of features (tiles)."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

State = int | str | tuple[int, ...]
"""A row of the table, or the features that are active together"""


@dataclass
class ActionValues:
    """The value of every action in every state; new states begin with zeros."""

    actions: int
    rate: float
    discount: float
    rows: dict[int | str, list[float]] = field(default_factory=dict)

    def of(self, state: State) -> list[float]:
        """Return the values of all actions in a state."""
        if isinstance(state, tuple):
            return [sum(values) for values in zip(*map(self._row, state), strict=True)]
        return self._row(state)

    def best(self, state: State, rng: random.Random) -> int:
        """Return an action of the highest value; equal ones are equally likely."""
        values = self.of(state)
        highest = max(values)
        best = [action for action, value in enumerate(values) if value == highest]
        return best[0] if len(best) == 1 else rng.choice(best)

    def learn(self, state: State, action: int, reward: float, following: State | None) -> None:
        """Move the value of an action towards its reward and the best value that follows; None: the end."""
        target = reward + (self.discount * max(self.of(following)) if following is not None else 0.0)
        step = self.rate * (target - self.of(state)[action])
        for row in map(self._row, state) if isinstance(state, tuple) else (self._row(state),):
            row[action] += step / len(state) if isinstance(state, tuple) else step

    def _row(self, key: int | str) -> list[float]:
        row = self.rows.get(key)
        if row is None:
            row = self.rows[key] = [0.0] * self.actions
        return row

    def to_json(self) -> list[list[object]]:
        """Return the table for a checkpoint; keys keep their type."""
        return [[key, row] for key, row in self.rows.items()]

    def restore(self, rows: Iterable[Sequence[object]]) -> None:
        """Replace the table by that of a checkpoint."""
        self.rows = {key: list(map(float, row)) for key, row in rows}  # type: ignore[misc,call-overload]
