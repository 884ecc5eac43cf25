"""The gradient of PPO's objective that was derived by hand is the one autograd finds, for every switch."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from cleanrl_worker.algorithms.ppo import Agent, Args, Batch, ContinuousArgs, GaussianAgent, ppo_losses
from cleanrl_worker.training.fast_cpu.ppo import FastPpo
from cleanrl_worker.training.optimizers import FlatParameters
from cleanrl_worker.training.policies import Categorical, DiagonalGaussian, NumpyActing

ROWS, OBSERVATIONS, ACTIONS = 96, 5, 3


def some_batch(rng: np.random.Generator, agent: Agent | GaussianAgent) -> Batch:
    """Rows on both sides of every clip, and rows that nothing moved."""
    obs = rng.normal(size=(ROWS, OBSERVATIONS)).astype(np.float32)
    with torch.no_grad():
        outputs, predicted = agent(torch.from_numpy(obs))
    if isinstance(agent, GaussianAgent):
        actions = (outputs.numpy() + rng.normal(size=outputs.shape)).astype(np.float32)
    else:
        actions = rng.integers(ACTIONS, size=ROWS)
    log_probs, _ = agent.log_probs(outputs, torch.from_numpy(actions))
    moved = np.where(rng.random((2, ROWS)) < 0.2, 0, rng.normal(scale=0.4, size=(2, ROWS)))
    old = log_probs.detach().numpy() + moved[0]
    values = predicted[:, 0].numpy() + moved[1]
    advantages, returns = rng.normal(size=(2, ROWS))
    columns = (array.astype(np.float32) for array in (old, advantages, values + returns, values))
    return Batch(obs, actions, *columns)


def an_agent(kind: type[Agent] | type[GaussianAgent]) -> Agent | GaussianAgent:
    torch.manual_seed(5)
    agent = kind(OBSERVATIONS, ACTIONS)
    with torch.no_grad():  # policies that are not nearly uniform, spreads that are not one
        for parameter in agent.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return agent


@pytest.mark.parametrize("kind", [Agent, GaussianAgent])
@pytest.mark.parametrize(("norm_adv", "clip_vloss"), list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize(("ent_coef", "vf_coef", "shifted"), [(0.0, 0.5, False), (0.3, 0.0, True), (0.02, 1.5, True)])
def test_gradients_and_losses_are_those_of_autograd(kind, norm_adv, clip_vloss, ent_coef, vf_coef, shifted):
    agent, rng = an_agent(kind), np.random.default_rng(7)
    switches = {"norm_adv": norm_adv, "clip_vloss": clip_vloss, "ent_coef": ent_coef, "vf_coef": vf_coef}
    args = replace(Args() if kind is Agent else ContinuousArgs(), **switches)
    parameters = FlatParameters(agent)
    batch = some_batch(rng, agent)
    shift = rng.uniform(-0.5, 0.5, (ROWS, ACTIONS)).astype(np.float32) if shifted else None

    tensors = Batch(*(torch.from_numpy(column) for column in batch))
    expected = ppo_losses(agent, tensors, args, torch.from_numpy(shift) if shifted else None)
    parameters.zero_gradients()
    expected.total.backward()
    by_autograd = parameters.block.grad.numpy().copy()

    parameters.zero_gradients()
    log_std = "actor_logstd" if kind is GaussianAgent else ""
    found = FastPpo(parameters, NumpyActing(parameters, agent), args, log_std)(batch, shift)
    np.testing.assert_allclose(parameters.block.grad.numpy(), by_autograd, rtol=2e-4, atol=2e-6)
    assert np.abs(by_autograd).max() > 1e-3
    assert 0.1 < found.clip_fraction < 0.9
    for name in ("total", "policy", "value", "entropy", "old_approx_kl", "approx_kl", "clip_fraction"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name).item(), rel=1e-4, abs=1e-6), name


def test_rows_beyond_a_clip_do_not_move_the_network():
    agent, rng = an_agent(Agent), np.random.default_rng(3)
    parameters, args = FlatParameters(agent), Args(norm_adv=False, ent_coef=0.0)
    batch = some_batch(rng, agent)
    # Probabilities have doubled where that was good: enough. Values have moved beyond the clip, away from the returns.
    satisfied = batch._replace(
        log_probs=batch.log_probs * 0 - 20.0,
        advantages=np.abs(batch.advantages),
        returns=batch.values,
        values=batch.values - 5,
    )
    found = FastPpo(parameters, NumpyActing(parameters, agent), args)(satisfied)
    assert found.clip_fraction == 1
    assert not parameters.block.grad[: sum(p.numel() for p in agent.critic.parameters())].any()
    assert not parameters.block.grad.any()


def test_log_probabilities_of_the_rollout_are_those_of_the_update():
    rng = np.random.default_rng(1)
    for agent in (an_agent(Agent), an_agent(GaussianAgent)):
        parameters = FlatParameters(agent)
        distribution = (
            DiagonalGaussian(parameters.array("actor_logstd")) if isinstance(agent, GaussianAgent) else Categorical(3)
        )
        outputs = rng.normal(size=(4, 6, ACTIONS)).astype(np.float32)
        actions = distribution.choose(outputs, distribution.noise(rng, (4, 6)))
        flat = (
            torch.from_numpy(outputs.reshape(24, -1)),
            torch.from_numpy(actions.reshape(24, *distribution.action_shape)),
        )
        expected = agent.log_probs(*flat)[0].detach().numpy().reshape(4, 6)
        np.testing.assert_allclose(distribution.log_probs(outputs, actions), expected, rtol=1e-5, atol=1e-6)
