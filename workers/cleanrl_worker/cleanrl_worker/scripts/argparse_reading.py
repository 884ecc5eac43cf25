"""Parameters of scripts in the older CleanRL style: calls of `add_argument`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cleanrl_worker.scripts.parameters import ScriptParameter, Writing, make_field
from cleanrl_worker.scripts.values import OPEN, dotted, evaluate

_KINDS = ("int", "float", "str")


@dataclass
class ArgparseReader:
    """Reads every `add_argument(…)` of the script, wherever it stands."""

    file: Path
    tree: ast.Module
    names: Mapping[str, ast.expr]
    is_complete: bool = True
    """False once something was met that offers more than can be read here"""

    def read(self) -> tuple[ScriptParameter, ...]:
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
        said = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
        if not options or not all(isinstance(option, str) for option in options) or len(said) < len(call.keywords):
            self.is_complete = False
            return
        action_name = _name_of(said.get("action"))
        if action_name in ("help", "version"):
            return
        flag = next((option for option in options if option.startswith("--")), options[0])
        named = evaluate(said["dest"], self.file, self.names) if "dest" in said else OPEN
        name = named if isinstance(named, str) else flag.lstrip("-").replace("-", "_")
        kind, writing, default = self._kind(action_name, said)
        if kind is None:
            self.is_complete = False
            return
        if not flag.startswith("-"):
            writing = Writing.POSITIONAL
        is_required = (writing is Writing.POSITIONAL and not self._is_optional(said)) or _is_true(said.get("required"))
        yield ScriptParameter(self._field(name, kind, default, said, is_required), flag, writing, is_required)

    def _is_optional(self, said: Mapping[str, ast.expr]) -> bool:
        nargs = self._value(said, "nargs")
        return nargs in ("?", "*") or "default" in said

    def _field(self, name: str, kind: str, default: Any, said: Mapping[str, ast.expr], is_required: bool) -> Any:
        choices = self._value(said, "choices")
        help_text = self._value(said, "help")
        text = " ".join(help_text.replace("%(default)s", "").split()) if isinstance(help_text, str) else ""
        source = ast.unparse(said["default"]) if "default" in said else "the script's own choice"
        return make_field(
            name, kind, default, source, help=f"{text} (required)".strip() if is_required else text,
            choices=tuple(choices) if isinstance(choices, list) and OPEN not in choices else (),
        )  # fmt: skip

    def _value(self, said: Mapping[str, ast.expr], key: str) -> Any:
        return evaluate(said[key], self.file, self.names) if key in said else None

    def _kind(self, action: str, said: Mapping[str, ast.expr]) -> tuple[str | None, Writing, Any]:
        """(kind, how it is written, default); kind None: a form cannot say it."""
        default = self._value(said, "default")
        if action == "store_true":
            return "bool", Writing.ON, default or False
        if action == "store_false":
            return "bool", Writing.OFF, True if default is None else default
        if action.endswith("BooleanOptionalAction"):
            return "bool", Writing.SWITCH, default
        if action not in ("", "store"):
            return None, Writing.VALUE, None
        nargs = self._value(said, "nargs")
        if nargs in ("+", "*") or isinstance(nargs, int):
            return "json", Writing.VALUE, default
        kind, writing = _kind_of_type(said.get("type"))
        return kind, writing, default


def _kind_of_type(node: ast.expr | None) -> tuple[str, Writing]:
    if node is None:
        return "str", Writing.VALUE
    if isinstance(node, ast.Name) and node.id in _KINDS:
        return node.id, Writing.VALUE
    if isinstance(node, ast.Name) and node.id == "bool":
        return "bool", Writing.TRUTHY
    text = ast.unparse(node).lower()
    # `lambda x: bool(strtobool(x))`, `str2bool`, `parse_bool`: they take True and False in words.
    if "bool" in text:
        return "bool", Writing.VALUE
    if "json" in text or text in ("eval", "ast.literal_eval"):
        return "json", Writing.VALUE
    for kind in ("int", "float"):
        if f"{kind}(" in text:
            return kind, Writing.VALUE
    return "str", Writing.VALUE


def _name_of(action: ast.expr | None) -> str:
    """`"store_true"` and `argparse.BooleanOptionalAction` alike."""
    if isinstance(action, ast.Constant):
        return str(action.value)
    return "" if action is None else dotted(action) or "unknown"


def _is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True
