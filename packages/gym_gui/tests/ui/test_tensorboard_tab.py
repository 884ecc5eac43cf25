"""The TensorBoard tab: a real server that is there while the tab is, and banners where there is nothing to show."""

from __future__ import annotations

import json
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from gym_gui.services.analytics import web_servers
from gym_gui.testing import RunningDaemon, WindowProcess
from gym_gui.ui.daemon_link import DaemonLink, LinkPhase, LinkState
from gym_gui.ui.run_page import tensorboard_session
from gym_gui.ui.run_page.tensorboard_tab import TensorBoardTab
from gym_gui.ui.widgets import web_view
from mosaic_wire.event_files import ScalarEventWriter
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.testing import wait_until
from PySide6.QtNetwork import QNetworkProxy

WAIT = 60_000


@pytest.fixture
def tab(qtbot, themed, link: DaemonLink, monkeypatch: pytest.MonkeyPatch) -> Iterator[TensorBoardTab]:
    monkeypatch.setattr(web_view, "is_installed", lambda: False)
    tab = TensorBoardTab(link)
    qtbot.addWidget(tab)
    tab.resize(900, 500)
    tab.show()
    yield tab
    tab.set_active(False)
    tab._drop()


def finished(daemon: RunningDaemon, *, events: bool = True, **parameters: object) -> pb.Run:
    run = daemon.submit(timesteps=20, **parameters)
    run = daemon.wait_for(run.run_id, "TERM")
    if events:
        write_events(run)
    return run


def write_events(run: pb.Run) -> None:
    writer = ScalarEventWriter(Path(run.run_dir) / "tensorboard")
    for step in range(5):
        writer.add_scalars({"charts/episodic_return": float(step)}, step)
    writer.close()


def tags_of(address: str) -> dict[str, object]:
    with urllib.request.urlopen(f"{address}data/plugin/scalars/tags", timeout=10) as answer:
        return json.load(answer)


def test_the_server_lives_as_long_as_the_tab(qtbot, tab: TensorBoardTab, window_daemon: RunningDaemon) -> None:
    run, other = (finished(window_daemon, seed=seed) for seed in (1, 2))
    stranger = finished(window_daemon, seed=3, events=False)
    tab.show_run(run)
    assert tab.session.server is None  # the tab is not open
    tab.set_active(True)
    qtbot.waitUntil(lambda: tab.session.server is not None and "http://127.0.0.1" in tab.state.text(), timeout=WAIT)
    server = tab.session.server
    qtbot.waitUntil(lambda: bool(tags_of(server.address)), timeout=WAIT)
    assert tab.offer.open_button.isVisibleTo(tab)
    assert "PySide6_Addons" in tab.offer.engine_command.text
    expected: list[str] = []
    tab.tab_requested.connect(expected.append)
    tab.offer.charts_button.click()
    assert expected == ["charts"]

    # Other seeds, from the menu; one without events is left out.
    tab.findChild(object, "tensorboard_add_seeds").trigger()
    qtbot.waitUntil(lambda: len(tab.session.runs) == 2, timeout=WAIT)
    assert set(tab.session.runs) == {run.run_id, other.run_id}
    assert stranger.run_id not in tab.session.runs
    assert "2 runs" in tab.state.text()
    tab.chosen_runs = (stranger.run_id,)
    tab.findChild(object, "tensorboard_add_chosen").trigger()
    qtbot.waitUntil(lambda: "no other such runs" in tab.banner.text, timeout=WAIT)

    # A look into another tab does not cost the server, a long absence does.
    pids = [child.pid for child in psutil.Process(server._process.pid).children(recursive=True)]
    tab.set_active(False)
    assert tab._keep_alive_timer.isActive()
    tab.set_active(True)
    assert tab.session.server is server
    tab.set_active(False)
    tab._keep_alive_timer.timeout.emit()
    assert tab.session.server is None
    qtbot.waitUntil(lambda: not any(psutil.pid_exists(pid) for pid in pids), timeout=WAIT)
    assert not server.links.root.exists()


@pytest.fixture
def play_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in its place, quick to start: prints what TensorBoard prints, and exits on request."""
    program = tmp_path / "python"
    program.write_text(
        "#!/bin/sh\necho 'TensorBoard 2.0 at http://127.0.0.1:1/ (Press CTRL+C to quit)'\n"
        f"while [ ! -e {tmp_path}/die ]; do sleep 0.1; done\necho 'out of memory' >&2\nexit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(tensorboard_session, "find_interpreter", lambda _others: str(program))


def test_an_engine_that_cannot_be_loaded_leaves_the_browser(
    qtbot, tab: TensorBoardTab, window_daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch, play_tensorboard: None
) -> None:
    monkeypatch.setenv("QTWEBENGINE_DISABLE_SANDBOX", "1")  # what loading it would set
    monkeypatch.setenv("QTWEBENGINE_CHROMIUM_FLAGS", "")
    monkeypatch.setattr(web_view, "is_installed", lambda: True)
    monkeypatch.setattr(web_view, "_MODULE", "PySide6.NoSuchEngine")
    tab.show_run(finished(window_daemon))
    tab.set_active(True)
    qtbot.waitUntil(lambda: "cannot be shown in the window" in tab.banner.text, timeout=WAIT)
    assert tab.offer.open_button.isVisibleTo(tab)
    assert not tab.offer.engine_command.isVisibleTo(tab)  # it is installed; something of the system is missing
    assert not tab.reload_button.isEnabled()


def test_the_way_of_pages_is_a_proxy_or_straight() -> None:
    try:
        web_view.use_proxy("http://me:p%40ss@proxy.example:8080")
        proxy = QNetworkProxy.applicationProxy()
        assert (proxy.hostName(), proxy.port(), proxy.user(), proxy.password()) == ("proxy.example", 8080, "me", "p@ss")
        web_view.use_proxy("socks5://proxy.example:1080")
        assert QNetworkProxy.applicationProxy().type() is QNetworkProxy.ProxyType.Socks5Proxy
    finally:
        web_view.use_proxy("")
    assert QNetworkProxy.applicationProxy().type() is QNetworkProxy.ProxyType.NoProxy


def test_a_server_that_dies_is_reported_and_started_anew(
    qtbot, tab: TensorBoardTab, window_daemon: RunningDaemon, play_tensorboard: None, tmp_path: Path
) -> None:
    run = finished(window_daemon)
    tab._clock.setInterval(100)
    tab.show_run(run)
    tab.set_active(True)
    qtbot.waitUntil(lambda: tab.session.server is not None, timeout=WAIT)
    (tmp_path / "die").touch()
    qtbot.waitUntil(lambda: "out of memory" in tab.banner.text, timeout=WAIT)
    assert tab.banner.tone == "bad"
    assert tab.session.server is None
    (tmp_path / "die").unlink()
    tab.banner._button.click()
    qtbot.waitUntil(lambda: tab.session.server is not None, timeout=WAIT)
    session, server = tab.session, tab.session.server
    tab.destroyed.emit()  # as when its window is gone
    assert session.server is None
    qtbot.waitUntil(lambda: not server.is_running, timeout=WAIT)


def test_a_server_that_is_dropped_before_its_start_is_never_started(
    tab: TensorBoardTab, window_daemon: RunningDaemon, play_tensorboard: None
) -> None:
    run, generation = finished(window_daemon), tab.session.generation
    tab.session.drop()  # the tab was left while the start still waited for a thread
    with pytest.raises(web_servers.ServerProblem, match="no longer needed"):
        tab.session.start([run], generation)
    assert tab.session.server is None
    assert not list(Path(window_daemon.home.cache).glob("tensorboard/*"))


def test_without_tensorboard_the_command_is_named(
    qtbot, tab: TensorBoardTab, window_daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(_others: object) -> str:
        raise web_servers.ServerProblem("TensorBoard is not installed. Install it: pip install tensorboard")

    monkeypatch.setattr(tensorboard_session, "find_interpreter", nothing)
    tab.show_run(finished(window_daemon))
    tab.set_active(True)
    qtbot.waitUntil(lambda: "pip install tensorboard" in tab.banner.text, timeout=WAIT)
    assert tab.offer.charts_button.isVisibleTo(tab)
    assert not tab.offer.open_button.isVisibleTo(tab)


def test_no_event_files_yet_is_a_banner_until_there_are(
    qtbot, tab: TensorBoardTab, window_daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = finished(window_daemon, events=False)
    tab.show_run(run)
    tab.set_active(True)
    qtbot.waitUntil(lambda: "left no TensorBoard event files" in tab.banner.text, timeout=WAIT)
    live = pb.Run()
    live.CopyFrom(run)
    live.status, live.outcome = "EXEC", ""
    tab.refresh(live)
    qtbot.waitUntil(lambda: "Not available yet" in tab.banner.text, timeout=WAIT)
    started: list[pb.Run] = []
    monkeypatch.setattr(tab, "_start", started.append)
    write_events(run)
    qtbot.waitUntil(lambda: bool(started), timeout=WAIT)  # without a click


def test_a_run_on_another_machine_is_reported(qtbot, tab: TensorBoardTab, link: DaemonLink, tmp_path: Path) -> None:
    link.state, link.is_home_here = LinkState(LinkPhase.CONNECTED, target="far.example:50055"), False
    tab.show_run(pb.Run(run_id="01ARZ3NDEKTSV4RRFFQ69G5FAV", run_dir="/nowhere/trainer/runs/x", status="TERM"))
    tab.set_active(True)
    assert "far.example" in tab.banner.text
    assert "mosaic tensorboard" in tab.banner.text
    assert tab.session.server is None


def test_a_run_that_was_left_gets_no_server(qtbot, tab: TensorBoardTab, window_daemon: RunningDaemon) -> None:
    """Another run is chosen while the server of the first is starting."""
    first, second = finished(window_daemon, seed=1), finished(window_daemon, seed=2, events=False)
    tab.show_run(first)
    tab.set_active(True)
    qtbot.waitUntil(lambda: tab._is_starting, timeout=WAIT)
    tab.show_run(second)
    qtbot.waitUntil(lambda: not tab._is_starting, timeout=WAIT)
    qtbot.waitUntil(lambda: "left no TensorBoard event files" in tab.banner.text, timeout=WAIT)
    assert tab.session.server is None


# A window that opens the tab of a run by itself.
_WINDOW = """
import sys
from mosaic_wire.paths import Home
from PySide6.QtCore import QTimer
from gym_gui import app

build = app.build_window

def build_and_open(*arguments):
    parts = build(*arguments)

    def go_on():
        page = parts.window.runs.page
        if parts.link.is_connected and page is None:
            parts.window.open_run(sys.argv[2])
        elif page is not None and page.run is not None:
            page.open_tab("tensorboard")
            timer.stop()

    timer = QTimer(parts.window, interval=100)
    timer.timeout.connect(go_on)
    timer.start()
    return parts

app.build_window = build_and_open
app.main(Home(__import__("pathlib").Path(sys.argv[1])))
"""


@pytest.mark.slow  # the short form: test_tensorboard_server.py kills the command, which has the same guardian
def test_a_window_that_is_killed_takes_its_server_along(window_daemon: RunningDaemon, tmp_path: Path) -> None:
    run = finished(window_daemon)
    window = WindowProcess(
        tmp_path / "qt", str(window_daemon.home.root), run.run_id, variables=window_daemon.variables, script=_WINDOW
    )
    window.open()
    below: list[psutil.Process] = []

    def has_server() -> bool:
        below[:] = psutil.Process(window._process.pid).children(recursive=True)
        return any("tensorboard_data_server" in " ".join(process.cmdline()) for process in below)

    assert wait_until(has_server, timeout_s=120), window.stderr()
    window.end(signal.SIGKILL)
    servers = [process for process in below if process.pid != window_daemon.pid]
    assert len(servers) >= 3  # guardian, TensorBoard, its data server
    assert wait_until(lambda: not any(process.is_running() for process in servers), timeout_s=60)
