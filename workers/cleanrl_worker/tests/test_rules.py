"""Rules between flags: arithmetic as text, evaluated and nothing else."""

from __future__ import annotations

import importlib

import pytest
from cleanrl_worker.expressions import evaluate, fill, names_in
from cleanrl_worker.rules import broken_rules, notes_on
from cleanrl_worker.testing_runs import train_here

VALUES = {"a": 12, "b": 5, "ratio": 0.5}


@pytest.mark.parametrize(
    ("text", "value"),
    [("a * b", 60), ("a // b + a % b", 4), ("a / 4", 3), ("a >= b", True), ("max(a, b) - min(a, b)", 7),
     ("(a + 1) * ratio", 6.5), ("a if a > b else b", 12)],
)  # fmt: skip
def test_arithmetic_is_evaluated(text, value):
    assert evaluate(text, VALUES) == value


@pytest.mark.parametrize("text", ["__import__('os')", "a.real", "'x' * 3", "[a]", "print(a)", "a ** b", "lambda: a"])
def test_nothing_else_is(text):
    with pytest.raises(ValueError, match="not arithmetic"):
        evaluate(text, VALUES)


def test_names_and_sentences():
    assert names_in("max(a, b) + c") == {"a", "b", "c"}
    assert fill("{a} by {b} is {a * b}", VALUES) == "12 by 5 is 60"
    with pytest.raises(KeyError):
        evaluate("unknown + 1", VALUES)


def test_rules_about_wrong_or_unknown_values_say_nothing():
    rules = (("a % b == 0", "{b} does not divide {a}"), ("c > 0", "c must be positive"))
    assert broken_rules(rules, VALUES) == ["5 does not divide 12"]
    assert broken_rules(rules, {**VALUES, "b": 0}, leaving_out={"b"}) == []
    assert broken_rules(rules, {**VALUES, "b": "five"}) == []


def test_what_cleanrl_runs_is_a_note_and_no_refusal():
    short = {"learning_starts": 100, "total_timesteps": 100, "num_envs": 4, "num_steps": 50}
    assert broken_rules((), short) == []
    assert notes_on({}, short) == [
        "--learning-starts 100 is not reached in 100 steps: nothing will be learned",
        "--total-timesteps 100 is less than one batch of 200 steps (--num-envs 4 × --num-steps 50): nothing will be "
        "trained",
    ]
    assert notes_on({}, {**short, "total_timesteps": 200}) == []
    assert notes_on({"NOTES": ()}, short) == []  # a file's own count instead


@pytest.mark.parametrize("name", ["ppo", "pqn", "dqn"])
def test_less_than_one_batch_ends_with_nothing_trained(tmp_path, name):
    """As in CleanRL: 100 steps are no batch of PPO or PQN, and DQN plays without learning."""
    module = importlib.import_module(f"cleanrl_worker.algorithms.{name}")
    run, _ = train_here(module, tmp_path, module.Args(env_id="CartPole-v1", total_timesteps=100, cuda=False), algo=name)
    assert run._step == (100 if name == "dqn" else 0)
    assert (tmp_path / f"{name}.cleanrl_model").is_file()
    assert [kind for kind, _ in run._channel.told].count("note") == 1
