"""What charts show, without a widget: choices that are kept, curves that are due, legends, thinned figures."""

from __future__ import annotations

import numpy as np
import pytest
from gym_gui.services.analytics.curves import Axis, Curve, Smoothing
from gym_gui.services.analytics.figure import Band, Figure, Line
from gym_gui.ui.charts.curves import (
    REFRESH_S,
    ChartChoice,
    CurvePart,
    CurveStore,
    build_figures,
    distinct_labels,
    drawn_part,
    entries_of,
    loaded_tags,
    points_drawn,
    points_for,
    return_tags,
    runs_to_query,
    visible_part,
)
from mosaic_wire.proto import trainer_pb2 as pb

RETURN, LOSS = "charts/episodic_return", "losses/value_loss"


def run_of(run_id: str, status: str = "TERM", **fields: object) -> pb.Run:
    return pb.Run(run_id=run_id, status=status, env_id="CartPole-v1", algo="ppo", worker_type="cleanrl", **fields)


def curve_of(run_id: str, points: int = 50, tag: str = RETURN, total: int | None = None) -> Curve:
    steps = np.arange(1, points + 1) * 10.0
    return Curve(run_id, tag, steps, 1e9 + steps / 100, np.sin(steps / 40), total or points)


def line_of(label: str, *run_ids: str, points: int = 10, faint: bool = False) -> Line:
    x = np.arange(points, dtype=float)
    return Line(label, x, np.sin(x), None, None, 0, run_ids, faint)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_choice_is_kept_as_text() -> None:
    choice = ChartChoice(Axis.EPISODE, Smoothing.window(30), True, Band.IQM, True, True)
    assert ChartChoice.from_text(choice.to_text(), ChartChoice()) == choice
    assert choice.options(LOSS).tag == LOSS
    assert (choice.options(LOSS).band, choice.options(LOSS).grouped) == (Band.IQM, True)


@pytest.mark.parametrize("text", ["", "{}", "nonsense", '{"axis": "sideways"}', "[1]", '{"smoothing": ["ema", 7]}'])
def test_an_edited_choice_is_the_default(text: str) -> None:
    usual = ChartChoice(is_grouped=True)
    assert ChartChoice.from_text(text, usual) is usual


def test_more_runs_get_fewer_points_each() -> None:
    assert points_for(1) > points_for(20) > points_for(100) > points_for(1_000) >= 100
    assert 100 * points_for(100) <= 250_000


def test_the_return_is_shown_first_by_whatever_name() -> None:
    assert return_tags(["losses/a", "rollout/ep_rew_mean"]) == [RETURN]
    assert return_tags(["losses/b", "losses/a"]) == ["losses/a"]
    assert return_tags([]) == []
    assert "rollout/ep_rew_mean" in loaded_tags([RETURN])
    assert loaded_tags([LOSS]) == (LOSS,)


def test_a_few_of_many_runs_are_asked_for_their_tags() -> None:
    runs = [run_of(f"r{number}") for number in range(100)] + [run_of("q", status="INIT"), run_of("other")]
    runs[-1].algo = "dqn"
    assert [run.run_id for run in runs_to_query(runs)] == ["r0", "other"]


def test_what_was_loaded_is_not_asked_for_again_until_it_has_grown() -> None:
    clock = Clock()
    store = CurveStore(clock)
    done, live, queued = run_of("done"), run_of("live", "EXEC"), run_of("queued", "INIT")
    runs = [done, live, queued]
    assert store.due(runs, [RETURN], 100, episodes=False) == [done, live]
    for run in (done, live):
        store.put(run, [RETURN], {RETURN: curve_of(run.run_id)}, 100, episodes=False)
    assert store.due(runs, [RETURN], 100, episodes=False) == []
    clock.now = REFRESH_S
    assert store.due(runs, [RETURN], 100, episodes=False) == [live]
    assert store.due([done], [RETURN], 100, episodes=True) == [done]  # its episodes were not counted
    assert store.due([done], [RETURN, LOSS], 100, episodes=False) == [done]
    assert list(store.curves(runs, [RETURN])) == ["done", "live"]
    store.forget(["done"])
    assert store.due([done], [RETURN], 100, episodes=False) == [done]


def test_a_curve_that_is_too_coarse_now_is_asked_for_again() -> None:
    store, run = CurveStore(Clock()), run_of("a")
    store.put(run, [RETURN], {RETURN: curve_of("a", points=200, total=9_000)}, 200, episodes=False)
    assert store.due([run], [RETURN], 300, episodes=False) == []
    assert store.due([run], [RETURN], 2_000, episodes=False) == [run]
    store.put(run, [RETURN], {RETURN: curve_of("a", points=200)}, 200, episodes=False)
    assert store.due([run], [RETURN], 2_000, episodes=False) == []  # it has no more points than these


def test_a_run_without_the_curve_is_asked_once() -> None:
    store, run = CurveStore(Clock()), run_of("a")
    store.put(run, [LOSS], {}, 100, episodes=False)
    assert store.due([run], [LOSS], 100, episodes=False) == []
    assert store.curves([run], [LOSS]) == {}


def test_a_followed_run_grows_and_counts_its_episodes() -> None:
    clock = Clock()
    store, run = CurveStore(clock), run_of("a", "EXEC")
    store.follow("a")

    def part(tag: str, *steps: float, replaces: bool = False) -> CurvePart:
        values = np.array(steps)
        return Curve("a", tag, values, 1e9 + values, values / 2, len(steps)), replaces

    assert store.add("a", [part(RETURN, 10, 20, 30, replaces=True), part(LOSS, 15, 30, replaces=True)], [LOSS])
    assert store.add("a", [part(LOSS, 40)], [LOSS])
    clock.now = 10 * REFRESH_S
    assert store.due([run], [LOSS], 100, episodes=True) == []  # its stream brings what is new
    curve = store.curves([run], [LOSS])["a"][LOSS]
    assert curve.steps.tolist() == [15, 30, 40]
    assert curve.axis(Axis.EPISODE).tolist() == [1.5, 3, 3]
    assert curve.axis(Axis.TIME).tolist() == [5, 20, 30]
    store.unfollow("a")
    assert store.due([run], [LOSS], 100, episodes=True) == [run]
    assert not store.add("a", [part(LOSS, 50)], [LOSS])


def test_curves_of_unviewed_runs_are_dropped_when_there_are_many() -> None:
    store = CurveStore(Clock())
    for number in range(8):
        run = run_of(f"r{number}")
        store.put(run, [RETURN], {RETURN: curve_of(run.run_id, points=1_000_000)}, 10**6, episodes=False)
    store.trim(["r1", "r2"])
    assert list(store.curves([run_of(f"r{number}") for number in range(8)], [RETURN])) == ["r1", "r2"]


def test_lines_are_drawn_with_what_a_screen_shows_and_their_extremes() -> None:
    x = np.arange(50_000, dtype=float)
    y = np.zeros(50_000)
    y[12_345], y[40_001] = 7.0, -7.0
    line = Line("a", x, y, None, None, 0, ("a",))
    xs, ys = drawn_part(line, points_drawn(1))
    assert len(ys) < 5_000
    assert (ys.max(), ys.min(), xs[0], xs[-1]) == (7, -7, 0, 49_999)
    near, _ = drawn_part(line, points_drawn(1), (20_000.0, 21_000.0))
    assert set(range(20_000, 21_001)) <= set(near.tolist())  # every point of what is looked at
    assert (near[0], near[-1]) == (0, 49_999)
    assert drawn_part(line_of("b", "b"), points_drawn(1_000))[0] is not None
    assert points_drawn(1_000) < points_drawn(100) < points_drawn(1)


def test_a_figure_of_each_tag_is_built() -> None:
    runs = [run_of("a", seed=1), run_of("b", seed=2)]
    curves = {run.run_id: {RETURN: curve_of(run.run_id), LOSS: curve_of(run.run_id, tag=LOSS)} for run in runs}
    alone = build_figures(runs, curves, ChartChoice(), [RETURN, LOSS])
    assert {tag: len(figure.lines) for tag, figure in alone.items()} == {RETURN: 2, LOSS: 2}
    together = build_figures(runs, curves, ChartChoice(is_grouped=True), [RETURN])
    (line,) = together[RETURN].lines
    assert line.run_ids == ("a", "b")
    assert line.low is not None


def test_a_run_has_one_color_in_all_charts_and_while_others_arrive() -> None:
    runs = [run_of("a", seed=1), run_of("b", seed=2), run_of("c", seed=1)]
    runs[2].algo = "dqn"
    curves = {
        run.run_id: {RETURN: curve_of(run.run_id), LOSS: curve_of(run.run_id, tag=LOSS)}
        for run in runs
        if run is not runs[1]
    }
    del curves["a"][LOSS]
    alone = build_figures(runs, curves, ChartChoice(), [RETURN, LOSS])
    assert [(line.run_ids, line.color) for line in alone[RETURN].lines] == [(("a",), 0), (("c",), 2)]
    assert [(line.run_ids, line.color) for line in alone[LOSS].lines] == [(("c",), 2)]
    grouped = build_figures(runs, curves, ChartChoice(is_grouped=True), [RETURN, LOSS])
    assert [line.color for line in grouped[RETURN].lines] == [0, 1]
    assert [line.color for line in grouped[LOSS].lines] == [1]


def test_the_legend_lists_named_lines_and_hides_their_faint_ones_with_them() -> None:
    lines = (line_of("", "a", faint=True), line_of("", "b", faint=True), line_of("A", "a"), line_of("B", "b"))
    figure = Figure("", "", "", False, False, lines)
    assert [(entry.key, entry.label) for entry in entries_of(figure).values()] == [("a", "A"), ("b", "B")]
    assert [line.run_ids for line in visible_part(figure, ["a"]).lines] == [("b",), ("b",)]


def test_two_runs_that_continue_from_one_have_keys_of_their_own() -> None:
    figure = Figure("", "", "", False, False, (line_of("A", "root", "a"), line_of("B", "root", "b")))
    assert list(entries_of(figure)) == ["a", "b"]


@pytest.mark.parametrize(
    ("labels", "short"),
    [
        (["ppo · CartPole-v1 · seed 1", "ppo · CartPole-v1 · seed 2"], ["seed 1", "seed 2"]),
        (["ppo · CartPole-v1 (4 seeds)", "dqn · CartPole-v1 (3 seeds)"], ["ppo (4 seeds)", "dqn (3 seeds)"]),
        (["ppo · CartPole-v1"], ["ppo · CartPole-v1"]),
        (["ppo", "ppo"], ["ppo", "ppo"]),
        ([], []),
    ],
)
def test_labels_name_the_differences_of_lines(labels: list[str], short: list[str]) -> None:
    assert distinct_labels(labels) == short
