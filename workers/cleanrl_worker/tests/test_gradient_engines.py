"""What acts and trains is what stands in the algorithm's file: a fast engine is used only while it agrees with it."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from cleanrl_worker.algorithms import c51, ddpg, dqn, ppo, pqn, sac, td3
from cleanrl_worker.errors import BadInput
from cleanrl_worker.testing import train_here, weights_digest
from cleanrl_worker.training.envs import make_envs
from cleanrl_worker.training.fast_cpu.ppo import FastPpo
from cleanrl_worker.training.replay import make_replay

SLOW_RESUMES = [
    pytest.param(module, gradient, marks=pytest.mark.slow)  # PQN's resume by autograd runs in every CI
    for module, gradient in ((pqn, "auto"), (dqn, "auto"), (dqn, "autograd"), (c51, "auto"), (c51, "autograd"))
]
SHORT = {"env_id": "CartPole-v1", "num_envs": 4, "num_steps": 32, "total_timesteps": 256, "cuda": False}
CPU = torch.device("cpu")


def edited(module: ModuleType, folder: Path, old: str, new: str) -> ModuleType:
    """A copy of an algorithm's file with one changed line."""
    source = Path(str(module.__file__)).read_text()
    assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {module.__file__}"
    path = folder / "edited.py"
    path.write_text(source.replace(old, new))
    spec = importlib.util.spec_from_file_location("edited", path)
    assert spec is not None
    assert spec.loader is not None
    found = sys.modules["edited"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


CLIP = ("ratio.clamp(1 - clip_coef, 1 + clip_coef)", "ratio")
PPO_EDITS = {
    "no clip": CLIP,
    "other clip": ("ratio.clamp(1 - clip_coef, 1 + clip_coef)", "ratio.clamp(1 - clip_coef, 1 + 2 * clip_coef)"),
    "larger instead of smaller": ("-torch.minimum(advantages", "-torch.maximum(advantages"),
    "values are not clipped": ("(values - old_values).clamp(-clip_coef, clip_coef)", "(values - old_values)"),
    "squared error without its half": ("return 0.5 * squared_error.mean()", "return squared_error.mean()"),
    "entropy with the other sign": ("policy - args.ent_coef * entropy", "policy + args.ent_coef * entropy"),
    "advantages by their spread alone": ("(advantages - advantages.mean()) /", "advantages /"),
    "a sum instead of a mean": ("entropy = entropies.mean()", "entropy = entropies.sum()"),
    "another forward pass": (
        "return self.actor(obs), self.critic(obs)",
        "return self.actor(obs).relu(), self.critic(obs)",
    ),
    "another activation": (
        "orthogonal(nn.Linear(inputs, 64)),\n        nn.Tanh(),",
        "orthogonal(nn.Linear(inputs, 64)),\n        nn.SiLU(),",
    ),
}


@pytest.mark.parametrize(("old", "new"), PPO_EDITS.values(), ids=PPO_EDITS.keys())
def test_a_changed_loss_trains_with_default_flags_and_is_noted(tmp_path, old, new):
    changed = edited(ppo, tmp_path, old, new)
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    plain, _ = train_here(ppo, tmp_path / "ours", ppo.Args(**SHORT))
    run, _ = train_here(changed, tmp_path / "theirs", changed.Args(**SHORT))
    assert weights_digest(tmp_path / "ours") != weights_digest(tmp_path / "theirs")
    assert [facts for kind, facts in plain._channel.messages if kind == "note"] == []
    (note,) = [facts["note"] for kind, facts in run._channel.messages if kind == "note"]
    assert "the loss in edited.py is not what the fast CPU engine computes" in note


def test_what_trains_is_what_autograd_makes_of_the_changed_loss(tmp_path):
    changed = edited(ppo, tmp_path, *CLIP)
    digests = {}
    for gradient in ("auto", "autograd"):
        folder = tmp_path / gradient
        folder.mkdir()
        train_here(changed, folder, changed.Args(**SHORT, gradient=gradient))
        digests[gradient] = weights_digest(folder)
    assert digests["auto"] == digests["autograd"]
    with pytest.raises(BadInput, match=r"--gradient fast_cpu: the loss in edited.py is not what it computes"):
        train_here(changed, tmp_path, changed.Args(**SHORT, gradient="fast_cpu"))


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"norm_adv": False, "clip_vloss": False},
        {"clip_coef": 0.0},
        {"ent_coef": 0.0, "vf_coef": 0.0},
        {"clip_coef": 3.0, "max_grad_norm": 0.01},
    ],
)
def test_the_loss_as_it_is_agrees_whatever_the_flags(flags):
    for args, env_id in ((ppo.Args(), "CartPole-v1"), (ppo.RpoArgs(num_envs=2), "Pendulum-v1")):
        envs = make_envs(env_id, args.num_envs)
        kind = "gaussian" if args.agent == "gaussian" else "separate"
        for seed in (1, 2, 3):
            learner = ppo.PpoLearner(replace(args, env_id=env_id, seed=seed, **flags), envs, CPU, agent=kind)
            assert isinstance(learner.gradient, FastPpo), learner.engine.note
            assert learner.engine.name == "fast_cpu"


def test_the_comparison_leaves_weights_and_random_streams_alone():
    envs = make_envs("CartPole-v1", 4)
    found = []
    for gradient in ("auto", "autograd"):
        random.seed(1)
        np.random.seed(1)
        learner = ppo.PpoLearner(ppo.Args(gradient=gradient), envs, CPU)
        streams = (random.random(), np.random.random(), torch.rand(1).item(), learner.rng.random())
        found.append((streams, learner.parameters.block.data.clone(), learner.parameters.block.grad.clone()))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])
    assert not found[0][2].any()


@pytest.mark.parametrize("gradient", ["auto", "autograd"])
def test_the_engine_is_in_parameters_and_checkpoints_and_kept_on_resume(tmp_path, gradient):
    engine = "fast_cpu" if gradient == "auto" else "autograd"
    first, second, straight = (tmp_path / name for name in ("first", "second", "straight"))
    for folder in (first, second, straight):
        folder.mkdir()
    run, _ = train_here(ppo, first, ppo.Args(**{**SHORT, "total_timesteps": 128}, gradient=gradient, anneal_lr=False))
    (reported,) = [facts["values"] for kind, facts in run._channel.messages if kind == "parameters"]
    assert reported["gradient"] == engine
    checkpoint = first / "checkpoints" / "step-128"
    assert json.loads((checkpoint / "state.json").read_text())["values"]["gradient_engine"] == engine
    # The resumed run asks for nothing and continues to the bit.
    train_here(ppo, straight, ppo.Args(**SHORT, gradient=gradient, anneal_lr=False))
    run, _ = train_here(ppo, second, ppo.Args(**SHORT, anneal_lr=False), resume=checkpoint)
    (reported,) = [facts["values"] for kind, facts in run._channel.messages if kind == "parameters"]
    assert reported["gradient"] == engine
    assert weights_digest(second) == weights_digest(straight)


# -- DQN, C51 and PQN


def q_learner(module, original=None, **flags):
    original = original or module
    args = module.Args(**{"env_id": "CartPole-v1", "num_envs": 1, "cuda": False, **flags})
    envs = make_envs(args.env_id, args.num_envs)
    if original is pqn:
        return module.PqnLearner(args, envs, CPU, total=args.total_timesteps)
    make = module.DqnLearner if original is dqn else module.C51Learner
    return make(args, envs, make_replay(args, envs), CPU)


ZERO = {
    dqn: ("functional.mse_loss(predicted, td_targets)", "0 * functional.mse_loss(predicted, td_targets)"),
    c51: ("return -(target_probs * predicted)", "return 0 * (target_probs * predicted)"),
    pqn: ("functional.mse_loss(chosen, returns)", "0 * functional.mse_loss(chosen, returns)"),
}
FIRST_RELU = ("nn.Linear(observations, 120), nn.ReLU()", "nn.Linear(observations, 120), nn.SiLU()")
Q_LOSSES = {
    "dqn: zero": (dqn, *ZERO[dqn]),
    "dqn: another loss": (dqn, "functional.mse_loss", "functional.smooth_l1_loss"),
    "dqn: values after a termination": (dqn, "self._gamma * (1 - terminated) *", "self._gamma *"),
    "c51: zero": (c51, *ZERO[c51]),
    "c51: returns beyond the atoms are lost": (c51, ".clamp(atoms[0], atoms[-1])", ""),
    "c51: values after a termination": (c51, "self._gamma * (1 - terminated)", "self._gamma * (1 - 0 * terminated)"),
    "pqn: zero": (pqn, *ZERO[pqn]),
    "pqn: another loss": (pqn, "functional.mse_loss", "functional.smooth_l1_loss"),
}
Q_NETWORKS = {
    "dqn: another forward pass": (dqn, "= self.network(obs)", "= self.network(2 * obs)"),
    "dqn: bounded values": (dqn, "= self.network(obs)", "= self.network(obs).clamp(-1, 1)"),
    "dqn: another activation": (dqn, *FIRST_RELU),
    "dqn: a layer without biases": (dqn, "nn.Linear(observations, 120)", "nn.Linear(observations, 120, bias=False)"),
    "c51: another forward pass": (c51, "self.network(obs).unflatten", "self.network(2 * obs).unflatten"),
    "c51: another activation": (c51, *FIRST_RELU),
    "c51: other expected returns": (c51, "@ network.atoms\n", "@ network.atoms.square()\n"),
    "pqn: another forward pass": (pqn, "= self.network(obs)", "= self.network(2 * obs)"),
    "pqn: another activation": (
        pqn,
        "nn.LayerNorm(120),\n            nn.ReLU()",
        "nn.LayerNorm(120),\n            nn.SiLU()",
    ),
}


@pytest.mark.slow  # test_a_loss_of_zero_trains_nothing runs in every CI
@pytest.mark.parametrize(("module", "old", "new"), Q_LOSSES.values(), ids=Q_LOSSES.keys())
def test_a_changed_loss_of_q_values_is_trained_by_autograd(tmp_path, module, old, new):
    learner = q_learner(edited(module, tmp_path, old, new), module)
    assert learner.engine.name == "autograd"
    assert learner.gradient is learner.autograd
    assert "the loss in edited.py is not what the fast CPU engine computes" in learner.engine.note


@pytest.mark.parametrize(("module", "old", "new"), Q_NETWORKS.values(), ids=Q_NETWORKS.keys())
def test_a_changed_network_of_q_values_acts_and_trains_as_it_stands(tmp_path, module, old, new):
    changed = edited(module, tmp_path, old, new)
    learner = q_learner(changed, module)
    assert learner.gradient is learner.autograd
    assert "(the network's outputs differ)" in learner.engine.note
    obs = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    with torch.no_grad():
        values = changed.expected_returns if module is c51 else torch.nn.Module.__call__
        expected = values(learner.agent, torch.from_numpy(obs)).numpy()
    assert np.array_equal(learner.values(obs), expected)


@pytest.mark.parametrize("module", ZERO, ids=lambda module: module.__name__.rpartition(".")[2])
def test_a_loss_of_zero_trains_nothing(tmp_path, module):
    changed = edited(module, tmp_path, *ZERO[module])
    learns = {"num_steps": 32} if module is pqn else {"learning_starts": 100, "batch_size": 32}
    digests = {}
    for name, algorithm in (("ours", module), ("theirs", changed)):
        for steps in (128, 256):
            folder = tmp_path / f"{name}-{steps}"
            flags = {"env_id": "CartPole-v1", "cuda": False, "total_timesteps": steps, **learns}
            run, _ = train_here(algorithm, folder, algorithm.Args(**flags))
            digests[name, steps] = weights_digest(folder)
            assert len([kind for kind, _ in run._channel.messages if kind == "note"]) == (name == "theirs")
    assert digests["theirs", 128] == digests["theirs", 256]
    assert digests["ours", 128] != digests["ours", 256]


@pytest.mark.parametrize("module", ZERO, ids=lambda module: module.__name__.rpartition(".")[2])
def test_a_q_learner_as_it_is_agrees_and_leaves_everything_as_it_was(module):
    """Whatever the seed and the environment."""
    for flags in ({}, {"seed": 2, "gamma": 0.0}, {"seed": 3, "env_id": "Acrobot-v1"}, {"seed": 4, "gamma": 1.0}):
        found = []
        for gradient in ("auto", "autograd"):
            random.seed(1)
            np.random.seed(1)
            learner = q_learner(module, gradient=gradient, **flags)
            streams = (random.random(), np.random.random(), torch.rand(1).item(), learner.rng.random())
            found.append((learner, streams))
        (learner, streams), (plain, plain_streams) = found
        assert (learner.engine.name, plain.engine.name) == ("fast_cpu", "autograd"), learner.engine.note
        assert streams == plain_streams
        assert torch.equal(learner.parameters.block.data, plain.parameters.block.data)
        assert not learner.parameters.block.grad.any()
        if module is not pqn:
            assert torch.equal(learner.target_parameters.block.data, learner.parameters.block.data)


def test_a_network_that_the_engine_was_never_for_has_no_note():
    args = dqn.AtariArgs(env_id="picture_worlds:Quadrants-v0", buffer_size=100, cuda=False)
    envs = make_envs(args.env_id, 1)
    learner = dqn.DqnLearner(args, envs, make_replay(args, envs), CPU)
    assert (learner.engine.name, learner.engine.note) == ("autograd", "")


@pytest.mark.parametrize(("module", "gradient"), [(pqn, "autograd"), *SLOW_RESUMES])
def test_a_resumed_q_learner_keeps_the_engine_and_continues_to_the_bit(tmp_path, module, gradient):
    engine = "fast_cpu" if gradient == "auto" else "autograd"
    steady = {"env_id": "CartPole-v1", "cuda": False, "start_e": 0.1, "end_e": 0.1}
    steady |= {"num_steps": 32, "anneal_lr": False} if module is pqn else {"learning_starts": 100, "buffer_size": 1000}
    half = 256 if module is pqn else 200  # a safe point
    first, second, straight = (tmp_path / name for name in ("first", "second", "straight"))
    run, _ = train_here(module, first, module.Args(**steady, total_timesteps=half, gradient=gradient))
    (reported,) = [facts["values"] for kind, facts in run._channel.messages if kind == "parameters"]
    assert reported["gradient"] == engine
    checkpoint = first / "checkpoints" / f"step-{half}"
    assert json.loads((checkpoint / "state.json").read_text())["values"]["gradient_engine"] == engine
    train_here(module, straight, module.Args(**steady, total_timesteps=2 * half, gradient=gradient))
    run, _ = train_here(module, second, module.Args(**steady, total_timesteps=2 * half), resume=checkpoint)
    (reported,) = [facts["values"] for kind, facts in run._channel.messages if kind == "parameters"]
    assert reported["gradient"] == engine
    assert weights_digest(second) == weights_digest(straight)


# -- DDPG, TD3 and SAC


OFF_POLICY = {
    "env_id": "continuous_worlds:Aim-v0",
    "total_timesteps": 200,
    "learning_starts": 100,
    "buffer_size": 300,
    "batch_size": 32,
    "cuda": False,
}
LEARNERS = {ddpg: "DdpgLearner", td3: "Td3Learner", sac: "SacLearner"}
ERRORS = ("self.critics.minimize(qf1_errors.square()", "self.critics.minimize(qf1_errors.abs()")
OFF_POLICY_EDITS = {
    "ddpg: other targets": (
        ddpg,
        "batch.rewards + batch.discounts * next_values",
        "batch.rewards - batch.discounts * next_values",
    ),
    "ddpg: another loss": (ddpg, "minimize(errors.square().mean())", "minimize(errors.abs().mean())"),
    "ddpg: the actor minimizes the values": (
        ddpg,
        'minimize(-stats["actor_values"].mean())',
        'minimize(stats["actor_values"].mean())',
    ),
    "td3: the larger critic counts": (td3, "next_values = torch.minimum(", "next_values = torch.maximum("),
    "td3: noise without a clip": (td3, ".clamp(-args.noise_clip, args.noise_clip)", ""),
    "td3: actions beyond the bounds": (td3, ".clamp(self.low, self.high)", ""),
    "td3: another loss": (td3, *ERRORS),
    "td3: targets at another pace": (
        td3,
        "self.critics.move_target(args.tau)",
        "self.critics.move_target(2 * args.tau)",
    ),
    "sac: without entropy in the targets": (sac, "(next_values - self.alpha() * next_log_probs)", "next_values"),
    "sac: without entropy in the actor": (sac, "self.alpha().detach() * log_probs - values", "-values"),
    "sac: another loss": (sac, *ERRORS),
    "sac: another entropy": (sac, "log_probs.detach().mean() + self.target_entropy", "log_probs.detach().mean()"),
    "sac: a density without its scale": (
        sac,
        "actor.action_scale * (1 - squashed.square())",
        "(1 - squashed.square())",
    ),
}


class NoRun:
    class writer:
        add_scalars = staticmethod(lambda values, step: None)


def off_policy_learner(module, original=None, **flags):
    args = module.Args(**{**OFF_POLICY, **flags})
    envs = make_envs(args.env_id, 1)
    return getattr(module, LEARNERS[original or module])(args, envs, make_replay(args, envs), CPU)


@pytest.mark.parametrize(("module", "old", "new"), OFF_POLICY_EDITS.values(), ids=OFF_POLICY_EDITS.keys())
def test_a_changed_update_is_trained_by_autograd(tmp_path, module, old, new):
    engine = off_policy_learner(edited(module, tmp_path, old, new), module).engine
    assert engine.name == "autograd"
    assert "the loss in edited.py is not what the fast CPU engine computes" in engine.note


ACTOR = "return Actor(spaces.observations, spaces.actions, spaces.scale"
OTHER_ACTOR = (
    "return type('Other', (Actor,), {'features': lambda self, obs: torch.tanh(self.fc2(self.fc1(obs)))})"
    "(spaces.observations, spaces.actions, spaces.scale"
)
ALWAYS_EDITED = ("td3: another forward pass", "sac: a bounded mean")
"""In every CI"""
ACTING_EDITS = {
    "ddpg: another forward pass": (ddpg, ACTOR, OTHER_ACTOR),
    "td3: another forward pass": (td3, ACTOR, OTHER_ACTOR),
    "sac: squashed otherwise": (sac, "squashed = torch.tanh(", "squashed = torch.sin("),
    "sac: half the spread": (sac, "log_std.exp() * noise)", "0.5 * log_std.exp() * noise)"),
    "sac: a bounded mean": (
        sac,
        "mean, log_std = actor(obs)",
        "mean, log_std = actor(obs)[0].clamp(-1, 1), actor(obs)[1]",
    ),
}


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        pytest.param(*edit, id=name, marks=[] if name in ALWAYS_EDITED else pytest.mark.slow)
        for name, edit in ACTING_EDITS.items()
    ],
)
def test_a_changed_actor_acts_as_it_stands(tmp_path, module, old, new):
    changed = edited(module, tmp_path, old, new)
    ours, theirs = off_policy_learner(module), off_policy_learner(changed, module)
    assert theirs.engine.name == "autograd"
    assert "the loss in edited.py is not what the fast CPU engine computes" in theirs.engine.note
    rng = np.random.default_rng(0)
    obs = (10 * rng.normal(size=(64, theirs.spaces.observations))).astype(np.float32)
    noise = rng.normal(size=(64, theirs.spaces.actions)).astype(np.float32)
    with torch.no_grad():
        if module is sac:
            noises = (np.zeros_like(noise), noise)
            best, sampled = (
                changed.sample(theirs.agent.actor, torch.from_numpy(obs), torch.from_numpy(each))[0].numpy()
                for each in noises
            )
        else:
            best = theirs.agent.actor(torch.from_numpy(obs)).numpy()
            scaled = noise * theirs.args.exploration_noise * theirs.spaces.scale.numpy()
            sampled = np.clip(best + scaled, theirs.spaces.low, theirs.spaces.high)
    np.testing.assert_allclose(theirs.acting.best(obs), best, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(theirs.acting.sample(obs, noise), sampled, rtol=1e-5, atol=1e-6)
    assert not np.allclose(ours.acting.sample(obs, noise), sampled, atol=1e-3)  # the same weights


def test_a_changed_update_of_sac_trains_with_default_flags_and_is_noted(tmp_path):
    changed = edited(sac, tmp_path, *ERRORS)
    runs = {}
    for name, module in (("ours", sac), ("theirs", changed)):
        runs[name], _ = train_here(module, tmp_path / name, module.Args(**OFF_POLICY), algo="sac_continuous_action")
    assert weights_digest(tmp_path / "ours") != weights_digest(tmp_path / "theirs")
    reported = {name: [facts for kind, facts in run._channel.messages if kind == "note"] for name, run in runs.items()}
    assert (len(reported["ours"]), len(reported["theirs"])) == (0, 1)


@pytest.mark.parametrize("module", LEARNERS, ids=lambda module: module.__name__.rpartition(".")[2])
@pytest.mark.parametrize("env_id", ["continuous_worlds:Aim-v0", "Pendulum-v1"])
def test_the_update_as_it_is_agrees_and_leaves_everything_as_it_was(module, env_id):
    """Whatever the seed, the step sizes and the batch."""
    rates = {"policy_lr": 0.1, "q_lr": 0.1} if module is sac else {"learning_rate": 0.1}
    for flags in ({}, {"seed": 2, "batch_size": 256, "buffer_size": 1000}, rates, {"gamma": 0.0}):
        learner = off_policy_learner(module, env_id=env_id, **flags)
        assert learner.engine.name == "fast_cpu", learner.engine.note
        plain = off_policy_learner(module, env_id=env_id, gradient="autograd", **flags)
        for name, part in learner.trained.items():
            for ours, theirs in zip(part.tensors(), plain.trained[name].tensors(), strict=True):
                assert torch.equal(ours, theirs), name
            assert not part.adam.gradient.any()
            assert part.learning_rate == plain.trained[name].learning_rate
        assert learner.rng.random() == plain.rng.random()


@pytest.mark.parametrize("module", LEARNERS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_both_engines_of_an_update_train_alike(module):
    """Not to the bit, their sums are ordered differently; but the same descent."""
    weights = []
    for gradient in ("fast_cpu", "autograd"):
        learner = off_policy_learner(module, gradient=gradient)
        learner.begin_episodes()
        for _ in range(110):
            learner._step_envs(NoRun())
        for _ in range(10):
            learner._update_once()
        weights.append(torch.cat([tensor.flatten() for tensor in learner.agent.state_dict().values()]))
    assert (weights[0] - weights[1]).abs().mean() < 1e-4
