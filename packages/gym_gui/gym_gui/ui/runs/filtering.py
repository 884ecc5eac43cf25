"""Parse the filter text and the facets, and match runs. No widgets, no daemon.

    cartpole -draft              terms anywhere in name, algorithm, environment, worker, tags, notes or state;
                                 or the first or last 4 or more characters of an id
    "my first run"               an exact phrase
    algo:ppo,dqn status:running  a field; several values: any of them; -status:failed: none of them
    env:*Pole* algo:=ppo         with wildcards; with = an exact match
    seed:1-5 return:>=195 sps:<1000 steps:>1e5

A term with an unknown field (`ale_py:ALE/Pong-v5`) is searched as plain text; `Query.unknown` lists the field.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from mosaic_wire.run_status import RunStatus

from gym_gui.ui.runs.rows import RunRow, containing, without
from gym_gui.wording.run_view import STATE_LABELS

Test = Callable[[RunRow], bool]
_TOKEN = re.compile(r'-?(?:[A-Za-z]+:)?"[^"]*"?|\S+')
_FIELD = re.compile(r"([A-Za-z]+):(.*)", re.DOTALL)
_RANGE = re.compile(r"(-?[\d.]+(?:e[+-]?\d+)?)\s*(?:-|\.\.)\s*(-?[\d.]+(?:e[+-]?\d+)?)", re.IGNORECASE)
_COMPARISON = re.compile(r"(<=|>=|<|>|=)?\s*(-?[\d.]+(?:e[+-]?\d+)?)([kmg]?)", re.IGNORECASE)
_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}


class Facet(Enum):
    """Properties with checkable values."""

    STATUS = "status"
    ALGORITHM = "algorithm"
    ENVIRONMENT = "environment"
    WORKER = "worker"
    TAG = "tag"


_FACET_VALUES: dict[Facet, Callable[[RunRow], tuple[str, ...]]] = {
    Facet.STATUS: lambda row: (row.state,),
    Facet.ALGORITHM: lambda row: (row.algo,),
    Facet.ENVIRONMENT: lambda row: (row.run.env_id,),
    Facet.WORKER: lambda row: (row.run.worker_type,),
    Facet.TAG: lambda row: tuple(row.run.tags),
}


@dataclass(frozen=True)
class RunFilter:
    """The complete filter of the list of runs."""

    text: str = ""
    facets: Mapping[Facet, frozenset[str]] = field(default_factory=dict)
    show_archived: bool = False

    @property
    def is_active(self) -> bool:
        """Return whether it hides any runs besides archived ones."""
        return bool(self.text.strip()) or any(self.facets.values())

    def with_text(self, text: str) -> RunFilter:
        return replace(self, text=text)

    def with_facet(self, facet: Facet, values: Iterable[str]) -> RunFilter:
        chosen = {**self.facets, facet: frozenset(values)}
        return replace(self, facets={key: ticked for key, ticked in chosen.items() if ticked})

    @cached_property
    def query(self) -> Query:
        """Return the parsed text."""
        return parse(self.text)

    def fitting(self, rows: Iterable[RunRow], *, besides: Facet | None = None) -> list[RunRow]:
        """Return the matching rows in the given order; `besides` ignores one facet."""
        # One pass per condition: in Python much faster than all conditions per row.
        if not self.show_archived and not self.query.mentions_archived:
            rows = [row for row in rows if not row.is_archived]
        for facet, values in self.facets.items():
            if values and facet is not besides:
                test = _facet_test(facet, values)
                rows = [row for row in rows if test(row)]
        for term in self.query.terms:
            rows = containing(rows, term)
        for term in self.query.excluded_terms:
            rows = without(rows, term)
        for test in self.query.tests:
            rows = [row for row in rows if test(row)]
        return list(rows)

    def fits(self, row: RunRow) -> bool:
        return bool(self.fitting((row,)))

    def counts(self, facet: Facet, rows: Iterable[RunRow]) -> Counter[str]:
        """Count the values of a facet among the runs that match everything else."""
        value_of = _FACET_VALUES[facet]
        counts: Counter[str] = Counter()
        for row in self.fitting(rows, besides=facet):
            counts.update(value_of(row))
        counts.pop("", None)
        return counts

    # -- the daemon's format

    def to_query(self) -> dict[str, Any]:
        """Return a query for `client.save_filter`: for `mosaic runs --filter`, and the whole filter for this window."""
        states = self.facets.get(Facet.STATUS, frozenset())
        terms = self.text.split()
        query: dict[str, Any] = {
            "statuses": [status for status, label in STATE_LABELS.items() if label in states],
            "outcomes": [state for state in ("completed", "failed", "cancelled") if state in states],
            "tags": sorted(self.facets.get(Facet.TAG, ())) if len(self.facets.get(Facet.TAG, ())) == 1 else [],
            "text": terms[0] if len(terms) == 1 and terms[0].isalnum() else "",
            "include_archived": self.show_archived,
        }
        if query["statuses"] and query["outcomes"]:
            query["statuses"] = query["outcomes"] = []  # the daemon combines both with AND, we with OR
        window = {"text": self.text, "facets": {facet.value: sorted(values) for facet, values in self.facets.items()}}
        return {**{key: value for key, value in query.items() if value}, "window": window}

    @classmethod
    def from_query(cls, query: Mapping[str, Any]) -> RunFilter:
        """Parse a query of `to_query` or `mosaic runs --save-filter`; skip what is not understood."""
        archived = query.get("include_archived") is True
        window = query.get("window")
        if isinstance(window, Mapping):
            kept = window.get("facets")
            facets = {
                facet: frozenset(map(str, kept[facet.value]))
                for facet in Facet
                if isinstance(kept, Mapping) and isinstance(kept.get(facet.value), list) and kept[facet.value]
            }
            return cls(str(window.get("text") or ""), facets, archived)
        states = [STATE_LABELS[status] for status in _strings(query, "statuses") if status in STATE_LABELS]
        if "finished" in states:
            states += ["completed", "failed", "cancelled"]
        states += _strings(query, "outcomes")
        facets = {Facet.STATUS: frozenset(states)} if states else {}
        tags = [f'tag:"={tag}"' for tag in _strings(query, "tags")]
        return cls(" ".join(filter(None, [str(query.get("text") or ""), *tags])), facets, archived)


def _strings(query: Mapping[str, Any], key: str) -> list[str]:
    value = query.get(key)
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _facet_test(facet: Facet, values: frozenset[str]) -> Test:
    value_of = _FACET_VALUES[facet]
    if facet is Facet.TAG:
        return lambda row: not values.isdisjoint(row.run.tags)
    return lambda row: value_of(row)[0] in values


# ------------------------------------------------------------------ the filter language


@dataclass(frozen=True)
class Query:
    """A parsed filter text."""

    terms: tuple[str, ...] = ()
    excluded_terms: tuple[str, ...] = ()
    tests: tuple[Test, ...] = ()
    unknown: tuple[str, ...] = ()
    """Unknown fields, whose terms were searched as plain text"""
    mentions_archived: bool = False


def parse(text: str) -> Query:
    terms: dict[bool, list[str]] = {True: [], False: []}
    tests: list[Test] = []
    unknown: list[str] = []
    mentions_archived = False
    for token in _TOKEN.findall(text):
        is_positive = not token.startswith("-") or len(token) == 1
        body = token if is_positive else token[1:]
        name, value = _field_in(body)
        maker = _FIELDS.get(name)
        if maker is None:
            if name:
                unknown.append(name)
            terms[is_positive].append(body.strip('"').lower())
        elif value:  # else the user is still typing
            test = maker(value.lower())
            tests.append(test if is_positive else _negated(test))
            mentions_archived |= is_positive and name == "is" and "archived" in value.lower()
    return Query(
        tuple(terms[True]), tuple(terms[False]), tuple(tests), tuple(dict.fromkeys(unknown)), mentions_archived
    )


def _field_in(term: str) -> tuple[str, str]:
    """Split `algo:"ppo"` into algo and ppo; a plain term has no field."""
    match = _FIELD.fullmatch(term)
    return (match[1].lower(), match[2].strip('"')) if match else ("", "")


def _negated(test: Test) -> Test:
    return lambda row: not test(row)


def _any_of(value: str, make: Callable[[str], Test]) -> Test:
    tests = [make(part) for part in value.split(",") if part]
    if len(tests) == 1:
        return tests[0]
    return lambda row: any(test(row) for test in tests)


def _pattern(value: str, *, inside: bool) -> Callable[[str], bool]:
    """Return a predicate for a value: `=exact`, `with*wildcards`, or a substring."""
    if value.startswith("="):
        requested = value[1:]
        return lambda text: text == requested
    if "*" in value or "?" in value:
        return lambda text: fnmatchcase(text, value)
    return (lambda text: value in text) if inside else (lambda text: text == value)


def _text_field(read: Callable[[RunRow], str]) -> Callable[[str], Test]:
    def make(value: str) -> Test:
        def one(part: str) -> Test:
            fits = _pattern(part, inside=True)
            return lambda row: fits(read(row).lower())

        return _any_of(value, one)

    return make


def _tag_field(value: str) -> Test:
    def one(part: str) -> Test:
        fits = _pattern(part, inside=False)
        return lambda row: any(fits(tag.lower()) for tag in row.run.tags)

    return _any_of(value, one)


_ACTIVE = frozenset({RunStatus.HSHK, RunStatus.RDY, RunStatus.EXEC, RunStatus.FAULT})
_STATE_GROUPS: dict[str, Test] = {
    "active": lambda row: row.run.status in _ACTIVE,
    "finished": lambda row: row.run.status == RunStatus.TERM,
    "unfinished": lambda row: row.run.status != RunStatus.TERM,
}


def _status_field(value: str) -> Test:
    def one(part: str) -> Test:
        if part in _STATE_GROUPS:
            return _STATE_GROUPS[part]
        upper = part.upper()
        if upper in STATE_LABELS:
            return lambda row: row.run.status == upper
        # While the user is typing, `run` matches running.
        return lambda row: row.state.startswith(part) or part in row.run.flags

    return _any_of(value, one)


_IS: dict[str, Test] = {
    **_STATE_GROUPS,
    "archived": lambda row: row.run.archived,
    "continued": lambda row: row.run.HasField("parent"),
    "tagged": lambda row: bool(row.run.tags),
    "noted": lambda row: bool(row.run.notes),
}


def _is_field(value: str) -> Test:
    return _any_of(value, lambda part: _IS.get(part, lambda row: part in row.run.flags or row.state == part))


def _number_field(read: Callable[[RunRow], float | None]) -> Callable[[str], Test]:
    def make(value: str) -> Test:
        def one(part: str) -> Test:
            fits = _number_condition(part)

            def test(row: RunRow) -> bool:
                number = read(row)
                return number is not None and fits(number)

            return test

        return _any_of(value, one)

    return make


def _number_condition(text: str) -> Callable[[float], bool]:
    if match := _RANGE.fullmatch(text):
        try:
            low, high = float(match[1]), float(match[2])
        except ValueError:
            return lambda number: False
        return lambda number: low <= number <= high
    match = _COMPARISON.fullmatch(text)
    try:
        requested = float(match[2]) * _SCALES[match[3].lower()] if match else None
    except ValueError:
        requested = None
    if match is None or requested is None:
        return lambda number: False  # not a number (yet): matches nothing
    limit = requested
    return {
        "<": lambda number: number < limit,
        "<=": lambda number: number <= limit,
        ">": lambda number: number > limit,
        ">=": lambda number: number >= limit,
    }.get(match[1] or "=", lambda number: number == limit)


_BY_NAME: dict[tuple[str, ...], Callable[[str], Test]] = {
    ("status", "state"): _status_field,
    ("is",): _is_field,
    ("algo", "algorithm"): _text_field(lambda row: row.algo),
    ("env", "environment"): _text_field(lambda row: row.run.env_id),
    ("worker",): _text_field(lambda row: row.run.worker_type),
    ("name",): _text_field(lambda row: row.run.name),
    ("id", "run"): _text_field(lambda row: row.run.run_id),
    ("note", "notes"): _text_field(lambda row: row.run.notes),
    ("tag", "tags"): _tag_field,
    ("seed",): _number_field(lambda row: row.run.seed if row.run.HasField("seed") else None),
    ("return",): _number_field(lambda row: row.headline_return),
    ("sps",): _number_field(lambda row: row.run.sps if row.run.HasField("sps") else None),
    ("step", "steps"): _number_field(lambda row: row.run.step),
    ("total",): _number_field(lambda row: row.run.total),
    ("done", "progress"): _number_field(lambda row: None if row.fraction is None else 100 * row.fraction),
}
_FIELDS = {name: maker for names, maker in _BY_NAME.items() for name in names}
FIELD_NAMES = tuple(names[0] for names in _BY_NAME)
"""Field names, for hints and completion"""
