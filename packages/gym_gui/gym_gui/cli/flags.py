"""Algorithm flags as people type them for CleanRL, and the values of options: seeds, durations, big numbers."""

from __future__ import annotations

import getpass
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import click
from mosaic_wire.errors import Problem
from mosaic_wire.redaction import is_secret_key
from mosaic_wire.worker_config import canonical_flags
from mosaic_wire.worker_spec import AlgorithmSpec, FieldSpec, nearest

from gym_gui.wording.formats import parse_minutes, parse_seeds, parse_steps

OWN_FIELDS = ("env_id", "seed", "total_timesteps")
"""Fields of every algorithm that `mosaic train` has options of its own for."""

_USUAL_NAMES = {
    "lr": "learning-rate",
    "timesteps": "total-timesteps",
    "steps": "total-timesteps",
    "n-steps": "num-steps",
    "envs": "num-envs",
    "n-envs": "num-envs",
    "env": "env-id",
    "environment": "env-id",
    "discount": "gamma",
    "epochs": "update-epochs",
    "entropy-coef": "ent-coef",
    "minibatches": "num-minibatches",
    "buffer": "buffer-size",
    "epsilon": "start-e",
    "polyak": "tau",
    "video": "capture-video",
    "wandb": "track",
    "gpu": "cuda",
}
"""Names that users of other libraries type"""

ASKED = "-"
"""Value of a secret that is asked for, because other users of the machine can see a command line"""

_BOOLEANS = ("true", "false", "yes", "no", "1", "0")


@dataclass
class ParsedFlags:
    """Algorithm parameters, positional arguments, and all problems."""

    parameters: dict[str, Any] = field(default_factory=dict)
    positional: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def parse_flags(tokens: Sequence[str], algorithm: AlgorithmSpec, own_options: Iterable[str] = ()) -> ParsedFlags:
    """Read `--gamma 0.9 --learning_rate=3e-4 --anneal-lr --no-anneal-lr --anneal-lr False` and positional arguments."""
    return _Reader(canonical_flags(tokens), algorithm, tuple(own_options)).read()


class _Reader:
    def __init__(self, tokens: list[str], algorithm: AlgorithmSpec, own_options: tuple[str, ...]) -> None:
        self._rest = tokens
        self._algorithm = algorithm
        self._own_options = own_options
        self._found = ParsedFlags()

    def read(self) -> ParsedFlags:
        while self._rest:
            token = self._rest.pop(0)
            if token == "--":  # not needed, and not in the way of people who are used to it
                continue
            if not token.startswith("--"):
                self._positional(token)
                continue
            name, _, value = token[2:].partition("=")
            self._flag(token.partition("=")[0], name.replace("-", "_"), value if "=" in token else None)
        return self._found

    def _positional(self, token: str) -> None:
        if token.startswith("-") and len(token) > 1:
            self._found.problems.append(self._unknown_flag(token))
        else:
            self._found.positional.append(token)

    def _flag(self, written: str, name: str, value: str | None) -> None:
        known = self._algorithm.field(name)
        if known is None and name.startswith("no_"):
            positive = self._algorithm.field(name.removeprefix("no_"))
            if positive is not None and positive.kind == "bool":
                if value is not None:
                    self._found.problems.append(f"{written} takes no value; write {positive.flag} {value}")
                self._found.parameters[positive.name] = False
                return
        if known is not None:
            self._known(known, value)
        elif self._algorithm.open_flags:
            self._open(name, value)
        else:
            self._found.problems.append(self._unknown_flag(written))
            if value is None and self._rest and not self._rest[0].startswith("--"):
                self._rest.pop(0)  # its value, not an environment

    def _known(self, known: FieldSpec, value: str | None) -> None:
        if known.kind == "bool":
            if value is None and self._rest and self._rest[0].lower() in _BOOLEANS:
                value = self._rest.pop(0)
            value = "true" if value is None else value
        elif value is None:
            # A value may begin with a minus; another flag is no value.
            if not self._rest or self._rest[0].startswith("--"):
                self._found.problems.append(f"{known.flag} needs a value ({known.kind})")
                return
            value = self._rest.pop(0)
        try:
            value = self._asked_for(known.flag, value)
            self._found.parameters[known.name] = known.parse(value)
        except ValueError as error:
            self._found.problems.append(str(error))

    def _open(self, name: str, value: str | None) -> None:
        if value is None and self._rest and not self._rest[0].startswith("--"):
            value = self._rest.pop(0)
        if value is None:
            is_off = name.startswith("no_")
            self._found.parameters[name.removeprefix("no_") if is_off else name] = not is_off
            return
        try:
            value = self._asked_for(f"--{name.replace('_', '-')}", value)
        except ValueError as error:
            self._found.problems.append(str(error))
            return
        try:
            self._found.parameters[name] = json.loads({"True": "true", "False": "false"}.get(value, value))
        except ValueError:
            self._found.parameters[name] = value

    def _asked_for(self, flag: str, value: str) -> str:
        """Return the value, of a secret that is given as `-` what the user enters; raise ValueError for nothing."""
        if value != ASKED or not is_secret_key(flag.removeprefix("--")):
            return value
        if entered := _entered(flag):
            return entered
        raise ValueError(f"{flag} {ASKED}: nothing was entered")

    def _unknown_flag(self, written: str) -> str:
        if written == "--save-model" and "policy_eval" in self._algorithm.modes:
            return f"leave {written} out: {self._algorithm.name!r} always saves its model"
        flags = [*(known.flag for known in self._algorithm.fields), *self._own_options]
        usual = f"--{_USUAL_NAMES.get(written.strip('-').replace('_', '-'))}"
        close = usual if usual in flags else nearest(written.replace("_", "-"), flags)
        hint = f"; did you mean {close}?" if close else ""
        return f"{self._algorithm.name!r} has no flag {written}{hint}"


def _entered(flag: str) -> str:
    """Return what is typed without echo, or the next line of a pipe; empty at its end."""
    if sys.stdin is None or not sys.stdin.isatty():
        return sys.stdin.readline().strip() if sys.stdin is not None else ""
    try:
        return getpass.getpass(f"{flag}: ").strip()
    except EOFError:
        return ""


def default_of(algorithm: AlgorithmSpec, name: str) -> Any:
    known = algorithm.field(name)
    return None if known is None else known.default


def flag_help(algorithm: AlgorithmSpec) -> dict[str, list[tuple[str, str]]]:
    """Lines for `--help`, by group, in the order of the algorithm's file."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for known in algorithm.fields:
        if known.name not in OWN_FIELDS:
            group = known.group or "algorithm flags"
            groups.setdefault(group[:1].upper() + group[1:], []).append((_usage(known), _explanation(known)))
    return groups


def _usage(known: FieldSpec) -> str:
    if known.kind == "bool":
        return f"--[no-]{known.flag[2:]}"
    if known.choices:
        return f"{known.flag} {'|'.join(map(str, known.choices))}"
    if is_secret_key(known.name):
        return f"{known.flag} {ASKED}|{known.kind.upper()}"
    return f"{known.flag} {known.kind.upper()}"


def _explanation(known: FieldSpec) -> str:
    limits = [
        f"min {known.minimum:g}" if known.minimum is not None else "",
        f"max {known.maximum:g}" if known.maximum is not None else "",
    ]
    default = "none" if known.default is None else f"{known.default}"
    asks = f"{ASKED} asks for it, or reads a line of a pipe" if is_secret_key(known.name) else ""
    details = ", ".join(filter(None, [asks, *limits, f"default: {default}"]))
    return f"{known.help}  [{details}]".strip()


# ---------------------------------------------------------------- values


T = TypeVar("T")


def _read(
    kind: click.ParamType[T], parse: Callable[[str], T], value: Any, param: click.Parameter | None, ctx: Any
) -> T:
    try:
        return parse(str(value))
    except ValueError as error:
        kind.fail(str(error), param, ctx)


class Steps(click.ParamType[int]):
    """A number of steps: 500000, 500_000, 5e5 or 500k."""

    name = "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return value if isinstance(value, int) else _read(self, parse_steps, value, param, ctx)


class Minutes(click.ParamType[float]):
    """A time: a plain number is minutes; 90m, 2h, 1.5h, 30s, 1d."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return _read(self, parse_minutes, value, param, ctx)


class Seeds(click.ParamType[list[int]]):
    """Seeds: 1-5, 1,3,7 or a mixture."""

    name = "SEEDS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        return value if isinstance(value, list) else _read(self, parse_seeds, value, param, ctx)


def listed_problems(problems: Sequence[str]) -> str:
    """Return one message that names every problem."""
    return problems[0] if len(problems) == 1 else "\n  ".join(["invalid arguments:", *problems])


def sentence_of(problem: Problem) -> str:
    """Return a problem of a run config as a sentence; one with a parameter of the algorithm names its flag."""
    _, of_algorithm, name = problem.path.rpartition(".algo_params.")
    flag = "--" + name.rpartition(".")[2].replace("_", "-")
    place = f"{flag}: " if of_algorithm and flag not in problem.message else ""
    return place + problem.message + (f"; did you mean {problem.suggestion!r}?" if problem.suggestion else "")
