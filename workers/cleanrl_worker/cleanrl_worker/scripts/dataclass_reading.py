"""Parameters of scripts in the newer CleanRL style: a dataclass (or a function) given to `tyro.cli`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cleanrl_worker.scripts.parameters import ScriptParameter, Writing, make_field
from cleanrl_worker.scripts.values import OPEN, dotted, evaluate

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
    """Reads what `tyro.cli` would offer for a class or function of the script."""

    file: Path
    tree: ast.Module
    names: Mapping[str, ast.expr]
    is_complete: bool = True
    """False once something was met that offers more than can be read here"""
    _classes: dict[str, ast.ClassDef] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._classes = {node.name: node for node in self.tree.body if isinstance(node, ast.ClassDef)}
        # `tyro.conf.FlagConversionOff` makes booleans take a value.
        self._switches = "FlagConversionOff" not in ast.dump(self.tree)

    def read(self, target: str) -> tuple[ScriptParameter, ...]:
        """The parameters of the class or function of this name; nothing when it comes from elsewhere."""
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
        source = "the script's own choice" if value is None else ast.unparse(value)
        shown = None if is_required else default
        spec = make_field(
            name, meaning.kind, shown, source, help=f"{help} (required)".strip() if is_required else help,
            nullable=meaning.nullable, choices=meaning.choices,
        )  # fmt: skip
        # Without a default tyro wants to hear a boolean's value.
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
    # `field(default_factory=Nested)`: its own fields tell the defaults.
    return (ast.Call(func=factory, args=[], keywords=[]), True) if factory is not None else (None, True)


def _text_below(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return " ".join(node.value.value.split())
    return ""
