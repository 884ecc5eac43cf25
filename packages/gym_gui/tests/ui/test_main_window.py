"""The whole window against a real daemon: there before its data, honest about the daemon, reachable by keyboard."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from gym_gui.services.trainer.local_daemon import read_token, running_record, stop_process
from gym_gui.testing import RunningDaemon, blocking_calls, random_config
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink, LinkPhase
from gym_gui.ui.play.policy_panel import PolicyPanel
from gym_gui.ui.runs.allowed_actions import RunAction
from gym_gui.ui.shell.crash_dialog import ReportDialog
from gym_gui.ui.shell.daemon_banner import LocalConnector, RemoteConnector
from gym_gui.ui.shell.main_menu import ShortcutsDialog
from gym_gui.ui.shell.main_window import MainWindow, restore_docks
from gym_gui.ui.shell.workspaces import MANAGEMENT, PLAY, POLICY, RUNS, WORKSPACES
from gym_gui.ui.theme import Appearance
from mosaic_wire.ids import new_run_id
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QSettings, Qt
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QAbstractButton, QAbstractItemView, QComboBox, QDialog, QHeaderView, QLineEdit, QWidget


@dataclass
class Opened:
    window: MainWindow
    link: DaemonLink
    connector: LocalConnector


@pytest.fixture
def opened(qtbot, themed, home: Home, background: Background) -> Iterator[Opened]:
    """A window over a home of its own, as `mosaic gui` makes it; the link is not started yet."""
    connector = LocalConnector(home)
    link = DaemonLink(connector, background)
    window = MainWindow(link, background, home, Appearance(themed), connector=connector)
    qtbot.addWidget(window)
    yield Opened(window, link, connector)
    window.close()
    link.stop()


@pytest.fixture
def served(opened: Opened, home: Home, tmp_path) -> Iterator[RunningDaemon]:
    """The daemon of that home, started by hand."""
    settings = {"heartbeat_s": 0.2, "grace_s": 2, "listen": "127.0.0.1"}
    with RunningDaemon(home, tmp_path / "config", settings=settings) as daemon:
        yield daemon
        opened.link.stop()  # before the daemon: no one is to start another one
        if (other := running_record(home)) is not None and other.pid != daemon.pid:
            assert stop_process(other, timeout_s=60), "the daemon that the window started does not end"


def start(qtbot, opened: Opened) -> None:
    opened.window.show()
    with qtbot.waitSignal(opened.link.runs_loaded, timeout=60_000):
        opened.link.start()
    qtbot.waitUntil(lambda: opened.link.is_connected, timeout=30_000)


def test_the_window_is_there_before_the_daemon(qtbot, opened: Opened) -> None:
    opened.window.show()
    assert opened.window.isVisible()
    assert "Starting" in opened.window.status.daemon.text()
    assert opened.window.connection_banner.isHidden()


def test_without_runs_it_greets_and_the_first_run_replaces_the_greeting(qtbot, opened, served) -> None:
    window = opened.window
    start(qtbot, opened)
    qtbot.waitUntil(lambda: window.first_start.isVisible(), timeout=10_000)
    run_id = served.submit(timesteps=20).run_id
    qtbot.waitUntil(lambda: window.runs.isVisible(), timeout=30_000)
    assert not window.first_start.isVisible()
    window.open_run(run_id)
    assert window.runs.page is not None
    assert window.runs.page.isVisible()
    qtbot.waitUntil(lambda: bool(window.toasts.shown), timeout=60_000)
    assert "finished" in window.toasts.shown[0].accessibleName()


def test_a_daemon_that_is_killed_is_reported_and_replaced_without_a_click(qtbot, opened, served) -> None:
    window, phases = opened.window, []
    start(qtbot, opened)
    opened.link.state_changed.connect(lambda state: phases.append(state.phase))
    said = []
    opened.link.state_changed.connect(lambda state: said.append(window.connection_banner.text))
    pid = served.pid
    served.kill()
    qtbot.waitUntil(lambda: phases[-1:] == [LinkPhase.CONNECTED], timeout=60_000)
    assert LinkPhase.LOST in phases
    assert any("does not respond" in message for message in said)
    assert window.connection_banner.isHidden()
    record = running_record(opened.connector.home)
    assert record is not None
    assert record.pid != pid


def test_a_daemon_that_cannot_be_started_is_reported_with_the_reason(qtbot, opened: Opened, home: Home) -> None:
    home.root.mkdir()
    (home.root / "trainer").write_text("a file where a folder belongs")
    window = opened.window
    window.show()
    opened.link.start()
    qtbot.waitUntil(lambda: "cannot be started" in window.connection_banner.text, timeout=60_000)
    assert str(home.root) in window.connection_banner.text
    window.connection_banner.findChild(QAbstractButton, "banner_action").click()
    assert "trainer" in window.findChild(ReportDialog).text.toPlainText()
    (home.root / "trainer").unlink()
    opened.connector.restart_daemon()
    qtbot.waitUntil(lambda: opened.link.is_connected and window.connection_banner.isHidden(), timeout=60_000)
    opened.link.stop()
    assert stop_process(running_record(home), timeout_s=60)


def test_a_frozen_daemon_is_reported_and_the_window_stays_responsive(qtbot, opened, served) -> None:
    """SIGSTOP: it keeps its connection and says nothing."""
    window = opened.window
    start(qtbot, opened)
    served.freeze()
    try:
        with blocking_calls() as calls:
            qtbot.waitUntil(lambda: "cannot answer" in window.connection_banner.text, timeout=60_000)
            window.show_workspace(MANAGEMENT)
            window.show_workspace(RUNS)
    finally:
        served.thaw()
    assert not [call for call in calls if "a call to the daemon" in call]
    qtbot.waitUntil(lambda: window.connection_banner.isHidden(), timeout=60_000)


def test_a_daemon_that_is_stopped_stays_stopped_until_the_button(qtbot, opened, served) -> None:
    window = opened.window
    start(qtbot, opened)
    assert served.stop() == 0
    qtbot.waitUntil(lambda: "was stopped" in window.connection_banner.text, timeout=30_000)
    assert opened.connector.is_stopped
    window.connection_banner.findChild(QAbstractButton, "banner_action").click()
    qtbot.waitUntil(lambda: opened.link.is_connected, timeout=60_000)
    assert window.connection_banner.isHidden()


def test_every_workspace_opens_by_its_shortcut(qtbot, opened, served) -> None:
    window = opened.window
    start(qtbot, opened)
    for name in (PLAY, POLICY, MANAGEMENT, RUNS):
        action = window.findChild(QAction, f"workspace_{name}")
        action.trigger()
        assert window.workspace == name
        assert action.isChecked()
    shortcuts = [workspace.shortcut for workspace in WORKSPACES]
    assert len(set(shortcuts)) == len(shortcuts)


@pytest.mark.slow  # test_policy_panel.py watches one in every CI
def test_a_run_s_policy_is_watched_from_its_menu(qtbot, opened: Opened, served: RunningDaemon) -> None:
    """What the menu asks for arrives in the workspace of policies; that one has tests of its own."""
    config = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "total_timesteps": 1024}
    run = served.client.submit({"metadata": {"worker": {"type": "cleanrl", "config": config}}}).run
    assert served.wait_for(run.run_id, "TERM", timeout_s=120).outcome == "completed"
    start(qtbot, opened)
    opened.window.run_actions.do(RunAction.WATCH, [served.client.get(run.run_id)])
    assert opened.window.workspace == POLICY
    runs = opened.window.findChild(PolicyPanel).source.runs
    qtbot.waitUntil(lambda: runs.currentData() is not None and runs.currentData().run_id == run.run_id, timeout=60_000)


def test_no_shortcut_is_given_twice(qtbot, opened: Opened) -> None:
    opened.window.menu.refresh_run_menu()
    taken: dict[str, str] = {}
    for action in opened.window.findChildren(QAction):
        for sequence in action.shortcuts():
            keys = sequence.toString()
            assert taken.setdefault(keys, action.text()) == action.text(), f"{keys} has two meanings"


def test_the_list_of_shortcuts_is_the_menus(qtbot, opened: Opened) -> None:
    opened.window.show_shortcuts()
    dialog = opened.window.findChild(ShortcutsDialog)
    listed = {
        (group.child(row).text(0), group.child(row).text(1))
        for index in range(dialog.tree.topLevelItemCount())
        if (group := dialog.tree.topLevelItem(index))
        for row in range(group.childCount())
    }
    assert ("New run", "Ctrl+N") in listed
    assert ("Management", "Ctrl+4") in listed
    dialog.search.setText("ctrl+4")
    visible = [
        group.text(0)
        for index in range(dialog.tree.topLevelItemCount())
        if not (group := dialog.tree.topLevelItem(index)).isHidden()
    ]
    assert visible == ["View"]
    dialog.close()


def test_the_layout_is_kept_and_can_be_reset(qtbot, opened: Opened) -> None:
    window = opened.window
    window.show()
    window.arrange_runs(beside=True)
    left, top = Qt.DockWidgetArea.LeftDockWidgetArea, Qt.DockWidgetArea.TopDockWidgetArea
    assert window.runs.dockWidgetArea(window.runs.dock) == left
    window.close()
    assert restore_docks(window.runs)
    assert window.runs.dockWidgetArea(window.runs.dock) == left
    window.reset_layout()
    assert window.runs.dockWidgetArea(window.runs.dock) == (left if window.width() >= 1600 else top)
    assert QSettings("MOSAIC", "mosaic").value("window/version") is None


def test_every_control_has_a_name_for_those_who_do_not_see_it(qtbot, opened, served) -> None:
    window = opened.window
    run_id = served.submit(timesteps=20).run_id
    served.wait_for(run_id)
    start(qtbot, opened)
    window.open_run(run_id)
    qtbot.waitUntil(lambda: window.runs.page.tabs.isVisible(), timeout=30_000)
    nameless = set()
    for name in (PLAY, POLICY, MANAGEMENT, RUNS):
        window.show_workspace(name)
        nameless |= set(nameless_controls(window))
    for tab in window.runs.page.tab_names():
        window.runs.page.open_tab(tab)
        nameless |= set(nameless_controls(window))
    assert nameless == set(), "\n".join(sorted(nameless))


def nameless_controls(window: QWidget) -> list[str]:
    controls = (QAbstractButton, QAbstractItemView, QComboBox, QLineEdit)
    return [
        f"{type(child).__name__} {child.objectName()!r} in {type(child.parentWidget()).__name__}"
        for kind in controls
        for child in window.findChildren(kind)
        if child.isVisible() and not _is_inside_qt(child) and not (child.accessibleName() or _text_of(child))
    ]


def _text_of(widget: QWidget) -> str:
    return widget.text() if isinstance(widget, QAbstractButton) else ""


def _is_inside_qt(widget: QWidget) -> bool:
    """Parts that Qt makes itself (of a spin box, a combo box's list, a tool bar's arrow) speak through their owner."""
    if widget.objectName().startswith("qt_") or isinstance(widget, QHeaderView):
        return True
    parent = widget.parentWidget()
    return not widget.objectName() and parent is not None and any(parent.inherits(owner) for owner in OWNERS)


OWNERS = (
    "QAbstractSpinBox",
    "QComboBox",
    "QComboBoxPrivateContainer",
    "QToolBar",
    "QTabBar",
    "QDockWidget",
    "QAbstractItemView",
    "QMenuBar",
    "QLineEdit",
)


def made_up_run(number: int, step: int) -> pb.Run:
    return pb.Run(
        run_id=RUN_IDS[number],
        number=number + 1,
        status="EXEC",
        name=f"crowd {number}",
        worker_type="cleanrl",
        algo="ppo",
        env_id="CartPole-v1",
        seed=number % 5,
        step=step,
        total=500_000,
        episodic_return=float(step % 500),
        sps=2000.0,
        created_at=time.time(),
        started_at=time.time(),
        metrics={"charts/SPS": 2000.0, "mean_return_100": float(step % 500)},
    )


RUN_IDS = [new_run_id() for _ in range(50)]


def test_no_slot_waits_for_anything_while_fifty_runs_publish(qtbot, opened, served) -> None:
    """News of fifty runs, ten times a second each, through the link's own way in; one real run is open and live."""
    window = opened.window
    own = served.client.submit(random_config(timesteps=2000, steps_per_second=100)).run.run_id
    start(qtbot, opened)
    window.open_run(own)
    qtbot.wait(500)
    over = threading.Event()

    def publish() -> None:
        step = 0
        while not over.wait(0.1):
            step += 400
            for number in range(50):
                opened.link._note(pb.RunUpdate(run=made_up_run(number, step)))

    publisher = threading.Thread(target=publish)
    publisher.start()
    batches: list[tuple[pb.Run, ...]] = []
    opened.link.runs_changed.connect(batches.append)
    try:
        with blocking_calls() as calls:
            qtbot.waitUntil(lambda: len(batches) > 10, timeout=60_000)
    finally:
        over.set()
        publisher.join()
    served.client.cancel(own)
    assert not calls
    for batch in batches:  # what came of a run meanwhile is one change of its row
        assert len({run.run_id for run in batch}) == len(batch)


def test_a_daemon_far_away_is_shown_without_its_files(qtbot, themed, served: RunningDaemon, background) -> None:
    """`--connect`: there is no home here. Every workspace and every tab opens and says what it cannot show."""
    run_id = served.submit(timesteps=20).run_id
    served.wait_for(run_id)
    tcp = next(address for address in served.client.health().addresses if not address.startswith("unix:"))
    connector = RemoteConnector(tcp, read_token(served.home))
    link = DaemonLink(connector, background)
    window = MainWindow(link, background, None, Appearance(themed), connector=connector)
    qtbot.addWidget(window)
    window.show()
    try:
        with qtbot.waitSignal(link.runs_loaded, timeout=60_000):
            link.start()
        qtbot.waitUntil(lambda: "reserved" in window.status.cpu.text(), timeout=30_000)
        for name in (PLAY, POLICY, MANAGEMENT, RUNS):
            window.show_workspace(name)
            qtbot.wait(50)
        window.open_run(run_id)
        qtbot.waitUntil(lambda: window.runs.page.tabs.isVisible(), timeout=30_000)
        for tab in window.runs.page.tab_names():
            window.runs.page.open_tab(tab)
            qtbot.wait(50)
        window.new_run()
        qtbot.waitUntil(lambda: any(form.property("kind") for form in window.findChildren(QDialog)), timeout=120_000)
        for form in window.findChildren(QDialog):
            assert not nameless_controls(form)
            form.close()
        window.show_settings()
        window.findChild(QDialog, "settings_dialog").pages.setCurrentIndex(1)
        qtbot.wait(100)
        assert not nameless_controls(window.findChild(QDialog, "settings_dialog"))
    finally:
        window.close()
        link.stop()
