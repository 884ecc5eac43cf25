"""The table's model: whatever comes in whatever order, it shows what it should, and nothing jumps."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from gym_gui.ui.runs import grouping
from gym_gui.ui.runs.filtering import Facet, RunFilter
from gym_gui.ui.runs.grouping import Group
from gym_gui.ui.runs.model import RunsModel
from gym_gui.ui.runs.rows import LIVE_COLUMNS, RunColumn, RunRow, in_order
from gym_gui.ui.runs.view import RunsView
from mosaic_wire.ids import new_run_id
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QModelIndex, Qt
from PySide6.QtTest import QAbstractItemModelTester

DESCENDING, ASCENDING = Qt.SortOrder.DescendingOrder, Qt.SortOrder.AscendingOrder


def a_run(number: int, **fields: Any) -> pb.Run:
    usual = {
        "run_id": new_run_id(),
        "number": number,
        "status": "EXEC",
        "name": f"run {number:03}",
        "algo": "ppo",
        "env_id": "CartPole-v1",
        "seed": number,
        "created_at": float(number),
        "started_at": float(number),
        "total": 1000,
    }
    return pb.Run(**{**usual, **fields})


def changed(run: pb.Run, **fields: Any) -> pb.Run:
    newer = pb.Run()
    newer.CopyFrom(run)
    for name, value in fields.items():
        setattr(newer, name, value)
    return newer


@pytest.fixture
def model(qapp: object) -> RunsModel:
    return RunsModel()


@pytest.fixture
def watched(model: RunsModel) -> Iterator[None]:
    """Qt's own checks look at every signal of the model: one too many or too few fails the test."""
    tester = QAbstractItemModelTester(model, QAbstractItemModelTester.FailureReportingMode.Fatal)
    yield
    tester.deleteLater()


@pytest.fixture
def view(qtbot, themed: object, model: RunsModel) -> RunsView:
    view = RunsView(model)
    qtbot.addWidget(view)
    view.resize(900, 300)
    view.reset_widths()
    view.setSortingEnabled(True)
    view.sortByColumn(RunColumn.STARTED, DESCENDING)
    view.show()
    return view


def shown(model: RunsModel) -> list[str]:
    return [model.index(row, RunColumn.NAME).data() for row in range(model.rowCount())]


def test_the_newest_run_stands_first(model: RunsModel) -> None:
    model.load([a_run(1), a_run(3), a_run(2)])
    assert shown(model) == ["run 003", "run 002", "run 001"]


def test_equal_runs_stand_newest_first(model: RunsModel) -> None:
    model.load([a_run(number, episodic_return=1.0) for number in (1, 2, 3)])
    model.sort(RunColumn.RETURN, ASCENDING)
    assert shown(model) == ["run 003", "run 002", "run 001"]


@pytest.mark.usefixtures("watched")
def test_a_new_run_is_inserted_and_a_deleted_one_removed_without_a_fresh_start(qtbot, model: RunsModel) -> None:
    runs = [a_run(number) for number in range(1, 30)]
    model.load(runs)
    resets: list[int] = []
    model.modelReset.connect(lambda: resets.append(1))
    with qtbot.waitSignal(model.rowsInserted, timeout=5_000):
        model.update([a_run(99)])
    assert shown(model)[0] == "run 099"
    with qtbot.waitSignal(model.rowsInserted, timeout=5_000):
        model.update([a_run(100)])
    assert shown(model)[0] == "run 100"
    model.remove([model.entry_at(0).entry_id])
    assert shown(model)[0] == "run 099"
    with qtbot.waitSignal(model.rowsRemoved, timeout=5_000):
        model.remove([runs[3].run_id, "nobody"])
    assert "run 004" not in shown(model)
    assert resets == []


def test_updates_of_a_run_touch_its_cells_only(model: RunsModel) -> None:
    runs = [a_run(number) for number in range(1, 6)]
    model.load(runs)
    touched: list[tuple[int, int, int, int]] = []
    model.dataChanged.connect(lambda one, other: touched.append((one.row(), one.column(), other.row(), other.column())))
    model.flush()  # what comes soon after one waits for the next
    model.update([changed(runs[1], step=500)])
    model.update([changed(runs[1], step=501)])
    assert touched == []
    model.flush()
    row = shown(model).index("run 002")
    assert touched == [(row, LIVE_COLUMNS[0], row, LIVE_COLUMNS[-1])]
    assert model.index(row, RunColumn.PROGRESS).data() == "50 %"


def test_rows_change_places_only_when_they_settle_and_not_under_the_pointer(model: RunsModel) -> None:
    runs = [a_run(number, episodic_return=float(number)) for number in (1, 2, 3)]
    model.load(runs)
    model.sort(RunColumn.RETURN, DESCENDING)
    model.update([changed(runs[0], episodic_return=99.0)])
    model.flush()
    assert shown(model) == ["run 003", "run 002", "run 001"]
    model.is_held = True
    model.settle()
    assert shown(model) == ["run 003", "run 002", "run 001"]
    model.is_held = False
    model.settle()
    assert shown(model) == ["run 001", "run 003", "run 002"]


def test_a_run_that_no_longer_fits_the_filter_leaves(model: RunsModel) -> None:
    runs = [a_run(1), a_run(2)]
    model.load(runs)
    model.set_filter(RunFilter("status:running"))
    model.update([changed(runs[0], status="TERM", outcome="completed")])
    model.flush()
    model.settle()
    assert shown(model) == ["run 002"]


def test_counts_are_reported(model: RunsModel) -> None:
    reported: list[tuple[int, int]] = []
    model.counts_changed.connect(lambda *counts: reported.append(counts))
    model.load([a_run(1), a_run(2, archived=True, status="TERM"), a_run(3)])
    model.set_filter(RunFilter("001"))
    model.set_filter(RunFilter("", show_archived=True))
    assert reported == [(2, 2), (1, 2), (3, 3)]
    assert model.facet_counts(Facet.ALGORITHM) == {"ppo": 3}


@pytest.mark.usefixtures("watched")
def test_groups_open_and_close_and_stand_for_their_runs(model: RunsModel) -> None:
    runs = [a_run(number) for number in (1, 2, 3)] + [a_run(9, algo="dqn")]
    model.load(runs)
    model.set_grouped(True)
    assert shown(model) == ["run 009", "ppo · CartPole-v1", "run 003", "run 002", "run 001"]
    group = model.entry_at(1)
    assert isinstance(group, Group)
    model.set_open(group, False)
    assert shown(model) == ["run 009", "ppo · CartPole-v1"]
    assert len(model.runs_at([1])) == 3
    model.update([changed(runs[0], episodic_return=5.0)])
    model.flush()
    assert model.index(1, RunColumn.RETURN).data() == "5"
    model.settle()
    assert shown(model) == ["run 009", "ppo · CartPole-v1"]  # it stays closed
    model.set_grouped(False)
    assert len(shown(model)) == 4


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_it_shows_what_a_fresh_start_would_show(model: RunsModel, view: RunsView, seed: int) -> None:
    rng = random.Random(seed)
    runs: dict[str, pb.Run] = {}

    def add() -> None:
        new = [
            a_run(len(runs) + at + rng.randrange(900), episodic_return=rng.random())
            for at in range(rng.randrange(1, 30))
        ]
        runs.update({run.run_id: run for run in new})
        model.update(new)

    def change() -> None:
        for run_id in rng.sample(sorted(runs), min(len(runs), 5)):
            runs[run_id] = changed(runs[run_id], episodic_return=rng.random(), status=rng.choice(["EXEC", "PAUSE"]))
            model.update([runs[run_id]])

    def remove() -> None:
        gone = rng.sample(sorted(runs), min(len(runs), 3))
        for run_id in gone:
            del runs[run_id]
        model.remove(gone)

    def filter_() -> None:
        model.set_filter(RunFilter(rng.choice(["", "1", "status:running", "run -2", "nothing at all"])))

    handlers = [
        add,
        change,
        change,
        remove,
        filter_,
        model.flush,
        model.settle,
        lambda: model.sort(rng.choice(list(RunColumn)), rng.choice([ASCENDING, DESCENDING])),
        lambda: model.set_grouped(rng.random() < 0.5),
        lambda: model.load(runs.values()),
        lambda: view.selectRow(rng.randrange(max(1, model.rowCount()))),
    ]
    for _ in range(60):
        rng.choice(handlers)()
    model.flush()
    model.settle()
    newest_first = sorted(map(RunRow, runs.values()), key=lambda row: row.run.number, reverse=True)
    descending = model.sort_order == DESCENDING
    rows = model.filter.fitting(in_order(newest_first, model.sort_column, descending=descending))
    if model.is_grouped:
        expected = [
            entry.entry_id
            for entry in grouping.arranged(rows, model.sort_column, descending=descending, is_open=lambda _: True)
        ]
    else:
        expected = [row.entry_id for row in rows]
    actual = [model.entry_at(position).entry_id for position in range(model.rowCount())]
    if model.sort_column is RunColumn.DURATION:  # time goes on while we look
        assert sorted(actual) == sorted(expected)
    else:
        assert actual == expected


# ------------------------------------------------------------------ the view


def ids_of(view: RunsView) -> list[str]:
    return [run.name for run in view.runs_model.runs_at(view.selected_positions())]


def test_selection_survives_updates_sorting_filter_and_a_new_connection(model: RunsModel, view: RunsView) -> None:
    runs = [a_run(number, episodic_return=float(number)) for number in range(1, 101)]
    model.load(runs)
    view.select_entries([runs[9].run_id, runs[49].run_id], current=runs[9].run_id)
    reported: list[list[str]] = []
    view.selected_ids_changed.connect(lambda: reported.append(ids_of(view)))
    view.sortByColumn(RunColumn.RETURN, ASCENDING)
    assert ids_of(view) == ["run 010", "run 050"]
    model.update([a_run(200), changed(runs[9], episodic_return=1000.0)])
    model.flush()
    model.settle()
    assert set(ids_of(view)) == {"run 010", "run 050"}
    model.load(runs)
    assert set(ids_of(view)) == {"run 010", "run 050"}
    assert model.entry_at(view.currentIndex().row()).entry_id == runs[9].run_id
    model.set_filter(RunFilter("050"))
    assert ids_of(view) == ["run 050"]
    assert reported[-1] == ["run 050"]


def test_the_row_at_the_top_stays_there_while_new_runs_arrive(model: RunsModel, view: RunsView) -> None:
    model.load([a_run(number) for number in range(1, 501)])
    view.bring_into_view(250)
    assert view.rowAt(0) > 100
    before = model.entry_at(view.rowAt(0)).entry_id
    for number in range(600, 620):
        model.update([a_run(number)])
        model.flush()
    assert model.entry_at(view.rowAt(0)).entry_id == before
    view.verticalScrollBar().setValue(0)
    model.update([a_run(999)])
    model.flush()
    assert view.verticalScrollBar().value() == 0  # who stands at the top sees what is new
    assert shown(model)[0] == "run 999"


def test_only_rows_on_the_screen_are_asked_for_curves(model: RunsModel, view: RunsView) -> None:
    model.load([a_run(number) for number in range(1, 5001)])
    on_screen = view.positions_on_screen()
    assert 3 < len(on_screen) < 40
    assert on_screen[0] == 0


def test_keys_open_runs_and_groups(qtbot, model: RunsModel, view: RunsView) -> None:
    runs = [a_run(1), a_run(2)]
    model.load(runs)
    model.set_grouped(True)
    view.setCurrentIndex(model.index(0, RunColumn.NAME))
    qtbot.keyClick(view, Qt.Key.Key_Left)
    assert model.rowCount() == 1
    qtbot.keyClick(view, Qt.Key.Key_Right)
    assert model.rowCount() == 3
    qtbot.keyClick(view, Qt.Key.Key_Return)
    assert model.rowCount() == 1
    qtbot.keyClick(view, Qt.Key.Key_Return)
    view.setCurrentIndex(model.index(1, RunColumn.NAME))
    with qtbot.waitSignal(view.opened, timeout=1_000) as opened:
        qtbot.keyClick(view, Qt.Key.Key_Return)
    assert opened.args == [runs[1].run_id]


def test_a_click_on_the_triangle_closes_a_group(qtbot, model: RunsModel, view: RunsView) -> None:
    model.load([a_run(1), a_run(2)])
    model.set_grouped(True)
    place = view.visualRect(model.index(0, RunColumn.NAME))
    qtbot.mouseClick(view.viewport(), Qt.MouseButton.LeftButton, pos=place.topLeft() + place.center() - place.center())
    assert model.rowCount() in (1, 3)
    middle = place.center()
    middle.setX(place.left() + view.delegate.row_height // 2)
    before = model.rowCount()
    qtbot.mouseClick(view.viewport(), Qt.MouseButton.LeftButton, pos=middle)
    assert model.rowCount() != before


def test_every_cell_can_be_painted_in_every_state(model: RunsModel, view: RunsView) -> None:
    states = [
        {"status": "INIT"},
        {"status": "HSHK"},
        {"status": "EXEC", "step": 5, "eta_s": 9.0, "episodic_return": 3.0},
        {"status": "EXEC", "flags": ["stalled"]},
        {"status": "PAUSE"},
        {"status": "FAULT"},
        {"status": "TERM", "outcome": "completed", "step": 1000},
        {"status": "TERM", "outcome": "failed"},
        {"status": "TERM", "outcome": "cancelled", "archived": True},
        {"status": "STRANGE", "total": 0, "name": ""},
    ]
    runs = [a_run(at, **fields) for at, fields in enumerate(states)]
    model.load(runs)
    model.set_filter(RunFilter(show_archived=True))
    for at, curve in enumerate([(1.0, 1.0), (1.0,), (), (0.0, 5.0, 2.0)]):
        model.set_curve(runs[at].run_id, curve)
    for grouped in (False, True):
        model.set_grouped(grouped)
        view.selectAll()
        image = view.grab().toImage()
        assert len({image.pixelColor(x, 60).name() for x in range(image.width())}) > 3
        for position in range(model.rowCount()):
            for column in RunColumn:
                assert isinstance(model.index(position, column).data(Qt.ItemDataRole.ToolTipRole), str)
    assert model.data(QModelIndex()) is None


def test_columns_share_a_wide_window_until_the_user_chooses_a_width(qtbot, model: RunsModel, view: RunsView) -> None:
    def total() -> int:
        return sum(view.columnWidth(column) for column in RunColumn)

    for width in (1900, 1500):
        view.resize(width, 300)
        qtbot.waitUntil(lambda: 0 <= view.viewport().width() - total() < len(RunColumn), timeout=5_000)
    view.show_column(RunColumn.SIZE, False)
    assert 0 <= view.viewport().width() - total() < len(RunColumn)
    view.horizontalHeader().resizeSection(RunColumn.NAME, 100)
    view.resize(1900, 300)
    qtbot.wait(10)
    assert view.columnWidth(RunColumn.NAME) == 100
