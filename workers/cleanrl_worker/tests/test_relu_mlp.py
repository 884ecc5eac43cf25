"""Networks with their gradients written out give what autograd gives, and nothing that was not asked for."""

from __future__ import annotations

import pytest
import torch
from cleanrl_worker.agents.continuous import QNetwork
from cleanrl_worker.training.fast_cpu.actor_critic import FastCritics
from cleanrl_worker.training.fast_cpu.networks import ReluMlp
from cleanrl_worker.training.optimizers import FlatParameters, Trained
from torch import nn


class TwoHeaded(nn.Module):
    def __init__(self, inputs: int, outputs: tuple[int, ...]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(inputs, 24), nn.Linear(24, 16)
        self.heads = nn.ModuleList(nn.Linear(16, count) for count in outputs)

    def forward(self, inputs: torch.Tensor) -> list[torch.Tensor]:
        hidden = torch.relu(self.second(torch.relu(self.first(inputs))))
        return [head(hidden) for head in self.heads]


@pytest.mark.parametrize("outputs", [(1,), (3,), (2, 2)])
def test_values_and_gradients_are_those_of_autograd(outputs: tuple[int, ...]) -> None:
    torch.manual_seed(4)
    network = TwoHeaded(5, outputs)
    parameters = FlatParameters(network)
    inputs = torch.randn(32, 5, requires_grad=True)
    weights = [torch.randn(32, count) for count in outputs]
    expected = network(inputs)
    sum((out * weight).sum() for out, weight in zip(expected, weights, strict=True)).backward()
    by_autograd, by_inputs = parameters.block.grad.clone(), inputs.grad.clone()

    ours = ReluMlp(parameters.block.data, parameters.block.grad, network.first, network.second, *network.heads)
    with torch.no_grad():
        trace = ours.trace(inputs.detach())
        for found, theirs in zip(ours.outputs(trace), expected, strict=True):
            torch.testing.assert_close(found, theirs)
        parameters.block.grad.fill_(torch.nan)  # every gradient is set, none added to
        ours.backward(trace, *weights)
        torch.testing.assert_close(parameters.block.grad, by_autograd, rtol=1e-4, atol=1e-5)

        parameters.zero_gradients()
        found = ours.input_gradient(trace, *weights, last=2)
        torch.testing.assert_close(found, by_inputs[:, -2:], rtol=1e-4, atol=1e-5)
        assert not parameters.block.grad.any()  # those were not requested


def test_the_lesser_of_two_critics_is_climbed_row_by_row() -> None:
    torch.manual_seed(5)
    networks = nn.ModuleList([QNetwork(3, 2), QNetwork(3, 2)])
    critics = FastCritics(Trained(networks, learning_rate=1e-3))
    obs, actions = torch.randn(40, 3), torch.randn(40, 2, requires_grad=True)
    values = [network(obs, actions) for network in networks]
    torch.minimum(*values).mean().neg().backward()
    assert 0 < (values[0] < values[1]).sum() < 40  # each has rows of its own

    with torch.no_grad():
        inputs = torch.cat([obs, actions], dim=1)
        least, slope = critics.slope_of_least(inputs, 2)
        torch.testing.assert_close(least, torch.minimum(*values).detach())
        torch.testing.assert_close(slope, actions.grad, rtol=1e-4, atol=1e-6)
        # As a GPU does it, where shapes may not depend on values.
        traces = [critic.trace(inputs) for critic in critics._critics]
        is_first = values[0] <= values[1]
        same = critics._slope_of_all(traces, (is_first, ~is_first), 2)
        torch.testing.assert_close(same, actions.grad, rtol=1e-4, atol=1e-6)
        # Where one critic is the lesser everywhere the other has no rows at all.
        networks[1].fc3.bias += 100
        least, slope = critics.slope_of_least(inputs, 2)
        _, alone = critics.slope_of_first(inputs, 2)
        torch.testing.assert_close(slope, alone, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(least, networks[0](obs, actions))
