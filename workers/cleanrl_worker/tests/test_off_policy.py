"""What DDPG, TD3 and SAC share: they learn, the same each time and after a resume, and say what they refuse."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from cleanrl_worker.algorithms import ddpg, sac, td3
from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.eval.policies import TrainedPolicy
from cleanrl_worker.testing import charts, train_here, weights_digest
from cleanrl_worker.training.channel import Command
from cleanrl_worker.training.checkpointing import load_state
from cleanrl_worker.training.envs import make_envs
from cleanrl_worker.training.off_policy import OffPolicyLearner
from cleanrl_worker.training.optimizers import CudaGraph, accelerated
from cleanrl_worker.training.replay import make_replay
from cleanrl_worker.training.run import BLOCK_STEPS

NAMES = {ddpg: "ddpg_continuous_action", td3: "td3_continuous_action", sac: "sac_continuous_action"}
LEARNERS = {ddpg: ddpg.DdpgLearner, td3: td3.Td3Learner, sac: sac.SacLearner}
CPU = torch.device("cpu")
AIM = {
    "env_id": "continuous_worlds:Aim-v0",
    "total_timesteps": 400,
    "learning_starts": 100,
    "buffer_size": 1000,
    "batch_size": 32,
    "gamma": 0.5,
}
"""A few hundred updates with a small batch: a second"""

of_each = pytest.mark.parametrize("module", NAMES, ids=NAMES.values())
IN_EVERY_CI = [pytest.param(each, marks=() if each is sac else pytest.mark.slow) for each in NAMES]
"""The one that learns most networks; all of them in `make test-all`"""
of_one = pytest.mark.parametrize("module", IN_EVERY_CI, ids=NAMES.values())


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    torch.set_num_threads(1)


def rates(module: ModuleType, rate: float) -> dict[str, float]:
    return {"policy_lr": rate, "q_lr": rate} if module is sac else {"learning_rate": rate}


def run(module: ModuleType, folder: Path, *commands: Command | None, resume: Path | None = None, **flags: Any):
    args = module.Args(**flags)
    return train_here(module, folder, args, algo=NAMES[module], commands=commands, resume=resume)


def learner_for(module: ModuleType, device: torch.device = CPU, **flags: Any) -> OffPolicyLearner:
    args = module.Args(**{**AIM, **flags})
    envs = make_envs(args.env_id, args.num_envs)
    learner = LEARNERS[module](args, envs, make_replay(args, envs), device)
    learner.begin_episodes()
    return learner


class NoRun:
    steps_per_second = staticmethod(lambda step: 0.0)

    class writer:
        add_scalars = staticmethod(lambda values, step: None)


# -- learning


@of_one
def test_aiming_is_learned_within_bounds_that_are_not_symmetric(module, tmp_path):
    flags = {**AIM, "total_timesteps": 1000, "batch_size": 64, **rates(module, 3e-3), "eval_episodes": 20}
    _, evaluation = run(module, tmp_path, **flags)
    assert evaluation.mean_return > -0.8  # of four aims; at random -5.6


@pytest.mark.slow  # a resumed run is compared with an undisturbed one in every CI
@of_each
def test_the_same_seed_gives_the_same_weights_and_charts_and_another_seed_others(module, tmp_path):
    found = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run(module, tmp_path / name, **AIM, seed=seed)
        found.append((weights_digest(tmp_path / name), charts(tmp_path / name)))
    assert found[0] == found[1]
    assert found[0][0] != found[2][0]
    assert {
        "losses/qf1_loss",
        "losses/qf1_values",
        "losses/actor_loss",
        "charts/replay_size",
        "charts/replay_bytes",
        "charts/episodic_return",
        "charts/episodic_length",
    } <= found[0][1].keys()


@of_each
def test_a_run_that_was_interrupted_ends_with_the_same_weights_and_charts(module, tmp_path):
    whole, parts, flags = tmp_path / "whole", tmp_path / "parts", {**AIM, "num_envs": 2, "buffer_size": 150}
    run(module, whole, **flags)
    run(module, parts, None, None, Command.STOP, **flags)
    (checkpoint,) = (parts / "checkpoints").glob("step-*")
    assert checkpoint.name == "step-200"
    context, _ = run(module, parts, resume=checkpoint, **flags)
    loaded = next(message for kind, message in context._channel.messages if kind == "checkpoint_loaded")
    assert loaded["environments"] == "exact"
    assert weights_digest(parts) == weights_digest(whole)
    assert charts(parts) == charts(whole)


@of_each
def test_a_run_in_mujoco_that_was_interrupted_ends_with_the_same_weights(module, tmp_path, mujoco):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    flags = {**AIM, "env_id": "HalfCheetah-v5", "total_timesteps": 300}
    run(module, whole, **flags)
    run(module, parts, None, None, Command.STOP, **flags)
    context, _ = run(module, parts, resume=parts / "checkpoints" / "step-200", **flags)
    assert ("checkpoint_loaded", "exact") in [
        (kind, reported.get("environments")) for kind, reported in context._channel.messages
    ]
    assert weights_digest(parts) == weights_digest(whole)
    assert charts(parts) == charts(whole)


@of_each
def test_without_its_replay_buffer_a_resumed_run_fills_it_before_it_learns(module, tmp_path):
    flags = {**AIM, "learning_starts": 150, "checkpoint_replay": "none"}
    run(module, tmp_path, None, None, Command.STOP, **flags)
    learner = learner_for(module, **flags)
    learner.restore(load_state(tmp_path / "checkpoints" / "step-200", NAMES[module]))
    assert (learner.step, len(learner.buffer)) == (200, 0)
    weights = [learner.agent.qf1.fc2.weight.detach().clone()]
    while learner.step < 400:
        learner.learn(NoRun())
        weights.append(learner.agent.qf1.fc2.weight.detach().clone())
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])


@of_each
def test_what_is_stored_at_the_end_of_an_episode_is_what_happened(module):
    learner = learner_for(module, env_id="continuous_worlds:Walk-v0", learning_starts=399)
    while learner.step < 200:
        learner.learn(NoRun())
    stored = learner.buffer.take(np.arange(200))
    counts, following = stored.obs[:, 0], stored.next_obs[:, 0]
    np.testing.assert_array_equal(following, counts + 1)  # never the first observation of the next episode
    assert {0.0, 1.0} == set(stored.terminated.tolist())
    np.testing.assert_array_equal(stored.terminated == 1, (following == 3) & (stored.actions[:, 0] > 0))
    assert (stored.rewards == 1).all()
    assert stored.obs.dtype == np.float32


@of_each
def test_random_actions_fill_the_bounds_before_learning_starts(module):
    learner = learner_for(module, learning_starts=399)
    while learner.step < 300:
        learner.learn(NoRun())
    actions = learner.buffer.take(np.arange(300)).actions
    assert (actions.min(axis=0) < [-0.9, 0.2]).all()
    assert (actions.max(axis=0) > [0.9, 3.8]).all()
    assert (actions >= [-1, 0]).all()
    assert (actions <= [1, 4]).all()


@of_each
def test_safe_points_lie_at_the_same_steps_whatever_the_number_of_environments(module):
    learner = learner_for(module, num_envs=3)
    steps = []
    while learner.step < 400:
        learner.learn(NoRun())
        steps.append(learner.step)
    assert steps == [102, 201, 300, 402]
    assert BLOCK_STEPS == 100


@of_each
def test_numbers_that_are_not_finite_end_the_run_and_are_never_saved(module, tmp_path):
    cure = "lower --q-lr and --policy-lr" if module is sac else "lower --learning-rate"
    with pytest.raises(TrainingStopped, match=rf"not finite at step 1\d\d: {cure}"):
        run(module, tmp_path / "rates", **AIM, **rates(module, 1e30), checkpoint_freq=1000)
    broken = {**AIM, "env_id": "continuous_worlds:Walk-v0", "env_kwargs": '{"broken_at": 150}'}
    with pytest.raises(TrainingStopped, match="observation or a reward that is not finite at step 150"):
        run(module, tmp_path / "world", **broken, checkpoint_freq=1000)
    assert not list(tmp_path.glob("*/checkpoints/step-*"))


# -- files


CRITIC = {
    "fc1.weight": (256, 4),
    "fc1.bias": (256,),
    "fc2.weight": (256, 256),
    "fc2.bias": (256,),
    "fc3.weight": (1, 256),
    "fc3.bias": (1,),
}
TRUNK = {"fc1.weight": (256, 3), "fc1.bias": (256,), "fc2.weight": (256, 256), "fc2.bias": (256,)}
MU = {"fc_mu.weight": (1, 256), "fc_mu.bias": (1,)}
GAUSSIAN = {"fc_mean.weight": (1, 256), "fc_mean.bias": (1,), "fc_logstd.weight": (1, 256), "fc_logstd.bias": (1,)}
UPSTREAM = {
    ddpg: ({"action_scale": (1, 1), "action_bias": (1, 1), **TRUNK, **MU}, CRITIC),
    td3: ({"action_scale": (1,), "action_bias": (1,), **TRUNK, **MU}, CRITIC, CRITIC),
    sac: ({"action_scale": (1,), "action_bias": (1,), **TRUNK, **GAUSSIAN}, CRITIC, CRITIC),
}
"""What CleanRL's networks for Pendulum-v1 hold; its SAC writes no file, ours is made as its TD3's"""


@of_each
def test_the_model_is_a_tuple_of_state_dicts_with_upstream_s_names_and_shapes(module):
    model = learner_for(module, env_id="Pendulum-v1").model()
    found = tuple({name: tuple(tensor.shape) for name, tensor in part.items()} for part in model)
    assert found == UPSTREAM[module]
    assert model[0]["action_scale"].item() == 2


@pytest.fixture(scope="module", params=IN_EVERY_CI, ids=NAMES.values())
def trained(request, tmp_path_factory) -> tuple[ModuleType, Path, TrainedPolicy]:
    """A short training of each, its folder, and its model as it is read back (in a process of its own)."""
    module, folder = request.param, tmp_path_factory.mktemp("trained")
    run(module, folder, **AIM)
    return module, folder, TrainedPolicy.load(folder / f"{NAMES[module]}.cleanrl_model", NAMES[module])


def test_a_model_and_a_checkpoint_play_as_the_learner_does(trained):
    module, folder, model = trained
    env = gym.make(AIM["env_id"])
    learner = learner_for(module)
    learner.load_agent(model.weights, "the model")
    obs = np.random.default_rng(0).uniform(-1, 1, size=(50, 2))
    for found in (model, TrainedPolicy.load(folder / "checkpoints" / "step-400", NAMES[module])):
        policy = found.for_env(module, AIM["env_id"], env)
        best = policy.act(obs, None)
        np.testing.assert_array_equal(best, learner.act(obs, None))
        rngs = [np.random.default_rng(seed) for seed in range(50)]
        sampled = policy.act(obs, rngs)
        assert 0 < np.abs(sampled - best).mean() < 2
        again = policy.act(obs[:1], [np.random.default_rng(0)])  # whoever else is there, a row has its own noise
        np.testing.assert_allclose(again[0], sampled[0], rtol=1e-6)
        assert env.action_space.contains(sampled[0])
    assert np.abs(learner.act(obs, np.random.default_rng(1)) - best).mean() > 0


def test_training_begins_from_a_model_with_equal_target_networks(trained, tmp_path):
    module, folder, model = trained
    context, _ = run(module, tmp_path, Command.STOP, resume=model.path, **AIM)
    assert "checkpoint_loaded" in [kind for kind, _ in context._channel.messages]
    assert weights_digest(tmp_path) == weights_digest(folder)
    learner = learner_for(module)
    learner.load_agent(model.weights, "the model")
    parts = [learner.critics] if module is sac else [learner.critics, learner.actor]
    for part in parts:
        np.testing.assert_array_equal(part.arrays()["targets"], part.parameters.block.detach().numpy())


def test_a_model_of_another_algorithm_is_refused(trained):
    module, _, model = trained
    other = td3 if module is sac else sac
    missing = "fc_mu.weight" if module is sac else "fc_mean.weight"
    with pytest.raises(BadInput, match=f"the model does not fit.*{missing} is missing"):
        learner_for(other).load_agent(model.weights, "the model")
    env = gym.make("Pendulum-v1")
    with pytest.raises(BadInput, match="the policy does not fit"):
        other.make_policy("Pendulum-v1", env.observation_space, env.action_space, model.weights)
    if module is td3:
        with pytest.raises(BadInput, match="holds 3 networks; ddpg_continuous_action has 2: actor, qf1"):
            TrainedPolicy.load(model.path, NAMES[ddpg])


# -- bad input


@of_each
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"num_envs": 0}, "--num-envs must be at least 1"),
        (
            {"tau": 1.5, "policy_frequency": 0},
            "--tau must be at most 1, got 1.5; --policy-frequency must be at least 1",
        ),
        ({"buffer_size": 8}, "--buffer-size 8 is smaller than a batch of 32"),
        ({"num_envs": 2000}, "does not hold one step of 2000 environments"),
        ({"env_id": "CartPole-v1"}, "needs continuous actions; CartPole-v1 has Discrete actions"),
        ({"env_id": "continuous_worlds:Unbounded-v0"}, "needs actions with bounds.*between 0 and inf.*RescaleAction"),
        ({"env_id": "continuous_worlds:Grid-v0"}, r"needs actions that are vectors.*\(2, 2\)"),
        ({"env_id": "tiny_worlds:CorridorShort-v0"}, "needs observations that are vectors"),
    ],
)
def test_what_no_run_can_be_made_of_is_refused(module, tmp_path, flags, message):
    with pytest.raises(BadInput, match=message):
        run(module, tmp_path, **{**AIM, **flags})


@of_each
def test_a_checkpoint_of_other_environments_is_refused(module, tmp_path):
    run(module, tmp_path, Command.STOP, **AIM)
    with pytest.raises(BadInput, match="made with num_envs=1, this run has 2"):
        run(module, tmp_path, resume=tmp_path / "checkpoints" / "step-0", **AIM, num_envs=2)


# -- compiled and recorded


def test_on_a_cpu_there_are_no_cuda_graphs():
    calls = []
    update = accelerated(lambda: calls.append(1), CPU, compile=False, cudagraphs=True)
    assert not isinstance(update, CudaGraph)
    update()
    assert calls == [1]


def after_updates(
    module: ModuleType, device: torch.device = CPU, **flags: Any
) -> tuple[OffPolicyLearner, torch.Tensor]:
    """The learner after 40 updates, and how far they have moved its weights."""
    learner = learner_for(module, device, learning_starts=160, **flags)
    weights = []
    for _ in range(2):
        learner.learn(NoRun())
        weights.append(torch.cat([tensor.flatten().cpu() for tensor in learner.agent.state_dict().values()]))
    assert learner.step == 200
    return learner, weights[1] - weights[0]


def assert_same_moves(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Adam turns the smallest difference of a gradient near zero into a step; most weights must agree much better."""
    assert (ours - theirs).abs().mean() < 0.02 * theirs.abs().mean()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # of the compiler's own packages
@of_each
def test_compiled_it_learns_the_same(module, caplog):
    _, compiled = after_updates(module, compile=True)
    assert not [record for record in caplog.records if record.name.startswith("cleanrl_worker")]  # it was possible
    assert_same_moves(compiled, after_updates(module)[1])


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # of the compiler's own packages
@of_each
@pytest.mark.parametrize("compile_it", [False, True])
def test_recorded_as_a_cuda_graph_it_learns_the_same(module, compile_it):
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    gpu = torch.device("cuda")
    learner, recorded = after_updates(module, gpu, cudagraphs=True, compile=compile_it)
    for policy in (False, True):
        targets = policy or module is sac
        assert learner.update_for(policy, targets).__wrapped__._graph is not None
    _, plain = after_updates(module, gpu, cudagraphs=False)
    assert_same_moves(recorded, plain)
    assert_same_moves(plain, after_updates(module)[1])  # a CPU has the same random numbers and other kernels
