"""Defaults of a script's parameters, worked out from its source text without running any of it.

Only arithmetic on literals and a few pure functions of strings are carried out; whatever else a script computes stays
`OPEN`: the script knows it, and nobody has to guess.
"""

from __future__ import annotations

import ast
import operator
import os
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any, Final

OPEN: Final = object()
"""The value is the script's own business"""

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
_OF_TEXTS = frozenset({
    "rstrip", "lstrip", "strip", "removesuffix", "removeprefix", "replace", "split", "rsplit", "lower", "upper",
})  # fmt: skip
_OF_PATH_OBJECTS = frozenset({"name", "stem", "suffix", "parent"})


def evaluate(node: ast.expr, file: Path, names: Mapping[str, ast.expr] | None = None, *, depth: int = 0) -> Any:
    """The value of an expression, or OPEN; `names` are the constants the script assigns at its top level."""
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
        # 9**9**9 must not keep the reader busy for a year.
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
    """`os.path.join` as it is written; empty for anything that is not a plain name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""
