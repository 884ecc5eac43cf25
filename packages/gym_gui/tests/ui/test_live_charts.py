"""Live charts: curves of a real daemon move while the run trains, chosen ones are remembered, hidden ones rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.testing import RunningDaemon, blocking_calls, install_scripted_worker, scripted_config
from gym_gui.ui import theme
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.presenters.live_curves import MOST_POINTS, CurvePart
from gym_gui.ui.theme import ThemeChoice
from gym_gui.ui.widgets.chart_card import Axis, ChartCard
from gym_gui.ui.widgets.live_charts import LiveCharts
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


@pytest.fixture
def charts(qtbot, dressed, link: DaemonLink) -> Iterator[LiveCharts]:
    charts = LiveCharts(link)
    qtbot.addWidget(charts)
    charts.resize(1000, 700)
    charts.show()
    yield charts
    charts.set_active(False)


RETURN, LOSS, SPEED = "charts/episodic_return", "losses/value_loss", "charts/SPS"


def show(qtbot, charts: LiveCharts, run: pb.Run) -> None:
    charts.show_run(run)
    charts.set_active(True)
    wanted = {RETURN, LOSS, SPEED}
    qtbot.waitUntil(
        lambda: wanted <= charts.cards.keys() and all(points(charts, tag) for tag in wanted), timeout=20_000
    )


def points(charts: LiveCharts, tag: str) -> int:
    return len(charts.cards[tag].shown[0]) if tag in charts.cards else 0


def test_curves_move_while_the_run_goes_on_and_rest_while_hidden(qtbot, charts, window_daemon: RunningDaemon) -> None:
    config = scripted_config("scribe", timesteps=1_000, points=1_000, endless=True, pause_s=0.01)
    run = window_daemon.client.submit(config).run
    charts.show_run(run)  # still in the queue
    charts.set_active(True)
    run = window_daemon.wait_for(run.run_id, "EXEC")
    charts.refresh(run)
    qtbot.waitUntil(lambda: points(charts, RETURN) > 10, timeout=30_000)
    before = points(charts, RETURN)
    qtbot.waitUntil(lambda: points(charts, RETURN) > before + 20, timeout=30_000)
    charts.set_active(False)
    assert not charts.is_following
    qtbot.wait(300)
    at_rest = points(charts, RETURN)
    qtbot.wait(1_500)
    assert points(charts, RETURN) == at_rest
    charts.set_active(True)
    qtbot.waitUntil(lambda: points(charts, RETURN) > at_rest, timeout=30_000)
    steps, _ = charts.cards[RETURN].shown
    assert steps.tolist() == list(range(len(steps)))  # nothing twice, nothing missing
    window_daemon.client.cancel(run.run_id)
    run = window_daemon.wait_for(run.run_id)
    charts.refresh(run)
    qtbot.waitUntil(lambda: not charts.is_following, timeout=20_000)


def test_curves_go_on_without_a_gap_after_the_daemon_was_killed(
    qtbot, dressed, tmp_path: Path, background: Background
) -> None:
    daemon = RunningDaemon(Home(tmp_path / "home"), tmp_path / "config", settings=QUICK)
    install_scripted_worker(daemon.home, "scribe", SCRIBE)
    with daemon:
        link = DaemonLink(lambda: TrainerClient.connect(daemon.home), background)
        with qtbot.waitSignal(link.runs_loaded, timeout=30_000):
            link.start()
        charts = LiveCharts(link)
        qtbot.addWidget(charts)
        config = scripted_config("scribe", timesteps=1_000, points=1_000, endless=True, pause_s=0.01)
        run = daemon.wait_for(daemon.client.submit(config).run.run_id, "EXEC")
        charts.show_run(run)
        charts.set_active(True)
        qtbot.waitUntil(lambda: points(charts, RETURN) > 10, timeout=30_000)
        daemon.kill()
        qtbot.waitUntil(lambda: not link.is_connected, timeout=30_000)
        before = points(charts, RETURN)
        assert before > 10  # what is known stays in view
        daemon.start()
        qtbot.waitUntil(lambda: points(charts, RETURN) > before + 20, timeout=30_000)
        steps, _ = charts.cards[RETURN].shown
        assert steps.tolist() == list(range(len(steps)))
        charts.set_active(False)
        link.stop()


def test_a_long_curve_comes_thinned_with_its_extremes(qtbot, charts: LiveCharts, finished: pb.Run) -> None:
    show(qtbot, charts, finished)
    steps, values = charts.cards[RETURN].shown
    assert len(steps) <= 2 * MOST_POINTS
    assert (steps[0], steps[-1], values.min(), values.max()) == (0, 3_999, 0, 199)
    assert list(charts.cards) == [RETURN, SPEED, LOSS]  # the learning rate is no headline


def test_a_curve_that_is_chosen_is_fetched_and_remembered(qtbot, charts, finished: pb.Run, link: DaemonLink) -> None:
    show(qtbot, charts, finished)
    charts.choose("charts/learning_rate", True)
    charts.choose(SPEED, False)
    qtbot.waitUntil(lambda: "charts/learning_rate" in charts.cards, timeout=20_000)
    assert SPEED not in charts.cards
    again = LiveCharts(link)
    qtbot.addWidget(again)
    again.show_run(finished)
    again.set_active(True)
    qtbot.waitUntil(lambda: set(again.cards) == {RETURN, LOSS, "charts/learning_rate"}, timeout=20_000)
    again.set_active(False)


def test_the_menu_offers_every_curve_of_the_run(qtbot, charts: LiveCharts, finished: pb.Run) -> None:
    show(qtbot, charts, finished)

    def offered() -> set[str]:
        charts._fill_menu()
        return {action.text() for action in charts._menu.actions() if action.isCheckable()}

    qtbot.waitUntil(lambda: "charts/learning_rate" in offered(), timeout=20_000)
    checked = {action.text() for action in charts._menu.actions() if action.isChecked()}
    assert checked == set(charts.cards)


def test_smoothing_and_axis_change_what_is_drawn_and_are_remembered(qtbot, charts, finished, link: DaemonLink) -> None:
    show(qtbot, charts, finished)
    card = charts.cards[RETURN]
    raw = card.shown[1]
    charts.findChild(QSlider, "live_charts_smoothing").setValue(95)
    qtbot.waitUntil(lambda: np.abs(np.diff(card.shown[1])).max() < np.abs(np.diff(raw)).max() / 5)
    charts.findChild(QComboBox, "live_charts_axis").setCurrentIndex(1)
    qtbot.waitUntil(lambda: card.shown[0][0] == 0 and 0 < card.shown[0][-1] < 600)
    again = LiveCharts(link)
    qtbot.addWidget(again)
    assert (again.smoothing, again.axis) == (0.95, Axis.TIME)


def test_one_place_is_read_out_in_every_chart(qtbot, charts: LiveCharts, finished: pb.Run) -> None:
    show(qtbot, charts, finished)
    charts.resize(1200, 800)
    qtbot.wait(50)
    card = charts.cards[LOSS]
    view = card.plot.getPlotItem().vb
    card.plot.scene().sigMouseMoved.emit(view.mapViewToScene(QPointF(1_000, 0.001)))
    assert card.value_text.startswith("step ")
    assert charts.cards[RETURN].value_text.startswith("step ")
    marked = int(card.value_text.split()[1].replace(",", ""))
    assert abs(marked - 1_000) <= 10
    card.leaveEvent(None)  # type: ignore[arg-type]
    assert not card.value_text.startswith("step ")


def test_a_curve_is_read_with_the_keyboard_alone(qtbot, charts: LiveCharts, finished: pb.Run) -> None:
    show(qtbot, charts, finished)
    card = charts.cards[LOSS]
    qtbot.keyClick(card.plot, Qt.Key.Key_Left)
    first = card.value_text
    assert first.startswith("step 3,9")
    qtbot.keyClick(card.plot, Qt.Key.Key_Left)
    assert card.value_text != first
    qtbot.keyClick(card.plot, Qt.Key.Key_Escape)
    assert not card.value_text.startswith("step ")


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (pb.Run(run_id="01ARZ3NDEKTSV4RRFFQ69G5FAV", status="INIT"), "waits in the queue"),
        (pb.Run(run_id="01ARZ3NDEKTSV4RRFFQ69G5FAV", status="EXEC"), "No curves yet"),
    ],
)
def test_there_are_words_where_there_are_no_curves(charts: LiveCharts, run: pb.Run, words: str) -> None:
    charts.show_run(run)
    label = charts.findChild(QLabel, "live_charts_words")
    assert label.isVisible()
    assert words in label.text()


def test_a_run_that_is_gone_is_said_with_a_way_to_try_again(qtbot, charts: LiveCharts) -> None:
    charts.show_run(pb.Run(run_id="01ARZ3NDEKTSV4RRFFQ69G5FAV", status="EXEC"))
    charts.set_active(True)
    qtbot.waitUntil(lambda: "cannot be read" in charts.banner.text, timeout=20_000)
    assert "01ARZ3NDEKTSV4RRFFQ69G5FAV" in charts.banner.text


def test_six_full_charts_are_made_one_by_one_and_drawn_two_by_two(
    qtbot, charts: LiveCharts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them in one turn of the window's loop would hold it up; benchmarks/gui_turns.py says for how long."""
    turns: list[Counter[str]] = [Counter()]

    def counted(method: Callable[..., None]) -> Callable[..., None]:
        def call(card: ChartCard, *arguments: object, **options: object) -> None:
            turns[-1][method.__name__] += 1
            method(card, *arguments, **options)

        return call

    monkeypatch.setattr(ChartCard, "__init__", counted(ChartCard.__init__))
    monkeypatch.setattr(ChartCard, "draw", counted(ChartCard.draw))
    charts._next_turn.timeout.connect(lambda: turns.append(Counter()))
    tags = [RETURN, "charts/episodic_length", SPEED, "losses/policy_loss", LOSS, "losses/entropy"]
    rng = np.random.default_rng(1)
    full = 2 * MOST_POINTS - 100

    def parts(first: float, count: int, replaces: bool) -> list[CurvePart]:
        steps = first + np.arange(count, dtype=np.float64)
        return [CurvePart(tag, steps, steps, rng.normal(size=count), 100_000, replaces) for tag in tags]

    charts.show_run(pb.Run(run_id="01ARZ3NDEKTSV4RRFFQ69G5FAV", status="EXEC"))
    with blocking_calls() as calls:
        charts._take([parts(0, full, True)])
        qtbot.waitUntil(lambda: list(charts.cards) == tags and points(charts, tags[-1]) == full)
        charts.findChild(QSlider, "live_charts_smoothing").setValue(90)
        for update in range(8):
            charts._take([parts(full + 10 * update, 10, False)])
            last = full + 10 * update + 9
            qtbot.waitUntil(lambda last=last: all(card.shown[0][-1] == last for card in charts.cards.values()))
    assert not calls
    assert sum(turn["__init__"] for turn in turns) == len(tags)
    assert all(turn["__init__"] <= 1 and turn["draw"] <= 2 for turn in turns), turns
    assert points(charts, RETURN) < 2 * MOST_POINTS


def test_a_chart_changes_its_dress_with_the_theme(qtbot, charts: LiveCharts, finished, dressed) -> None:
    show(qtbot, charts, finished)
    card: ChartCard = charts.cards[RETURN]
    light = card.grab().toImage().pixelColor(4, card.height() // 2).lightness()
    theme.apply(dressed, ThemeChoice.DARK)
    qtbot.wait(50)
    dark = card.grab().toImage().pixelColor(card.width() // 2, card.height() // 2).lightness()
    theme.apply(dressed, ThemeChoice.LIGHT)
    assert light > 200
    assert dark < 100
