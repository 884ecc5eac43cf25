"""A figure on the screen: many lines in few items, bands, logarithmic axes, the crosshair, the legend."""

from __future__ import annotations

import numpy as np
import pytest
from gym_gui.services.analytics.curves import Axis
from gym_gui.services.analytics.figure import Figure, Line
from gym_gui.ui import theme
from gym_gui.ui.charts.controls import ChartLegend
from gym_gui.ui.charts.curves import entries_of
from gym_gui.ui.charts.plot import ChartView
from PySide6.QtCore import QPointF, Qt
from PySide6.QtTest import QTest

TAG = "charts/episodic_return"


def line_of(name: str, number: int = 0, *, points: int = 200, offset: float = 0.0, band: bool = False) -> Line:
    x = np.linspace(1.0, 1_000.0, points)
    y = x / 10 + offset
    spread = np.full(points, 3.0)
    return Line(name, x, y, y - spread if band else None, y + spread if band else None, number, (name,))


def figure_of(*lines: Line, log_x: bool = False, log_y: bool = False, x_label: str = "steps") -> Figure:
    return Figure("Episodic return", x_label, "episodic return", log_x, log_y, lines, "EMA 0.9")


@pytest.fixture
def view(qtbot, themed) -> ChartView:
    view = ChartView(TAG)
    qtbot.addWidget(view)
    view.resize(800, 500)
    view.show()
    qtbot.waitExposed(view)
    return view


def drawn(view: ChartView) -> list[tuple[str, int]]:
    """Color and opacity of what is drawn, from the back to the front."""
    return [(stroke.color.name(), stroke.color.alpha()) for stroke in view._layer.strokes]


def test_a_thousand_lines_are_a_few_items(view: ChartView) -> None:
    lines = [line_of(f"run{number}", number, offset=number) for number in range(1_000)]
    view.show_figure(figure_of(*lines), Axis.STEP)
    assert len(drawn(view)) == len(theme.colors().series)
    assert view.drawn_points() <= 200_000


def test_lines_of_one_color_are_not_joined_to_each_other(view: ChartView) -> None:
    view.show_figure(figure_of(line_of("a", 0, points=5), line_of("b", 8, points=4)), Axis.STEP)
    (stroke,) = view._layer.strokes
    path = stroke.path()
    begins = [index for index in range(path.elementCount()) if path.elementAt(index).isMoveTo()]
    assert (path.elementCount(), begins) == (9, [0, 5])


def test_faint_lines_lie_behind_and_the_chosen_one_in_front(view: ChartView) -> None:
    faint = Line("", *(np.arange(5.0), np.arange(5.0)), None, None, 0, ("a",), is_faint=True)
    view.show_figure(figure_of(faint, line_of("a", 0), line_of("b", 1)), Axis.STEP)
    series = theme.colors().series
    assert drawn(view)[0][0] == series[0]
    assert drawn(view)[0][1] < 255
    assert {pair for pair in drawn(view) if pair[1] == 255} == {(series[0], 255), (series[1], 255)}
    view.highlight((), "b")
    assert drawn(view)[-1] == (series[1], 255)
    assert all(alpha < 100 for color, alpha in drawn(view)[:-1])
    view.highlight({"a"}, "")
    assert drawn(view) == [(series[1], 255)]
    assert view.visible_keys == ["b"]


def test_bands_lie_around_their_lines_and_go_with_them(view: ChartView) -> None:
    view.show_figure(figure_of(line_of("a", 0, band=True), line_of("b", 1, band=True)), Axis.STEP)
    first, _ = view._layer.fills
    assert (len(first.xs), first.ys[0] - first.ys[-1]) == (400, 6.0)
    view.highlight({"a"}, "")
    assert len(view._layer.fills) == 1
    many = [line_of(f"run{number}", number, band=True) for number in range(30)]
    view.show_figure(figure_of(*many), Axis.STEP)
    assert len(view._layer.fills) == 30
    assert sum(len(fill.xs) for fill in view._layer.fills) < 6_000  # coarser, with the ends where they were
    assert (view._layer.fills[0].xs.min(), view._layer.fills[0].xs.max()) == (1, 1_000)
    view.show_figure(figure_of(*many, *(line_of(f"other{n}", n, band=True) for n in range(30))), Axis.STEP)
    assert not view._layer.fills
    view.highlight((), "run3")
    assert len(view._layer.fills) == 1


def test_logarithmic_axes_leave_out_what_has_no_place_there(view: ChartView) -> None:
    below = line_of("a", band=True, offset=-50.0)
    view.show_figure(figure_of(below, log_x=True, log_y=True), Axis.STEP)
    (stroke,) = view._layer.strokes
    assert 0 < len(stroke.xs) < 200
    assert np.isfinite(stroke.ys).all()
    assert stroke.xs[-1] == pytest.approx(3.0)
    assert np.isfinite(view._layer.fills[0].ys).all()
    texts = view.plot.bottom.tickStrings([0.0, 1.0, 2.0], 1.0, 1.0)
    assert texts == ["1", "10", "100"]
    assert len(view.plot.left.tickValues(-1.0, 2.0, 300)[0][1]) >= 3


@pytest.mark.parametrize(("low", "high"), [(0.0, 9.0), (0.0, 3.0), (1.0, 2.1), (1.2, 1.6)])
def test_a_logarithmic_axis_always_has_a_few_ticks(view: ChartView, low: float, high: float) -> None:
    view.plot.left.setLogMode(True)
    assert 2 <= len(view.plot.left.tickValues(low, high, 300)[0][1]) <= 14


def test_the_frame_is_kept_until_something_changes(qtbot, view: ChartView) -> None:
    view.show_figure(figure_of(line_of("a"), line_of("b", 1, offset=20.0)), Axis.STEP)
    view.grab()
    layer = view._layer
    frame = layer._image
    view.mark(500.0)  # the crosshair moves over it
    view.grab()
    assert layer._image is frame
    image = frame.toImage()
    places = [(x, y) for x in range(0, image.width(), 20) for y in range(image.height())]
    pixels = {image.pixelColor(*place).name() for place in places}
    assert {theme.colors().series[0], theme.colors().series[1]} <= pixels
    view.plot.setXRange(100, 200, padding=0)
    view.grab()
    assert layer._image is not frame


def test_values_are_read_where_the_pointer_is(qtbot, view: ChartView) -> None:
    view.show_figure(figure_of(line_of("ppo · a", 0), line_of("ppo · b", 1, offset=50.0)), Axis.STEP)
    qtbot.wait(50)
    assert view._value.text() == "EMA 0.9"
    box = view.plot.getPlotItem().vb
    with qtbot.waitSignal(view.pointed_at, timeout=5_000) as reported:
        view.plot.scene().sigMouseMoved.emit(box.mapViewToScene(QPointF(500.0, 99.0)))
    assert reported.args[0] == pytest.approx(500.0)
    view.mark(reported.args[0])
    assert view.nearest() == "ppo · b"
    assert "step 500" in view._value.text()
    assert view._value.text().split() == ["step", "500", "99.8", "b"]
    assert view.value_at("ppo · a", 500.0) == pytest.approx(50.0, abs=0.5)
    assert view.value_at("ppo · a", 5_000.0) is None
    view.mark(None)
    assert view._value.text() == "EMA 0.9"


def test_the_crosshair_walks_with_the_keyboard(qtbot, view: ChartView) -> None:
    view.show_figure(figure_of(line_of("a"), log_x=True), Axis.STEP)
    qtbot.wait(50)
    places: list[float | None] = []
    view.pointed_at.connect(places.append)
    view.pointed_at.connect(view.mark)
    for key in (Qt.Key.Key_Left, Qt.Key.Key_Left, Qt.Key.Key_Right, Qt.Key.Key_Escape):
        QTest.keyClick(view.plot, key)
    assert places[0] > places[1] < places[2]
    assert places[3] is None


def test_zoom_stays_while_the_figure_grows_and_is_reset_by_another_axis(qtbot, view: ChartView) -> None:
    view.show_figure(figure_of(line_of("a")), Axis.STEP)
    qtbot.wait(50)
    box = view.plot.getPlotItem().vb
    view.plot.setXRange(100, 200, padding=0)
    view.show_figure(figure_of(line_of("a", points=300)), Axis.STEP)
    qtbot.wait(50)
    assert box.viewRange()[0] == [100, 200]
    QTest.mouseDClick(view.plot.viewport(), Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: box.viewRange()[0][1] > 900, timeout=5_000)
    view.plot.setXRange(100, 200, padding=0)
    view.show_figure(figure_of(line_of("a"), x_label="time (minutes)"), Axis.TIME)
    qtbot.waitUntil(lambda: box.viewRange()[0][1] > 900, timeout=5_000)


def test_looking_closer_draws_more_of_the_points(qtbot, view: ChartView) -> None:
    x = np.arange(40_000, dtype=float)
    line = Line("a", x, np.sin(x), None, None, 0, ("a",))
    view.show_figure(figure_of(line), Axis.STEP)
    qtbot.wait(50)
    whole = view.drawn_points()
    assert whole < 10_000
    view.plot.setXRange(100, 900, padding=0)
    qtbot.waitUntil(lambda: view.drawn_points() > whole, timeout=5_000)
    (stroke,) = view._layer.strokes
    assert set(range(100, 900)) <= set(stroke.xs.tolist())
    view.reset_zoom()
    qtbot.waitUntil(lambda: view.drawn_points() == whole, timeout=5_000)


def test_colors_follow_the_theme(qtbot, view: ChartView, themed) -> None:
    view.show_figure(figure_of(line_of("a")), Axis.STEP)
    before = drawn(view)
    theme.apply(themed, theme.ThemeChoice.DARK)
    qtbot.waitUntil(lambda: drawn(view) != before)
    assert drawn(view) == [(theme.DARK.series[0], 255)]
    theme.apply(themed, theme.ThemeChoice.LIGHT)


def test_the_legend_hides_and_chooses(qtbot, themed) -> None:
    legend = ChartLegend()
    qtbot.addWidget(legend)
    legend.show()
    entries = entries_of(figure_of(*(line_of(f"run {number}", number) for number in range(3))))
    legend.model.value_of = lambda key: f"value of {key}"
    legend.show_entries(entries)
    reported: list[tuple[frozenset[str], str]] = []
    legend.changed.connect(lambda: reported.append((legend.hidden, legend.selected)))
    index = legend.model.index(1, 0)
    assert legend.model.data(legend.model.index(1, 1)) == "value of run 1"
    assert legend.model.setData(index, Qt.CheckState.Unchecked, Qt.ItemDataRole.CheckStateRole)
    assert reported[-1] == (frozenset({"run 1"}), "")
    legend.select("run 2")
    assert reported[-1] == (frozenset({"run 1"}), "run 2")
    legend.show_entries(
        entries_of(figure_of(line_of("new"), *(line_of(f"run {number}", number) for number in range(3))))
    )
    assert (legend.hidden, legend.selected) == (frozenset({"run 1"}), "run 2")
    legend.model.set_all(False)
    assert len(legend.hidden) == 4
    legend.model.set_all(True)
    assert not legend.hidden
