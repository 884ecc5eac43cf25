"""SAC's arithmetic against plain loops and autograd; what it shares with DDPG and TD3 is in test_off_policy.py."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from cleanrl_worker.agents.continuous import GaussianActor
from cleanrl_worker.algorithms.sac import Args, SacLearner
from cleanrl_worker.training.envs import make_envs
from cleanrl_worker.training.replay import Transitions, make_replay
from torch.distributions import AffineTransform, Normal, TanhTransform, TransformedDistribution
from torch.nn import functional

ROWS = 48
ENGINE = "fast_cpu"
CRITICS_AT_ZERO = {f"qf{number}_{what}": torch.zeros(1) for number in (1, 2) for what in ("values", "errors")}
LOW, HIGH, SCALE, BIAS = (-1.0, 0.0), (1.0, 4.0), (1.0, 2.0), (0.0, 2.0)


@pytest.fixture(autouse=True, params=["fast_cpu", "autograd"])
def engine(request):
    """Both are the algorithm: the update in its file by autograd, and the fast engine."""
    global ENGINE
    ENGINE = request.param


def updated(learner, *due, **flags):
    update = learner.fast.update if ENGINE == "fast_cpu" else torch.enable_grad()(learner.update)
    return update(*due, **flags)


def learner_with_a_batch(**flags) -> SacLearner:
    """Bounds are not symmetric, networks and target networks differ, some rows are terminal."""
    args = Args(env_id="continuous_worlds:Aim-v0", batch_size=ROWS, buffer_size=100, tau=0.1, **flags)
    envs, rng = make_envs(args.env_id, 1), np.random.default_rng(0)
    learner = SacLearner(args, envs, make_replay(args, envs), torch.device("cpu"))
    for part in (learner.actor, learner.critics):
        noise = rng.normal(0, 0.05, size=part.parameters.block.shape).astype(np.float32)
        part.parameters.block.data.add_(torch.from_numpy(noise))
    learner.log_alpha.log_alpha.data.fill_(math.log(0.3))
    transitions = Transitions(
        obs=rng.normal(size=(ROWS, 2)),
        actions=rng.uniform(LOW, HIGH, size=(ROWS, 2)),
        rewards=rng.normal(size=ROWS),
        next_obs=3 * rng.normal(size=(ROWS, 2)),
        terminated=rng.random(ROWS) < 0.3,
    )
    learner.batch.fill(transitions, rng, noises=1 + args.policy_frequency)
    return learner


def target_critics(learner: SacLearner):
    """The agent with the target networks' weights in its critics."""
    agent = copy.deepcopy(learner.agent)
    block = torch.from_numpy(learner.critics.arrays()["targets"])
    torch.nn.utils.vector_to_parameters(block, agent.critics.parameters())
    return agent


def sample(actor: GaussianActor, obs: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Actions and log-probabilities by autograd, as the paper's appendix C has them."""
    mean, log_std = actor(obs)
    normal = Normal(mean, log_std.exp())
    x = mean + log_std.exp() * noise
    y = torch.tanh(x)
    log_probs = normal.log_prob(x) - torch.log(actor.action_scale * (1 - y.square()) + 1e-6)
    return y * actor.action_scale + actor.action_bias, log_probs.sum(dim=1, keepdim=True)


# -- the squashed Gaussian


@torch.no_grad()
def test_log_probabilities_are_those_of_a_stretched_and_squashed_gaussian():
    learner = learner_with_a_batch()
    actor, batch = learner.agent.actor, learner.batch
    found = learner.fast.actor.sample(batch.obs, batch.noise[0])
    mean, log_std = actor(batch.obs)
    assert ((log_std > -5) & (log_std < 2)).all()
    scale, bias = torch.tensor(SCALE).double(), torch.tensor(BIAS).double()
    squashed = TransformedDistribution(
        Normal(mean.double(), log_std.double().exp()), [TanhTransform(cache_size=1), AffineTransform(bias, scale)]
    )
    expected = squashed.log_prob(found.actions.double()).sum(dim=1, keepdim=True)
    inside = (found.squashed.abs() < 0.99).all(dim=1)  # near the bounds the paper's 1e-6 is not nothing
    assert inside.sum() > ROWS / 2
    torch.testing.assert_close(found.log_probs[inside].double(), expected[inside], rtol=1e-3, atol=1e-3)
    for row in range(ROWS):  # and in plain numbers
        total = 0.0
        for i in range(2):
            std, noise = math.exp(log_std[row, i]), batch.noise[0, row, i].item()
            y = math.tanh(mean[row, i].item() + std * noise)
            total += -0.5 * noise**2 - math.log(std) - 0.5 * math.log(2 * math.pi)
            total -= math.log(SCALE[i] * (1 - y * y) + 1e-6)
            assert found.actions[row, i].item() == pytest.approx(SCALE[i] * y + BIAS[i], rel=1e-4, abs=1e-5)
        assert found.log_probs[row].item() == pytest.approx(total, rel=2e-3, abs=2e-3)


def test_acting_samples_the_same_distribution():
    learner = learner_with_a_batch()
    obs = np.random.default_rng(1).normal(size=(1, 2)).astype(np.float32).repeat(4000, axis=0)
    sampled = learner.act(obs, np.random.default_rng(2))
    with torch.no_grad():
        noise = torch.from_numpy(np.random.default_rng(2).standard_normal((4000, 2), dtype=np.float32))
        expected = learner.fast.actor.sample(torch.from_numpy(obs), noise).actions.numpy()
        mean, _ = learner.agent.actor(torch.from_numpy(obs[:1]))
    np.testing.assert_allclose(sampled, expected, rtol=1e-3, atol=1e-3)
    best = np.tanh(mean.numpy()) * SCALE + BIAS
    np.testing.assert_allclose(learner.act(obs[:1], None), best, rtol=1e-4, atol=1e-5)


# -- losses


@torch.no_grad()
@pytest.mark.parametrize("autotune", [True, False])
def test_both_critics_errors_are_those_of_a_plain_loop(autotune):
    learner = learner_with_a_batch(autotune=autotune, alpha=0.7)
    alpha = 0.3 if autotune else 0.7
    agent, target, batch = copy.deepcopy(learner.agent), target_critics(learner), learner.batch
    stats = updated(learner, policy=False, targets=False)
    lesser_first = 0
    for row in range(ROWS):
        seen, action = batch.inputs[row : row + 1, :2], batch.inputs[row : row + 1, 2:]
        following = batch.next_obs[row : row + 1]
        next_action, log_prob = sample(agent.actor, following, batch.noise[0, row : row + 1])
        next_values = [q(following, next_action).item() for q in (target.qf1, target.qf2)]
        lesser_first += next_values[0] < next_values[1]
        td_target = batch.rewards[row].item()
        if batch.discounts[row]:
            td_target += 0.99 * (min(next_values) - alpha * log_prob.item())
        for name, critic in (("qf1", agent.qf1), ("qf2", agent.qf2)):
            value = critic(seen, action).item()
            assert stats[f"{name}_values"][row].item() == pytest.approx(value, rel=1e-4, abs=1e-5)
            assert stats[f"{name}_errors"][row].item() == pytest.approx(value - td_target, rel=2e-3, abs=1e-4)
    assert 0 < lesser_first < ROWS


def test_gradients_are_those_of_autograd():
    learner = learner_with_a_batch()
    agent, target, batch = copy.deepcopy(learner.agent), target_critics(learner), learner.batch
    agent.zero_grad()
    obs, actions = batch.inputs.split(2, dim=1)
    with torch.no_grad():
        next_actions, log_probs = sample(agent.actor, batch.next_obs, batch.noise[0])
        next_values = torch.minimum(*(q(batch.next_obs, next_actions) for q in (target.qf1, target.qf2)))
        td_target = batch.rewards + 0.99 * (batch.discounts > 0) * (next_values - 0.3 * log_probs)
    sum(functional.mse_loss(critic(obs, actions), td_target) for critic in (agent.qf1, agent.qf2)).backward()
    with torch.no_grad():
        updated(learner, policy=False, targets=False)
    for ours, theirs in zip(learner.agent.critics.parameters(), agent.critics.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=2e-5)

    agent = copy.deepcopy(learner.agent)  # the critics have moved
    agent.zero_grad()
    drawn, log_probs = sample(agent.actor, obs, batch.noise[1])
    loss = (0.3 * log_probs - torch.minimum(agent.qf1(obs, drawn), agent.qf2(obs, drawn))).mean()
    loss.backward()
    with torch.no_grad():
        stats = learner.fast.improve_policy(obs, batch.noise[1])
    assert stats["actor_losses"].mean().item() == pytest.approx(loss.item(), rel=1e-3)
    for ours, theirs in zip(learner.agent.actor.parameters(), agent.actor.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=2e-3, atol=1e-5)


def test_alpha_follows_the_entropy():
    learner = learner_with_a_batch(q_lr=1e-2)
    obs, noise = learner.batch.obs, learner.batch.noise[1]
    log_alpha = torch.tensor([math.log(0.3)], requires_grad=True)
    optimizer = torch.optim.Adam([log_alpha], lr=1e-2)
    for _ in range(3):
        with torch.no_grad():
            log_probs = sample(learner.agent.actor, obs, noise)[1]
            stats = learner.fast.improve_policy(obs, noise)
        loss = (-log_alpha.exp() * (log_probs - 2)).mean()  # the target: minus the number of actions
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert stats["alpha_loss"].item() == pytest.approx(loss.item(), rel=2e-3)
        assert stats["alpha"].item() == pytest.approx(log_alpha.exp().item(), rel=1e-4)
    assert learner.charts({**CRITICS_AT_ZERO, **stats})["losses/alpha"] == stats["alpha"].item()
    fixed = learner_with_a_batch(autotune=False, alpha=0.7)
    with torch.no_grad():
        charts = fixed.charts(updated(fixed, policy=True, targets=True))
    assert charts["losses/alpha"] == pytest.approx(0.7)
    assert "losses/actor_loss" in charts
    assert "losses/alpha_loss" not in charts


@torch.no_grad()
def test_the_actor_moves_as_often_as_it_was_waited_for_and_targets_at_their_own_pace():
    learner = learner_with_a_batch(policy_frequency=3, target_network_frequency=2)
    due = [learner.due(count) for count in range(4)]
    assert due == [(True, True), (False, False), (False, True), (True, False)]
    assert [learner.noises(policy) for policy in (False, True)] == [1, 4]
    actor, critics = learner.actor.parameters.block, learner.critics.parameters.block
    before, targets = actor.clone(), torch.from_numpy(learner.critics.arrays()["targets"])
    updated(learner, *due[1])
    assert torch.equal(actor, before)
    assert torch.equal(torch.from_numpy(learner.critics.arrays()["targets"]), targets)
    updated(learner, *due[2])
    torch.testing.assert_close(torch.from_numpy(learner.critics.arrays()["targets"]), 0.9 * targets + 0.1 * critics)
    updated(learner, *due[3])
    assert learner.actor.adam.arrays()["step"] == 3
    assert not torch.equal(actor, before)
