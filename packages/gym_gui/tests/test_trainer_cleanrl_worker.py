"""CleanRL through a real daemon: handshake, lifecycle, manifest, TensorBoard files, outcome; wrong flags refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from gym_gui.services.trainer.errors import InvalidConfig
from gym_gui.testing import RunningDaemon
from mosaic_wire.checkpoints import verify_checkpoint
from mosaic_wire.lifecycle import LifecycleKind
from mosaic_wire.paths import Home

SETTINGS = {"heartbeat_s": 0.5, "grace_s": 5, "min_free_disk_mb": 0}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    folder = tmp_path_factory.mktemp("cleanrl")
    with RunningDaemon(Home(folder / "home"), folder / "config", settings=SETTINGS) as daemon:
        yield daemon


def ppo(*, timesteps: int = 128, extras: dict[str, Any] | None = None, **parameters: Any) -> dict[str, Any]:
    """A run as people submit it; the steps are few, the rest is real."""
    params = {"num_envs": 2, "num_steps": 16, "num_minibatches": 2, "update_epochs": 1, **parameters}
    config = {
        "run_id": "${RUN_ID}",
        "algo": "ppo",
        "env_id": "CartPole-v1",
        "total_timesteps": timesteps,
        "seed": 1,
        "extras": {"tensorboard_dir": "${VAR_TENSORBOARD_DIR}", "algo_params": params, **(extras or {})},
    }
    return {
        "run_name": "cartpole",
        "resources": {"cpus": {"requested": 0}, "gpus": {"requested": 0, "mandatory": 0}},
        "artifacts": {"tensorboard": {"enabled": True}, "wandb": {"enabled": False}},
        "metadata": {"worker": {"type": "cleanrl", "module": "cleanrl_worker.cli", "config": config}},
    }


def test_a_run_is_trained_to_its_end_and_leaves_what_it_promised(daemon: RunningDaemon) -> None:
    run_id = daemon.client.submit(ppo()).run.run_id
    run = daemon.wait_for(run_id, timeout_s=120)
    assert (run.status, run.outcome, run.reason) == ("TERM", "completed", "completed")

    # The handshake reported who trains what.
    assert (run.worker_type, run.algo, run.env_id, run.seed) == ("cleanrl", "ppo", "CartPole-v1", 1)
    assert json.loads(run.capabilities_json)["worker_type"] == "cleanrl"
    assert json.loads(run.extras_json)["algo_params"]["num_steps"] == 16
    assert (run.step, run.total) == (128, 128)
    statuses = [event.to_status for event in daemon.client.history(run_id) if event.to_status]
    assert statuses == ["INIT", "HSHK", "RDY", "EXEC", "TERM"]

    events = daemon.lifecycle(run_id)
    kinds = [event.event for event in events if event.event is not LifecycleKind.HEARTBEAT]
    assert kinds[0] is LifecycleKind.RUN_STARTED
    assert kinds[-1] is LifecycleKind.RUN_COMPLETED
    assert [event.seq for event in events] == list(range(1, len(events) + 1))

    folder = daemon.home.run_folder(run_id)
    manifest = daemon.manifest(run_id)
    assert (manifest.outcome, manifest.finalised_by, manifest.algo) == ("completed", "worker", "ppo")
    assert manifest.tensorboard_dir is not None
    written = list((folder.root / manifest.tensorboard_dir).rglob("events.out.tfevents.*"))
    assert written
    assert all(path.stat().st_size > 0 for path in written)
    assert manifest.checkpoints
    newest = max(manifest.checkpoints, key=lambda entry: entry.step)
    assert newest.step == 128
    assert verify_checkpoint(folder.root / newest.path, newest.sha256) is None


@pytest.mark.slow
def test_a_finished_run_is_continued_from_its_checkpoint(daemon: RunningDaemon) -> None:
    parent = daemon.wait_for(daemon.client.submit(ppo(timesteps=64)).run.run_id, timeout_s=120)
    child = daemon.wait_for(daemon.client.resume(parent.run_id, additional_timesteps=64).run_id, timeout_s=120)
    assert (child.outcome, child.step) == ("completed", 128)
    assert (child.parent.run_id, child.parent.step) == (parent.run_id, 64)
    assert LifecycleKind.CHECKPOINT_LOADED in [event.event for event in daemon.lifecycle(child.run_id)]


@pytest.mark.slow
def test_a_run_is_cancelled_while_it_trains_and_keeps_a_checkpoint(daemon: RunningDaemon) -> None:
    run_id = daemon.client.submit(ppo(timesteps=10**9)).run.run_id
    daemon.wait_for_run(run_id, lambda run: run.step > 0, timeout_s=120)
    daemon.client.cancel(run_id)
    run = daemon.wait_for(run_id, timeout_s=60)
    assert run.outcome == "cancelled"
    assert daemon.manifest(run_id).outcome == "cancelled"


REFUSED: list[tuple[dict[str, Any], str]] = [
    (ppo(lerning_rate=0.1), "lerning_rate.*learning_rate"),
    (ppo(num_steps="many"), "num_steps"),
    (ppo(num_steps=0.5), "num_steps"),
    (ppo(extras={"algo_params": []}), "algo_params"),
    (ppo(extras={"env_kwargs": {"no_such_argument": 1}}), "no_such_argument"),
    (ppo(extras={"tensorboard_dir": "/etc"}), "tensorboard_dir"),
]


@pytest.mark.parametrize(("config", "expected"), REFUSED, ids=[expected for _, expected in REFUSED])
def test_a_wrong_flag_is_refused_before_anything_is_queued(daemon: RunningDaemon, config, expected: str) -> None:
    known = daemon.client.list(include_archived=True).matching
    with pytest.raises(InvalidConfig, match=expected):
        daemon.client.submit(config)
    assert daemon.client.list(include_archived=True).matching == known


@pytest.mark.parametrize(
    ("key", "value", "nearest"), [("algo", "ppoo", "ppo"), ("env_id", "CartPole-v7", "CartPole-v1")]
)
def test_a_wrong_name_is_refused_with_the_nearest_right_one(
    daemon: RunningDaemon, key: str, value: str, nearest: str
) -> None:
    config = ppo()
    config["metadata"]["worker"]["config"][key] = value
    with pytest.raises(InvalidConfig) as refused:
        daemon.client.submit(config)
    problem = next(problem for problem in refused.value.problems if problem.path.endswith(f".{key}"))
    assert problem.suggestion == nearest
