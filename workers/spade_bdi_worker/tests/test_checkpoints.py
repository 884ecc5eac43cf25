"""A resumed run is the run that was not interrupted, to the bit."""

from __future__ import annotations

import json

import pytest

RUNS = {
    "q_learning": ("FrozenLake-v1", 300, {}),
    "tiles": ("CartPole-v1", 150, {}),
    "planner": ("MiniGrid-DoorKey-5x5-v0", 30, {"behaviour": "planner"}),
    "teacher_pupil": ("FrozenLake-v1", 200, {"behaviour": "teacher_pupil", "env_kwargs": "is_slippery=false"}),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_resumed_run_is_the_same_to_the_bit(train, name):
    env_id, half, parameters = RUNS[name]
    parameters = {**parameters, "eval_episodes": 0, "checkpoint_every": half}
    whole = train(env_id, 2 * half, **parameters)
    assert whole.code == 0, whole.error
    at_half = whole.state(half)
    assert at_half["live"]["actions"], "the checkpoint is in the middle of an episode"
    resume = {"mode": "resume_training", "checkpoint_path": str(whole.checkpoint(half))}
    resumed = train(env_id, 2 * half, extras=resume, **parameters)
    assert resumed.code == 0, resumed.error
    assert not resumed.error
    assert resumed.state(2 * half) == whole.state(2 * half)
    assert resumed.returns() == [point for point in whole.returns() if point[0] > half]


def test_a_checkpoint_of_another_environment_is_refused(train):
    lake = train(steps=20, eval_episodes=0)
    resume = {"mode": "resume_training", "checkpoint_path": str(lake.checkpoint(20))}
    refused = train("CartPole-v1", 40, extras=resume)
    assert (refused.code, "has 4 actions; CartPole-v1 has 2" in refused.error) == (2, True)


def test_a_changed_behaviour_continues_with_its_beliefs_and_says_so(train, behaviour):
    parameters = {"behaviour_path": behaviour(walker="seen(7). +!act <- .act(1)."), "eval_episodes": 0}
    first = train(steps=20, **parameters)
    behaviour(walker="+!act : seen(7) <- .act(2).")
    resume = {"mode": "resume_training", "checkpoint_path": str(first.checkpoint(20))}
    second = train(steps=40, extras=resume, **parameters)
    assert second.code == 0, second.error
    assert "the behaviour has changed since the checkpoint" in second.error


def test_every_kind_of_term_survives_a_checkpoint(train, behaviour):
    text = """
        fact("a \\"quoted\\" täxt", -0.1, 1.0e-7, [1, [b, "c"]], d(e)[source(self)]).
        +!act : fact(A, B, C, D, E) <- -+copy(A, B, C, D, E); .act(1).
    """
    done = train(steps=2, behaviour_path=behaviour(walker=text), eval_episodes=0)
    assert done.code == 0, done.error
    beliefs = {belief["name"]: belief["args"] for belief in done.state(2)["beliefs"]["walker"]}
    assert beliefs["copy"] == beliefs["fact"]
    assert beliefs["fact"][1:4] == [-0.1, 1e-07, [1, [{"name": "b", "args": []}, "c"]]]
    assert json.dumps(beliefs["fact"][4]["notes"])
