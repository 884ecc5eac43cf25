"""`Args` of an algorithm file as field specs, read from its source text: nothing is imported, torch least of all."""

from __future__ import annotations

import ast
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from mosaic_wire.errors import SpecError
from mosaic_wire.worker_spec import FieldSpec

from cleanrl_worker.training.args import Range

_PACKAGE = Path(__file__).parent
_KINDS = ("bool", "int", "float", "str")


@cache
def fields_of(source: Path, class_name: str = "Args") -> tuple[FieldSpec, ...]:
    """Read the dataclass: annotation → kind, literal → default, the string below → help.

    Base classes are read, too; own declarations precede inherited ones from another file.
    """
    tree = ast.parse(source.read_text(encoding="utf-8"), filename=str(source))
    found = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name), None)
    if found is None:
        raise SpecError(f"{source} has no class {class_name}")
    own = {spec.name: spec for spec in _own_fields(source, found)}
    near: dict[str, FieldSpec] = {}
    far: dict[str, FieldSpec] = {}
    for base in found.bases:
        home = _home_of(source, tree, base)
        inherited = {spec.name: spec for spec in fields_of(home, base.id)} if isinstance(base, ast.Name) else {}
        (near if home == source else far).update(inherited)
    merged = {**near, **own}
    for name, spec in {**far, **near}.items():
        if name in own:  # a preset declares only differences
            field = own[name]
            limits = (field.minimum, field.maximum) if field.minimum is not None else (spec.minimum, spec.maximum)
            merged[name] = replace(field, help=field.help or spec.help, minimum=limits[0], maximum=limits[1])
    return (*merged.values(), *(spec for name, spec in far.items() if name not in merged))


def _own_fields(source: Path, found: ast.ClassDef) -> list[FieldSpec]:
    following = [*found.body[1:], None]
    return [
        _field(source, node, after)
        for node, after in zip(found.body, following, strict=True)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]


def _home_of(source: Path, tree: ast.Module, base: ast.expr) -> Path:
    """Return the file a base class stands in: this one, or one of the package it is imported from."""
    if isinstance(base, ast.Name):
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name == base.id:
                return source
            imported = isinstance(node, ast.ImportFrom) and any(alias.name == base.id for alias in node.names)
            if imported and isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cleanrl_worker."):
                return _PACKAGE.joinpath(*str(node.module).split(".")[1:]).with_suffix(".py")
    raise SpecError(f"{source}:{base.lineno}: the base class {ast.unparse(base)} cannot be found without running it")


def _field(source: Path, node: ast.AnnAssign, after: ast.stmt | None) -> FieldSpec:
    assert isinstance(node.target, ast.Name)
    name = node.target.id
    annotation, limits = _split_range(source, node.annotation)
    kind, nullable, choices = _read_annotation(source, name, annotation)
    try:
        default: Any = ast.literal_eval(node.value) if node.value is not None else None
    except ValueError as error:
        raise SpecError(f"{source}:{node.lineno}: the default of {name} must be a literal") from error
    minimum, maximum = limits
    return FieldSpec(name, kind, default, _docstring(after), choices, nullable or default is None, minimum, maximum)


def _split_range(source: Path, node: ast.expr) -> tuple[ast.expr, Range]:
    """`Annotated[int, Range(1)]` → `int` and the range; without one, the annotation as it is."""
    if not (isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Annotated"):
        return node, Range()
    elements = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    for extra in elements[1:]:
        if isinstance(extra, ast.Call) and isinstance(extra.func, ast.Name) and extra.func.id == "Range":
            try:
                positional = [ast.literal_eval(argument) for argument in extra.args]
                named = {keyword.arg or "": ast.literal_eval(keyword.value) for keyword in extra.keywords}
                return elements[0], Range(*positional, **named)
            except (ValueError, TypeError) as error:
                raise SpecError(f"{source}:{node.lineno}: Range takes one or two literal numbers") from error
    return elements[0], Range()


def _docstring(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return " ".join(node.value.value.split())
    return ""


def _read_annotation(source: Path, name: str, node: ast.expr) -> tuple[str, bool, tuple[Any, ...]]:
    """(kind, nullable, choices) of `int`, `float | None`, `Optional[str]`, `Literal["a", "b"]`."""
    if isinstance(node, ast.Name) and node.id in _KINDS:
        return node.id, False, ()
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and _is_none(node.right):
        kind, _, choices = _read_annotation(source, name, node.left)
        return kind, True, choices
    if isinstance(node, ast.Subscript):
        outer = node.value.id if isinstance(node.value, ast.Name) else getattr(node.value, "attr", "")
        if outer == "Optional":
            kind, _, choices = _read_annotation(source, name, node.slice)
            return kind, True, choices
        if outer == "Literal":
            elements = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            choices = tuple(ast.literal_eval(element) for element in elements)
            return type(choices[0]).__name__, False, choices
    raise SpecError(f"{source}:{node.lineno}: {name} has a type that no form field exists for: {ast.unparse(node)}")


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
