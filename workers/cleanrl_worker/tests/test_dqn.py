"""DQN: its arithmetic against plain loops and autograd, what it stores and when it learns, and that it learns."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from cleanrl_worker.algorithms import dqn
from cleanrl_worker.algorithms.dqn import (
    Args,
    AtariArgs,
    AtariQNetwork,
    DqnLearner,
    QNetwork,
    TorchTdGradient,
    make_policy,
    numpy_network,
)
from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.declarations import DECLARATIONS, Flags
from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.preflight import check_run
from cleanrl_worker.testing import charts, train_here, weights_digest
from cleanrl_worker.threads import set_numpy_threads
from cleanrl_worker.training.channel import Command
from cleanrl_worker.training.envs import make_envs
from cleanrl_worker.training.fast_cpu.q_learning import FastDqn
from cleanrl_worker.training.optimizers import FlatAdam, FlatParameters, LinearSchedule, times_passed
from cleanrl_worker.training.policies import EpsilonGreedy
from cleanrl_worker.training.replay import Transitions, make_replay
from mosaic_wire.ids import new_run_id
from torch import nn

CPU = torch.device("cpu")
PICTURES = {
    "env_id": "picture_worlds:Quadrants-v0",
    "buffer_size": 500,
    "batch_size": 32,
    "learning_starts": 64,
    "target_network_frequency": 50,
}


class Identity(gym.Env):
    """Name the symbol you see; four steps an episode, ended by a time limit."""

    observation_space = gym.spaces.Box(0, 1, (3,), dtype=np.float32)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._count = 0
        return self._show(), {}

    def step(self, action):
        reward = float(action == self._symbol)
        self._count += 1
        return self._show(), reward, False, self._count == 4, {}

    def _show(self):
        self._symbol = int(self.np_random.integers(3))
        return np.eye(3, dtype=np.float32)[self._symbol]


class Counting(gym.Env):
    """Observation = steps taken; terminates after 3 steps on action 1, is cut after 5 otherwise."""

    observation_space = gym.spaces.Box(0, 100, (1,), dtype=np.float64)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, *, broken_at: int = -1):
        self._broken_at = broken_at

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._count = 0
        return np.zeros(1), {}

    def step(self, action):
        self._count += 1
        terminated = bool(action == 1 and self._count == 3)
        seen = np.nan if self._count == self._broken_at else self._count
        return np.full(1, float(seen)), 1.0, terminated, self._count == 5 and not terminated, {}


@pytest.fixture(autouse=True, scope="module")
def _test_environments():
    gym.register("DqnIdentity-v0", Identity)
    gym.register("DqnCounting-v0", Counting)
    torch.set_num_threads(1)
    yield
    del gym.registry["DqnIdentity-v0"], gym.registry["DqnCounting-v0"]


def run_dqn(folder: Path, *commands, args=Args, algo: str = "", resume: Path | None = None, **flags):
    return train_here(dqn, folder, args(**flags), algo=algo, commands=commands, resume=resume)


def learner_of(num_envs: int = 1, device: torch.device = CPU, **flags) -> DqnLearner:
    args = Args(num_envs=num_envs, **flags)
    envs = make_envs(args.env_id, num_envs)
    learner = DqnLearner(args, envs, make_replay(args, envs), device)
    learner.begin_episodes()
    return learner


class NoRun:
    class writer:
        add_scalars = staticmethod(lambda values, step: None)

    @staticmethod
    def steps_per_second(step):
        return 1.0


# -- arithmetic


def a_batch(rows: int, actions: int) -> Transitions:
    rng = np.random.default_rng(5)
    obs, next_obs = rng.normal(size=(2, rows, 4)).astype(np.float32)
    rewards, terminated = rng.normal(size=rows).astype(np.float32), (rng.random(rows) < 0.3).astype(np.float32)
    return Transitions(obs, rng.integers(actions, size=rows), rewards, next_obs, terminated)


def two_networks(actions: int) -> tuple[QNetwork, FlatParameters, QNetwork, FlatParameters]:
    torch.manual_seed(1)
    agent, target = QNetwork(4, actions), QNetwork(4, actions)
    return agent, FlatParameters(agent), target, FlatParameters(target)


@pytest.mark.parametrize("in_numpy", [True, False], ids=["numpy", "torch"])
def test_the_loss_and_its_gradient_are_those_of_plain_arithmetic(in_numpy):
    agent, parameters, target, target_parameters = two_networks(3)
    batch = a_batch(40, 3)
    if in_numpy:
        gradient = FastDqn(numpy_network(agent, parameters), numpy_network(target, target_parameters), 0.9)
    else:
        gradient = TorchTdGradient(agent, parameters, target, Args(gamma=0.9), CPU)
    parameters.block.grad.fill_(7.0)  # the gradient is set, not added to
    gradient.backward(batch)
    found = parameters.block.grad.clone()

    errors, chosen = [], []
    for row in range(40):
        with torch.no_grad():
            beyond = target(torch.from_numpy(batch.next_obs[row])).max().item()
        expected = batch.rewards[row] + (0.0 if batch.terminated[row] else 0.9 * beyond)
        value = agent(torch.from_numpy(batch.obs[row]))[batch.actions[row]]
        errors.append((value - float(expected)) ** 2)
        chosen.append(value.item())
    loss = torch.stack(errors).mean()
    parameters.zero_gradients()
    loss.backward()
    assert gradient.losses() == pytest.approx((loss.item(), np.mean(chosen)), rel=1e-4)
    torch.testing.assert_close(found, parameters.block.grad, rtol=1e-3, atol=1e-6)


def test_flat_adam_moves_as_torch_s_does_and_continues_from_a_checkpoint():
    torch.manual_seed(1)
    ours, theirs = nn.Linear(5, 3), nn.Linear(5, 3)
    theirs.load_state_dict(ours.state_dict())
    parameters, of_theirs = FlatParameters(ours), FlatParameters(theirs)
    optimizer, reference = (
        FlatAdam(parameters.block, eps=1e-5),
        torch.optim.Adam([of_theirs.block], lr=0.01, eps=1e-5, fused=True),
    )
    for count in range(20):
        gradient = torch.randn_like(parameters.block)
        parameters.block.grad.copy_(gradient)
        of_theirs.block.grad.copy_(gradient)
        optimizer.step(0.01)
        reference.step()
        if count == 9:
            saved = optimizer.arrays()
            optimizer.step(0.01)  # what was saved is not what goes on
            parameters.block.data.copy_(of_theirs.block.data)
            optimizer = FlatAdam(parameters.block, eps=1e-5)
            optimizer.restore(saved)
    assert torch.equal(parameters.block, of_theirs.block)


def test_schedules_go_straight_and_then_stay():
    falling, rising, at_once = LinearSchedule(1, 0.05, 200), LinearSchedule(0.4, 1.0, 100), LinearSchedule(1, 0.2, 0)
    steps = np.array([0, 50, 100, 199, 200, 10_000])
    assert falling.over(steps).tolist() == [falling(step) for step in steps.tolist()]
    assert falling.over(steps) == pytest.approx([1, 0.7625, 0.525, 0.05475, 0.05, 0.05])
    assert rising(25) == pytest.approx(0.55)
    assert (at_once(0), at_once.over(steps).tolist()) == (0.2, [0.2] * 6)


def test_what_is_due_every_few_steps_is_counted_however_far_a_step_goes():
    before = np.arange(0, 40, 8)
    assert times_passed(10, before, before + 8).tolist() == [0, 1, 1, 1, 1]
    assert times_passed(4, before, before + 8).tolist() == [2] * 5


def test_actions_are_random_in_the_share_asked_for_and_the_best_otherwise():
    asked = []

    def values(obs: np.ndarray) -> np.ndarray:
        asked.append(len(obs))
        return np.tile(np.array([0.0, 2.0, 1.0]), (len(obs), 1))

    epsilons = np.repeat([0.0, 0.3, 1.0], 2000)
    exploring = EpsilonGreedy(np.random.default_rng(0), epsilons, 2, 3)
    actions = np.array([exploring.actions(index, np.zeros((2, 1)), values) for index in range(6000)])
    others = (actions != 1).reshape(3, -1).mean(axis=1)
    assert others[0] == 0
    assert others[1:] == pytest.approx([0.2, 2 / 3], abs=0.02)  # a third of the random ones is the best by chance
    assert len(asked) < 4000  # no action follows the network in the last third


def test_numpy_uses_as_many_threads_as_it_is_reported():
    try:
        assert set_numpy_threads(2) == 2
    finally:
        assert set_numpy_threads(1) == 1


# -- what is stored, and when is learned


@pytest.mark.parametrize("num_envs", [1, 3])
def test_what_really_happened_is_stored_also_where_episodes_end(num_envs):
    learner = learner_of(num_envs, env_id="DqnCounting-v0", buffer_size=600, learning_starts=550)
    for _ in range(4):
        learner.learn(NoRun())
    count = len(learner.buffer)
    assert count == learner.step >= 400
    stored = learner.buffer.take(np.arange(count))
    before, after = stored.obs[:, 0], stored.next_obs[:, 0]
    assert (after == before + 1).all()  # never the first observation of the next episode
    assert (stored.rewards == 1).all()
    np.testing.assert_array_equal(stored.terminated, (stored.actions == 1) & (after == 3))
    assert {3.0, 5.0} <= set(after[:-num_envs][before[num_envs:] == 0])  # ends of both kinds, each followed by a start


@pytest.mark.parametrize("num_envs", [1, 4])
def test_updates_keep_their_pace_per_step(num_envs):
    learner = learner_of(
        num_envs,
        env_id="DqnIdentity-v0",
        learning_starts=240,
        train_frequency=6,
        target_network_frequency=60,
        buffer_size=500,
        batch_size=8,
    )
    updates, moves = [], []
    learner.gradient.backward = lambda batch: updates.append(learner.step)
    learner.gradient.losses = lambda: (0.0, 0.0)
    learner._move_target = lambda share: moves.append(learner.step)
    for _ in range(6):
        learner.learn(NoRun())
    assert learner.step == 600
    assert [step // 6 for step in updates] == list(range(41, 101))
    assert [step // 60 for step in moves] == list(range(5, 11))


def test_the_target_network_follows_as_far_as_tau_says():
    learner = learner_of(env_id="DqnIdentity-v0", tau=0.25)
    start = learner.parameters.block.data.clone()
    assert torch.equal(learner.target_parameters.block.data, start)
    learner.parameters.block.data.add_(1.0)
    learner._move_target(0.25)
    torch.testing.assert_close(learner.target_parameters.block.data, start + 0.25)
    learner._move_target(1.0)
    assert torch.equal(learner.target_parameters.block.data, learner.parameters.block.data)


# -- learning


QUICK = {
    "env_id": "DqnIdentity-v0",
    "total_timesteps": 3000,
    "learning_rate": 1e-3,
    "learning_starts": 200,
    "gamma": 0.5,
    "train_frequency": 4,
    "target_network_frequency": 100,
    "batch_size": 64,
    "buffer_size": 1000,
}


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """The folder of a training that solved the identity environment, and its evaluation."""
    folder = tmp_path_factory.mktemp("learned")
    return folder, run_dqn(folder, **QUICK, eval_episodes=10)[1]


@pytest.mark.slow  # one is solved in every CI, and several are interrupted
def test_the_identity_environment_is_solved_in_several_environments(tmp_path):
    _, evaluation = run_dqn(tmp_path, **QUICK, num_envs=4, eval_episodes=10)
    assert (evaluation.mean_return, evaluation.std_return) == (4, 0)


def test_the_identity_environment_is_solved(learned):
    folder, evaluation = learned
    assert (evaluation.mean_return, evaluation.std_return) == (4, 0)
    found = charts(folder)
    assert {
        "losses/td_loss",
        "losses/q_values",
        "charts/epsilon",
        "charts/replay_size",
        "charts/replay_bytes",
        "charts/episodic_return",
        "charts/episodic_length",
    } <= found.keys()
    assert [step for step, _ in found["charts/epsilon"]] == list(range(100, 3001, 100))
    assert found["charts/replay_size"][-1] == (3000, 1000)


def test_observations_that_are_no_floats_are_learned_from(tmp_path):
    flags = {**QUICK, "env_id": "FrozenLake-v1", "env_kwargs": '{"is_slippery": false}', "gamma": 0.9}
    run_dqn(tmp_path, **{**flags, "total_timesteps": 600})
    assert charts(tmp_path)["losses/td_loss"]


def test_images_are_learned_from(tmp_path):
    _, evaluation = run_dqn(
        tmp_path,
        args=AtariArgs,
        **PICTURES,
        total_timesteps=600,
        gamma=0.5,
        learning_rate=5e-4,
        exploration_fraction=0.5,
        eval_episodes=4,
    )
    assert evaluation.mean_return >= 6  # of 8; at random 2


@pytest.mark.slow  # what an undisturbed and an interrupted run have in common is shown in every CI
def test_the_same_seed_gives_the_same_weights_and_another_seed_others(tmp_path):
    found = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run_dqn(tmp_path / name, **{**QUICK, "env_id": "CartPole-v1", "total_timesteps": 1500}, seed=seed)
        found.append((weights_digest(tmp_path / name), charts(tmp_path / name)))
    assert found[0] == found[1]
    assert found[0][0] != found[2][0]


@pytest.mark.parametrize(
    ("args", "flags"),
    [
        pytest.param(
            Args,
            {**QUICK, "env_id": "CartPole-v1", "buffer_size": 400, "total_timesteps": 1200, "tau": 0.5},
            marks=pytest.mark.slow,
        ),
        (Args, {**QUICK, "env_id": "CartPole-v1", "num_envs": 8, "total_timesteps": 1200}),
        (AtariArgs, {**PICTURES, "total_timesteps": 500, "buffer_size": 150, "train_frequency": 10}),
    ],
    ids=["sync", "native", "pictures"],
)
def test_a_run_that_was_interrupted_ends_with_the_same_weights(tmp_path, args, flags):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run_dqn(whole, args=args, **flags)
    run_dqn(parts, *[None] * 3, Command.STOP, args=args, **flags)
    (checkpoint,) = (parts / "checkpoints").glob("step-*")
    assert 200 < int(checkpoint.name.removeprefix("step-")) < flags["total_timesteps"]
    run_dqn(parts, args=args, resume=checkpoint, **flags)
    assert weights_digest(parts) == weights_digest(whole)
    assert charts(parts) == charts(whole)


def test_a_run_that_resumes_without_its_replay_buffer_fills_it_first(tmp_path):
    flags = {**QUICK, "total_timesteps": 1500, "checkpoint_replay": "none"}
    run_dqn(tmp_path, *[None] * 5, Command.STOP, **flags)
    (checkpoint,) = (tmp_path / "checkpoints").glob("step-*")
    stopped_at = int(checkpoint.name.removeprefix("step-"))
    run_dqn(tmp_path, resume=checkpoint, **flags)
    learned_at = [step for step, _ in charts(tmp_path)["losses/td_loss"]]
    assert max(step for step in learned_at if step <= stopped_at) == stopped_at
    assert min(step for step in learned_at if step > stopped_at) == stopped_at + flags["learning_starts"]


@pytest.mark.slow  # ppo_atari's game of Pong goes on in every CI
def test_a_game_of_pong_continues_where_it_was(tmp_path, atari):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    flags = {
        "args": AtariArgs,
        "algo": "dqn_atari",
        "env_id": "PongNoFrameskip-v4",
        "total_timesteps": 300,
        "buffer_size": 150,
        "learning_starts": 80,
        "train_frequency": 10,
        "target_network_frequency": 100,
    }
    run_dqn(whole, **flags)
    run_dqn(parts, None, Command.STOP, **flags)
    (checkpoint,) = (parts / "checkpoints").glob("step-*")
    assert checkpoint.name == "step-100"
    run_dqn(parts, resume=checkpoint, **flags)
    assert weights_digest(parts) == weights_digest(whole)
    assert charts(parts) == charts(whole)


def test_weights_that_are_not_finite_end_the_run_and_are_never_saved(tmp_path):
    with pytest.raises(TrainingStopped, match="not finite at step 300: lower --learning-rate"):
        run_dqn(tmp_path, **{**QUICK, "learning_rate": 1e38}, checkpoint_freq=300)
    assert not list(tmp_path.glob("checkpoints/step-*"))


def test_an_environment_that_gives_nan_is_named_as_the_cause(tmp_path):
    flags = {**QUICK, "env_id": "DqnCounting-v0", "env_kwargs": '{"broken_at": 2}'}
    with pytest.raises(TrainingStopped, match="the environment gave observations or rewards that are not finite"):
        run_dqn(tmp_path, **flags)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # of the compiler's own packages
def test_compiled_it_learns_the_same(tmp_path, caplog):
    found = []
    for compile_it in (False, True):
        run_dqn(tmp_path / str(compile_it), **{**QUICK, "total_timesteps": 400}, compile=compile_it)
        found.append(charts(tmp_path / str(compile_it))["losses/td_loss"])
    assert not [record for record in caplog.records if record.name.startswith("cleanrl_worker")]  # it was possible
    assert [step for step, _ in found[0]] == [step for step, _ in found[1]]
    assert [loss for _, loss in found[0]] == pytest.approx([loss for _, loss in found[1]], rel=1e-3)


@pytest.mark.gpu
def test_on_a_gpu_it_learns_the_same():
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    found = []
    for device in (CPU, torch.device("cuda")):
        learner = learner_of(device=device, **{**QUICK, "env_id": "CartPole-v1", "learning_starts": 80})
        learner.learn(NoRun())
        learner.learn(NoRun())
        found.append(learner.gradient.losses())
    assert found[0] == pytest.approx(found[1], rel=1e-3)


# -- files and bad input


NAMES = {
    "network.0.weight": (120, 4),
    "network.0.bias": (120,),
    "network.2.weight": (84, 120),
    "network.2.bias": (84,),
    "network.4.weight": (2, 84),
    "network.4.bias": (2,),
}
ATARI_NAMES = {
    "network.0.weight": (32, 4, 8, 8),
    "network.0.bias": (32,),
    "network.2.weight": (64, 32, 4, 4),
    "network.2.bias": (64,),
    "network.4.weight": (64, 64, 3, 3),
    "network.4.bias": (64,),
    "network.7.weight": (512, 3136),
    "network.7.bias": (512,),
    "network.9.weight": (6, 512),
    "network.9.bias": (6,),
}


@pytest.mark.parametrize(
    ("make_network", "names"),
    [(lambda: QNetwork(4, 2), NAMES), (lambda: AtariQNetwork(4, 6), ATARI_NAMES)],
    ids=["vectors", "pictures"],
)
def test_parameters_have_upstream_s_names_and_shapes(make_network, names):
    assert {name: tuple(tensor.shape) for name, tensor in make_network().state_dict().items()} == names


def test_a_model_plays_as_the_learner_does_and_can_be_begun_from(tmp_path, learned):
    model = learned[0] / "dqn.cleanrl_model"
    weights = {name: tensor.numpy() for name, tensor in torch.load(model, weights_only=True).items()}
    policy = make_policy("DqnIdentity-v0", Identity.observation_space, Identity.action_space, weights)
    symbols = np.eye(3, dtype=np.float32)
    np.testing.assert_array_equal(policy.act(symbols, None), [0, 1, 2])
    rngs = [np.random.default_rng(seed) for seed in range(300)]
    sampled = policy.act(np.repeat(symbols[:1], 300, axis=0), rngs)
    assert 0 < np.count_nonzero(sampled) < 40  # 5 % at random, of which a third is right

    _, evaluation = run_dqn(
        tmp_path / "second", resume=model, **{**QUICK, "total_timesteps": 100, "learning_starts": 90}, eval_episodes=5
    )
    assert evaluation.mean_return == 4


def test_a_learner_acts_at_random_now_and_then_only_if_it_is_to(tmp_path):
    learner = learner_of(env_id="DqnIdentity-v0", end_e=0.5)
    obs = np.repeat(np.eye(3, dtype=np.float32), 100, axis=0)
    best = learner.act(obs, None)
    sampled = learner.act(obs, np.random.default_rng(0))
    assert np.array_equal(best, learner.act(obs, None))
    assert (best != sampled).mean() == pytest.approx(1 / 3, abs=0.1)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"num_envs": 0}, "--num-envs must be at least 1"),
        ({"buffer_size": 100}, "--buffer-size 100 is smaller than a batch of 128: raise it, or lower --batch-size"),
        ({"buffer_size": 9, "batch_size": 4, "num_envs": 10}, "does not hold one step of 10 environments"),
        ({"tau": 1.5}, "--tau must be at most 1, got 1.5"),
        ({"end_e": -0.1}, "--end-e must be at least 0"),
        ({"exploration_fraction": 2.0}, "--exploration-fraction must be at most 1"),
        ({"train_frequency": 0}, "--train-frequency must be at least 1"),
        ({"env_id": "Pendulum-v1"}, "dqn needs discrete actions; Pendulum-v1 has Box actions"),
        ({"env_id": "tiny_worlds:CorridorShort-v0"}, "needs vectors or stacked frames of 84 x 84"),
    ],
)
def test_what_no_run_can_be_made_of_is_refused(tmp_path, flags, message):
    with pytest.raises(BadInput, match=message):
        run_dqn(tmp_path, **flags)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"num_envs": 2}, "made with num_envs=1, this run has 2"),
        ({"buffer_size": 2000}, "made with buffer_size=1000, this run has 2000"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, flags, message):
    run_dqn(tmp_path, **{**QUICK, "total_timesteps": 300})
    (checkpoint,) = (tmp_path / "checkpoints").glob("step-*")
    with pytest.raises(BadInput, match=message):
        run_dqn(tmp_path, resume=checkpoint, **{**QUICK, **flags})


@pytest.mark.parametrize("algo", ["dqn", "c51"])
def test_a_replay_buffer_larger_than_the_memory_is_reported_by_the_dry_run(home, algo):
    home.create()
    values = {"algo_params": {"buffer_size": 10**12}}
    config = CleanRLWorkerConfig(new_run_id(), algo, "CartPole-v1", 500_000, 1, values)
    found = check_run(config, home.run_folder(config.run_id), home)
    (reported,) = [str(problem) for problem in found.problems if str(problem).startswith("memory")]
    assert "44703.5 GiB of it for the replay buffer" in reported
    assert "lower --buffer-size" in reported


def test_the_dry_run_knows_what_the_replay_buffer_takes():
    sizes = {"buffer_size": 700, "obs_bytes": 16}
    assert learner_of(buffer_size=700).buffer.nbytes == DECLARATIONS["dqn"].memory["replay buffer"](Flags(sizes))
