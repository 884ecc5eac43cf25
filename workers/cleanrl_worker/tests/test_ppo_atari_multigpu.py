"""PPO over several processes: the same weights everywhere, and what one process would learn; resume, stop, deaths."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
import tyro
from cleanrl_worker.agents import DiscreteAgent
from cleanrl_worker.algorithms.ppo import Batch, ppo_losses
from cleanrl_worker.algorithms.ppo_atari_multigpu import Args, MultiGpuLearner, check, device_of, make_policy
from cleanrl_worker.config import read_flags
from cleanrl_worker.errors import BadInput
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from cleanrl_worker.testing import run_script
from cleanrl_worker.training.distributed import Team, pack, unpack
from cleanrl_worker.training.envs import make_envs
from cleanrl_worker.training.evaluation import evaluate
from mosaic_extras.testing import interpreter_with
from mosaic_wire.event_files import EventFolderReader
from mosaic_wire.worker_config import canonical_flags
from mosaic_wire.worker_spec import FieldSpec
from safetensors.numpy import load_file

RANK = Path(__file__).with_name("scripts") / "multigpu_rank.py"
WORLD = "picture_worlds:Quadrants-v0"
PATIENCE_S = 120
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["cleanrl_worker.algorithms.ppo_atari_multigpu", "cleanrl_worker.training.run"])
SMALL = {"local_num_envs": 2, "num_steps": 8, "num_minibatches": 2, "update_epochs": 2, "total_timesteps": 96}

UPSTREAM_SHAPES = {
    "network.0.weight": (32, 4, 8, 8),
    "network.0.bias": (32,),
    "network.2.weight": (64, 32, 4, 4),
    "network.2.bias": (64,),
    "network.4.weight": (64, 64, 3, 3),
    "network.4.bias": (64,),
    "network.7.weight": (512, 3136),
    "network.7.bias": (512,),
    "actor.weight": (4, 512),
    "actor.bias": (4,),
    "critic.weight": (1, 512),
    "critic.bias": (1,),
}
"""Names and shapes of CleanRL's model of this name, for four actions"""


def run_ranks(script: Path, folder: Path, *ranks: list[str]) -> tuple[list[int | None], list[tuple[str, str]]]:
    """Run a script once for each rank, in processes that have loaded torch already; their exit codes and output."""
    started = []
    for rank, argv in enumerate(ranks):
        outputs = str(folder / f"stdout-{rank}"), str(folder / f"stderr-{rank}")
        started.append((FORKED.Process(target=run_script, args=(str(script), argv, *outputs)), outputs))
    for process, _ in started:
        process.start()
    for process, _ in started:
        process.join(PATIENCE_S)
    codes = [process.exitcode for process, _ in started]
    return codes, [(Path(said).read_text(), Path(cried).read_text()) for _, (said, cried) in started]


class Processes:
    """The ranks of one training."""

    def __init__(self, folder: Path, size: int, flags: dict, how: str = "") -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        (folder / "store").unlink(missing_ok=True)
        rest = [str(size), str(folder / "store"), str(folder), json.dumps(flags), how]
        self.codes, self.said = run_ranks(RANK, folder, *([str(rank), *rest] for rank in range(size)))

    def weights(self) -> set[str]:
        assert set(self.codes) == {0}, self.said
        return {(self.folder / f"rank-{rank}.txt").read_text() for rank in range(len(self.codes))}

    def scalars(self) -> dict[str, list[tuple[int, float]]]:
        """Every curve but the speed."""
        found: dict[str, list[tuple[int, float]]] = {}
        for batch in EventFolderReader(self.folder / "tensorboard").read():
            for scalar in batch.scalars():
                if scalar.tag != "charts/SPS":
                    found.setdefault(scalar.tag, []).append((scalar.step, scalar.value))
        return found


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Processes:
    """Two processes of two environments each, three iterations, a checkpoint at each."""
    return Processes(tmp_path_factory.mktemp("two"), 2, {**SMALL, "checkpoint_freq": 32})


# -- together


def test_every_process_ends_with_the_same_weights(two: Processes) -> None:
    assert len(two.weights()) == 1


def test_the_leader_alone_writes_and_counts_the_episodes_of_all(two: Processes) -> None:
    curves = two.scalars()
    assert [step for step, _ in curves["losses/policy_loss"]] == [32, 64, 96]
    # Four environments play episodes of eight steps: three each, all of them charted.
    assert [step for step, _ in curves["charts/episodic_return"]] == [32] * 4 + [64] * 4 + [96] * 4
    assert [line.split()[0] for line in two.said[1][0].splitlines()] == []


def test_two_processes_learn_what_one_with_all_environments_would(tmp_path: Path) -> None:
    """One gradient of the whole batch is the mean of its halves' gradients; Adam's first moment is a tenth of it."""
    flags = {"num_steps": 8, "num_minibatches": 1, "update_epochs": 1, "norm_adv": False, "total_timesteps": 32}
    together = Processes(tmp_path / "together", 2, {**flags, "local_num_envs": 2})
    alone = Processes(tmp_path / "alone", 1, {**flags, "local_num_envs": 4})
    assert len(together.weights()) == len(alone.weights()) == 1
    ours, theirs = (load_file(p.folder / "checkpoints" / "step-32" / "state.safetensors") for p in (together, alone))
    distance = np.linalg.norm(ours["adam.exp_avg"] - theirs["adam.exp_avg"])
    assert distance < 1e-4 * np.linalg.norm(theirs["adam.exp_avg"])
    # The same games were played: returns are equal to the bit, in the same order, and so are the pictures.
    assert together.scalars()["charts/episodic_return"] == alone.scalars()["charts/episodic_return"]
    images = np.concatenate([ours["next_obs"], ours["process1.next_obs"]])
    np.testing.assert_array_equal(images, theirs["next_obs"])


def test_gradients_are_the_mean_over_processes(tmp_path: Path) -> None:
    script = tmp_path / "mean.py"
    script.write_text(
        "import sys, torch; from cleanrl_worker.training.distributed import Team; rank = int(sys.argv[1]);"
        "team = Team(rank, 3, store=sys.argv[2]); block = torch.arange(4.0) * (rank + 1); team.average(block);"
        "assert block.tolist() == [0.0, 2.0, 4.0, 6.0], block; rank == 0 or team.next_order();"
        "team.close()"  # without it gloo's threads are torn down under a process that ends, which aborts now and then
    )
    codes, said = run_ranks(script, tmp_path, *([str(rank), str(tmp_path / "store")] for rank in range(3)))
    assert codes == [0, 0, 0], said


# -- resume and stop


def test_a_resumed_training_is_the_same_to_the_bit(two: Processes, tmp_path: Path) -> None:
    checkpoint = two.folder / "checkpoints" / "step-32"
    rest = Processes(tmp_path, 2, {**SMALL, "checkpoint_freq": 32}, str(checkpoint))
    assert rest.weights() == two.weights()
    assert '"environments": "exact"' in rest.said[0][0]
    after = {tag: [point for point in curve if point[0] > 32] for tag, curve in two.scalars().items()}
    assert rest.scalars() == after


def test_a_checkpoint_of_another_number_of_processes_is_refused(two: Processes, tmp_path: Path) -> None:
    alone = Processes(tmp_path, 1, SMALL, str(two.folder / "checkpoints" / "step-32"))
    assert alone.codes == [1]
    assert "made by 2 processes, this run has 1" in alone.said[0][1]


def test_pause_and_stop_reach_all_at_the_same_safe_point(tmp_path: Path) -> None:
    stopped = Processes(tmp_path, 2, {**SMALL, "total_timesteps": 10**6}, "stop")
    assert len(stopped.weights()) == 1
    lines = stopped.said[0][0].splitlines()
    kinds = [line.split()[0] for line in lines if not line.startswith(("progress", "global_step="))]
    assert kinds == ["parameters", "checkpoint_saved", "paused", "resumed", "checkpoint_saved", "policy"]
    assert sorted(path.name for path in (tmp_path / "checkpoints").glob("step-*")) == ["step-32", "step-64"]


def test_a_process_that_dies_ends_the_training_with_a_sentence(tmp_path: Path) -> None:
    ended = Processes(tmp_path, 2, {**SMALL, "checkpoint_freq": 32}, "die-at-32")
    assert ended.codes == [1, 3]
    assert "TrainingStopped" in ended.said[0][1]
    assert "Resume from the last checkpoint" in ended.said[0][1]
    assert (tmp_path / "checkpoints" / "step-32").is_dir()


def test_followers_end_when_the_leader_is_missing(tmp_path: Path) -> None:
    script = tmp_path / "leaderless.py"
    script.write_text(
        "import os, sys; from cleanrl_worker.training.distributed import LeaderLost, Instruction, Team\n"
        "rank = int(sys.argv[1]);"
        "team = Team(rank, 2, store=sys.argv[2]);"
        "os._exit(9) if rank == 0 else None\n"
        # Without Python's goodbye: gloo's threads now and then abort a process whose team broke apart.
        "try:\n    team.next_order()\nexcept LeaderLost:\n    os._exit(7)"
    )
    codes, said = run_ranks(script, tmp_path, *([str(rank), str(tmp_path / "store")] for rank in range(2)))
    assert codes == [9, 7], said


# -- alone


@pytest.mark.slow  # dqn learns from pictures in every CI
def test_a_world_of_frames_is_solved() -> None:
    args = Args(
        env_id=WORLD,
        local_num_envs=4,
        num_steps=16,
        total_timesteps=64 * 14,
        learning_rate=1e-3,
        gamma=0.0,
        anneal_lr=False,
        ent_coef=0.0,
    )
    torch.set_num_threads(1)
    learner = MultiGpuLearner(args, make_envs(WORLD, 4), torch.device("cpu"), Team())
    learner.begin_episodes()
    while learner.step < learner.total:
        learner.iterate()
    found = evaluate(WORLD, lambda obs: learner.act(obs, None), episodes=10, seed=1)
    assert found.mean_return == 8
    weights = {name: tensor.numpy() for name, tensor in learner.model().items()}
    assert {name: array.shape for name, array in weights.items()} == UPSTREAM_SHAPES
    policy = make_policy(WORLD, learner.envs.observation_space, learner.envs.action_space, weights)
    obs = learner.next_obs
    np.testing.assert_array_equal(policy.act(obs, None), learner.act(obs, None))


def test_losses_equal_plain_arithmetic() -> None:
    rng, args, count = np.random.default_rng(1), Args(), 8

    class Table(DiscreteAgent):
        logits = torch.from_numpy(rng.normal(size=(count, 3)))
        values = torch.from_numpy(rng.normal(size=(count, 1)))

        def forward(self, obs):
            return self.logits, self.values

    old, advantages, returns, values = (torch.from_numpy(rng.normal(size=count)) for _ in range(4))
    actions = torch.from_numpy(rng.integers(3, size=count))
    losses = ppo_losses(Table(3), Batch(torch.empty(0), actions, old - 1, advantages, returns, values), args)
    odds = np.exp(Table.logits.numpy())
    probabilities = odds / odds.sum(axis=1, keepdims=True)
    normal = (advantages.numpy() - advantages.numpy().mean()) / (advantages.numpy().std(ddof=1) + 1e-8)
    policy, value, entropy = [], [], []
    for i in range(count):
        ratio = probabilities[i, actions[i]] / np.exp(float(old[i]) - 1)
        policy.append(-min(ratio * normal[i], min(max(ratio, 0.9), 1.1) * normal[i]))
        predicted, before, expected = float(Table.values[i, 0]), float(values[i]), float(returns[i])
        clipped = before + min(max(predicted - before, -0.1), 0.1)
        value.append(0.5 * max((predicted - expected) ** 2, (clipped - expected) ** 2))
        entropy.append(-sum(p * np.log(p) for p in probabilities[i]))
    assert losses.total.item() == pytest.approx(np.mean(policy) - 0.01 * np.mean(entropy) + 0.5 * np.mean(value))


def test_state_travels_between_processes_unchanged() -> None:
    arrays, values = unpack(pack({"a": np.arange(3), "b": np.zeros((2, 0), np.float32)}, {"rng": {"state": 2**100}}))
    np.testing.assert_array_equal(arrays["a"], [0, 1, 2])
    assert arrays["b"].shape == (2, 0)
    assert values == {"rng": {"state": 2**100}}


# -- what cannot be


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"num_minibatches": 3}, "does not divide the batch of 1024 steps"),
        ({"local_num_envs": 1, "num_steps": 4}, "too small"),
    ],
)
def test_values_no_run_can_be_made_of_are_refused(flags: dict, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        check(Args(**flags))


@pytest.mark.parametrize("ids", ["0,1", "zero"])
def test_gpus_must_be_one_for_each_process(ids: str) -> None:
    with pytest.raises(BadInput, match="one number for each of the 1 processes"):
        device_of(Args(device_ids=ids), Team())


def test_gpus_are_named_as_cleanrl_names_them() -> None:
    """`--device-ids 0 1`, on both command lines and through tyro."""
    spec = DEFAULT_ALGO_REGISTRY["ppo_atari_multigpu"].spec()
    typed = ["--device_ids", "0", "1", "--seed", "3"]
    assert canonical_flags(typed) == ["--device-ids", "0,1", "--seed", "3"]
    assert read_flags(canonical_flags(typed), spec)[0]["device_ids"] == "0,1"
    assert tyro.cli(Args, args=canonical_flags(typed)).device_ids == "0,1"
    assert FieldSpec("device_ids", "json").parse("0,1") == [0, 1]  # how CleanRL's own script declares it


def test_more_processes_than_gpus_learn_on_the_cpu() -> None:
    assert device_of(Args(device_ids="7"), Team()).type == "cpu"


def test_vectors_are_not_for_this_network() -> None:
    spaces = (gym.spaces.Box(0, 1, (3,)), gym.spaces.Discrete(2))
    with pytest.raises(BadInput, match="needs images"):
        make_policy("CartPole-v1", *spaces, {})


# -- as people start it


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_torchrun_gives_what_processes_of_our_own_give(tmp_path: Path) -> None:
    python = str(interpreter_with("atari"))
    algorithm = ["-m", "cleanrl_worker.algorithms", "ppo_atari_multigpu", "--env-id", "PongNoFrameskip-v4"]
    flags = ["--local-num-envs", "2", "--num-steps", "8", "--total-timesteps", "64"]
    ways = {
        "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", *algorithm, *flags],
        "own": [*algorithm, *flags, "--world-size", "2"],
    }
    models = []
    for name, arguments in ways.items():
        (tmp_path / name).mkdir()
        done = subprocess.run([python, *arguments], cwd=tmp_path / name, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        (folder,) = (tmp_path / name / "runs").iterdir()  # the leader's, and no other
        models.append(torch.load(folder / "ppo_atari_multigpu.cleanrl_model", weights_only=True))
    for name, ours in models[0].items():
        assert torch.equal(ours, models[1][name])
