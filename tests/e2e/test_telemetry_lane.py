"""The telemetry lane: every accepted step is stored exactly once, whoever dies in between."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import time
from contextlib import closing, suppress
from itertools import pairwise
from typing import Any

import pytest
from gym_gui.testing import RunningDaemon, WindowProcess, install_scripted_worker, scripted_config
from mosaic_wire.capabilities import Lane
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.telemetry import decode
from mosaic_wire.testing import wait_until

from tests.e2e.conftest import MakeDaemon, fault_runs

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
    with daemon.client.steps(run_id, episode=2) as stream:
        (parcel,) = stream
    assert [step.index for step in parcel.steps] == list(range(50))
    assert parcel.total == 200  # of the run, whatever was asked for
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


# ---------------------------------------------------------------------- faults 1, 6 and 14: accepted means stored

COUNTING = """
# A worker that writes down how far the daemon said it has stored, the moment it says so.
accepted = os.open(Path(os.environ["MOSAIC_HOME"], config.run_id + ".accepted"), os.O_WRONLY | os.O_CREAT, 0o600)
wanted = config.extras["algo_params"]
session = open_session(lane="telemetry")
session.started({})
publish = session._link.publish_steps

def counted(request):
    answer = publish(request)
    if answer is not None:
        os.pwrite(accepted, b"%012d" % answer.stored_seq, 0)
    return answer

session._link.publish_steps = counted
telemetry = session.telemetry()
while telemetry._steps.seq < wanted["steps"] and not session.stop_requested.is_set():
    over = telemetry._steps.seq % 50 == 49
    telemetry.step([0.5, 1.5], 1, 1.0, terminated=over, truncated=False)
    if over:
        telemetry.episode(50.0, 50)
    session.progress(telemetry._steps.seq, wanted["steps"])
    time.sleep(wanted.get("pause_s", 0))
outcome = ExitOutcome.CANCELLED if session.stop_requested.is_set() else ExitOutcome.COMPLETED
session.finish(outcome, exit_code=0)
"""


@pytest.fixture
def counting(make_daemon: MakeDaemon) -> RunningDaemon:
    daemon = make_daemon(start=False)
    install_scripted_worker(daemon.home, "counting", COUNTING, lane=Lane.TELEMETRY)
    daemon.start()
    return daemon


def accepted_by(daemon: RunningDaemon, run_id: str) -> int:
    """The last step that was acknowledged as stored."""
    file = daemon.home.root / f"{run_id}.accepted"
    return int(file.read_bytes() or b"0") if file.exists() else 0


def on_disk(daemon: RunningDaemon, run_id: str) -> list[int]:
    """Numbers of the stored steps, read past the daemon."""
    query = "SELECT seq FROM steps WHERE run = (SELECT run FROM runs WHERE run_id = ?) ORDER BY seq"
    with closing(sqlite3.connect(daemon.home.telemetry_database)) as connection:
        return [seq for (seq,) in connection.execute(query, (run_id,))]


def check_that_accepted_is_stored(daemon: RunningDaemon, *, runs: int, kills: int, steps: int) -> None:
    run_ids = [play(daemon, "counting", steps=steps, pause_s=0.002) for _ in range(runs)]
    for kill in range(1, kills + 1):
        due = kill * steps // (kills + 2)
        assert wait_until(lambda due=due: all(accepted_by(daemon, each) >= due for each in run_ids), timeout_s=120)
        daemon.kill()
        for run_id in run_ids:
            accepted = accepted_by(daemon, run_id)
            stored = on_disk(daemon, run_id)
            assert stored == list(range(1, len(stored) + 1))  # no gap, none twice
            assert len(stored) >= accepted > 0, run_id
        daemon.start()
    for run_id in run_ids:
        assert daemon.wait_for(run_id, timeout_s=180).outcome == "completed"
        assert on_disk(daemon, run_id) == list(range(1, steps + 1))
        assert len(episodes_of(daemon, run_id)) == steps // 50
    assert "Traceback" not in daemon.log()


def test_what_workers_were_reported_is_stored_is_on_disk_after_a_kill(counting: RunningDaemon) -> None:
    check_that_accepted_is_stored(counting, runs=2, kills=2, steps=1_000)


@pytest.mark.fault
@pytest.mark.timeout(1800)
def test_what_twenty_workers_were_reported_is_stored_is_on_disk_after_five_kills(counting: RunningDaemon) -> None:
    check_that_accepted_is_stored(counting, runs=20, kills=5, steps=10_000)


LOOKING = """
import sys
from pathlib import Path
from gym_gui import app
from mosaic_wire.paths import Home
from PySide6.QtCore import QTimer

home, run_id, seen = Home(Path(sys.argv[1])), sys.argv[2], Path(sys.argv[3])
build_window = app.build_window

def look(parts):
    page = parts.window.runs.page
    tab = page.tab("live") if page is not None else None
    if tab is not None and tab.telemetry.recent_steps.last_seq:
        seen.write_text(str(tab.telemetry.recent_steps.last_seq))

def build_and_watch(*arguments):
    parts = build_window(*arguments)
    parts.link.runs_loaded.connect(lambda runs: parts.window._watch_first_run(run_id))
    timer = QTimer(parts.window, interval=100)
    timer.timeout.connect(lambda: look(parts))
    timer.start()
    return parts

app.build_window = build_and_watch
sys.exit(app.main(home, app.Remote(f"unix:{home.socket}", home.token.read_text().strip())))
"""
"""A window that shows what a run sends step by step, and notes how far it has seen"""


class LookingWindow:
    """The window, opened by its address: one of the home itself would replace the daemons we kill before we do."""

    def __init__(self, daemon: RunningDaemon, run_id: str) -> None:
        folder = daemon.config_home / "window"
        self._seen = folder / "seen"
        self.process = WindowProcess(
            folder, str(daemon.home.root), run_id, str(self._seen), variables=daemon.variables, script=LOOKING
        )

    @property
    def has_seen(self) -> int:
        return int(self._seen.read_text() or 0) if self._seen.exists() else 0

    def kill_and_reopen(self) -> None:
        assert self.process.is_open, f"it ended by itself:\n{self.process.stderr()}"
        self.process.end(signal.SIGKILL)
        self.process.open()


def check_live_chaos(daemon: RunningDaemon, *, runs: int, strikes: int, seed: int) -> None:
    """Fault 14 for the telemetry lane: whichever process is killed, every acknowledged step is stored, once."""
    dice, total = random.Random(seed), 400
    run_ids = [play(daemon, "counting", steps=total, pause_s=0.004) for _ in range(runs)]
    looking = LookingWindow(daemon, run_ids[-1])
    looking.process.open()
    try:
        _kill_at_random(daemon, looking, run_ids, strikes, dice)
        for run_id in run_ids:
            daemon.wait_for(run_id, timeout_s=180)
        assert wait_until(lambda: looking.has_seen == len(on_disk(daemon, run_ids[-1])), timeout_s=120), (
            f"the window has seen {looking.has_seen} steps:\n{looking.process.stderr()}"
        )
    finally:
        looking.process.end(signal.SIGTERM)
    assert "Traceback" not in looking.process.stderr()
    _check_what_is_stored(daemon, run_ids, total)


def _kill_at_random(
    daemon: RunningDaemon, looking: LookingWindow, run_ids: list[str], strikes: int, dice: random.Random
) -> None:
    for _ in range(strikes):
        assert wait_until(lambda: any(accepted_by(daemon, run_id) for run_id in run_ids), timeout_s=60)
        time.sleep(dice.random() / 2)  # not a wait for anything: the moment of the next kill
        match dice.choice(("daemon", "worker", "worker", "daemon", "window")):
            case "daemon":
                daemon.restart()
            case "window":
                looking.kill_and_reopen()
            case _:
                alive = [run.pid for run in daemon.unfinished() if run.pid]
                with suppress(ProcessLookupError):
                    os.kill(dice.choice(alive or [2**22 + 1]), signal.SIGKILL)


def _check_what_is_stored(daemon: RunningDaemon, run_ids: list[str], total: int) -> None:
    for run_id in run_ids:
        run = daemon.wait_for(run_id, timeout_s=180)
        stored = on_disk(daemon, run_id)
        assert stored == list(range(1, len(stored) + 1)), run.reason
        assert len(stored) >= accepted_by(daemon, run_id), run.reason
        assert run.outcome in ("completed", "failed"), run.reason
        complaints = (daemon.home.run_logs(run_id) / "stderr.log").read_text()  # its daemon may have been away too long
        assert run.outcome == "failed" or len(stored) == total or "could not be sent to the daemon" in complaints
        assert sum(event.to_status == "TERM" for event in daemon.client.history(run_id)) == 1
        assert [step.seq for step in steps_of(daemon, run_id)] == stored
    assert "Traceback" not in daemon.log()


@pytest.mark.slow  # test_chaos.py is there in every CI
def test_live_runs_in_a_little_chaos(counting: RunningDaemon) -> None:
    check_live_chaos(counting, runs=4, strikes=4, seed=3)


@pytest.mark.fault
@pytest.mark.timeout(1800)
def test_sixty_live_runs_in_chaos(counting: RunningDaemon) -> None:
    check_live_chaos(counting, runs=fault_runs(60), strikes=fault_runs(60), seed=4)


def test_a_second_attempt_continues_counting_steps_and_begins_a_new_episode(counting: RunningDaemon) -> None:
    config = scripted_config("counting", timesteps=300, steps=300, pause_s=0.005, scheduling={"retries": 1})
    run_id = counting.client.submit(config).run.run_id
    assert wait_until(lambda: accepted_by(counting, run_id) >= 70, timeout_s=60)
    pid = counting.client.get(run_id).pid
    os.kill(pid, signal.SIGKILL)
    assert counting.wait_for(run_id, timeout_s=120).outcome == "completed"
    steps = steps_of(counting, run_id)
    assert [step.seq for step in steps] == list(range(1, 301))
    for earlier, later in pairwise(steps):
        goes_on = (later.episode, later.index) == (earlier.episode, earlier.index + 1)
        assert goes_on or (later.episode, later.index) == (earlier.episode + 1, 0)


SLOW_STORE = """
import sys, time
from gym_gui.services.trainer import daemon, streams

streams.CREDITS_PER_RUN = 100
append = streams.TelemetryStore.append

def slowly(self, kind, batches):
    time.sleep(0.05)
    append(self, kind, batches)

streams.TelemetryStore.append = slowly
sys.exit(daemon.main(["run"]))
"""
"""A daemon with a slow disk that lets a run be a hundred steps ahead of it"""

HASTY = """
wanted = config.extras["algo_params"]
session = open_session(lane="telemetry")
session.started({})
telemetry = session.telemetry(thin=wanted["thin"])
telemetry._backlog = 200
for number in range(wanted["steps"]):
    telemetry.step([number], 1, 1.0, terminated=False, truncated=False)
telemetry.close(timeout_s=60)
session.finish(ExitOutcome.COMPLETED, payload={"left_out": telemetry.left_out}, exit_code=0)
"""


@pytest.mark.parametrize("thin", [False, True], ids=["waits", "thins"])
def test_a_slow_store_slows_or_thins_the_worker_as_its_policy_says(make_daemon: MakeDaemon, thin: bool) -> None:
    daemon = make_daemon(start=False, script=SLOW_STORE)
    install_scripted_worker(daemon.home, "hasty", HASTY, lane=Lane.TELEMETRY)
    daemon.start()
    run_id = play(daemon, "hasty", steps=3_000, thin=thin)
    run = daemon.wait_for(run_id, timeout_s=120)
    assert run.outcome == "completed", run.reason
    left_out, stored = json.loads(run.result_json)["left_out"], len(steps_of(daemon, run_id))
    assert stored + left_out == 3_000
    assert (left_out > 0) is thin


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
        ({}, {}, "failed", "worker 'quiet' is in the analytics lane: its steps are not accepted"),
        ({}, {"episodes_only": True}, "failed", "extras.minimal_telemetry lets it send episodes"),
        ({"minimal_telemetry": True}, {}, "failed", "its steps are not accepted"),
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


@pytest.mark.slow  # the lane is tried with a cheaper worker in every CI
def test_a_training_that_asked_for_minimal_telemetry_sends_its_episodes(daemon: RunningDaemon) -> None:
    """The rows come from its event files: whatever script it is, it need not be changed for that."""
    config = {
        "algo": "ppo",
        "env_id": "CartPole-v1",
        "seed": 1,
        "total_timesteps": 2_000,
        "extras": {"minimal_telemetry": True},
    }
    worker = {"type": "cleanrl", "module": "cleanrl_worker.cli", "config": config}
    document = {"resources": {"cpus": {"requested": 0}}, "metadata": {"worker": worker}}
    run_id = daemon.client.submit(document).run.run_id
    assert daemon.wait_for(run_id, timeout_s=120).outcome == "completed"
    with daemon.client.metrics(run_id, ["charts/episodic_*"], max_points=-1) as stream:
        curves = {curve.tag: curve for update in stream for curve in update.curves}
    returns = curves["charts/episodic_return"]
    rows = episodes_of(daemon, run_id)
    assert [row.episodic_return for row in rows] == list(returns.values)
    assert [row.length for row in rows] == list(curves["charts/episodic_length"].values)
    assert [json.loads(row.info_json)["step"] for row in rows] == list(returns.steps)
    assert [row.episode for row in rows] == list(range(len(rows)))
    assert len(rows) > 20
    assert steps_of(daemon, run_id) == []
