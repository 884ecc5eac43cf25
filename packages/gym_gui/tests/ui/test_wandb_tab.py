"""The W&B tab: what the real package kept offline, shown without a network; the key; sending it, and how that fails."""

from __future__ import annotations

import shutil
import stat
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from gym_gui.services.analytics.wandb_file import find_wandb_folders
from gym_gui.services.user_secrets import WANDB_API_KEY, UserSecrets
from gym_gui.testing import RunningDaemon, blocking_calls
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.presenters.run_files import ManifestReading, RunArtifacts
from gym_gui.ui.presenters.workers.registry import PresenterRegistry
from gym_gui.ui.run_page.page import RunPage
from gym_gui.ui.run_page.wandb_tab import WandbTab
from gym_gui.ui.runs.actions import RunActions
from gym_gui.ui.widgets import web_view
from mosaic_extras.testing import lend_sets
from mosaic_wire import env
from mosaic_wire.ids import new_run_id
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtWidgets import (
    QAbstractButton,
    QComboBox,
    QLineEdit,
    QMainWindow,
    QProgressBar,
    QTabBar,
    QTableView,
    QTabWidget,
)

WAIT = 60_000
KEY = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def own_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "config"
    monkeypatch.setenv(env.MOSAIC_CONFIG_HOME, str(folder))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    return folder


@pytest.fixture
def tab(qtbot, themed, link: DaemonLink) -> Iterator[WandbTab]:
    tab = WandbTab(link)
    qtbot.addWidget(tab)
    tab.resize(1200, 600)
    tab.show()
    yield tab
    tab.set_active(False)


@pytest.fixture(scope="module")
def finished(window_daemon: RunningDaemon) -> pb.Run:
    run = window_daemon.submit(timesteps=20)
    return window_daemon.wait_for(run.run_id, "TERM")


@pytest.fixture
def run(finished: pb.Run, window_daemon: RunningDaemon) -> pb.Run:
    """A finished run with a folder of this test alone."""
    run = pb.Run()
    run.CopyFrom(finished)
    run.run_id = new_run_id()
    folder = window_daemon.home.run_folder(run.run_id).root
    folder.mkdir()
    run.run_dir = str(folder)
    return run


def put(real: Path, run: pb.Run) -> Path:
    """The real package's folder, as this run's own; returns the transaction log."""
    target = Path(run.run_dir) / "wandb"
    shutil.copytree(real, target, symlinks=True)
    (folder,) = find_wandb_folders(target)
    return folder.file


def open_tab(tab: WandbTab, run: pb.Run) -> None:
    tab.show_run(run)
    tab.set_active(True)


def history(tab: WandbTab) -> dict[str, object]:
    grid = tab.offline.grids.get("history")
    return grid.grid.views if grid is not None else {}


def test_an_offline_run_shows_summary_and_curves(qtbot, tab: WandbTab, run: pb.Run, real_wandb_folder: Path) -> None:
    put(real_wandb_folder, run)
    open_tab(tab, run)
    qtbot.waitUntil(lambda: {"charts/episodic_return", "losses/value_loss"} <= set(history(tab)), timeout=WAIT)
    chart = history(tab)["charts/episodic_return"]
    qtbot.waitUntil(lambda: chart.figure is not None, timeout=WAIT)
    (line,) = chart.figure.lines
    assert (line.x[0], line.x[-1], line.y[-1]) == (0.0, 14_990.0, 749.5)
    assert ("best", "12.5") in tab.offline.summary.pairs()
    assert max(len(value) for _, value in tab.offline.summary.pairs()) <= 400  # a user logged 70,000 characters
    assert ("net.act", "tanh") in tab.offline.config.pairs()
    assert not any(name.startswith("_") for name, _ in tab.offline.config.pairs())
    assert "project demo" in tab.offline.facts.text()
    assert "1,501 rows" in tab.offline.facts.text()
    assert "not sent" in tab.state.text()
    assert tab.banner.text == ""
    assert tab.sync_button.isVisibleTo(tab)
    assert not tab.browser_button.isVisibleTo(tab)  # it has no page yet
    assert "memory_percent" in tab.shown.system  # of the machine, sampled once at least


def test_every_control_has_a_name(qtbot, tab: WandbTab, run: pb.Run, real_wandb_folder: Path) -> None:
    put(real_wandb_folder, run)
    open_tab(tab, run)
    qtbot.waitUntil(lambda: len(history(tab)) >= 2, timeout=WAIT)
    tab.key_button.click()
    tab.progress.show()
    kinds = (QAbstractButton, QLineEdit, QComboBox, QTableView, QTabWidget, QProgressBar)
    nameless = [
        f"{type(widget).__name__} {widget.objectName()!r}"
        for kind in kinds
        for widget in tab.findChildren(kind)
        if not widget.objectName().startswith("qt_")
        and not isinstance(widget.parent(), QTableView | QTabBar)
        and not (widget.accessibleName() and widget.objectName())
        and widget.isVisibleTo(tab)
    ]
    assert nameless == []


def test_it_follows_a_file_that_grows(qtbot, tab: WandbTab, run: pb.Run, real_wandb_folder: Path) -> None:
    file = put(real_wandb_folder, run)
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    live = pb.Run()
    live.CopyFrom(run)
    live.status, live.outcome = "EXEC", ""
    tab._clock.setInterval(100)
    open_tab(tab, live)
    qtbot.waitUntil(lambda: tab.shown is not None and tab.shown.snapshot.rows > 100, timeout=WAIT)
    half = tab.shown.snapshot.rows
    assert half < 1000
    assert not tab.sync_button.isEnabled()  # it is still being written
    with file.open("ab") as stream:
        stream.write(data[len(data) // 2 :])
    qtbot.waitUntil(lambda: tab.shown.snapshot.rows == 1501, timeout=WAIT)
    assert ("best", "12.5") in tab.offline.summary.pairs()


def test_nothing_yet_damage_and_other_machines_are_banners(
    qtbot, tab: WandbTab, run: pb.Run, real_wandb_folder: Path, link: DaemonLink
) -> None:
    run.extras_json = '{"track_wandb": true}'
    live = pb.Run()
    live.CopyFrom(run)
    live.status = "EXEC"
    open_tab(tab, live)
    qtbot.waitUntil(lambda: "Not available yet" in tab.banner.text, timeout=WAIT)
    tab.refresh(run)
    qtbot.waitUntil(lambda: "left no W&B files" in tab.banner.text, timeout=WAIT)
    manifest = AnalyticsManifest(run.run_id, extra={"wandb_problem": "it did not finish within 30 s"})
    tab.set_artifacts(RunArtifacts(ManifestReading(manifest)))
    tab._explain()
    assert "did not finish within 30 s" in tab.banner.text
    tab.set_artifacts(None)
    file = put(real_wandb_folder, run)
    data = bytearray(file.read_bytes())
    data[200_000:200_050] = bytes(50)
    file.write_bytes(data)
    tab._read()
    qtbot.waitUntil(lambda: "damaged" in tab.banner.text, timeout=WAIT)
    assert tab.banner.tone == "warning"
    assert tab.shown.snapshot.rows > 1000
    link.is_home_here = False
    tab._explain()
    assert f"wandb sync {run.run_dir}/wandb/offline-*" in tab.banner.text
    assert not tab.sync_button.isEnabled()


def test_one_of_several_wandb_runs_is_chosen(qtbot, tab: WandbTab, run: pb.Run, real_wandb_folder: Path) -> None:
    file = put(real_wandb_folder, run)
    other = file.parent.with_name("offline-run-20200101_000000-older")
    other.mkdir()
    (other / "run-older.wandb").write_bytes(file.read_bytes()[:40_000])
    open_tab(tab, run)
    qtbot.waitUntil(lambda: tab.offline.runs_box.isVisibleTo(tab), timeout=WAIT)
    assert tab.shown.snapshot.rows == 1501
    tab.offline.runs_box.setCurrentText("older")
    tab.offline.run_chosen.emit("older")
    qtbot.waitUntil(lambda: 0 < tab.shown.snapshot.rows < 1501, timeout=WAIT)


@pytest.mark.slow  # a recorded one is shown in every CI
def test_a_run_of_the_cleanrl_worker_is_there_without_a_network(
    qtbot, themed, link: DaemonLink, background: Background, window_daemon: RunningDaemon
) -> None:
    """Trained with `--track`, no key: the worker logs offline, the tab is there, and shows it."""
    lend_sets(window_daemon.home, "wandb")
    worker = {
        "type": "cleanrl",
        "module": "cleanrl_worker.cli",
        "config": {
            "algo": "ppo",
            "env_id": "CartPole-v1",
            "total_timesteps": 2048,
            "seed": 1,
            "extras": {"track_wandb": True},
        },
    }
    submitted = window_daemon.client.submit(
        {"run_name": "tracked", "resources": {"cpus": {"requested": 1}}, "metadata": {"worker": worker}}
    )
    window = QMainWindow()
    qtbot.addWidget(window)
    window.resize(1280, 800)
    page = RunPage(link, background, RunActions(link, background, window), PresenterRegistry())
    window.setCentralWidget(page)
    window.show()
    page.show_run(submitted.run.run_id)
    qtbot.waitUntil(lambda: "wandb" in page.tab_names(), timeout=WAIT)
    page.open_tab("wandb")
    tab = page.tab("wandb")
    qtbot.waitUntil(lambda: page.run.status == "TERM", timeout=2 * WAIT)
    assert page.run.outcome == "completed", page.run.reason
    qtbot.waitUntil(lambda: tab.shown is not None and tab.shown.snapshot.exit_code == 0, timeout=WAIT)
    qtbot.waitUntil(lambda: "charts/episodic_return" in history(tab), timeout=WAIT)
    card = history(tab)["charts/episodic_return"]
    qtbot.waitUntil(lambda: card.drawn_points() > 5, timeout=WAIT)
    # The same episodes as the daemon's own curve, against the same steps.
    (curve,) = [
        curve
        for message in window_daemon.client.metrics(submitted.run.run_id, ["charts/episodic_return"], max_points=-1)
        for curve in message.curves
    ]
    ours = tab.shown.snapshot.history["charts/episodic_return"]
    assert ours.steps.tolist() == [float(step) for step in curve.steps]
    assert ours.values.tolist() == pytest.approx(list(curve.values))
    assert ("env_id", "CartPole-v1") in tab.offline.config.pairs()
    assert any(name == "charts/episodic_return" for name, _ in tab.offline.summary.pairs())
    assert "not sent" in tab.state.text()
    page.hide()


# ---------------------------------------------------------------------- the key


def test_a_key_goes_to_the_secret_store_and_nowhere_else(
    qtbot, tab: WandbTab, run: pb.Run, real_wandb_folder: Path, own_secrets: Path, window_daemon: RunningDaemon
) -> None:
    put(real_wandb_folder, run)
    open_tab(tab, run)
    qtbot.waitUntil(lambda: tab.key_button.isVisibleTo(tab), timeout=WAIT)
    assert tab.key_button.text() == "Enter a &key"
    tab.sync_button.click()  # without a key
    qtbot.waitUntil(lambda: "no API key" in tab.banner.text, timeout=WAIT)
    tab.banner._button.click()  # the banner leads to where one is entered
    entry = tab.key_entry
    assert entry.isVisibleTo(tab)
    assert entry.field.echoMode() is QLineEdit.EchoMode.Password
    entry.field.setText(f"  {KEY} ")
    entry.keep_button.click()
    assert entry.field.text() == ""  # gone from the window at once
    qtbot.waitUntil(lambda: tab.key_button.text() == "Change the &key", timeout=WAIT)
    assert not entry.isVisibleTo(tab)
    assert UserSecrets().get(WANDB_API_KEY) == KEY
    kept = own_secrets / "user_secrets.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    everywhere = [path for path in window_daemon.home.root.rglob("*") if path.is_file() and not path.is_symlink()]
    assert everywhere
    assert not any(KEY.encode() in path.read_bytes() for path in everywhere)
    tab.key_button.click()
    assert str(kept) in entry.message.text()
    entry.forget_button.click()
    qtbot.waitUntil(lambda: tab.key_button.text() == "Enter a &key", timeout=WAIT)
    assert UserSecrets().get(WANDB_API_KEY) == ""


# ---------------------------------------------------------------------- sending


class _Refusing(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(401)
        self.end_headers()
        self.wfile.write(b'{"errors":[{"message":"this key was revoked"}]}')

    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture
def refusing_wandb(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Refusing)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
    yield
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_refused_key_is_reported_clearly(
    qtbot, tab: WandbTab, run: pb.Run, real_wandb_folder: Path, refusing_wandb: None, window_daemon: RunningDaemon
) -> None:
    """The real `wandb sync`, which ends with exit code 0 here; nothing was sent all the same."""
    lend_sets(window_daemon.home, "wandb")
    UserSecrets().put(WANDB_API_KEY, KEY)
    put(real_wandb_folder, run)
    open_tab(tab, run)
    qtbot.waitUntil(lambda: tab.sync_button.isEnabled() and tab.sync_button.isVisibleTo(tab), timeout=WAIT)
    tab.sync_button.click()
    assert tab.progress.isVisibleTo(tab)
    qtbot.waitUntil(lambda: "this key was revoked" in tab.banner.text, timeout=WAIT)
    assert tab.banner.tone == "bad"
    assert KEY not in tab.banner.text
    assert not tab.progress.isVisibleTo(tab)
    assert "not sent" in tab.state.text()
    assert tab.sync_button.isEnabled()


def test_without_a_network_sync_reports_it_at_once(
    qtbot, tab: WandbTab, run: pb.Run, real_wandb_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    UserSecrets().put(WANDB_API_KEY, KEY)
    put(real_wandb_folder, run)
    open_tab(tab, run)
    qtbot.waitUntil(lambda: tab.sync_button.isVisibleTo(tab), timeout=WAIT)
    tab.sync()
    qtbot.waitUntil(lambda: "W&B cannot be reached" in tab.banner.text, timeout=WAIT)
    assert tab.offline.isVisibleTo(tab)  # what is here stays in sight


def test_what_was_sent_is_marked(
    qtbot,
    tab: WandbTab,
    run: pb.Run,
    real_wandb_folder: Path,
    refusing_wandb: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """W&B's own server cannot run here: a program in its place prints the lines that the real one prints."""
    file = put(real_wandb_folder, run)
    program = tmp_path / "python"
    program.write_text(
        f'#!/bin/sh\n[ "$2" = -c ] && exit 0\n[ "$WANDB_API_KEY" = {KEY} ] || exit 1\n'
        f'case "$*" in *{KEY}*) exit 1;; esac\n[ "$WANDB_MODE" = online ] || exit 1\n'
        'echo "wandb: Syncing 1 run(s):"\n'
        'echo "wandb: View run at: https://wandb.ai/me/demo/runs/abc"\n'
        f"touch {file}.synced\n"
    )
    program.chmod(0o755)
    UserSecrets().put(WANDB_API_KEY, KEY)
    manifest = AnalyticsManifest(run.run_id, argv=(str(program), "-m", "x"))
    tab.set_artifacts(RunArtifacts(ManifestReading(manifest)))
    open_tab(tab, run)
    qtbot.waitUntil(lambda: tab.sync_button.isVisibleTo(tab), timeout=WAIT)
    tab.sync()
    qtbot.waitUntil(lambda: "sent to W&B" in tab.state.text() and "not sent" not in tab.state.text(), timeout=WAIT)
    assert not tab.sync_button.isVisibleTo(tab)
    assert tab.banner.text == "Sent to W&B."
    opened: list[str] = []
    monkeypatch.setattr(web_view, "open_in_browser", lambda address: opened.append(address) or True)
    tab.banner._button.click()
    assert opened == ["https://wandb.ai/me/demo/runs/abc"]


# ---------------------------------------------------------------------- the hosted page


def test_an_online_run_has_its_page(
    qtbot, tab: WandbTab, run: pb.Run, monkeypatch: pytest.MonkeyPatch, link: DaemonLink
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(web_view, "open_in_browser", lambda address: opened.append(address) or True)
    manifest = AnalyticsManifest(
        run.run_id, wandb_run_id="abc", wandb_run_path="team/demo/abc", extra={"wandb_mode": "online"}
    )
    tab.set_artifacts(RunArtifacts(ManifestReading(manifest)))
    open_tab(tab, run)
    qtbot.waitUntil(lambda: tab.browser_button.isVisibleTo(tab), timeout=WAIT)
    tab.browser_button.click()
    assert opened == ["https://wandb.ai/team/demo/runs/abc"]
    offline = AnalyticsManifest(run.run_id, wandb_run_path="team/demo/abc", extra={"wandb_mode": "offline"})
    tab.set_artifacts(RunArtifacts(ManifestReading(offline)))
    assert tab.page_address() == ""  # nothing is there yet
    reported = AnalyticsManifest(run.run_id, extra={"wandb_url": "https://wandb.example/t/d/runs/x"})
    tab.set_artifacts(RunArtifacts(ManifestReading(reported)))
    assert tab.page_address() == "https://wandb.example/t/d/runs/x"


def test_no_slot_reads_a_file_or_waits_for_anything(qtbot, tab: WandbTab, run: pb.Run, real_wandb_folder: Path) -> None:
    put(real_wandb_folder, run)
    open_tab(tab, run)  # once, so that pyqtgraph is loaded
    qtbot.waitUntil(lambda: len(history(tab)) >= 2, timeout=WAIT)
    tab.set_active(False)
    with blocking_calls() as calls:
        open_tab(tab, run)
        qtbot.waitUntil(lambda: tab.shown is not None and len(history(tab)) >= 2, timeout=WAIT)
        qtbot.wait(200)
    assert not calls
