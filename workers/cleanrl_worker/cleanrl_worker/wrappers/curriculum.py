"""Curricula: environments that change while the training loop goes on.

The training loop does not know of it. Each of its environments is a `BabyAITaskWrapper`, whose next episode may be in
another environment than the last; which one, the schedule says (`wrappers/schedule.py`). A sequence of stages is
counted here, step by step, so that a resumed run goes on in the same stage to the bit. The methods that choose among
the environments themselves are Syllabus' (`wrappers/syllabus_methods.py`, requirement set `curriculum`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from cleanrl_worker.errors import BadInput
from cleanrl_worker.training.envs import EnvState, SyncEnvs, make_single, said_of
from cleanrl_worker.wrappers.schedule import (
    BABYAI_DOORKEY_CURRICULUM,
    BABYAI_GOTO_CURRICULUM,
    SEQUENTIAL,
    Progress,
    Schedule,
    parse_schedule,
)

__all__ = [
    "BABYAI_DOORKEY_CURRICULUM",
    "BABYAI_GOTO_CURRICULUM",
    "BabyAITaskWrapper",
    "CurriculumEnvs",
    "Schedule",
    "parse_schedule",
    "run_curriculum_training",
]

OnStage = Callable[[Mapping[str, Any]], None]


class BabyAITaskWrapper(gym.Wrapper):
    """One environment out of several: a task is the position of an id in the list.

    Has the methods of Syllabus' ReinitTaskWrapper, so its sync wrapper takes it, without needing Syllabus; a seed is a
    seed here, never a task. Environments are made when they are first wanted and kept.
    """

    def __init__(
        self, env_ids: Sequence[str], env_kwargs: Mapping[str, Any] | None = None, *, task: int = 0, **options: Any
    ) -> None:
        self._env_ids, self._env_kwargs, self._options = tuple(env_ids), env_kwargs, options
        self._made: dict[int, gym.Env] = {}
        self.task_space = gym.spaces.Discrete(len(self._env_ids))
        self.task, self.task_completion = task, 0.0
        super().__init__(self._environment(task))

    def _environment(self, task: int) -> gym.Env:
        if task not in self._made:
            env_id = self._env_ids[task]
            with said_of(env_id):
                self._made[task] = make_single(env_id, self._env_kwargs, **self._options)
        return self._made[task]

    def change_task(self, new_task: int) -> None:
        """Go over to another environment; reset it before the next step."""
        self.task = int(new_task)
        self.env = self._environment(self.task)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None, new_task: int | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, of another task if one is given."""
        if new_task is not None:
            self.change_task(new_task)
        obs, info = self.env.reset(seed=seed, options=options)
        self.task_completion = 0.0
        return obs, {**info, "task": self.task, "task_completion": 0.0}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.task_completion = 1.0 if terminated and float(reward) > 0 else 0.0
        told = {**info, "task": self.task, "task_completion": self.task_completion}
        return obs, reward, bool(terminated), bool(truncated), told

    def close(self) -> None:
        for env in self._made.values():
            env.close()


class Chooser(Protocol):
    """Says which task the next episode has."""

    def seed(self, seed: int) -> None: ...

    def next_task(self) -> int: ...

    def add_steps(self, count: int) -> None: ...

    def add_episode(self, task: int, episode_return: float, length: int) -> None: ...

    def stage_change(self) -> dict[str, Any] | None:
        """What is to be told when a new stage has begun since the last call."""

    def snapshot(self) -> dict[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


class SequentialChooser:
    """One stage after the other."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._progress = schedule, Progress(schedule)

    def seed(self, seed: int) -> None:
        """Nothing is drawn here."""

    def next_task(self) -> int:
        return self._progress.stage

    def add_steps(self, count: int) -> None:
        self._progress.add_steps(count)

    def add_episode(self, task: int, episode_return: float, length: int) -> None:
        # The last episodes of a stage may end in the next one; they say nothing about its environment.
        self._progress.add_episode(episode_return, counts=task == self._progress.stage)

    def stage_change(self) -> dict[str, Any] | None:
        left, metrics = self._progress.stage, self._progress.metrics
        if not self._progress.advance():
            return None
        stages = self._schedule.stages
        return {
            "stage": self._progress.stage, "stages": len(stages), "env_id": stages[self._progress.stage].env_id,
            "step": self._progress.total_steps, "total_episodes": self._progress.total_episodes,
            "left": {
                "env_id": stages[left].env_id, "condition": str(stages[left].condition), "steps": metrics["steps"],
                "episodes": metrics["episodes"], "episode_return": metrics["episode_return"],
            },
        }  # fmt: skip

    def snapshot(self) -> dict[str, Any]:
        return self._progress.snapshot()

    def restore(self, state: Mapping[str, Any]) -> None:
        self._progress.restore(state)


class CurriculumEnvs(SyncEnvs):
    """Vector environments whose episodes come from a curriculum.

    Every episode has a seed out of a generator per environment: its origin is (task, seed), whatever came before.
    """

    backend = "curriculum"

    def __init__(
        self,
        schedule: Schedule,
        num_envs: int,
        env_kwargs: Mapping[str, Any] | None = None,
        *,
        on_stage: OnStage = lambda facts: None,
    ) -> None:
        self._schedule, self._on_stage = schedule, on_stage
        wrappers = [BabyAITaskWrapper(schedule.env_ids, env_kwargs) for _ in range(num_envs)]
        _check_spaces(schedule.env_ids, wrappers[0])
        self._take(wrappers)
        self._chooser: Chooser = _chooser(schedule)
        self._seeds = [np.random.Generator(np.random.PCG64(index)) for index in range(num_envs)]
        self._returns, self._lengths = np.zeros(num_envs), np.zeros(num_envs, dtype=np.int64)

    def reset(self, seed: int) -> np.ndarray:
        """Begin an episode everywhere; the stage stays what it is."""
        self._seeds = [
            np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, index])))
            for index in range(self.num_envs)
        ]
        self._chooser.seed(seed)
        self._returns[:], self._lengths[:] = 0, 0
        for index in range(self.num_envs):
            self._obs[index] = self._start_episode(index)
        return self._obs.copy()

    def _count(self, rewards: np.ndarray, ended: np.ndarray) -> None:
        self._returns += rewards
        self._lengths += 1
        self._chooser.add_steps(self.num_envs)
        for index in np.flatnonzero(ended).tolist():
            task = self._origins[index]["task"]
            self._chooser.add_episode(task, float(self._returns[index]), int(self._lengths[index]))
            self._returns[index], self._lengths[index] = 0, 0
        if (facts := self._chooser.stage_change()) is not None:
            self._on_stage(facts)

    def _start_episode(self, index: int) -> np.ndarray:
        task, seed = self._chooser.next_task(), int(self._seeds[index].integers(2**31))
        self._origins[index], self._actions[index] = {"task": task, "seed": seed}, []
        wrapper = self._envs[index]
        assert isinstance(wrapper, BabyAITaskWrapper)
        obs: np.ndarray = wrapper.reset(seed=seed, new_task=task)[0]
        return obs

    def snapshot(self) -> EnvState:
        state = super().snapshot()
        curriculum = {
            "env_ids": list(self._schedule.env_ids), "method": self._schedule.method,
            "chooser": self._chooser.snapshot(), "seeds": [rng.bit_generator.state for rng in self._seeds],
            "returns": self._returns.tolist(), "lengths": self._lengths.tolist(),
        }  # fmt: skip
        return EnvState(state.arrays, {**state.values, "curriculum": curriculum})

    def restore(self, state: EnvState) -> np.ndarray | None:
        known = state.values.get("curriculum")
        if known is None:
            raise BadInput("the checkpoint is not of a curriculum, so it does not say which stage to go on in")
        _check_same_tasks(self._schedule, known)
        obs = super().restore(state)
        self._chooser.restore(known["chooser"])
        if obs is not None:
            for rng, saved in zip(self._seeds, known["seeds"], strict=True):
                rng.bit_generator.state = saved
            self._returns[:], self._lengths[:] = known["returns"], known["lengths"]
        return obs


def _chooser(schedule: Schedule) -> Chooser:
    if schedule.method == SEQUENTIAL:
        return SequentialChooser(schedule)
    from cleanrl_worker.wrappers.syllabus_methods import SyllabusChooser

    return SyllabusChooser(schedule)


def _check_spaces(env_ids: Sequence[str], wrapper: BabyAITaskWrapper) -> None:
    """Every stage is made once now: better a refusal here than in the middle of the night."""
    first = (wrapper.observation_space, wrapper.action_space)
    others = []
    for task, env_id in enumerate(env_ids):
        wrapper.change_task(task)
        spaces = (wrapper.env.observation_space, wrapper.env.action_space)
        others += [
            f"{env_id} has {what} {there}, {env_ids[0]} has {here}"
            for what, here, there in zip(
                ("observations", "actions"), map(_size, first), map(_size, spaces), strict=True
            )
            if here != there
        ]
    wrapper.change_task(0)
    if others:
        raise BadInput(f"one network cannot play all stages of the curriculum: {'; '.join(others)}")


def _size(space: gym.Space[Any]) -> str:
    """What the network must fit; the bounds may differ between stages."""
    if isinstance(space, gym.spaces.Discrete):
        return f"Discrete({space.n}, start={space.start})"
    return f"{type(space).__name__}({space.shape}, {space.dtype})"


def _check_same_tasks(schedule: Schedule, known: Mapping[str, Any]) -> None:
    """Stages may be added at the end; those the run has been through must be the same."""
    if schedule.method != known["method"]:
        raise BadInput(f"the checkpoint's curriculum has the method {known['method']}, this run's {schedule.method}")
    reached = known["chooser"]["stage"] if schedule.method == SEQUENTIAL else len(known["env_ids"]) - 1
    then, now = known["env_ids"][: reached + 1], list(schedule.env_ids[: reached + 1])
    if then != now:
        raise BadInput(f"the checkpoint has been through {', '.join(then)}; this run's curriculum has {', '.join(now)}")


def run_curriculum_training(
    algo: str,
    args: Any,
    train: Callable[..., Any],
    schedule: Any,
    folder: Path,
    channel: Any,
    *,
    tensorboard: Path | None = None,
    resume: Path | None = None,
) -> Any:
    """Train with a curriculum in this process; `schedule` as `parse_schedule` reads it."""
    from cleanrl_worker.training.standalone import run_algorithm

    checked = schedule if isinstance(schedule, Schedule) else parse_schedule(schedule)
    return run_algorithm(algo, args, train, folder, channel, tensorboard=tensorboard, resume=resume, curriculum=checked)
