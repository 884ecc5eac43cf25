"""Why an agent acted: bounded by who sends it, read without trust by who shows it."""

from __future__ import annotations

import json

from mosaic_wire.reasoning import MAX_ITEMS, MAX_TEXT, Part, reasoning_info, reasoning_of


def test_parts_come_back_as_they_were_sent() -> None:
    parts = (Part("Chosen plan", "+!tick : state(3)"), Part("Belief changes", items=("-at(2)", "+at(3)")))
    assert reasoning_of(json.loads(json.dumps(reasoning_info([*parts, Part("Nothing")])))) == parts


def test_a_long_part_is_truncated_and_reports_it() -> None:
    [prompt, beliefs] = reasoning_of(
        reasoning_info([Part("Prompt", "x" * (MAX_TEXT + 7)), Part("Beliefs", items=("b",) * (MAX_ITEMS + 3))])
    )
    assert prompt.text.endswith("x… (7 more characters)")
    assert len(beliefs.items) == MAX_ITEMS + 1
    assert beliefs.items[-1] == "… 3 more"


def test_few_very_long_items_are_bounded_too() -> None:
    [part] = reasoning_of(reasoning_info([Part("Beliefs", items=("x" * MAX_TEXT, "y"))]))
    assert part.items == ("x" * MAX_TEXT, "… 1 more")


def test_what_is_malformed_is_left_out() -> None:
    assert reasoning_of(None) == reasoning_of({}) == reasoning_of({"reasoning": "why"}) == ()
    assert reasoning_of({"reasoning": [3, {"text": "no title"}, {"title": "Plan", "items": 4}]}) == (Part("Plan"),)
