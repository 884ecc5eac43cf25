"""C51: its projection and its loss against plain loops and autograd, and that it learns, the same each time."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from cleanrl_worker.algorithms import c51
from cleanrl_worker.algorithms.c51 import (
    Args,
    AtariArgs,
    AtariQNetwork,
    C51Learner,
    QNetwork,
    TorchGradient,
    make_policy,
    numpy_network,
    project,
)
from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.testing import charts, train_here, weights_digest
from cleanrl_worker.training.channel import Command
from cleanrl_worker.training.envs import make_envs
from cleanrl_worker.training.fast_cpu.networks import CategoricalMlp
from cleanrl_worker.training.fast_cpu.q_learning import FastC51
from cleanrl_worker.training.foreign_model import read_foreign_model
from cleanrl_worker.training.optimizers import FlatParameters
from cleanrl_worker.training.replay import Transitions, make_replay
from cleanrl_worker.training.return_distributions import Atoms
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

CPU = torch.device("cpu")
PICTURES = {
    "env_id": "picture_worlds:Quadrants-v0",
    "buffer_size": 500,
    "batch_size": 32,
    "learning_starts": 64,
    "target_network_frequency": 50,
    "v_min": 0,
    "v_max": 4,
    "n_atoms": 21,
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


@pytest.fixture(autouse=True, scope="module")
def _test_environments():
    gym.register("C51Identity-v0", Identity)
    torch.set_num_threads(1)
    yield
    del gym.registry["C51Identity-v0"]


def run_c51(folder: Path, *commands, args=Args, algo: str = "", resume: Path | None = None, **flags):
    return train_here(c51, folder, args(**flags), algo=algo, commands=commands, resume=resume)


class NoRun:
    class writer:
        add_scalars = staticmethod(lambda values, step: None)

    @staticmethod
    def steps_per_second(step):
        return 1.0


# -- the projection


def shared_by_a_loop(probabilities, rewards, discounts, atoms) -> np.ndarray:
    """As the paper's algorithm 1 has it, in plain arithmetic."""
    low, high, count = float(atoms[0]), float(atoms[-1]), len(atoms)
    gap = (high - low) / (count - 1)
    wanted = np.zeros(probabilities.shape)
    for row in range(len(probabilities)):
        for atom in range(count):
            moved = min(max(rewards[row] + discounts[row] * float(atoms[atom]), low), high)
            place = (moved - low) / gap
            below, above = int(np.floor(place + 1e-9)), int(np.ceil(place - 1e-9))
            if below == above:  # exactly on an atom: both shares of the formula would be zero
                wanted[row, below] += probabilities[row, atom]
            else:
                wanted[row, below] += probabilities[row, atom] * (above - place)
                wanted[row, above] += probabilities[row, atom] * (place - below)
    return wanted


def distributions(rows: int, count: int) -> np.ndarray:
    drawn = np.random.default_rng(7).random((rows, count)) ** 4
    return (drawn / drawn.sum(axis=1, keepdims=True)).astype(np.float32)


ATOMS = np.linspace(-10, 10, 51)
CASES = {
    "anywhere": (np.random.default_rng(1).normal(scale=3, size=40), np.full(40, 0.99)),
    "the same reward everywhere": (np.full(40, 1.0), np.full(40, 0.97)),
    "nearly everywhere": (np.where(np.arange(40) % 9 == 4, -1.5, 1.0), np.full(40, 0.97)),
    "exactly on atoms": (np.repeat([0.0, 0.4, -2.0, 10.0], 10), np.full(40, 1.0)),
    "beyond both ends": (np.repeat([-35.0, 35.0, -9.7, 9.7], 10), np.full(40, 0.9)),
    "episodes that are over": (np.linspace(-11, 11, 40), np.where(np.arange(40) % 2, 0.0, 0.99)),
    "over with the same reward": (np.full(40, 1.0), np.where(np.arange(40) % 7 == 3, 0.0, 0.99)),
    "the first one is the odd one": (np.full(40, 1.0), np.where(np.arange(40) == 0, 0.0, 0.99)),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.replace(" ", "-"))
def test_the_projection_equals_a_plain_loop(case):
    rewards, discounts = (array.astype(np.float32) for array in CASES[case])
    probabilities = distributions(40, 51)
    expected = shared_by_a_loop(probabilities, rewards, discounts, ATOMS)
    found = Atoms(ATOMS).project(probabilities.copy(), rewards, discounts)
    in_torch = project(*(torch.from_numpy(a) for a in (probabilities, rewards, discounts)), torch.linspace(-10, 10, 51))
    np.testing.assert_allclose(found, expected, atol=2e-5)  # places are single precision
    np.testing.assert_allclose(in_torch.numpy(), expected, atol=2e-5)  # places are single precision
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-5)  # nothing is lost


def test_an_episode_that_is_over_is_worth_its_last_reward_and_nothing_else():
    atoms = Atoms(np.linspace(0, 4, 5))
    found = atoms.project(distributions(3, 5), np.array([2.0, 2.25, 9.0], dtype=np.float32), np.zeros(3, np.float32))
    np.testing.assert_allclose(found, [[0, 0, 1, 0, 0], [0, 0, 0.75, 0.25, 0], [0, 0, 0, 0, 1]], atol=1e-6)


def test_many_different_rewards_do_not_fill_the_memory():
    atoms = Atoms(np.linspace(0, 4, 5))
    for reward in np.linspace(0, 1, 100, dtype=np.float32):
        atoms.project(distributions(2, 5), np.full(2, reward), np.ones(2, np.float32))
    assert len(atoms._matrices) <= 16


@pytest.mark.parametrize("spread", [1.0, 1000.0])
def test_expected_returns_are_those_of_a_softmax_however_large_the_logits_are(spread):
    logits = (np.random.default_rng(0).normal(size=(6, 51)) * spread).astype(np.float32)
    logits[0] -= 5 * spread  # a maximum of all rows together would leave nothing of this one
    weights, sums, means = Atoms(ATOMS).weights(logits)
    exact = torch.softmax(torch.from_numpy(logits).double(), dim=1).numpy()
    np.testing.assert_allclose(weights / sums[:, None], exact, atol=1e-6)
    np.testing.assert_allclose(means, exact @ ATOMS, rtol=1e-4, atol=1e-4)


# -- the loss


def a_batch(rows: int, actions: int) -> Transitions:
    rng = np.random.default_rng(5)
    obs, next_obs = rng.normal(size=(2, rows, 4)).astype(np.float32)
    rewards, terminated = rng.normal(size=rows).astype(np.float32), (rng.random(rows) < 0.3).astype(np.float32)
    chosen = rng.integers(actions - 1, size=rows)  # the last action is never chosen: its gradient is zero
    return Transitions(obs, chosen, rewards, next_obs, terminated)


@pytest.mark.parametrize("numpy_does_it", [True, False], ids=["numpy", "torch"])
def test_the_loss_and_its_gradient_are_those_of_plain_arithmetic(numpy_does_it):
    torch.manual_seed(1)
    atoms, actions, batch = torch.linspace(-3, 3, 13), 4, a_batch(30, 4)
    agent, target = QNetwork(4, actions, atoms), QNetwork(4, actions, atoms)
    parameters, target_parameters = FlatParameters(agent), FlatParameters(target)
    for block in (parameters.block, target_parameters.block):
        block.data.mul_(3)  # distributions that are far from even
    if numpy_does_it:
        gradient = FastC51(numpy_network(agent, parameters), numpy_network(target, target_parameters), 0.9)
    else:
        gradient = TorchGradient(agent, parameters, target, Args(gamma=0.9), CPU)
    parameters.block.grad.fill_(7.0)  # the gradient is set, not added to
    gradient.backward(batch)
    found = parameters.block.grad.clone()

    losses, chosen = [], []
    for row in range(30):
        with torch.no_grad():
            beyond = torch.softmax(target(torch.from_numpy(batch.next_obs[row : row + 1]))[0], dim=1)
        best = int((beyond @ atoms).argmax())
        discount = 0.9 * (1 - batch.terminated[row])
        wanted = shared_by_a_loop(beyond[best : best + 1].numpy(), batch.rewards[row : row + 1], [discount], atoms)
        predicted = torch.softmax(agent(torch.from_numpy(batch.obs[row : row + 1]))[0, batch.actions[row]], dim=0)
        losses.append(-(torch.from_numpy(wanted[0]).float() * predicted.log()).sum())
        chosen.append(float(predicted.detach() @ atoms))
    loss = torch.stack(losses).mean()
    parameters.zero_gradients()
    loss.backward()
    assert gradient.losses() == pytest.approx((loss.item(), np.mean(chosen)), rel=1e-4)
    torch.testing.assert_close(found, parameters.block.grad, rtol=1e-3, atol=1e-6)


def test_other_networks_are_refused():
    network = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 4))
    with pytest.raises(TypeError, match="ReLU before their last layer"):
        CategoricalMlp(FlatParameters(network), "", network, np.linspace(0, 1, 2))


# -- learning


QUICK = {
    "env_id": "C51Identity-v0",
    "total_timesteps": 3000,
    "learning_rate": 1e-3,
    "learning_starts": 200,
    "gamma": 0.5,
    "train_frequency": 4,
    "target_network_frequency": 100,
    "batch_size": 64,
    "buffer_size": 1000,
    "v_min": 0,
    "v_max": 4,
    "n_atoms": 21,
}


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """The folder of a training that solved the identity environment, and its evaluation."""
    folder = tmp_path_factory.mktemp("learned")
    return folder, run_c51(folder, **QUICK, eval_episodes=10)[1]


def test_the_identity_environment_is_solved(learned):
    folder, evaluation = learned
    assert (evaluation.mean_return, evaluation.std_return) == (4, 0)
    found = charts(folder)
    assert {
        "losses/loss",
        "losses/q_values",
        "charts/epsilon",
        "charts/replay_size",
        "charts/replay_bytes",
        "charts/episodic_return",
        "charts/episodic_length",
    } <= found.keys()
    assert [step for step, _ in found["charts/epsilon"]] == list(range(100, 3001, 100))


def histograms(folder: Path) -> list[tuple[int, list[float], list[float]]]:
    found = []
    for file in sorted(folder.rglob("events.out.tfevents.*")):
        events = EventAccumulator(str(file), size_guidance={"histograms": 0})
        events.Reload()
        if "charts/predicted_returns" in events.Tags()["histograms"]:  # not in the part before learning
            for event in events.Histograms("charts/predicted_returns"):
                found.append((event.step, event.histogram_value.bucket_limit, event.histogram_value.bucket))
    return found


@pytest.mark.slow  # one is solved in every CI, and several are interrupted
def test_the_identity_environment_is_solved_in_several_environments(tmp_path):
    _, evaluation = run_c51(tmp_path, **QUICK, num_envs=4, eval_episodes=10)
    assert (evaluation.mean_return, evaluation.std_return) == (4, 0)


def test_predicted_returns_are_charted_and_become_those_that_come(learned):
    found = histograms(learned[0])
    assert [step for step, _, _ in found] == [1000, 2000, 3000]
    spread = [np.array(counts) / np.sum(counts) for _, _, counts in found]
    atoms = np.linspace(0, 4, 21)
    # Right answers for ever are worth 1 / (1 - 0.5); an untrained network would say the middle, and spread it evenly.
    assert float(spread[-1] @ atoms) == pytest.approx(2, abs=0.25)
    assert spread[-1][np.abs(atoms - 2) <= 0.5].sum() > 0.8


@pytest.mark.slow  # dqn learns from pictures in every CI; what c51 adds to it, the identity environment shows
def test_images_are_learned_from(tmp_path):
    _, evaluation = run_c51(
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
    flags = {**QUICK, "env_id": "CartPole-v1", "total_timesteps": 1500, "v_max": 100}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run_c51(tmp_path / name, **flags, seed=seed)
        found.append((weights_digest(tmp_path / name), charts(tmp_path / name), histograms(tmp_path / name)))
    assert found[0] == found[1]
    assert found[0][0] != found[2][0]


@pytest.mark.slow  # dqn, whose loop this is, is interrupted in every CI
@pytest.mark.parametrize(
    ("args", "flags"),
    [
        (Args, {**QUICK, "env_id": "CartPole-v1", "buffer_size": 400, "total_timesteps": 1200, "v_max": 100}),
        (Args, {**QUICK, "env_id": "CartPole-v1", "num_envs": 8, "total_timesteps": 1200, "v_max": 100}),
        (AtariArgs, {**PICTURES, "total_timesteps": 500, "buffer_size": 150, "train_frequency": 10}),
    ],
    ids=["sync", "native", "pictures"],
)
def test_a_run_that_was_interrupted_ends_with_the_same_weights(tmp_path, args, flags):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run_c51(whole, args=args, **flags)
    run_c51(parts, *[None] * 3, Command.STOP, args=args, **flags)
    (checkpoint,) = (parts / "checkpoints").glob("step-*")
    assert 200 < int(checkpoint.name.removeprefix("step-")) < flags["total_timesteps"]
    run_c51(parts, args=args, resume=checkpoint, **flags)
    assert weights_digest(parts) == weights_digest(whole)
    assert charts(parts) == charts(whole)
    if args is Args:
        assert histograms(parts) == histograms(whole) != []


@pytest.mark.slow  # ppo_atari's game of Pong goes on in every CI
def test_a_game_of_pong_continues_where_it_was(tmp_path, atari):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    flags = {
        "args": AtariArgs,
        "algo": "c51_atari",
        "env_id": "PongNoFrameskip-v4",
        "total_timesteps": 300,
        "buffer_size": 150,
        "learning_starts": 80,
        "train_frequency": 10,
        "target_network_frequency": 100,
    }
    run_c51(whole, **flags)
    run_c51(parts, None, Command.STOP, **flags)
    (checkpoint,) = (parts / "checkpoints").glob("step-*")
    assert checkpoint.name == "step-100"
    run_c51(parts, resume=checkpoint, **flags)
    assert weights_digest(parts) == weights_digest(whole)
    assert charts(parts) == charts(whole)


def test_weights_that_are_not_finite_end_the_run_and_are_never_saved(tmp_path):
    with pytest.raises(TrainingStopped, match="not finite at step 300: lower --learning-rate"):
        run_c51(tmp_path, **{**QUICK, "learning_rate": 1e38}, checkpoint_freq=300)
    assert not list(tmp_path.glob("checkpoints/step-*"))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # of the compiler's own packages
def test_compiled_it_learns_the_same(tmp_path, caplog):
    found = []
    for compile_it in (False, True):
        run_c51(tmp_path / str(compile_it), **{**QUICK, "total_timesteps": 400}, compile=compile_it)
        found.append(charts(tmp_path / str(compile_it))["losses/loss"])
    assert not [record for record in caplog.records if record.name.startswith("cleanrl_worker")]  # it was possible
    assert [step for step, _ in found[0]] == [step for step, _ in found[1]]
    assert [loss for _, loss in found[0]] == pytest.approx([loss for _, loss in found[1]], rel=1e-3)


@pytest.mark.gpu
def test_on_a_gpu_it_learns_the_same():
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    found = []
    args = Args(**{**QUICK, "env_id": "CartPole-v1", "learning_starts": 80, "v_max": 100})
    for device in (CPU, torch.device("cuda")):
        envs = make_envs(args.env_id, 1)
        learner = C51Learner(args, envs, make_replay(args, envs), device)
        learner.begin_episodes()
        learner.learn(NoRun())
        learner.learn(NoRun())
        found.append(learner.gradient.losses())
        assert learner.predicted_returns(learner.probe).sum() == pytest.approx(1, rel=1e-4)
    assert found[0] == pytest.approx(found[1], rel=1e-3)


# -- files and bad input


NAMES = {
    "atoms": (101,),
    "network.0.weight": (120, 4),
    "network.0.bias": (120,),
    "network.2.weight": (84, 120),
    "network.2.bias": (84,),
    "network.4.weight": (202, 84),
    "network.4.bias": (202,),
}
ATARI_NAMES = {
    "atoms": (51,),
    "network.0.weight": (32, 4, 8, 8),
    "network.0.bias": (32,),
    "network.2.weight": (64, 32, 4, 4),
    "network.2.bias": (64,),
    "network.4.weight": (64, 64, 3, 3),
    "network.4.bias": (64,),
    "network.7.weight": (512, 3136),
    "network.7.bias": (512,),
    "network.9.weight": (204, 512),
    "network.9.bias": (204,),
}


@pytest.mark.parametrize(
    ("network", "names"),
    [
        (QNetwork(4, 2, torch.linspace(-100, 100, 101)), NAMES),
        (AtariQNetwork(4, 4, torch.linspace(-10, 10, 51)), ATARI_NAMES),
    ],
)
def test_parameters_have_upstream_s_names_and_shapes(network, names):
    assert {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()} == names


@pytest.mark.slow  # dqn's is begun from in every CI
def test_a_model_has_upstream_s_shape_plays_as_the_learner_does_and_can_be_begun_from(tmp_path, learned):
    path = learned[0] / "c51.cleanrl_model"
    assert torch.load(path, weights_only=True)["args"]["n_atoms"] == 21
    model = read_foreign_model(path)
    assert model.shape == "model_weights"
    policy = make_policy("C51Identity-v0", Identity.observation_space, Identity.action_space, model.weights)
    symbols = np.eye(3, dtype=np.float32)
    np.testing.assert_array_equal(policy.act(symbols, None), [0, 1, 2])
    rngs = [np.random.default_rng(seed) for seed in range(300)]
    sampled = policy.act(np.repeat(symbols[:1], 300, axis=0), rngs)
    assert 0 < np.count_nonzero(sampled) < 40  # 5 % at random, of which a third is right

    short = {**QUICK, "total_timesteps": 100, "learning_starts": 90}
    _, evaluation = run_c51(tmp_path / "second", resume=path, **short, eval_episodes=5)
    assert evaluation.mean_return == 4
    with pytest.raises(BadInput, match="has 21 atoms from 0 to 4; give the same --n-atoms, --v-min and --v-max"):
        run_c51(tmp_path / "third", resume=path, **{**short, "v_max": 5})


def test_weights_without_atoms_are_refused(tmp_path):
    weights = {name: tensor.numpy() for name, tensor in QNetwork(3, 3, torch.zeros(2)).state_dict().items()}
    del weights["atoms"]
    spaces = (Identity.observation_space, Identity.action_space)
    with pytest.raises(BadInput, match="atoms is missing"):
        make_policy("C51Identity-v0", *spaces, weights)
    with pytest.raises(BadInput, match="not returns in rising order"):
        make_policy("C51Identity-v0", *spaces, {**weights, "atoms": np.zeros(2, dtype=np.float32)})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"v_min": 5.0, "v_max": 5.0}, "--v-min 5.0 must be less than --v-max 5.0"),
        ({"v_min": 200.0}, "--v-min 200.0 must be less than --v-max 100"),
        ({"n_atoms": 1}, "--n-atoms must be at least 2, got 1"),
        ({"buffer_size": 100}, "--buffer-size 100 is smaller than a batch of 128: raise it, or lower --batch-size"),
        ({"gamma": 1.5}, "--gamma must be at most 1, got 1.5"),
        ({"env_id": "Pendulum-v1"}, "c51 needs discrete actions; Pendulum-v1 has Box actions"),
        ({"env_id": "tiny_worlds:CorridorShort-v0"}, "needs vectors or stacked frames of 84 x 84"),
    ],
)
def test_what_no_run_can_be_made_of_is_refused(tmp_path, flags, message):
    with pytest.raises(BadInput, match=message):
        run_c51(tmp_path, **flags)


def test_a_checkpoint_with_other_atoms_is_refused(tmp_path):
    run_c51(tmp_path, **{**QUICK, "total_timesteps": 300})
    (checkpoint,) = (tmp_path / "checkpoints").glob("step-*")
    with pytest.raises(BadInput, match="made with v_max=4, this run has 8"):
        run_c51(tmp_path, resume=checkpoint, **{**QUICK, "v_max": 8})
