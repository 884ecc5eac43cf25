"""Curriculum schedules: what may be written, what is refused, and when a stage is over."""

from __future__ import annotations

import pytest
from cleanrl_worker.wrappers.schedule import (
    PRESETS,
    RETURN_EPISODES,
    CurriculumProgress,
    needs_syllabus,
    parse_schedule,
)
from mosaic_wire.errors import ConfigProblems


def problems_of(document) -> list[str]:
    with pytest.raises(ConfigProblems) as caught:
        parse_schedule(document)
    return [str(problem) for problem in caught.value.problems]


def test_the_example_of_the_worker_s_description_is_read():
    schedule = parse_schedule(
        [
            {"env_id": "A-v0", "steps": 200_000},
            {"env_id": "B-v0", "episodes": 50, "episode_return": 0.5},
            {"env_id": "C-v0", "condition": "steps>=1_000 | episode_return>=0.9"},
            {"env_id": "D-v0"},
        ]
    )
    conditions = [str(stage.condition) for stage in schedule.stages]
    assert conditions == [
        "steps>=200000",
        "episodes>=50|episode_return>=0.5",
        "steps>=1000|episode_return>=0.9",
        "steps>=100000",
    ]
    assert schedule.method == "sequential"


@pytest.mark.parametrize("name", PRESETS)
def test_the_presets_have_four_stages(name):
    assert len(parse_schedule(name).stages) == 4


def test_every_problem_is_reported_at_once():
    reported = problems_of(
        [
            {"env_id": "A-v0", "setps": 5},
            {"steps": 0},
            {"env_id": "B-v0", "condition": "steps<=5|episodse>=3|episode_return>=high|"},
            "C-v0",
        ]
    )
    text = "\n".join(reported)
    assert "extras.curriculum_schedule[0].setps: is not a key of a stage Did you mean 'steps'?" in text
    assert "extras.curriculum_schedule[1].env_id: is missing" in text
    assert "steps must be a whole number from 1, not 0" in text
    assert "'steps<=5': a stage ends when a value is reached; write >=" in text
    assert "Did you mean 'episodes'?" in text
    assert "'high' is no number" in text
    assert "'' is no condition" in text
    assert "extras.curriculum_schedule[3]: must be an object" in text
    assert len(reported) == 8


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "must be a list of stages"),
        (5, "must be a list of stages"),
        ("BABYAI_GOTO", "Did you mean 'BABYAI_GOTO_CURRICULUM'?"),
        ({"method": "learning_progres", "stages": [{"env_id": "A-v0"}]}, "Did you mean 'learning_progress'?"),
        ({"stage": [{"env_id": "A-v0"}]}, "Did you mean 'stages'?"),
        ([{"env_id": "A-v0", "episode_return": float("nan")}], "must be a number"),
        ([{"env_id": "A-v0", "steps": True}], "must be a number"),
        ([{"env_id": "A-v0"}] * 1001, "more than 1000"),
    ],
)
def test_other_bad_schedules_are_refused(document, message):
    assert message in "\n".join(problems_of(document))


def test_only_syllabus_methods_need_syllabus():
    assert needs_syllabus({"method": "domain_randomization", "stages": []})
    assert not needs_syllabus({"stages": []})
    assert not needs_syllabus([{"env_id": "A-v0"}])


# -- when a stage is over


def test_steps_and_episodes_are_counted_per_stage():
    progress = CurriculumProgress(
        parse_schedule([{"env_id": "A", "steps": 10}, {"env_id": "B", "episodes": 2}, {"env_id": "C"}])
    )
    progress.add_steps(9)
    assert not progress.advance()
    progress.add_steps(1)
    assert progress.advance()
    assert (progress.stage, progress.steps, progress.total_steps) == (1, 0, 10)
    progress.count_episode(1.0, counts=False)  # it began in the stage before
    progress.count_episode(1.0)
    assert not progress.advance()
    progress.count_episode(1.0)
    assert progress.advance()
    progress.add_steps(10**9)
    assert not progress.advance()  # the last stage lasts until training ends
    assert progress.total_episodes == 3


def test_a_lucky_first_episode_does_not_end_a_stage():
    progress = CurriculumProgress(parse_schedule([{"env_id": "A", "episode_return": 0.5}, {"env_id": "B"}]))
    for _ in range(RETURN_EPISODES - 1):
        progress.count_episode(1.0)
        assert not progress.advance()
    progress.count_episode(1.0)
    assert progress.advance()


def test_both_sides_of_an_and_must_hold():
    progress = CurriculumProgress(
        parse_schedule([{"env_id": "A", "condition": "steps>=5&episodes>=1"}, {"env_id": "B"}])
    )
    progress.add_steps(5)
    assert not progress.advance()
    progress.count_episode(0.0)
    assert progress.advance()


def test_progress_continues_from_a_snapshot():
    schedule = parse_schedule([{"env_id": "A", "steps": 1}, {"env_id": "B", "episode_return": 2}, {"env_id": "C"}])
    progress = CurriculumProgress(schedule)
    progress.add_steps(1)
    progress.advance()
    for value in range(RETURN_EPISODES - 1):
        progress.count_episode(float(value))
    again = CurriculumProgress(schedule)
    again.restore(progress.snapshot())
    assert again.snapshot() == progress.snapshot()
    again.count_episode(30.0)
    assert again.advance()
