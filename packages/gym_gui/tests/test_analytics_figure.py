"""Figures: what is one line, how lines are called, and the files they become."""

from __future__ import annotations

import csv
import json
import sys
import xml.etree.ElementTree as xml

import numpy as np
import pytest
from gym_gui.services.analytics import drawing, palette
from gym_gui.services.analytics.configurations import (
    configuration_labels,
    configuration_of,
    environment_kwargs_of,
    parameters_of,
    run_labels,
)
from gym_gui.services.analytics.curves import Axis, Curve, Smoothing
from gym_gui.services.analytics.drawing import UnknownFormat, figure_svg, save_figure, sketch
from gym_gui.services.analytics.exporting import MissingPackage, write_csv, write_parquet
from gym_gui.services.analytics.figure import Band, FigureOptions, build_figure
from gym_gui.services.analytics.lineage import once_per_seed
from mosaic_wire.proto import trainer_pb2 as pb
from PIL import Image
from pyarrow import parquet

RETURN = "charts/episodic_return"


def make_run(
    number: int, *, algo="ppo", env_id="CartPole-v1", seed: int | None = None, parameters=None, **fields
) -> pb.Run:
    extras = json.dumps({"mode": "train", "algo_params": parameters or {}})
    fields = {"total": 1000, "worker_type": "cleanrl", **fields}
    return pb.Run(
        run_id=f"RUN{number:023}",
        number=number,
        algo=algo,
        env_id=env_id,
        seed=seed if seed is not None else number,
        extras_json=extras,
        **fields,
    )


def line_of(run: pb.Run, steps, values, tag: str = RETURN) -> dict[str, Curve]:
    steps, values = np.asarray(steps, float), np.asarray(values, float)
    return {tag: Curve(run.run_id, tag, steps, 5000 + steps, values, len(values))}


def labels(figure) -> list[str]:
    return [line.label for line in figure.lines]


# ---------------------------------------------------------------- names


def test_runs_that_differ_only_in_their_seed_are_one_line_with_a_band():
    runs = [make_run(number) for number in (1, 2, 3)] + [make_run(4, algo="dqn")]
    curves = {run.run_id: line_of(run, [0, 100], [run.number, run.number]) for run in runs}
    figure = build_figure(runs, curves, FigureOptions(band=Band.STD))
    assert labels(figure) == ["ppo · CartPole-v1 (3 seeds)", "dqn · CartPole-v1 · seed 4"]
    band, alone = figure.lines
    assert band.run_ids == tuple(run.run_id for run in runs[:3])
    assert (band.y[0], band.low[0], band.high[0]) == (2.0, 1.0, 3.0)
    assert (alone.low, alone.color, band.color) == (None, 1, 0)
    assert (figure.title, figure.x_label, figure.y_label) == (
        "Episodic return · CartPole-v1",
        "steps",
        "episodic return",
    )
    assert figure.note == "mean ± standard deviation"


def test_what_would_be_called_alike_has_what_it_differs_in():
    runs = [
        make_run(1, parameters={"learning_rate": 2.5e-4, "num_envs": 4}),
        make_run(2, parameters={"learning_rate": 1e-3, "num_envs": 4}),
        make_run(3, parameters={"num_envs": 4}),
        make_run(4, parameters={"num_envs": 4}, total=50_000),
        make_run(5, algo="dqn"),
    ]
    found = configuration_labels([configuration_of(run) for run in runs])
    assert found[:2] == ["ppo · CartPole-v1 · lr 2.5e-4", "ppo · CartPole-v1 · lr 1e-3"]
    assert found[2:] == ["ppo · CartPole-v1 · 1,000 steps", "ppo · CartPole-v1 · 50.0k steps", "dqn · CartPole-v1"]


def test_what_the_daemon_says_may_change_learning_makes_the_groups():
    runs = [
        make_run(1, parameters={"learning_rate": 2.5e-4, "track": True}, learning_json="{}"),
        make_run(2, parameters={"eval_episodes": 5, "exp_name": "x"}, learning_json="{}"),
        make_run(3, parameters={"learning_rate": 1e-3, "capture_video": True}, learning_json='{"learning_rate": 1e-3}'),
    ]
    curves = {run.run_id: line_of(run, [0, 1], [0, 1]) for run in runs}
    assert labels(build_figure(runs, curves, FigureOptions())) == [
        "ppo · CartPole-v1 (2 seeds)",
        "ppo · CartPole-v1 · lr 1e-3 · seed 3",
    ]
    assert parameters_of(runs[0]) == {"learning_rate": 2.5e-4, "track": True}


def test_single_runs_are_called_by_seed_and_by_id_when_that_is_not_enough():
    runs = [make_run(1, seed=1), make_run(2, seed=1), make_run(3, seed=2)]
    found = run_labels(runs, [configuration_of(run) for run in runs])
    assert found == [
        "ppo · CartPole-v1 · seed 1 · 00000001",
        "ppo · CartPole-v1 · seed 1 · 00000002",
        "ppo · CartPole-v1 · seed 2",
    ]


def test_a_seed_that_was_trained_twice_is_in_a_line_once():
    runs = [make_run(1, seed=1), make_run(2, seed=1), make_run(3, seed=2)]
    curves = {run.run_id: line_of(run, [0, 1], [run.number, run.number]) for run in runs}
    (line,) = (figure := build_figure(runs, curves, FigureOptions())).lines
    assert (line.label, line.run_ids, line.y[0]) == (
        "ppo · CartPole-v1 (2 seeds)",
        (runs[1].run_id, runs[2].run_id),
        2.5,
    )
    assert figure.repeated == (runs[0].run_id,)
    assert "each seed counts once: 1 run with a repeated seed left out (00000001)" in figure.note
    (copy,) = build_figure(runs[:2], curves, FigureOptions(band=Band.CI)).lines
    assert (copy.label, copy.low) == ("ppo · CartPole-v1 · seed 1", None)
    assert len(build_figure(runs, curves, FigureOptions(grouped=False)).lines) == 3


def test_of_a_repeated_seed_the_newest_completed_run_counts_and_else_the_longest():
    done, newer, failed = (
        make_run(1, seed=1, outcome="completed", step=1000),
        make_run(2, seed=1, outcome="completed", step=1000),
        make_run(3, seed=1, outcome="failed", step=999),
    )
    short, long = make_run(4, seed=1, outcome="cancelled", step=5), make_run(5, seed=1, outcome="failed", step=50)
    without_seed = [make_run(number) for number in (6, 7)]
    for run in without_seed:
        run.ClearField("seed")
    assert once_per_seed([done, newer, failed]) == ([newer], [done, failed])
    assert once_per_seed([long, short]) == ([long], [short])
    assert once_per_seed([done, newer], having_data=[done.run_id]) == ([done], [newer])
    assert once_per_seed(without_seed) == (without_seed, [])


def test_ungrouped_every_run_is_a_line_and_those_without_the_curve_are_none():
    runs = [make_run(1), make_run(2), make_run(3)]
    curves = {run.run_id: line_of(run, [0, 1], [0, 1]) for run in runs[:2]} | {runs[2].run_id: {}}
    figure = build_figure(runs, curves, FigureOptions(grouped=False))
    assert labels(figure) == ["ppo · CartPole-v1 · seed 1", "ppo · CartPole-v1 · seed 2"]
    assert build_figure(runs, curves, FigureOptions(tag="losses/none")).is_empty


def test_seeds_that_share_no_stretch_are_shown_on_their_own():
    runs = [make_run(1), make_run(2)]
    curves = {runs[0].run_id: line_of(runs[0], [0, 1], [0, 1]), runs[1].run_id: line_of(runs[1], [5, 6], [0, 1])}
    assert labels(build_figure(runs, curves, FigureOptions())) == [
        "ppo · CartPole-v1 · seed 1",
        "ppo · CartPole-v1 · seed 2",
    ]


def test_a_return_by_another_name_is_a_return_and_other_tags_are_meant_exactly():
    run = make_run(1)
    curves = {run.run_id: line_of(run, [0, 1], [0, 1], "rollout/ep_rew_mean")}
    assert len(build_figure([run], curves, FigureOptions()).lines) == 1
    assert build_figure([run], curves, FigureOptions(tag="eval/episodic_return")).is_empty


def test_what_was_measured_lies_faintly_behind_a_smoothed_line():
    run = make_run(1)
    curves = {run.run_id: line_of(run, range(10), [0, 10] * 5)}
    behind, smooth = build_figure([run], curves, FigureOptions(smoothing=Smoothing.window(4))).lines
    assert (behind.is_faint, behind.label, behind.y.max()) == (True, "", 10)
    assert (smooth.is_faint, smooth.y[-1]) == (False, 5.0)


def test_time_is_in_the_unit_that_fits():
    run = make_run(1)
    for last, label, end in ((100, "time (seconds)", 100), (600, "time (minutes)", 10), (36_000, "time (hours)", 10)):
        figure = build_figure([run], {run.run_id: line_of(run, [0, last], [0, 1])}, FigureOptions(axis=Axis.TIME))
        assert (figure.x_label, figure.lines[0].x[-1]) == (label, end)


def test_environment_kwargs_are_found_wherever_they_were_given():
    given = {"continuous": True}
    for extras in ({"env_kwargs": given}, {"algo_params": {"env_kwargs": json.dumps(given)}}):
        assert environment_kwargs_of(pb.Run(extras_json=json.dumps(extras))) == given
    written = {"algo_params": {"env_kwargs": "continuous=true"}}
    assert environment_kwargs_of(pb.Run(extras_json=json.dumps(written))) == given
    assert environment_kwargs_of(pb.Run(extras_json='{"env_kwargs damaged')) == {}


# ---------------------------------------------------------------- continuations


def test_a_run_that_was_continued_is_one_line_without_what_came_after_the_checkpoint():
    first = make_run(1)
    second = make_run(2, seed=1, parent=pb.ParentRun(run_id=first.run_id, step=20))
    third = make_run(3, seed=1, parent=pb.ParentRun(run_id=second.run_id, step=40))
    curves = {
        first.run_id: line_of(first, [10, 20, 30], [1, 2, 99]),
        second.run_id: line_of(second, [30, 40], [3, 4]),
        third.run_id: line_of(third, [50], [5]),
    }
    (line,) = build_figure([third, first, second], curves, FigureOptions()).lines
    assert (line.x.tolist(), line.y.tolist()) == ([10, 20, 30, 40, 50], [1, 2, 3, 4, 5])
    assert line.run_ids == (first.run_id, second.run_id, third.run_id)
    (alone,) = build_figure([second], curves, FigureOptions()).lines
    assert alone.y.tolist() == [3, 4]


def test_the_clock_of_a_continued_run_stands_still_in_between():
    first = make_run(1)
    second = make_run(2, seed=1, parent=pb.ParentRun(run_id=first.run_id, step=20))
    curves = {first.run_id: line_of(first, [10, 20], [1, 1]), second.run_id: line_of(second, [30, 40], [1, 1])}
    curves[second.run_id][RETURN].times[:] = [9000, 9010]  # the next morning
    (line,) = build_figure([first, second], curves, FigureOptions(axis=Axis.TIME)).lines
    assert line.x.tolist() == [0, 10, 10, 20]


# ---------------------------------------------------------------- files


@pytest.fixture(scope="module")
def figure():
    generator = np.random.default_rng(0)
    runs = [make_run(number) for number in range(1, 6)] + [make_run(6, algo="$dqn_$ 强化"), make_run(7, algo="_sac")]
    curves = {run.run_id: line_of(run, range(300), generator.normal(size=300).cumsum()) for run in runs}
    return build_figure(
        runs, curves, FigureOptions(smoothing=Smoothing.ema(0.9), band=Band.CI, title="$returns$ & <more>")
    )


@pytest.mark.parametrize("dark", [False, True])
def test_an_image_has_the_requested_size_and_background(figure, tmp_path, dark):
    save_figure(figure, tmp_path / "a.png", size=(640, 400), dark=dark)
    with Image.open(tmp_path / "a.png") as image:
        assert image.size == (640, 400)
        assert image.convert("RGB").getpixel((2, 2)) == ((0x1E, 0x24, 0x2D) if dark else (255, 255, 255))
        assert len(image.convert("RGB").getcolors(1 << 20)) > 50
    assert [file.name for file in tmp_path.iterdir()] == ["a.png"]


def test_an_svg_is_one_element_with_its_text_and_the_same_every_time(figure):
    text = figure_svg(figure)
    root = xml.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    message = " ".join(root.itertext())
    for expected in ("$returns$ & <more>", "ppo · CartPole-v1 (5 seeds)", "$dqn_$ 强化", "steps", "95 % bootstrap"):
        assert expected in message
    assert figure_svg(figure) == text
    assert len(text) < 400_000


def test_a_pdf_is_a_pdf_and_another_ending_is_refused(figure, tmp_path):
    save_figure(figure, tmp_path / "a.PDF")
    assert (tmp_path / "a.PDF").read_bytes().startswith(b"%PDF-")
    with pytest.raises(UnknownFormat, match=r"a\.gif: a figure's file ends in \.png, \.svg, \.pdf"):
        save_figure(figure, tmp_path / "a.gif")
    with pytest.raises(FileNotFoundError):
        save_figure(figure, tmp_path / "nowhere" / "a.png")
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("flags", [1, 2, 5])
@pytest.mark.parametrize(("size", "most"), [((960, 540), 24), ((400, 300), 6)])
def test_the_legend_of_many_lines_is_counted_and_leaves_room_for_the_axes(monkeypatch, tmp_path, size, most, flags):
    """Warnings are errors here: matplotlib gives up its layout where a legend takes all the room."""
    drawn = []
    monkeypatch.setattr(drawing, "write_canvas", lambda draw, *_, **__: drawn.append(draw(palette.LIGHT)))
    names = ("gamma", "learning_rate", "num_steps", "ent_coef", "update_epochs")[:flags]
    runs = [make_run(number, parameters=dict.fromkeys(names, number / 7)) for number in range(1, 41)]
    curves = {run.run_id: line_of(run, [0, 1000], [run.number, 2 * run.number]) for run in runs}
    save_figure(build_figure(runs, curves, FigureOptions()), tmp_path / "many.png", size=size)
    (canvas,) = drawn
    canvas.draw_without_rendering()
    (legend,), (axes,) = canvas.legends, canvas.axes
    texts = [text.get_text() for text in legend.get_texts()]
    assert len(texts) <= most
    assert texts[-1] == f"… and {40 - len(texts) + 1} more"
    assert legend.get_window_extent().y1 <= axes.get_tightbbox().y0
    assert axes.get_window_extent().height > size[1] / 4
    assert legend.get_window_extent().x0 >= 0, "the first column is cut off"
    assert legend.get_window_extent().x1 <= size[0], "the last column is cut off"


def test_a_file_of_many_long_lines_stays_small(tmp_path):
    runs = [make_run(number) for number in range(40)]
    steps = np.arange(20_000)
    curves = {run.run_id: line_of(run, steps, np.sin(steps / 50 + run.number)) for run in runs}
    save_figure(build_figure(runs, curves, FigureOptions(grouped=False, log_x=True)), tmp_path / "many.svg")
    assert (tmp_path / "many.svg").stat().st_size < 6_000_000
    assert "… and 17 more" in (tmp_path / "many.svg").read_text()


def test_a_sketch_shows_where_lines_end_and_the_ends_of_the_axes():
    runs = [make_run(1), make_run(2, algo="dqn")]
    curves = {
        runs[0].run_id: line_of(runs[0], [0, 1000], [0, 500]),
        runs[1].run_id: line_of(runs[1], [0, 1000], [0, 0]),
    }
    rows = [
        "".join(text for text, _ in row)
        for row in sketch(build_figure(runs, curves, FigureOptions()), width=60, height=10)
    ]
    assert rows[0].startswith("500.0 │")
    assert rows[0].rstrip().endswith("1")
    assert rows[9].startswith("    0 │")
    assert rows[9].rstrip().endswith("2")
    assert rows[-1].rstrip().endswith("1,000 steps")
    assert max(map(len, rows)) <= 60
    assert sketch(build_figure([], {}, FigureOptions())) == []


def test_a_logarithmic_sketch_and_a_flat_one_can_be_drawn():
    run = make_run(1)
    curves = {run.run_id: line_of(run, [1, 10, 100], [0, 0, 0])}
    for options in (FigureOptions(log_x=True, log_y=True), FigureOptions()):
        assert len(sketch(build_figure([run], curves, options), height=4)) == 6


# ---------------------------------------------------------------- points


@pytest.fixture
def points():
    run, other = make_run(1, name="mine, really"), make_run(2, algo="dqn")
    other.ClearField("seed")
    curves = {
        run.run_id: line_of(run, [1, 2], [0.1, 1 / 3]) | line_of(run, [7], [9], "losses/x"),
        other.run_id: line_of(other, [3], [5]),
    }
    return [run, other], curves


def test_points_go_into_a_csv_and_come_back_exactly(points, tmp_path):
    runs, curves = points
    assert write_csv(tmp_path / "points.csv", curves, runs) == 4
    with (tmp_path / "points.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == ["run", "name", "algo", "env", "seed", "tag", "step", "wall_time", "value"]
    assert (rows[1]["name"], rows[1]["seed"], rows[1]["step"], float(rows[1]["value"])) == (
        "mine, really",
        "1",
        "2",
        1 / 3,
    )
    assert (rows[2]["tag"], rows[3]["algo"], rows[3]["seed"]) == ("losses/x", "dqn", "")
    assert [file.name for file in tmp_path.iterdir()] == ["points.csv"]


def test_points_go_into_parquet_with_their_types(points, tmp_path):
    runs, curves = points
    assert write_parquet(tmp_path / "points.parquet", curves, runs) == 4
    table = parquet.read_table(tmp_path / "points.parquet").to_pylist()
    assert table[1] == {
        "run": runs[0].run_id,
        "name": "mine, really",
        "algo": "ppo",
        "env": "CartPole-v1",
        "seed": 1,
        "tag": RETURN,
        "step": 2,
        "wall_time": 5002.0,
        "value": 1 / 3,
    }
    assert table[3]["seed"] is None


def test_without_pyarrow_one_line_reports_it_and_nothing_is_left(points, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingPackage, match=r"pip install pyarrow, or write a \.csv"):
        write_parquet(tmp_path / "points.parquet", points[1])
    assert list(tmp_path.iterdir()) == []


def test_a_table_that_cannot_be_finished_leaves_nothing(points, tmp_path):
    runs, curves = points
    curves["broken"] = {RETURN: Curve("broken", RETURN, np.arange(2.0), np.arange(3.0), np.arange(2.0), 2)}
    with pytest.raises(ValueError, match="zip"):
        write_csv(tmp_path / "points.csv", curves, runs)
    assert list(tmp_path.iterdir()) == []
