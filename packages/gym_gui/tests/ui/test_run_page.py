"""The run page against a real daemon: tabs built when opened, remembered per lane, news of the run, and its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.testing import RunningDaemon, install_scripted_worker, random_config, scripted_config
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink, LinkPhase
from gym_gui.ui.presenters.workers.registry import TAB_ORDER, PresenterRegistry
from gym_gui.ui.run_page.page import RunPage
from gym_gui.ui.runs.actions import RunActions
from mosaic_wire.paths import Home
from PySide6.QtGui import QKeySequence
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractScrollArea,
    QComboBox,
    QHeaderView,
    QLabel,
    QLineEdit,
    QMainWindow,
    QTabBar,
    QWidget,
)

WAIT = 30_000
QUICK = {"heartbeat_s": 0.2, "grace_s": 2, "silence_s": 20, "handshake_s": 60, "min_free_disk_mb": 0}


@pytest.fixture
def window(qtbot, themed) -> QMainWindow:
    window = QMainWindow()
    qtbot.addWidget(window)
    window.resize(1280, 800)
    window.show()
    return window


@pytest.fixture
def page(window: QMainWindow, link: DaemonLink, background: Background) -> Iterator[RunPage]:
    page = make_page(window, link, background)
    yield page
    page.hide()


def make_page(window: QMainWindow, link: DaemonLink, background: Background) -> RunPage:
    page = RunPage(link, background, RunActions(link, background, window), PresenterRegistry())
    window.setCentralWidget(page)
    return page


def built(page: RunPage) -> set[str]:
    return {name for name in page.tab_names() if page.tab(name) is not None}


def test_tabs_are_built_when_they_are_opened(qtbot, page: RunPage, window_daemon: RunningDaemon) -> None:
    run = window_daemon.submit(timesteps=20)
    run = window_daemon.wait_for(run.run_id, "TERM")
    page.show_run(run.run_id)
    qtbot.waitUntil(lambda: page.run is not None, timeout=WAIT)
    # Of those its presenter names, W&B and Optuna are for runs that have what they show.
    expected = [name for name in PresenterRegistry().for_run(run).tabs() if name not in ("wandb", "optuna")]
    assert page.tab_names() == expected
    assert {"overview", "story", "logs", "files"} <= set(expected)
    assert built(page) == {"overview"}
    for name in [*expected[1:-1], "files"]:
        page.open_tab(name)
        tab = page.tab(name)
        assert tab is not None
        assert tab.is_active
        assert tab.run.run_id == run.run_id
    assert not page.tab("overview").is_active
    page.hide()
    assert not page.tab("files").is_active
    page.show()
    assert page.tab("files").is_active


def test_everything_one_can_act_on_has_a_name(qtbot, page: RunPage, window_daemon: RunningDaemon) -> None:
    run = window_daemon.submit(timesteps=20)
    window_daemon.wait_for(run.run_id, "TERM")
    page.show_run(run.run_id)
    qtbot.waitUntil(lambda: page.run is not None, timeout=WAIT)
    parts: list[QWidget] = [page.header]
    for name in page.tab_names():
        page.open_tab(name)
        parts.append(page.tab(name))
    kinds = (QAbstractButton, QLineEdit, QComboBox, QAbstractScrollArea)
    nameless = [
        f"{type(widget).__name__} {widget.objectName()!r} in {part.objectName()}"
        for part in parts
        for kind in kinds
        for widget in part.findChildren(kind)
        if not widget.objectName().startswith("qt_")
        and not isinstance(widget.parent(), QComboBox | QLineEdit | QAbstractScrollArea)
        and isinstance(widget, QHeaderView) is False
        and not (widget.accessibleName() and widget.objectName())
        and widget.isVisibleTo(part)
    ]
    assert nameless == []


def test_no_two_tabs_and_buttons_of_the_page_share_a_mnemonic(
    qtbot, page: RunPage, window_daemon: RunningDaemon
) -> None:
    """Alt and the letter would otherwise only move the focus between them."""
    config = random_config(timesteps=20, extras={"track_wandb": True, "optuna_db": "study.sqlite3"})
    run = window_daemon.client.submit(config).run
    window_daemon.wait_for(run.run_id)
    page.show_run(run.run_id)
    qtbot.waitUntil(lambda: page.run is not None, timeout=WAIT)
    assert page.tab_names() == list(TAB_ORDER)
    titles = [page.tabs.tabText(index) for index in range(page.tabs.count())]
    shared = {}
    for name in TAB_ORDER:
        page.open_tab(name)
        tab = page.tab(name)
        texts = [button.text() for button in tab.findChildren(QAbstractButton)]
        texts += [bar.tabText(index) for bar in tab.findChildren(QTabBar) for index in range(bar.count())]
        texts += [label.text() for label in tab.findChildren(QLabel) if label.buddy() is not None]
        keys = Counter(key for text in [*titles, *texts] if (key := QKeySequence.mnemonic(text).toString()))
        if doubled := [text for text in texts if keys[QKeySequence.mnemonic(text).toString()] > 1]:
            shared[name] = doubled
    assert shared == {}
    assert len({QKeySequence.mnemonic(title).toString() for title in titles}) == len(titles)


def test_the_tab_that_was_open_is_open_next_time(
    qtbot, window: QMainWindow, link: DaemonLink, background: Background, window_daemon: RunningDaemon
) -> None:
    run = window_daemon.submit(timesteps=20)
    window_daemon.wait_for(run.run_id, "TERM")
    for opened in ("logs", "story"):
        page = make_page(window, link, background)
        page.show_run(run.run_id)
        qtbot.waitUntil(lambda page=page: page.run is not None, timeout=WAIT)
        if opened == "logs":
            page.open_tab("logs")
            page.hide()
    assert built(page) == {"logs"}


def test_each_lane_has_its_own_remembered_tab(qtbot, page: RunPage, window_daemon: RunningDaemon) -> None:
    install_scripted_worker(window_daemon.home, "teller", 'open_session(lane="telemetry"); raise SystemExit(3)')
    analytics = window_daemon.submit(timesteps=20)
    telemetry = window_daemon.client.submit(scripted_config("teller")).run
    for run in (analytics, telemetry):
        window_daemon.wait_for(run.run_id, "TERM")

    def show(run_id: str) -> str:
        page.show_run(run_id)
        qtbot.waitUntil(lambda: page.run is not None and page.run.run_id == run_id, timeout=WAIT)
        return page.tab_names()[page.tabs.currentIndex()]

    show(analytics.run_id)
    page.open_tab("files")
    show(telemetry.run_id)
    page.open_tab("story")
    assert show(analytics.run_id) == "files"
    assert show(telemetry.run_id) == "story"


def test_the_head_follows_a_live_run_to_its_end(qtbot, page: RunPage, window_daemon: RunningDaemon) -> None:
    run = window_daemon.submit(timesteps=10**9)
    window_daemon.wait_for(run.run_id, "EXEC")
    page.show_run(run.run_id)
    header = page.header
    qtbot.waitUntil(lambda: "Running" in header.chip.text, timeout=WAIT)
    assert header.title.text() == "random walk"
    assert header.buttons["run_pause"].isVisibleTo(page)
    assert not header.buttons["run_resume"].isVisibleTo(page)
    header.buttons["run_pause"].click()
    qtbot.waitUntil(lambda: "Paused" in header.chip.text, timeout=WAIT)
    qtbot.waitUntil(lambda: header.buttons["run_resume"].isVisibleTo(page), timeout=WAIT)
    header.buttons["run_resume"].click()
    qtbot.waitUntil(lambda: "Running" in header.chip.text, timeout=WAIT)
    header.buttons["run_cancel"].click()
    qtbot.waitUntil(lambda: "Cancelled" in header.chip.text, timeout=WAIT)
    assert not header.buttons["run_cancel"].isVisibleTo(page)
    names = {action.objectName() for action in header.menu.actions()}
    assert {"run_archive", "run_export", "run_delete"} <= names


def test_a_daemon_that_was_away_is_caught_up_with_without_a_click(
    qtbot, window: QMainWindow, background: Background, tmp_path: Path
) -> None:
    with RunningDaemon(Home(tmp_path / "home"), tmp_path / "config", settings=QUICK) as daemon:
        link = DaemonLink(lambda: TrainerClient.connect(daemon.home), background)
        with qtbot.waitSignal(link.runs_loaded, timeout=WAIT):
            link.start()
        run = daemon.submit(timesteps=10**9)
        daemon.wait_for(run.run_id, "EXEC")
        page = make_page(window, link, background)
        page.show_run(run.run_id)
        qtbot.waitUntil(lambda: "Running" in page.header.chip.text, timeout=WAIT)
        page.open_tab("story")
        daemon.kill()
        qtbot.waitUntil(lambda: link.state.phase is LinkPhase.LOST, timeout=WAIT)
        assert "Running" in page.header.chip.text  # what was known stays in sight
        daemon.start()
        daemon.client.cancel(run.run_id)
        qtbot.waitUntil(lambda: "Cancelled" in page.header.chip.text, timeout=WAIT)
        history = page.tab("story").model
        qtbot.waitUntil(lambda: history.rowCount() == len(daemon.event_kinds(run.run_id)), timeout=WAIT)
        page.hide()
        link.stop()


def test_another_run_takes_the_place_of_the_first(qtbot, page: RunPage, window_daemon: RunningDaemon) -> None:
    first, second = (window_daemon.submit(timesteps=20, seed=seed) for seed in (1, 2))
    for run in (first, second):
        window_daemon.wait_for(run.run_id, "TERM")
    page.show_run(first.run_id)
    qtbot.waitUntil(lambda: page.run is not None, timeout=WAIT)
    page.open_tab("story")
    shown: list[str] = []
    page.run_shown.connect(shown.append)
    page.show_run(second.run_id)
    qtbot.waitUntil(lambda: shown == [second.run_id], timeout=WAIT)
    history = page.tab("story")
    assert history.run.run_id == second.run_id
    page.open_tab("overview")
    assert page.tab("overview").run.run_id == second.run_id


def test_an_unknown_run_and_a_deleted_one_are_reported(qtbot, page: RunPage, window_daemon: RunningDaemon) -> None:
    page.show_run("01ARZ3NDEKTSV4RRFFQ69G5FAV")
    qtbot.waitUntil(lambda: "cannot be shown" in page.banner.text, timeout=WAIT)
    run = window_daemon.submit(timesteps=5)
    window_daemon.wait_for(run.run_id, "TERM")
    page.show_run(run.run_id)
    qtbot.waitUntil(lambda: page.run is not None and page.banner.text == "", timeout=WAIT)
    gone: list[str] = []
    page.run_removed.connect(gone.append)
    window_daemon.client.delete(run.run_id)
    qtbot.waitUntil(lambda: gone == [run.run_id], timeout=WAIT)
    assert "was deleted" in page.banner.text
    assert not page.tabs.isVisibleTo(page)


def test_a_continued_run_appears_in_the_family(qtbot, page: RunPage, window_daemon: RunningDaemon) -> None:
    run = window_daemon.submit(timesteps=50, checkpoint_every=10)
    run = window_daemon.wait_for(run.run_id, "TERM")
    page.show_run(run.run_id)
    qtbot.waitUntil(lambda: page.run is not None, timeout=WAIT)
    child = window_daemon.client.resume(run.run_id, additional_timesteps=50)
    window_daemon.wait_for(child.run_id, "TERM")
    qtbot.waitUntil(
        lambda: [relative.run_id for relative in page.lineage.children_of(run.run_id)] == [child.run_id], timeout=WAIT
    )
    overview = page.tab("overview")
    qtbot.waitUntil(lambda: overview.findChild(object, f"relative_{child.run_id}") is not None, timeout=WAIT)
    overview.run_requested.emit(child.run_id)
    qtbot.waitUntil(lambda: page.run.run_id == child.run_id, timeout=WAIT)
    assert overview.findChild(object, f"relative_{run.run_id}") is not None
