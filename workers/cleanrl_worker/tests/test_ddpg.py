"""DDPG's arithmetic against plain loops and autograd; what it shares with TD3 and SAC is in test_off_policy.py."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from cleanrl_worker.algorithms.ddpg import Args, DdpgLearner
from cleanrl_worker.training.envs import make_envs
from cleanrl_worker.training.replay import Transitions, make_replay
from torch.nn import functional

ROWS = 48
ENGINE = "fast_cpu"


@pytest.fixture(autouse=True, params=["fast_cpu", "autograd"])
def engine(request):
    """Both are the algorithm: the update in its file by autograd, and the fast engine."""
    global ENGINE
    ENGINE = request.param


def updated(learner, *due, **flags):
    update = learner.fast.update if ENGINE == "fast_cpu" else torch.enable_grad()(learner.update)
    return update(*due, **flags)


def learner_with_a_batch(**flags) -> DdpgLearner:
    """Bounds are not symmetric, networks and target networks differ, some rows are terminal."""
    args = Args(env_id="continuous_worlds:Aim-v0", batch_size=ROWS, buffer_size=100, tau=0.1, **flags)
    envs, rng = make_envs(args.env_id, 1), np.random.default_rng(0)
    learner = DdpgLearner(args, envs, make_replay(args, envs), torch.device("cpu"))
    for part in (learner.actor, learner.critics):
        noise = rng.normal(0, 0.05, size=part.parameters.block.shape).astype(np.float32)
        part.parameters.block.data.add_(torch.from_numpy(noise))
    learner.batch.fill(random_transitions(rng), rng, noises=0)
    return learner


def random_transitions(rng: np.random.Generator) -> Transitions:
    return Transitions(
        obs=rng.normal(size=(ROWS, 2)),
        actions=rng.uniform([-1, 0], [1, 4], size=(ROWS, 2)),
        rewards=rng.normal(size=ROWS),
        next_obs=rng.normal(size=(ROWS, 2)),
        terminated=rng.random(ROWS) < 0.3,
    )


def target_networks(learner: DdpgLearner):
    """The agent with the target networks' weights in it."""
    agent = copy.deepcopy(learner.agent)
    for modules, part in ((agent.actor, learner.actor), (agent.critics, learner.critics)):
        block = torch.from_numpy(part.arrays()["targets"])
        torch.nn.utils.vector_to_parameters(block, modules.parameters())
    return agent


@torch.no_grad()
def test_the_critic_s_error_is_that_of_a_plain_loop():
    learner = learner_with_a_batch()
    agent, target, batch = copy.deepcopy(learner.agent), target_networks(learner), learner.batch
    stats = updated(learner, policy=False, targets=False)
    assert torch.isfinite(stats["qf1_errors"]).all()
    assert (batch.discounts == 0).any()
    for row in range(ROWS):
        seen, action = batch.inputs[row : row + 1, :2], batch.inputs[row : row + 1, 2:]
        following = batch.next_obs[row : row + 1]
        td_target = batch.rewards[row].item()
        if batch.discounts[row]:
            td_target += 0.99 * target.qf1(following, target.actor(following)).item()
        value = agent.qf1(seen, action).item()
        assert stats["qf1_values"][row].item() == pytest.approx(value, rel=1e-4, abs=1e-5)
        assert stats["qf1_errors"][row].item() == pytest.approx(value - td_target, rel=1e-3, abs=1e-5)


def test_gradients_are_those_of_autograd():
    learner = learner_with_a_batch()
    agent, target, batch = copy.deepcopy(learner.agent), target_networks(learner), learner.batch
    agent.zero_grad()
    obs, actions = batch.inputs.split(2, dim=1)
    with torch.no_grad():
        next_values = target.qf1(batch.next_obs, target.actor(batch.next_obs))
        td_target = batch.rewards + 0.99 * (batch.discounts > 0) * next_values
    functional.mse_loss(agent.qf1(obs, actions), td_target).backward()
    with torch.no_grad():
        updated(learner, policy=False, targets=False)
    for ours, theirs in zip(learner.agent.qf1.parameters(), agent.qf1.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)

    # Once the critic has moved, the actor climbs the new slope.
    critic = copy.deepcopy(learner.agent.qf1)
    actor = copy.deepcopy(learner.agent.actor)
    actor.zero_grad()
    loss = -critic(obs, actor(obs)).mean()
    loss.backward()
    with torch.no_grad():
        found = learner.fast.actor.improve(obs, learner.fast.critics)
    assert found.mean().item() == pytest.approx(-loss.item(), rel=1e-4)
    for ours, theirs in zip(learner.agent.actor.parameters(), actor.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-6)


@torch.no_grad()
def test_actor_and_target_networks_move_only_when_it_is_their_turn():
    learner = learner_with_a_batch()
    assert [learner.due(count)[0] for count in range(5)] == [True, False, True, False, True]
    blocks = (learner.critics.parameters.block, learner.actor.parameters.block)
    before, targets = [block.clone() for block in blocks], target_blocks(learner)
    updated(learner, policy=False, targets=False)
    assert not torch.equal(blocks[0], before[0])
    assert torch.equal(blocks[1], before[1])
    assert all(map(torch.equal, target_blocks(learner), targets))
    updated(learner, policy=True, targets=True)
    assert not torch.equal(blocks[1], before[1])
    for found, was, block in zip(target_blocks(learner), targets, blocks, strict=True):
        torch.testing.assert_close(found, 0.9 * was + 0.1 * block)


def target_blocks(learner: DdpgLearner) -> list[torch.Tensor]:
    return [torch.from_numpy(part.arrays()["targets"]) for part in (learner.critics, learner.actor)]


def test_noise_explores_within_the_bounds():
    learner = learner_with_a_batch(exploration_noise=0.1)
    obs = np.zeros((2000, 2), dtype=np.float32)
    spread = learner.act(obs, np.random.default_rng(0)) - learner.act(obs, None)
    assert spread.std(axis=0) == pytest.approx([0.1, 0.2], rel=0.1)  # a tenth of half the way between the bounds
    wild = learner_with_a_batch(exploration_noise=5.0).act(obs, np.random.default_rng(0))
    assert (wild.min(axis=0), wild.max(axis=0)) == (pytest.approx([-1, 0]), pytest.approx([1, 4]))
