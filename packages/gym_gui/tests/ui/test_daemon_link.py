"""The window's connection: news arrive in the window's thread, in batches, also after the daemon was away."""

from __future__ import annotations

import threading
from pathlib import Path

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.testing import RunningDaemon, random_config
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink, LinkPhase
from mosaic_wire.paths import Home
from mosaic_wire.testing import wait_until
from PySide6.QtCore import QObject

STEPS = random_config(timesteps=50)


def test_a_new_run_arrives_and_its_end_too(qtbot, link: DaemonLink) -> None:
    seen: dict[str, str] = {}
    threads = set()

    def note(runs) -> None:
        threads.add(threading.current_thread())
        seen.update({run.run_id: run.status for run in runs})

    link.runs_changed.connect(note)
    answers = []
    link.call(lambda client: client.submit(STEPS).run.run_id, owner=link, done=answers.append)
    qtbot.waitUntil(lambda: bool(answers) and seen.get(answers[0]) == "TERM", timeout=60_000)
    assert threads == {threading.main_thread()}


def test_what_goes_wrong_in_a_call_is_reported_clearly(qtbot, link: DaemonLink) -> None:
    said: list[str] = []
    link.call(lambda client: client.get("01ARZ3NDEKTSV4RRFFQ69G5FAV"), owner=link, failed=said.append)
    qtbot.waitUntil(lambda: bool(said), timeout=30_000)
    assert "01ARZ3NDEKTSV4RRFFQ69G5FAV" in said[0]


def test_nothing_is_delivered_to_a_destroyed_widget(qtbot, link: DaemonLink) -> None:
    owner, reached = QObject(), []
    may_go_on = threading.Event()
    link.call(lambda client: may_go_on.wait(30), owner=owner, done=reached.append)
    owner.deleteLater()
    qtbot.wait(50)
    may_go_on.set()
    qtbot.wait(200)
    assert reached == []


def test_a_stream_continues_after_the_daemon_was_killed(qtbot, tmp_path: Path, background: Background) -> None:
    with RunningDaemon(Home(tmp_path / "home"), tmp_path / "config") as daemon:
        link = DaemonLink(lambda: TrainerClient.connect(daemon.home), background)
        phases = []
        link.state_changed.connect(lambda state: phases.append(state.phase))
        link.start()
        qtbot.waitUntil(lambda: phases == [LinkPhase.CONNECTED], timeout=30_000)
        opened, owner = [], QObject()

        def open_stream(client: TrainerClient):
            opened.append(client)
            return client.watch()

        link.stream(open_stream, lambda batch: None, owner=owner)
        qtbot.waitUntil(lambda: len(opened) == 1, timeout=10_000)
        daemon.kill()
        qtbot.waitUntil(lambda: LinkPhase.LOST in phases, timeout=30_000)
        daemon.start()
        qtbot.waitUntil(lambda: phases[-1] is LinkPhase.CONNECTED and len(opened) == 2, timeout=30_000)
        link.stop()


def test_a_link_that_is_stopped_while_it_connects_ends_as_soon_as_it_has(
    window_daemon: RunningDaemon, background: Background
) -> None:
    """No call waits for a window that was closed the moment it opened."""
    is_connecting, may_connect = threading.Event(), threading.Event()

    def connect() -> TrainerClient:
        is_connecting.set()
        assert may_connect.wait(60)
        return TrainerClient.connect(window_daemon.home)

    link = DaemonLink(connect, background)
    link.start()
    assert is_connecting.wait(60)
    link._thread.join = lambda timeout=None: may_connect.set()  # type: ignore[method-assign]  # all but wait for it
    link.stop()
    assert wait_until(lambda: not link._thread.is_alive(), timeout_s=60)


def test_a_run_that_another_client_deletes_is_removed(qtbot, link: DaemonLink, window_daemon: RunningDaemon) -> None:
    run = window_daemon.submit(timesteps=5)
    window_daemon.wait_for(run.run_id, "TERM")
    gone: list[str] = []
    link.runs_removed.connect(gone.extend)
    window_daemon.client.delete(run.run_id)
    qtbot.waitUntil(lambda: gone == [run.run_id], timeout=30_000)


def test_whoever_hears_of_the_runs_may_ask_at_once(qtbot, window_daemon: RunningDaemon, background: Background) -> None:
    link = DaemonLink(lambda: TrainerClient.connect(window_daemon.home), background)
    was_connected: list[bool] = []
    link.runs_loaded.connect(lambda runs: was_connected.append(link.is_connected))
    with qtbot.waitSignal(link.runs_loaded, timeout=30_000):
        link.start()
    link.stop()
    assert was_connected == [True]
