"""Explicit gradients for small networks, used if they agree with the loss in the algorithm's file.

An algorithm's loss is written in torch in its own file, and autograd can always train with it. Where a learner also has
a fast engine, both are compared once at the start on a synthetic batch; if a user has changed the loss, it is trained
with autograd.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import nn

from cleanrl_worker.errors import BadInput
from cleanrl_worker.training.optimizers import FlatParameters

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


CHANGED_FORWARD = "the network's outputs differ"
"""The difference where a small network cannot be run in numpy as it stands in the file"""

_CANNOT_RUN = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What fast engines raise for networks, and both engines for losses, that a user has changed"""


def choose_engine(learner: HasEngine, compare: Callable[[], str] | None) -> Engine:
    """Return the engine to train with.

    `compare` returns what differs between the fast engine and autograd, if anything; None if there is no fast engine.
    """
    requested, file = learner.args.gradient, Path(inspect.getfile(type(learner))).name
    if requested == AUTOGRAD or (requested == AUTO and compare is None):
        return Engine()
    if compare is None:
        raise BadInput("--gradient fast_cpu: there is no fast engine for this network, device or --compile; use auto")
    with torch.random.fork_rng(devices=[]):  # a changed loss may draw
        try:
            difference = compare()
        except _CANNOT_RUN as error:
            difference = f"it cannot be compared: {error}"
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


@contextmanager
def perturbed(parameters: FlatParameters, rng: np.random.Generator, scale: float = 0.1) -> Iterator[None]:
    """Add noise to the weights meanwhile: initial ones (no biases, a target network as a copy) hide differences."""
    block = parameters.block.data
    weights = block.clone()
    try:
        block += torch.from_numpy(scale * rng.standard_normal(len(block), dtype=np.float32)).to(block.device)
        parameters.refresh_host()
        yield
    finally:
        block.copy_(weights)
        parameters.zero_gradients()
        parameters.refresh_host()


Small = TypeVar("Small")


def agreeing(
    network: nn.Module,
    parameters: FlatParameters,
    make: Callable[[], Small],
    ours: Callable[[Small, np.ndarray], Any],
    theirs: Callable[[torch.Tensor], Any],
) -> Small | None:
    """Return what `make` builds to run a torch network in numpy; None if `ours` and `theirs` do not give the same."""
    rng = synthetic_generator()
    device = parameters.block.device
    try:
        small = make()
        width = next(layer.in_features for layer in network.modules() if isinstance(layer, nn.Linear))
        with perturbed(parameters, rng), torch.no_grad(), torch.random.fork_rng(devices=[]):
            # One after the other: the differences of small outputs would be hidden by large ones.
            for spread in (0.1, 1.0, 10.0):
                rows = np.float32(spread) * rng.standard_normal((16, width), dtype=np.float32)
                found, expected = ours(small, rows), theirs(torch.from_numpy(rows).to(device))
                both = zip(found, expected, strict=True) if isinstance(expected, tuple) else [(found, expected)]
                if any(_differ(torch.from_numpy(one).reshape(other.shape), other.cpu()) for one, other in both):
                    return None
    except _CANNOT_RUN:
        return None
    return small


def first_difference(ours: Mapping[str, torch.Tensor | float], theirs: Mapping[str, torch.Tensor | float]) -> str:
    """Return the name of the first tensor or number that differs, or that only one of the two has."""
    for name in [*theirs, *(name for name in ours if name not in theirs)]:
        if name not in ours or name not in theirs:
            return name
        if _differ(torch.as_tensor(ours[name]).float(), torch.as_tensor(theirs[name]).float()):
            return name
    return ""


def _differ(found: torch.Tensor, expected: torch.Tensor) -> bool:
    distance = torch.linalg.vector_norm(found - expected)
    return not bool(distance <= _TOLERANCE * torch.linalg.vector_norm(expected) + 1e-6)
