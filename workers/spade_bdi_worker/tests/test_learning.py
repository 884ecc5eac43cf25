"""What the behaviours that come along achieve."""

from __future__ import annotations

import statistics

import pytest

LAKE = {"env_kwargs": "is_slippery=false"}


def steps_to(success: float, points: list[tuple[int, float]], window: int = 20) -> float:
    """The step at which the mean return of the last episodes reaches `success`."""
    returns = [value for _, value in points]
    for end in range(window, len(points) + 1):
        if statistics.fmean(returns[end - window : end]) >= success:
            return points[end - 1][0]
    return float("inf")


def test_q_learning_solves_the_frozen_lake(train):
    done = train(steps=8_000, **LAKE)
    assert done.code == 0, done.error
    assert done.manifest.evaluation["mean_return"] >= 0.95
    assert done.manifest.evaluation["episodes"] == 20


@pytest.mark.parametrize(("env_id", "steps"), [("MiniGrid-Empty-8x8-v0", 30), ("MiniGrid-DoorKey-5x5-v0", 60)])
def test_the_planner_solves_grid_worlds(train, env_id, steps):
    done = train(env_id, steps, behaviour="planner", eval_episodes=8)
    assert done.code == 0, done.error
    evaluation = done.manifest.evaluation
    assert evaluation["mean_return"] > 0.9, "every episode reaches the goal, by a short way"
    assert not done.state(steps)["values"], "it plans; there was nothing to learn"


@pytest.mark.slow
@pytest.mark.parametrize(
    "env_id",
    [
        *("MiniGrid-DoorKey-8x8-v0", "MiniGrid-LavaGapS5-v0", "MiniGrid-MultiRoom-N2-S4-v0", "MiniGrid-Unlock-v0"),
        *("BabyAI-GoToRedBallGrey-v0", "BabyAI-GoToLocal-v0", "BabyAI-PickupLoc-v0", "BabyAI-OpenDoor-v0"),
    ],
)
def test_the_planner_solves_more_than_the_examples(train, env_id):
    done = train(env_id, 100, behaviour="planner", eval_episodes=10)
    assert done.code == 0, done.error
    assert done.manifest.evaluation["mean_return"] > 0.6


def test_where_no_plan_applies_the_planner_learns(train):
    done = train(steps=6_000, behaviour="planner", **LAKE)
    assert done.code == 0, done.error
    assert done.manifest.evaluation["mean_return"] >= 0.95


def test_teacher_and_pupil_beat_the_pupil_alone(train):
    alone = train(steps=6_000, **LAKE, eval_episodes=0)
    taught = train(steps=3_000, behaviour="teacher_pupil", **LAKE)
    assert taught.code == 0, taught.error
    # The exploration of both falls over the same number of steps.
    same_rate = train(steps=6_000, behaviour="teacher_pupil", **LAKE)
    assert steps_to(0.9, same_rate.returns()) < steps_to(0.9, alone.returns())
    assert taught.manifest.evaluation["mean_return"] >= 0.95, "the pupil has learned it, without the teacher"


@pytest.mark.slow
def test_tiles_learn_classic_control(train):
    done = train("MountainCar-v0", 60_000, exploration=0.1, exploration_final=0.0, discount=1.0, learning_rate=0.3)
    assert done.code == 0, done.error
    assert done.manifest.evaluation["mean_return"] > -180


def test_a_policy_is_evaluated_beside_a_random_one(train):
    trained = train(steps=6_000, **LAKE, eval_episodes=0)
    for policy in (str(trained.checkpoint(6_000)), trained.folder.root.name):  # `mosaic eval` names the run
        played = train(steps=10, extras={"mode": "policy_eval", "checkpoint_path": policy})
        assert played.code == 0, played.error
        assert played.manifest.evaluation == {"mean_return": 1.0, "std_return": 0.0, "episodes": 10}
        assert played.returns() == [(episode, 1.0) for episode in range(1, 11)]  # its curves count episodes
        assert not played.folder.checkpoints.exists()
    nothing = train(steps=10, extras={"mode": "policy_eval", "checkpoint_path": played.folder.root.name}, **LAKE)
    assert (nothing.code, "has no checkpoint that could be evaluated" in nothing.error) == (2, True)
    random = train(steps=10, extras={"mode": "policy_eval", "eval_policy": "random"}, **LAKE)
    assert random.manifest.evaluation["mean_return"] < 0.5


def test_a_behaviour_of_ones_own_acts(train, behaviour):
    path = behaviour(
        walker="""
        way([right, right, down, down, down, right]).
        +episode(_) : way(Way) <- -+left(Way).
        +!act : left([Step | Rest]) <- -+left(Rest); .act(Step).
    """
    )
    done = train(steps=12, behaviour_path=path, **LAKE)
    assert done.code == 0, done.error
    assert [value for _, value in done.returns()] == [1.0, 1.0]
    assert (done.folder.root / "behaviour" / "walker.asl").is_file()


def test_the_same_seed_gives_the_same_run(train):
    first, second, other = (train(steps=500, seed=seed, **LAKE, eval_episodes=0) for seed in (3, 3, 4))
    assert first.state(500) == second.state(500)
    assert first.state(500)["values"] != other.state(500)["values"]
