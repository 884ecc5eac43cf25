"""The pyramid under a curve: whatever is added, taken back, written and read again, the extremes are the true ones."""

from __future__ import annotations

import math
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from gym_gui.services.trainer.metrics.series import FAN_OUT, DamagedSeries, Points, Series
from hypothesis import given, settings
from hypothesis import strategies as st


def points_of(values: list[float], first_step: int = 0, stride: int = 1) -> Points:
    points = Points()
    for index, value in enumerate(values):
        points.add(first_step + index * stride, float(index), value)
    return points


VALUES = st.lists(st.floats(-1e6, 1e6, width=32) | st.just(math.nan) | st.just(math.inf), max_size=80)
MOVES = st.lists(
    st.tuples(st.just("append"), VALUES)
    | st.tuples(st.just("flush"), st.none())
    | st.tuples(st.just("reopen"), st.none())
    | st.tuples(st.just("drop_from"), st.integers(0, 600)),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(MOVES, st.integers(1, 200))
def test_a_series_is_a_list_with_extremes(moves, most: int) -> None:
    with TemporaryDirectory() as folder:
        stem = Path(folder) / "0"
        series, steps, values = Series(stem), [], []
        for move, content in moves:
            if move == "append":
                first = steps[-1] + 1 if steps else 0
                series.append(points_of(content, first))
                steps += [first + index for index in range(len(content))]
                values += content
            elif move == "flush":
                series.flush()
            elif move == "reopen":
                series.flush()
                series = Series(stem, len(series))
            else:
                kept = sum(step < content for step in steps)
                del steps[kept:], values[kept:]
                series.drop_from(content)
        everything = series.points(0, len(series), 0)
        assert list(everything.steps) == steps
        assert str(list(everything.values)) == str([float(value) for value in values])
        begin, end = len(steps) // 3, len(steps) - len(steps) // 5
        shown = series.points(begin, end, most)
        known = dict(zip(steps, values, strict=True))
        assert all(str(float(known[step])) == str(value) for step, value in zip(shown.steps, shown.values, strict=True))
        finite = [value for value in values[begin:end] if math.isfinite(value)]
        if finite:
            seen = [value for value in shown.values if math.isfinite(value)]
            assert (min(seen), max(seen)) == (min(finite), max(finite))
        assert list(shown.steps) == sorted(shown.steps)
        averaged, reached = series.means(begin, end, most), begin
        for step, value in zip(averaged.steps, averaged.values, strict=True):
            stretch = [values[at] for at in range(reached, steps.index(step) + 1)]
            if end - begin > most:
                stretch = [known for known in stretch if math.isfinite(known)]
            expected = sum(stretch) / len(stretch) if stretch else math.nan
            assert str(value) == str(float(expected)) or value == pytest.approx(expected, abs=1e-6)
            reached = steps.index(step) + 1
        assert reached == max(begin, end)


def test_a_long_curve_is_shown_by_as_many_points_as_were_asked_for(tmp_path: Path) -> None:
    series = Series(tmp_path / "0")
    values = [math.sin(index / 300) for index in range(200_000)]
    values[77_777], values[123_456] = 9.0, -9.0
    series.append(points_of(values))
    series.flush()
    shown = series.points(0, len(series), 2_000)
    assert 200 < len(shown) <= 2_000 + 4 * FAN_OUT
    assert (min(shown.values), max(shown.values)) == (-9.0, 9.0)
    assert (shown.steps[-1], shown.values[-1]) == (199_999, values[-1])
    averaged = series.means(0, len(series), 2_000)
    assert 1_000 < len(averaged) <= 2_000
    # One spike of 9 among a hundred points moves their mean by a tenth.
    assert (
        max(
            abs(value - math.sin((step - 56) / 300))
            for step, value in zip(averaged.steps, averaged.values, strict=True)
        )
        < 0.3
    )
    near = series.between(77_700, 77_800, 2_000)
    assert list(near.steps) == list(range(77_700, 77_801))


def test_steps_that_go_back_are_kept_in_the_order_they_were_written(tmp_path: Path) -> None:
    series = Series(tmp_path / "0")
    series.append(points_of([1, 2, 3], 100))
    series.append(points_of([4, 5, 6], 0))
    assert not series.is_sorted
    assert list(series.points(0, 6, 0).values) == [1, 2, 3, 4, 5, 6]
    series.drop_from(101)
    assert list(series.points(0, 9, 0).values) == [1, 4, 5, 6]
    assert list(series.between(0, 5, 10).values) == [1, 4, 5, 6]


def test_what_a_killed_daemon_appended_without_an_index_does_not_count(tmp_path: Path) -> None:
    series = Series(tmp_path / "0")
    series.append(points_of(list(range(100))))
    series.flush()
    series.append(points_of(list(range(100)), 100))
    series.flush()
    again = Series(tmp_path / "0", 100)
    again.append(points_of([7.0] * 40, 100))
    assert list(again.points(96, 104, 0).values) == [96, 97, 98, 99, 7, 7, 7, 7]
    assert max(again.points(100, 140, 4).values) == 7.0


def test_files_that_are_too_short_are_damaged(tmp_path: Path) -> None:
    series = Series(tmp_path / "0")
    series.append(points_of(list(range(100))))
    series.flush()
    os.truncate(tmp_path / "0.values", 8)
    with pytest.raises(DamagedSeries, match=r"0\.values has 8 bytes, its index says 800"):
        Series(tmp_path / "0", 100)
