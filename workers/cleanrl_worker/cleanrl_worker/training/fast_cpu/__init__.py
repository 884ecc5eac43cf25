"""Explicit gradients for small networks, used if they agree with the loss in the algorithm's file.

An algorithm's loss is written in torch in its own file, and autograd can always train with it. Where a learner also has
a fast engine, both are compared once at the start on a synthetic batch; if a user has changed the loss, it is trained
with autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from cleanrl_worker.errors import BadInput

AUTO, AUTOGRAD, FAST_CPU = "auto", "autograd", "fast_cpu"

_TOLERANCE = 1e-3
"""Relative; rounding, from another order of sums, is a hundred times less"""


@dataclass(frozen=True)
class Engine:
    """What computes a run's gradients; stored in its manifest and checkpoints."""

    name: str = AUTOGRAD
    note: str = ""
    """Why the fast engine is not used, where there is one"""


@runtime_checkable
class HasEngine(Protocol):
    """A learner with more than one gradient engine."""

    args: Any
    engine: Engine

    def use_autograd(self) -> None:
        """Compute gradients by autograd from here on."""


def choose_engine(requested: str, compare: Callable[[], str] | None, file: str) -> Engine:
    """Return the engine to train with.

    `compare` returns what differs between the fast engine and autograd, if anything; None if there is no fast engine.
    """
    if requested == AUTOGRAD or (requested == AUTO and compare is None):
        return Engine()
    if compare is None:
        raise BadInput("--gradient fast_cpu: there is no fast engine for this network, device or --compile; use auto")
    difference = compare()
    if not difference:
        return Engine(FAST_CPU)
    if requested == FAST_CPU:
        raise BadInput(f"--gradient fast_cpu: the loss in {file} is not what it computes ({difference}); use auto")
    return Engine(
        note=f"the loss in {file} is not what the fast CPU engine computes ({difference}): training uses autograd "
        "with the loss as it stands there, which takes longer"
    )


def synthetic_generator() -> np.random.Generator:
    """Return a generator for the comparison, so that the run's generators stay as they are."""
    return np.random.Generator(np.random.PCG64(2017))


def first_difference(ours: Mapping[str, torch.Tensor | float], theirs: Mapping[str, torch.Tensor | float]) -> str:
    """Return the name of the first tensor or number that differs, or that only one of the two has."""
    for name in [*theirs, *(name for name in ours if name not in theirs)]:
        if name not in ours or name not in theirs:
            return name
        found, expected = torch.as_tensor(ours[name]).float(), torch.as_tensor(theirs[name]).float()
        distance = torch.linalg.vector_norm(found - expected)
        if not distance <= _TOLERANCE * torch.linalg.vector_norm(expected) + 1e-6:
            return name
    return ""
