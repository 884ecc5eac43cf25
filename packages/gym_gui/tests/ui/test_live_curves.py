"""Curves as the window keeps them: bounded, with their extremes, replaced when the daemon sends them anew."""

from __future__ import annotations

import math

import numpy as np
import pytest
from gym_gui.services.analytics.curves import extremes
from gym_gui.ui.presenters.live_curves import (
    MOST_POINTS,
    CurveBook,
    PartReader,
    asked_tags,
    shown_tags,
    smoothed,
    title_of,
)
from mosaic_wire.proto import trainer_pb2 as pb


def message(tag: str, first: int, values: list[float], **fields) -> pb.RunMetrics:
    steps = list(range(first, first + len(values)))
    times = [1000.0 + step for step in steps]
    curve = pb.MetricCurve(tag=tag, steps=steps, wall_times=times, values=values, total=first + len(values), **fields)
    return pb.RunMetrics(curves=[curve])


def test_points_are_put_behind_the_others_and_a_new_stream_begins_anew() -> None:
    book, reader = CurveBook(), PartReader()
    assert book.add(reader(message("loss", 0, [3.0, 2.0]))) == {"loss"}
    book.add(reader(message("loss", 2, [1.0])))
    assert book.curves["loss"].values.tolist() == [3.0, 2.0, 1.0]
    assert book.began_at() == 1000.0
    again = PartReader()  # the daemon was away: the next stream sends everything once more
    book.add(again(message("loss", 0, [3.0, 2.0, 1.0, 0.5])))
    assert book.curves["loss"].values.tolist() == [3.0, 2.0, 1.0, 0.5]
    book.add(again(message("loss", 0, [9.0], is_reset=True)))  # the run went back to a checkpoint
    assert book.curves["loss"].values.tolist() == [9.0]


def test_what_is_no_number_does_not_reach_a_chart() -> None:
    book = CurveBook()
    book.add(PartReader()(message("loss", 0, [1.0, math.nan, math.inf, 2.0])))
    assert book.curves["loss"].values.tolist() == [1.0, 2.0]
    assert book.curves["loss"].steps.tolist() == [0, 3]


def test_a_curve_that_is_followed_for_long_stays_bounded_and_keeps_its_extremes() -> None:
    book, reader = CurveBook(), PartReader()
    for first in range(0, 50_000, 100):
        values = [0.0] * 100
        if first == 20_000:
            values[50] = 77.0
        if first == 30_000:
            values[51] = -5.0
        book.add(reader(message("return", first, values)))
    curve = book.curves["return"]
    assert len(curve.values) <= 2 * MOST_POINTS
    assert curve.total == 50_000
    assert (curve.values.max(), curve.values.min()) == (77.0, -5.0)
    assert curve.steps[curve.values.argmax()] == 20_050
    assert np.all(np.diff(curve.steps) > 0)
    assert (curve.steps[0], curve.steps[-1]) == (0, 49_999)


def test_thinning_keeps_the_highest_and_lowest_of_each_stretch() -> None:
    values = np.sin(np.arange(10_000) / 7)
    kept = extremes(values, 400)
    assert len(kept) <= 402
    assert values[kept].max() == values.max()
    assert values[kept].min() == values.min()
    assert kept[0] == 0
    assert kept[-1] == 9_999


@pytest.mark.parametrize("weight", [0.0, 0.5, 0.99])
def test_smoothing_leaves_a_flat_curve_flat_from_its_first_point(weight: float) -> None:
    assert smoothed(np.full(50, 4.0), weight) == pytest.approx(np.full(50, 4.0))


def test_smoothing_is_the_weighted_mean_of_the_past() -> None:
    values = np.array([1.0, 2.0, 6.0])
    expected = [1.0, (0.25 * 1 + 0.5 * 2) / 0.75, (0.125 * 1 + 0.25 * 2 + 0.5 * 6) / 0.875]
    assert smoothed(values, 0.5) == pytest.approx(expected)
    assert smoothed(values, 0.0) is values


PPO = {"charts/SPS", "charts/episodic_return", "charts/episodic_length", "charts/learning_rate", "losses/policy_loss",
       "losses/value_loss", "losses/entropy", "losses/approx_kl", "system/cpu_percent"}  # fmt: skip


def test_the_headlines_are_shown_until_somebody_chooses() -> None:
    assert shown_tags(PPO, {}) == [
        "charts/episodic_return", "charts/episodic_length", "charts/SPS", "losses/policy_loss", "losses/value_loss",
        "losses/entropy",
    ]  # fmt: skip


def test_a_choice_counts_for_every_run_that_has_the_curve() -> None:
    choices = {"charts/SPS": False, "system/cpu_percent": True, "losses/td_loss": True}
    shown = shown_tags(PPO, choices)
    assert "charts/SPS" not in shown
    assert "system/cpu_percent" in shown
    assert "losses/td_loss" not in shown  # this run has none
    assert "losses/td_loss" in shown_tags({"losses/td_loss", "charts/SPS"}, choices)
    assert "system/cpu_percent" in asked_tags(choices)
    assert "losses/td_loss" not in asked_tags(choices)  # the pattern brings it already


def test_a_title_is_for_people() -> None:
    assert title_of("charts/episodic_return") == "episodic return"
