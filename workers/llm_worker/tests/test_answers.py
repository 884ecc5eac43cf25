"""Which action an answer names: one that is legal and clear, or none."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llm_worker.answers import NONSENSE, Constraint, grammar_of, parse, repair_request, schema_of, written

ACTIONS = ["left", "down", "right", "up"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("left", "left"),
        (" `down`.\n", "down"),
        ('{"action": "up"}', "up"),
        ('```json\n{"action": "up"}\n```', "up"),
        ("I go RIGHT now", "right"),
        ("left or right", None),
        ("", None),
        ("north", None),
        ('{"action": "north"}', None),
        ('{"action": ["left"]}', None),
        ('{"action"', None),
        ("upleft", None),
        ("{" * 100_000, None),
        ("right. Right!", "right"),
    ],
)
def test_an_answer_names_one_legal_action_or_none(text: str, named: str | None) -> None:
    assert parse(text, ACTIONS) == named


def test_the_longer_name_of_two_is_meant() -> None:
    assert parse("I choose move_left", ["left", "move_left"]) == "move_left"
    assert parse("+0.50 -1.00", ["+0.50 -1.00", "+0.50 +1.00"]) == "+0.50 -1.00"


@given(st.text(max_size=200))
@settings(max_examples=50)
def test_whatever_a_model_says_is_a_legal_action_or_nothing(text: str) -> None:
    assert parse(text, ACTIONS) in {*ACTIONS, None}


@pytest.mark.parametrize("constraint", Constraint)
@pytest.mark.parametrize("action", ACTIONS)
def test_what_is_shown_as_a_correct_answer_is_one(constraint: Constraint, action: str) -> None:
    assert parse(written(action, constraint), ACTIONS) == action


def test_schema_and_grammar_allow_the_actions_and_nothing_else() -> None:
    assert schema_of(ACTIONS)["properties"]["action"]["enum"] == ACTIONS
    assert schema_of(ACTIONS)["additionalProperties"] is False
    assert grammar_of(['say "hi"', "left"]) == r'root ::= "say \"hi\"" | "left"'


def test_the_probe_asks_for_words_that_nobody_says() -> None:
    assert parse("hello", NONSENSE) is None
    assert parse(json.dumps({"action": NONSENSE[0]}), NONSENSE) == NONSENSE[0]


def test_a_long_answer_is_quoted_in_part() -> None:
    request = repair_request("x" * 10_000, Constraint.TEXT, ACTIONS)
    assert len(request) < 300
    assert "left, down, right, up" in request
