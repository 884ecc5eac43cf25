"""Read a script without running it: its parameters, how it parses its command line, what it imports."""

from __future__ import annotations

import ast
import hashlib
import json
import operator
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, Final

from mosaic_wire.worker_spec import AlgorithmSpec, FieldSpec, ScriptSpec

from cleanrl_worker.errors import BadInput

MAX_SCRIPT_BYTES = 4 << 20

SAME_AS: Mapping[str, tuple[str, ...]] = {
    "env_id": ("env_id", "gym_id", "env_name", "env"),
    "total_timesteps": ("total_timesteps", "total_steps", "max_timesteps"),
    "seed": ("seed",),
}
"""What every run has, and the parameters of scripts that mean the same, the likeliest first"""


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
        """Return the name of the algorithm: that of the file."""
        return self.path.stem

    @cached_property
    def sha256(self) -> str:
        """Return the hash of the text."""
        return hashlib.sha256(self.content).hexdigest()

    def parameter(self, name: str) -> ScriptParameter | None:
        """Return the parameter of this name."""
        return next((known for known in self.parameters if known.field.name == name), None)

    def parameter_for(self, role: str) -> ScriptParameter | None:
        """Return the parameter that means `env_id`, `total_timesteps` or `seed` here."""
        known = (self.parameter(name) for name in SAME_AS[role])
        return next((parameter for parameter in known if parameter is not None), None)

    def algorithm(self, requirement_sets: tuple[str, ...] = ()) -> AlgorithmSpec:
        """Return the script as forms, `--help` and validation see an algorithm."""
        return AlgorithmSpec(
            name=self.name,
            help=f"script {self.path}" + (f": {self.summary}" if self.summary else ""),
            fields=tuple(parameter.field for parameter in self.parameters),
            requirement_sets=requirement_sets,
            modes=("train",),
            open_flags=self.open_flags,
        )

    def spec(self, requirement_sets: tuple[str, ...] = ()) -> ScriptSpec:
        """Return what `--describe-script` prints."""
        return ScriptSpec(str(self.path), self.sha256, self.algorithm(requirement_sets))

    def argv(self, values: Mapping[str, Any]) -> list[str]:
        """Return the command line that sets these values in the script's own syntax."""
        flags: list[str] = []
        positional: list[str] = []
        for name, value in values.items():
            known = self.parameter(name.replace("-", "_"))
            if known is None:
                flags += self._undeclared(name, value)
            elif known.writing is not Writing.POSITIONAL:
                flags += known.arguments(value)
        for parameter in self.parameters:
            name = parameter.field.name
            if parameter.writing is Writing.POSITIONAL and name in values:
                positional += parameter.arguments(values[name])
        return [*flags, *(["--", *positional] if positional else [])]

    def _undeclared(self, name: str, value: Any) -> list[str]:
        """Return the arguments of an undeclared flag, in the syntax of this style."""
        flag = name.replace("_", "-")
        if isinstance(value, bool) and self.style is not ScriptStyle.ARGPARSE:
            return [f"--{flag}" if value else f"--no-{flag}"]
        return [] if value is None else [f"--{flag}", *as_arguments(value)]


def read_script(path: Path) -> Script:
    """Read a script as text; raise BadInput when there is none, or it is no Python this interpreter can parse."""
    content = _content_of(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd escapes in the script's strings
            tree = ast.parse(content, filename=str(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise BadInput(f"{path} is not a Python script: {getattr(error, 'msg', None) or error}{line}") from error
    names = dict(_constants(tree))
    targets = list(_tyro_targets(tree))
    style, complete = ScriptStyle.UNKNOWN, False
    parameters: tuple[ScriptParameter, ...] = ()
    if not targets and not _calls(tree, "add_argument"):
        # Whatever parses it, this is where its parameters are.
        targets = [node.name for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Args"][:1]
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
    if not path.is_file():  # nor a pipe, which would block forever
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
    """Yield the names the script assigns once at its top level."""
    assigned: dict[str, list[ast.expr]] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            assigned.setdefault(node.targets[0].id, []).append(node.value)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            assigned.setdefault(node.target.id, []).append(node.value)
    return ((name, values[0]) for name, values in assigned.items() if len(values) == 1)


def _tyro_targets(tree: ast.Module) -> Iterator[str]:
    """Yield what is passed to `tyro.cli`: the name of a class or function."""
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


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


OPEN: Final = object()
"""A value that only the script knows"""

_MAX_TEXT = 4096
_MAX_DIGITS_OF_A_POWER = 400

_NUMBERS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_SIGNS: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
}
_CONVERSIONS: Mapping[str, Callable[..., Any]] = {"int": int, "float": float, "str": str, "bool": bool}
_OF_PATHS: Mapping[str, Callable[..., Any]] = {
    "os.path.basename": os.path.basename,
    "os.path.dirname": os.path.dirname,
    "os.path.splitext": os.path.splitext,
    "os.path.join": os.path.join,
    "Path": PurePath,
    "pathlib.Path": PurePath,
    "len": len,
}
_OF_TEXTS = (
    *("strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "replace", "split", "rsplit", "lower", "upper"),
)
_OF_PATH_OBJECTS = ("name", "stem", "suffix", "parent")


def evaluate(node: ast.expr, file: Path, names: Mapping[str, ast.expr] | None = None, *, depth: int = 0) -> Any:
    """Return the value of an expression, or OPEN; `names` are the constants the script assigns at its top level.

    Only arithmetic on literals and a few pure functions of strings and paths are carried out.
    """
    if depth > 20:
        return OPEN
    try:
        return _Evaluation(file, names or {}, depth).visit(node)
    except (ValueError, TypeError, ArithmeticError, IndexError, KeyError, AttributeError, RecursionError):
        return OPEN


class _Evaluation:
    def __init__(self, file: Path, names: Mapping[str, ast.expr], depth: int) -> None:
        self._file, self._names, self._depth = file, names, depth

    def visit(self, node: ast.expr) -> Any:
        value = self._visit(node)
        if isinstance(value, str) and len(value) > _MAX_TEXT:
            return OPEN
        return value

    def _visit(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return OPEN if isinstance(value, bytes | complex) or value is ... else value
            case ast.Name(id="__file__"):
                return str(self._file)
            case ast.Name(id=name) if name in self._names:
                return evaluate(self._names[name], self._file, self._names, depth=self._depth + 1)
            case ast.UnaryOp(op=sign, operand=operand):
                return self._apply(_SIGNS.get(type(sign)), [operand])
            case ast.BinOp(op=ast.Pow(), left=left, right=right):
                return self._power(self.visit(left), self.visit(right))
            case ast.BinOp(left=left, op=sign, right=right):
                return self._arithmetic(sign, self.visit(left), self.visit(right))
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                items = [self.visit(element) for element in elements]
                return OPEN if OPEN in items else items
            case ast.Subscript(value=value, slice=index):
                return self._item(value, index)
            case ast.Attribute(value=value, attr=name) if name in _OF_PATH_OBJECTS:
                place = self.visit(value)
                return getattr(place, name) if isinstance(place, PurePath) else OPEN
            case ast.Call():
                return self._call(node)
            case _:
                return OPEN

    def _apply(self, function: Callable[..., Any] | None, arguments: list[ast.expr]) -> Any:
        values = [self.visit(argument) for argument in arguments]
        return OPEN if function is None or OPEN in values else function(*values)

    def _arithmetic(self, sign: ast.operator, left: Any, right: Any) -> Any:
        function = _NUMBERS.get(type(sign))
        if function is None or OPEN in (left, right):
            return OPEN
        if isinstance(left, PurePath) and isinstance(right, str) and isinstance(sign, ast.Div):
            return left / right
        both_texts = isinstance(left, str) and isinstance(right, str) and isinstance(sign, ast.Add)
        both_numbers = all(isinstance(side, int | float) for side in (left, right))
        return function(left, right) if both_texts or both_numbers else OPEN

    def _power(self, base: Any, exponent: Any) -> Any:
        if not all(isinstance(side, int | float) for side in (base, exponent)):
            return OPEN
        # 9**9**9 must not block the reader.
        if abs(exponent) > _MAX_DIGITS_OF_A_POWER or abs(base) > 10**_MAX_DIGITS_OF_A_POWER:
            return OPEN
        return base**exponent

    def _item(self, value: ast.expr, index: ast.expr) -> Any:
        whole = self.visit(value)
        if not isinstance(whole, str | list | tuple):
            return OPEN
        if not isinstance(index, ast.Slice):
            place = self.visit(index)
            return OPEN if place is OPEN else whole[place]
        ends = [None if end is None else self.visit(end) for end in (index.lower, index.upper, index.step)]
        return OPEN if OPEN in ends else whole[slice(*ends)]

    def _call(self, node: ast.Call) -> Any:
        if node.keywords:
            return OPEN
        name = dotted(node.func)
        if name in _CONVERSIONS or name in _OF_PATHS:
            return self._apply(_CONVERSIONS.get(name) or _OF_PATHS[name], node.args)
        if isinstance(node.func, ast.Attribute) and node.func.attr in _OF_TEXTS:
            text = self.visit(node.func.value)
            arguments = [self.visit(argument) for argument in node.args]
            return (
                getattr(text, node.func.attr)(*arguments) if isinstance(text, str) and OPEN not in arguments else OPEN
            )
        return OPEN


def dotted(node: ast.expr) -> str:
    """Return `os.path.join` as written; empty for anything that is not a plain name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


class Writing(StrEnum):
    """How a value is written on the command line."""

    VALUE = "value"
    """--x 3, --x True, --x 1 2 3"""
    SWITCH = "switch"
    """--x or --no-x"""
    ON = "on"
    """--x sets True, leaving it out False"""
    OFF = "off"
    """--x sets False, leaving it out True"""
    TRUTHY = "truthy"
    """`type=bool` of argparse, for which any text but the empty one is True"""
    POSITIONAL = "positional"
    """the value alone, after all flags"""


@dataclass(frozen=True)
class ScriptParameter:
    """A field for forms and checks, with the spelling the script understands."""

    field: FieldSpec
    flag: str
    """as the script declares it, e.g. --capture_video"""
    writing: Writing = Writing.VALUE
    is_required: bool = False

    def arguments(self, value: Any) -> list[str]:
        """Return the arguments that set this value."""
        if value is None:
            # None is what the script uses when the flag is left out.
            return [] if self.field.default is None else [self.flag, "None"]
        match self.writing:
            case Writing.SWITCH:
                return [self.flag if value else "--no-" + self.flag.removeprefix("--")]
            case Writing.ON:
                return [self.flag] if value else []
            case Writing.OFF:
                return [] if value else [self.flag]
            case Writing.TRUTHY:
                return [self.flag, "True" if value else ""]
            case Writing.POSITIONAL:
                return as_arguments(value)
            case _:
                return [self.flag, *as_arguments(value)]


def as_arguments(value: Any) -> list[str]:
    """Return a value as a shell would pass it; a list becomes several arguments."""
    if isinstance(value, list | tuple):
        return [argument for item in value for argument in as_arguments(item)]
    if isinstance(value, dict):
        return [json.dumps(value)]
    return [str(value)]


def complete_field(spec: FieldSpec, source: ast.expr | None, *, is_required: bool) -> FieldSpec:
    """Return a field that forms can show; a default that only the script knows is shown as its source text."""
    help = f"{spec.help} (required)".strip() if is_required else spec.help
    default, nullable = spec.default, spec.nullable
    if default is OPEN:
        text = "the script's own choice" if source is None else ast.unparse(source)
        help, default, nullable = f"{help} (by default {text})".strip(), None, True
    elif isinstance(default, PurePath):
        default = str(default)
    choices = spec.choices if all(isinstance(choice, str | int | float) for choice in spec.choices) else ()
    return replace(spec, default=default, help=help, choices=choices, nullable=nullable or default is None)


_KINDS = ("bool", "int", "float", "str")
_LISTS = frozenset({"List", "list", "Sequence", "Tuple", "tuple", "Iterable", "Set", "set", "FrozenSet"})
_MAX_NESTING = 4


@dataclass(frozen=True)
class Annotation:
    """What a type annotation means for a form."""

    kind: str
    nullable: bool = False
    choices: tuple[Any, ...] = ()
    nested: ast.ClassDef | None = None


@dataclass
class DataclassReader:
    """Read what `tyro.cli` would offer for a class or function of the script."""

    file: Path
    tree: ast.Module
    names: Mapping[str, ast.expr]
    is_complete: bool = True
    """False once something was met that offers more than can be read here"""

    def __post_init__(self) -> None:
        self._classes = {node.name: node for node in self.tree.body if isinstance(node, ast.ClassDef)}
        # `tyro.conf.FlagConversionOff` makes booleans take a value.
        self._switches = "FlagConversionOff" not in ast.dump(self.tree)

    def read(self, target: str) -> tuple[ScriptParameter, ...]:
        """Return the parameters of the class or function of this name; none when it is imported."""
        if (found := self._classes.get(target)) is not None:
            return tuple(self._of_class(found))
        functions = (node for node in self.tree.body if isinstance(node, ast.FunctionDef) and node.name == target)
        function = next(functions, None)
        if function is None:
            self.is_complete = False
            return ()
        return tuple(self._of_function(function))

    def _of_class(self, node: ast.ClassDef, prefix: str = "", depth: int = 0) -> Iterator[ScriptParameter]:
        for base in node.bases:
            known = self._classes.get(dotted(base))
            if known is not None and depth < _MAX_NESTING:
                yield from self._of_class(known, prefix, depth + 1)
            else:
                self.is_complete = False
        following = [*node.body[1:], None]
        for statement, after in zip(node.body, following, strict=True):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                name = statement.target.id
                if not name.startswith("_") and "ClassVar" not in ast.dump(statement.annotation):
                    yield from self._parameter(
                        prefix + name, statement.annotation, statement.value, _text_below(after), depth
                    )

    def _of_function(self, node: ast.FunctionDef) -> Iterator[ScriptParameter]:
        arguments = node.args
        plain = [*arguments.posonlyargs, *arguments.args]
        defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
        pairs = [*zip(plain, defaults, strict=True), *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
        self.is_complete = self.is_complete and arguments.kwarg is None
        for argument, default in pairs:
            yield from self._parameter(argument.arg, argument.annotation, default, "", 0)

    def _parameter(
        self, name: str, annotation: ast.expr | None, value: ast.expr | None, help: str, depth: int
    ) -> Iterator[ScriptParameter]:
        value, takes_part = _default_expression(value)
        if not takes_part:
            return
        default = OPEN if value is None else evaluate(value, self.file, self.names)
        meaning = self._annotation(annotation, default)
        if meaning.nested is not None:
            if depth < _MAX_NESTING:
                yield from self._of_class(meaning.nested, f"{name}.", depth + 1)
            return
        is_required = value is None
        shown = None if is_required else default
        spec = FieldSpec(name, meaning.kind, shown, help, meaning.choices, meaning.nullable)
        spec = complete_field(spec, value, is_required=is_required)
        # Without a default tyro requires a boolean's value.
        is_switch = meaning.kind == "bool" and self._switches and not is_required
        flag = "--" + name.replace("_", "-")
        yield ScriptParameter(spec, flag, Writing.SWITCH if is_switch else Writing.VALUE, is_required)

    def _annotation(self, node: ast.expr | None, default: Any) -> Annotation:
        match node:
            case ast.Constant(value=str() as text):  # a quoted annotation
                try:
                    return self._annotation(ast.parse(text, mode="eval").body, default)
                except SyntaxError:
                    return Annotation("str", nullable=True)
            case ast.Name(id=name) if name in _KINDS:
                return Annotation(name)
            case ast.Name(id=name) if name in _LISTS:
                return Annotation("json")
            case ast.Name(id=name) if name in self._classes:
                return self._of_own_class(self._classes[name])
            case ast.BinOp(op=ast.BitOr(), left=left, right=right):
                return self._union([left, right], default)
            case ast.Subscript(value=outer, slice=inner):
                return self._generic(dotted(outer).rpartition(".")[2], inner, default)
        guessed = type(default).__name__
        return Annotation(guessed if guessed in _KINDS else "json" if guessed == "list" else "str", nullable=True)

    def _generic(self, outer: str, inner: ast.expr, default: Any) -> Annotation:
        elements = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        if outer in ("Optional", "Union"):
            optional = [ast.Constant(value=None)] if outer == "Optional" else []
            return self._union([*elements, *optional], default)
        if outer == "Literal":
            choices = tuple(evaluate(element, self.file, self.names) for element in elements)
            kind = type(choices[0]).__name__ if choices else "str"
            return Annotation(kind if kind in _KINDS else "str", choices=choices)
        if outer == "Annotated" and elements:
            return self._annotation(elements[0], default)
        if outer in _LISTS:
            return Annotation("json")
        return Annotation("str", nullable=True)

    def _union(self, members: list[ast.expr], default: Any) -> Annotation:
        real = [member for member in members if not (isinstance(member, ast.Constant) and member.value is None)]
        known = [self._annotation(member, default) for member in real]
        if any(meaning.nested for meaning in known):
            self.is_complete = False  # a choice between classes is a subcommand
            return Annotation("str", nullable=True)
        nullable = len(real) < len(members)
        kinds = {meaning.kind for meaning in known}
        if kinds <= {"int", "float"} and "float" in kinds:
            return Annotation("float", nullable)
        if len(known) == 1:
            return Annotation(known[0].kind, nullable, known[0].choices)
        return Annotation("str", nullable)

    def _of_own_class(self, node: ast.ClassDef) -> Annotation:
        bases = {dotted(base).rpartition(".")[2] for base in node.bases}
        if bases & {"Enum", "StrEnum", "IntEnum"}:
            members = [
                statement.targets[0].id
                for statement in node.body
                if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
            ]
            return Annotation("str", choices=tuple(members))
        return Annotation("json", nested=node)


def _default_expression(value: ast.expr | None) -> tuple[ast.expr | None, bool]:
    """Look into `field(default=…)`; False: it is not a parameter at all (`init=False`)."""
    if not isinstance(value, ast.Call) or dotted(value.func).rpartition(".")[2] != "field":
        return value, True
    keywords = {keyword.arg: keyword.value for keyword in value.keywords}
    if isinstance(init := keywords.get("init"), ast.Constant) and init.value is False:
        return None, False
    if (default := keywords.get("default")) is not None:
        return default, True
    factory = keywords.get("default_factory")
    if isinstance(factory, ast.Lambda):
        return factory.body, True
    if isinstance(factory, ast.Name) and factory.id in ("list", "tuple"):
        return ast.List(elts=[]), True
    # `field(default_factory=Nested)`: its own fields have the defaults.
    return (ast.Call(func=factory, args=[], keywords=[]), True) if factory is not None else (None, True)


def _text_below(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return " ".join(node.value.value.split())
    return ""


@dataclass
class ArgparseReader:
    """Read every `add_argument(…)` of the script, wherever it is."""

    file: Path
    tree: ast.Module
    names: Mapping[str, ast.expr]
    is_complete: bool = True
    """False once something was met that offers more than can be read here"""

    def read(self) -> tuple[ScriptParameter, ...]:
        """Return the parameters of all calls."""
        calls = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        called = [node.func.attr for node in calls if isinstance(node.func, ast.Attribute)]
        if {"add_subparsers", "parse_known_args", "parse_known_intermixed_args"} & set(called):
            self.is_complete = False
        found: dict[str, ScriptParameter] = {}
        for call in calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
                for parameter in self._parameter(call):
                    found.setdefault(parameter.field.name, parameter)
        return tuple(found.values())

    def _parameter(self, call: ast.Call) -> Iterator[ScriptParameter]:
        options = [evaluate(argument, self.file, self.names) for argument in call.args]
        keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
        if not options or not all(isinstance(option, str) for option in options) or len(keywords) < len(call.keywords):
            self.is_complete = False
            return
        action_name = _name_of(keywords.get("action"))
        if action_name in ("help", "version"):
            return
        flag = next((option for option in options if option.startswith("--")), options[0])
        named = self._value(keywords, "dest")
        name = named if isinstance(named, str) else flag.lstrip("-").replace("-", "_")
        kind, writing, default = self._kind(action_name, keywords)
        if kind is None:
            self.is_complete = False
            return
        if not flag.startswith("-"):
            writing = Writing.POSITIONAL
        is_optional = self._value(keywords, "nargs") in ("?", "*") or "default" in keywords
        is_required = self._value(keywords, "required") is True or (writing is Writing.POSITIONAL and not is_optional)
        help, choices = self._value(keywords, "help"), self._value(keywords, "choices")
        text = " ".join(help.replace("%(default)s", "").split()) if isinstance(help, str) else ""
        known = tuple(choices) if isinstance(choices, list) and OPEN not in choices else ()
        spec = FieldSpec(name, kind, default, text, known)
        spec = complete_field(spec, keywords.get("default"), is_required=is_required)
        yield ScriptParameter(spec, flag, writing, is_required)

    def _value(self, keywords: Mapping[str, ast.expr], key: str) -> Any:
        return evaluate(keywords[key], self.file, self.names) if key in keywords else None

    def _kind(self, action: str, keywords: Mapping[str, ast.expr]) -> tuple[str | None, Writing, Any]:
        """Return (kind, how it is written, default); kind None: a form cannot express it."""
        default = self._value(keywords, "default")
        if action == "store_true":
            return "bool", Writing.ON, default or False
        if action == "store_false":
            return "bool", Writing.OFF, True if default is None else default
        if action.endswith("BooleanOptionalAction"):
            return "bool", Writing.SWITCH, default
        if action not in ("", "store"):
            return None, Writing.VALUE, None
        nargs = self._value(keywords, "nargs")
        if nargs in ("+", "*") or isinstance(nargs, int):
            return "json", Writing.VALUE, default
        kind, writing = _kind_of_type(keywords.get("type"))
        return kind, writing, default


def _kind_of_type(node: ast.expr | None) -> tuple[str, Writing]:
    if node is None:
        return "str", Writing.VALUE
    if isinstance(node, ast.Name) and node.id in _KINDS:
        return node.id, Writing.TRUTHY if node.id == "bool" else Writing.VALUE
    text = ast.unparse(node).lower()
    # `lambda x: bool(strtobool(x))`, `str2bool`, `parse_bool`: they take True and False as text.
    if "bool" in text:
        return "bool", Writing.VALUE
    if "json" in text or text in ("eval", "ast.literal_eval"):
        return "json", Writing.VALUE
    for kind in ("int", "float"):
        if f"{kind}(" in text:
            return kind, Writing.VALUE
    return "str", Writing.VALUE


def _name_of(action: ast.expr | None) -> str:
    """Return the name of `"store_true"` and of `argparse.BooleanOptionalAction`."""
    if isinstance(action, ast.Constant):
        return str(action.value)
    return "" if action is None else dotted(action) or "unknown"
