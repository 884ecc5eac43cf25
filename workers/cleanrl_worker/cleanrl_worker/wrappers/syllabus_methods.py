"""Syllabus-RL's own curricula, asked in this process: which environment has the next episode?

Syllabus usually sits in a process of its own behind queues, where the answer depends on who is quicker. Here it is
asked and told in the order things happen: the same seed gives the same curriculum, and a checkpoint holds its memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from cleanrl_worker.errors import BadInput
from cleanrl_worker.wrappers.schedule import Schedule

UPDATE_EPISODES = 25
"""How often learning progress is measured anew, in episodes per environment"""


class SyllabusChooser:
    """One of Syllabus' methods over the environments of a schedule; their conditions play no part."""

    def __init__(self, schedule: Schedule) -> None:
        self._curriculum = _make(schedule)
        self._rng = np.random.Generator(np.random.PCG64(0))

    def seed(self, seed: int) -> None:
        self._rng = np.random.Generator(np.random.PCG64(seed))

    def next_task(self) -> int:
        # Syllabus is asked for the probabilities only: its own `sample` compares an array with a list, which numpy 2
        # refuses, and draws from numpy's global generator.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # advice about baselines, printed at each update
            chances = np.asarray(self._curriculum._sample_distribution(), dtype=np.float64)
        return int(self._rng.choice(len(chances), p=chances / chances.sum()))

    def add_steps(self, count: int) -> None:
        """Nothing: these methods learn from whole episodes."""

    def add_episode(self, task: int, episode_return: float, length: int) -> None:
        success = 1.0 if episode_return > 0 else 0.0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._curriculum.update_task_progress(task, success)
            self._curriculum.update_on_episode(episode_return, length, task, success)

    def stage_change(self) -> dict[str, Any] | None:
        return None

    def snapshot(self) -> dict[str, Any]:
        memory = {name: _plain(value) for name, value in vars(self._curriculum).items() if _is_figure(value)}
        return {"memory": memory, "rng": self._rng.bit_generator.state}

    def restore(self, state: Mapping[str, Any]) -> None:
        for name, value in state["memory"].items():
            setattr(self._curriculum, name, np.array(value) if isinstance(value, list) else value)
        self._rng.bit_generator.state = state["rng"]


def _make(schedule: Schedule) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its imports warn about each other
            from syllabus.curricula import DomainRandomization, OnlineLearningProgress
            from syllabus.task_space import DiscreteTaskSpace
    except ImportError as error:
        raise BadInput(
            f"the curriculum method {schedule.method!r} needs Syllabus ({error}); "
            "install it: mosaic extras install curriculum"
        ) from error
    count = len(schedule.stages)
    space = DiscreteTaskSpace(count)
    if schedule.method == "domain_randomization":
        return DomainRandomization(space)
    return OnlineLearningProgress(space, update_interval=UPDATE_EPISODES * count)


def _is_figure(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | np.ndarray)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value
