"""The telemetry lane: every accepted step is stored exactly once, whoever dies in between."""

from __future__ import annotations

import sqlite3
import time
from typing import Any

import pytest
from gym_gui.testing import RunningDaemon, install_scripted_worker, scripted_config
from mosaic_wire.capabilities import Lane
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.telemetry import decode
from mosaic_wire.testing import wait_until

from tests.e2e.conftest import MakeDaemon

LIVE = """
from mosaic_wire.errors import TelemetryRefused

wanted = config.extras["algo_params"]
session = open_session(**({"lane": "telemetry"} if SCRIPT_NAME == "live" else {}))
session.started({})
try:
    telemetry = session.telemetry(steps=not wanted.get("episodes_only"))
except TelemetryRefused as refusal:
    session.finish(ExitOutcome.FAILED, reason=str(refusal), exit_code=1)
    sys.exit(1)
for number in range(1, wanted["steps"] + 1):
    over = number % 50 == 0
    if not wanted.get("episodes_only"):
        observation = {"position": [number, -number], "seen": "x" * 2000 if number % 10 == 0 else ""}
        telemetry.step(observation, [0.5, number], 1.0, terminated=over, truncated=False, info={"n": number})
    if over:
        telemetry.episode(50.0, 50)
    session.progress(number, wanted["steps"])
    time.sleep(wanted.get("pause_s", 0))
session.finish(ExitOutcome.COMPLETED, exit_code=0)
"""


@pytest.fixture
def daemon(make_daemon: MakeDaemon) -> RunningDaemon:
    daemon = make_daemon(start=False)
    install_scripted_worker(daemon.home, "live", LIVE, lane=Lane.TELEMETRY)
    install_scripted_worker(daemon.home, "quiet", LIVE)
    daemon.start()
    return daemon


def play(
    daemon: RunningDaemon, worker: str = "live", *, extras: dict[str, Any] | None = None, **parameters: Any
) -> str:
    config = scripted_config(worker, timesteps=parameters["steps"], extras=extras, **parameters)
    return daemon.client.submit(config).run.run_id


def steps_of(daemon: RunningDaemon, run_id: str, **options: Any) -> list[pb.RunStep]:
    with daemon.client.steps(run_id, **options) as stream:
        return [step for parcel in stream for step in parcel.steps]


def episodes_of(daemon: RunningDaemon, run_id: str) -> list[pb.RunEpisode]:
    with daemon.client.episodes(run_id) as stream:
        return [episode for parcel in stream for episode in parcel.episodes]


def test_steps_come_back_as_they_were_with_actions_and_observations_of_any_space(daemon: RunningDaemon) -> None:
    run_id = play(daemon, steps=200)
    assert daemon.wait_for(run_id).outcome == "completed"
    steps = steps_of(daemon, run_id)
    assert [step.seq for step in steps] == list(range(1, 201))
    twentieth = steps[19]
    assert decode(twentieth.observation) == {"position": [20, -20], "seen": "x" * 2000}
    assert twentieth.observation.encoding == "json+gzip"
    assert decode(twentieth.action) == [0.5, 20]
    assert (twentieth.episode, twentieth.index, twentieth.reward) == (0, 19, 1.0)
    assert [step.index for step in steps_of(daemon, run_id, episode=2)] == list(range(50))
    assert [step.seq for step in steps_of(daemon, run_id, since_seq=190)] == list(range(191, 201))
    episodes = episodes_of(daemon, run_id)
    assert [(episode.seq, episode.episodic_return, episode.length) for episode in episodes] == [
        (number, 50.0, 50) for number in range(1, 5)
    ]


def test_every_accepted_step_is_stored_once_though_the_daemon_is_killed_in_mid_stream(daemon: RunningDaemon) -> None:
    run_id = play(daemon, steps=3_000, pause_s=0.001)
    for stored in (300, 1_500):
        assert wait_until(lambda stored=stored: len(steps_of(daemon, run_id)) >= stored, timeout_s=60)
        seen = len(steps_of(daemon, run_id))
        daemon.kill()
        time.sleep(0.2)
        daemon.start()
        assert len(steps_of(daemon, run_id)) >= seen  # what a client saw is on disk
    assert daemon.wait_for(run_id).outcome == "completed"
    assert [step.seq for step in steps_of(daemon, run_id)] == list(range(1, 3_001))
    assert len(episodes_of(daemon, run_id)) == 60


def test_a_follower_hears_of_every_step_in_order(daemon: RunningDaemon) -> None:
    run_id = play(daemon, steps=1_000, pause_s=0.002)
    daemon.wait_for(run_id, "EXEC")
    heard, skipped = [], 0
    with daemon.client.steps(run_id, follow=True) as stream:
        for parcel in stream:
            heard += [step.seq for step in parcel.steps]
            skipped += parcel.skipped
    assert heard == sorted(set(heard))
    assert len(heard) + skipped == 1_000
    assert not skipped


@pytest.mark.parametrize(
    ("extras", "parameters", "outcome", "reason"),
    [
        ({}, {}, "failed", "worker 'quiet' is in the analytics lane: its steps are not taken"),
        ({}, {"episodes_only": True}, "failed", "extras.minimal_telemetry lets it send episodes"),
        ({"minimal_telemetry": True}, {}, "failed", "its steps are not taken"),
        ({"minimal_telemetry": True}, {"episodes_only": True}, "completed", ""),
    ],
)
def test_a_worker_of_the_analytics_lane_sends_nothing_unless_it_asked(
    daemon: RunningDaemon, extras, parameters, outcome: str, reason: str
) -> None:
    run_id = play(daemon, "quiet", steps=100, extras=extras, **parameters)
    run = daemon.wait_for(run_id)
    assert run.outcome == outcome
    assert reason in run.reason
    assert len(episodes_of(daemon, run_id)) == (2 if outcome == "completed" else 0)
    assert steps_of(daemon, run_id) == []


def test_a_deleted_run_leaves_no_steps(daemon: RunningDaemon) -> None:
    run_id, other = play(daemon, steps=100), play(daemon, steps=60)
    for each in (run_id, other):
        daemon.wait_for(each)
    daemon.client.delete(run_id)
    assert len(steps_of(daemon, other)) == 60
    with sqlite3.connect(daemon.home.telemetry_database) as connection:
        assert connection.execute("SELECT count(*) FROM steps").fetchone()[0] == 60
