"""The messages of a conversation: instructions, a window of earlier turns, the plan, and what is seen now.

Texts of the environment are data: they are inserted once, never read as a template, and no tools are offered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from llm_worker.answers import Constraint, format_rule, written

DEFAULT_PROMPT = """You play {environment}.
{goal}

In every turn you get an observation and choose exactly one action.
Actions: {actions}.
{format}"""
PLACES = ("environment", "goal", "actions", "format")
"""Places that a prompt template may have"""

Message = dict[str, str]


@dataclass(frozen=True)
class Turn:
    """An earlier step of the episode, as the model is reminded of it."""

    observation: str
    action: str
    reward: float

    def to_json(self) -> dict[str, Any]:
        """Return the turn as a checkpoint holds it."""
        return asdict(self)


def instructions(template: str, *, environment: str, goal: str, actions: Sequence[str], constraint: Constraint) -> str:
    """Return the system message; an empty template is the default one."""
    values = {
        "environment": environment,
        "goal": goal,
        "actions": ", ".join(actions),
        "format": format_rule(constraint, actions),
    }
    return _filled(template or DEFAULT_PROMPT, values)


def _filled(template: str, values: Mapping[str, str]) -> str:
    """Fill the places of a template in one pass, so that a value is never read as a template."""
    parts: list[str] = []
    while template:
        found = [(at, place) for place in values if (at := template.find(f"{{{place}}}")) >= 0]
        if not found:
            break
        at, place = min(found)
        parts += [template[:at], values[place]]
        template = template[at + len(place) + 2 :]
    return "".join([*parts, template])


def observation_message(observation: str, last: Turn | None, plan: str = "") -> str:
    """Return the message of a turn."""
    parts = [f"Result of {last.action}: reward {last.reward:g}."] if last is not None else []
    if plan:
        parts.append(f"Your plan: {plan}")
    return "\n".join([*parts, observation])


def messages(
    system: str, turns: Sequence[Turn], observation: str, constraint: Constraint, *, history: int, plan: str = ""
) -> list[Message]:
    """Return the messages of a request; earlier turns beyond the window are left out."""
    window = turns[max(0, len(turns) - history) :] if history else []
    found = [{"role": "system", "content": system}]
    before = turns[len(turns) - len(window) - 1] if len(turns) > len(window) else None
    for turn in window:
        found.append({"role": "user", "content": observation_message(turn.observation, before)})
        found.append({"role": "assistant", "content": written(turn.action, constraint)})
        before = turn
    last = turns[-1] if turns else None
    found.append({"role": "user", "content": observation_message(observation, last, plan)})
    return found


def plan_request(conversation: Sequence[Message], earlier: str) -> list[Message]:
    """Return the messages that ask for a plan instead of an action."""
    (*before, last) = conversation
    asked = (
        f"Your plan so far: {earlier}\n" if earlier else ""
    ) + "Do not act yet. In at most three short sentences: what have you learned, and what do you do next?"
    return [*before, {"role": "user", "content": f"{last['content']}\n\n{asked}"}]


def estimated_tokens(conversation: Sequence[Message]) -> int:
    """Return roughly how many tokens a request takes: about four characters each."""
    return sum(len(message["content"]) // 4 + 4 for message in conversation)
