"""The dry run: everything that would keep a run from training, found before anything is started, all at once.

Costs a fraction of a second of CPU and never imports torch. Environments are made in a process of their own
(`environment_probe`), by the interpreter the run would have.
"""

from __future__ import annotations

import importlib.util
import json
import os
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mosaic_wire.checkpoints import read_checkpoint
from mosaic_wire.errors import ConfigProblems, DamagedCheckpoint, Problem
from mosaic_wire.paths import Home, RunFolder
from mosaic_wire.worker_spec import AlgorithmSpec, WorkerSpec

from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.env_kwargs import read_env_kwargs
from cleanrl_worker.environment_facts import facts_about
from cleanrl_worker.errors import BadInput
from cleanrl_worker.expressions import evaluate, names_in
from cleanrl_worker.modes.checkpoints import find_checkpoint, lacks_statistics
from cleanrl_worker.modes.policy_eval import plays_at_random
from cleanrl_worker.modes.table import CUSTOM_SCRIPT, TRAINING
from cleanrl_worker.needed_files import file_problems
from cleanrl_worker.needs import (
    UPSTREAM_MEMORY,
    Needs,
    estimate,
    free_disk_bytes,
    free_memory_bytes,
    gib,
    total_memory_bytes,
)
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY, backend_of, pipeline_of
from cleanrl_worker.requirement_sets import interpreter_for, sets_needed
from cleanrl_worker.requirement_sets import preflight as preflight_sets
from cleanrl_worker.requirement_sets.errors import RequirementSetError
from cleanrl_worker.rules import broken_rules, notes_on
from cleanrl_worker.wrappers.schedule import parse_schedule

NEEDED_PACKAGES = ("torch", "numpy", "gymnasium", "tensorboard", "safetensors", "tyro")
"""Modules every one of our own algorithms imports"""

Memory = tuple[Callable[[], int | None], str]
"""How much there is for a run, and how that is said"""
FREE: Memory = (free_memory_bytes, "are free")
ALL_THERE_IS: Memory = (total_memory_bytes, "is all that this machine has")

CONTINUOUS_ONLY = frozenset({"mujoco", "dm_control"})
"""Sets whose environments all have continuous actions"""
_ARRAYS = "state.safetensors"
_MAX_HEADER_BYTES = 64 << 20


@dataclass
class Preflight:
    """What was found out, and everything that is wrong."""

    problems: list[Problem] = field(default_factory=list)
    sets: tuple[str, ...] = ()
    python: Path = Path(sys.executable)
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """What the user should know about values that a run can start with"""
    missing_sets: tuple[str, ...] = ()
    """Those that have to be installed before it can run"""
    fits: bool | None = None
    """Whether the algorithm can play its environments; None: that could not be found out"""
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Environment id → its spaces"""
    needs: Needs | None = None

    def summary(self) -> dict[str, Any]:
        """What a dry run shows of it."""
        spaces = {
            env_id: {"observation": facts["observation"]["text"], "action": facts["action"]["text"]}
            for env_id, facts in self.facts.items()
            if "problem" not in facts
        }
        shown: dict[str, Any] = {"requirement_sets": list(self.sets) or ["base"], "spaces": spaces}
        if self.needs is not None:
            parts = {"the process itself": self.needs.process, **self.needs.memory}
            shown["memory"] = {purpose: gib(size) for purpose, size in parts.items()}
            shown["disk"] = {purpose: gib(size) for purpose, size in self.needs.disk.items()}
        if self.notes:
            shown["notes"] = self.notes
        return shown


def check_run(
    config: CleanRLWorkerConfig, spec: WorkerSpec, folder: RunFolder, home: Home, *, look_at_environments: bool = True,
    memory: Memory = FREE,
) -> Preflight:  # fmt: skip
    """Check a config as far as that is possible without training.

    Without `look_at_environments` only what costs next to nothing: for the start of a run, which finds out about its
    environment by making it. A run that is to be queued is measured against all the `memory` of the machine.
    """
    found = Preflight()
    found.problems += config.problems(spec, folder)
    algorithm = spec.algorithm(config.algo)
    if algorithm is None:
        return found
    values = _all_values(config, algorithm)
    declared = _declarations(config) if config.mode in TRAINING else {}
    env_kwargs = _env_kwargs(values, found)
    _check_rules(declared, values, found)
    found.problems += [Problem(*said) for said in file_problems(declared, values, from_anywhere=True)]
    _check_statistics(config, found)
    _check_sets(config, algorithm, home, found, may_install=look_at_environments)
    if look_at_environments and env_kwargs is not None and not _lacks_sets(found):
        _look_at_environments(config, algorithm, env_kwargs, home, found)
        made = {env_id: facts for env_id, facts in found.facts.items() if "problem" not in facts}
        misfits = [*_misfits(config, algorithm, made), *_agent_problems(values, declared, made)]
        found.problems += misfits
        found.fits = not misfits if made and len(made) == len(found.facts) else None
        found.problems += _drawing_problems(config, values, found.facts)
    facts = found.facts.get(config.env_id)
    found.needs = estimate(declared, values, facts, process_mb=spec.capabilities.estimated_memory_mb)
    # A run that starts now may use the last of the memory; one that would never fit is refused all the same.
    needs = found.needs if look_at_environments else replace(found.needs, process=0, margin=0)
    check_room(needs, folder, found, memory)
    _check_checkpoint(config, declared, values, facts, found)
    return found


def _all_values(config: CleanRLWorkerConfig, algorithm: AlgorithmSpec) -> dict[str, Any]:
    return {**{known.name: known.default for known in algorithm.fields}, **config.values_for(algorithm)}


def _declarations(config: CleanRLWorkerConfig) -> Mapping[str, Any]:
    """`RULES`, `MEMORY` and so on of the algorithm's file; for CleanRL's own scripts what we know of them."""
    entry = DEFAULT_ALGO_REGISTRY.get(config.algo)
    if _is_foreign(config):
        return {"MEMORY": UPSTREAM_MEMORY.get(config.algo, {})}
    return entry.declarations() if entry is not None else {}


def _is_foreign(config: CleanRLWorkerConfig) -> bool:
    return config.extras.get("source") not in (None, "", "mosaic") or bool(config.extras.get("script_path"))


def _env_kwargs(values: Mapping[str, Any], found: Preflight) -> dict[str, Any] | None:
    text = values.get("env_kwargs")
    try:
        return read_env_kwargs(text) if isinstance(text, str) else {}
    except BadInput as error:
        found.problems.append(Problem("env_kwargs", str(error)))
        return None


def _check_rules(declared: Mapping[str, Any], values: Mapping[str, Any], found: Preflight) -> None:
    wrong = {problem.path.rpartition(".")[2] for problem in found.problems}
    sentences = broken_rules(declared.get("RULES") or (), values, leaving_out=wrong)
    found.problems += [Problem(_first_flag(sentence), sentence) for sentence in sentences]
    if "RULES" in declared:  # not for evaluations, nor for scripts of others
        found.notes += notes_on(declared, values, leaving_out=wrong)


def _first_flag(sentence: str) -> str:
    word = next((word for word in sentence.split() if word.startswith("--")), "")
    return word.strip("-:;,.").replace("-", "_")


def _blames(found: Preflight, path: str) -> bool:
    return any(problem.path == path for problem in found.problems)


def _lacks_sets(found: Preflight) -> bool:
    return bool(found.missing_sets) or _blames(found, "extras.requirements")


def missing_set_problems(extras: Mapping[str, Any], message: str, *, may_install: bool = True) -> list[Problem]:
    """None where the run asks for the installation itself."""
    if may_install and extras.get("install_missing") is True:
        return []
    return [Problem("extras.install_missing", f"{message}, or add --install-missing")]


def _check_sets(
    config: CleanRLWorkerConfig, algorithm: AlgorithmSpec, home: Home, found: Preflight, *, may_install: bool
) -> None:
    """Are the packages there, and which interpreter has them?"""
    try:
        found.sets = sets_needed(algorithm, config.env_id, config.extras)
        answer = preflight_sets(home, found.sets)
    except RequirementSetError as error:
        found.problems.append(Problem("extras.requirements", str(error)))
        return
    if answer.missing:
        found.missing_sets = answer.missing
        kinds = algorithm.action_spaces
        if kinds and "continuous" not in kinds and CONTINUOUS_ONLY & {*answer.missing}:
            text = f"{algorithm.name} needs {' or '.join(kinds)} actions; those of {config.env_id} are continuous"
            found.problems, found.fits = [*found.problems, Problem("env_id", text)], False
        found.problems += missing_set_problems(config.extras, answer.message, may_install=may_install)
        return
    if not answer.is_ready or answer.python is None:
        found.problems.append(Problem("extras.requirements", answer.message))
        return
    found.python, found.versions = answer.python, answer.versions or {}
    lacking = [name for name in NEEDED_PACKAGES if importlib.util.find_spec(name) is None]
    if lacking and not _is_foreign(config):
        cure = f"{sys.executable} -m pip install -r requirements/cleanrl_worker.txt"
        found.problems.append(
            Problem("extras.requirements", f"the base environment lacks {', '.join(lacking)}. Install: {cure}")
        )


def _look_at_environments(
    config: CleanRLWorkerConfig, algorithm: AlgorithmSpec, env_kwargs: Mapping[str, Any], home: Home, found: Preflight
) -> None:
    # A custom script's environment is a label, and a foreign script makes its own.
    if config.mode == CUSTOM_SCRIPT or _is_foreign(config) or algorithm.unavailable:
        return
    stages = [env_id for env_id in _stages(config.extras.get("curriculum_schedule")) if env_id != config.env_id]
    backend = backend_of(config.algo, _all_values(config, algorithm).get("env_backend", "auto"))
    how = (pipeline_of(config.algo), backend)
    requests = [(env_id, env_kwargs, *how) for env_id in dict.fromkeys((config.env_id, *stages))]
    # The joint environment of several sets may not be there yet; it is small, and a run would make it, too.
    python = found.python if os.path.exists(found.python) else interpreter_for(home, found.sets)
    answers = facts_about(
        requests, python=python, versions=found.versions, home=home, environ={**os.environ, "SDL_VIDEODRIVER": "dummy"}
    )
    for (env_id, *_), facts in zip(requests, answers, strict=True):
        found.facts[env_id] = facts
        if "timed_out" in facts:
            found.notes.append(facts["problem"])
        elif "problem" in facts:
            path = _path_of(config, env_id)
            path = "env_backend" if _first_flag(facts["problem"]) == "env_backend" else path
            found.problems.append(Problem(path, facts["problem"], facts.get("suggestion")))


def _stages(schedule: Any) -> list[str]:
    """Ids of a curriculum's stages; one that cannot be read, `config.problems` has told about."""
    if not schedule:
        return []
    with suppress(ConfigProblems):
        return list(parse_schedule(schedule).env_ids)
    return []


def _path_of(config: CleanRLWorkerConfig, env_id: str) -> str:
    return "env_id" if env_id == config.env_id else "extras.curriculum_schedule"


def _misfits(
    config: CleanRLWorkerConfig, algorithm: AlgorithmSpec, all_facts: Mapping[str, Mapping[str, Any]]
) -> Iterator[Problem]:
    """Why this algorithm cannot play these environments."""
    wanted = {"action": algorithm.action_spaces, "observation": algorithm.observation_spaces}
    for env_id, facts in all_facts.items():
        for what, kinds in wanted.items():
            if kinds and facts[what]["kind"] not in kinds and not plays_at_random(config.extras):
                text = (
                    f"{algorithm.name} needs {' or '.join(kinds)} {what}s; those of {env_id} are {facts[what]['text']}"
                )
                yield Problem(_path_of(config, env_id), text)


def _agent_problems(
    values: Mapping[str, Any], declared: Mapping[str, Any], all_facts: Mapping[str, Mapping[str, Any]]
) -> Iterator[Problem]:
    """Does the network that was chosen play these observations?"""
    agent, plays = values.get("agent"), declared.get("AGENTS") or {}
    largest = declared.get("LARGEST_IMAGE") if agent is not None else None  # without the flag, the file knows its own
    for env_id, facts in all_facts.items():
        seen = facts["observation"]
        if agent in plays and seen["kind"] in plays.values() and seen["kind"] != plays[agent]:
            yield Problem("agent", f"--agent {agent} plays {plays[agent]}s; those of {env_id} are {seen['text']}")
        elif agent not in plays and largest and seen["kind"] == "image" and max(seen["shape"]) > largest:
            text = f"the images of {env_id} are pictures of shape {seen['shape']}; those of grid worlds can be played"
            yield Problem("env_id", f"{text} (up to {largest} cells), or any with --agent minigrid")


def _drawing_problems(
    config: CleanRLWorkerConfig, values: Mapping[str, Any], all_facts: Mapping[str, Mapping[str, Any]]
) -> Iterator[Problem]:
    """Can what is to be recorded be drawn?"""
    wanted = {
        "capture_video": config.mode in TRAINING and values.get("capture_video"),
        "extras.eval_capture_video": config.extras.get("eval_capture_video"),
    }
    env_id = [config.env_id, *_stages(config.extras.get("curriculum_schedule"))][-1]
    for path, asked in wanted.items():
        if asked is True and not all_facts.get(env_id, {}).get("draws", True):
            yield Problem(path, f"{env_id} cannot be drawn: it has no picture to show (rgb_array); go without videos")


def check_room(needs: Needs, folder: RunFolder, found: Preflight, memory: Memory) -> None:
    """Is there enough memory and disk?"""
    if (wrong := needs.memory_problem(memory[0](), memory[1])) is not None:
        found.problems.append(Problem("memory", wrong))
    needs = replace(needs, margin=0) if memory is ALL_THERE_IS else needs  # a little room is soon made
    if (wrong := needs.disk_problem(free_disk_bytes(folder.root), folder.root)) is not None:
        found.problems.append(Problem("disk", wrong))


# -- checkpoints


def _check_checkpoint(
    config: CleanRLWorkerConfig, declared: Mapping[str, Any], values: Mapping[str, Any],
    facts: Mapping[str, Any] | None, found: Preflight,
) -> None:  # fmt: skip
    """Does the checkpoint fit this run? That it is whole and of this algorithm, `config.problems` has said."""
    checkpoint = config.resume_from
    if checkpoint is None or not checkpoint.is_dir() or _blames(found, "extras.checkpoint_path"):
        return
    try:
        earlier = (read_checkpoint(checkpoint, hash_shared=False).get("values") or {}).get("args") or {}
        shapes = _shapes_of(checkpoint / _ARRAYS)
    except (DamagedCheckpoint, OSError, ValueError) as error:
        found.problems.append(Problem("extras.checkpoint_path", f"cannot be used: {error}"))
        return
    for name in declared.get("RESUME_NEEDS") or ():
        if name in earlier and name in values and earlier[name] != values[name]:
            text = f"was made with {name}={earlier[name]!r}; this run has {values[name]!r}"
            found.problems.append(Problem("extras.checkpoint_path", text))
    if facts is None or "problem" in facts:
        return
    sizes = {"obs_size": facts["observation"]["size"], "actions": facts["action"]["count"]}
    for name, expected in (declared.get("SHAPES") or {}).items():
        computable = all(names_in(part) <= sizes.keys() for part in expected)
        wanted = [evaluate(part, sizes) for part in expected] if computable and None not in sizes.values() else None
        if name in shapes and wanted is not None and shapes[name] != wanted:
            text = f"has {name} of shape {shapes[name]}; this run's network has {wanted}"
            found.problems.append(Problem("extras.checkpoint_path", text))


def _check_statistics(config: CleanRLWorkerConfig, found: Preflight) -> None:
    """Whatever the policy is for: training, evaluating, watching."""
    entry = DEFAULT_ALGO_REGISTRY.get(config.algo)
    with suppress(BadInput):  # `config.problems` has said what is wrong with the path
        if entry is not None and config.extras.get("policy_statistics") is None:
            lacking = lacks_statistics(find_checkpoint(config.extras), config.algo, entry.declarations())
            found.problems += [Problem("extras.checkpoint_path", f"cannot be used: {lacking}")] if lacking else []


def _shapes_of(arrays: Path) -> dict[str, list[int]]:
    """The shapes in a safetensors file: its header is a length and a JSON object; no array is read."""
    with arrays.open("rb") as stream:
        length = stream.read(8)
        if len(length) < 8 or (size := struct.unpack("<Q", length)[0]) > _MAX_HEADER_BYTES:
            raise ValueError(f"{arrays} is not a safetensors file")
        header = json.loads(stream.read(size))
    return {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
