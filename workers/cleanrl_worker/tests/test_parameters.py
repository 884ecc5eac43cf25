"""Networks in numpy give what torch gives, forwards and backwards."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from cleanrl_worker.training.parameters import FlatParameters, NumpyMlp
from torch import nn


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
@pytest.mark.parametrize("hidden", [(), (7,), (120, 84)])
def test_values_and_gradients_are_those_of_autograd(activation: type[nn.Module], hidden: tuple[int, ...]) -> None:
    torch.manual_seed(3)
    sizes = (4, *hidden, 3)
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), activation()]
    network = nn.Sequential(*layers[:-1])
    parameters = FlatParameters(network)
    inputs, wanted = torch.randn(32, 4), torch.randn(32, 3)

    outputs = network(inputs)
    (0.5 * (outputs - wanted).square().sum()).backward()
    expected = parameters.block.grad.clone()

    ours = NumpyMlp(parameters, "", network)
    traced = ours.trace(inputs.numpy())
    assert np.array_equal(ours(inputs.numpy()), traced)
    np.testing.assert_allclose(traced, outputs.detach().numpy(), rtol=1e-5, atol=1e-6)
    parameters.zero_gradients()
    ours.backward(traced - wanted.numpy())
    np.testing.assert_allclose(parameters.block.grad.numpy(), expected.numpy(), rtol=1e-4, atol=1e-5)


def test_other_layers_are_refused() -> None:
    for network in (
        nn.Sequential(nn.Linear(2, 2), nn.Sigmoid(), nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(2, 2), nn.Tanh()),
    ):
        with pytest.raises(TypeError, match="Linear layers"):
            NumpyMlp(FlatParameters(network), "", network)
