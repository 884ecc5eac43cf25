"""The Charts tab over a real daemon: any curve, other runs over it, groups, files, and a run that goes on."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest
from gym_gui.services.analytics.curves import Axis
from gym_gui.services.analytics.figure import Band
from gym_gui.testing import RunningDaemon, blocking_calls, curve_config, install_curve_writer
from gym_gui.ui.charts.board import ChartBoard
from gym_gui.ui.charts.tab import AddRunsDialog, ChartsTab
from gym_gui.ui.daemon_link import DaemonLink
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFileDialog, QPushButton, QToolButton

QUICK = {"heartbeat_s": 0.2, "grace_s": 2, "silence_s": 20, "handshake_s": 60, "min_free_disk_mb": 0}
RETURN, LOSS, SPEED = "charts/episodic_return", "losses/value_loss", "charts/SPS"
POINTS = 300


@pytest.fixture(scope="module")
def window_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    folder = tmp_path_factory.mktemp("charts-tab")
    daemon = RunningDaemon(Home(folder / "home"), folder / "config", settings=QUICK)
    install_curve_writer(daemon.home)
    with daemon:
        yield daemon


@pytest.fixture(scope="module")
def finished(window_daemon: RunningDaemon) -> list[pb.Run]:
    """Two configurations, two seeds each."""
    runs = [
        window_daemon.client.submit(curve_config(points=POINTS, level=level, seed=seed)).run
        for level in (100.0, 40.0)
        for seed in (1, 2)
    ]
    return [window_daemon.wait_for(run.run_id) for run in runs]


@pytest.fixture
def tab(qtbot, themed, link: DaemonLink) -> Iterator[ChartsTab]:
    tab = ChartsTab(link)
    qtbot.addWidget(tab)
    tab.resize(1200, 700)
    tab.show()
    yield tab
    tab.set_active(False)


def show(qtbot, tab: ChartsTab, run: pb.Run) -> ChartBoard:
    tab.show_run(run)
    tab.set_active(True)
    qtbot.waitUntil(lambda: tab.board is not None, timeout=20_000)
    board = tab.board
    assert board is not None
    settle(qtbot, board, lambda: RETURN in board.views)
    return board


def settle(qtbot, board: ChartBoard, holds) -> None:
    qtbot.waitUntil(lambda: holds() and board.is_settled, timeout=20_000)


def lines(board: ChartBoard, tag: str = RETURN) -> list[tuple[str, int]]:
    """Label and number of points of each line."""
    figure = board.figures.get(tag)
    return [(line.label, len(line.x)) for line in figure.lines] if figure is not None else []


def test_the_headlines_are_shown_at_once_and_other_curves_when_they_are_chosen(qtbot, tab, finished) -> None:
    board = show(qtbot, tab, finished[0])
    assert [points for _, points in lines(board)] == [POINTS]
    qtbot.waitUntil(lambda: {RETURN, LOSS, SPEED} <= set(board.tag_list.tags()), timeout=10_000)
    assert board.tag_list.checked() == [SPEED, RETURN, LOSS]
    board.show_tags([RETURN])
    settle(qtbot, board, lambda: set(board.views) == {RETURN})
    assert not board.legend.isVisible()  # one line needs none
    board.tag_list.search.setText("LOSS val")
    assert [item.text() for item in board.tag_list._items() if not item.isHidden()] == [LOSS]
    board.tag_list.search.returnPressed.emit()
    settle(qtbot, board, lambda: set(board.views) == {RETURN, LOSS} and lines(board, LOSS))
    assert lines(board, LOSS)[0][1] == POINTS
    board.tag_list.search.setText("")
    board.tag_list.list.findItems(RETURN, Qt.MatchFlag.MatchExactly)[0].setCheckState(Qt.CheckState.Unchecked)
    settle(qtbot, board, lambda: set(board.views) == {LOSS})


def test_axis_smoothing_and_logarithms_change_what_is_drawn_and_are_remembered(qtbot, tab, finished, link) -> None:
    board = show(qtbot, tab, finished[0])
    controls = board.controls
    controls.axis.setCurrentIndex(controls.axis.findData(Axis.TIME.value))
    settle(qtbot, board, lambda: board.figures[RETURN].x_label.startswith("time"))
    assert board.figures[RETURN].lines[0].x[0] == 0
    controls.axis.setCurrentIndex(controls.axis.findData(Axis.EPISODE.value))
    settle(qtbot, board, lambda: board.figures[RETURN].x_label == "episodes")
    assert board.figures[RETURN].lines[0].x[-1] == POINTS
    controls.amount.setValue(90)
    settle(qtbot, board, lambda: len(board.figures[RETURN].lines) == 2)
    faint, smooth = board.figures[RETURN].lines
    assert (faint.is_faint, smooth.is_faint) == (True, False)
    controls.log_x.setChecked(True)
    controls.kind.setCurrentIndex(1)
    settle(qtbot, board, lambda: board.figures[RETURN].log_x and "mean of" in board.figures[RETURN].note)
    board.show_tags([LOSS])
    again = ChartsTab(link)
    qtbot.addWidget(again)
    again.show_run(finished[0])
    again.set_active(True)
    qtbot.waitUntil(lambda: again.board is not None and LOSS in again.board.views, timeout=20_000)
    assert again.board is not None
    assert again.board.choice == board.choice
    assert again.board.choice.smoothing.kind == "window"
    again.set_active(False)


def test_other_runs_are_laid_over_and_grouped(qtbot, tab, finished: list[pb.Run]) -> None:
    board = show(qtbot, tab, finished[0])
    tab.chosen_runs = (finished[1].run_id, finished[0].run_id)
    tab.findChild(QPushButton, "charts_add_runs").click()
    dialog = tab.findChild(AddRunsDialog)
    qtbot.waitUntil(lambda: dialog.list.count() == 3, timeout=10_000)
    assert "(1)" in dialog.from_list.text()
    dialog.search.setText("to-40")
    assert dialog.list.count() == 2
    dialog.list.selectAll()
    dialog.add.click()
    settle(qtbot, board, lambda: len(lines(board)) == 3)
    assert board.legend.isVisible()
    tab.ask_for_runs()
    second = tab.findChildren(AddRunsDialog)[-1]
    qtbot.waitUntil(lambda: second.from_list.isVisible(), timeout=10_000)
    second.from_list.click()
    settle(qtbot, board, lambda: len(lines(board)) == 4)
    for band in (Band.STD, Band.CI, Band.IQM):
        board.controls.groups.setCurrentIndex(board.controls.groups.findData(band.value))
        settle(qtbot, board, lambda: len(lines(board)) == 2 and board._shown_choice.band is board.choice.band)
        drawn = board.figures[RETURN].lines
        if band is Band.STD:
            assert all(line.low is not None and (line.low <= line.y).all() for line in drawn)
        else:
            assert all(line.low is None for line in drawn), "an interval needs three seeds"
            assert "no interval of fewer than 3 seeds" in board.figures[RETURN].note
        assert all("2 seeds" in label for label, _ in lines(board))
    tab.findChild(QPushButton, "charts_clear_runs").click()
    settle(qtbot, board, lambda: len(lines(board)) == 1)
    assert tab.added == []


def test_one_place_is_read_out_in_every_chart_and_in_the_legend(qtbot, tab, finished: list[pb.Run]) -> None:
    board = show(qtbot, tab, finished[0])
    tab.set_added(finished[2:3])
    board.show_tags([RETURN, LOSS])
    settle(qtbot, board, lambda: len(board.views) == 2 and len(lines(board, LOSS)) == 2)
    board.views[LOSS].pointed_at.emit(1_000.0)
    assert all("step 1,000" in view._value.text() for view in board.views.values())
    model = board.legend.model
    assert [model.data(model.index(row, 1)) for row in range(2)] == ["0.001", "0.001"]
    board.legend.select(finished[2].run_id)
    assert all(view._selected == finished[2].run_id for view in board.views.values())
    board.views[LOSS].pointed_at.emit(None)


def test_what_is_shown_is_saved_as_image_and_as_data(qtbot, tab, finished: list[pb.Run], tmp_path: Path) -> None:
    board = show(qtbot, tab, finished[0])
    tab.set_added(finished[1:3])
    settle(qtbot, board, lambda: len(lines(board)) == 3)
    model = board.legend.model
    hidden = model.row_of(finished[2].run_id)
    model.setData(model.index(hidden, 0), Qt.CheckState.Unchecked, Qt.ItemDataRole.CheckStateRole)
    assert len(board.visible_figure(RETURN).lines) == 2
    button = board.views[RETURN].findChild(QToolButton, "chart_save")
    button.menu().actions()[0].triggered.emit()
    dialog = board.findChild(QFileDialog, "chart_save_dialog")
    dialog.fileSelected.emit(str(tmp_path / "chart.svg"))
    dialog.close()
    qtbot.waitUntil(lambda: "chart.svg" in board.banner.text, timeout=20_000)
    assert "seed 2" in (tmp_path / "chart.svg").read_text()
    board.export.save_data(RETURN, board.visible_runs(RETURN), tmp_path / "data.csv")
    qtbot.waitUntil(lambda: "600 points" in board.banner.text, timeout=20_000)
    with (tmp_path / "data.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert {row["run"] for row in rows} == {run.run_id for run in finished[:2]}
    assert len(rows) == 2 * POINTS
    board.export.save_data(RETURN, finished[:1], tmp_path / "data.parquet")
    qtbot.waitUntil(lambda: "data.parquet" in board.banner.text, timeout=20_000)
    assert (tmp_path / "data.parquet").read_bytes()[:4] == b"PAR1"
    board.export.save_image(board.visible_figure(RETURN), tmp_path / "missing" / "chart.png")
    qtbot.waitUntil(lambda: "not saved" in board.banner.text, timeout=20_000)
    assert board.banner.tone == "bad"


def test_a_live_run_is_followed_while_it_is_viewed(qtbot, tab, window_daemon: RunningDaemon) -> None:
    config = curve_config(points=2_000, seed=7, endless=True, pause_s=0.01)
    run = window_daemon.client.submit(config).run
    tab.show_run(run)
    tab.set_active(True)
    run = window_daemon.wait_for(run.run_id, "EXEC")
    tab.refresh(run)

    def length() -> int:
        shown = lines(tab.board) if tab.board is not None else []
        return shown[0][1] if shown else 0

    qtbot.waitUntil(lambda: length() > 10, timeout=30_000)
    assert tab.board is not None
    assert tab.board.feed.is_following
    before = length()
    qtbot.waitUntil(lambda: length() > before + 20, timeout=30_000)
    tab.set_active(False)
    assert not tab.board.feed.is_following
    qtbot.wait(500)
    at_rest = length()
    qtbot.wait(700)
    assert length() == at_rest
    tab.set_active(True)
    qtbot.waitUntil(lambda: length() > at_rest, timeout=30_000)
    window_daemon.client.cancel(run.run_id)
    run = window_daemon.wait_for(run.run_id)
    tab.refresh(run)
    qtbot.waitUntil(lambda: not tab.board.feed.is_following and tab.board.feed.is_complete, timeout=20_000)
    total = {tag.tag: tag.points for tag in window_daemon.client.metric_tags(run.run_id)}[RETURN]
    qtbot.waitUntil(lambda: length() == total, timeout=20_000)


def test_a_run_without_curves_reports_it_and_one_in_the_queue_too(qtbot, tab, window_daemon: RunningDaemon) -> None:
    run = window_daemon.wait_for(window_daemon.submit(timesteps=5).run_id)
    tab.show_run(pb.Run(run_id=run.run_id, status="INIT", env_id="none"))
    tab.set_active(True)
    qtbot.waitUntil(lambda: tab.board is not None and "queue" in tab.board._message.text(), timeout=20_000)
    tab.show_run(run)
    assert tab.board is not None
    tab.board.show_tags(["nobody/has_this"])
    qtbot.waitUntil(lambda: "no such curves" in tab.board._message.text(), timeout=20_000)


def test_no_slot_reads_a_file_or_waits_for_anything(qtbot, tab, finished: list[pb.Run]) -> None:
    show(qtbot, tab, finished[0])  # everything is imported and warm
    tab.set_active(False)
    with blocking_calls() as calls:
        tab.show_run(finished[1])
        tab.set_active(True)
        board = tab.board
        assert board is not None
        tab.set_added([finished[0], *finished[2:]])
        board.show_tags([RETURN, LOSS, SPEED])
        settle(qtbot, board, lambda: len(board.views) == 3 and len(lines(board, SPEED)) == 4)
        board.controls.groups.setCurrentIndex(2)
        settle(qtbot, board, lambda: len(lines(board)) == 2)
        qtbot.wait(200)
    assert not calls
