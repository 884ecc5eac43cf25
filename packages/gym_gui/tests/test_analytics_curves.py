"""Curves before they are drawn: what is kept of them, how they are smoothed, and several seeds taken together."""

from __future__ import annotations

import math

import numpy as np
import pytest
from gym_gui.services.analytics.curves import (
    MOST_POINTS,
    Axis,
    Curve,
    Smoothing,
    curve_of,
    extremes,
    points_per_curve,
    return_curve,
    tags_in,
)
from gym_gui.services.analytics.figure import Band, aggregate, common_grid, summarize
from gym_gui.services.analytics.statistics import bootstrap_interval, iqm
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import lfilter

RETURN = "charts/episodic_return"


def curve(steps, values, *, times=None, tag=RETURN, run_id="r", total=0) -> Curve:
    return curve_of(
        run_id, tag, steps, times if times is not None else [1000.0 + step for step in steps], values, total
    )


# ---------------------------------------------------------------- what is kept


def test_what_is_no_number_is_left_out_and_steps_are_put_in_order():
    found = curve([30, 10, 20, 40], [3.0, 1.0, math.nan, math.inf], total=10)
    assert (found.steps.tolist(), found.values.tolist()) == ([10, 30], [1.0, 3.0])
    assert found.times.tolist() == [1010.0, 1030.0]
    assert found.is_thinned
    assert not curve([1, 2], [1.0, 2.0]).is_thinned


def test_time_counts_from_the_runs_first_point_and_never_goes_back():
    found = curve([1, 2, 3], [0.0, 0.0, 0.0], times=[100.0, 160.0, 130.0])
    assert found.axis(Axis.TIME).tolist() == [0.0, 60.0, 60.0]
    later = Curve("r", "losses/x", found.steps, found.times, found.values, 3, began=40.0)
    assert later.axis(Axis.TIME).tolist() == [60.0, 120.0, 120.0]


def test_episodes_are_counted_and_spread_over_a_thinned_curve():
    assert curve([5, 9, 12], [1.0, 2.0, 3.0]).axis(Axis.EPISODE).tolist() == [1, 2, 3]
    assert curve([5, 9, 12], [1.0, 2.0, 3.0], total=99).axis(Axis.EPISODE).tolist() == [33, 66, 99]
    assert curve([5], [1.0]).axis(Axis.EPISODE).tolist() == [1]
    assert not len(curve([], []).axis(Axis.TIME))


def test_the_return_has_several_names_and_the_first_that_has_points_counts():
    other = curve([1], [2.0], tag="rollout/ep_rew_mean")
    assert return_curve({"rollout/ep_rew_mean": other, "losses/x": curve([1], [1.0])}) is other
    assert return_curve({RETURN: curve([], []), "rollout/ep_rew_mean": other}) is other
    assert return_curve({"losses/x": other}) is None
    assert tags_in({"a": {RETURN: other}, "b": {"losses/x": other, "empty": curve([], [])}}) == [RETURN, "losses/x"]


def test_a_figure_of_few_curves_reads_them_whole():
    assert points_per_curve(1) > 100_000
    assert points_per_curve(1_000_000) == MOST_POINTS


@given(st.integers(1, 3000), st.integers(2, 500), st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_thinning_keeps_ends_and_extremes_and_the_order(number, most, seed):
    values = np.random.default_rng(seed).normal(size=number)
    kept = extremes(values, most)
    assert len(kept) <= most + 4
    assert kept[0] == 0
    assert kept[-1] == number - 1
    assert (np.diff(kept) > 0).all()
    assert (values[kept].min(), values[kept].max()) == (values.min(), values.max())


# ---------------------------------------------------------------- smoothing


@pytest.mark.parametrize("weight", [1e-6, 0.1, 0.6, 0.9, 0.99, 0.9999])
def test_the_moving_average_is_the_filter_without_its_pull_to_zero(weight):
    values = np.random.default_rng(1).normal(1e3, 50, 20_000)
    plain = lfilter([1 - weight], [1, -weight], values)
    corrected = plain / -np.expm1(np.arange(1, len(values) + 1) * math.log(weight))
    assert Smoothing.ema(weight).apply(values) == pytest.approx(corrected, rel=1e-9)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60), st.floats(0, 0.999))
def test_a_moving_average_stays_within_what_it_averages(values, weight):
    array = np.array(values)
    found = Smoothing.ema(weight).apply(array)
    assert found[0] == pytest.approx(array[0], abs=1e-6)
    slack = 1e-6 * (1 + np.abs(array).max())
    assert array.min() - slack <= found.min() <= found.max() <= array.max() + slack


@pytest.mark.parametrize("points", [2, 7, 100])
def test_the_window_is_the_mean_of_the_last_points(points):
    values = np.random.default_rng(2).normal(1e6, 1, 300)
    found = Smoothing.window(points).apply(values)
    expected = [values[max(0, end - points) : end].mean() for end in range(1, 301)]
    assert found == pytest.approx(np.array(expected), rel=1e-12)


def test_no_smoothing_changes_nothing_and_wrong_amounts_are_refused():
    values = np.array([1.0, 5.0])
    for nothing in (Smoothing(), Smoothing.ema(0), Smoothing.window(1)):
        assert nothing.apply(values) is values
        assert nothing.label() == ""
    assert (Smoothing.ema(0.9).label(), Smoothing.window(100).label()) == ("EMA 0.9", "mean of 100")
    with pytest.raises(ValueError, match="from 0 to below 1, not 1"):
        Smoothing.ema(1.0)
    with pytest.raises(ValueError, match="at least one point"):
        Smoothing.window(0)


# ---------------------------------------------------------------- several seeds


def test_seeds_are_interpolated_over_the_range_they_share():
    first, second = curve([0, 100, 200], [0.0, 10.0, 20.0]), curve([50, 150, 400], [5.0, 25.0, 25.0])
    found = aggregate([first, second], band=Band.NONE)
    assert (found.x[0], found.x[-1], found.count) == (50.0, 200.0, 2)
    assert (found.center[0], found.center[-1]) == (5.0, (20 + 25) / 2)
    assert found.low is None


def test_a_seed_with_more_points_does_not_weigh_more():
    few, many = curve([0, 1000], [0.0, 0.0]), curve(range(1001), [10.0] * 1001)
    assert aggregate([few, many]).center == pytest.approx(np.full(500, 5.0))


def test_the_deviation_is_that_of_the_seeds():
    seeds = [curve([0, 10], [value, value]) for value in (1.0, 2.0, 6.0)]
    found = aggregate(seeds, band=Band.STD)
    spread = np.std([1, 2, 6], ddof=1)
    assert (found.center[0], found.low[0], found.high[0]) == pytest.approx((3.0, 3 - spread, 3 + spread))


@pytest.mark.parametrize(("band", "statistic"), [(Band.CI, lambda table: table.mean(axis=-1)), (Band.IQM, iqm)])
def test_bands_are_bootstrap_intervals_over_the_seeds(band, statistic):
    table = np.random.default_rng(4).normal(50, 10, (9, 3))
    center, low, high = summarize(table, band)
    for column in range(3):
        assert center[column] == pytest.approx(float(statistic(table[:, column])))
        expected = bootstrap_interval(table[:, column], statistic, resamples=20_000)
        assert (low[column], high[column]) == pytest.approx((expected.low, expected.high), abs=0.8)


@pytest.mark.parametrize("band", Band)
def test_the_same_curves_give_the_same_band(band):
    generator = np.random.default_rng(7)
    seeds = [curve(range(50), generator.normal(size=50)) for _ in range(5)]
    first, second = (aggregate(seeds, band=band, smoothing=Smoothing.ema(0.5)) for _ in range(2))
    assert first.center.tolist() == second.center.tolist()
    if band is not Band.NONE:
        assert first.low.tolist() == second.low.tolist()
        assert (first.low <= first.center + 1e-9).all()
        assert (first.center <= first.high + 1e-9).all()


def test_a_single_seed_is_the_line_alone():
    only = curve([1, 2, 3], [4.0, 5.0, 6.0])
    found = aggregate([only, curve([], [])], band=Band.CI)
    assert (found.x.tolist(), found.center.tolist(), found.low, found.count) == ([1, 2, 3], [4, 5, 6], None, 1)


def test_seeds_that_never_meet_are_no_curve():
    assert aggregate([curve([0, 10], [1.0, 1.0]), curve([20, 30], [1.0, 1.0])]) is None
    assert aggregate([]) is None
    assert common_grid([np.array([0.0, 5.0]), np.array([5.0, 9.0])]).tolist() == [5.0]


def test_a_grid_is_no_denser_than_the_curves():
    assert len(common_grid([np.arange(5.0), np.arange(4.0)])) == 4
    assert len(common_grid([np.arange(1e5), np.arange(1e5)])) == 500
