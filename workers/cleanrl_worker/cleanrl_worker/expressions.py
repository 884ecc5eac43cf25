"""Arithmetic as text: rules and sizes that an algorithm file declares and a dry run evaluates without importing it.

evaluate("num_envs * num_steps % num_minibatches == 0", {"num_envs": 4, …})
fill("a batch of {num_envs * num_steps} steps", {…})
"""

from __future__ import annotations

import ast
import operator
import string
from collections.abc import Callable, Mapping
from typing import Any

_OPERATORS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {"min": min, "max": max}


def names_in(text: str) -> set[str]:
    """The values an expression needs."""
    names = {node.id for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)}
    return names - set(_FUNCTIONS)


def evaluate(text: str, values: Mapping[str, Any]) -> Any:
    """Compute it; raise KeyError for a name without a value, ValueError for anything that is not arithmetic."""
    return _value(ast.parse(text, mode="eval").body, values)


def fill(text: str, values: Mapping[str, Any]) -> str:
    """Put values in place of `{expression}`."""
    parts = string.Formatter().parse(text)
    return "".join(
        literal + ("" if expression is None else str(evaluate(expression, values)))
        for literal, expression, _, _ in parts
    )


def _value(node: ast.expr, values: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=name):
            return values[name]
        case ast.BinOp(left=left, op=kind, right=right) if type(kind) in _OPERATORS:
            return _OPERATORS[type(kind)](_value(left, values), _value(right, values))
        case ast.Compare(left=left, ops=[kind], comparators=[right]) if type(kind) in _OPERATORS:
            return _OPERATORS[type(kind)](_value(left, values), _value(right, values))
        case ast.IfExp(test=test, body=body, orelse=otherwise):
            return _value(body if _value(test, values) else otherwise, values)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_value(argument, values) for argument in arguments))
    raise ValueError(f"not arithmetic: {ast.unparse(node)}")
