"""Runs that differ only in their seed, as one line; and what the cells say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gym_gui.services.analytics.configurations import short_value
from gym_gui.ui.runs.grouping import Group, arranged, configuration_of, summarize
from gym_gui.ui.runs.rows import RunColumn, RunRow, in_order, started_text
from mosaic_wire.ids import new_run_id
from mosaic_wire.proto import trainer_pb2 as pb


def a_row(parameters: dict[str, Any] | None = None, **fields: Any) -> RunRow:
    usual = {"run_id": new_run_id(), "status": "TERM", "outcome": "completed", "worker_type": "cleanrl", "algo": "ppo"}
    extras = {"algo_params": parameters or {}, "tensorboard_dir": f"runs/{new_run_id()}"}
    return RunRow(
        pb.Run(**{**usual, "env_id": "CartPole-v1", "total": 500_000, "extras_json": json.dumps(extras), **fields})
    )


def everything(
    rows: list[RunRow], column: RunColumn = RunColumn.STARTED, *, descending: bool = False
) -> list[RunRow | Group]:
    return arranged(rows, column, descending=descending, is_open=lambda entry_id: True)


def test_seeds_of_one_configuration_stand_under_one_line_with_mean_and_spread() -> None:
    rows = [
        a_row({"learning_rate": 2.5e-4}, seed=seed, episodic_return=value) for seed, value in enumerate((400.0, 500.0))
    ]
    other = a_row({"learning_rate": 1e-3}, seed=1)
    group, *members = everything([*rows, other])
    assert isinstance(group, Group)
    assert group.full_title == "ppo · CartPole-v1 · lr 2.5e-4 (2 seeds)"
    assert group.text(RunColumn.RETURN) == "450.0 ± 70.7"
    assert group.text(RunColumn.SEED) == "2 seeds"
    assert group.text(RunColumn.STATUS) == "2 completed"
    assert members == [*rows, other]  # a configuration with a single run has no line of its own


def test_a_seed_that_was_trained_twice_is_in_the_mean_once() -> None:
    rows = [
        a_row(seed=seed, number=number, episodic_return=float(value))
        for number, (seed, value) in enumerate([(1, 400), (2, 500), (1, 300)])
    ]
    group, *members = everything(rows)
    assert isinstance(group, Group)
    assert (group.text(RunColumn.RETURN), len(members)) == ("400.0 ± 141.4", 3)
    assert group.tooltip(RunColumn.RETURN) == "Mean ± standard deviation over the seeds, each counted once"


def test_a_closed_group_hides_its_runs() -> None:
    rows = [a_row(seed=1), a_row(seed=2)]
    (group,) = arranged(rows, RunColumn.NAME, descending=False, is_open=lambda entry_id: False)
    assert isinstance(group, Group)
    assert group.rows == rows


def test_a_group_has_the_tags_that_all_of_its_runs_have() -> None:
    rows = [a_row(seed=1, tags=["paper", "b", "a"]), a_row(seed=2, tags=["a", "draft", "paper"])]
    (group,) = arranged(rows, RunColumn.NAME, descending=False, is_open=lambda entry_id: False)
    assert group.text(RunColumn.TAGS) == "paper, a"


def test_groups_stand_in_the_order_of_their_means() -> None:
    weak = [a_row({"gamma": 0.9}, seed=seed, episodic_return=value) for seed, value in enumerate((500.0, 10.0))]
    good = [a_row({"gamma": 0.99}, seed=seed, episodic_return=value) for seed, value in enumerate((300.0, 320.0))]
    unknown = a_row({"gamma": 0.5})
    rows = in_order([*weak, unknown, *good], RunColumn.RETURN, descending=True)
    titles = [entry.title for entry in everything(rows, RunColumn.RETURN, descending=True) if isinstance(entry, Group)]
    assert titles == ["ppo · CartPole-v1 · γ 0.99", "ppo · CartPole-v1 · γ 0.9"]
    assert everything(rows, RunColumn.RETURN, descending=True)[-1] is unknown


def test_groups_of_the_same_title_say_how_long_they_train() -> None:
    rows = [a_row(seed=seed, total=total) for total in (50_000, 100_000) for seed in (1, 2)]
    titles = {entry.title for entry in everything(rows) if isinstance(entry, Group)}
    assert titles == {"ppo · CartPole-v1 · 50.0k steps", "ppo · CartPole-v1 · 100k steps"}


def test_a_queued_seed_belongs_to_those_at_work_though_they_round_their_steps() -> None:
    rows = [a_row(seed=1, total=2560), a_row(seed=2, total=3000, status="INIT", outcome="")]
    group, *members = everything(rows)
    assert isinstance(group, Group)
    assert group.configuration.total == 2560
    assert members == rows
    rows += [a_row(seed=3, total=9000), a_row(seed=4, total=9000)]  # now it could belong to either
    assert [len(entry.rows) for entry in everything(rows) if isinstance(entry, Group)] == [2]


def test_an_evaluation_is_not_the_training_it_came_from() -> None:
    evaluation = RunRow(pb.Run(run_id=new_run_id(), algo="ppo", env_id="x", extras_json='{"mode": "policy_eval"}'))
    training = RunRow(pb.Run(run_id=new_run_id(), algo="ppo", env_id="x", extras_json='{"mode": "train"}'))
    assert configuration_of(evaluation) != configuration_of(training)
    assert configuration_of(evaluation).title == "ppo · x · policy_eval"


def test_a_run_whose_extras_are_damaged_has_a_place_too() -> None:
    assert configuration_of(RunRow(pb.Run(run_id="r", algo="ppo", extras_json="{broken"))).title == "ppo"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("0.00025", "2.5e-4"),
        ("0.5", "0.5"),
        ("1e6", "1e6"),
        ("128", "128"),
        ("true", "true"),
        ('"adam"', "adam"),
        ("0.0", "0"),
        ("1.234567e-5", "1.235e-5"),
        ("[1, 2]", "[1, 2]"),
    ],
)
def test_values_are_written_as_people_write_them(text: str, shown: str) -> None:
    assert short_value(text) == shown


def test_a_summary_leaves_out_what_is_no_number() -> None:
    summary = summarize([a_row(episodic_return=float("nan")), a_row(episodic_return=3.0), a_row(sps=float("inf"))])
    assert (summary.mean_return, summary.return_spread, summary.mean_sps) == (3.0, None, None)


# ------------------------------------------------------------------ rows


def test_rows_without_a_value_come_last_whichever_way_it_is_sorted() -> None:
    low, high, none, broken = (
        a_row(episodic_return=1.0),
        a_row(episodic_return=2.0),
        a_row(),
        a_row(episodic_return=float("nan")),
    )
    rows = [none, low, broken, high]
    assert in_order(rows, RunColumn.RETURN, descending=False) == [low, high, none, broken]
    assert in_order(rows, RunColumn.RETURN, descending=True) == [high, low, none, broken]


@pytest.mark.parametrize(
    ("fields", "column", "text"),
    [
        (
            {"status": "EXEC", "outcome": "", "step": 50, "total": 100, "eta_s": 75.0},
            RunColumn.PROGRESS,
            "50 % · 1:15 left",
        ),
        ({"outcome": "cancelled", "step": 50, "total": 100, "eta_s": 75.0}, RunColumn.PROGRESS, "50 %"),
        ({"outcome": "completed", "step": 50, "total": 100}, RunColumn.PROGRESS, "100 %"),
        ({"status": "INIT", "step": 0, "total": 100}, RunColumn.PROGRESS, ""),
        ({"step": 12_288, "total": 0}, RunColumn.PROGRESS, "12.3k"),
        ({"name": ""}, RunColumn.SEED, ""),
        ({"seed": 0}, RunColumn.SEED, "0"),
        ({"started_at": 100.0, "finished_at": 175.0}, RunColumn.DURATION, "1:15"),
        ({"size_bytes": 1536}, RunColumn.SIZE, "1.5 KiB"),
        ({"sps": 12_288.0}, RunColumn.SPS, "12.3k"),
        ({"tags": ["paper", "draft"]}, RunColumn.TAGS, "paper, draft"),
        ({"status": "EXEC", "outcome": "", "flags": ["stalled"]}, RunColumn.STATUS, "stalled"),
    ],
)
def test_cells_say_what_people_want_to_know(fields: dict[str, Any], column: RunColumn, text: str) -> None:
    assert a_row(**fields).text(column) == text


def test_a_start_of_today_is_an_hour_and_an_older_one_a_date() -> None:
    now = 1_700_000_000.0
    assert ":" in started_text(now, now)
    assert len(started_text(now - 400 * 86_400, now)) == len("2022-10-10")
    assert started_text(0, now) == ""
