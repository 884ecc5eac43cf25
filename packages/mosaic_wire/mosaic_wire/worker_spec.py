"""`WorkerSpec`: the description that `python -m <worker>.cli --describe` prints or `worker.json` contains.

The daemon never imports a worker, so that a worker may use another Python environment.
"""

from __future__ import annotations

import fnmatch
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from mosaic_wire.capabilities import WorkerCapabilities
from mosaic_wire.decoding import from_json
from mosaic_wire.errors import Problem, SpecError

SPEC_VERSION = 1
T = TypeVar("T")

KINDS = ("bool", "int", "float", "str", "json")
"""Types of a field's value; `json` accepts any JSON value"""


@dataclass(frozen=True)
class FieldSpec:
    """One parameter of an algorithm, for form fields, `--help` and checks."""

    name: str
    kind: str
    default: Any = None
    help: str = ""
    choices: tuple[Any, ...] = ()
    nullable: bool = False
    minimum: float | None = None
    maximum: float | None = None
    group: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SpecError(f"field {self.name!r} has kind {self.kind!r}, expected one of {', '.join(KINDS)}")

    @property
    def flag(self) -> str:
        """Return the field's command-line flag."""
        return "--" + self.name.replace("_", "-")

    def problem_with(self, value: Any) -> str | None:
        """Return what is wrong with this value, or None."""
        if value is None:
            return None if self.nullable else f"expected {self.kind}, got null"
        if self.kind == "json":
            return None
        if not _fits(self.kind, value):
            return f"expected {self.kind}, got {type(value).__name__} {value!r}"
        if self.choices and value not in self.choices:
            return f"expected one of {', '.join(map(repr, self.choices))}, got {value!r}"
        if self.kind in ("int", "float"):
            if isinstance(value, float) and not math.isfinite(value):
                return f"expected a finite number, got {value!r}"
            if self.minimum is not None and value < self.minimum:
                return f"must be at least {self.minimum:g}, got {value!r}"
            if self.maximum is not None and value > self.maximum:
                return f"must be at most {self.maximum:g}, got {value!r}"
        return None

    def parse(self, text: str) -> Any:
        """Return the value of a command-line text; raise ValueError with a message for the user."""
        if self.nullable and text.lower() in ("none", "null"):
            return None
        value: Any = text
        try:
            if self.kind == "bool":
                value = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.lower()]
            elif self.kind == "int":
                value = int(text.replace("_", ""))
            elif self.kind == "float":
                value = float(text)
            elif self.kind == "json":
                value = json.loads(f"[{text}]" if "," in text and text[:1] not in '[{"' else text)
        except (KeyError, ValueError) as error:
            raise ValueError(f"{self.flag}: expected {self.kind}, got {text!r}") from error
        if (wrong := self.problem_with(value)) is not None:
            raise ValueError(f"{self.flag}: {wrong}")
        return value


def _fits(kind: str, value: Any) -> bool:
    if kind == "bool":
        return isinstance(value, bool)
    if kind == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "float":
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, str)


@dataclass(frozen=True)
class AlgorithmSpec:
    """One algorithm a worker can run."""

    name: str
    help: str = ""
    fields: tuple[FieldSpec, ...] = ()
    action_spaces: tuple[str, ...] = ()
    observation_spaces: tuple[str, ...] = ()
    requirement_sets: tuple[str, ...] = ()
    modes: tuple[str, ...] = ("train",)
    unavailable: str = ""
    """Why it cannot run now, with a remedy; empty if it can"""
    open_flags: bool = False
    """Whether it accepts flags that this spec does not list (an unreadable script)"""

    def field(self, name: str) -> FieldSpec | None:
        """Return the field of this name."""
        return next((field for field in self.fields if field.name == name), None)


WORKER, EXTRAS = "worker", "extras"
"""Programs of a worker: itself, and the installer of its requirement sets"""


@dataclass(frozen=True)
class WorkerSpec:
    """The description of a worker."""

    name: str
    display_name: str
    version: str
    capabilities: WorkerCapabilities
    module: str
    """`metadata.worker.module` of a config must equal this; it is matched, never executed as given"""
    argv: tuple[str, ...] = ()
    """The command that starts it; set by the catalog for a worker found by entry point"""
    algorithms: tuple[AlgorithmSpec, ...] = ()
    environments: tuple[str, ...] | None = None
    """Environment ids it supports; None if it accepts any and checks them itself"""
    environment_patterns: tuple[str, ...] = ()
    """Shell patterns of further ids, of packages that need not be installed yet (`ALE/*`)"""
    hidden: bool = False
    """Whether it is hidden from users (the reference worker)"""
    env: Mapping[str, str] = field(default_factory=dict)
    """Additional environment variables for its process"""
    runs_scripts: bool = False
    """Whether it runs scripts (`extras.script_path`) and describes them with `--describe-script PATH`"""
    prepares: bool = False
    """Whether it has `--prepare`, which installs what a run lacks and reports progress as JSON lines"""
    non_learning: tuple[str, ...] = ()
    """Parameters that do not affect training at all (logging, evaluation, checkpoints): runs that differ only in them
    are seeds of one group. All other parameters may change what is learned"""
    checks: bool = False
    """Whether it has `--check`, which reports problems of configs before they are queued (see `config_checks`)"""

    def algorithm(self, name: str) -> AlgorithmSpec | None:
        """Return the algorithm of this name."""
        return next((algorithm for algorithm in self.algorithms if algorithm.name == name), None)

    def variants(self, name: str) -> list[AlgorithmSpec]:
        """Return the algorithm of this name, then its variants (`ppo`: `ppo_continuous_action`, …)."""
        exact = self.algorithm(name)
        others = (each for each in self.algorithms if each.name.startswith(f"{name}_") and not each.unavailable)
        return [*([exact] if exact is not None else []), *others]

    @property
    def extras_program(self) -> tuple[str, ...]:
        """Return the command that lists, installs and removes its requirement sets; empty if it has none."""
        has_sets = any(algorithm.requirement_sets for algorithm in self.algorithms)
        return (self.argv[0], "-P", "-m", "mosaic_extras.install_extras") if self.argv and has_sets else ()

    def knows_environment(self, env_id: str) -> bool:
        """Return whether the worker may support this environment; one without a list checks it when it runs."""
        # `module:Env-v0` is registered by importing the module, so it is in no list yet.
        if self.environments is None or ":" in env_id or env_id in self.environments:
            return True
        return any(fnmatch.fnmatchcase(env_id, pattern) for pattern in self.environment_patterns)

    def to_json(self) -> dict[str, Any]:
        """Return what `--describe` prints."""
        return {"spec_version": SPEC_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> WorkerSpec:
        """Read a description; raise SpecError naming what is wrong."""
        version = document.get("spec_version")
        if version != SPEC_VERSION:
            raise SpecError(f"spec_version is {version!r}, this MOSAIC reads {SPEC_VERSION}")
        spec = _decoded(cls, document, "worker description")
        if not all((spec.name, spec.display_name, spec.version, spec.module)):
            raise SpecError("name, display_name, version and module of a worker description must not be empty")
        return replace(spec, env={key: str(value) for key, value in spec.env.items()})


@dataclass(frozen=True)
class ScriptSpec:
    """The description of a script, read without running it, that `--describe-script PATH` prints."""

    path: str
    sha256: str
    """The hash of the content that was read"""
    algorithm: AlgorithmSpec
    """The script as an algorithm with the name of its file"""

    def to_json(self) -> dict[str, Any]:
        """Return what `--describe-script` prints."""
        return {"spec_version": SPEC_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ScriptSpec:
        """Read a description; raise SpecError naming what is wrong."""
        if (version := document.get("spec_version")) != SPEC_VERSION:
            raise SpecError(f"spec_version is {version!r}, this MOSAIC reads {SPEC_VERSION}")
        return _decoded(cls, document, "description of the script")

    def added_to(self, spec: WorkerSpec) -> WorkerSpec:
        """Return the worker's description with this script as an algorithm, replacing one of the same name.

        Environments are not checked, because a script may use another installation.
        """
        others = (known for known in spec.algorithms if known.name != self.algorithm.name)
        return replace(spec, algorithms=(*others, self.algorithm), environments=None)


def _decoded(kind: type[T], document: Mapping[str, Any], what: str) -> T:
    try:
        return from_json(kind, document)
    except (TypeError, ValueError) as error:
        raise SpecError(f"the {what} is malformed: {error}") from error


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.5) -> str | None:
    """Return the most similar known name for "did you mean", or None."""
    import difflib  # only needed for a mistyped name

    candidates = list(known)
    lowered = {candidate.lower(): candidate for candidate in candidates}
    close = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=cutoff)
    return lowered[close[0]] if close else None


def check_algorithm_choice(
    spec: WorkerSpec, algo: str, env_id: str, parameters: Mapping[str, Any], *, path: str = ""
) -> list[Problem]:
    """Return the problems of an algorithm, its environment and its parameters."""
    prefix = f"{path}." if path else ""
    problems: list[Problem] = []
    algorithm = spec.algorithm(algo)
    if algorithm is None:
        names = [known.name for known in spec.algorithms]
        problems.append(
            Problem(f"{prefix}algo", f"unknown algorithm {algo!r} of worker {spec.name!r}", nearest(algo, names))
        )
    elif algorithm.unavailable:
        problems.append(Problem(f"{prefix}algo", f"{algo!r} cannot run now: {algorithm.unavailable}"))
    if not spec.knows_environment(env_id):
        suggestion = nearest(env_id, spec.environments or (), cutoff=0.7)  # all end alike: -v1
        supported = ", ".join((*(spec.environments or ()), *spec.environment_patterns))
        choice = f"; worker {spec.name!r} knows {supported}" if not suggestion and len(supported) <= 300 else ""
        problems.append(Problem(f"{prefix}env_id", f"unknown environment {env_id!r}{choice}", suggestion))
    if algorithm is not None:
        for name, value in parameters.items():
            known = algorithm.field(name.replace("-", "_"))
            if known is not None:
                if (wrong := known.problem_with(value)) is not None:
                    problems.append(Problem(f"{prefix}{name}", wrong))
            elif not algorithm.open_flags:
                names = [field.name for field in algorithm.fields]
                problems.append(Problem(f"{prefix}{name}", f"{algo!r} has no parameter {name!r}", nearest(name, names)))
    return problems


# ---------------------------------------------------------------- scripts that describe themselves


SCRIPT_SUFFIXES = (".sh", ".py")
HEADER_LINES = 30
HEADER_KEYS = ("description", "env_family", "phases", "total_timesteps")

_FACT = re.compile(r"^\s*#\s*@(\w+)\s*:\s*(.*?)\s*$")
_MAX_DIGITS = 15


def read_script_header(text: str) -> dict[str, Any]:
    """Return the header of a custom script: comments in its first lines such as `# @description: warm up`.

    `total_timesteps` is a number; an invalid one is omitted.
    """
    facts: dict[str, Any] = {}
    for line in text.splitlines()[:HEADER_LINES]:
        match = _FACT.match(line)
        if match is not None and match[1] in HEADER_KEYS and match[2]:
            facts.setdefault(match[1], match[2])
    if "total_timesteps" in facts:
        digits = re.sub(r"[_,\s]", "", facts.pop("total_timesteps"))
        if digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS and int(digits) > 0:
            facts["total_timesteps"] = int(digits)
    return facts
