"""A benchmark before it is queued: every algorithm in every environment with every seed, checked. No I/O.

A cell has a key made of what it trains, so that asking for the same benchmark again means the same runs; other seeds or
algorithms under the same name add to it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mosaic_wire.run_request import run_request
from mosaic_wire.worker_spec import AlgorithmSpec, FieldSpec, WorkerSpec, check_algorithm_choice, nearest

MOST_RUNS = 2_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,47}")
_OWN_FIELDS = ("env_id", "seed", "total_timesteps")
"""Parameters that have options of their own"""
MODEL = "model"
"""The parameter that names a language model; a benchmark may vary it"""

Choice = tuple[WorkerSpec, AlgorithmSpec]


@dataclass(frozen=True)
class Setting:
    """`learning_rate=3e-4` for all algorithms, `ppo.num_envs=8` for one."""

    name: str
    text: str
    algo: str = ""

    @property
    def written(self) -> str:
        """Return it as it is typed after `--set`."""
        return f"{self.algo}.{self.name}={self.text}" if self.algo else f"{self.name}={self.text}"


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    worker: str
    module: str
    algo: str
    env_id: str
    seed: int
    total_timesteps: int
    parameters: Mapping[str, Any]
    script: tuple[str, ...] = ()
    """Path and SHA-256 of the file that trains, when it is not an algorithm of the worker"""

    @property
    def title(self) -> str:
        """Return `ppo CartPole-v1 seed 1`, or `llm llama3.2 CartPole-v1 seed 1`."""
        return f"{self.player} {self.env_id} seed {self.seed}"

    @property
    def player(self) -> str:
        """Return the algorithm, with the model that it asks, if any."""
        return f"{self.algo} {self.parameters[MODEL]}" if MODEL in self.parameters else self.algo

    @property
    def digest(self) -> str:
        """Return a key that is equal for cells with the same training."""
        trained = self.worker, self.algo, self.env_id, self.seed, self.total_timesteps
        facts = (*trained, sorted(self.parameters.items()), *self.script[1:])
        return hashlib.sha256(json.dumps(facts, ensure_ascii=False).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Misfit:
    """A combination that is skipped, and why."""

    algo: str
    env_id: str
    reason: str


@dataclass(frozen=True)
class BenchPlan:
    """The runs of a benchmark, or why there are none."""

    name: str
    cells: tuple[Cell, ...] = ()
    """Ordered by seed, so that an interrupted benchmark has the same seeds of all combinations"""
    problems: tuple[str, ...] = field(default=())
    """Problems of the request; if there are any, nothing is queued"""

    @property
    def tag(self) -> str:
        """Return the tag of its runs."""
        return tag_of(self.name)


def tag_of(name: str) -> str:
    """Return the tag of every run of a benchmark."""
    return f"bench:{name}"


def key_of(name: str, cell: Cell) -> str:
    """Return the idempotency key of a cell."""
    return f"bench:{name}:{cell.digest}"


def check_name(name: str) -> str:
    """Return a name that is valid as a tag and a folder; raise ValueError with a message."""
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"a benchmark's name is 1 to 48 letters, digits, dots, dashes or underscores, not {name!r}")
    return name


def parse_setting(text: str) -> Setting:
    """Raise ValueError for an unknown setting."""
    name, equals, value = text.partition("=")
    algo, _, parameter = name.strip().rpartition(".")
    if not equals or not parameter:
        raise ValueError(f"expected NAME=VALUE or ALGO.NAME=VALUE, such as learning_rate=3e-4, not {text!r}")
    return Setting(parameter.strip().lstrip("-").replace("-", "_"), value.strip(), algo.strip())


def make_plan(
    choices: Sequence[Choice],
    env_ids: Sequence[str],
    seeds: Sequence[int],
    *,
    total_timesteps: int | None = None,
    settings: Sequence[Setting] = (),
    name: str = "",
    scripts: Mapping[str, tuple[str, str]] | None = None,
    models: Sequence[str] = (),
) -> BenchPlan:
    """Return the grid of runs; the daemon refuses combinations that cannot run when they are queued.

    Algorithms that ask a model play with each of `models`.
    """
    problems: list[str] = []
    parameters = {algo.name: _varied(algo, _parameters(algo, settings, problems), models) for _, algo in choices}
    if models and not any(algo.field(MODEL) for _, algo in choices):
        problems.append(f"--models: none of the algorithms ({', '.join(parameters)}) asks a model")
    problems += _unused(settings, [algorithm for _, algorithm in choices])
    steps = {algo.name: total_timesteps or _default(algo, "total_timesteps") for _, algo in choices}
    problems += [
        f"how long? {algo} has no usual number of steps: --total-timesteps N" for algo in steps if not steps[algo]
    ]
    pairs = [(choice, env_id) for env_id in env_ids for choice in choices]
    problems += dict.fromkeys(wrong for choice, env_id in pairs if (wrong := _unknown(choice, env_id)))
    count = len(env_ids) * len(seeds) * sum(map(len, parameters.values()))
    if count > MOST_RUNS:
        problems.append(f"{count:,} runs at once are too many; a benchmark has up to {MOST_RUNS:,}")
    cells = []
    for seed, ((spec, algo), env_id) in itertools.product(seeds, pairs if not problems else ()):
        for values in parameters[algo.name]:
            trained = algo.name, env_id, seed, int(steps[algo.name] or 0), values
            cells.append(Cell(spec.name, spec.module, *trained, (scripts or {}).get(algo.name, ())))
    named = [*settings, *(Setting(MODEL, model) for model in models)]
    return BenchPlan(name or default_name(choices, env_ids, steps, named), tuple(cells), tuple(problems))


def _varied(algorithm: AlgorithmSpec, values: dict[str, Any], models: Sequence[str]) -> list[dict[str, Any]]:
    if not models or algorithm.field(MODEL) is None:
        return [values]
    return [{**values, MODEL: model} for model in models]


def default_name(
    choices: Sequence[Choice], env_ids: Sequence[str], steps: Mapping[str, int | None], settings: Sequence[Setting]
) -> str:
    """Return a name that depends on algorithms, environments, steps and settings, but not on seeds."""
    algos = [algo.name for _, algo in choices]
    facts = (sorted(algos), sorted(env_ids), sorted(steps.items()), sorted(each.written for each in settings))
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:6]
    stems = [re.sub(r"(NoFrameskip|Deterministic)?-v\d+$", "", env_id.rpartition("/")[2]) for env_id in env_ids]
    text = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join([*algos, *dict.fromkeys(stems)]))
    return f"{text[:40].strip('-._') or 'bench'}-{digest}"


def config_of(
    plan: BenchPlan, cell: Cell, *, cpus: float, gpus: int = 0, install_missing: bool = False, executor: str = ""
) -> dict[str, Any]:
    """Return the run config of a cell."""
    return run_request(
        cell.worker,
        module=cell.module,
        algo=cell.algo,
        env_id=cell.env_id,
        seed=cell.seed,
        total_timesteps=cell.total_timesteps,
        extras={
            "script_path": cell.script[0] if cell.script else None,
            "algo_params": dict(cell.parameters) or None,
            "install_missing": install_missing or None,
        },
        run_name=f"{plan.name}-{cell.player.replace(' ', '-')}-{cell.env_id}-s{cell.seed}"[:200],
        resources={"cpus": {"requested": cpus}, "gpus": gpus},
        scheduling={"executor": executor or None},
        tags=[plan.tag],
    )


def _parameters(algorithm: AlgorithmSpec, settings: Iterable[Setting], problems: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for setting in settings:
        if setting.algo not in ("", algorithm.name) or setting.name in _OWN_FIELDS:
            continue
        known = algorithm.field(setting.name)
        if known is None and not algorithm.open_flags:
            problems.append(_no_parameter(algorithm, setting))
            continue
        try:
            values[setting.name] = (known or FieldSpec(setting.name, "str")).parse(setting.text)
        except ValueError as error:
            problems.append(f"{algorithm.name}: {error}")
    return values


def _no_parameter(algorithm: AlgorithmSpec, setting: Setting) -> str:
    close = nearest(setting.name, [known.name for known in algorithm.fields])
    hint = f"; did you mean {close!r}?" if close else ""
    if not setting.algo and not close:
        hint = f"; for one algorithm alone write --set ALGO.{setting.name}={setting.text}"
    return f"{algorithm.name!r} has no parameter {setting.name!r}{hint}"


def _unused(settings: Sequence[Setting], algorithms: Sequence[AlgorithmSpec]) -> Iterable[str]:
    names = [algorithm.name for algorithm in algorithms]
    for setting in settings:
        if setting.algo and setting.algo not in names:
            yield f"--set {setting.written}: {setting.algo!r} is none of the algorithms ({', '.join(names)})"
        elif setting.name in _OWN_FIELDS:
            options = {"env_id": "--envs", "seed": "--seeds", "total_timesteps": "--total-timesteps"}
            yield f"--set {setting.name}: write {options[setting.name]} instead"


def _unknown(choice: Choice, env_id: str) -> str:
    spec, algorithm = choice
    return "; ".join(
        problem.message + (f"; did you mean {problem.suggestion!r}?" if problem.suggestion else "")
        for problem in check_algorithm_choice(spec, algorithm.name, env_id, {})
    )


def _default(algorithm: AlgorithmSpec, name: str) -> int | None:
    known = algorithm.field(name)
    return known.default if known is not None and isinstance(known.default, int) else None
