"""Rules between flags: plain functions that say what is wrong, and nothing about what is unknown."""

from __future__ import annotations

import importlib

import pytest
from cleanrl_worker.declarations import Declaration, Flags, broken_rules
from cleanrl_worker.testing import train_here

VALUES = {"a": 12, "b": 5, "ratio": 0.5, "name": "x"}


def test_flags_tell_what_was_read_of_them():
    flags = Flags(VALUES, leaving_out={"ratio"})
    assert (flags.a, flags.b, flags.read) == (12, 5, {"a", "b"})
    for unknown in ("ratio", "name", "other"):
        with pytest.raises(AttributeError):
            getattr(flags, unknown)


def test_rules_about_wrong_or_unknown_values_say_nothing():
    rules = (
        lambda f: f"{f.b} does not divide {f.a}" if f.a % f.b else None,
        lambda f: None if f.c > 0 else "c must be positive",
    )
    assert broken_rules(rules, VALUES) == ["5 does not divide 12"]
    assert broken_rules(rules, {**VALUES, "b": 0}, leaving_out={"b"}) == []
    assert broken_rules(rules, {**VALUES, "b": "five"}) == []


def test_what_cleanrl_runs_is_a_note_and_no_refusal():
    short = {"learning_starts": 100, "total_timesteps": 100, "num_envs": 4, "num_steps": 50}
    assert Declaration().problems(short) == []
    assert Declaration().notes_on(short) == [
        "--learning-starts 100 is not reached in 100 steps: nothing will be learned",
        "--total-timesteps 100 is less than one batch of 200 steps (--num-envs 4 × --num-steps 50): nothing will be "
        "trained",
    ]
    assert Declaration().notes_on({**short, "total_timesteps": 200}) == []
    assert Declaration(notes=()).notes_on(short) == []  # an algorithm's own count instead


@pytest.mark.parametrize("name", ["ppo", "pqn", "dqn"])
def test_less_than_one_batch_ends_with_nothing_trained(tmp_path, name):
    """As in CleanRL: 100 steps are no batch of PPO or PQN, and DQN plays without learning."""
    module = importlib.import_module(f"cleanrl_worker.algorithms.{name}")
    run, _ = train_here(module, tmp_path, module.Args(env_id="CartPole-v1", total_timesteps=100, cuda=False), algo=name)
    assert run._step == (100 if name == "dqn" else 0)
    assert (tmp_path / f"{name}.cleanrl_model").is_file()
    assert [kind for kind, _ in run._channel.messages].count("note") == 1
