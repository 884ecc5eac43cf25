"""Curricula: environments that change during training, unknown to the training loop.

Each environment is a `BabyAITaskWrapper`, whose next episode may be in another environment, as the schedule decides
(`wrappers/schedule.py`). Sequential stages are counted here step by step, so that a resumed run continues exactly in
the same stage. The other methods are Syllabus' (requirement set `curriculum`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from cleanrl_worker.errors import BadInput
from cleanrl_worker.training.envs import EnvState, SyncEnvs, environment_errors, make_single
from cleanrl_worker.wrappers.schedule import SEQUENTIAL, CurriculumProgress, Schedule

OnStage = Callable[[Mapping[str, Any]], None]


class BabyAITaskWrapper(gym.Wrapper):
    """One environment out of several: a task is the position of an id in the list.

    Has the methods of Syllabus' ReinitTaskWrapper, so its sync wrapper takes it, without needing Syllabus; a seed is a
    seed here, never a task. Environments are made when they are first needed and kept.
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
            with environment_errors(env_id):
                self._made[task] = make_single(env_id, self._env_kwargs, **self._options)
        return self._made[task]

    def change_task(self, new_task: int) -> None:
        """Switch to another environment; reset it before the next step."""
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
        """Step, and add the task and whether it was completed to the info."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.task_completion = 1.0 if terminated and float(reward) > 0 else 0.0
        extended = {**info, "task": self.task, "task_completion": self.task_completion}
        return obs, reward, bool(terminated), bool(truncated), extended

    def close(self) -> None:
        """Close every environment that was made."""
        for env in self._made.values():
            env.close()


class SequentialChooser(CurriculumProgress):
    """Choose the task of the next episode: one stage after the other."""

    def seed(self, seed: int) -> None:
        """Do nothing: there is no randomness here."""

    def next_task(self) -> int:
        """Return the task of the next episode."""
        return self.stage

    def add_episode(self, task: int, episode_return: float, length: int) -> None:
        """Count an episode; the last ones of a stage may end in the next one, and do not count there."""
        self.count_episode(episode_return, counts=task == self.stage)

    def stage_change(self) -> dict[str, Any] | None:
        """Return what to report when a new stage has begun since the last call."""
        left, metrics = self.schedule.stages[self.stage], self.metrics
        if not self.advance():
            return None
        stages, total = self.schedule.stages, {"step": self.total_steps, "total_episodes": self.total_episodes}
        measured = {name: metrics[name] for name in ("steps", "episodes", "episode_return")}
        return {
            "stage": self.stage,
            "stages": len(stages),
            "env_id": stages[self.stage].env_id,
            **total,
            "left": {"env_id": left.env_id, "condition": str(left.condition), **measured},
        }


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
        self._adopt(wrappers)
        is_sequential = schedule.method == SEQUENTIAL
        self._chooser = SequentialChooser(schedule) if is_sequential else SyllabusChooser(schedule)
        self._seeds = [np.random.Generator(np.random.PCG64(index)) for index in range(num_envs)]
        self._returns, self._lengths = np.zeros(num_envs), np.zeros(num_envs, dtype=np.int64)

    def reset(self, seed: int) -> np.ndarray:
        """Begin an episode everywhere; the stage stays."""
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
        """Return the state for a checkpoint, with the curriculum's."""
        state = super().snapshot()
        curriculum = {
            "env_ids": list(self._schedule.env_ids),
            "method": self._schedule.method,
            "chooser": self._chooser.snapshot(),
            "seeds": [rng.bit_generator.state for rng in self._seeds],
            "returns": self._returns.tolist(),
            "lengths": self._lengths.tolist(),
        }
        return EnvState(state.arrays, {**state.values, "curriculum": curriculum})

    def restore(self, state: EnvState) -> np.ndarray | None:
        """Continue from a checkpoint's state; raise BadInput for another curriculum."""
        known = state.values.get("curriculum")
        if known is None:
            raise BadInput("the checkpoint is not of a curriculum, so it does not say which stage to continue in")
        _check_same_tasks(self._schedule, known)
        obs = super().restore(state)
        self._chooser.restore(known["chooser"])
        if obs is not None:
            for rng, saved in zip(self._seeds, known["seeds"], strict=True):
                rng.bit_generator.state = saved
            self._returns[:], self._lengths[:] = known["returns"], known["lengths"]
        return obs


def _check_spaces(env_ids: Sequence[str], wrapper: BabyAITaskWrapper) -> None:
    """Make every stage once, so that one that does not fit is refused at the start."""
    first = _size(wrapper.observation_space), _size(wrapper.action_space)
    others = []
    for task, env_id in enumerate(env_ids):
        wrapper.change_task(task)
        spaces = (wrapper.env.observation_space, wrapper.env.action_space)
        for what, here, there in zip(("observations", "actions"), first, map(_size, spaces), strict=True):
            if here != there:
                others.append(f"{env_id} has {what} {there}, {env_ids[0]} has {here}")
    wrapper.change_task(0)
    if others:
        raise BadInput(f"one network cannot play all stages of the curriculum: {'; '.join(others)}")


def _size(space: gym.Space[Any]) -> str:
    """Return what the network must fit; the bounds may differ between stages."""
    if isinstance(space, gym.spaces.Discrete):
        return f"Discrete({space.n}, start={space.start})"
    return f"{type(space).__name__}({space.shape}, {space.dtype})"


def _check_same_tasks(schedule: Schedule, known: Mapping[str, Any]) -> None:
    """Check that the stages the run has been through are the same; others may be added at the end."""
    if schedule.method != known["method"]:
        raise BadInput(f"the checkpoint's curriculum has the method {known['method']}, this run's {schedule.method}")
    reached = known["chooser"]["stage"] if schedule.method == SEQUENTIAL else len(known["env_ids"]) - 1
    then, now = known["env_ids"][: reached + 1], list(schedule.env_ids[: reached + 1])
    if then != now:
        raise BadInput(f"the checkpoint has been through {', '.join(then)}; this run's curriculum has {', '.join(now)}")


UPDATE_EPISODES = 25
"""How often learning progress is measured anew, in episodes per environment"""


class SyllabusChooser:
    """One of Syllabus' methods over the environments of a schedule; their conditions play no part."""

    def __init__(self, schedule: Schedule) -> None:
        self._curriculum = _make(schedule)
        self._rng = np.random.Generator(np.random.PCG64(0))

    def seed(self, seed: int) -> None:
        """Seed the choice of tasks."""
        self._rng = np.random.Generator(np.random.PCG64(seed))

    def next_task(self) -> int:
        """Draw the task of the next episode."""
        # Only the probabilities are Syllabus': its own `sample` compares an array with a list, which numpy 2
        # refuses, and draws from numpy's global generator.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # advice about baselines, printed at each update
            chances = np.asarray(self._curriculum._sample_distribution(), dtype=np.float64)
        return int(self._rng.choice(len(chances), p=chances / chances.sum()))

    def add_steps(self, count: int) -> None:
        """Do nothing: these methods learn from whole episodes."""

    def add_episode(self, task: int, episode_return: float, length: int) -> None:
        """Let the method learn from an episode."""
        success = 1.0 if episode_return > 0 else 0.0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._curriculum.update_task_progress(task, success)
            self._curriculum.update_on_episode(episode_return, length, task, success)

    def stage_change(self) -> dict[str, Any] | None:
        """Return None: there are no stages."""
        return None

    def snapshot(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        memory = {name: _plain(value) for name, value in vars(self._curriculum).items() if _is_plain(value)}
        return {"memory": memory, "rng": self._rng.bit_generator.state}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint's state."""
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


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | np.ndarray)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value
