"""A foreign script as its text tells: parameters, style, what it imports. Nothing of it is ever run to be described."""

from __future__ import annotations

import ast
import hashlib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from mosaic_wire.worker_spec import AlgorithmSpec, ScriptSpec

from cleanrl_worker.errors import BadInput
from cleanrl_worker.scripts.argparse_reading import ArgparseReader
from cleanrl_worker.scripts.dataclass_reading import DataclassReader
from cleanrl_worker.scripts.parameters import ScriptParameter, Writing, as_words
from cleanrl_worker.scripts.values import dotted

MAX_SCRIPT_BYTES = 4 << 20

SAME_AS: Mapping[str, tuple[str, ...]] = {
    "env_id": ("env_id", "gym_id", "env_name", "env"),
    "total_timesteps": ("total_timesteps", "total_steps", "max_timesteps"),
    "seed": ("seed",),
}
"""What every run has, and the parameters of scripts that mean it, the likeliest first"""


class ScriptStyle(StrEnum):
    """How a script reads its command line."""

    TYRO = "tyro"
    ARGPARSE = "argparse"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Script:
    """A script that was read; `path` is where it lies, `content` exactly what it held then."""

    path: Path
    content: bytes
    style: ScriptStyle
    parameters: tuple[ScriptParameter, ...]
    open_flags: bool
    """May take more flags than `parameters` lists"""
    imports: frozenset[str]
    """Top-level names of the modules it imports anywhere"""
    summary: str = ""

    @property
    def name(self) -> str:
        return self.path.stem

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    def parameter(self, name: str) -> ScriptParameter | None:
        return next((known for known in self.parameters if known.field.name == name), None)

    def parameter_for(self, role: str) -> ScriptParameter | None:
        """The parameter that means `env_id`, `total_timesteps` or `seed` here."""
        known = (self.parameter(name) for name in SAME_AS[role])
        return next((parameter for parameter in known if parameter is not None), None)

    def algorithm(self, requirement_sets: tuple[str, ...] = ()) -> AlgorithmSpec:
        """The script as forms, `--help` and validation see an algorithm."""
        return AlgorithmSpec(
            name=self.name,
            help=f"script {self.path}" + (f": {self.summary}" if self.summary else ""),
            fields=tuple(parameter.field for parameter in self.parameters),
            requirement_sets=requirement_sets,
            modes=("train",),
            open_flags=self.open_flags,
        )

    def spec(self, requirement_sets: tuple[str, ...] = ()) -> ScriptSpec:
        """What `--describe-script` prints."""
        return ScriptSpec(str(self.path), self.sha256, self.algorithm(requirement_sets))

    def argv(self, values: Mapping[str, Any]) -> list[str]:
        """The command line that says these values in the script's own way."""
        flags: list[str] = []
        positional: list[str] = []
        for name, value in values.items():
            known = self.parameter(name.replace("-", "_"))
            if known is None:
                flags += self._undeclared(name, value)
            elif known.writing is not Writing.POSITIONAL:
                flags += known.words(value)
        for parameter in self.parameters:
            name = parameter.field.name
            if parameter.writing is Writing.POSITIONAL and name in values:
                positional += parameter.words(values[name])
        return [*flags, *(["--", *positional] if positional else [])]

    def _undeclared(self, name: str, value: Any) -> list[str]:
        """A flag the text does not show: written in the way of its kind of script."""
        flag = name.replace("_", "-")
        if isinstance(value, bool) and self.style is not ScriptStyle.ARGPARSE:
            return [f"--{flag}" if value else f"--no-{flag}"]
        return [] if value is None else [f"--{flag}", *as_words(value)]


def read_script(path: Path) -> Script:
    """Read a script as text; raise BadInput when there is none, or it is no Python this interpreter can parse."""
    content = _content_of(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape in somebody's string is not our business
            tree = ast.parse(content, filename=str(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise BadInput(f"{path} is not a Python script: {getattr(error, 'msg', None) or error}{line}") from error
    names = dict(_constants(tree))
    targets = list(_tyro_targets(tree))
    style, complete = ScriptStyle.UNKNOWN, False
    parameters: tuple[ScriptParameter, ...] = ()
    if not targets and not _calls(tree, "add_argument") and _has_class(tree, "Args"):
        targets = ["Args"]  # whoever parses it, this is where its parameters are
    if targets:
        reader = DataclassReader(path, tree, names)
        parameters = reader.read(targets[0])
        style, complete = ScriptStyle.TYRO, reader.is_complete and len(set(targets)) == 1 and bool(parameters)
    elif _calls(tree, "add_argument"):
        arguments = ArgparseReader(path, tree, names)
        parameters = arguments.read()
        style, complete = ScriptStyle.ARGPARSE, arguments.is_complete
    docstring = ast.get_docstring(tree) or ""
    summary = docstring.strip().splitlines()[0][:200] if docstring.strip() else ""
    return Script(path, content, style, parameters, not complete, frozenset(_imports(tree)), summary)


def _content_of(path: Path) -> bytes:
    if not path.is_file():  # nor a pipe, which would be waited on for ever
        what = "a folder" if path.is_dir() else "no regular file"
        raise BadInput(f"{path} is {what}, not a script" if path.exists() else f"there is no script {path}")
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_SCRIPT_BYTES + 1)
    except OSError as error:
        raise BadInput(f"the script {path} cannot be read: {error.strerror or error}") from error
    if len(content) > MAX_SCRIPT_BYTES:
        raise BadInput(f"{path} is larger than {MAX_SCRIPT_BYTES >> 20} MiB; that is no single-file script")
    return content


def _constants(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Names the script assigns once at its top level."""
    assigned: dict[str, list[ast.expr]] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            assigned.setdefault(node.targets[0].id, []).append(node.value)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            assigned.setdefault(node.target.id, []).append(node.value)
    return ((name, values[0]) for name, values in assigned.items() if len(values) == 1)


def _tyro_targets(tree: ast.Module) -> Iterator[str]:
    """What is handed to `tyro.cli`: the name of a class or function."""
    own_name = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "tyro"
        for alias in node.names
        if alias.name == "cli"
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (dotted(node.func) == "tyro.cli" or dotted(node.func) in own_name):
            yield dotted(node.args[0]) if node.args else ""


def _calls(tree: ast.Module, name: str) -> bool:
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name
        for node in ast.walk(tree)
    )


def _has_class(tree: ast.Module, name: str) -> bool:
    return any(isinstance(node, ast.ClassDef) and node.name == name for node in tree.body)


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
