"""The dry run: find everything that would keep a run from training, before anything is started.

Costs a fraction of a second of CPU and never imports torch. Environments are made in a process of their own
(`environment_probe`), by the interpreter the run would have.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from mosaic_extras.errors import RequirementSetError
from mosaic_extras.overlays import check_sets, interpreter_for
from mosaic_wire.checkpoints import read_checkpoint
from mosaic_wire.errors import DamagedCheckpoint, Problem
from mosaic_wire.files import read_json_object, write_json_atomically
from mosaic_wire.paths import Home, RunFolder
from mosaic_wire.worker_spec import AlgorithmSpec

from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.declarations import Declaration, Flags
from cleanrl_worker.env_kwargs import read_env_kwargs
from cleanrl_worker.errors import BadInput
from cleanrl_worker.modes import TRAINING, plays_at_random
from cleanrl_worker.modes.checkpoints import file_problems, find_checkpoint, lacks_statistics
from cleanrl_worker.needs import Needs, estimate, free_disk_bytes, free_memory_bytes, gib, sizes_of, total_memory_bytes
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY, backend_of, pipeline_of, spec_without_environments
from cleanrl_worker.requirement_sets import sets_needed
from cleanrl_worker.wrappers.schedule import stage_environments

logger = logging.getLogger(__name__)

NEEDED_PACKAGES = ("torch", "numpy", "gymnasium", "tensorboard", "safetensors", "tyro")
"""Modules every one of our own algorithms imports"""

Memory = tuple[Callable[[], int | None], str]
"""How much there is for a run, and the text for that"""
FREE: Memory = (free_memory_bytes, "are free")
ALL_THERE_IS: Memory = (total_memory_bytes, "is all that this machine has")

CONTINUOUS_ONLY = frozenset({"mujoco", "dm_control"})
"""Sets whose environments all have continuous actions"""
_ARRAYS = "state.safetensors"
_MAX_HEADER_BYTES = 64 << 20


@dataclass
class Preflight:
    """What is known about a run before it starts, and everything that is wrong."""

    problems: list[Problem] = field(default_factory=list)
    sets: tuple[str, ...] = ()
    python: Path = Path(sys.executable)
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """What the user should know about values that a run can start with"""
    missing_sets: tuple[str, ...] = ()
    """Those that have to be installed before it can run"""
    fits: bool | None = None
    """Whether the algorithm can play its environments; None: unknown"""
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Environment id → its spaces"""
    needs: Needs | None = None

    def summary(self) -> dict[str, Any]:
        """Return what a dry run shows of it."""
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
    config: CleanRLWorkerConfig, folder: RunFolder, home: Home, *, probe: bool = True, memory: Memory = FREE
) -> Preflight:
    """Check a config of one of our algorithms as far as that is possible without training.

    Without `probe` no environment is made and only what costs next to nothing is checked: for the start of a run, which
    makes its environments itself. A run that is to be queued is compared with all the `memory` of the machine.
    """
    spec = spec_without_environments()
    found = Preflight(config.problems(spec, folder))
    algorithm = spec.algorithm(config.algo)
    if algorithm is None:
        return found
    values = _all_values(config, algorithm)
    entry, trains = DEFAULT_ALGO_REGISTRY.get(config.algo), config.mode in TRAINING
    declared = entry.declaration if entry is not None and trains else Declaration()
    env_kwargs = _env_kwargs(values, found)
    _check_rules(declared, values, found, with_notes=trains)
    found.problems += [Problem(*wrong) for wrong in file_problems(declared, values, from_anywhere=True)]
    _check_statistics(config, found)
    _check_sets(config, algorithm, home, found, may_install=probe)
    lacks_sets = bool(found.missing_sets) or _blames(found, "extras.requirements")
    if probe and env_kwargs is not None and not lacks_sets:
        if not algorithm.unavailable:
            _probe_environments(config, values, env_kwargs, home, found)
        made = {env_id: facts for env_id, facts in found.facts.items() if "problem" not in facts}
        misfits = [*_misfits(config, algorithm, made), *_agent_problems(values, declared, made)]
        found.problems += misfits
        found.fits = not misfits if made and len(made) == len(found.facts) else None
        found.problems += _drawing_problems(config, values, found.facts)
    facts = found.facts.get(config.env_id)
    found.needs = estimate(declared, values, facts, process_mb=spec.capabilities.estimated_memory_mb)
    # A run that starts now may use the last of the memory; one that would never fit is refused all the same.
    needs = found.needs if probe else replace(found.needs, process=0, margin=0)
    check_room(needs, folder, found, memory)
    _check_checkpoint(config, declared, values, found)
    return found


def _all_values(config: CleanRLWorkerConfig, algorithm: AlgorithmSpec) -> dict[str, Any]:
    return {**{known.name: known.default for known in algorithm.fields}, **config.values_for(algorithm)}


def _env_kwargs(values: Mapping[str, Any], found: Preflight) -> dict[str, Any] | None:
    text = values.get("env_kwargs")
    try:
        return read_env_kwargs(text) if isinstance(text, str) else {}
    except BadInput as error:
        found.problems.append(Problem("env_kwargs", str(error)))
        return None


def _check_rules(declared: Declaration, values: Mapping[str, Any], found: Preflight, *, with_notes: bool) -> None:
    wrong = {problem.path.rpartition(".")[2] for problem in found.problems}
    sentences = declared.problems(values, leaving_out=wrong)
    found.problems += [Problem(_first_flag(sentence), sentence) for sentence in sentences]
    if with_notes:
        found.notes += declared.notes_on(values, leaving_out=wrong)


def _first_flag(sentence: str) -> str:
    flag = next((word for word in sentence.split() if word.startswith("--")), "")
    return flag.strip("-:;,.").replace("-", "_")


def _blames(found: Preflight, path: str) -> bool:
    return any(problem.path == path for problem in found.problems)


def missing_set_problems(extras: Mapping[str, Any], message: str, *, may_install: bool = True) -> list[Problem]:
    """Return the problem of missing sets; none where the run requests their installation."""
    if may_install and extras.get("install_missing") is True:
        return []
    return [Problem("extras.install_missing", f"{message}, or add --install-missing")]


def _check_sets(
    config: CleanRLWorkerConfig, algorithm: AlgorithmSpec, home: Home, found: Preflight, *, may_install: bool
) -> None:
    """Check that the packages are installed, and find the interpreter that has them."""
    try:
        found.sets = sets_needed(algorithm, config.env_id, config.extras)
        answer = check_sets(home, found.sets)
    except RequirementSetError as error:
        found.problems.append(Problem("extras.requirements", str(error)))
        return
    if answer.missing:
        found.missing_sets = answer.missing
        kinds = algorithm.action_spaces
        if kinds and "continuous" not in kinds and CONTINUOUS_ONLY & {*answer.missing}:
            text = f"{algorithm.name} needs {' or '.join(kinds)} actions; those of {config.env_id} are continuous"
            found.problems.append(Problem("env_id", text))
            found.fits = False
        found.problems += missing_set_problems(config.extras, answer.message, may_install=may_install)
        return
    if not answer.is_ready or answer.python is None:
        found.problems.append(Problem("extras.requirements", answer.message))
        return
    found.python, found.versions = answer.python, answer.versions or {}
    lacking = [name for name in NEEDED_PACKAGES if importlib.util.find_spec(name) is None]
    if lacking:
        cure = f"{sys.executable} -m pip install -r requirements/cleanrl_worker.txt"
        text = f"the base environment lacks {', '.join(lacking)}. Install: {cure}"
        found.problems.append(Problem("extras.requirements", text))


def _probe_environments(
    config: CleanRLWorkerConfig, values: Mapping[str, Any], env_kwargs: Mapping[str, Any], home: Home, found: Preflight
) -> None:
    stages = stage_environments(config.extras.get("curriculum_schedule"))
    backend = backend_of(config.algo, values.get("env_backend", "auto"))
    how = (pipeline_of(config.algo), backend)
    requests = [(env_id, env_kwargs, *how) for env_id in dict.fromkeys((config.env_id, *stages))]
    # The joint environment of several sets may not exist yet; it is small, and a run would make it, too.
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


def _path_of(config: CleanRLWorkerConfig, env_id: str) -> str:
    return "env_id" if env_id == config.env_id else "extras.curriculum_schedule"


def _misfits(
    config: CleanRLWorkerConfig, algorithm: AlgorithmSpec, all_facts: Mapping[str, Mapping[str, Any]]
) -> Iterator[Problem]:
    """Yield why this algorithm cannot play these environments."""
    playable = {"action": algorithm.action_spaces, "observation": algorithm.observation_spaces}
    for env_id, facts in all_facts.items():
        for what, kinds in playable.items():
            if kinds and facts[what]["kind"] not in kinds and not plays_at_random(config.extras):
                text = f"{algorithm.name} needs {' or '.join(kinds)} {what}s"
                yield Problem(_path_of(config, env_id), f"{text}; those of {env_id} are {facts[what]['text']}")


def _agent_problems(
    values: Mapping[str, Any], declared: Declaration, all_facts: Mapping[str, Mapping[str, Any]]
) -> Iterator[Problem]:
    """Yield why the chosen network cannot play these observations."""
    agent, plays = str(values.get("agent")), declared.agents
    largest = declared.largest_image if "agent" in values else None  # without the flag, the file knows its own
    for env_id, facts in all_facts.items():
        seen = facts["observation"]
        if agent in plays and seen["kind"] in plays.values() and seen["kind"] != plays[agent]:
            yield Problem("agent", f"--agent {agent} plays {plays[agent]}s; those of {env_id} are {seen['text']}")
        elif agent not in plays and largest and seen["kind"] == "image" and max(seen["shape"]) > largest:
            text = f"the images of {env_id} are frames of shape {seen['shape']}; those of grid worlds can be played"
            yield Problem("env_id", f"{text} (up to {largest} cells), or any with --agent minigrid")


def _drawing_problems(
    config: CleanRLWorkerConfig, values: Mapping[str, Any], all_facts: Mapping[str, Mapping[str, Any]]
) -> Iterator[Problem]:
    """Yield why what is to be recorded cannot be drawn."""
    requested = {
        "capture_video": config.mode in TRAINING and values.get("capture_video"),
        "extras.eval_capture_video": config.extras.get("eval_capture_video"),
    }
    env_id = [config.env_id, *stage_environments(config.extras.get("curriculum_schedule"))][-1]
    for path, is_requested in requested.items():
        if is_requested is True and not all_facts.get(env_id, {}).get("draws", True):
            yield Problem(path, f"{env_id} cannot be drawn: it has no render mode rgb_array; leave videos out")


def check_room(needs: Needs, folder: RunFolder, found: Preflight, memory: Memory) -> None:
    """Check that there is enough memory and disk."""
    if (wrong := needs.memory_problem(memory[0](), memory[1])) is not None:
        found.problems.append(Problem("memory", wrong))
    needs = replace(needs, margin=0) if memory is ALL_THERE_IS else needs  # a little space is soon freed
    if (wrong := needs.disk_problem(free_disk_bytes(folder.root), folder.root)) is not None:
        found.problems.append(Problem("disk", wrong))


# -- checkpoints


def _check_checkpoint(
    config: CleanRLWorkerConfig, declared: Declaration, values: Mapping[str, Any], found: Preflight
) -> None:
    """Check that the checkpoint fits this run; `config.problems` has checked that it is whole."""
    checkpoint = config.resume_from
    if checkpoint is None or not checkpoint.is_dir() or _blames(found, "extras.checkpoint_path"):
        return
    try:
        earlier = (read_checkpoint(checkpoint, hash_shared=False).get("values") or {}).get("args") or {}
        shapes = _shapes_of(checkpoint / _ARRAYS)
    except (DamagedCheckpoint, OSError, ValueError) as error:
        found.problems.append(Problem("extras.checkpoint_path", f"cannot be used: {error}"))
        return
    for name in declared.resume_needs:
        if name in earlier and name in values and earlier[name] != values[name]:
            text = f"was made with {name}={earlier[name]!r}; this run has {values[name]!r}"
            found.problems.append(Problem("extras.checkpoint_path", text))
    with suppress(AttributeError):  # what the shapes depend on is not known
        for name, expected in declared.shapes(Flags({**values, **sizes_of(found.facts.get(config.env_id))})).items():
            if name in shapes and shapes[name] != expected:
                text = f"has {name} of shape {shapes[name]}; this run's network has {expected}"
                found.problems.append(Problem("extras.checkpoint_path", text))


def _check_statistics(config: CleanRLWorkerConfig, found: Preflight) -> None:
    """Check that a policy has its observation statistics, in every mode."""
    entry = DEFAULT_ALGO_REGISTRY.get(config.algo)
    with suppress(BadInput):  # `config.problems` has reported the path
        if entry is not None and config.extras.get("policy_statistics") is None:
            lacking = lacks_statistics(find_checkpoint(config.extras), config.algo, entry.declaration)
            found.problems += [Problem("extras.checkpoint_path", f"cannot be used: {lacking}")] if lacking else []


def _shapes_of(arrays: Path) -> dict[str, list[int]]:
    """Return the shapes in a safetensors file: its header is a length and a JSON object; no array is read."""
    with arrays.open("rb") as stream:
        length = stream.read(8)
        if len(length) < 8 or (size := struct.unpack("<Q", length)[0]) > _MAX_HEADER_BYTES:
            raise ValueError(f"{arrays} is not a safetensors file")
        header = json.loads(stream.read(size))
    return {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}


PROBE = "cleanrl_worker.environment_probe"
TIMEOUT_S = 15.0
"""Below what the daemon waits for a check; an environment that takes longer is not checked"""
_ERROR_CHARACTERS = 400
_JUST_NOW_S = 5.0
_just_now: dict[str, tuple[float, dict[str, Any]]] = {}

Request = tuple[str, Mapping[str, Any], str, str]
"""An environment's id, its arguments, the pipeline before the algorithm, and the backend that steps it"""


def facts_about(
    requests: Sequence[Request], *, python: Path, versions: Mapping[str, str], home: Home, environ: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the spaces for each request, or `{"problem": …}`, with `timed_out` when nothing is known.

    Answers are cached under `cache/environments/` of the home, by interpreter, versions, id and arguments, except about
    environments of a user's own module, whose code may change.
    """
    files = [_cache_file(home, request, python, versions) for request in requests]
    keys = [json.dumps([str(python), dict(versions), *request], sort_keys=True) for request in requests]
    known = [_read(file) or _recent_answer(key) for file, key in zip(files, keys, strict=True)]
    missing = [request for request, answer in zip(requests, known, strict=True) if answer is None]
    fresh = iter(_ask(missing, python, environ) if missing else [])
    answers = []
    for key, file, answer in zip(keys, files, known, strict=True):
        if answer is None:
            answer = next(fresh)
            _just_now[key] = time.monotonic(), answer
            if file is not None and "problem" not in answer:
                _keep(file, answer, home)
        answers.append(answer)
    return answers


def _recent_answer(key: str) -> dict[str, Any] | None:
    """Return an answer of the last seconds, for other algorithms with the same environment that is not cached."""
    asked_at, answer = _just_now.get(key, (0.0, None))
    return answer if answer is not None and time.monotonic() - asked_at < _JUST_NOW_S else None


def _ask(requests: Sequence[Request], python: Path, environ: Mapping[str, str]) -> list[dict[str, Any]]:
    request = json.dumps([[env_id, dict(given), *rest] for env_id, given, *rest in requests])
    try:
        code, output, errors = _run([str(python), "-m", PROBE, request], environ)
    except subprocess.TimeoutExpired:
        late = f"could not be made within {TIMEOUT_S:g} s, so nothing about it was checked"
        return [{"problem": f"{env_id} {late}", "timed_out": True} for env_id, *_ in requests]
    except OSError as error:
        return [{"problem": f"{env_id} could not be probed with {python}: {error}"} for env_id, *_ in requests]
    with suppress(ValueError, IndexError):
        if code == 0:
            return list(json.loads(output.splitlines()[-1]))
    last = errors.decode(errors="replace").strip().splitlines()[-1:] or ["it printed nothing"]
    text = f"making it ended with exit code {code}: {last[0][:_ERROR_CHARACTERS]}"
    return [{"problem": f"{env_id} cannot be made: {text}"} for env_id, *_ in requests]


def _run(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[int, bytes, bytes]:
    """Return exit code, output and errors. Files, not pipes: a process that the environment leaves would hold those."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            argv, env=dict(environ), stdin=subprocess.DEVNULL, stdout=output, stderr=errors, start_new_session=True
        )
        try:
            process.wait(TIMEOUT_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        errors.seek(0)
        return process.returncode, output.read(), errors.read()


def _cache_file(home: Home, request: Request, python: Path, versions: Mapping[str, str]) -> Path | None:
    env_id, env_kwargs, pipeline, backend = request
    if ":" in env_id or not home.root.is_dir():
        return None
    here = Path(__file__).parent
    sources = (here / "environment_probe.py", *sorted(here.glob("training/envs/*.py")))
    identity = {
        "python": str(python),
        "versions": dict(versions),
        "gymnasium": metadata.version("gymnasium"),
        "env_id": env_id,
        "env_kwargs": dict(env_kwargs),
        "pipeline": pipeline,
        "backend": backend,
        "how": [file.stat().st_mtime_ns for file in sources],
    }
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:24]
    return home.cache / "environments" / f"{key}.json"


def _read(file: Path | None) -> dict[str, Any] | None:
    try:
        return read_json_object(file, max_bytes=1 << 20) if file is not None else None
    except (OSError, ValueError):
        return None


def _keep(file: Path, answer: Mapping[str, Any], home: Home) -> None:
    try:
        if not home.cache.is_dir():
            home.cache.mkdir(mode=0o700)
        file.parent.mkdir(exist_ok=True)
        write_json_atomically(file, answer, sealed=True)
    except OSError as error:
        logger.debug("the answer about an environment is not cached: %s", error)
