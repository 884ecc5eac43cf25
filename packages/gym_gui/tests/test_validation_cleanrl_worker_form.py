"""The dry run behind the form's button: the real worker's, in a process of its own."""

from __future__ import annotations

import pytest
from gym_gui.validations.validation_cleanrl_worker_form import run_cleanrl_dry_run

WORKER = {
    "run_id": "${RUN_ID}",
    "algo": "ppo",
    "env_id": "CartPole-v1",
    "seed": 42,
    "total_timesteps": 50000,
    "extras": {"track_wandb": False, "requirements": ["base"], "notes": "Day20 smoke test"},
}


def nested(**changes) -> dict:
    config = {**WORKER, **changes}
    return {
        "run_name": "cleanrl-ppo-cartpole",
        "resources": {"gpus": {"requested": 0, "mandatory": 0}, "cpus": {"requested": 2}},
        "artifacts": {"tensorboard": {"enabled": True}, "wandb": {"enabled": False}},
        "metadata": {"worker": {"type": "cleanrl", "module": "cleanrl_worker.cli", "config": config}},
    }


@pytest.fixture(autouse=True)
def _home(home):
    home.create()


@pytest.mark.parametrize("config", [nested(), WORKER], ids=["nested", "flat"])
def test_a_good_config_is_accepted_and_shown(config, home):
    good, reported = run_cleanrl_dry_run(config)
    assert good, reported
    assert "cleanrl_worker.launcher" in reported
    assert str(home.runs) in reported
    assert list(home.runs.iterdir()) == []


def test_everything_wrong_is_reported_without_secrets():
    extras = {"algo_params": {"gamma": 3.0, "num_env": 2}, "wandb_api_key": "hunter2-hunter2", "no_progress": "x"}
    good, reported = run_cleanrl_dry_run(nested(env_id="CartPole-v9", extras=extras))
    assert not good
    for text in ("gamma: must be at most 1", "Did you mean 'num_envs'", "CartPole-v1", "extras.no_progress"):
        assert text in reported
    assert "hunter2" not in reported
    assert "/tmp/mosaic-dry-run-" not in reported


class Offers:
    """A catalog that offers one command as the worker."""

    def __init__(self, *argv: str) -> None:
        self.argv, self.env = argv, {}

    def get(self, name: str):
        return self


def test_a_worker_that_cannot_be_started_or_hangs_is_an_answer_too(home):
    good, reported = run_cleanrl_dry_run(WORKER, home=home, catalog=Offers("/nowhere/python"))
    assert (good, reported.startswith("the worker cannot be started: No such file")) == (False, True)
    good, reported = run_cleanrl_dry_run(WORKER, home=home, catalog=Offers("/bin/sh", "-c", "sleep 60"), timeout_s=0.2)
    assert (good, reported) == (False, "the worker gave no answer within 0.2 s")
