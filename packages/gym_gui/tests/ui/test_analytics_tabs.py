"""Which analytics tabs a run has: by what it was asked for, by its manifest, and as files appear."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from gym_gui.testing import RunningDaemon
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.presenters.run_files import scan_artifacts
from gym_gui.ui.presenters.workers.registry import TAB_ORDER, PresenterRegistry
from gym_gui.ui.run_page.page import AnalyticsTabManager, RunPage
from gym_gui.ui.runs.actions import RunActions
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.sweep_settings import WORKER_TYPE as SWEEP
from PySide6.QtWidgets import QMainWindow

WAIT = 30_000


def run_of(folder: Path, status: str = "EXEC", **extras: object) -> pb.Run:
    return pb.Run(
        run_id="01ARZ3NDEKTSV4RRFFQ69G5FAV", run_dir=str(folder), status=status, extras_json=json.dumps(extras)
    )


@pytest.fixture
def manager(background: Background) -> AnalyticsTabManager:
    return AnalyticsTabManager(background)


@pytest.fixture
def page(qtbot, themed, link: DaemonLink, background: Background) -> Iterator[RunPage]:
    window = QMainWindow()
    qtbot.addWidget(window)
    window.resize(1280, 800)
    page = RunPage(link, background, RunActions(link, background, window), PresenterRegistry())
    window.setCentralWidget(page)
    window.show()
    yield page
    page.hide()


def names(manager: AnalyticsTabManager, run: pb.Run) -> set[str]:
    return set(manager.tabs_of(run, TAB_ORDER)) & {"charts", "tensorboard", "wandb", "optuna"}


def test_what_was_asked_for_has_its_tab_at_once(manager: AnalyticsTabManager, tmp_path: Path) -> None:
    assert names(manager, run_of(tmp_path)) == {"charts", "tensorboard"}
    assert names(manager, run_of(tmp_path, track_wandb=True)) == {"charts", "tensorboard", "wandb"}
    assert "wandb" in names(manager, run_of(tmp_path, algo_params={"track": True}))
    assert "wandb" not in names(manager, run_of(tmp_path, track_wandb=False))
    sweep = run_of(tmp_path)
    sweep.worker_type = SWEEP
    assert "optuna" in names(manager, sweep)
    assert "optuna" in names(manager, run_of(tmp_path, optuna_db="study.sqlite3"))


def test_lanes_decide_what_is_named_at_all() -> None:
    presenters = PresenterRegistry()
    assert {"charts", "tensorboard", "wandb", "optuna"} <= set(presenters.get("cleanrl").tabs())
    assert {"charts", "tensorboard", "wandb", "optuna"} <= set(presenters.get("llm").tabs())
    assert {"charts", "tensorboard", "wandb", "optuna"} & set(presenters.get("human").tabs()) == {"charts"}


def test_the_manifest_and_the_files_are_followed(qtbot, manager: AnalyticsTabManager, tmp_path: Path) -> None:
    run = run_of(tmp_path)
    manager.watch(run)
    assert manager.found is None  # there is no viewer
    with qtbot.waitSignal(manager.changed, timeout=WAIT):
        manager.set_seen(True)
    assert manager.found.reading.problem is not None
    manifest = AnalyticsManifest(run.run_id, optuna_db_path="study.journal")
    with qtbot.waitSignal(manager.changed, timeout=WAIT):
        manifest.write(tmp_path / "analytics.json")
    assert names(manager, run) == {"charts", "tensorboard", "optuna"}
    with qtbot.waitSignal(manager.changed, timeout=WAIT):
        (tmp_path / "wandb" / "offline-run-20260101_000000-abc").mkdir(parents=True)
    assert names(manager, run) == {"charts", "tensorboard", "wandb", "optuna"}
    manager.set_seen(False)
    assert not manager._clock.isActive()


def test_another_run_starts_from_nothing(qtbot, manager: AnalyticsTabManager, tmp_path: Path) -> None:
    (tmp_path / "one" / "wandb" / "run-20260101_000000-abc").mkdir(parents=True)
    first = run_of(tmp_path / "one", status="TERM")
    manager.watch(first)
    with qtbot.waitSignal(manager.changed, timeout=WAIT):
        manager.set_seen(True)
    assert "wandb" in names(manager, first)
    assert not manager._clock.isActive()  # a finished run leaves nothing more
    other = pb.Run(run_id="01ARZ3NDEKTSV4RRFFQ69G5FAW", run_dir=str(tmp_path / "two"), status="TERM")
    manager.watch(other)
    assert "wandb" not in names(manager, other)


def test_an_unchanged_manifest_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "analytics.json"
    AnalyticsManifest("01ARZ3NDEKTSV4RRFFQ69G5FAV", algo="ppo").write(path)
    first = scan_artifacts(str(tmp_path))
    second = scan_artifacts(str(tmp_path), first)
    assert second == first
    assert second.reading is first.reading
    path.write_text("{broken")
    third = scan_artifacts(str(tmp_path), second)
    assert third.manifest is None
    assert third.reading.problem is not None
    assert scan_artifacts("").manifest is None


def test_a_tab_appears_on_the_page_when_its_files_do(qtbot, page: RunPage, window_daemon: RunningDaemon) -> None:
    run = window_daemon.submit(timesteps=10**9)
    window_daemon.wait_for(run.run_id, "EXEC")
    page.show_run(run.run_id)
    qtbot.waitUntil(lambda: page.run is not None and page.analytics.found is not None, timeout=WAIT)
    assert {"charts", "tensorboard"} <= set(page.tab_names())
    assert not {"wandb", "optuna"} & set(page.tab_names())
    page.open_tab("story")
    (Path(page.run.run_dir) / "wandb" / "run-20260101_000000-abc").mkdir(parents=True)
    qtbot.waitUntil(lambda: "wandb" in page.tab_names(), timeout=WAIT)
    assert page.tab_names() == [name for name in TAB_ORDER if name in page.tab_names()]
    assert page.tab_names()[page.tabs.currentIndex()] == "story"  # the tab that the user reads stays in front
    window_daemon.client.cancel(run.run_id)


def test_a_tab_that_a_run_lacks_comes_back_with_the_next_run(
    qtbot, page: RunPage, window_daemon: RunningDaemon
) -> None:
    with_wandb, without = (window_daemon.submit(timesteps=20, seed=seed) for seed in (1, 2))
    for run in (with_wandb, without):
        window_daemon.wait_for(run.run_id, "TERM")
    folder = Path(window_daemon.client.get(with_wandb.run_id).run_dir) / "wandb" / "offline-run-20260101_000000-abc"
    folder.mkdir(parents=True)

    def show(run_id: str) -> str:
        page.show_run(run_id)
        qtbot.waitUntil(lambda: page.run is not None and page.run.run_id == run_id, timeout=WAIT)
        qtbot.waitUntil(lambda: page.analytics.found is not None, timeout=WAIT)
        return page.tab_names()[page.tabs.currentIndex()]

    show(with_wandb.run_id)
    page.open_tab("wandb")
    assert show(without.run_id) != "wandb"
    assert show(with_wandb.run_id) == "wandb"
