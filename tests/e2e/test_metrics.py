"""Curves reach the daemon while a run runs: nothing lost, nothing twice, whoever dies in between."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from contextlib import closing
from typing import Any

import pytest
from gym_gui.testing import RunningDaemon, install_scripted_worker, scripted_config
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.testing import wait_until

from tests.e2e.conftest import MakeDaemon

SCRIBE = """
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

wanted = config.extras["algo_params"]
folder = run_folder_of(config.run_id)
session = open_session()
session.started({})
session.follow_metrics(folder.tensorboard)
writer = EventFileWriter(str(folder.tensorboard), max_queue_size=10, flush_secs=0.1)
for step in range(wanted["points"]):
    values = {"charts/episodic_return": step % 200, "losses/value_loss": 1.0 / (step + 1), "charts/SPS": 1000.0}
    summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
    writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
    session.progress(step, wanted["points"])
    time.sleep(wanted["pause_s"])
writer.close()
(folder.root / "written").touch()
while wanted.get("wait") and not session.stop_requested.is_set():
    time.sleep(0.05)
session.finish(ExitOutcome.COMPLETED, exit_code=0)
"""


def curves(daemon: RunningDaemon, run_id: str, *tags: str, **options: Any) -> dict[str, pb.MetricCurve]:
    """What a client that asks once is given."""
    with daemon.client.metrics(run_id, tags, **options) as stream:
        return {curve.tag: curve for update in stream for curve in update.curves}


def scribble(daemon: RunningDaemon, points: int, pause_s: float = 0.0, **parameters: Any) -> str:
    config = scripted_config("scribe", timesteps=points, points=points, pause_s=pause_s, **parameters)
    return daemon.client.submit(config).run.run_id


@pytest.fixture
def daemon(make_daemon: MakeDaemon) -> RunningDaemon:
    daemon = make_daemon(start=False)
    install_scripted_worker(daemon.home, "scribe", SCRIBE)
    daemon.start()
    return daemon


def test_headline_values_are_seen_while_the_run_continues(daemon: RunningDaemon) -> None:
    run_id = scribble(daemon, points=300, wait=True)
    assert wait_until(lambda: daemon.client.get(run_id).metrics.get("charts/episodic_return") == 99)
    run = daemon.client.get(run_id)
    assert run.status == "EXEC"
    assert run.metrics["mean_return_100"] == pytest.approx(sum(range(100)) / 100)  # steps 200 to 299
    assert run.metrics["losses/value_loss"] == pytest.approx(1 / 300)
    assert (run.sps, run.episodic_return) == (1000.0, run.metrics["mean_return_100"])
    daemon.client.cancel(run_id)
    ended = daemon.wait_for(run_id)
    assert wait_until(lambda: daemon.client.get(run_id).metrics == run.metrics)
    assert ended.outcome in ("cancelled", "completed")


KILLED = """
from mosaic_wire.checkpoints import write_checkpoint
from mosaic_wire.event_files import ScalarEventWriter

folder = run_folder_of(config.run_id)
session = open_session()
session.started({})
writer = ScalarEventWriter(folder.tensorboard)
for step in range(150):
    writer.add_scalars({"charts/episodic_return": float(step), "charts/SPS": 500.0}, step)
writer.close()
write_checkpoint(folder, 160, {"algo": "script"})
os.kill(os.getpid(), signal.SIGKILL)
"""
"""Dies before any heartbeat or batch of curves says how far it came"""


def test_a_killed_run_is_as_far_as_its_curves_and_checkpoints_say(daemon: RunningDaemon) -> None:
    install_scripted_worker(daemon.home, "killed", KILLED)
    run_id = daemon.client.submit(scripted_config("killed", timesteps=200)).run.run_id
    assert daemon.wait_for(run_id).outcome == "failed"
    assert wait_until(lambda: daemon.client.get(run_id).step == 160)
    run = daemon.client.get(run_id)
    assert (run.total, run.sps, run.episodic_return) == (200, 500.0, pytest.approx(sum(range(50, 150)) / 100))


def test_curves_are_thinned_with_their_extremes_and_cut_to_a_stretch_of_steps(daemon: RunningDaemon) -> None:
    run_id = scribble(daemon, points=5_000)
    daemon.wait_for(run_id)
    tags = {tag.tag: tag.points for tag in daemon.client.metric_tags(run_id) if not tag.tag.startswith("system/")}
    assert tags == {"charts/SPS": 5_000, "charts/episodic_return": 5_000, "losses/value_loss": 5_000}
    loss = curves(daemon, run_id, "losses/*", max_points=100)["losses/value_loss"]
    assert len(loss.steps) < 200
    assert (loss.values[0], loss.total) == (1.0, 5_000)
    assert min(loss.values) == pytest.approx(1 / 5_000)
    part = curves(daemon, run_id, "charts/episodic_return", since_step=100, until_step=120)
    assert list(part["charts/episodic_return"].steps) == list(range(100, 121))


def test_a_follower_is_reported_every_point_once(daemon: RunningDaemon) -> None:
    run_id = scribble(daemon, points=400, pause_s=0.005)
    daemon.wait_for(run_id, "EXEC")
    steps: list[int] = []
    updates = 0
    with daemon.client.metrics(run_id, ["losses/value_loss"], max_points=-1, follow=True) as stream:
        for update in stream:
            updates += 1
            for curve in update.curves:
                assert not curve.is_reset
                steps += curve.steps
    assert steps == list(range(400))
    assert updates > 1
    assert daemon.client.get(run_id).status == "TERM"


def test_nothing_is_lost_or_counted_twice_when_the_daemon_dies_in_between(daemon: RunningDaemon) -> None:
    run_id = scribble(daemon, points=600, pause_s=0.005)
    for seen in (100, 300):
        assert wait_until(
            lambda seen=seen: daemon.client.get(run_id).metrics.get("charts/SPS") is not None, timeout_s=30
        )
        assert wait_until(lambda seen=seen: _points(daemon, run_id) >= seen)
        daemon.kill()
        time.sleep(0.3)
        daemon.start()
    assert daemon.wait_for(run_id).outcome == "completed"
    loss = curves(daemon, run_id, "losses/value_loss", max_points=-1)["losses/value_loss"]
    assert list(loss.steps) == list(range(600))
    assert wait_until(lambda: daemon.client.get(run_id).metrics.get("charts/episodic_return") == 599 % 200)


def test_a_daemon_cleans_up_a_run_whose_end_its_predecessor_recorded_and_no_more(daemon: RunningDaemon) -> None:
    run_id = scribble(daemon, points=50)
    daemon.wait_for(run_id)
    assert wait_until(lambda: daemon.client.get(run_id).size_bytes)
    daemon.kill()
    with closing(sqlite3.connect(daemon.home.database)) as registry, registry:  # what the kill leaves a moment earlier
        registry.execute("UPDATE runs SET size_bytes = 0, metrics = '{}' WHERE run_id = ?", (run_id,))
    daemon.start()
    assert wait_until(lambda: daemon.client.get(run_id).metrics.get("charts/episodic_return") == 49)
    assert wait_until(lambda: daemon.client.get(run_id).size_bytes)


def _points(daemon: RunningDaemon, run_id: str) -> int:
    return max((tag.points for tag in daemon.client.metric_tags(run_id)), default=0)


def test_what_a_killed_worker_could_not_tell_is_read_from_its_files(daemon: RunningDaemon) -> None:
    run_id = scribble(daemon, points=500, wait=True)
    run = daemon.wait_for(run_id, "EXEC")
    assert wait_until((daemon.home.run_folder(run_id).root / "written").exists)
    os.kill(run.pid, signal.SIGKILL)
    assert daemon.wait_for(run_id).outcome == "failed"
    loss = curves(daemon, run_id, "losses/value_loss", max_points=-1)["losses/value_loss"]
    assert list(loss.steps) == list(range(500))


def test_a_lost_pyramid_is_made_again(daemon: RunningDaemon) -> None:
    run_id = scribble(daemon, points=100)
    daemon.wait_for(run_id)
    before = curves(daemon, run_id)
    metrics = daemon.home.run_folder(run_id).metrics
    assert (metrics / "index.json").is_file()
    daemon.stop()
    for file in metrics.iterdir():
        file.write_bytes(b"not what it was")
    daemon.start()
    again = curves(daemon, run_id)
    assert {tag: list(curve.values) for tag, curve in again.items()} == {
        tag: list(curve.values) for tag, curve in before.items()
    }
