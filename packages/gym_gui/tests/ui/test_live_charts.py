"""Charts of a run that trains: they grow, stop while hidden, survive a killed daemon, and never block the window."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from gym_gui.services.analytics.curves import Axis, Curve
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.testing import RunningDaemon, blocking_calls, install_scripted_worker, scripted_config
from gym_gui.ui import theme
from gym_gui.ui.background import Background
from gym_gui.ui.charts.board import ChartBoard
from gym_gui.ui.charts.curves import MAX_FOLLOWED_POINTS, ChartChoice, CurvePart, headline_tags
from gym_gui.ui.charts.plot import ChartGrid, ChartView
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.theme import ThemeChoice
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QPointF, Qt
from PySide6.QtWidgets import QComboBox, QLabel, QSlider

QUICK = {"heartbeat_s": 0.2, "grace_s": 2, "silence_s": 20, "handshake_s": 60, "min_free_disk_mb": 0}
SCRIBE = """
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

wanted = config.extras["algo_params"]
folder = run_folder_of(config.run_id)
session = open_session()
session.started({})
session.follow_metrics(folder.tensorboard)
writer = EventFileWriter(str(folder.tensorboard), max_queue_size=10, flush_secs=0.1)
step = 0
while not session.stop_requested.is_set() and (step < wanted["points"] or wanted.get("endless")):
    values = {"charts/episodic_return": step % 200, "losses/value_loss": 1.0 / (step + 1), "charts/SPS": 1000.0,
              "charts/learning_rate": 0.1}
    summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
    writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
    step += 1
    session.progress(step, wanted["points"])
    time.sleep(wanted.get("pause_s", 0))
writer.close()
session.finish(ExitOutcome.COMPLETED, exit_code=0)
"""
RETURN, LOSS, SPEED = "charts/episodic_return", "losses/value_loss", "charts/SPS"
WAIT = 30_000


@pytest.fixture(scope="module")
def window_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    folder = tmp_path_factory.mktemp("charts")
    daemon = RunningDaemon(Home(folder / "home"), folder / "config", settings=QUICK)
    install_scripted_worker(daemon.home, "scribe", SCRIBE)
    with daemon:
        yield daemon


@pytest.fixture(scope="module")
def finished(window_daemon: RunningDaemon) -> pb.Run:
    """A run whose curves have 4,000 points."""
    config = scripted_config("scribe", timesteps=4_000, points=4_000)
    return window_daemon.wait_for(window_daemon.client.submit(config).run.run_id)


def board_of(qtbot, link: DaemonLink) -> ChartBoard:
    board = ChartBoard(link, "charts_tab", ChartChoice(), headline_tags)
    qtbot.addWidget(board)
    board.resize(1000, 700)
    board.show()
    return board


@pytest.fixture
def board(qtbot, themed, link: DaemonLink) -> Iterator[ChartBoard]:
    board = board_of(qtbot, link)
    yield board
    board.set_active(False)


def show(qtbot, board: ChartBoard, run: pb.Run) -> None:
    board.set_runs([run])
    board.set_active(True)
    qtbot.waitUntil(lambda: set(board.views) == {RETURN, LOSS, SPEED} and board.is_settled, timeout=WAIT)


def points(board: ChartBoard, tag: str = RETURN) -> int:
    """On the screen."""
    view = board.views.get(tag)
    return len(view.figure.lines[-1].x) if view is not None and view.figure is not None else 0


def drawn(board: ChartBoard, tag: str = RETURN) -> tuple[np.ndarray, np.ndarray]:
    line = board.views[tag].figure.lines[-1]
    return line.x, line.y


def test_curves_grow_while_the_run_trains_and_stop_while_hidden(qtbot, board, window_daemon: RunningDaemon) -> None:
    config = scripted_config("scribe", timesteps=1_000, points=1_000, endless=True, pause_s=0.01)
    run = window_daemon.client.submit(config).run
    board.set_runs([run])  # still in the queue
    board.set_active(True)
    run = window_daemon.wait_for(run.run_id, "EXEC")
    board.update_run(run)
    qtbot.waitUntil(lambda: points(board) > 10, timeout=WAIT)
    before = points(board)
    qtbot.waitUntil(lambda: points(board) > before + 20, timeout=WAIT)
    qtbot.waitUntil(lambda: list(board.views) == [RETURN, SPEED, LOSS], timeout=WAIT)  # they came by themselves
    board.set_active(False)
    assert not board.feed.is_following
    qtbot.wait(300)
    at_rest = points(board)
    qtbot.wait(1_500)
    assert points(board) == at_rest
    board.set_active(True)
    qtbot.waitUntil(lambda: points(board) > at_rest, timeout=WAIT)
    steps, _ = drawn(board)
    assert steps.tolist() == list(range(len(steps)))  # nothing twice, nothing missing
    window_daemon.client.cancel(run.run_id)
    run = window_daemon.wait_for(run.run_id)
    board.update_run(run)
    qtbot.waitUntil(lambda: not board.feed.is_following, timeout=WAIT)


def test_curves_continue_without_a_gap_after_the_daemon_was_killed(
    qtbot, themed, tmp_path: Path, background: Background
) -> None:
    daemon = RunningDaemon(Home(tmp_path / "home"), tmp_path / "config", settings=QUICK)
    install_scripted_worker(daemon.home, "scribe", SCRIBE)
    with daemon:
        link = DaemonLink(lambda: TrainerClient.connect(daemon.home), background)
        with qtbot.waitSignal(link.runs_loaded, timeout=WAIT):
            link.start()
        board = board_of(qtbot, link)
        config = scripted_config("scribe", timesteps=1_000, points=1_000, endless=True, pause_s=0.01)
        run = daemon.wait_for(daemon.client.submit(config).run.run_id, "EXEC")
        board.set_runs([run])
        board.set_active(True)
        qtbot.waitUntil(lambda: points(board) > 10, timeout=WAIT)
        daemon.kill()
        qtbot.waitUntil(lambda: not link.is_connected, timeout=WAIT)
        before = points(board)
        assert before > 10  # what is known stays visible
        daemon.start()
        qtbot.waitUntil(lambda: points(board) > before + 20, timeout=WAIT)
        steps, _ = drawn(board)
        assert steps.tolist() == list(range(len(steps)))
        board.set_active(False)
        link.stop()


def test_the_headlines_of_a_finished_run_are_drawn_whole(qtbot, board: ChartBoard, finished: pb.Run) -> None:
    show(qtbot, board, finished)
    steps, values = drawn(board)
    assert len(steps) == 4_000
    assert (steps[0], steps[-1], values.min(), values.max()) == (0, 3_999, 0, 199)
    assert list(board.views) == [RETURN, SPEED, LOSS]  # the learning rate is no headline
    qtbot.waitUntil(lambda: "charts/learning_rate" in board.tag_list.tags(), timeout=WAIT)


def test_chosen_curves_are_loaded_and_remembered(qtbot, board, finished: pb.Run, link: DaemonLink) -> None:
    show(qtbot, board, finished)
    board.show_tags([RETURN, LOSS, "charts/learning_rate"])
    qtbot.waitUntil(lambda: set(board.views) == {RETURN, LOSS, "charts/learning_rate"}, timeout=WAIT)
    again = board_of(qtbot, link)
    again.set_runs([finished])
    again.set_active(True)
    qtbot.waitUntil(lambda: set(again.views) == {RETURN, LOSS, "charts/learning_rate"}, timeout=WAIT)
    again.set_active(False)


def test_smoothing_and_axis_change_what_is_drawn_and_are_remembered(qtbot, board, finished, link: DaemonLink) -> None:
    show(qtbot, board, finished)
    raw = drawn(board)[1]
    board.findChild(QSlider, "chart_smoothing").setValue(95)
    qtbot.waitUntil(lambda: np.abs(np.diff(drawn(board)[1])).max() < np.abs(np.diff(raw)).max() / 5, timeout=WAIT)
    board.findChild(QComboBox, "chart_axis").setCurrentIndex(1)
    qtbot.waitUntil(lambda: drawn(board)[0][0] == 0 and 0 < drawn(board)[0][-1] < 600, timeout=WAIT)
    again = board_of(qtbot, link)
    assert (again.choice.smoothing.amount, again.choice.axis) == (0.95, Axis.TIME)


def test_one_place_is_read_in_every_chart_with_the_pointer(qtbot, board: ChartBoard, finished: pb.Run) -> None:
    show(qtbot, board, finished)
    qtbot.wait(50)
    view = board.views[LOSS]
    assert view._value.text() == "2.50e-04"  # the last one
    box = view.plot.getPlotItem().vb
    view.plot.scene().sigMouseMoved.emit(box.mapViewToScene(QPointF(1_000, 0.001)))
    qtbot.waitUntil(lambda: view._value.text().startswith("step "), timeout=WAIT)
    assert board.views[RETURN]._value.text().startswith("step ")
    marked = int(view._value.text().split()[1].replace(",", ""))
    assert abs(marked - 1_000) <= 10
    view.leaveEvent(None)  # type: ignore[arg-type]
    assert not view._value.text().startswith("step ")


def test_a_curve_is_read_with_the_keyboard_alone(qtbot, board: ChartBoard, finished: pb.Run) -> None:
    show(qtbot, board, finished)
    qtbot.wait(50)
    view = board.views[LOSS]
    qtbot.keyClick(view.plot, Qt.Key.Key_Left)
    first = view._value.text()
    assert first.startswith("step 3,9")
    qtbot.keyClick(view.plot, Qt.Key.Key_Left)
    assert view._value.text() != first
    qtbot.keyClick(view.plot, Qt.Key.Key_Escape)
    assert not view._value.text().startswith("step ")


@pytest.mark.parametrize(("status", "message"), [("INIT", "Waiting in the queue"), ("EXEC", "No curves yet")])
def test_a_message_says_why_there_are_no_curves(board: ChartBoard, status: str, message: str) -> None:
    board.set_runs([pb.Run(run_id="01ARZ3NDEKTSV4RRFFQ69G5FAV", status=status)])
    label = board.findChild(QLabel, "chart_message")
    assert label.isVisible()
    assert message in label.text()


def test_a_run_that_was_deleted_is_reported_with_a_way_to_try_again(qtbot, board: ChartBoard) -> None:
    board.set_runs([pb.Run(run_id="01ARZ3NDEKTSV4RRFFQ69G5FAV", status="EXEC")])
    board.show_tags([RETURN])
    board.set_active(True)
    qtbot.waitUntil(lambda: "cannot be read" in board.banner.text, timeout=WAIT)
    assert "01ARZ3NDEKTSV4RRFFQ69G5FAV" in board.banner.text


def test_six_charts_are_built_and_drawn_one_by_one(qtbot, board: ChartBoard, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them in one iteration of the event loop would block it; benchmarks/gui_event_loop.py says for how long."""
    iterations: list[Counter[str]] = [Counter()]

    def counted(method: Callable[..., None]) -> Callable[..., None]:
        def call(view: ChartView, *arguments: object, **options: object) -> None:
            iterations[-1][method.__name__] += 1
            method(view, *arguments, **options)

        return call

    def draw_next(grid: ChartGrid, method: Callable[[ChartGrid], None] = ChartGrid._draw_next) -> None:
        iterations.append(Counter())
        method(grid)

    monkeypatch.setattr(ChartView, "__init__", counted(ChartView.__init__))
    monkeypatch.setattr(ChartView, "show_figure", counted(ChartView.show_figure))
    board.grid._timer.timeout.disconnect()
    board.grid._timer.timeout.connect(lambda: draw_next(board.grid))
    tags = [RETURN, "charts/episodic_length", SPEED, "losses/policy_loss", LOSS, "losses/entropy"]
    rng = np.random.default_rng(1)
    full = 2 * MAX_FOLLOWED_POINTS - 100
    run = pb.Run(run_id="01ARZ3NDEKTSV4RRFFQ69G5FAV", status="EXEC")

    def parts(first: float, count: int, replaces: bool) -> list[CurvePart]:
        steps = first + np.arange(count, dtype=np.float64)
        return [(Curve(run.run_id, tag, steps, steps, rng.normal(size=count), 100_000), replaces) for tag in tags]

    board.set_runs([run])
    board.show_tags(tags)
    board.feed.store.follow(run.run_id)
    with blocking_calls() as calls:
        board.feed._add(run.run_id, [parts(0, full, True)])
        qtbot.waitUntil(lambda: list(board.views) == tags and points(board, tags[-1]) == full, timeout=WAIT)
        board.findChild(QSlider, "chart_smoothing").setValue(90)
        for update in range(8):
            board.feed._add(run.run_id, [parts(full + 10 * update, 10, False)])
            last = full + 10 * update + 9
            qtbot.waitUntil(lambda last=last: all(drawn(board, tag)[0][-1] == last for tag in tags), timeout=WAIT)
    assert not calls
    assert sum(iteration["__init__"] for iteration in iterations) == len(tags)
    assert all(iteration.total() <= 1 for iteration in iterations), iterations
    assert points(board) < 2 * MAX_FOLLOWED_POINTS


def test_a_chart_changes_with_the_theme(qtbot, board: ChartBoard, finished, themed) -> None:
    show(qtbot, board, finished)
    view = board.views[RETURN]
    light = view.grab().toImage().pixelColor(4, view.height() // 2).lightness()
    theme.apply(themed, ThemeChoice.DARK)
    qtbot.wait(50)
    dark = view.grab().toImage().pixelColor(view.width() // 2, view.height() // 2).lightness()
    theme.apply(themed, ThemeChoice.LIGHT)
    assert light > 200
    assert dark < 100
