"""`WorkerSpec`: what `python -m <worker>.cli --describe` prints and `worker.json` holds.

Data, not code: the daemon never imports a worker, so a worker may live in an environment of its own.
"""

from __future__ import annotations

import fnmatch
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from mosaic_wire.capabilities import WorkerCapabilities
from mosaic_wire.errors import Problem, SpecError

SPEC_VERSION = 1

KINDS = ("bool", "int", "float", "str", "json")
"""What a field's value may be; `json` takes any JSON value."""


@dataclass(frozen=True)
class FieldSpec:
    """One parameter of an algorithm, enough to draw a form field, print `--help` and check a value."""

    name: str
    kind: str
    default: Any = None
    help: str = ""
    choices: tuple[Any, ...] = ()
    nullable: bool = False
    minimum: float | None = None
    maximum: float | None = None
    group: str = ""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def problem_with(self, value: Any) -> str | None:
        """Say what is wrong with this value, or None."""
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
        """Turn command-line text into a value; raise ValueError with a sentence for the user."""
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
    """Why it cannot run now, with the cure; empty: it can"""
    open_flags: bool = False
    """Takes flags this spec does not list (a script that could not be read)"""

    def field(self, name: str) -> FieldSpec | None:
        return next((field for field in self.fields if field.name == name), None)


@dataclass(frozen=True)
class WorkerSpec:
    """A worker as the catalog knows it."""

    name: str
    display_name: str
    version: str
    capabilities: WorkerCapabilities
    module: str
    """`metadata.worker.module` of a config must equal this; it is matched, never executed as given"""
    argv: tuple[str, ...] = ()
    """How to start it. The catalog fills it in for a worker found by entry point"""
    algorithms: tuple[AlgorithmSpec, ...] = ()
    environments: tuple[str, ...] | None = None
    """Ids it knows; None: it takes any and checks itself"""
    environment_patterns: tuple[str, ...] = ()
    """Shell patterns of ids it also takes, of packages that need not be installed yet (`ALE/*`)"""
    hidden: bool = False
    """Not offered to people (the reference worker)"""
    env: Mapping[str, str] = field(default_factory=dict)
    """Extra environment variables for its process"""
    runs_scripts: bool = False
    """Runs a file by its path (`extras.script_path`), and tells about one with `--describe-script PATH`"""
    prepares: bool = False
    """Takes `--prepare`: installs what the config's run lacks and tells how far it is, a JSON object a line"""
    non_learning: tuple[str, ...] = ()
    """Parameters that leave training as it is to the bit (logging, evaluation, checkpoints): runs that differ only in
    them are seeds of one group. A parameter that is not named here may change what is learned"""
    checks: bool = False
    """Takes `--check`: says what is wrong with configs before they are queued, see `config_checks`"""

    def algorithm(self, name: str) -> AlgorithmSpec | None:
        return next((algorithm for algorithm in self.algorithms if algorithm.name == name), None)

    def variants(self, name: str) -> list[AlgorithmSpec]:
        """What a name may mean: its own algorithm, then those made of it (`ppo`: `ppo_continuous_action`, …)."""
        own = self.algorithm(name)
        others = (each for each in self.algorithms if each.name.startswith(f"{name}_") and not each.unavailable)
        return [*([own] if own is not None else []), *others]

    def knows_environment(self, env_id: str) -> bool:
        """Tell whether this may be an environment; a worker without a list is asked when it runs."""
        # `module:Env-v0` imports the module first, so its id is not in any list yet.
        if self.environments is None or ":" in env_id or env_id in self.environments:
            return True
        return any(fnmatch.fnmatchcase(env_id, pattern) for pattern in self.environment_patterns)

    def to_json(self) -> dict[str, Any]:
        return {"spec_version": SPEC_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> WorkerSpec:
        """Read a description; raise SpecError naming what is wrong."""
        version = document.get("spec_version")
        if version != SPEC_VERSION:
            raise SpecError(f"spec_version is {version!r}, this MOSAIC reads {SPEC_VERSION}")
        try:
            return cls(
                name=_text(document, "name"),
                display_name=_text(document, "display_name"),
                version=_text(document, "version"),
                capabilities=WorkerCapabilities.from_json(document["capabilities"]),
                module=_text(document, "module"),
                argv=_texts(document.get("argv", ())),
                algorithms=tuple(_algorithm(entry) for entry in document.get("algorithms", ())),
                environments=None if document.get("environments") is None else _texts(document["environments"]),
                hidden=bool(document.get("hidden", False)),
                env={str(key): str(value) for key, value in dict(document.get("env", {})).items()},
                runs_scripts=document.get("runs_scripts", False) is True,
                environment_patterns=_texts(document.get("environment_patterns", ())),
                prepares=document.get("prepares", False) is True,
                non_learning=_texts(document.get("non_learning", ())),
                checks=document.get("checks", False) is True,
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise SpecError(f"the worker description is malformed: {error!r}") from error


@dataclass(frozen=True)
class ScriptSpec:
    """A single-file script as its text tells, read without running it: what `--describe-script PATH` prints."""

    path: str
    sha256: str
    """Of the content that was read"""
    algorithm: AlgorithmSpec
    """The script as an algorithm: its name is that of the file"""

    def to_json(self) -> dict[str, Any]:
        return {"spec_version": SPEC_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ScriptSpec:
        """Read a description; raise SpecError naming what is wrong."""
        if (version := document.get("spec_version")) != SPEC_VERSION:
            raise SpecError(f"spec_version is {version!r}, this MOSAIC reads {SPEC_VERSION}")
        try:
            return cls(_text(document, "path"), _text(document, "sha256"), _algorithm(document["algorithm"]))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise SpecError(f"the description of the script is malformed: {error!r}") from error

    def added_to(self, spec: WorkerSpec) -> WorkerSpec:
        """The worker's description with this script among its algorithms, in place of one of the same name.

        A script finds its environments itself, in an installation that the worker need not know.
        """
        others = (known for known in spec.algorithms if known.name != self.algorithm.name)
        return replace(spec, algorithms=(*others, self.algorithm), environments=None)


def _text(document: Mapping[str, Any], key: str) -> str:
    value = document[key]
    if not isinstance(value, str) or not value:
        raise SpecError(f"{key} must be a non-empty string, not {value!r}")
    return value


def _texts(values: Iterable[Any]) -> tuple[str, ...]:
    texts = tuple(values)
    if isinstance(values, str) or not all(isinstance(text, str) for text in texts):
        raise SpecError(f"expected a list of strings, not {values!r}")
    return texts


def _algorithm(document: Mapping[str, Any]) -> AlgorithmSpec:
    return AlgorithmSpec(
        name=_text(document, "name"),
        help=str(document.get("help", "")),
        fields=tuple(_field(entry) for entry in document.get("fields", ())),
        action_spaces=_texts(document.get("action_spaces", ())),
        observation_spaces=_texts(document.get("observation_spaces", ())),
        requirement_sets=_texts(document.get("requirement_sets", ())),
        modes=_texts(document.get("modes", ("train",))),
        unavailable=str(document.get("unavailable", "")),
        open_flags=bool(document.get("open_flags", False)),
    )


def _field(document: Mapping[str, Any]) -> FieldSpec:
    kind = _text(document, "kind")
    if kind not in KINDS:
        raise SpecError(f"field {document.get('name')!r} has kind {kind!r}, expected one of {', '.join(KINDS)}")
    return FieldSpec(
        name=_text(document, "name"),
        kind=kind,
        default=document.get("default"),
        help=str(document.get("help", "")),
        choices=tuple(document.get("choices") or ()),
        nullable=bool(document.get("nullable", False)),
        minimum=_number(document, "minimum"),
        maximum=_number(document, "maximum"),
        group=str(document.get("group", "")),
    )


def _number(document: Mapping[str, Any], key: str) -> float | None:
    value = document.get(key)
    if value is not None and not _fits("float", value):
        raise SpecError(f"{key} of field {document.get('name')!r} must be a number, not {value!r}")
    return value


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name that looks most like this one, for «did you mean»."""
    import difflib  # only somebody who mistyped waits for it

    candidates = list(known)
    lowered = {name.lower(): name for name in candidates}
    close = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.5)
    return lowered[close[0]] if close else None


def check_algorithm_choice(
    spec: WorkerSpec, algo: str, env_id: str, parameters: Mapping[str, Any], *, path: str = ""
) -> list[Problem]:
    """Everything wrong with an algorithm, its environment and its parameters, before anything is queued."""
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
        suggestion = nearest(env_id, spec.environments or ())
        problems.append(Problem(f"{prefix}env_id", f"unknown environment {env_id!r}", suggestion))
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
