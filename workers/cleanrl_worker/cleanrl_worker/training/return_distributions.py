"""Distributions of returns over fixed atoms (Bellemare et al. 2017) in numpy; `algorithms/c51.py` has them in torch.

A distribution is a probability for each of the atoms, evenly spaced from `v_min` to `v_max`. The Bellman update shrinks
the atoms by the discount and shifts them by the reward; `project` divides the probability of each moved atom between
its two neighbors on the fixed grid.
"""

from __future__ import annotations

import numpy as np

_SAFE_SPREAD = 60
"""exp(-60) is small but does not underflow: logits closer together than this need no maximum per row"""

_MAX_MATRICES = 16


class Atoms:
    """The fixed returns, and numpy operations on distributions over them."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = np.ascontiguousarray(values, dtype=np.float32)
        low, high = float(self.values[0]), float(self.values[-1])
        self._low, self._per_unit = np.float32(low), np.float32((len(values) - 1) / (high - low))
        indices = np.arange(len(values), dtype=np.float32)
        self._line = np.stack([np.ones_like(indices), indices])
        """[ones, indices]: (offset, slope) @ it is a line per row"""
        self._sums = np.stack([np.ones_like(self.values), self.values], axis=1)
        """[ones, returns]: weights @ it gives the sum of weights and the sum of weighted returns"""
        self._matrices: dict[tuple[float, float], np.ndarray] = {}

    def weights(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return unnormalized probabilities of logits [row, atom], their sums, and the expected returns."""
        largest = logits.max()
        if not largest - logits.min() < _SAFE_SPREAD:
            largest = logits.max(axis=1, keepdims=True)  # five times slower
        weights = logits - largest
        np.exp(weights, out=weights)
        sums = weights.dot(self._sums)
        return weights, sums[:, 0], sums[:, 1] / sums[:, 0]

    def project(self, probabilities: np.ndarray, rewards: np.ndarray, discounts: np.ndarray) -> np.ndarray:
        """Return the distributions [row, atom] of reward + discount * return, projected onto the atoms.

        A discount of 0 (a terminated episode) gives a single point.
        """
        alike = (rewards == rewards[0]) & (discounts == discounts[0])
        if 2 * np.count_nonzero(alike) <= len(alike):
            return self._project_rows(probabilities, rewards, discounts)
        # In most environments nearly all rewards are equal, and the projection is linear: one matrix product.
        projected = probabilities.dot(self._matrix(float(rewards[0]), float(discounts[0])))
        others = np.flatnonzero(~alike)
        if len(others):
            projected[others] = self.project(probabilities[others], rewards[others], discounts[others])
        return projected

    def _matrix(self, reward: float, discount: float) -> np.ndarray:
        """Return the projection of each atom for this reward and discount."""
        if (reward, discount) not in self._matrices:
            if len(self._matrices) >= _MAX_MATRICES:
                self._matrices.clear()
            count = len(self.values)
            constants = (np.full(count, value, dtype=np.float32) for value in (reward, discount))
            self._matrices[reward, discount] = self._project_rows(np.eye(count, dtype=np.float32), *constants)
        return self._matrices[reward, discount]

    def _project_rows(self, probabilities: np.ndarray, rewards: np.ndarray, discounts: np.ndarray) -> np.ndarray:
        rows, count = probabilities.shape
        # Positions of the moved atoms, in steps of the grid from its first atom.
        first = (rewards + discounts * self._low - self._low) * self._per_unit
        places = np.stack([first, discounts], axis=1).dot(self._line)
        np.clip(places, 0, count - 1, out=places)
        # The last atom is the upper neighbor of the last interval, so no position is a special case.
        lower = np.minimum(np.floor(places), count - 2)
        places -= lower
        to_upper = np.multiply(places, probabilities, out=places)
        index = (lower.astype(np.int64) + np.arange(0, rows * count, count)[:, None]).reshape(-1)
        shared = np.zeros(rows * count, dtype=np.float32)
        np.add.at(shared, index, (probabilities - to_upper).reshape(-1))
        np.add.at(shared[1:], index, to_upper.reshape(-1))
        return shared.reshape(rows, count)
