"""A stranger's worker, built and installed into an environment of its own, is listed and run; nothing here changes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from gym_gui.services.run_configs import evaluation_config
from gym_gui.services.trainer.errors import InvalidConfig
from gym_gui.testing import RunningDaemon, make_overlay_with
from gym_gui.wording.run_view import evaluation_of
from mosaic_wire.paths import Home

PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "dice-worker"
version = "0.7"
[project.entry-points."mosaic.workers"]
dice = "dice_worker:get_worker_metadata"
[tool.setuptools]
packages = ["dice_worker"]
"""

PACKAGE = """
from mosaic_wire.capabilities import WorkerCapabilities


def get_worker_metadata():
    return WorkerCapabilities("dice", estimated_memory_mb=32)
"""

CLI = '''
"""Throws dice. All it knows of MOSAIC is the package mosaic_wire."""
import argparse, json, random, sys

from dice_worker import get_worker_metadata
from mosaic_wire.errors import ConfigProblems
from mosaic_wire.exit_record import ExitOutcome
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.session import WorkerSession
from mosaic_wire.worker_config import WorkerConfig, add_worker_arguments, daemon_target, overrides_from, run_folder_of
from mosaic_wire.worker_spec import AlgorithmSpec, FieldSpec, WorkerSpec

FIELDS = (
    FieldSpec("sides", "int", 6, "sides of each die", minimum=2, maximum=100),
    FieldSpec("wait", "bool", False, "wait for SIGTERM at the end"),
)


def describe():
    return WorkerSpec(
        name="dice", display_name="Dice", version="0.7", capabilities=get_worker_metadata(), module="dice_worker.cli",
        argv=(sys.executable, "-m", "dice_worker.cli"),
        algorithms=(AlgorithmSpec("throw", "throws dice", FIELDS, modes=("train", "policy_eval")),),
        environments=("Table-v0",),
    )


def write_curve(session):
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    session.follow_metrics(session.run_folder.tensorboard)
    writer = EventFileWriter(str(session.run_folder.tensorboard))
    for step in range(10):
        value = Summary.Value(tag="charts/episodic_return", simple_value=float(step))
        writer.add_event(Event(wall_time=1e9 + step, step=step, summary=Summary(value=[value])))
    writer.close()


def main():
    parser = argparse.ArgumentParser()
    add_worker_arguments(parser)
    arguments = parser.parse_args()
    if arguments.describe:
        print(json.dumps(describe().to_json()))
        return 0
    try:
        config = WorkerConfig.load(arguments.config, overrides_from(arguments))
    except ConfigProblems as error:
        print(error, file=sys.stderr)
        return 2
    session = WorkerSession.from_environment(
        config.run_id, run_folder_of(config.run_id).root, capabilities=get_worker_metadata(), algo=config.algo,
        env_id=config.env_id, extras=config.extras, target=daemon_target(arguments),
    )
    with session:
        session.install_signal_handlers()
        session.open()
        session.started()
        rng, thrown = random.Random(config.seed), []
        is_evaluation = config.extras.get("mode") == "policy_eval"
        if not is_evaluation:
            write_curve(session)
        for step in range(1, config.total_timesteps + 1):
            thrown.append(rng.randint(1, config.parameters.get("sides", 6)))
            session.progress(step, config.total_timesteps, episodic_return=thrown[-1])
        if config.parameters.get("wait"):
            session.stop_requested.wait()
        cancelled = session.stop_requested.is_set()
        outcome = ExitOutcome.CANCELLED if cancelled else ExitOutcome.COMPLETED
        found = {"mean_return": sum(thrown) / step, "episodes": step} if is_evaluation else None
        session.finish(
            outcome, payload={"sum": sum(thrown), "prefix": sys.prefix, "step": step, "evaluation": found},
            exit_code=130 if cancelled else 0, manifest=AnalyticsManifest(config.run_id, "dice", config.algo),
        )
    return 130 if cancelled else 0


if __name__ == "__main__":
    sys.exit(main())
'''


@pytest.fixture(scope="module")
def strangers_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment that sees our packages and has the stranger's worker installed."""
    tmp_path = tmp_path_factory.mktemp("stranger")
    source = tmp_path / "source"
    (source / "dice_worker").mkdir(parents=True)
    (source / "pyproject.toml").write_text(PROJECT)
    (source / "dice_worker" / "__init__.py").write_text(PACKAGE)
    (source / "dice_worker" / "cli.py").write_text(CLI)
    return make_overlay_with(source, tmp_path / "venv")


def dice(**parameters: Any) -> dict[str, Any]:
    config = {
        "algo": "throw",
        "env_id": "Table-v0",
        "seed": 5,
        "total_timesteps": 20,
        "extras": {"algo_params": parameters},
    }
    return {"run_name": "a throw", "resources": {"cpus": 0}, "metadata": {"worker": {"type": "dice", "config": config}}}


def check_it_is_listed_and_runs(daemon: RunningDaemon, python: Path) -> None:
    listed = {worker.name: worker for worker in daemon.client.workers()}
    assert listed["dice"].problem == ""
    spec = json.loads(listed["dice"].spec_json)
    assert (spec["display_name"], spec["version"], spec["argv"][0]) == ("Dice", "0.7", str(python))
    assert listed["random"].spec_json  # beside ours

    run = daemon.wait_for(daemon.client.submit(dice(sides=3)).run.run_id)
    assert (run.outcome, run.worker_type, run.algo, run.env_id, run.step) == (
        "completed",
        "dice",
        "throw",
        "Table-v0",
        20,
    )
    result = json.loads(run.result_json)
    assert result["prefix"] == str(python.parent.parent)  # its own environment, not the daemon's
    assert 20 <= result["sum"] <= 60
    assert daemon.manifest(run.run_id).worker_type == "dice"
    kinds = daemon.event_kinds(run.run_id)
    assert kinds == ["submitted", "dispatched", "registered", "started", "worker_run_completed", "completed"]

    # Curves and evaluations as docs/workers/writing_a_worker.md has them.
    assert {tag.tag: tag.points for tag in daemon.client.metric_tags(run.run_id)}["charts/episodic_return"] == 10
    asked = evaluation_config(
        worker_type="dice", module="dice_worker.cli", algo="throw", env_id="Table-v0", checkpoint=None, episodes=7
    )
    judged = evaluation_of(daemon.wait_for(daemon.client.submit(asked).run.run_id))
    assert judged is not None
    assert judged["episodes"] == 7
    assert 1 <= judged["mean_return"] <= 6

    # Its own description is what a config is checked against.
    with pytest.raises(InvalidConfig, match=r"sids.*sides") as refused:
        daemon.client.submit(dice(sids=3))
    assert len(refused.value.problems) == 1
    with pytest.raises(InvalidConfig, match="sides"):
        daemon.client.submit(dice(sides=1))

    waiting = daemon.wait_for(daemon.client.submit(dice(wait=True)).run.run_id, "EXEC")
    daemon.client.cancel(waiting.run_id)
    assert daemon.wait_for(waiting.run_id).outcome == "cancelled"


@pytest.mark.slow  # one in another environment runs in every CI
def test_a_worker_installed_beside_the_daemon_is_listed_and_runs(
    make_daemon, strangers_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(strangers_python))  # the daemon is started with this one
    check_it_is_listed_and_runs(make_daemon(), strangers_python)


def test_a_worker_in_another_environment_is_known_by_its_worker_json(
    make_daemon, home: Home, strangers_python: Path
) -> None:
    daemon = make_daemon()
    assert "dice" not in {worker.name for worker in daemon.client.workers()}
    file = home.workers / "dice" / "worker.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"name": "dice", "argv": [str(strangers_python), "-m", "dice_worker.cli"]}))
    daemon.client.workers(refresh=True)
    check_it_is_listed_and_runs(daemon, strangers_python)
