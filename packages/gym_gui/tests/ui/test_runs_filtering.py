"""What people type and tick, and which runs fit."""

from __future__ import annotations

from typing import Any

import pytest
from gym_gui.ui.runs.filtering import Facet, RunFilter, parse
from gym_gui.ui.runs.rows import RunRow
from mosaic_wire.ids import new_run_id
from mosaic_wire.proto import trainer_pb2 as pb


def a_row(**fields: Any) -> RunRow:
    return RunRow(pb.Run(**{"run_id": new_run_id(), "status": "EXEC", "worker_type": "cleanrl", **fields}))


ROWS = {
    "pole": a_row(name="first try", algo="ppo", env_id="CartPole-v1", seed=1, tags=["baseline"], episodic_return=200.0),
    "pong": a_row(name="long", algo="ppo_atari", env_id="ALE/Pong-v5", seed=3, sps=1500.0, status="PAUSE"),
    "taxi": a_row(
        name="draft",
        algo="dqn",
        env_id="Taxi-v3",
        status="TERM",
        outcome="failed",
        tags=["draft", "Base"],
        step=90,
        total=100,
    ),
    "old": a_row(
        name="old", algo="dqn", env_id="Taxi-v3", status="TERM", outcome="completed", archived=True, notes="My Note"
    ),
    "wait": a_row(name="next", algo="sac", env_id="Hopper-v5", status="INIT", worker_type="other", seed=0),
}


def names_of(target: RunFilter) -> set[str]:
    fitting = {row.entry_id for row in target.fitting(ROWS.values())}
    return {name for name, row in ROWS.items() if row.entry_id in fitting}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {"pole", "pong", "taxi", "wait"}),
        ("  ", {"pole", "pong", "taxi", "wait"}),
        ("CARTPOLE", {"pole"}),
        ("ppo", {"pole", "pong"}),
        ("ppo pong", {"pong"}),
        ('"first try"', {"pole"}),
        ('"try first"', set()),
        ("-draft", {"pole", "pong", "wait"}),
        ("algo:ppo", {"pole", "pong"}),
        ("algo:=ppo", {"pole"}),
        ("algorithm:dqn,sac", {"taxi", "wait"}),
        ("-algo:ppo", {"taxi", "wait"}),
        ("env:*Pole*", {"pole"}),
        ("env:pole*", set()),
        ("status:running", {"pole"}),
        ("status:runn", {"pole"}),
        ("status:EXEC", {"pole"}),
        ("state:failed,paused", {"taxi", "pong"}),
        ("status:finished", {"taxi"}),
        ("status:unfinished", {"pole", "pong", "wait"}),
        ("tag:baseline", {"pole"}),
        ("tag:base", {"taxi"}),
        ("tag:base*", {"pole", "taxi"}),
        ("is:tagged", {"pole", "taxi"}),
        ("is:archived", {"old"}),
        ("note:my", set()),
        ("worker:other", {"wait"}),
        ("seed:3", {"pong"}),
        ("seed:0-1", {"pole", "wait"}),
        ("seed:>1", {"pong"}),
        ("seed:1,3", {"pole", "pong"}),
        ("seed:x", set()),
        ("return:>=200", {"pole"}),
        ("return:>200", set()),
        ("sps:>1k", {"pong"}),
        ("done:>50", {"taxi"}),
        ("algo:", {"pole", "pong", "taxi", "wait"}),
        ("algo:ppo status:", {"pole", "pong"}),
        ("ALE/Pong", {"pong"}),
        ("-", set()),
        ('"', {"pole", "pong", "taxi", "wait"}),
    ],
)
def test_a_text_finds_the_runs_it_means(text: str, expected: set[str]) -> None:
    if text == "-":
        # A lone minus is a character like any other; every name here that has one fits.
        expected = {name for name, row in ROWS.items() if "-" in row.haystack and name != "old"}
    assert names_of(RunFilter(text)) == expected


def test_a_word_is_the_beginning_or_the_end_of_an_id_but_never_found_within_one() -> None:
    row = a_row(run_id="01J0000000PZAAAAAAAACCWXYZ", name="mine")
    for word, is_found in (("pz", False), ("pzaaaa", False), ("yz", False), ("wxyz", True), ("01J0", True)):
        assert RunFilter(word).fits(row) is is_found, word
        assert RunFilter(f"-{word}").fits(row) is not is_found, word


def test_a_word_with_an_unknown_field_is_looked_for_as_it_stands() -> None:
    row = a_row(env_id="ale_py:ALE/Pong-v5")
    assert parse("py:ALE stat:running").unknown == ("py", "stat")
    assert RunFilter("py:ALE").fits(row)
    assert not RunFilter("stat:running").fits(row)


def test_the_id_finds_a_run() -> None:
    row = ROWS["pole"]
    assert names_of(RunFilter(row.entry_id[-8:])) == {"pole"}
    assert names_of(RunFilter(f"id:{row.entry_id.lower()}")) == {"pole"}


def test_archived_runs_appear_when_they_are_requested() -> None:
    assert "old" in names_of(RunFilter(show_archived=True))
    assert names_of(RunFilter("notes:my", show_archived=True)) == {"old"}


def test_facets_are_any_of_within_and_all_of_between() -> None:
    target = RunFilter().with_facet(Facet.STATUS, ["running", "failed"])
    assert names_of(target) == {"pole", "taxi"}
    assert names_of(target.with_facet(Facet.ALGORITHM, ["dqn"])) == {"taxi"}
    assert names_of(target.with_facet(Facet.TAG, ["draft", "nobody's"])) == {"taxi"}
    assert names_of(target.with_facet(Facet.STATUS, [])) == {"pole", "pong", "taxi", "wait"}


def test_counts_of_a_facet_leave_out_only_what_the_other_conditions_hide() -> None:
    target = RunFilter("taxi").with_facet(Facet.STATUS, ["running"])
    assert target.counts(Facet.STATUS, ROWS.values()) == {"failed": 1}
    assert target.counts(Facet.ALGORITHM, ROWS.values()) == {}
    assert RunFilter().counts(Facet.TAG, ROWS.values()) == {"baseline": 1, "draft": 1, "Base": 1}


def test_a_filter_that_was_saved_comes_back_as_it_was() -> None:
    target = RunFilter("algo:ppo -draft", show_archived=True).with_facet(Facet.ENVIRONMENT, ["CartPole-v1"])
    assert RunFilter.from_query(target.to_query()) == target


def test_what_the_command_can_use_of_a_filter_stands_in_its_own_fields() -> None:
    query = RunFilter("pole").with_facet(Facet.STATUS, ["running"]).with_facet(Facet.TAG, ["x"]).to_query()
    assert query["text"] == "pole"
    assert query["statuses"] == ["EXEC"]
    assert query["tags"] == ["x"]


def test_a_filter_that_the_command_saved_is_understood() -> None:
    target = RunFilter.from_query({"statuses": ["EXEC"], "outcomes": ["failed"], "tags": ["draft"], "text": "taxi"})
    assert names_of(target) == {"taxi"}
    assert RunFilter.from_query({"window": {"facets": 7, "text": None}, "statuses": "x"}) == RunFilter()
