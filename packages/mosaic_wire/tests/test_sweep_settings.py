"""What a sweep is asked to do: ranges as people write them, and all problems reported at once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mosaic_wire.errors import Problem
from mosaic_wire.sweep_settings import (
    ParameterRange,
    check_ranges,
    range_from_text,
    read_ranges,
    read_settings,
    sweep_fields,
    with_parameters,
)
from mosaic_wire.worker_spec import AlgorithmSpec, FieldSpec

TRIAL = {
    "metadata": {
        "worker": {
            "type": "cleanrl",
            "config": {
                "algo": "ppo",
                "env_id": "CartPole-v1",
                "total_timesteps": 1000,
                "extras": {"algo_params": {"num_envs": 4}},
            },
        }
    }
}
X = {"kind": "float", "low": 0.0, "high": 1.0}
PPO = AlgorithmSpec(
    "ppo",
    fields=(
        FieldSpec("learning_rate", "float", 2.5e-4, minimum=0, maximum=1),
        FieldSpec("num_steps", "int", 128, minimum=1),
        FieldSpec("anneal_lr", "bool", True),
        FieldSpec("optimizer", "str", "adam", choices=("adam", "sgd")),
        FieldSpec("seed", "int", 1),
    ),
)


@pytest.mark.parametrize(
    ("text", "document"),
    [
        ("log:1e-5:1e-2", {"kind": "float", "low": 1e-5, "high": 1e-2, "log": True}),
        ("float:0:1", {"kind": "float", "low": 0.0, "high": 1.0}),
        ("float:0:1:0.25", {"kind": "float", "low": 0.0, "high": 1.0, "step": 0.25}),
        ("int:32:256", {"kind": "int", "low": 32, "high": 256}),
        ("int:32:256:32", {"kind": "int", "low": 32, "high": 256, "step": 32}),
        ("logint:1:1_024", {"kind": "int", "low": 1, "high": 1024, "log": True}),
        ("int:1e3:1e4", {"kind": "int", "low": 1000, "high": 10000}),
        ("choice:true,false", {"kind": "categorical", "choices": [True, False]}),
        ("choice:a, 1,2.5,null", {"kind": "categorical", "choices": ["a", 1, 2.5, None]}),
    ],
)
def test_a_range_is_read_as_people_type_it(text: str, document: dict[str, Any]) -> None:
    assert range_from_text("x", text) == document
    (found,) = read_ranges({"x": document}, [])
    assert found.to_json() == document
    assert range_from_text("x", str(found)) == document, "and written so that it can be read again"


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("1e-5:1e-2", "is not a range"),
        ("log:1e-5", "needs log:LOW:HIGH"),
        ("log:0:1", "above 0"),
        ("log:1:2:3", "needs log:LOW:HIGH"),
        ("int:1.5:2", "not a whole number"),
        ("float:2:1", "below high"),
        ("float:0:one", "not a number"),
        ("float:0:inf", "finite"),
        ("float:0:1:2", "within the range"),
        ("choice:", "which choices"),
    ],
)
def test_a_wrong_range_is_reported_clearly(text: str, reported: str) -> None:
    with pytest.raises(ValueError, match=reported):
        range_from_text("x", text)


def test_choices_are_read_as_the_algorithm_takes_them() -> None:
    assert range_from_text("anneal_lr", "choice:yes,no", PPO.field("anneal_lr"))["choices"] == [True, False]
    assert range_from_text("learning_rate", "choice:1,0.5", PPO.field("learning_rate"))["choices"] == [1.0, 0.5]


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(1, 50))
def test_a_grid_has_its_ends_and_nothing_outside(low: float, width: float, steps: int) -> None:
    each = ParameterRange("x", "float", low, low + width, step=width / steps)
    values = each.values()
    assert values is not None
    assert values[0] == low
    assert all(low <= value <= low + width * (1 + 1e-6) for value in values)
    assert len(values) in (steps, steps + 1, steps + 2)


def problems_of(parameters: dict[str, Any], **settings: Any) -> list[Problem]:
    return read_settings({"parameters": parameters, "trial": TRIAL, **settings})[1]


def test_settings_have_the_defaults_of_their_fields() -> None:
    settings, problems = read_settings({"parameters": {"x": X}, "trial": TRIAL})
    assert not problems
    assert settings is not None
    for field in sweep_fields():
        if field.name not in ("parameters", "trial", "total_timesteps", "seed", "seeds"):
            assert getattr(settings, field.name) == field.default
    json.dumps([field.default for field in sweep_fields()])


@pytest.mark.parametrize(
    ("document", "path", "reported"),
    [
        ({"parameters": {}}, "parameters", "which parameters"),
        ({"parameters": {"x": {"kind": "flaot"}}}, "parameters.x", "one of float, int, categorical"),
        ({"parameters": {"x": {**X, "hgih": 2}}}, "parameters.x", "has no hgih"),
        ({"parameters": {"x": {"kind": "int", "low": 0, "high": 1.5}}}, "parameters.x", "whole number"),
        ({"parameters": {"x": {"kind": "categorical", "choices": []}}}, "parameters.x", "1 to 1000 choices"),
        ({"parameters": {"x": {"kind": "categorical", "choices": [1, 1]}}}, "parameters.x", "is repeated"),
        ({"parameters": {"x": {"kind": "categorical", "choices": [[1]]}}}, "parameters.x", "a choice is text"),
        ({"parameters": {"x": X}, "trial": {}}, "trial.metadata", "is missing"),
        ({"parameters": {"x": X}, "seeds": [1, 1]}, "seeds", "is repeated"),
        ({"parameters": {"x": X}, "seeds": "1-3"}, "seeds", "list of whole numbers"),
        ({"parameters": {"num_envs": X}}, "parameters.num_envs", "also fixed"),
        ({"parameters": {"x": X}, "sampler": "grid"}, "parameters.x", "a grid needs"),
        (
            {"parameters": {"x": {"kind": "categorical", "choices": [1, 2]}}, "sampler": "cmaes"},
            "sampler",
            "cmaes needs a numeric parameter",
        ),
    ],
)
def test_wrong_settings_are_reported_with_their_place(document: dict[str, Any], path: str, reported: str) -> None:
    settings, problems = read_settings({"trial": TRIAL, **document})
    assert settings is None
    assert [problem.path for problem in problems] == [path]
    assert reported in problems[0].message


def test_everything_wrong_is_reported_at_once() -> None:
    wrong = problems_of({"x": {"kind": "float", "low": 1, "high": 0}, "y": 3}, seeds=[], trial={"metadata": {}})
    assert {problem.path for problem in wrong} == {"parameters.x", "parameters.y", "seeds", "trial.metadata.worker"}


def test_ranges_are_checked_against_what_the_algorithm_takes() -> None:
    ranges = read_ranges(
        {
            "lerning_rate": X,
            "learning_rate": {"kind": "float", "low": 0.0, "high": 2.0},
            "num_steps": X,
            "anneal_lr": {"kind": "int", "low": 0, "high": 1},
            "optimizer": {"kind": "categorical", "choices": ["adam", "adamw"]},
            "seed": {"kind": "int", "low": 1, "high": 3},
        },
        [],
    )
    found = {problem.path.rpartition(".")[2]: problem for problem in check_ranges(ranges, PPO)}
    assert found["lerning_rate"].suggestion == "learning_rate"
    assert "at most 1" in found["learning_rate"].message
    assert "whole numbers" in found["num_steps"].message
    assert "choice:true,false" in found["anneal_lr"].message
    assert "'adamw'" in found["optimizer"].message
    assert "cannot be searched" in found["seed"].message
    fine = read_ranges({"learning_rate": {**X, "low": 0.1}, "num_steps": {"kind": "int", "low": 1, "high": 2}}, [])
    assert check_ranges(fine, PPO) == []


def test_a_trial_is_its_template_with_the_values_put_in() -> None:
    before = json.dumps(TRIAL)
    document = with_parameters(TRIAL, {"learning_rate": 0.1, "num_envs": 8})
    assert document["metadata"]["worker"]["config"]["extras"]["algo_params"] == {"num_envs": 8, "learning_rate": 0.1}
    assert json.dumps(TRIAL) == before
