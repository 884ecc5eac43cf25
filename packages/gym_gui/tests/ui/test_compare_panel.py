"""The Compare page over a real daemon: figures, verdicts, how likely one is better, charts of the same runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gym_gui.services.analytics.comparison import Verdict, compare_curves
from gym_gui.services.analytics.curves import Curve
from gym_gui.testing import RunningDaemon, blocking_calls, curve_config, install_curve_writer
from gym_gui.ui.compare.comparison import Compared, ComparisonTable, ComparisonView, rows_of
from gym_gui.ui.compare.panel import ComparePanel
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.runs.allowed_actions import RunAction
from gym_gui.ui.shell.main_window import MainWindow
from gym_gui.ui.shell.workspaces import COMPARE
from gym_gui.ui.theme import Appearance
from gym_gui.ui.widgets.banner import Banner
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QAbstractSlider,
    QComboBox,
    QFileDialog,
    QHeaderView,
    QLineEdit,
    QPushButton,
    QScrollBar,
    QWidget,
)

QUICK = {"heartbeat_s": 0.2, "grace_s": 2, "silence_s": 20, "handshake_s": 60, "min_free_disk_mb": 0}
RETURN = "charts/episodic_return"
ENVIRONMENT = "CartPole-v1"
GOOD, POOR = 200.0, 5.0
"""What curves rise to; a random policy reaches about 22 in that environment"""


@pytest.fixture(scope="module")
def window_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    folder = tmp_path_factory.mktemp("compare")
    daemon = RunningDaemon(Home(folder / "home"), folder / "config", settings=QUICK)
    install_curve_writer(daemon.home)
    with daemon:
        yield daemon


@pytest.fixture(scope="module")
def finished(window_daemon: RunningDaemon) -> list[pb.Run]:
    """Two configurations, two seeds each: one that learns and one that does not."""
    runs = [
        window_daemon.client.submit(curve_config(level=level, seed=seed, env_id=ENVIRONMENT)).run
        for level in (GOOD, POOR)
        for seed in (1, 2)
    ]
    return [window_daemon.wait_for(run.run_id) for run in runs]


@pytest.fixture
def panel(qtbot, themed, link: DaemonLink) -> Iterator[ComparePanel]:
    panel = ComparePanel(link, link.background, None)
    qtbot.addWidget(panel)
    panel.resize(1280, 760)
    panel.show()
    yield panel
    panel.hide()


def compare(qtbot, panel: ComparePanel, runs: list[pb.Run]) -> ComparisonTable:
    panel.compare([run.run_id for run in runs])
    return wait_for_runs(qtbot, panel, len(runs))


def wait_for_runs(qtbot, panel: ComparePanel, number: int) -> ComparisonTable:
    def is_there() -> None:  # assertions, so that a failure names what is missing
        values, board = panel.values, panel.board
        assert len(panel.runs) == number, panel.banner.text
        assert values is not None
        assert board is not None
        assert values.compared is not None
        assert len(values.compared.comparison.runs) == number, (panel.link.is_connected, values.feed.is_complete)
        assert board.feed.is_complete
        assert board.is_settled
        assert {run_id for entry in board.entries().values() for run_id in entry.run_ids} == set(panel.runs)

    qtbot.waitUntil(is_there, timeout=30_000)
    assert panel.values is not None
    return panel.values.table


def cells(table: ComparisonTable, row: int) -> list[str]:
    model = table.table
    return [str(model.data(model.index(row, column))) for column in range(model.columnCount())]


def test_groups_stand_side_by_side_with_what_they_reached(qtbot, panel: ComparePanel, finished) -> None:
    table = compare(qtbot, panel, finished)
    model = table.table
    titles = [model.headerData(column, Qt.Orientation.Horizontal) for column in range(model.columnCount())]
    assert titles == ["Runs", "Verdict", "Final", "Best", "AUC", "Steps/s", "Time", "level"]
    assert table.table.rowCount() == 2
    assert "2 seeds" in cells(table, 0)[0]
    assert cells(table, 0)[-1] == "200"
    final = panel.values.compared.comparison.groups[0].final
    assert 150 < final.value < 200
    assert "±" in cells(table, 0)[2]
    assert panel.values.pairs.rowCount() == 1
    assert panel.values.pairs.item(0, 2).text() == "100 %"
    assert model.color_of(model.rows[0].run_ids) is not None
    assert panel._count.text() == f"4 runs · {ENVIRONMENT}"


def test_each_run_has_a_row_when_they_are_not_grouped(qtbot, panel: ComparePanel, finished) -> None:
    table = compare(qtbot, panel, finished)
    panel.board.controls.groups.setCurrentIndex(0)
    qtbot.waitUntil(lambda: table.table.rowCount() == 4)
    table.sortByColumn(2, Qt.SortOrder.DescendingOrder)
    assert "level 200" in cells(table, 0)[0]
    table.sortByColumn(2, Qt.SortOrder.AscendingOrder)
    assert "level 5" in cells(table, 0)[0]
    qtbot.waitUntil(lambda: len(panel.board.entries()) == 4, timeout=10_000)
    table.selectRow(0)
    chosen = table.selected_runs()
    assert panel.board.legend.selected == chosen[0]
    panel.findChild(QPushButton, "compare_copy").click()
    lines = QGuiApplication.clipboard().text().splitlines()
    assert (len(lines), lines[0].split("\t")[2]) == (5, "Final")
    with qtbot.waitSignal(panel.run_opened, timeout=5_000) as opened:
        table.doubleClicked.emit(table.model().index(0, 0))
    assert opened.args == list(chosen)
    panel.findChild(QPushButton, "compare_remove").click()
    wait_for_runs(qtbot, panel, 3)
    assert chosen[0] not in panel.runs


def test_runs_are_added_from_the_selection_and_cleared(qtbot, panel: ComparePanel, finished, link) -> None:
    compare(qtbot, panel, finished[:2])
    panel.findChild(QPushButton, "compare_add_selection").click()
    assert "No run is selected" in panel.banner.text
    panel.selected_runs = lambda: finished[1:3]
    panel.findChild(QPushButton, "compare_add_selection").click()
    wait_for_runs(qtbot, panel, 3)
    again = ComparePanel(link, link.background, None)
    qtbot.addWidget(again)
    qtbot.waitUntil(lambda: list(again.runs) == list(panel.runs), timeout=10_000)  # the last comparison is remembered
    other = ComparePanel(link, link.background, None)
    qtbot.addWidget(other)
    other.compare([finished[3].run_id])  # what was remembered does not come in between
    qtbot.waitUntil(lambda: bool(other.runs), timeout=10_000)
    qtbot.wait(200)
    assert list(other.runs) == [finished[3].run_id]
    panel.findChild(QPushButton, "compare_clear").click()
    assert panel._pages.currentIndex() == 0
    assert not panel.runs


def test_whether_it_learned_is_reported_against_a_measured_random_policy(qtbot, panel, finished, window_daemon) -> None:
    table = compare(qtbot, panel, finished)
    assert [row.verdict for row in table.table.rows] == [Verdict.NO_BASELINE, Verdict.NO_BASELINE]
    banner: Banner = panel.values.banner
    assert ENVIRONMENT in banner.text
    banner.findChild(QAbstractButton, "banner_action").click()
    qtbot.waitUntil(lambda: table.table.rows[0].verdict is Verdict.LEARNED, timeout=120_000)
    assert table.table.rows[1].verdict is Verdict.LEARNED_NOTHING
    assert [cells(table, row)[1] for row in (0, 1)] == ["✓ learned", "✗ learned nothing"]  # a sign and words
    assert not banner.text
    kept = [run for run in window_daemon.client.list(include_archived=True).runs if "baseline" in run.tags]
    assert [(run.env_id, run.archived) for run in kept] == [(ENVIRONMENT, True)]


def test_a_run_that_is_deleted_elsewhere_leaves_the_page(qtbot, panel, finished, window_daemon) -> None:
    extra = window_daemon.client.submit(curve_config(points=50, seed=9, env_id=ENVIRONMENT)).run
    extra = window_daemon.wait_for(extra.run_id)
    compare(qtbot, panel, [*finished, extra])
    window_daemon.client.delete(extra.run_id)
    wait_for_runs(qtbot, panel, 4)


def test_runs_that_were_added_while_the_daemon_was_away_are_compared_when_it_is_back(
    qtbot, panel: ComparePanel, finished, monkeypatch
) -> None:
    compare(qtbot, panel, finished)  # their curves are loaded
    compare(qtbot, panel, finished[:2])
    with monkeypatch.context() as away:
        away.setattr(DaemonLink, "is_connected", property(lambda link: False))
        panel.add_runs(finished)
    wait_for_runs(qtbot, panel, 4)


def test_no_slot_reads_a_file_or_waits_for_anything(qtbot, panel: ComparePanel, finished) -> None:
    compare(qtbot, panel, finished)  # everything is imported and warm
    panel.clear()
    with blocking_calls() as calls:
        compare(qtbot, panel, finished)
        panel.board.controls.groups.setCurrentIndex(0)
        qtbot.waitUntil(lambda: len(panel.board.entries()) == 4, timeout=10_000)
        qtbot.wait(200)
    assert not calls


def test_the_list_of_runs_leads_here_and_a_page_is_written(qtbot, themed, link, finished, tmp_path: Path) -> None:
    window = MainWindow(link, link.background, None, Appearance(themed))
    qtbot.addWidget(window)
    window.resize(1280, 800)
    window.show()
    ids = [run.run_id for run in finished]
    qtbot.waitUntil(lambda: all(window.runs_panel.model.position_of(run_id) is not None for run_id in ids))
    window.runs_panel.select(ids[:2])
    window.run_actions.do(RunAction.COMPARE, window.runs_panel.selected_runs())
    assert window.workspace == COMPARE
    panel = window.findChild(ComparePanel)
    wait_for_runs(qtbot, panel, 2)
    assert nameless(panel) == []
    window.runs_panel.select(ids[1:3])
    panel.add_selection()
    wait_for_runs(qtbot, panel, 3)
    window.run_actions.reports.opens_pages = False
    panel.findChild(QPushButton, "compare_report").click()
    dialog = window.findChild(QFileDialog, "report_dialog")
    with qtbot.waitSignals([window.run_actions.reported] * 2, timeout=30_000):
        dialog.fileSelected.emit(str(tmp_path / "page"))
    dialog.close()
    page = (tmp_path / "page.html").read_text()
    assert "<svg" in page
    assert all(run_id in page for run_id in ids[:3])
    window.close()


def test_configurations_are_compared_over_several_environments(qtbot, themed, link: DaemonLink) -> None:
    runs, curves = [], {}
    for algo, level in (("ppo", 100.0), ("dqn", 10.0)):
        for env_id in ("CartPole-v1", "Acrobot-v1"):
            for seed in (1, 2):
                run = pb.Run(run_id=f"{algo}{env_id}{seed}", status="TERM", algo=algo, env_id=env_id, seed=seed)
                values = np.full(50, level + seed)
                runs.append(run)
                curves[run.run_id] = {RETURN: Curve(run.run_id, RETURN, np.arange(50.0), np.arange(50.0), values, 50)}
    comparison = compare_curves(runs, curves)
    view = ComparisonView(link)
    qtbot.addWidget(view)
    view._show(Compared(comparison, [], rows_of(comparison, runs, grouped=True), is_thinned=True))
    messages = [[view.pairs.item(row, column).text() for column in range(3)] for row in range(view.pairs.rowCount())]
    assert ["ppo, over 2 environments", "dqn", "100 %"] in messages
    assert len(messages) == 3
    assert "mosaic compare" in view.progress.text()
    assert "probability of 100 %" in view.pairs.item(0, 0).toolTip()


def test_facts_that_workers_report_have_columns_that_sort(qtbot, themed, link: DaemonLink) -> None:
    told = {"clever": 900, "clumsy": 12_345}
    runs = [
        pb.Run(
            run_id=f"RUN{number:023}",
            number=number,
            algo="llm",
            env_id="E",
            extras_json=json.dumps({"algo_params": {"model": model}}),
            result_json=json.dumps({"total_tokens": tokens}),
        )
        for number, (model, tokens) in enumerate(told.items())
    ]
    runs.append(pb.Run(run_id=f"RUN{9:023}", number=9, algo="ppo", env_id="E"))
    comparison = compare_curves(runs, {run.run_id: {} for run in runs})
    for grouped in (False, True):
        table = ComparisonTable()
        qtbot.addWidget(table)
        table.show_rows(rows_of(comparison, runs, grouped=grouped))
        model = table.table
        titles = [model.headerData(column, Qt.Orientation.Horizontal) for column in range(model.columnCount())]
        assert titles[-2:] == ["Tokens", "model"]
        table.sortByColumn(len(titles) - 2, Qt.SortOrder.DescendingOrder)
        assert [cells(table, row)[-2:] for row in range(3)] == [["12.3k", "clumsy"], ["900", "clever"], ["–", "–"]]


def test_a_seed_that_was_trained_twice_counts_once_and_that_is_reported(qtbot, themed, link: DaemonLink) -> None:
    runs = [pb.Run(run_id=f"RUN{number:023}", number=number, algo="ppo", env_id="E", seed=1) for number in (1, 2)]
    steps = np.arange(50.0)
    curves = {run.run_id: {RETURN: Curve(run.run_id, RETURN, steps, steps, np.full(50, 71.1), 50)} for run in runs}
    comparison = compare_curves(runs, curves)
    view = ComparisonView(link)
    qtbot.addWidget(view)
    groups = rows_of(comparison, runs, grouped=True)
    view._show(Compared(comparison, rows_of(comparison, runs, grouped=False), groups, is_thinned=False))
    assert "with a repeated seed left out (00000001)" in view.progress.text()
    assert [row.run_ids for row in groups] == [tuple(run.run_id for run in runs)]  # what "Remove" removes
    assert "±" not in cells(view.table, 0)[2]


def nameless(top: QWidget) -> list[str]:
    """Controls without a name for a screen reader, or without one for a script."""
    kinds = (QAbstractButton, QComboBox, QLineEdit, QAbstractItemView, QAbstractSlider)
    found = [widget for kind in kinds for widget in top.findChildren(kind) if not isinstance(widget, QHeaderView)]
    own = [
        widget
        for widget in found
        if not widget.objectName().startswith(("qt_", "banner_action"))
        and not isinstance(widget.parent(), QComboBox | QAbstractItemView | QLineEdit)
        and not isinstance(widget, QScrollBar)
        and not widget.parent().inherits("QComboBoxPrivateContainer")
    ]
    return [f"{type(widget).__name__} {widget.objectName()}" for widget in own if not widget.accessibleName()]
