"""Curriculum schedules: how they are written, what is wrong with one, and when a stage ends. Nothing heavy here.

    [{"env_id": "BabyAI-GoToRedBall-v0", "steps": 200000},          also: episodes, episode_return; several mean «or»
     {"env_id": "BabyAI-GoToObj-v0", "condition": "steps>=N|episode_return>=X"},
     {"env_id": "BabyAI-GoToLocal-v0"}]                             the last stage lasts until training ends

A stage without a condition lasts 100,000 steps. Instead of the list, the name of a preset, or
`{"method": "learning_progress", "stages": […]}` for a method that chooses among the environments itself.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mosaic_wire.errors import ConfigProblems, Problem
from mosaic_wire.worker_spec import nearest

PATH = "extras.curriculum_schedule"
DEFAULT_STEPS = 100_000
RETURN_WINDOW = 100
"""`episode_return` is the mean over the last so many episodes of the stage …"""
RETURN_EPISODES = 20
"""… once so many have ended: the first to end are short, which in grid worlds means lucky"""

SEQUENTIAL = "sequential"
METHODS = (SEQUENTIAL, "domain_randomization", "learning_progress")
"""All but the first are Syllabus' own and need the requirement set `curriculum`"""

METRICS = ("steps", "episodes", "episode_return", "total_steps", "total_episodes")
_STAGE_KEYS = ("env_id", "steps", "episodes", "episode_return", "condition")
_MAX_STAGES = 1000
_CLAUSE = re.compile(r"\s*([A-Za-z_]+)\s*(>=|>|<=|<|==?|!=)\s*([^\s|&]+)\s*")

BABYAI_GOTO_CURRICULUM: tuple[Mapping[str, Any], ...] = (
    {"env_id": "BabyAI-GoToRedBallNoDists-v0", "steps": 200_000},
    {"env_id": "BabyAI-GoToRedBall-v0", "steps": 200_000},
    {"env_id": "BabyAI-GoToObj-v0", "steps": 200_000},
    {"env_id": "BabyAI-GoToLocal-v0"},
)
BABYAI_DOORKEY_CURRICULUM: tuple[Mapping[str, Any], ...] = (
    {"env_id": "MiniGrid-DoorKey-5x5-v0", "steps": 200_000},
    {"env_id": "MiniGrid-DoorKey-6x6-v0", "steps": 200_000},
    {"env_id": "MiniGrid-DoorKey-8x8-v0", "steps": 200_000},
    {"env_id": "MiniGrid-DoorKey-16x16-v0"},
)
PRESETS: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "BABYAI_GOTO_CURRICULUM": BABYAI_GOTO_CURRICULUM,
    "BABYAI_DOORKEY_CURRICULUM": BABYAI_DOORKEY_CURRICULUM,
}


@dataclass(frozen=True)
class Clause:
    """A comparison such as `steps>=1000`."""

    metric: str
    comparator: str
    value: float

    def holds(self, metrics: Mapping[str, float | None]) -> bool:
        """Return whether the comparison holds."""
        measured = metrics[self.metric]
        if measured is None:
            return False
        return measured >= self.value if self.comparator == ">=" else measured > self.value

    def __str__(self) -> str:
        return f"{self.metric}{self.comparator}{self.value:g}"


@dataclass(frozen=True)
class Condition:
    """Alternatives, each of which may consist of several clauses."""

    alternatives: tuple[tuple[Clause, ...], ...]

    def holds(self, metrics: Mapping[str, float | None]) -> bool:
        """Return whether one alternative holds."""
        return any(all(clause.holds(metrics) for clause in clauses) for clauses in self.alternatives)

    def __str__(self) -> str:
        return "|".join("&".join(map(str, clauses)) for clauses in self.alternatives)


@dataclass(frozen=True)
class Stage:
    """One environment, and when it ends."""

    env_id: str
    condition: Condition


@dataclass(frozen=True)
class Schedule:
    """A checked curriculum."""

    stages: tuple[Stage, ...]
    method: str = SEQUENTIAL

    @property
    def env_ids(self) -> tuple[str, ...]:
        """Return the environments of the stages."""
        return tuple(stage.env_id for stage in self.stages)


def needs_syllabus(document: Any) -> bool:
    """Return whether a schedule, valid or not, requests a method that only Syllabus has."""
    return isinstance(document, Mapping) and document.get("method", SEQUENTIAL) != SEQUENTIAL


def parse_schedule(document: Any) -> Schedule:
    """Read a schedule, or raise ConfigProblems with everything that is wrong with it."""
    problems: list[Problem] = []
    schedule = _read_schedule(document, problems)
    if problems or schedule is None:
        raise ConfigProblems("the curriculum", problems)
    return schedule


def stage_environments(document: Any) -> tuple[str, ...]:
    """Return the ids of a curriculum's stages; none for a schedule that cannot be read, which is reported elsewhere."""
    try:
        return parse_schedule(document).env_ids if document else ()
    except ConfigProblems:
        return ()


def _read_schedule(document: Any, problems: list[Problem]) -> Schedule | None:
    method, path = SEQUENTIAL, PATH
    if isinstance(document, Mapping):
        problems += [
            Problem(f"{PATH}.{key}", "is not a key of a curriculum", nearest(str(key), ("method", "stages")))
            for key in document
            if key not in ("method", "stages")
        ]
        method = document.get("method", SEQUENTIAL)
        if method not in METHODS:
            text = f"{method!r} is not one of {', '.join(METHODS)}"
            problems.append(Problem(f"{PATH}.method", text, nearest(str(method), METHODS)))
        document, path = document.get("stages"), f"{PATH}.stages"
    if isinstance(document, str):
        if document not in PRESETS:
            problems.append(Problem(path, f"there is no preset {document!r}", nearest(document, PRESETS)))
            return None
        document = PRESETS[document]
    if not isinstance(document, Sequence) or not document:
        problems.append(Problem(path, f"must be a list of stages or one of {', '.join(PRESETS)}"))
        return None
    if len(document) > _MAX_STAGES:
        problems.append(Problem(path, f"has {len(document)} stages, more than {_MAX_STAGES}"))
        return None
    stages = [_read_stage(stage, f"{path}[{index}]", problems) for index, stage in enumerate(document)]
    return Schedule(tuple(stage for stage in stages if stage is not None), str(method))


def _read_stage(document: Any, path: str, problems: list[Problem]) -> Stage | None:
    if not isinstance(document, Mapping):
        text = f'must be an object such as {{"env_id": …, "steps": 1000}}, not {document!r:.80}'
        problems.append(Problem(path, text))
        return None
    for key in document:
        if key not in _STAGE_KEYS:
            problems.append(Problem(f"{path}.{key}", "is not a key of a stage", nearest(str(key), _STAGE_KEYS)))
    env_id = document.get("env_id")
    if not isinstance(env_id, str) or not env_id.strip():
        problems.append(Problem(f"{path}.env_id", "is missing: the environment of this stage"))
        env_id = ""
    alternatives: list[tuple[Clause, ...]] = []
    for metric in ("steps", "episodes", "episode_return"):
        if document.get(metric) is not None:
            clause = _checked_clause(metric, ">=", document[metric], f"{path}.{metric}", problems)
            alternatives += [(clause,)] if clause is not None else []
    if document.get("condition") is not None:
        alternatives += parse_condition(document["condition"], f"{path}.condition", problems)
    if not alternatives:
        alternatives = [(Clause("steps", ">=", DEFAULT_STEPS),)]
    return Stage(env_id, Condition(tuple(alternatives)))


def parse_condition(text: Any, path: str, problems: list[Problem]) -> list[tuple[Clause, ...]]:
    """Read `steps>=N|episode_return>=X` (`&` requires both sides); what is wrong goes into `problems`."""
    if not isinstance(text, str):
        problems.append(Problem(path, f"must be a text such as 'steps>=1000|episode_return>=0.9', not {text!r:.80}"))
        return []
    alternatives = []
    for alternative in text.split("|"):
        clauses = [_parse_clause(part, path, problems) for part in alternative.split("&")]
        alternatives.append(tuple(clause for clause in clauses if clause is not None))
    return [clauses for clauses in alternatives if clauses]


def _parse_clause(text: str, path: str, problems: list[Problem]) -> Clause | None:
    match = _CLAUSE.fullmatch(text)
    if match is None:
        problems.append(Problem(path, f"{text.strip()!r:.80} is no condition; write e.g. steps>=1000"))
        return None
    metric, comparator, value = match.groups()
    if comparator not in (">=", ">"):
        problems.append(Problem(path, f"{text.strip()!r:.80}: a stage ends when a value is reached; write >="))
        return None
    try:
        number: float = int(value.replace("_", "")) if re.fullmatch(r"[\d_]+", value) else float(value)
    except ValueError:
        problems.append(Problem(path, f"{value!r:.80} is no number"))
        return None
    return _checked_clause(metric, comparator, number, path, problems)


def _checked_clause(metric: str, comparator: str, value: Any, path: str, problems: list[Problem]) -> Clause | None:
    if metric not in METRICS:
        problems.append(Problem(path, f"{metric!r} is not one of {', '.join(METRICS)}", nearest(metric, METRICS)))
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        problems.append(Problem(path, f"must be a number, not {value!r:.80}"))
        return None
    if metric != "episode_return" and (value < 1 or value != int(value)):
        problems.append(Problem(path, f"{metric} must be a whole number from 1, not {value!r:.80}"))
        return None
    return Clause(metric, comparator, value)


class CurriculumProgress:
    """The position in a sequence of stages: counts every step, changes stage when the condition holds."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.stage = 0
        self.total_steps = self.total_episodes = 0
        self._begin_stage()

    def _begin_stage(self) -> None:
        self.steps = self.episodes = 0
        self._returns: deque[float] = deque(maxlen=RETURN_WINDOW)

    @property
    def metrics(self) -> dict[str, float | None]:
        """Return what conditions compare; `episode_return` is None until enough episodes have ended."""
        known = len(self._returns) >= RETURN_EPISODES
        return {
            "steps": self.steps,
            "episodes": self.episodes,
            "episode_return": sum(self._returns) / len(self._returns) if known else None,
            "total_steps": self.total_steps,
            "total_episodes": self.total_episodes,
        }

    def add_steps(self, count: int) -> None:
        """Count steps."""
        self.steps += count
        self.total_steps += count

    def count_episode(self, episode_return: float, *, counts: bool = True) -> None:
        """Count an episode that ended; one that began in an earlier stage does not count for this one."""
        self.total_episodes += 1
        if counts:
            self.episodes += 1
            self._returns.append(episode_return)

    def advance(self) -> bool:
        """Go to the next stage if this one has ended; return whether it had."""
        last = len(self.schedule.stages) - 1
        if self.stage == last or not self.schedule.stages[self.stage].condition.holds(self.metrics):
            return False
        self.stage += 1
        self._begin_stage()
        return True

    def snapshot(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        total = {"total_steps": self.total_steps, "total_episodes": self.total_episodes}
        stage = {"stage": self.stage, "steps": self.steps, "episodes": self.episodes}
        return {**stage, "returns": list(self._returns), **total}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint's state."""
        self.stage = int(state["stage"])
        self._begin_stage()
        self.steps, self.episodes = int(state["steps"]), int(state["episodes"])
        self.total_steps, self.total_episodes = int(state["total_steps"]), int(state["total_episodes"])
        self._returns.extend(state["returns"])
