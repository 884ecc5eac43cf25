"""PPO with random network distillation: what is new is worth something, the arithmetic is right, a resume is exact."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cleanrl_worker.algorithms import ppo_rnd
from cleanrl_worker.algorithms.ppo_rnd import (
    Args,
    Batch,
    IntrinsicRewardScale,
    RNDAgent,
    RndLearner,
    RNDModel,
    rnd_losses,
)
from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.testing import charts, train_here, weights_digest
from cleanrl_worker.training.channel import Command
from cleanrl_worker.training.envs import make_envs
from torch.nn import functional

CPU = torch.device("cpu")
WORLD = {"env_id": "picture_worlds:Quadrants-v0", "env_backend": "sync", "num_envs": 4, "num_minibatches": 2}
SHORT = {**WORLD, "num_steps": 5, "total_timesteps": 60, "update_epochs": 1, "num_iterations_obs_norm_init": 2}


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    torch.set_num_threads(1)


class NoRun:
    class writer:
        add_scalars = staticmethod(lambda values, step: None)

    @staticmethod
    def report_alive():
        pass


def learner_of(**flags) -> RndLearner:
    args = Args(**{**SHORT, **flags})
    learner = RndLearner(args, make_envs(args.env_id, args.num_envs), CPU, total=10_000)
    learner.begin_episodes()
    while learner.warmups < args.num_iterations_obs_norm_init:
        learner.warm_up(NoRun())
    return learner


# -- arithmetic


def test_intrinsic_rewards_are_divided_by_the_standard_deviation_of_their_returns():
    rng = np.random.default_rng(0)
    scale, sums, seen = IntrinsicRewardScale(2, 0.9), np.zeros(2), []
    for _ in range(3):  # the sums go on from one rollout to the next
        rewards = rng.random((50, 2))
        found = scale.scaled(rewards)
        for row in rewards:
            sums = 0.9 * sums + row
            seen += sums.tolist()
        np.testing.assert_allclose(found, rewards / np.std(seen), rtol=1e-3)


def test_the_objective_equals_plain_arithmetic():
    torch.manual_seed(0)
    agent, rnd, rng = RNDAgent(4, 3), RNDModel(), np.random.default_rng(1)
    rows = 6
    obs = torch.randint(0, 255, (rows, 4, 84, 84), dtype=torch.uint8)
    frames = torch.randn(rows, 1, 84, 84)
    numbers = [torch.from_numpy(rng.normal(size=rows).astype(np.float32)) for _ in range(5)]
    batch = Batch(obs, frames, torch.from_numpy(rng.integers(3, size=rows)), *numbers)
    distilled = torch.tensor([1.0, 0, 0, 1, 1, 0])
    args = Args(norm_adv=False, clip_coef=0.2, ent_coef=0.1, vf_coef=0.3)
    with torch.no_grad():
        losses = rnd_losses(agent, rnd, batch, distilled, args)
        logits, ext_values, int_values = agent(obs)
        predicted, wanted = rnd.predictor(frames), rnd.target(frames)
    policy, ext, curious, entropy, forward = [], [], [], [], []
    for row in range(rows):
        log_probs = functional.log_softmax(logits[row], dim=0)
        entropy.append(-(log_probs.exp() * log_probs).sum().item())
        ratio = (log_probs[batch.actions[row]] - batch.log_probs[row]).exp().item()
        advantage = batch.advantages[row].item()
        policy.append(-min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage))
        value, earlier, wished = ext_values[row].item(), batch.ext_values[row].item(), batch.ext_returns[row].item()
        near = earlier + min(max(value - earlier, -0.2), 0.2)
        ext.append(0.5 * max((value - wished) ** 2, (near - wished) ** 2))
        curious.append(0.5 * (int_values[row].item() - batch.int_returns[row].item()) ** 2)
        if distilled[row]:
            forward.append(((predicted[row] - wanted[row]) ** 2).mean().item())
    assert losses.policy.item() == pytest.approx(np.mean(policy), rel=1e-4)
    assert losses.value.item() == pytest.approx(np.mean(ext) + np.mean(curious), rel=1e-4)
    assert losses.forward.item() == pytest.approx(np.mean(forward), rel=1e-4)
    assert losses.entropy.item() == pytest.approx(np.mean(entropy), rel=1e-4)
    expected = np.mean(policy) - 0.1 * np.mean(entropy) + 0.3 * losses.value.item() + np.mean(forward)
    assert losses.total.item() == pytest.approx(expected, rel=1e-4)


def test_the_random_network_is_never_trained():
    rnd = RNDModel()
    rnd(torch.randn(2, 1, 84, 84)).sum().backward()
    assert all(parameter.grad is None for parameter in rnd.target.parameters())
    assert all(parameter.grad is not None for parameter in rnd.predictor.parameters())


def test_extrinsic_returns_end_with_an_episode_and_intrinsic_returns_do_not():
    learner = learner_of(env_id="picture_worlds:FatalQuadrants-v0", gae_lambda=0.0, gamma=0.9, int_gamma=0.8)
    learner.collect(NoRun())
    rollout = learner.rollout
    assert rollout.terminated[:-1].any()
    rewards = learner.intrinsic_rewards()
    batch, _ = learner.batch()
    scale = np.sqrt(learner.reward_scale._moments.var)
    ext, curious = batch.ext_returns.reshape(5, 4).numpy(), batch.int_returns.reshape(5, 4).numpy()
    for t in range(4):
        for env in range(4):
            beyond = 0 if rollout.terminated[t, env] else 0.9 * rollout.ext_values[t + 1, env]
            assert ext[t, env] == pytest.approx(rollout.rewards[t, env] + beyond, rel=1e-4)
            expected = rewards[t, env] / scale + 0.8 * rollout.int_values[t + 1, env]
            assert curious[t, env] == pytest.approx(expected, rel=1e-4)


def test_the_frames_moments_are_known_before_training_and_what_is_usual_is_near_zero():
    learner = learner_of(num_steps=16)
    frames = learner.frame_moments
    assert learner.warmups == 2
    assert (learner.step, learner.episodes.episodes) == (0, 0)
    assert frames.count == pytest.approx(2 * 16 * 4, rel=1e-3)
    assert frames.mean.mean() == pytest.approx(255 / 4, rel=0.05)  # one quadrant of four is bright
    bright = torch.full((1, 1, 84, 84), 255, dtype=torch.uint8)
    seen = learner._normalized_frames(bright)
    assert 1 < seen.mean().item() < 2.5  # (255 - 64) / 110
    frames.var[:] = 1.0
    assert learner._normalized_frames(bright).max().item() == 5  # clipped


def test_frames_seen_often_have_smaller_intrinsic_rewards():
    learner = learner_of(num_steps=16, learning_rate=5e-4, update_epochs=2, update_proportion=1.0)
    learner.collect(NoRun())
    first = learner.intrinsic_rewards().mean()
    for _ in range(4):
        learner.update(*learner.batch(), 5e-4)
        learner.collect(NoRun())
    assert learner.intrinsic_rewards().mean() < first / 4


# -- learning


@pytest.mark.slow  # dqn learns from pictures in every CI
def test_images_are_learned_from(tmp_path):
    _, evaluation = train_here(
        ppo_rnd,
        tmp_path,
        Args(
            **{**WORLD, "num_envs": 8},
            num_steps=16,
            total_timesteps=1024,
            learning_rate=5e-4,
            gamma=0.5,
            anneal_lr=False,
            num_iterations_obs_norm_init=1,
            eval_episodes=4,
        ),
    )
    assert evaluation.mean_return >= 6  # of 8; at random 2


@pytest.mark.slow  # what an undisturbed and an interrupted run have in common is shown in every CI
def test_the_same_seed_gives_the_same_weights_and_another_seed_others(tmp_path):
    found = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        train_here(ppo_rnd, tmp_path / name, Args(**SHORT, seed=seed))
        found.append((weights_digest(tmp_path / name), charts(tmp_path / name)))
    assert found[0] == found[1]
    assert found[0][0] != found[2][0]


@pytest.mark.parametrize(
    ("stop_after", "step"),
    [pytest.param(1, 0, marks=pytest.mark.slow), (4, 40)],
    ids=["while warming up", "while training"],
)
def test_a_run_that_was_interrupted_ends_with_the_same_weights(tmp_path, stop_after, step):
    args = Args(**SHORT)
    train_here(ppo_rnd, tmp_path / "whole", args)
    train_here(ppo_rnd, tmp_path / "parts", args, commands=[*[None] * stop_after, Command.STOP])
    checkpoint = tmp_path / "parts" / "checkpoints" / f"step-{step}"
    run, _ = train_here(ppo_rnd, tmp_path / "parts", args, resume=checkpoint)
    assert run._step == 60
    assert weights_digest(tmp_path / "parts") == weights_digest(tmp_path / "whole")
    assert charts(tmp_path / "parts") == charts(tmp_path / "whole")


def test_weights_that_are_not_finite_end_the_run_and_are_never_saved(tmp_path):
    args = Args(**{**SHORT, "update_epochs": 4}, learning_rate=1e38, max_grad_norm=1e38, checkpoint_freq=1)
    with pytest.raises(TrainingStopped, match="not finite at step 20: lower --learning-rate"):
        train_here(ppo_rnd, tmp_path, args)
    assert not (tmp_path / "checkpoints").exists()


# -- files and bad input


NAMES = {
    "network.0.weight": (32, 4, 8, 8),
    "network.0.bias": (32,),
    "network.2.weight": (64, 32, 4, 4),
    "network.2.bias": (64,),
    "network.4.weight": (64, 64, 3, 3),
    "network.4.bias": (64,),
    "network.7.weight": (256, 3136),
    "network.7.bias": (256,),
    "network.9.weight": (448, 256),
    "network.9.bias": (448,),
    "extra_layer.0.weight": (448, 448),
    "extra_layer.0.bias": (448,),
    "actor.0.weight": (448, 448),
    "actor.0.bias": (448,),
    "actor.2.weight": (6, 448),
    "actor.2.bias": (6,),
    "critic_ext.weight": (1, 448),
    "critic_ext.bias": (1,),
    "critic_int.weight": (1, 448),
    "critic_int.bias": (1,),
}
CONVOLUTIONS = {
    "0.weight": (32, 1, 8, 8),
    "0.bias": (32,),
    "2.weight": (64, 32, 4, 4),
    "2.bias": (64,),
    "4.weight": (64, 64, 3, 3),
    "4.bias": (64,),
    "7.weight": (512, 3136),
    "7.bias": (512,),
}
DEEPER = {"9.weight": (512, 512), "9.bias": (512,), "11.weight": (512, 512), "11.bias": (512,)}
RND_NAMES = {f"predictor.{name}": shape for name, shape in {**CONVOLUTIONS, **DEEPER}.items()}
RND_NAMES |= {f"target.{name}": shape for name, shape in CONVOLUTIONS.items()}


@pytest.mark.parametrize(
    ("make_network", "names"), [(lambda: RNDAgent(4, 6), NAMES), (RNDModel, RND_NAMES)], ids=["agent", "rnd"]
)
def test_parameters_have_upstream_s_names_and_shapes(make_network, names):
    assert {name: tuple(tensor.shape) for name, tensor in make_network().state_dict().items()} == names


def test_a_model_plays_as_the_learner_does():
    learner = learner_of()
    weights = {name: tensor.numpy() for name, tensor in learner.agent.state_dict().items()}
    spaces = (learner.envs.observation_space, learner.envs.action_space)
    policy = ppo_rnd.make_policy("X-v0", *spaces, weights)
    np.testing.assert_array_equal(policy.act(learner.next_obs, None), learner.act(learner.next_obs, None))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"num_envs": 0}, "--num-envs must be at least 1"),
        ({"update_proportion": 2.0}, "--update-proportion must be at most 1"),
        ({"num_minibatches": 3}, "--num-minibatches 3 does not divide the batch"),
        ({"env_id": "CartPole-v1", "env_backend": "sync"}, "needs stacked frames of 84 x 84 as observations"),
    ],
)
def test_what_no_run_can_be_made_of_is_refused(tmp_path, flags, message):
    with pytest.raises(BadInput, match=message):
        train_here(ppo_rnd, tmp_path, Args(**flags))
