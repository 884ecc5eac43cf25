"""Live telemetry: keeps up with a worker at full speed by skipping, says how much, and stands still on request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gym_gui.testing import RunningDaemon, blocking_calls, install_scripted_worker, scripted_config
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.run_page.telemetry_tab import KEEP, Flow, TelemetryTab, flow_of, flow_text, no_live_telemetry
from mosaic_wire.capabilities import Lane
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.telemetry import encode
from mosaic_wire.testing import wait_until
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QPushButton, QTableView

QUICK = {"heartbeat_s": 0.2, "grace_s": 2, "silence_s": 20, "handshake_s": 60, "min_free_disk_mb": 0}
LIVE = """
import numpy as np
from mosaic_wire.reasoning import Part, reasoning_info

wanted = config.extras["algo_params"]
minimal = bool(config.extras.get("minimal_telemetry"))
session = open_session(**({} if minimal else {"lane": "telemetry"}))
session.started({})
telemetry = session.telemetry(steps=not minimal)
PICTURE = np.zeros((32, 32, 3), np.uint8)
PICTURE[:, :, 1] = 200

def seen(number):
    kind = wanted.get("sees", "values")
    if kind == "picture":
        return PICTURE
    if kind == "grid":
        return np.full((5, 6), 2)
    return {"position": number, "speed": 0.5}

for number in range(1, wanted["steps"] + 1):
    if session.stop_requested.is_set():
        break
    while number > 1 and wanted.get("gate") and not Path(wanted["gate"]).exists():
        time.sleep(0.02)
    over = number % 50 == 0
    if not minimal:
        info = {"n": number}
        if wanted.get("reasons"):
            beliefs = Part("Beliefs", items=("+at(1)", "-at(0)"))
            info |= reasoning_info([Part("Plan", f"+!go({number}) : <b>not</b> markup"), beliefs])
        telemetry.step(seen(number), [0.5, number], 1.0, terminated=over, truncated=False, info=info)
    if over:
        telemetry.episode(float(number), 50)
    session.progress(number, wanted["steps"])
    if wanted.get("pause_s"):
        time.sleep(wanted["pause_s"])
while wanted.get("stay") and not session.stop_requested.is_set():
    time.sleep(0.02)
session.finish(ExitOutcome.COMPLETED, exit_code=0)
"""


@pytest.fixture(scope="module")
def window_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    folder = tmp_path_factory.mktemp("telemetry")
    daemon = RunningDaemon(Home(folder / "home"), folder / "config", settings=QUICK)
    install_scripted_worker(daemon.home, "live", LIVE, lane=Lane.TELEMETRY)
    install_scripted_worker(daemon.home, "quiet", LIVE)
    with daemon:
        yield daemon


@pytest.fixture
def tab(qtbot, themed, link: DaemonLink) -> Iterator[TelemetryTab]:
    tab = TelemetryTab(link)
    qtbot.addWidget(tab)
    tab.resize(1100, 700)
    tab.show()
    yield tab
    tab.set_active(False)


def play(
    daemon: RunningDaemon, worker: str = "live", extras: dict[str, Any] | None = None, **parameters: Any
) -> pb.Run:
    config = scripted_config(worker, timesteps=parameters["steps"], extras=extras, **parameters)
    return daemon.wait_for(daemon.client.submit(config).run.run_id, "EXEC", "TERM")


def end(daemon: RunningDaemon, run: pb.Run) -> None:
    daemon.client.cancel(run.run_id)
    daemon.wait_for(run.run_id)


def stored(daemon: RunningDaemon, run: pb.Run) -> int:
    with daemon.client.steps(run.run_id) as stream:
        return sum(len(batch.steps) for batch in stream)


def arguments(tab: TelemetryTab, name: str) -> str:
    return tab.findChild(QLabel, f"telemetry_{name}").text()


def newest(tab: TelemetryTab) -> int:
    step = tab.steps.message(0)
    return step.seq if step is not None else 0


def test_the_last_steps_and_episodes_are_shown_newest_first(qtbot, tab, window_daemon: RunningDaemon) -> None:
    run = play(window_daemon, steps=2_000, stay=True)
    assert wait_until(lambda: stored(window_daemon, run) == 2_000)
    tab.show_run(run)
    tab.set_active(True)
    qtbot.waitUntil(lambda: newest(tab) == 2_000, timeout=20_000)
    assert tab.steps.rowCount() == KEEP
    cells = [tab.steps.data(tab.steps.index(0, column)) for column in range(tab.steps.columnCount())]
    assert cells == ["2,000", "39", "49", "[0.5, 2000]", "1", "terminated", "", "n: 2000"]
    qtbot.waitUntil(lambda: tab.episodes.rowCount() == 40, timeout=20_000)
    assert tab.episodes.data(tab.episodes.index(0, 1)) == "2000.0"
    assert arguments(tab, "skipped") == "nothing skipped"  # what was before one looked is not skipped
    assert arguments(tab, "flow") == "live"
    end(window_daemon, run)


def test_at_full_speed_it_keeps_up_and_says_how_much_it_skipped(
    qtbot, tab, window_daemon: RunningDaemon, tmp_path: Path
) -> None:
    steps = 12_000
    gate = tmp_path / "gate"
    run = play(window_daemon, steps=steps, gate=str(gate))
    tab.show_run(run)
    tab.set_active(True)
    qtbot.waitUntil(lambda: newest(tab) == 1, timeout=60_000)  # what is sent before the tab listens is not skipped
    tab.pause(True)  # so that something is skipped also where the worker is slow
    gate.touch()
    qtbot.waitUntil(lambda: tab.recent_steps.last_seq > 10 * KEEP, timeout=60_000)
    tab.pause(False)
    qtbot.waitUntil(lambda: newest(tab) == steps, timeout=60_000)
    news = tab.recent_steps.drain()
    assert news.last_seq == steps
    assert news.passed_over >= 9 * KEEP
    assert news.passed_over < steps
    assert tab.steps.rowCount() == KEEP
    assert arguments(tab, "skipped") == f"{news.passed_over:,} steps skipped here, all are stored"
    assert arguments(tab, "counts").startswith("step 12,000")
    assert stored(window_daemon, run) == steps
    run = window_daemon.wait_for(run.run_id)
    tab.refresh(run)
    assert arguments(tab, "flow") == "finished"


def test_an_update_at_full_speed_shows_the_newest_steps_alone(qtbot, tab: TelemetryTab, link: DaemonLink) -> None:
    """What one costs benchmarks/gui_event_loop.py says."""
    tab.show_run(pb.Run(run_id="01ARZ3NDEKTSV4RRFFQ69G5FAV", status="EXEC", worker_type="human"))
    seen = encode(np.zeros((84, 84, 3), np.uint8))
    for update in range(3):
        first = 1 + 2_000 * update
        fresh = [
            pb.RunStep(seq=first + number, observation=seen, action=encode([0.1, 0.2]), info_json='{"n": 1}')
            for number in range(2_000)
        ]
        tab.recent_steps.ingest(fresh, 0, "")
        with blocking_calls() as calls:
            tab._show_steps()
            tab.grab()
        assert not calls
        assert tab.steps.rowCount() == KEEP
        assert newest(tab) == first + 1_999


def test_a_paused_view_stands_still_while_the_run_continues(qtbot, tab, window_daemon: RunningDaemon) -> None:
    run = play(window_daemon, steps=100_000, pause_s=0.002)
    tab.show_run(run)
    tab.set_active(True)
    qtbot.waitUntil(lambda: newest(tab) > 20, timeout=20_000)
    button = tab.findChild(QPushButton, "telemetry_pause")
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    at_rest = newest(tab)
    assert arguments(tab, "flow") == "view paused"
    qtbot.waitUntil(lambda: tab.recent_steps.last_seq > at_rest + 100, timeout=20_000)
    assert newest(tab) == at_rest
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    assert newest(tab) > at_rest + 100
    tab.set_active(False)  # a hidden view holds no stream
    assert not tab.is_following
    qtbot.wait(500)  # what its thread has in hand it may still put down
    behind = tab.recent_steps.last_seq
    qtbot.wait(500)
    assert tab.recent_steps.last_seq == behind
    tab.set_active(True)
    qtbot.waitUntil(lambda: newest(tab) > behind, timeout=20_000)
    end(window_daemon, run)


def caption_of(tab) -> str:
    return tab.observation.findChild(QLabel, "observation_caption").text()


@pytest.mark.parametrize(("sees", "size", "color"), [("picture", 32, (0, 200, 0)), ("grid", 6, (0, 114, 178))])
def test_what_the_agent_saw_is_drawn(qtbot, tab, window_daemon: RunningDaemon, sees, size: int, color) -> None:
    run = play(window_daemon, steps=60, sees=sees)
    window_daemon.wait_for(run.run_id)
    tab.show_run(run)
    tab.set_active(True)
    qtbot.waitUntil(lambda: caption_of(tab) == "Observation at step 60", timeout=20_000)
    image = tab.observation.frame_view.image
    assert image.width() == size
    assert image.pixelColor(2, 2).getRgb()[:3] == color


def test_values_are_written_and_a_step_that_is_chosen_stays(qtbot, tab, window_daemon: RunningDaemon) -> None:
    run = play(window_daemon, steps=60)
    window_daemon.wait_for(run.run_id)
    tab.show_run(run)
    tab.set_active(True)
    qtbot.waitUntil(lambda: caption_of(tab) == "Observation at step 60", timeout=20_000)
    assert tab.observation.values.isVisible()
    assert not tab.observation.frame_view.isVisible()
    assert "position  60" in tab.observation.values.toPlainText()
    tab.findChild(QTableView, "telemetry_steps").selectRow(10)
    qtbot.waitUntil(lambda: caption_of(tab) == "Observation at step 50", timeout=20_000)
    assert "position  50" in tab.observation.values.toPlainText()


def test_why_the_agent_acted_stands_below_what_it_saw(qtbot, tab, window_daemon: RunningDaemon) -> None:
    run = play(window_daemon, steps=3, reasons=True, stay=True)
    tab.show_run(run)
    tab.set_active(True)
    reasoning = tab.observation.reasoning
    qtbot.waitUntil(lambda: "+!go(3)" in reasoning.text.toPlainText(), timeout=20_000)
    assert reasoning.text.toPlainText().splitlines() == [
        "Plan",
        "+!go(3) : <b>not</b> markup",
        "Beliefs",
        "+at(1)",
        "-at(0)",
    ]
    assert tab.steps.data(tab.steps.index(0, 7)) == "n: 3"  # not a second time in the table
    tab._steps_table.selectRow(2)
    qtbot.waitUntil(lambda: "+!go(1)" in reasoning.text.toPlainText(), timeout=20_000)
    end(window_daemon, run)
    plain = play(window_daemon, steps=3)
    tab.show_run(plain)
    qtbot.waitUntil(lambda: newest(tab) == 3 and not reasoning.isVisible(), timeout=20_000)


def test_a_run_in_the_queue_is_followed_as_soon_as_it_runs(qtbot, tab, window_daemon: RunningDaemon) -> None:
    config = scripted_config("live", timesteps=50, steps=50)
    run = window_daemon.client.submit(config).run
    queued = pb.Run()
    queued.CopyFrom(run)
    queued.status = "INIT"
    tab.show_run(queued)
    tab.set_active(True)
    ended = window_daemon.wait_for(run.run_id)
    tab.refresh(ended)
    qtbot.waitUntil(lambda: newest(tab) == 50, timeout=20_000)
    assert tab.banner.text == ""


def test_the_banner_of_a_cleanrl_run_is_the_one_that_was_asked_for() -> None:
    expected = "CleanRL worker streams metrics via TensorBoard/W&B; live telemetry not available."
    assert no_live_telemetry(pb.Run(worker_type="cleanrl")) == expected


def test_minimal_telemetry_shows_episodes_without_steps(qtbot, tab, window_daemon: RunningDaemon) -> None:
    run = play(window_daemon, "quiet", extras={"minimal_telemetry": True}, steps=200)
    run = window_daemon.wait_for(run.run_id)
    assert run.outcome == "completed", run.reason
    tab.show_run(run)
    tab.set_active(True)
    qtbot.waitUntil(lambda: tab.episodes.rowCount() == 4, timeout=20_000)
    assert "episodes and no steps" in tab.banner.text
    assert not tab.findChild(QTableView, "telemetry_steps").isVisible()


@pytest.mark.parametrize(
    ("flags", "control", "word"),
    [
        ((), "", "live"),
        (("starved",), "", "worker waits"),
        (("throttled",), "", "throttled"),
        ((), "STARVED", "skipping"),
        ((), "RESUMED", "live"),
    ],
)
def test_the_state_of_the_credits_is_reported_clearly(flags, control: str, word: str) -> None:
    run = pb.Run(status="EXEC", flags=flags)
    reported, sentence = flow_text(run, control, is_paused=False, is_following=True)
    assert reported == word
    assert ("STARVED" in sentence) == (word in ("worker waits", "skipping"))


@pytest.mark.parametrize(
    ("run", "flow"),
    [
        (pb.Run(worker_type="cleanrl"), Flow.NOTHING),
        (pb.Run(worker_type="human"), Flow.STEPS),
        (pb.Run(worker_type="somebodys"), Flow.UNKNOWN),
        (pb.Run(worker_type="somebodys", capabilities_json='{"lane": "hybrid"}'), Flow.STEPS),
        (pb.Run(worker_type="cleanrl", extras_json='{"minimal_telemetry": true}'), Flow.EPISODES),
        (pb.Run(worker_type="cleanrl", capabilities_json="damaged"), Flow.NOTHING),
    ],
)
def test_what_a_run_sends_is_known_from_its_worker(run: pb.Run, flow: Flow) -> None:
    assert flow_of(run) is flow
