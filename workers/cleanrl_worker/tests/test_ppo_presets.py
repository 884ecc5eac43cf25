"""The presets of ppo.py beside `ppo` itself: networks, normalizers, RPO's noise; that they learn and resume exactly."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from cleanrl_worker.agents.atari import AtariAgent, as_floats
from cleanrl_worker.agents.impala import ImpalaAgent
from cleanrl_worker.algorithms import ppo
from cleanrl_worker.algorithms.ppo import (
    AtariArgs,
    ContinuousArgs,
    EnvpoolArgs,
    GaussianAgent,
    PpoLearner,
    ProcgenArgs,
    RpoArgs,
)
from cleanrl_worker.errors import BadInput
from cleanrl_worker.eval.policies import TrainedPolicy
from cleanrl_worker.testing import charts, train_here, weights_digest
from cleanrl_worker.training.channel import Command
from cleanrl_worker.training.envs import NormalizedEnvs, make_envs, make_single
from cleanrl_worker.training.fast_cpu.ppo import FastPpo
from cleanrl_worker.training.optimizers import AutogradGradient

CPU = torch.device("cpu")
AIM = {"env_id": "continuous_worlds:Aim-v0", "num_envs": 4, "num_minibatches": 4}
FRAMES = {"env_id": "picture_worlds:Quadrants-v0", "num_envs": 4, "num_steps": 16, "env_backend": "sync"}


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    torch.set_num_threads(1)


class NoRun:
    class writer:
        add_scalars = staticmethod(lambda values, step: None)


class Colors(gym.Env):
    """Name the color of the picture (64 x 64, as Procgen draws them); four steps an episode, ended by a time limit."""

    observation_space = gym.spaces.Box(0, 255, (64, 64, 3), dtype=np.uint8)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._count = 0
        return self._show(), {}

    def step(self, action):
        reward = float(action == self._color)
        self._count += 1
        return self._show(), reward, False, self._count == 4, {}

    def _show(self):
        self._color = int(self.np_random.integers(3))
        image = np.zeros((64, 64, 3), dtype=np.uint8)
        image[..., self._color] = 255
        return image


@pytest.fixture(autouse=True, scope="module")
def _colors():
    gym.register("Colors-v0", Colors)
    yield
    del gym.registry["Colors-v0"]


# -- networks


def impala_shapes() -> dict[str, tuple[int, ...]]:
    """Written out by rule: 31 of the 36 differ in numbers only."""
    shapes: dict[str, tuple[int, ...]] = {}
    for index, (inputs, outputs) in enumerate([(3, 16), (16, 32), (32, 32)]):
        shapes |= {f"network.{index}.conv.weight": (outputs, inputs, 3, 3), f"network.{index}.conv.bias": (outputs,)}
        for name in ("res_block0.conv0", "res_block0.conv1", "res_block1.conv0", "res_block1.conv1"):
            shapes[f"network.{index}.{name}.weight"] = (outputs, outputs, 3, 3)
            shapes[f"network.{index}.{name}.bias"] = (outputs,)
    return shapes | {
        "network.5.weight": (256, 2048),
        "network.5.bias": (256,),
        "actor.weight": (15, 256),
        "actor.bias": (15,),
        "critic.weight": (1, 256),
        "critic.bias": (1,),
    }


UPSTREAM = {
    "continuous": (
        lambda: GaussianAgent(3, 2),
        {
            "actor_logstd": (1, 2),
            "critic.0.weight": (64, 3),
            "critic.0.bias": (64,),
            "critic.2.weight": (64, 64),
            "critic.2.bias": (64,),
            "critic.4.weight": (1, 64),
            "critic.4.bias": (1,),
            "actor_mean.0.weight": (64, 3),
            "actor_mean.0.bias": (64,),
            "actor_mean.2.weight": (64, 64),
            "actor_mean.2.bias": (64,),
            "actor_mean.4.weight": (2, 64),
            "actor_mean.4.bias": (2,),
        },
    ),
    "atari": (
        lambda: AtariAgent(6),
        {
            "network.0.weight": (32, 4, 8, 8),
            "network.0.bias": (32,),
            "network.2.weight": (64, 32, 4, 4),
            "network.2.bias": (64,),
            "network.4.weight": (64, 64, 3, 3),
            "network.4.bias": (64,),
            "network.7.weight": (512, 3136),
            "network.7.bias": (512,),
            "actor.weight": (6, 512),
            "actor.bias": (6,),
            "critic.weight": (1, 512),
            "critic.bias": (1,),
        },
    ),
    "procgen": (lambda: ImpalaAgent(15), impala_shapes()),
}


@pytest.mark.parametrize("name", UPSTREAM)
def test_parameters_have_upstream_s_names_and_shapes_in_its_order(name):
    make, expected = UPSTREAM[name]
    assert {name: tuple(tensor.shape) for name, tensor in make().state_dict().items()} == expected
    assert list(make().state_dict()) == list(expected)


def test_frames_become_numbers_between_0_and_1_whatever_their_order_in_memory():
    images = torch.randint(0, 256, (2, 4, 84, 84), dtype=torch.uint8)
    numbers = as_floats(images)
    torch.testing.assert_close(numbers, images.float() / 255, rtol=0, atol=0)
    assert numbers.is_contiguous(memory_format=torch.channels_last)
    assert as_floats(images.contiguous(memory_format=torch.channels_last)).equal(numbers)


def test_bfloat16_is_for_the_trunk_alone():
    torch.manual_seed(0)
    agent = AtariAgent(6)
    images = torch.randint(0, 256, (8, 4, 84, 84), dtype=torch.uint8)
    exact = agent.features(images).detach()
    agent.bf16 = True
    coarse = agent.features(images)
    assert coarse.dtype == torch.float32
    assert not torch.equal(exact, coarse)
    assert ((exact - coarse).norm() / exact.norm()).item() < 0.02
    coarse.square().sum().backward()
    assert {parameter.dtype for parameter in agent.parameters()} == {torch.float32}
    assert agent.network[0].weight.grad.dtype == torch.float32
    assert agent(images)[0].dtype == torch.float32


# -- continuous actions


def continuous(args: ContinuousArgs) -> PpoLearner:
    envs = NormalizedEnvs(make_envs(args.env_id, args.num_envs), args.gamma)
    learner = PpoLearner(args, envs, CPU, agent="gaussian")
    learner.begin_episodes()
    return learner


def test_a_rollout_remembers_the_actions_that_were_drawn_and_their_probabilities():
    learner = continuous(ContinuousArgs(**{**AIM, "num_steps": 8}))
    with torch.no_grad():
        learner.agent.actor_logstd[:] = torch.tensor([[0.5, -1.0]])
    learner.collect(NoRun())
    batch = learner.batch()
    obs, actions = torch.from_numpy(batch.obs), torch.from_numpy(batch.actions)
    mean = learner.agent.actor_mean(obs)
    expected = torch.distributions.Normal(mean, learner.agent.actor_logstd.exp()).log_prob(actions).sum(1)
    np.testing.assert_allclose(batch.log_probs, expected.detach().numpy(), rtol=1e-4, atol=1e-5)
    # Drawn without bounds, though the environment takes none beyond [-1, 1] x [0, 4]: it would complain.
    assert np.abs(batch.actions).max() > 1
    drawn = (actions - mean).detach().numpy()
    assert drawn[:, 0].std() == pytest.approx(np.exp(0.5), rel=0.4)
    assert drawn[:, 1].std() == pytest.approx(np.exp(-1.0), rel=0.4)


def test_entropy_and_probabilities_are_those_of_torch_distributions():
    torch.manual_seed(2)
    agent = GaussianAgent(3, 2)
    with torch.no_grad():
        agent.actor_logstd[:] = torch.tensor([[0.3, -0.7]])
    means, actions = torch.randn(5, 2), torch.randn(5, 2)
    log_probs, entropy = agent.log_probs(means, actions)
    expected = torch.distributions.Normal(means, agent.actor_logstd.exp().expand(5, 2))
    torch.testing.assert_close(log_probs, expected.log_prob(actions).sum(1))
    torch.testing.assert_close(entropy, expected.entropy().sum(1))


def test_rpo_moves_the_means_while_learning_and_never_while_acting():
    flags = {**AIM, "num_steps": 8, "update_epochs": 1}
    plain, moved = continuous(ContinuousArgs(**flags)), continuous(RpoArgs(**flags, rpo_alpha=0.5))
    for learner in (plain, moved):
        learner.collect(NoRun())
    np.testing.assert_array_equal(plain.rollout.actions, moved.rollout.actions)
    shifts = np.concatenate([moved.shift(64) for _ in range(20)])
    assert shifts.shape == (1280, 2)
    assert -0.5 <= shifts.min() < -0.48 < 0.48 < shifts.max() <= 0.5
    assert plain.shift(64) is None
    # Before anything is learned the ratio is 1 for everybody; only moved means make it differ.
    assert plain.gradient(plain.batch(), None).approx_kl == pytest.approx(0, abs=1e-6)
    assert moved.gradient(moved.batch(), moved.shift(32)).approx_kl > 1e-3


@pytest.mark.parametrize("args", [ContinuousArgs, pytest.param(RpoArgs, marks=pytest.mark.slow)])
def test_an_agent_learns_to_do_what_it_sees(args, tmp_path):
    flags = {"total_timesteps": 24_576, "num_steps": 64, "learning_rate": 3e-3, "gamma": 0.5, "eval_episodes": 20}
    alpha = {"rpo_alpha": 0.1} if args is RpoArgs else {}
    _, evaluation = train_here(ppo, tmp_path, args(**AIM, **flags, **alpha))
    assert evaluation.mean_return > -0.6  # of 4 steps; by chance about -4, and it cannot be above 0


def test_what_was_saved_plays_as_the_learner_did_with_its_normalizer(tmp_path):
    flags = {"total_timesteps": 1024, "num_steps": 64, "eval_episodes": 0}
    train_here(ppo, tmp_path, ContinuousArgs(**AIM, **flags), algo="ppo_continuous_action")
    trained = TrainedPolicy.load(tmp_path / "checkpoints" / "step-1024", "ppo_continuous_action")
    assert trained.normalizer is not None
    env = make_single("continuous_worlds:Aim-v0")
    policy = ppo.make_policy(
        "Aim-v0",
        env.observation_space,
        env.action_space,
        trained.weights,
        algo="ppo_continuous_action",
        normalizer=trained.normalizer,
    )
    learner = continuous(ContinuousArgs(**AIM, **flags))
    learner.restore(run_state(tmp_path / "checkpoints" / "step-1024"))
    obs = np.random.default_rng(0).uniform(-1, 1, (7, 2))
    played = policy.act(obs, None)
    np.testing.assert_array_equal(played, learner.act(obs, None))
    unaware = ppo.make_policy("Aim-v0", env.observation_space, env.action_space, trained.weights)
    assert not np.allclose(played, unaware.act(obs, None))
    rngs = [np.random.default_rng(row) for row in range(7)]
    assert policy.act(obs, rngs).std() > 0


def run_state(folder):
    from cleanrl_worker.training.checkpointing import load_state

    return load_state(folder, "ppo_continuous_action")


# -- pictures


@pytest.mark.slow  # dqn learns from pictures in every CI
def test_frames_are_learned_from(tmp_path):
    flags = {**FRAMES, "total_timesteps": 1280, "num_minibatches": 2, "learning_rate": 1e-3, "gamma": 0.5}
    _, evaluation = train_here(ppo, tmp_path, AtariArgs(**flags, eval_episodes=4))
    assert evaluation.mean_return >= 7  # of 8 steps; by chance 2


@pytest.mark.slow  # dqn learns from pictures in every CI
def test_colors_are_learned_from(tmp_path):
    flags = {"env_id": "Colors-v0", "num_envs": 4, "num_steps": 16, "num_minibatches": 2, "learning_rate": 1e-3}
    _, evaluation = train_here(ppo, tmp_path, ProcgenArgs(**flags, gamma=0.5, total_timesteps=512, eval_episodes=4))
    assert evaluation.mean_return == 4


def test_values_of_a_shared_network_come_from_the_pass_that_acted(tmp_path):
    args = AtariArgs(**{**FRAMES, "num_steps": 4}, num_minibatches=2)
    learner = PpoLearner(args, make_envs(args.env_id, args.num_envs), CPU, agent="atari")
    learner.begin_episodes()
    learner.collect(NoRun())
    batch = learner.batch()
    with torch.no_grad():
        logits, values = learner.agent(torch.from_numpy(batch.obs))
    np.testing.assert_allclose(batch.values, values[:, 0].numpy(), rtol=1e-4, atol=1e-5)
    chosen = torch.log_softmax(logits, 1).gather(1, torch.from_numpy(batch.actions)[:, None])[:, 0]
    np.testing.assert_allclose(batch.log_probs, chosen.numpy(), rtol=1e-4, atol=1e-5)
    assert isinstance(learner.gradient, AutogradGradient)


def test_a_life_is_an_episode_to_the_algorithm_and_the_score_is_that_of_the_game(atari, tmp_path):
    args = AtariArgs(env_id="BreakoutNoFrameskip-v4", num_envs=2, num_steps=64, num_minibatches=1)
    envs = make_envs(args.env_id, 2, pipeline="atari", backend="sync")
    learner = PpoLearner(args, envs, CPU, agent="atari")
    learner.begin_episodes()
    lives = 0
    for _ in range(3):
        learner.collect(NoRun())
        lives += int(learner.rollout.terminated.sum())
    assert lives > learner.episodes.episodes
    assert set(np.unique(learner.rollout.rewards)) <= {0.0, 1.0}
    envs.close()


# -- the same each time, and after an interruption


CASES = {
    "ppo": ("ppo", ppo.Args(total_timesteps=2048, num_envs=4, num_steps=64), 4),
    "rpo": ("rpo_continuous_action", RpoArgs(**AIM, total_timesteps=1024, num_steps=64, update_epochs=2), 2),
    "pendulum": (
        "ppo_continuous_action",
        ContinuousArgs(env_id="Pendulum-v1", total_timesteps=1024, num_steps=128, update_epochs=2, num_minibatches=4),
        4,
    ),
    "grid": (
        "ppo",
        ppo.Args(env_id="MiniGrid-Empty-5x5-v0", total_timesteps=256, num_envs=2, num_steps=32, update_epochs=1),
        2,
    ),
    "pong": (
        "ppo_atari",
        AtariArgs(
            env_id="PongNoFrameskip-v4",
            total_timesteps=64,
            num_envs=2,
            num_steps=8,
            update_epochs=1,
            env_backend="sync",
        ),
        2,
    ),
    "robot": (
        "ppo_continuous_action",
        ContinuousArgs(env_id="InvertedPendulum-v5", total_timesteps=512, num_steps=64, update_epochs=1),
        4,
    ),
}
SETS = {"grid": "minigrid", "pong": "atari", "robot": "mujoco"}


IN_EVERY_CI = ("ppo", "rpo", "grid")
"""A game of Pong and robots are interrupted in every CI by test_ppo_lstm.py and test_off_policy.py"""


@pytest.mark.parametrize(
    "case", [case if case in IN_EVERY_CI else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)
def test_an_interrupted_run_ends_with_the_weights_and_charts_of_an_undisturbed_one(case, tmp_path, request):
    if case in SETS:
        request.getfixturevalue(SETS[case])
    algo, args, iterations = CASES[case]
    whole, again, parts = (tmp_path / name for name in ("whole", "again", "parts"))
    train_here(ppo, whole, args, algo=algo)
    train_here(ppo, again, args, algo=algo)
    assert weights_digest(again) == weights_digest(whole)
    assert charts(again) == charts(whole)

    stopped, _ = train_here(ppo, parts, args, algo=algo, commands=[*[None] * iterations, Command.STOP])
    (checkpoint,) = (parts / "checkpoints").glob("step-*")
    assert 0 < stopped._step < args.total_timesteps
    run, _ = train_here(ppo, parts, args, algo=algo, resume=checkpoint)
    assert ("checkpoint_loaded", "exact") in [
        (kind, reported.get("environments")) for kind, reported in run._channel.messages
    ]
    assert weights_digest(parts) == weights_digest(whole)
    assert charts(parts) == charts(whole)

    other = tmp_path / "other"
    train_here(ppo, other, replace(args, seed=2), algo=algo)
    assert weights_digest(other) != weights_digest(whole)


# -- bad input


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ContinuousArgs(env_id="CartPole-v1"),
            "ppo_continuous_action needs continuous actions; CartPole-v1 has Discrete",
        ),
        (RpoArgs(env_id="continuous_worlds:Grid-v0"), "rpo_continuous_action needs actions that are vectors"),
        (ppo.Args(env_id="Pendulum-v1"), "ppo needs discrete actions; Pendulum-v1 has Box"),
        (AtariArgs(env_id="CartPole-v1"), "ppo_atari needs images"),
        (AtariArgs(env_id="Colors-v0"), "ppo_atari needs stacked frames of 84 x 84"),
        (ProcgenArgs(env_id="CartPole-v1"), "ppo_procgen needs images"),
        (RpoArgs(rpo_alpha=-1), "--rpo-alpha must be at least 0"),
    ],
)
def test_an_environment_that_does_not_fit_is_refused_with_a_sentence(args, message, tmp_path):
    with pytest.raises(BadInput, match=message):
        train_here(ppo, tmp_path, args)


@pytest.mark.parametrize(
    ("algo", "message"),
    [("ppo", "needs continuous actions"), ("ppo_atari", "needs images"), ("", "continuous actions")],
)
def test_weights_of_another_preset_are_refused(algo, message):
    weights = {name: tensor.numpy() for name, tensor in GaussianAgent(4, 2).state_dict().items()}
    env = make_single("CartPole-v1")
    with pytest.raises(BadInput, match=message):
        ppo.make_policy("CartPole-v1", env.observation_space, env.action_space, weights, algo=algo)


def test_weights_that_lack_what_the_preset_has_are_named():
    weights = {name: tensor.numpy() for name, tensor in GaussianAgent(3, 1).state_dict().items()}
    del weights["actor_logstd"]
    env = make_single("Pendulum-v1")
    with pytest.raises(BadInput, match="actor_logstd is missing"):
        ppo.make_policy("Pendulum-v1", env.observation_space, env.action_space, weights, algo="ppo_continuous_action")


# -- which gradient


def test_autograd_is_used_where_the_hand_derived_gradient_is_not_for():
    args = ppo.Args(num_envs=2, num_steps=8)
    envs = make_envs("CartPole-v1", 2)
    assert isinstance(PpoLearner(args, envs, CPU).gradient, FastPpo)
    assert isinstance(PpoLearner(replace(args, compile=True), envs, CPU).gradient, AutogradGradient)
    assert isinstance(PpoLearner(args, envs, CPU, agent="mlp").gradient, AutogradGradient)


def test_both_gradients_train_alike(tmp_path):
    """Not to the bit, their sums are ordered differently; but the same descent."""
    learners = [PpoLearner(ppo.Args(num_envs=2, num_steps=64), make_envs("CartPole-v1", 2), CPU) for _ in range(2)]
    learners[1].use_autograd()
    found = []
    for learner in learners:
        learner.begin_episodes()
        learner.collect(NoRun())
        found.append(learner.update(learner.batch(), 1e-3))
    for name, value in found[0].items():
        assert value == pytest.approx(found[1][name], rel=1e-3, abs=1e-5), name
    torch.testing.assert_close(
        learners[0].parameters.block.data, learners[1].parameters.block.data, rtol=1e-3, atol=2e-4
    )


@pytest.mark.slow  # a compiler takes long to be missed
def test_without_a_compiler_training_continues_and_reports_it(tmp_path):
    flags = ["--compile", "--no-cuda", "--num-envs", "2", "--num-steps", "8", "--total-timesteps", "32"]
    nowhere = {"CXX": str(tmp_path / "no-such-compiler"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", "cleanrl_worker.algorithms", "ppo", *flags],
        cwd=tmp_path,
        env={**os.environ, **nowhere},
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    assert "--compile is not possible here, training continues without it: " in done.stderr
    assert "compiler" in done.stderr.partition("without it: ")[2].splitlines()[0]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("args", "agent"), [(ContinuousArgs, "gaussian"), (ppo.Args, "separate")])
def test_a_compiled_update_is_the_same_update(args, agent):
    env_id = AIM["env_id"] if agent == "gaussian" else "CartPole-v1"
    flags = args(env_id=env_id, num_envs=4, num_steps=32, num_minibatches=2, update_epochs=2)
    blocks = []
    for compile in (True, False):
        learner = PpoLearner(
            replace(flags, compile=compile), NormalizedEnvs(make_envs(env_id, 4), 0.9), CPU, agent=agent
        )
        learner.begin_episodes()
        learner.collect(NoRun())
        learner.update(learner.batch(), 1e-3)
        blocks.append(learner.parameters.block.data.clone())
    torch.testing.assert_close(*blocks, rtol=1e-3, atol=2e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("args", [ContinuousArgs, RpoArgs])
def test_a_recorded_update_is_the_same_update(args):
    blocks = []
    for cudagraphs in (True, False):
        flags = args(env_id="Pendulum-v1", num_envs=2, num_steps=64, num_minibatches=4, cudagraphs=cudagraphs)
        envs = NormalizedEnvs(make_envs("Pendulum-v1", 2), 0.9)
        learner = PpoLearner(flags, envs, torch.device("cuda"), agent="gaussian")
        learner.begin_episodes()
        for _ in range(2):
            learner.collect(NoRun())
            charts_of_it = learner.update(learner.batch(), 1e-3)
        blocks.append((learner.parameters.block.data.cpu().clone(), charts_of_it["losses/clipfrac"]))
    torch.testing.assert_close(blocks[0][0], blocks[1][0], rtol=1e-3, atol=1e-4)
    assert blocks[0][1] == pytest.approx(blocks[1][1], abs=1e-3)


def test_envpool_is_what_its_preset_asks_for():
    assert EnvpoolArgs().env_backend == "envpool"
    assert (EnvpoolArgs().clip_coef, AtariArgs().env_backend) == (0.1, "auto")
