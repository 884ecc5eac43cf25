"""Critics of continuous actions with their target networks: fitted together, and asked which way their values rise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy

import numpy as np
import torch
from torch import nn

from cleanrl_worker.agents.continuous import QNetwork
from cleanrl_worker.training.adam import FlatAdam
from cleanrl_worker.training.parameters import FlatParameters
from cleanrl_worker.training.relu_mlp import ReluMlp, Trace


class Critics:
    """One or two Q-networks in one block of parameters; their inputs are observations and actions side by side.

    Each has two products of 256 × 256 × 256 on the way there and back. As one batched product the two would take
    longer on a CPU (840 µs instead of 2 × 340), so they are asked one after the other.
    """

    def __init__(self, networks: nn.ModuleList, learning_rate: float) -> None:
        targets = deepcopy(networks)
        self.parameters, of_targets = FlatParameters(networks), FlatParameters(targets)
        self._adam, self._learning_rate = FlatAdam(self.parameters.block), learning_rate
        self._target_block = of_targets.block.data
        self._critics = _by_hand(networks, self._adam.block, self._adam.gradient)
        self._targets = _by_hand(targets, self._target_block, self._adam.gradient)  # which is not theirs, but unused

    def target_values(self, inputs: torch.Tensor) -> torch.Tensor:
        """What the target networks think of these, the least of them: [batch, 1]."""
        values = [critic(inputs)[0] for critic in self._targets]
        return values[0] if len(values) == 1 else torch.minimum(*values)

    def fit(self, inputs: torch.Tensor, wanted: torch.Tensor) -> dict[str, torch.Tensor]:
        """One step down the mean squared error of each; return each one's errors and values."""
        figures: dict[str, torch.Tensor] = {}
        for number, critic in enumerate(self._critics, start=1):
            trace = critic.trace(inputs)
            (values,) = critic.outputs(trace)
            errors = values - wanted
            critic.backward(trace, errors * (2 / len(errors)))
            figures |= {f"qf{number}_values": values, f"qf{number}_errors": errors}
        self._adam.step(self._learning_rate)
        return figures

    def charts(self, figures: Mapping[str, torch.Tensor]) -> dict[str, float]:
        """What `fit` returned, as CleanRL charts it."""
        names = [f"qf{number}" for number in range(1, len(self._critics) + 1)]
        charts = {f"losses/{name}_values": float(figures[f"{name}_values"].mean()) for name in names}
        losses = [float(figures[f"{name}_errors"].square().mean()) for name in names]
        charts |= {f"losses/{name}_loss": loss for name, loss in zip(names, losses, strict=True)}
        return charts if len(names) == 1 else {**charts, "losses/qf_loss": sum(losses) / len(losses)}

    def slope_of_first(self, inputs: torch.Tensor, actions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The first critic's values, and the gradient of minus their mean by the actions."""
        trace = self._critics[0].trace(inputs)
        (values,) = self._critics[0].outputs(trace)
        down = torch.full_like(values, -1 / len(values))
        return values, self._critics[0].input_gradient(trace, down, last=actions)

    def slope_of_least(self, inputs: torch.Tensor, actions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The lesser value of each row, and the gradient of minus their mean by the actions."""
        traces = [critic.trace(inputs) for critic in self._critics]
        values = [critic.outputs(trace)[0] for critic, trace in zip(self._critics, traces, strict=True)]
        is_first = values[0] <= values[1]
        # Which rows are whose is known only afterwards: nothing that is compiled or recorded can depend on it.
        fixed = inputs.device.type != "cpu" or torch.compiler.is_compiling()
        slope = (self._slope_of_all if fixed else self._slope_of_own)(traces, (is_first, ~is_first), actions)
        return torch.minimum(*values), slope

    def _slope_of_own(self, traces: Sequence[Trace], shares: Sequence[torch.Tensor], actions: int) -> torch.Tensor:
        """Each row follows one critic, so each critic need only look at its own rows: half of the work."""
        slope = shares[0].new_empty((len(shares[0]), actions), dtype=torch.float32)
        down = torch.full((len(slope), 1), -1 / len(slope))
        for critic, trace, share in zip(self._critics, traces, shares, strict=True):
            rows = share.squeeze(1).nonzero().squeeze(1)
            if len(rows):
                slope[rows] = critic.input_gradient(trace.rows(rows), down[: len(rows)], last=actions)
        return slope

    def _slope_of_all(self, traces: Sequence[Trace], shares: Sequence[torch.Tensor], actions: int) -> torch.Tensor:
        """The same with both critics looking at every row."""
        first, second = (
            critic.input_gradient(trace, share * (-1 / len(share)), last=actions)
            for critic, trace, share in zip(self._critics, traces, shares, strict=True)
        )
        return first + second

    def move_targets(self, share: float) -> None:
        """Let the target networks follow; 1 makes them copies."""
        self._target_block.lerp_(self._adam.block, share)

    # -- checkpoints

    def arrays(self) -> dict[str, np.ndarray]:
        """What a checkpoint needs besides the networks themselves, in memory of its own."""
        return {**self._adam.arrays(), "targets": self._target_block.cpu().numpy().copy()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._adam.restore(arrays)
        self._target_block.copy_(torch.from_numpy(arrays["targets"].copy()))


def _by_hand(networks: nn.ModuleList, block: torch.Tensor, gradient: torch.Tensor) -> list[ReluMlp]:
    found = []
    for network in networks:
        assert isinstance(network, QNetwork)
        found.append(ReluMlp(block, gradient, network.fc1, network.fc2, network.fc3))
    return found
