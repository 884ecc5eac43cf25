"""Statistics of few runs, against scipy, against values worked out by hand, and against what must always hold."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from gym_gui.services.analytics import statistics
from gym_gui.services.analytics.statistics import (
    Estimate,
    bootstrap_interval,
    difference_interval,
    iqm,
    iqm_weights,
    mean,
    probability_of_improvement,
    resample_counts,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

scores = st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), min_size=1, max_size=40)


# ---------------------------------------------------------------- interquartile mean


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7.0], 7.0),
        ([1, 2, 3], 2.0),  # a quarter of three, rounded down, is none
        ([1, 2, 3, 100], 2.5),
        ([0, 1, 2, 3, 400], 2.0),
        ([-50, 1, 2, 3, 4, 5, 6, 700], 3.5),
    ],
)
def test_the_interquartile_mean_is_that_of_the_middle_half(values, expected):
    assert iqm(values) == expected
    assert iqm(values[::-1]) == expected


@given(scores)
def test_the_interquartile_mean_is_scipys_trimmed_mean_as_rliable_takes_it(values):
    assert iqm(values) == pytest.approx(stats.trim_mean(values, 0.25), rel=1e-9, abs=1e-6)


def test_of_a_table_each_row_has_its_own():
    table = np.arange(24.0).reshape(3, 8)
    assert iqm(table).tolist() == [3.5, 11.5, 19.5]


def test_the_interquartile_mean_of_nothing_is_refused():
    with pytest.raises(ValueError, match="of nothing"):
        iqm([])


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=12), st.integers(0, 2**32 - 1))
@settings(max_examples=50)
def test_weights_of_sorted_values_give_the_interquartile_mean_of_a_resample(values, seed):
    ordered = np.sort(values)
    counts = resample_counts(len(values), 5, seed)
    assert counts.sum(axis=1).tolist() == [len(values)] * 5
    for row, weights in zip(counts, iqm_weights(counts), strict=True):
        drawn = np.repeat(ordered, row.astype(int))
        assert weights @ ordered == pytest.approx(float(iqm(drawn)), abs=1e-9)


# ---------------------------------------------------------------- bootstrap


def test_the_bootstrap_interval_is_scipys_percentile_interval():
    values = np.random.default_rng(3).normal(100, 15, 30)
    ours = bootstrap_interval(values, resamples=20_000)
    theirs = stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=20_000, rng=np.random.default_rng(1)
    ).confidence_interval
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.25)
    middle = bootstrap_interval(values, iqm, resamples=20_000)
    theirs = stats.bootstrap(
        (values,),
        lambda sample, axis: stats.trim_mean(sample, 0.25, axis=axis),
        method="percentile",
        n_resamples=20_000,
        rng=np.random.default_rng(1),
    ).confidence_interval
    assert (middle.low, middle.high) == pytest.approx((theirs.low, theirs.high), abs=0.4)


def test_the_bootstrap_of_two_values_is_what_enumeration_gives():
    # Of (0, 1) the means 0, ½, 1 come with ¼, ½, ¼: the tails of 5 % lie at the ends.
    found = bootstrap_interval([0.0, 1.0])
    assert (found.low, found.high) == (0.0, 1.0)
    assert 0.5 in found


def test_strata_are_resampled_on_their_own():
    """Two tasks of very different size: drawn together the mean would wander between them."""
    tasks = [np.array([1.0, 2.0, 3.0]), np.array([1001.0, 1002.0, 1003.0])]
    apart = bootstrap_interval(tasks)
    together = bootstrap_interval(np.concatenate(tasks))
    assert 500 < apart.low < 502 < apart.high < 504
    assert together.high - together.low > 500


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20))
@settings(max_examples=40)
def test_the_same_values_give_the_same_interval_within_their_range(values):
    found = bootstrap_interval(values, resamples=300)
    assert found == bootstrap_interval(values, resamples=300)
    assert min(values) - 1e-6 <= found.low <= found.high <= max(values) + 1e-6


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    generator = np.random.default_rng(0)
    hits = sum(10.0 in bootstrap_interval(generator.normal(10, 3, 40), resamples=400) for _ in range(200))
    assert 175 <= hits <= 200  # 95 % of 200, less a little: percentile intervals of 40 values are somewhat short


def test_one_value_has_no_interval():
    assert bootstrap_interval([5.0]) is None


def test_many_values_are_resampled_in_pieces(monkeypatch):
    values = np.random.default_rng(0).normal(size=1000)
    whole = bootstrap_interval(values, mean, resamples=64)
    monkeypatch.setattr(statistics, "_AT_ONCE", 5000)
    assert bootstrap_interval(values, mean, resamples=64) == whole


def test_a_difference_that_is_there_is_seen_and_one_that_is_not_is_not():
    generator = np.random.default_rng(5)
    random_policy, better, same = (
        generator.normal(22, 10, 100),
        generator.normal(60, 20, 100),
        generator.normal(22, 10, 100),
    )
    assert difference_interval(better, random_policy).low > 25
    assert 0.0 in difference_interval(same, random_policy)
    for value in (0.0, 0.1, 1 / 3, 1e9 / 7):
        assert difference_interval(np.full(90, value), np.full(100, value)).low == 0  # no rounding error is learning


# ---------------------------------------------------------------- probability of improvement


def by_counting(xs, ys):
    pairs = list(itertools.product(xs, ys))
    return sum(1.0 if x > y else 0.5 if x == y else 0.0 for x, y in pairs) / len(pairs)


def test_the_probability_of_improvement_by_hand():
    found = probability_of_improvement([3.0, 5.0], [1.0, 3.0])
    assert found == Estimate((1 + 0.5 + 1 + 1) / 4, None), "two runs a side are too few for an interval"
    found = probability_of_improvement([3.0, 5.0, 5.0], [1.0, 3.0, 3.0])
    assert found.value in found.interval


@given(scores, scores)
@settings(max_examples=50)
def test_the_probability_of_improvement_is_mann_whitneys_u(xs, ys):
    found = probability_of_improvement(xs, ys, resamples=10).value
    assert found == pytest.approx(by_counting(xs, ys))
    assert found == pytest.approx(stats.mannwhitneyu(xs, ys).statistic / (len(xs) * len(ys)))
    assert found + probability_of_improvement(ys, xs, resamples=10).value == pytest.approx(1)


def test_clearly_better_runs_are_certainly_better():
    found = probability_of_improvement([10.0, 11.0, 12.0], [1.0, 2.0, 3.0])
    assert (found.value, found.interval.low, found.interval.high) == (1.0, 1.0, 1.0)


def test_its_interval_is_that_of_a_bootstrap_that_draws_runs():
    xs, ys = np.array([1.0, 4.0, 6.0, 9.0]), np.array([2.0, 3.0, 5.0, 7.0, 8.0])
    generator = np.random.default_rng(9)
    drawn = [by_counting(generator.choice(xs, 4), generator.choice(ys, 5)) for _ in range(4000)]
    found = probability_of_improvement(xs, ys, resamples=20_000)
    assert (found.interval.low, found.interval.high) == pytest.approx(np.percentile(drawn, [2.5, 97.5]), abs=0.06)


def test_several_tasks_count_alike_however_many_runs_they_have():
    better, worse = [[2.0, 3.0], [1.0]], [[0.0, 1.0], [5.0, 6.0, 7.0]]
    assert probability_of_improvement(better, worse).value == 0.5


def test_one_run_each_has_a_value_and_no_interval():
    found = probability_of_improvement([2.0], [1.0])
    assert (found.value, found.interval) == (1.0, None)


def test_a_single_run_on_one_side_has_no_interval():
    assert probability_of_improvement([3.0], [1.0, 2.0]).interval is None


def test_a_side_without_runs_is_refused():
    with pytest.raises(ValueError, match="at least one run on each side"):
        probability_of_improvement([], [1.0])
