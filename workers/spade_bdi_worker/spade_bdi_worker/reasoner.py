"""AgentSpeak in this process: agents, what they believe, and why they act.

    mind = Mind.build(source, actions, environment)
    mind.perceive(now, lasting)
    mind.achieve("act")
    mind.think(1000)

The interpreter logs its errors and raises without a place; here each becomes a BehaviourError with file, line and
reason. It keeps beliefs in sets, whose order differs between processes; here they have the order of their addition.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import agentspeak
import agentspeak.lexer
import agentspeak.parser
import agentspeak.runtime
from agentspeak import GoalType, Literal, Trigger
from mosaic_wire.errors import GivenUp, WireError
from mosaic_wire.reasoning import Part
from mosaic_wire.worker_spec import nearest

from spade_bdi_worker.percepts import Percept, Sight, Text
from spade_bdi_worker.sources import Source

_MOST_KNOWN = 10_000
_WORTH_AN_INDEX = 16
PERCEPT = frozenset([Literal("source", (Literal("percept"),))])


class BehaviourError(GivenUp):
    """A behaviour cannot be used, or cannot continue; the message names the place and the reason."""


class Interrupted(BaseException):
    """Leaves the interpreter from within an action: it catches every Exception."""


# ---------------------------------------------------------------- what the interpreter reports


_MOST_NAMED = 12
"""Beliefs in a message"""


class _Reports(logging.Handler):
    """Collects errors and warnings of the interpreter, with their places."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self.actions: list[str] = []
        """Names that are suggested for an unknown action"""

    def emit(self, record: logging.LogRecord) -> None:
        loc = getattr(record, "loc", None)
        place = f"{Path(loc.filename).name}:{loc.lineno}:{loc.startcol + 1}: " if loc else ""
        text, is_unknown = self._reworded(record), str(record.msg).startswith("no such action")
        is_error = record.levelno >= logging.ERROR or is_unknown  # it would be a belief that nobody has
        (self.errors if is_error else self.warnings).append(f"{place}{text}")

    def _reworded(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if text.startswith("no such action") and isinstance(record.args, tuple):
            name, arity = record.args
            hint = nearest(str(name), self.actions, cutoff=0.7)
            with_arguments = f"with {arity} argument{'' if arity == 1 else 's'}"
            return f"there is no action {name} {with_arguments}{f'; did you mean {hint}?' if hint else ''}"
        if record.exc_info and (error := record.exc_info[1]) is not None:
            return str(error) if isinstance(error, WireError) else f"it raised {type(error).__name__}: {error}"
        if text == "plan failure":
            return "this failed, and with it the plan: a condition did not hold, or an action was not possible"
        has_no_value = text == "term not ground" or "agentspeak.Var" in text
        return "a variable has no value here" if has_no_value else text

    def take(self) -> tuple[list[str], list[str]]:
        """Return errors and warnings, and forget them."""
        errors, warnings = self.errors, self.warnings
        self.errors, self.warnings = [], []
        return errors, warnings


_reports = _Reports()
for _name in ("agentspeak.runtime", "agentspeak.stdlib"):
    logging.getLogger(_name).handlers = [_reports]
    logging.getLogger(_name).propagate = False


# ---------------------------------------------------------------- beliefs


class Changes(dict[Literal, int]):
    """What was believed and disbelieved since the last step; what was taken back is left out."""

    is_kept = False

    def note(self, belief: Literal, change: int) -> None:
        if not self.is_kept:
            return
        total = self.pop(belief, 0) + change
        if total:
            self[belief] = total

    def take(self) -> tuple[str, ...]:
        lines = tuple(f"{'+' if total > 0 else '-'}{_shown(belief)}" for belief, total in self.items())
        self.clear()
        return lines


def _shown(belief: Literal) -> str:
    """Return a belief as text; that it is a percept goes without saying."""
    return belief.shown if isinstance(belief, _Known) else belief.asl_repr().replace("[source(percept)]", "")  # type: ignore[no-any-return]


class _Known(Literal):  # type: ignore[misc]  # untyped
    """A belief about what is perceived again and again: its hash and its text are computed once."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._hash: int = super().__hash__()
        self.shown = self.asl_repr().replace("[source(percept)]", "")

    def __hash__(self) -> int:
        return self._hash


class BeliefSet(dict[Literal, None]):
    """Beliefs of one name and arity, in the order of their addition; may change while it is iterated.

    A query that knows the first argument sees only beliefs with this argument: a map has hundreds of cells.
    """

    def __init__(self, changes: Changes) -> None:
        super().__init__()
        self._changes = changes
        self._by_first: dict[Any, dict[Literal, None]] | None = None
        self._sought: Any = None

    def add(self, belief: Literal) -> None:
        size = len(self)
        self.setdefault(belief)
        if len(self) > size:
            if self._by_first is not None:
                self._by_first.setdefault(belief.args[0], {})[belief] = None
            self._changes.note(belief, 1)

    def discard(self, belief: Literal) -> None:
        """Remove a belief that may not be there."""
        size = len(self)
        self.pop(belief, None)
        if len(self) < size:
            if self._by_first is not None:
                del self._by_first[belief.args[0]][belief]
            self._changes.note(belief, -1)

    remove = discard

    def seek(self, first: Any) -> None:
        """Let the next iteration yield beliefs with this first argument only."""
        if len(self) < _WORTH_AN_INDEX:
            return
        self._sought = first
        if self._by_first is None:
            self._by_first = {}
            for belief in self.keys():
                self._by_first.setdefault(belief.args[0], {})[belief] = None

    def __iter__(self) -> Iterator[Literal]:
        if self._sought is None or self._by_first is None:
            return iter(tuple(self.keys()))
        found, self._sought = self._by_first.get(self._sought, {}), None
        return iter(tuple(found))


class _Query(agentspeak.runtime.TermQuery):  # type: ignore[misc]  # untyped
    """A query that tells the beliefs which first argument it seeks."""

    def execute(self, agent: Any, intention: Any) -> Iterator[None]:
        term = agentspeak.evaluate(self.term, intention.scope)
        if isinstance(term, Literal) and term.args:
            first = agentspeak.evaluate(term.args[0], intention.scope)
            if isinstance(first, int | float | str) or agentspeak.is_atom(first):
                agent.beliefs[term.literal_group()].seek(first)
        yield from super().execute(agent, intention)


agentspeak.runtime.TermQuery = _Query  # the interpreter builds queries of this class


class Mind(agentspeak.runtime.Agent):  # type: ignore[misc]  # untyped
    """One agent: its beliefs, plans and intentions."""

    def __init__(self, env: Any, name: str, beliefs: Any = None, rules: Any = None, plans: Any = None) -> None:
        self.changes = Changes()
        super().__init__(env, name, defaultdict(lambda: BeliefSet(self.changes)), rules, plans)
        self.source: Source
        self.unhandled: dict[str, None] = {}
        """Events of messages that no plan is for"""
        self._reacts_to: set[tuple[str, str, int]] = set()
        """Sign, name and arity of beliefs that plans are for"""
        self._known: dict[Percept, Literal] = {}
        self._now: dict[Percept, Literal] = {}
        self._lasting: dict[Percept, Literal] = {}

    @classmethod
    def build(cls, source: Source, actions: Any, environment: Any) -> Mind:
        """Return the agent of a source; raise BehaviourError with everything that is wrong with it."""
        mind, errors, _ = cls._parse(source, actions, environment)
        if errors or mind is None:
            raise BehaviourError("\n".join(errors))
        return mind

    @classmethod
    def examine(cls, sources: Sequence[Source], actions: Any) -> tuple[list[Mind], list[str], list[str]]:
        """Return the agents that can be built, and errors and warnings of the sources, each with its place."""
        parsed = [cls._parse(source, actions, agentspeak.runtime.Environment()) for source in sources]
        minds = [mind for mind, _, _ in parsed if mind is not None]
        return (
            minds,
            [line for _, errors, _ in parsed for line in errors],
            [line for *_, each in parsed for line in each],
        )

    @classmethod
    def _parse(cls, source: Source, actions: Any, environment: Any) -> tuple[Mind | None, list[str], list[str]]:
        _reports.take()
        _reports.actions = sorted({name for name, _ in _all_actions(actions)} - {".dump"})  # it is for debugging
        mind: Mind | None = None
        stray: list[str] = []
        try:
            ast = _parsed(source)
            _, mind = environment.build_agent_from_ast(_named(source), ast, actions, cls, source.agent)
            mind.source = source
            mind._label_plans(ast)
        except agentspeak.AggregatedError:
            pass  # what is wrong was reported
        except agentspeak.AslError as error:  # an initial goal without a plan
            stray.append(f"{source.path.name}: {error}")
        except RecursionError:
            stray.append(f"{source.path.name}: it is nested too deeply")
        errors, warnings = _reports.take()
        return mind, [*errors, *stray], warnings

    def _label_plans(self, ast: Any) -> None:
        """Note which beliefs have plans, and let the first instruction of a plan, a no-op, note that it is followed."""
        plans = [plan for of_event in self.plans.values() for plan in of_event]
        self._reacts_to = {(key[0].value, *key[2:]) for key in self.plans if key[1] is GoalType.belief}
        labels = {id(node.body): _label(node, self.source) for node in ast.plans if node.body is not None}
        for plan in plans:
            if (label := labels.get(id(plan.str_body))) is not None:
                plan.body.f = _enter(plan.trigger.value + plan.goal_type.value, label)

    # ------------------------------------------------------------ sensing and thinking

    def perceive(self, sight: Sight) -> None:
        """Replace what was perceived before; a lasting percept stays until another one of the same key comes."""
        now = {percept: self._now.get(percept) or self._literal(percept) for percept in sight.now}
        for percept, belief in self._now.items():
            if percept not in now:
                self._happen(Trigger.removal, belief)
        added = [belief for percept, belief in now.items() if percept not in self._now]
        self._now = now
        for percept in sight.lasting:
            key = percept[: 1 + sight.key]
            known, belief = self._lasting.get(key), self._literal(percept)
            if known != belief:
                if known is not None:
                    self._happen(Trigger.removal, known)
                self._lasting[key] = belief
                added.append(belief)
        for belief in added:
            self._happen(Trigger.addition, belief)

    def forget_world(self) -> None:
        """Drop lasting percepts and all intentions: another episode begins."""
        for belief in self._lasting.values():
            self._happen(Trigger.removal, belief)
        self._lasting.clear()
        self.intentions.clear()

    def _literal(self, percept: Percept) -> Literal:
        """Return the belief of a percept, which often was perceived before."""
        belief = self._known.get(percept)
        if belief is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            belief = self._known[percept] = _Known(percept[0], map(_term, percept[1:]), PERCEPT)
        return belief

    def _happen(self, trigger: Trigger, belief: Literal) -> None:
        group = belief.literal_group()
        if (trigger.value, *group) in self._reacts_to or any(self.waiters()):
            self.receive(trigger, GoalType.belief, belief)
        elif trigger is Trigger.addition:
            self.beliefs[group].add(belief)
        else:
            self.beliefs[group].discard(belief)

    def know(self, facts: Iterable[Percept]) -> None:
        """Believe facts about the world that do not change."""
        for name, *args in facts:
            self.beliefs[name, len(args)].add(Literal(name, map(_term, args)))

    def can_achieve(self, goal: str) -> bool:
        """Return whether there is a plan for a goal without arguments."""
        return bool(self.plans.get((Trigger.addition, GoalType.achievement, goal, 0)))

    def achieve(self, goal: str) -> None:
        """Adopt a goal; raise BehaviourError when no plan applies."""
        self.receive(Trigger.addition, GoalType.achievement, Literal(goal))

    def receive(self, trigger: Trigger, kind: GoalType, content: Literal) -> None:
        """Take in an event of the outside."""
        if kind is GoalType.belief and not self.plans.get((trigger, kind, *content.literal_group())):
            self.unhandled[f"{trigger.value}{content.functor}/{len(content.args)}"] = None
        try:
            self.call(trigger, kind, content, agentspeak.runtime.Intention())
        except agentspeak.AslError as error:
            if not str(error).startswith("no applicable plan"):  # but an error in the condition of one
                event = f"{trigger.value}{kind.value}{_shown(content)}"
                raise BehaviourError(f"{self.source.path.name}: {event}: {error}") from None
            beliefs = [_shown(each) for group in self.beliefs.values() for each in group if each.functor != "action"]
            known = ", ".join(beliefs[:_MOST_NAMED]) + (" …" if len(beliefs) > _MOST_NAMED else "")
            raise BehaviourError(
                f"{self.source.path.name}: no plan of {self.name} applies to "
                f"{trigger.value}{kind.value}{content.asl_repr()}; it believes {known or 'nothing'}. "
                f"Add a plan without a condition as the last one: +!{content.functor} <- …"
            ) from None

    def think(self, most: int) -> int:
        """Execute up to so many instructions; return how many there were until nothing was left to do."""
        try:
            for count in range(most):
                if not self.step():
                    return count
        except agentspeak.AggregatedError as error:
            raise BehaviourError("; ".join(_reports.take()[0])) from error.__context__
        return most

    # ------------------------------------------------------------ why

    def explain(self, intention: Any) -> list[Part]:
        """Return what the agent perceives, which plan it follows, its intentions, and how its beliefs changed."""
        goals, others = [], []
        for stack in self.intentions:
            if stack and stack[-1] is intention:
                goals = [_goal(each) for each in stack]
            elif stack:
                others.append(f"{_goal(stack[-1])} (waits)")
        return [
            Part("Percepts", items=tuple(map(_shown, self._now.values()))),
            Part("Plan", intention.label[1]),
            Part("Intentions", items=(*goals, *others)),
            Part("Beliefs", items=self.changes.take()),
        ]

    # ------------------------------------------------------------ checkpoints

    def state(self) -> list[Any]:
        """Return all beliefs as JSON values, exact and in order."""
        return [to_json(belief) for name in sorted(self.beliefs) for belief in self.beliefs[name]]

    def restore(self, beliefs: Iterable[Any], sight: Sight | None) -> None:
        """Replace all beliefs without events; `sight` says which of them are percepts, None: drop percepts."""
        self.beliefs.clear()
        self.intentions.clear()
        for belief in map(from_json, beliefs):
            is_percept = bool(belief.annots & PERCEPT)
            if sight is None and is_percept:
                continue
            self.beliefs[belief.literal_group()].add(belief)
            if sight is not None and is_percept:
                percept = _percept(belief)
                if percept[0] == sight.lasting_name:
                    self._lasting[percept[: 1 + sight.key]] = belief
                else:
                    self._now[percept] = belief
        self.changes.clear()


def _named(source: Source) -> Any:
    return agentspeak.StringSource(str(source.path), source.text)


def _parsed(source: Source) -> Any:
    log = agentspeak.Log(agentspeak.runtime.LOGGER, 3)
    tokens = agentspeak.lexer.TokenStream(_named(source), log)
    ast = agentspeak.parser.parse(str(source.path), tokens, log)
    log.throw()
    return ast


def _all_actions(actions: Any) -> Iterator[tuple[str, int]]:
    while actions is not None:
        yield from actions.actions
        yield from ((name, -1) for name in actions.variadic_actions)
        actions = actions.parent


def _label(node: Any, source: Source) -> str:
    context = f" : {node.context}" if node.context is not None else ""
    return f"{node.event}{context}   ({source.path.name}:{node.loc.lineno})"


def _goal(intention: Any) -> str:
    """Return the goal or event of an intention that has begun."""
    return f"{intention.label[0]}{intention.head_term.asl_repr()}" if hasattr(intention, "label") else "…"


def _enter(event: str, label: str) -> Any:
    named = (event.lstrip("+") or "+", label)

    def enter(_: Any, intention: Any) -> bool:
        intention.label = named
        return True

    return enter


# ---------------------------------------------------------------- terms


def _term(value: Any) -> Any:
    """Return a value of a percept as a term: a word is an atom, a Text a string."""
    if isinstance(value, Text):
        return str(value)
    return Literal(value) if isinstance(value, str) else value


def _percept(belief: Literal) -> Percept:
    return (belief.functor, *(_value(term) for term in belief.args))


def _value(term: Any) -> Any:
    if isinstance(term, Literal):
        return term.functor
    return Text(term) if isinstance(term, str) else term


def to_json(term: Any) -> Any:
    """Return a ground term as a JSON value."""
    if isinstance(term, Literal):
        named = {"name": term.functor, "args": [to_json(arg) for arg in term.args]}
        notes = sorted((to_json(note) for note in term.annots), key=repr)
        return {**named, "notes": notes} if notes else named
    if agentspeak.is_list(term):
        return [to_json(item) for item in term]
    return term


def from_json(value: Any) -> Any:
    """Return the term of a JSON value; raise ValueError when it is none."""
    if isinstance(value, Mapping):
        try:
            name, args, notes = value["name"], value["args"], value.get("notes", [])
            return Literal(str(name), map(from_json, args), map(from_json, notes))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a belief: {value!r:.100}") from error
    return tuple(map(from_json, value)) if isinstance(value, list) else value


def normalized(term: Any) -> Any:
    """Return a ground term with whole numbers as integers: the parser reads every number as a float."""
    if isinstance(term, Literal):
        return Literal(term.functor, map(normalized, term.args), map(normalized, term.annots))
    if agentspeak.is_list(term):
        return tuple(map(normalized, term))
    return int(term) if isinstance(term, float) and term.is_integer() else term


def parse_term(text: str) -> Literal:
    """Return the ground literal that a message holds; raise ValueError."""
    _reports.take()
    log = agentspeak.Log(agentspeak.runtime.LOGGER, 1)
    try:
        tokens = agentspeak.lexer.TokenStream(agentspeak.StringSource("message", f"{text} ."), log)
        rest, ast = agentspeak.parser.parse_literal(next(tokens), tokens, log)
        if rest.lexeme != ".":
            raise ValueError(f"{text!r} is not one term")
        folded = ast.accept(agentspeak.parser.ConstFoldVisitor(log))
        term = folded.accept(agentspeak.runtime.BuildTermVisitor({}))
        return term.grounded({})
    except (agentspeak.AggregatedError, agentspeak.AslError, StopIteration, RecursionError) as error:
        raise ValueError(f"{text!r:.200} is not a term: {'; '.join(_reports.take()[0]) or error}") from None
