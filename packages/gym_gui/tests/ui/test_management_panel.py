"""The Management panel against a real daemon."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.local_daemon import running_record
from gym_gui.services.trainer.run_files import size_of_run
from gym_gui.testing import RunningDaemon, random_config
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink, LinkPhase
from gym_gui.ui.management.disk_use import DiskUse
from gym_gui.ui.management.panel import DISK, FILTERS, SETS, WORKERS, ManagementPanel
from gym_gui.ui.management.sets_table import SetsTable
from gym_gui.ui.runs.filtering import Facet, RunFilter
from gym_gui.ui.workers.requirement_sets import SetsJob
from mosaic_wire import env
from mosaic_wire.ids import new_run_id
from mosaic_wire.paths import Home
from PySide6.QtWidgets import QAbstractButton, QMessageBox, QPushButton, QWidget


@pytest.fixture
def panel(qtbot, themed, link: DaemonLink, window_daemon: RunningDaemon) -> ManagementPanel:
    panel = ManagementPanel(link, link.background, window_daemon.home)
    qtbot.addWidget(panel)
    panel.resize(1100, 700)
    panel.show()
    return panel


def answer(qtbot, widget: QWidget, button: str | None) -> QMessageBox:
    """Click a button of the question that is open (None: refuse)."""
    asked = [box for box in widget.findChildren(QMessageBox, "confirm") if box.isVisible()]
    assert asked, "nothing was asked"
    box = asked[-1]
    if button is None:
        box.reject()
    else:
        chosen = box.findChild(QAbstractButton, button)
        assert chosen is not None
        chosen.click()
    return box


# ---------------------------------------------------------------- the daemon


def test_it_reports_on_the_daemon(qtbot, panel: ManagementPanel, window_daemon: RunningDaemon) -> None:
    page = panel.show_page("daemon")
    qtbot.waitUntil(lambda: page._facts["pid"].text() == str(window_daemon.pid), timeout=20_000)
    assert page.state.text() == "The daemon runs"
    assert page._facts["home"].text() == str(window_daemon.home.root)
    qtbot.waitUntil(lambda: bool(page.log.toPlainText()), timeout=20_000)
    assert not page.start_button.isEnabled()
    assert page.stop_button.isEnabled()


@pytest.fixture
def own_daemon(
    qtbot, tmp_path: Path, background: Background, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[RunningDaemon, DaemonLink]]:
    """A daemon that may be stopped and started here; what the panel starts has the same settings."""
    daemon = RunningDaemon(Home(tmp_path / "home"), tmp_path / "config", settings={"min_free_disk_mb": 0})
    monkeypatch.setenv(env.MOSAIC_HOME, str(daemon.home.root))
    monkeypatch.setenv(env.MOSAIC_CONFIG_HOME, str(daemon.config_home))
    daemon.start()
    link = DaemonLink(lambda: TrainerClient.connect(daemon.home), background)
    link.start()
    yield daemon, link
    link.stop()
    daemon._disconnect()
    if running_record(daemon.home) is not None:
        with TrainerClient.connect(daemon.home) as client:
            daemon.end_runs()
            client.shutdown()
        daemon._disconnect()


def test_stop_start_and_restart(qtbot, themed, own_daemon: tuple[RunningDaemon, DaemonLink]) -> None:
    daemon, link = own_daemon
    panel = ManagementPanel(link, link.background, daemon.home)
    qtbot.addWidget(panel)
    panel.show()
    page = panel.show_page("daemon")
    qtbot.waitUntil(page.stop_button.isEnabled, timeout=30_000)
    run_id = daemon.submit(timesteps=10_000_000, steps_per_second=50).run_id
    daemon.wait_for(run_id, "EXEC")

    page.stop_button.click()
    answer(qtbot, panel, None)
    assert running_record(daemon.home) is not None  # refused: nothing happened

    page.stop_button.click()
    qtbot.waitUntil(lambda: page._health is not None and page._health.running == 1, timeout=30_000)
    answer(qtbot, panel, "confirm_yes")
    qtbot.waitUntil(lambda: "1 run keeps running" in page.banner.text, timeout=30_000)
    qtbot.waitUntil(lambda: link.state.phase is LinkPhase.LOST, timeout=30_000)
    assert running_record(daemon.home) is None
    assert page.state.text() == "The daemon does not respond"

    page.start_button.click()
    qtbot.waitUntil(lambda: link.state.phase is LinkPhase.CONNECTED, timeout=60_000)
    qtbot.waitUntil(page.restart_button.isEnabled, timeout=30_000)
    first = running_record(daemon.home).pid
    page.restart_button.click()
    qtbot.waitUntil(lambda: "was restarted" in page.banner.text, timeout=60_000)
    assert running_record(daemon.home).pid != first
    with TrainerClient.connect(daemon.home) as client:
        assert client.get(run_id).status == "EXEC"  # the run went on through all of it
    qtbot.waitUntil(lambda: link.state.phase is LinkPhase.CONNECTED, timeout=30_000)


def test_a_daemon_elsewhere_is_not_started_from_here(qtbot, themed, link: DaemonLink) -> None:
    panel = ManagementPanel(link, link.background, None)
    qtbot.addWidget(panel)
    panel.show()
    page = panel.show_page("daemon")
    qtbot.waitUntil(page.stop_button.isEnabled, timeout=20_000)
    assert not page.start_button.isEnabled()
    assert not page.restart_button.isEnabled()
    assert page.log.isHidden()
    sets = panel.show_page(SETS)
    qtbot.waitUntil(lambda: "atari" in sets._sets, timeout=60_000)  # its daemon lists them


# ---------------------------------------------------------------- workers, sets, filters


def test_workers_and_what_is_wrong_with_them(qtbot, panel: ManagementPanel, window_daemon: RunningDaemon) -> None:
    broken = window_daemon.home.workers / "broken"
    broken.mkdir(parents=True, exist_ok=True)
    (broken / "worker.json").write_text("{rubbish")
    page = panel.show_page(WORKERS)
    qtbot.waitUntil(lambda: page.table.row_of("random") is not None, timeout=60_000)
    page.refresh_button.click()
    qtbot.waitUntil(page.refresh_button.isEnabled, timeout=60_000)
    qtbot.waitUntil(lambda: page.table.row_of("broken") is not None, timeout=60_000)
    assert "broken" in page.banner.text
    row = page.table.row_of("broken")
    page.table.selectRow(row)
    assert page.table.item(row, 4).text() == "has a problem"
    assert "worker.json" in page.details.toPlainText()
    ready = page.table.row_of("random")
    assert page.table.item(ready, 4).text() == "ready"
    page.table.selectRow(ready)
    assert "Algorithms: random" in page.details.toPlainText()
    (broken / "worker.json").unlink()
    broken.rmdir()


def test_requirement_sets_are_listed(qtbot, panel: ManagementPanel) -> None:
    page = panel.show_page(SETS)
    qtbot.waitUntil(lambda: page.table.rowCount() > 5, timeout=60_000)
    qtbot.waitUntil(lambda: not page.banner.text, timeout=20_000)
    names = [page.table.item(row, 0).text() for row in range(page.table.rowCount())]
    assert {"atari", "minigrid", "base"} <= set(names)
    page.table.selectRow(names.index("base"))
    assert not page.install_button.isEnabled()
    assert not page.remove_button.isEnabled()
    missing = next(row for row in range(len(names)) if page.table.item(row, 1).text() == "not installed")
    page.table.selectRow(missing)
    assert page.install_button.isEnabled()
    assert not page.remove_button.isEnabled()
    assert page.table.item(missing, 2).text().startswith("~")


INSTALLER = """
import json, sys, time
from pathlib import Path
def tell(done): print(json.dumps({"event": "progress", "set": "atari", "phase": "fetching", "message": f"wheel {done}",
                                  "done": done, "total": 4}), flush=True)
tell(1)
while not Path(sys.argv[1]).exists():
    time.sleep(0.02)
tell(4)
print(json.dumps({"event": "result", "ready": True, "sets": []}))
"""


def start_job(page: SetsTable, tmp_path: Path) -> Path:
    script, gate = tmp_path / "installer.py", tmp_path / "gate"
    script.write_text(textwrap.dedent(INSTALLER))
    page.run_job(SetsJob([sys.executable, str(script), str(gate)], os.environ), ["atari"], "Installing atari…")
    return gate


def test_an_installation_shows_how_far_it_is(qtbot, panel: ManagementPanel, tmp_path: Path) -> None:
    page = panel.show_page(SETS)
    qtbot.waitUntil(lambda: page.table.rowCount() > 5, timeout=60_000)
    gate = start_job(page, tmp_path)
    qtbot.waitUntil(lambda: page.job_text.text() == "atari: fetching: wheel 1", timeout=30_000)
    assert (page.job_bar.value(), page.job_bar.maximum()) == (1, 4)
    assert page.job_line.isVisible()
    assert page.table.item(page.table.row_of("atari"), 1).text() == "fetching"
    assert not page.install_button.isEnabled()
    with qtbot.waitSignal(page.changed, timeout=30_000):
        gate.touch()
    assert not page.is_busy
    assert page.job_line.isHidden()
    qtbot.waitUntil(lambda: page.table.item(page.table.row_of("atari"), 1).text() != "fetching", timeout=60_000)
    assert page.banner.text == "Done: atari."  # said, and not wiped away by the look that followed


def test_an_installation_is_cancelled(qtbot, panel: ManagementPanel, tmp_path: Path) -> None:
    page = panel.show_page(SETS)
    qtbot.waitUntil(lambda: page.table.rowCount() > 5, timeout=60_000)
    start_job(page, tmp_path)
    qtbot.waitUntil(lambda: page.job_text.text() == "atari: fetching: wheel 1", timeout=30_000)
    page.cancel_button.click()
    qtbot.waitUntil(lambda: "Cancelled" in page.banner.text, timeout=30_000)
    assert not page.is_busy
    qtbot.waitUntil(page.refresh_button.isEnabled, timeout=60_000)


def test_a_window_that_goes_takes_the_installation_with_it(
    qtbot, link: DaemonLink, window_daemon: RunningDaemon, tmp_path: Path
) -> None:
    page = SetsTable(link, link.background, window_daemon.home)
    start_job(page, tmp_path)
    qtbot.waitUntil(lambda: page.job_text.text() == "atari: fetching: wheel 1", timeout=30_000)
    gone: list[bool] = []
    page.destroyed.connect(lambda: gone.append(True))
    page.deleteLater()
    qtbot.waitUntil(lambda: bool(gone), timeout=10_000)
    # The end of `background` waits for its threads, and the guard of every test finds a process that is left.


def test_saved_filters(qtbot, panel: ManagementPanel, window_daemon: RunningDaemon) -> None:
    window_daemon.client.save_filter("failures", {"outcomes": ["failed"], "include_archived": True, "text": ""})
    chosen = RunFilter(text="CartPole return>100", facets={Facet.STATUS: frozenset({"failed", "running"})})
    window_daemon.client.save_filter("mine", chosen.to_query())
    page = panel.show_page(FILTERS)
    qtbot.waitUntil(lambda: page.table.rowCount() == 2, timeout=20_000)
    assert page.table.item(1, 1).text() == "text: CartPole return>100; status: failed, running"
    assert [page.table.item(0, column).text() for column in (0, 1)] == [
        "failures",
        "outcomes: failed; include archived",
    ]
    page.table.selectRow(0)
    page.delete_button.click()
    answer(qtbot, panel, "confirm_yes")
    qtbot.waitUntil(lambda: page.table.rowCount() == 1, timeout=20_000)
    assert set(window_daemon.client.filters()) == {"mine"}


# ---------------------------------------------------------------- disk use


def test_what_could_go_goes_only_when_confirmed(
    qtbot, panel: ManagementPanel, window_daemon: RunningDaemon, link: DaemonLink
) -> None:
    home, client = window_daemon.home, window_daemon.client
    good = window_daemon.wait_for(client.submit(random_config(timesteps=40, checkpoint_every=10)).run.run_id)
    bad = window_daemon.wait_for(client.submit(random_config(timesteps=40, fail_at_step=3)).run.run_id)
    size_before = window_daemon.wait_for_run(good.run_id, lambda run: run.size_bytes).size_bytes
    nobodys = new_run_id()
    home.run_folder(nobodys).root.mkdir()
    (home.run_folder(nobodys).root / "data").write_bytes(b"x" * 5_000)
    os.utime(home.run_folder(nobodys).root, (0, 0))

    page = panel.show_page(DISK)
    assert isinstance(page, DiskUse)
    qtbot.waitUntil(lambda: page.suggestions.rowCount() >= 2, timeout=60_000)
    assert all(bad.run_id not in page.suggestions.key_of(row) for row in range(page.suggestions.rowCount()))
    page.older_than.setValue(0)
    with qtbot.waitSignal(page.surveyed, timeout=60_000):
        page.older_than.editingFinished.emit()
    assert f"run:{bad.run_id}" in [page.suggestions.key_of(row) for row in range(page.suggestions.rowCount())]

    def click(key: str, button: str | None) -> None:
        row = page.suggestions.row_of(key)
        assert row is not None, key
        widget = page.suggestions.cellWidget(row, 3)
        assert isinstance(widget, QPushButton)
        widget.click()
        answer(qtbot, panel, button)

    click(f"run:{bad.run_id}", None)
    assert client.get(bad.run_id).run_id == bad.run_id
    removed: list[tuple[str, ...]] = []
    link.runs_removed.connect(removed.append)
    for key in (f"run:{bad.run_id}", f"orphan:{nobodys}", f"checkpoints:{good.run_id}"):
        with qtbot.waitSignal(page.surveyed, timeout=60_000):
            click(key, "confirm_yes")
        qtbot.waitUntil(lambda: page.suggestions.row_of(key) is None, timeout=60_000)  # noqa: B023
        assert "freed" in page.banner.text
    qtbot.waitUntil(lambda: (bad.run_id,) in removed, timeout=20_000)
    assert not home.run_folder(bad.run_id).root.exists()
    assert not home.run_folder(nobodys).root.exists()
    checkpoints = sorted(path.name for path in home.run_folder(good.run_id).checkpoints.iterdir())
    assert checkpoints == ["step-40"]
    now = client.get(good.run_id)
    assert now.outcome == "completed"
    assert now.size_bytes == size_of_run(home, good.run_id) < size_before


def test_a_run_is_deleted_from_the_list_of_the_largest(
    qtbot, panel: ManagementPanel, window_daemon: RunningDaemon
) -> None:
    client = window_daemon.client
    over = window_daemon.wait_for(client.submit(random_config(timesteps=10)).run.run_id)
    going = window_daemon.wait_for(
        client.submit(random_config(timesteps=10_000_000, steps_per_second=50)).run.run_id, "EXEC"
    )
    page = panel.show_page(DISK)
    qtbot.waitUntil(lambda: page.runs.row_of(over.run_id) is not None, timeout=60_000)
    page.runs.selectRow(page.runs.row_of(going.run_id))
    assert not page.delete_run_button.isEnabled()  # it is not over
    page.runs.selectRow(page.runs.row_of(over.run_id))
    page.delete_run_button.click()
    answer(qtbot, panel, "confirm_yes")
    qtbot.waitUntil(lambda: page.runs.row_of(over.run_id) is None, timeout=60_000)
    client.cancel(going.run_id)
    window_daemon.wait_for(going.run_id)


def test_what_could_not_be_deleted_is_reported(qtbot, panel: ManagementPanel, window_daemon: RunningDaemon) -> None:
    client = window_daemon.client
    run = window_daemon.wait_for(client.submit(random_config(timesteps=10, fail_at_step=3)).run.run_id)
    page = panel.show_page(DISK)
    page.older_than.setValue(0)
    page.older_than.editingFinished.emit()
    qtbot.waitUntil(lambda: page.suggestions.row_of(f"run:{run.run_id}") is not None, timeout=60_000)
    client.delete(run.run_id)  # by another client, at the same time
    page.suggestions.selectRow(page.suggestions.row_of(f"run:{run.run_id}"))
    page.remove_button.click()
    answer(qtbot, panel, "confirm_yes")
    qtbot.waitUntil(lambda: run.run_id in page.banner.text, timeout=60_000)
