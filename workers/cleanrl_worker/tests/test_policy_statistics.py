"""A policy's file carries the statistics its observations were normalized with; one that lacks them is refused."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from cleanrl_worker import cli
from cleanrl_worker.algorithms import ppo
from cleanrl_worker.algorithms.ppo import ContinuousArgs
from cleanrl_worker.errors import BadInput
from cleanrl_worker.eval.policies import TrainedPolicy
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from cleanrl_worker.testing import train_here
from cleanrl_worker.training.envs import ObservationNormalizer
from cleanrl_worker.training.foreign_model import read_foreign_model
from cleanrl_worker.training.run import run_training_loop

ALGO = "ppo_continuous_action"
SHORT = {"env_id": "Pendulum-v1", "num_steps": 128, "num_minibatches": 4, "total_timesteps": 512, "cuda": False}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    train_here(ppo, folder, ContinuousArgs(**SHORT, checkpoint_freq=256, eval_freq=512, eval_episodes=2), algo=ALGO)
    return folder


@pytest.fixture
def without(trained: Path, tmp_path: Path) -> Path:
    """The file as CleanRL's own script writes it: the bare weights."""
    path = tmp_path / "upstream.cleanrl_model"
    torch.save(dict(torch.load(trained / f"{ALGO}.cleanrl_model", weights_only=True)), path)
    return path


@pytest.mark.parametrize("name", [ALGO, "best"])
def test_a_policy_plays_the_same_from_its_file_and_from_its_checkpoint(trained: Path, name: str) -> None:
    env = gym.make("Pendulum-v1")
    seen = np.random.default_rng(1).normal(size=(50, 3)).astype(np.float32)
    sources = trained / "checkpoints" / "step-512", trained / f"{name}.cleanrl_model"
    first, second = (
        TrainedPolicy.load(path, ALGO).for_env(ppo, "Pendulum-v1", env).act(seen, None) for path in sources
    )
    np.testing.assert_array_equal(first, second)


def test_cleanrl_s_code_loads_the_file_as_before(trained: Path) -> None:
    """`agent.load_state_dict(torch.load(path))`: a bare state dict, with nothing a network does not know."""
    content = torch.load(trained / f"{ALGO}.cleanrl_model", map_location="cpu", weights_only=True)
    agent = ppo.make_agent(
        "gaussian",
        "Pendulum-v1",
        gym.make("Pendulum-v1").observation_space,
        gym.make("Pendulum-v1").action_space,
        algo=ALGO,
    )
    assert str(agent.load_state_dict(content)) == "<All keys matched successfully>"
    assert set(content) == set(agent.state_dict())


def test_training_from_the_file_begins_with_its_statistics(trained: Path, tmp_path: Path, monkeypatch) -> None:
    learners = []

    def watched(learner, run, *, total):
        learners.append(learner)
        return run_training_loop(learner, run, total=total)

    monkeypatch.setattr(ppo, "run_training_loop", watched)
    file = trained / f"{ALGO}.cleanrl_model"
    statistics = read_foreign_model(file).statistics
    assert sorted(statistics) == [
        f"{of}.{what}" for of in ("obs_norm", "return_norm") for what in ("count", "mean", "var")
    ]
    run, _ = train_here(ppo, tmp_path, ContinuousArgs(**{**SHORT, "total_timesteps": 128}), algo=ALGO, resume=file)
    envs = learners[0].envs
    # 512 steps, the first observation and those after an episode's end; then as many again for 128 steps.
    assert envs.obs_moments.count > statistics["obs_norm.count"] + 128
    assert envs.return_moments.count == pytest.approx(float(statistics["return_norm.count"]) + 128)
    reported = next(message for kind, message in run._channel.messages if kind == "checkpoint_loaded")
    assert reported["note"].startswith("the weights and the normalizer's statistics")


def dry_run(capsys: pytest.CaptureFixture, file: Path, mode: str, algo: str = ALGO, **extras) -> tuple[int, str]:
    said = json.dumps({"mode": mode, "checkpoint_path": str(file), **extras})
    flags = ["--algo", algo, "--env-id", "Pendulum-v1", "--total-timesteps", "4096", "--extras", said]
    code = cli.main([*flags, "--dry-run"])
    return code, capsys.readouterr().err


@pytest.mark.parametrize("mode", ["policy_eval", "interactive", "resume_training"])
def test_a_file_without_them_is_refused_unless_the_user_says_there_are_none(
    trained: Path, without: Path, capsys, home, mode
) -> None:
    home.create()
    code, said = dry_run(capsys, without, mode)
    assert code == 2
    assert "has no observation statistics" in said
    assert "--no-statistics" in said
    assert dry_run(capsys, without, mode, policy_statistics="none")[0] == 0
    assert dry_run(capsys, trained / f"{ALGO}.cleanrl_model", mode)[0] == 0
    code, said = dry_run(capsys, without, mode, policy_statistics="some")
    assert (code, "expected 'none', got 'some'" in said) == (2, True)


def test_who_normalizes_observations_reports_it_where_a_dry_run_reads_it() -> None:
    for entry in DEFAULT_ALGO_REGISTRY.values():
        if entry.module:
            preset = getattr(importlib.import_module(entry.module), entry.preset)
            normalizes = "observations" in getattr(preset, "normalized", "")
            assert entry.declaration.normalizes_observations == normalizes, entry.name


def test_statistics_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(BadInput, match="hold NaN or infinite numbers"):
        ObservationNormalizer.of({"mean": np.array([0.0, np.nan]), "var": np.ones(2)})
