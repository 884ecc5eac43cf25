"""Which parameters distinguish runs: those that may change what is learned, and only where they are not the default."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from gym_gui.services.trainer.catalog import default_seed, learning_parameters
from mosaic_wire.capabilities import WorkerCapabilities
from mosaic_wire.worker_spec import AlgorithmSpec, FieldSpec, WorkerSpec

PPO = AlgorithmSpec(
    "ppo",
    fields=(
        FieldSpec("learning_rate", "float", 2.5e-4),
        FieldSpec("num_envs", "int", 4),
        FieldSpec("anneal_lr", "bool", True),
        FieldSpec("env_kwargs", "str", "{}"),
        FieldSpec("track", "bool", False),
        FieldSpec("seed", "int", 1),
    ),
)
SPEC = WorkerSpec(
    "w", "W", "1", WorkerCapabilities("w"), "w.cli", algorithms=(PPO,), non_learning=("track", "capture_video")
)


@pytest.mark.parametrize(
    ("extras", "kept"),
    [
        ({}, {}),
        ({"algo_params": {"learning_rate": 0.00025, "num_envs": 4.0, "anneal_lr": True, "env_kwargs": "{}"}}, {}),
        ({"algo_params": {"learning-rate": 1e-3, "track": True}}, {"learning_rate": 1e-3}),
        ({"learning_rate": 1e-3, "tensorboard_dir": "x", "somebody": 1}, {"learning_rate": 1e-3}),
        ({"algo_params": {"anneal_lr": 1}}, {"anneal_lr": 1}),
        ({"algo_params": {"env_kwargs": '{"a": 1}'}}, {"env_kwargs": {"a": 1}}),
        ({"env_kwargs": {"a": 1}}, {"env_kwargs": {"a": 1}}),
        ({"algo_params": {"env_kwargs": "{broken"}}, {"env_kwargs": "{broken"}),
        ({"algo_params": {"unheard_of": 1}}, {"unheard_of": 1}),
        ({"algo_params": ["broken"]}, {}),
    ],
)
def test_defaults_and_bookkeeping_are_left_out(extras: dict[str, Any], kept: dict[str, Any]) -> None:
    assert learning_parameters(SPEC, "ppo", extras) == kept


def test_of_a_script_only_the_bookkeeping_is_known() -> None:
    extras = {"script_path": "/x/ppo.py", "algo_params": {"learning_rate": 2.5e-4, "capture_video": True}}
    assert learning_parameters(SPEC, "ppo", extras) == {"learning_rate": 2.5e-4}
    assert default_seed(SPEC, "ppo", extras) is None


def test_a_strangers_parameters_may_all_change_learning() -> None:
    stranger = replace(SPEC, non_learning=())
    assert learning_parameters(stranger, "ppo", {"algo_params": {"track": True}}) == {"track": True}
    assert WorkerSpec.from_json({**stranger.to_json(), "non_learning": ["x"]}).non_learning == ("x",)


def test_a_run_without_a_seed_has_that_of_its_algorithm() -> None:
    assert default_seed(SPEC, "ppo", {}) == 1
    assert default_seed(SPEC, "unknown", {}) is None
