"""Distributions of returns over fixed atoms (Bellemare et al. 2017), in numpy and in torch.

A distribution is a probability for each of the atoms, evenly spaced from `v_min` to `v_max`. One step earlier the atoms
lie elsewhere, shrunk by the discount and shifted by the reward: `project` shares what each carries between the two of
the old ones it has come to lie between.
"""

from __future__ import annotations

import numpy as np
import torch

_SAFE_SPREAD = 60
"""exp(-60) is small and far from vanishing: logits closer together than this need no maximum of their own row"""

_MOST_MATRICES = 16


class Atoms:
    """The fixed returns, and the numpy arithmetic on distributions over them."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = np.ascontiguousarray(values, dtype=np.float32)
        low, high = float(self.values[0]), float(self.values[-1])
        self._low, self._per_unit = np.float32(low), np.float32((len(values) - 1) / (high - low))
        indices = np.arange(len(values), dtype=np.float32)
        self._line = np.stack([np.ones_like(indices), indices])
        """Offsets and slopes times it: a straight line for every row"""
        self._sums = np.stack([np.ones_like(self.values), self.values], axis=1)
        """One product with it gives the sum of weights and the sum of weighted returns"""
        self._matrices: dict[tuple[float, float], np.ndarray] = {}

    def weights(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of logits [row, atom]: weights in proportion to the probabilities, their sums, and the expected returns."""
        largest = logits.max()
        if not largest - logits.min() < _SAFE_SPREAD:
            largest = logits.max(axis=1, keepdims=True)  # takes five times as long
        weights = logits - largest
        np.exp(weights, out=weights)
        sums = weights.dot(self._sums)
        return weights, sums[:, 0], sums[:, 1] / sums[:, 0]

    def project(self, probabilities: np.ndarray, rewards: np.ndarray, discounts: np.ndarray) -> np.ndarray:
        """Distributions [row, atom] as they look one step earlier, from which `rewards` and `discounts` lead to them.

        A discount of 0 (the episode is over) makes a distribution a point.
        """
        alike = (rewards == rewards[0]) & (discounts == discounts[0])
        if 2 * np.count_nonzero(alike) <= len(alike):
            return self._share(probabilities, rewards, discounts)
        # Most environments pay the same for nearly every step, and sharing is linear: a product with a matrix.
        projected = probabilities.dot(self._matrix(float(rewards[0]), float(discounts[0])))
        others = np.flatnonzero(~alike)
        if len(others):
            projected[others] = self.project(probabilities[others], rewards[others], discounts[others])
        return projected

    def _matrix(self, reward: float, discount: float) -> np.ndarray:
        """What becomes of each atom after this reward and discount."""
        if (reward, discount) not in self._matrices:
            if len(self._matrices) >= _MOST_MATRICES:
                self._matrices.clear()
            count = len(self.values)
            constants = (np.full(count, value, dtype=np.float32) for value in (reward, discount))
            self._matrices[reward, discount] = self._share(np.eye(count, dtype=np.float32), *constants)
        return self._matrices[reward, discount]

    def _share(self, probabilities: np.ndarray, rewards: np.ndarray, discounts: np.ndarray) -> np.ndarray:
        rows, count = probabilities.shape
        # Where the atoms come to lie, counted in gaps from the lowest one.
        first = (rewards + discounts * self._low - self._low) * self._per_unit
        places = np.stack([first, discounts], axis=1).dot(self._line)
        np.clip(places, 0, count - 1, out=places)
        # The last atom counts as the upper end of the last gap, so no place needs a case of its own.
        lower = np.minimum(np.floor(places), count - 2)
        places -= lower
        to_upper = np.multiply(places, probabilities, out=places)
        index = (lower.astype(np.int64) + np.arange(0, rows * count, count)[:, None]).reshape(-1)
        shared = np.zeros(rows * count, dtype=np.float32)
        np.add.at(shared, index, (probabilities - to_upper).reshape(-1))
        np.add.at(shared[1:], index, to_upper.reshape(-1))
        return shared.reshape(rows, count)


def project(
    probabilities: torch.Tensor, rewards: torch.Tensor, discounts: torch.Tensor, atoms: torch.Tensor
) -> torch.Tensor:
    """The same as `Atoms.project` for tensors.

    Every atom's share of every other, summed: adding up in place (`scatter_add_`) depends on the order in which a GPU's
    threads come, and a run could not be repeated to the bit.
    """
    count = len(atoms)
    moved = (rewards.unsqueeze(1) + discounts.unsqueeze(1) * atoms).clamp(atoms[0], atoms[-1])
    positions = (moved - atoms[0]) * ((count - 1) / (atoms[-1] - atoms[0]))
    places = torch.arange(count, device=atoms.device)
    shares = (1 - (positions.unsqueeze(2) - places).abs()).clamp(min=0)  # [row, from atom, to atom]
    return (probabilities.unsqueeze(2) * shares).sum(dim=1)
