"""Legal answers: how an endpoint is held to them, and which action an answer names.

An answer is always validated, however the endpoint was asked: a schema does not guarantee an answer (the grammar allows
endless whitespace), and some servers accept `response_format` and ignore it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

NONSENSE = ("zqxv", "wjkp")
"""Words of the probe, which only a constrained decoder says"""
_LONGEST_SHOWN = 60


class Constraint(StrEnum):
    """How the endpoint is held to legal actions, the strictest first."""

    JSON_SCHEMA = "json_schema"
    GRAMMAR = "grammar"
    TEXT = "text"


def schema_of(actions: Sequence[str]) -> dict[str, Any]:
    """Return the JSON schema of an answer."""
    action = {"type": "string", "enum": list(actions)}
    return {"type": "object", "properties": {"action": action}, "required": ["action"], "additionalProperties": False}


def grammar_of(actions: Sequence[str]) -> str:
    """Return a grammar of llama.cpp (GBNF) that allows the names of the actions and nothing else."""
    return "root ::= " + " | ".join(json.dumps(action) for action in actions)


def format_rule(constraint: Constraint, actions: Sequence[str]) -> str:
    """Return the sentence that tells the model how to answer."""
    if constraint is Constraint.JSON_SCHEMA:
        return f'Answer with JSON only, such as {{"action": "{actions[0]}"}}.'
    return "Answer with the name of one action and nothing else."


def written(action: str, constraint: Constraint) -> str:
    """Return an action as a correct answer names it."""
    return json.dumps({"action": action}) if constraint is Constraint.JSON_SCHEMA else action


def parse(text: str, actions: Sequence[str]) -> str | None:
    """Return the one legal action that an answer names; None when it names none or several."""
    bare = text.strip().strip("`'\". \n")
    if bare in actions:
        return bare
    if (named := _in_json(text)) is not None:
        return named if named in actions else None
    lowered = {action.lower(): action for action in actions}
    # Longer names first: `move_left` also holds `left`.
    pattern = "|".join(re.escape(name) for name in sorted(lowered, key=len, reverse=True))
    found = set(re.findall(rf"(?<![\w-])(?:{pattern})(?![\w-])", text.lower()))
    return lowered[found.pop()] if len(found) == 1 else None


def _in_json(text: str) -> str | None:
    """Return what the JSON object in a text names as its action; None without such an object."""
    begin, end = text.find("{"), text.rfind("}")
    if begin < 0 or end < begin:
        return None
    try:
        document = json.loads(text[begin : end + 1])
    except (ValueError, RecursionError):
        return None
    return str(document["action"]) if isinstance(document, dict) and "action" in document else None


def repair_request(text: str, constraint: Constraint, actions: Sequence[str]) -> str:
    """Return what to ask after an invalid answer."""
    shown = text.strip()[:_LONGEST_SHOWN] or "(nothing)"
    return f"{shown!r} names no single legal action. {format_rule(constraint, actions)} Actions: {', '.join(actions)}."
