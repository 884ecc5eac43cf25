"""TD3's arithmetic against plain loops and autograd; what it shares with DDPG and SAC is in test_off_policy.py."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from cleanrl_worker.algorithms.td3 import Args, Td3Learner
from cleanrl_worker.training.envs import make_envs
from cleanrl_worker.training.replay import Transitions, make_replay
from torch.nn import functional

ROWS = 48
ENGINE = "fast_cpu"
LOW, HIGH, SCALE = (-1.0, 0.0), (1.0, 4.0), (1.0, 2.0)


@pytest.fixture(autouse=True, params=["fast_cpu", "autograd"])
def engine(request):
    """Both are the algorithm: the update in its file by autograd, and the fast engine."""
    global ENGINE
    ENGINE = request.param


def updated(learner, *due, **flags):
    update = learner.fast.update if ENGINE == "fast_cpu" else torch.enable_grad()(learner.update)
    return update(*due, **flags)


def learner_with_a_batch(**flags) -> Td3Learner:
    """Bounds are not symmetric, networks and target networks differ, some rows are terminal."""
    args = Args(env_id="continuous_worlds:Aim-v0", batch_size=ROWS, buffer_size=100, tau=0.1, **flags)
    envs, rng = make_envs(args.env_id, 1), np.random.default_rng(0)
    learner = Td3Learner(args, envs, make_replay(args, envs), torch.device("cpu"))
    for part in (learner.actor, learner.critics):
        noise = rng.normal(0, 0.05, size=part.parameters.block.shape).astype(np.float32)
        part.parameters.block.data.add_(torch.from_numpy(noise))
    transitions = Transitions(
        obs=rng.normal(size=(ROWS, 2)),
        actions=rng.uniform(LOW, HIGH, size=(ROWS, 2)),
        rewards=rng.normal(size=ROWS),
        next_obs=3 * rng.normal(size=(ROWS, 2)),
        terminated=rng.random(ROWS) < 0.3,
    )
    learner.batch.fill(transitions, rng, noises=1)
    return learner


def target_networks(learner: Td3Learner):
    """The agent with the target networks' weights in it."""
    agent = copy.deepcopy(learner.agent)
    for modules, part in ((agent.actor, learner.actor), (agent.critics, learner.critics)):
        block = torch.from_numpy(part.arrays()["targets"])
        torch.nn.utils.vector_to_parameters(block, modules.parameters())
    return agent


@torch.no_grad()
def test_both_critics_errors_are_those_of_a_plain_loop_with_target_smoothing():
    learner = learner_with_a_batch(policy_noise=0.6, noise_clip=0.5)
    agent, target, batch = copy.deepcopy(learner.agent), target_networks(learner), learner.batch
    noise = batch.noise[0].clone()
    stats = updated(learner, policy=False, targets=False)
    clipped = at_bounds = lesser_first = 0
    for row in range(ROWS):
        seen, action = batch.inputs[row : row + 1, :2], batch.inputs[row : row + 1, 2:]
        following = batch.next_obs[row : row + 1]
        next_action = target.actor(following)[0].tolist()
        for i in range(2):
            smoothing = min(max(0.6 * noise[row, i].item(), -0.5), 0.5)
            clipped += abs(smoothing) == 0.5
            smoothed = next_action[i] + smoothing * SCALE[i]
            next_action[i] = min(max(smoothed, LOW[i]), HIGH[i])
            at_bounds += next_action[i] != smoothed
        next_values = [q(following, torch.tensor([next_action])).item() for q in (target.qf1, target.qf2)]
        lesser_first += next_values[0] < next_values[1]
        td_target = batch.rewards[row].item() + (0.99 * min(next_values) if batch.discounts[row] else 0)
        for name, critic in (("qf1", agent.qf1), ("qf2", agent.qf2)):
            value = critic(seen, action).item()
            assert stats[f"{name}_values"][row].item() == pytest.approx(value, rel=1e-4, abs=1e-5)
            assert stats[f"{name}_errors"][row].item() == pytest.approx(value - td_target, rel=1e-3, abs=1e-5)
    # Every branch of the loop was taken.
    assert 0 < clipped < 2 * ROWS
    assert 0 < at_bounds < 2 * ROWS
    assert 0 < lesser_first < ROWS


def test_gradients_are_those_of_autograd():
    learner = learner_with_a_batch()
    agent, target, batch = copy.deepcopy(learner.agent), target_networks(learner), learner.batch
    agent.zero_grad()
    obs, actions = batch.inputs.split(2, dim=1)
    low, high, scale = (torch.tensor(bound) for bound in (LOW, HIGH, SCALE))
    with torch.no_grad():
        smoothing = (0.2 * batch.noise[0]).clamp(-0.5, 0.5) * scale
        next_actions = (target.actor(batch.next_obs) + smoothing).clamp(low, high)
        next_values = torch.minimum(*(q(batch.next_obs, next_actions) for q in (target.qf1, target.qf2)))
        td_target = batch.rewards + 0.99 * (batch.discounts > 0) * next_values
    sum(functional.mse_loss(critic(obs, actions), td_target) for critic in (agent.qf1, agent.qf2)).backward()
    with torch.no_grad():
        updated(learner, policy=False, targets=False)
    for name in ("qf1", "qf2"):
        critics = (getattr(learner.agent, name), getattr(agent, name))
        for ours, theirs in zip(*(critic.parameters() for critic in critics), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)

    # Once the critics have moved, the actor climbs the slope of the first.
    critic, actor = copy.deepcopy(learner.agent.qf1), copy.deepcopy(learner.agent.actor)
    actor.zero_grad()
    loss = -critic(obs, actor(obs)).mean()
    loss.backward()
    with torch.no_grad():
        found = learner.fast.actor.improve(obs, learner.fast.critics)
    assert found.mean().item() == pytest.approx(-loss.item(), rel=1e-4)
    for ours, theirs in zip(learner.agent.actor.parameters(), actor.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-6)


def test_weights_move_as_torch_s_adam_would_move_them():
    learner = learner_with_a_batch(learning_rate=1e-2)
    agent = copy.deepcopy(learner.agent)
    optimizer = torch.optim.Adam(agent.critics.parameters(), lr=1e-2)
    for _ in range(3):
        with torch.no_grad():
            updated(learner, policy=False, targets=False)
        for ours, theirs in zip(learner.agent.critics.parameters(), agent.critics.parameters(), strict=True):
            theirs.grad = ours.grad.clone()
        optimizer.step()
    for ours, theirs in zip(learner.agent.critics.parameters(), agent.critics.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_charts_show_means_of_the_batch():
    learner = learner_with_a_batch()
    stats = updated(learner, policy=True, targets=True)
    charts = learner.charts(stats)
    losses = [np.mean(stats[f"{name}_errors"].numpy() ** 2) for name in ("qf1", "qf2")]
    assert charts["losses/qf1_loss"] == pytest.approx(losses[0], rel=1e-5)
    assert charts["losses/qf2_loss"] == pytest.approx(losses[1], rel=1e-5)
    assert charts["losses/qf_loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert charts["losses/qf2_values"] == pytest.approx(stats["qf2_values"].numpy().mean(), rel=1e-5)
    assert charts["losses/actor_loss"] == pytest.approx(-stats["actor_values"].numpy().mean(), rel=1e-5)
    assert "losses/actor_loss" not in learner.charts(updated(learner, policy=False, targets=False))


@torch.no_grad()
def test_the_policy_is_delayed_and_targets_follow_it():
    learner = learner_with_a_batch(policy_frequency=3)
    assert [learner.due(count) for count in range(5)] == [
        (True,) * 2,
        (False,) * 2,
        (False,) * 2,
        (True,) * 2,
        (False,) * 2,
    ]
    blocks = (learner.critics.parameters.block, learner.actor.parameters.block)
    before, targets = [block.clone() for block in blocks], target_blocks(learner)
    updated(learner, *learner.due(1))
    assert not torch.equal(blocks[0], before[0])
    assert torch.equal(blocks[1], before[1])
    assert all(map(torch.equal, target_blocks(learner), targets))
    updated(learner, *learner.due(3))
    assert not torch.equal(blocks[1], before[1])
    for found, was, block in zip(target_blocks(learner), targets, blocks, strict=True):
        torch.testing.assert_close(found, 0.9 * was + 0.1 * block)


def target_blocks(learner: Td3Learner) -> list[torch.Tensor]:
    return [torch.from_numpy(part.arrays()["targets"]) for part in (learner.critics, learner.actor)]
