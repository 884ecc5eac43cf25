"""Networks in numpy give what torch gives, forwards and backwards."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from cleanrl_worker.training.fast_cpu.networks import NumpyMlp
from cleanrl_worker.training.optimizers import FlatAdam, FlatParameters, _pieces
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
    inputs, target = torch.randn(32, 4), torch.randn(32, 3)

    outputs = network(inputs)
    (0.5 * (outputs - target).square().sum()).backward()
    expected = parameters.block.grad.clone()

    ours = NumpyMlp(parameters, "", network)
    traced = ours.trace(inputs.numpy())
    assert np.array_equal(ours(inputs.numpy()), traced)
    np.testing.assert_allclose(traced, outputs.detach().numpy(), rtol=1e-5, atol=1e-6)
    parameters.zero_gradients()
    ours.backward(traced - target.numpy())
    np.testing.assert_allclose(parameters.block.grad.numpy(), expected.numpy(), rtol=1e-4, atol=1e-5)


def test_other_layers_are_refused() -> None:
    for network in (
        nn.Sequential(nn.Linear(2, 2), nn.Sigmoid(), nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(2, 2), nn.Tanh()),
    ):
        with pytest.raises(TypeError, match="Linear layers"):
            NumpyMlp(FlatParameters(network), "", network)


@pytest.mark.parametrize("size", [1, 5, 128, 1001, 143_362])
def test_the_pieces_that_a_gpu_gets_are_the_block(size: int) -> None:
    block = torch.arange(size, dtype=torch.float32)
    pieces = _pieces(block)
    assert len(pieces) <= 32
    assert torch.equal(torch.cat(pieces), block)
    assert all(piece.storage_offset() % 4 == 0 for piece in pieces)
    assert {piece.untyped_storage().data_ptr() for piece in pieces} == {block.untyped_storage().data_ptr()}


@pytest.mark.gpu
def test_adam_moves_a_block_on_a_gpu_as_torch_does_to_the_bit() -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    torch.manual_seed(3)
    ours, theirs = (nn.Parameter(torch.zeros(143_362, device="cuda")) for _ in range(2))
    ours.grad, theirs.grad = torch.zeros_like(ours), torch.zeros_like(theirs)
    adam, reference = FlatAdam(ours), torch.optim.Adam([theirs], lr=0.01, fused=True)
    for _ in range(3):
        ours.grad.copy_(torch.randn_like(ours))
        theirs.grad.copy_(ours.grad)
        adam.step(0.01)
        reference.step()
    assert torch.equal(ours, theirs)
