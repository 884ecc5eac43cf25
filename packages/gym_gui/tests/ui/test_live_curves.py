"""Curves as the window keeps them: bounded, with their extremes, replaced when the daemon sends them anew."""

from __future__ import annotations

import math

import numpy as np
import pytest
from gym_gui.services.analytics.curves import Curve, Smoothing, extremes
from gym_gui.ui.charts.curves import MAX_FOLLOWED_POINTS, CurveStore, PartReader, headline_tags, title_of
from mosaic_wire.proto import trainer_pb2 as pb


def message(tag: str, first: int, values: list[float], **fields) -> pb.RunMetrics:
    steps = list(range(first, first + len(values)))
    times = [1000.0 + step for step in steps]
    curve = pb.MetricCurve(tag=tag, steps=steps, wall_times=times, values=values, total=first + len(values), **fields)
    return pb.RunMetrics(curves=[curve])


RUN = pb.Run(run_id="a", status="EXEC")


def followed(tags: list[str], *messages: pb.RunMetrics) -> dict[str, Curve]:
    """The curves of a run whose stream has sent these."""
    store, reader = CurveStore(), PartReader("a")
    store.follow("a")
    for message in messages:
        store.add("a", reader(message), tags)
    return store.curves([RUN], tags)["a"]


def test_points_are_put_behind_the_others_and_a_new_stream_begins_anew() -> None:
    store, reader = CurveStore(), PartReader("a")
    store.follow("a")

    def values() -> list[float]:
        return store.curves([RUN], ["loss"])["a"]["loss"].values.tolist()

    assert store.add("a", reader(message("loss", 0, [3.0, 2.0])), ["loss"])
    assert not store.add("a", reader(message("other", 0, [3.0, 2.0])), ["loss"])
    store.add("a", reader(message("loss", 2, [1.0])), ["loss"])
    assert values() == [3.0, 2.0, 1.0]
    assert store.curves([RUN], ["loss"])["a"]["loss"].began == 1000.0
    again = PartReader("a")  # the daemon was away: the next stream sends everything once more
    store.add("a", again(message("loss", 0, [3.0, 2.0, 1.0, 0.5])), ["loss"])
    assert values() == [3.0, 2.0, 1.0, 0.5]
    store.add("a", again(message("loss", 0, [9.0], is_reset=True)), ["loss"])  # the run went back to a checkpoint
    assert values() == [9.0]


def test_what_is_no_number_does_not_reach_a_chart() -> None:
    curve = followed(["loss"], message("loss", 0, [1.0, math.nan, math.inf, 2.0]))["loss"]
    assert curve.values.tolist() == [1.0, 2.0]
    assert curve.steps.tolist() == [0, 3]


def test_a_tag_with_the_letters_of_a_pattern_is_followed() -> None:
    assert len(followed(["reward[0]"], message("reward[0]", 0, [1.0, 2.0]))["reward[0]"]) == 2


def test_a_curve_that_is_followed_for_long_stays_bounded_and_keeps_its_extremes() -> None:
    messages = []
    for first in range(0, 50_000, 100):
        values = [0.0] * 100
        if first == 20_000:
            values[50] = 77.0
        if first == 30_000:
            values[51] = -5.0
        messages.append(message("return", first, values))
    curve = followed(["return"], *messages)["return"]
    assert len(curve.values) <= 2 * MAX_FOLLOWED_POINTS
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
    assert Smoothing.ema(weight).apply(np.full(50, 4.0)) == pytest.approx(np.full(50, 4.0))


def test_smoothing_is_the_weighted_mean_of_the_past() -> None:
    values = np.array([1.0, 2.0, 6.0])
    expected = [1.0, (0.25 * 1 + 0.5 * 2) / 0.75, (0.125 * 1 + 0.25 * 2 + 0.5 * 6) / 0.875]
    assert Smoothing.ema(0.5).apply(values) == pytest.approx(expected)
    assert Smoothing.ema(0.0).apply(values) is values


PPO = {
    "charts/SPS",
    "charts/episodic_return",
    "charts/episodic_length",
    "charts/learning_rate",
    "losses/policy_loss",
    "losses/value_loss",
    "losses/entropy",
    "losses/approx_kl",
    "system/cpu_percent",
}


def test_the_headlines_of_a_training_come_first_and_are_few() -> None:
    assert headline_tags(PPO) == [
        "charts/episodic_return",
        "charts/episodic_length",
        "charts/SPS",
        "losses/policy_loss",
        "losses/value_loss",
        "losses/entropy",
    ]
    assert headline_tags({"losses/b", "losses/a", "charts/SPS"}) == ["charts/SPS", "losses/a", "losses/b"]
    assert headline_tags({"system/cpu_percent"}) == []


def test_a_title_is_for_people() -> None:
    assert title_of("charts/episodic_return") == "episodic return"
