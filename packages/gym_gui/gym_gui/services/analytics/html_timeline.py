"""When runs waited, trained and ended, one bar each: what a story says at a glance. No script, no picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gym_gui.services.analytics.html_page import Html, element, together
from gym_gui.services.analytics.report_facts import RunFacts
from gym_gui.wording import formats
from gym_gui.wording.run_view import STATE_WORDS, state_of, title_of

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

_LEAST_PERCENT = 0.3
"""A phase of a second in a day is still to be seen"""


@dataclass(frozen=True)
class Phase:
    """What a run was doing from one time to another."""

    state: str
    begin: float
    end: float


def phases_of(events: Sequence[pb.StoryEvent], *, now: float) -> list[Phase]:
    """The states a run went through; the last one lasts until now, unless the run has ended."""
    changes = [(event.timestamp, event.to_status) for event in events if event.to_status]
    phases: list[Phase] = []
    ends = [at for at, _ in changes[1:]] + [now]
    for (begin, status), end in zip(changes, ends, strict=False):
        state = STATE_WORDS.get(status, status.lower())
        if status == "TERM" or end < begin:
            continue
        if phases and phases[-1].state == state:
            phases[-1] = Phase(state, phases[-1].begin, end)
        else:
            phases.append(Phase(state, begin, end))
    return phases


def timeline(facts: Sequence[RunFacts], *, now: float) -> Html:
    """A bar for each run on a common axis; nothing for a single run, whose story says it."""
    told = [(each, phases) for each in facts if (phases := phases_of(each.story, now=now))]
    if len(told) < 2:
        return Html("")
    first = min(phases[0].begin for _, phases in told)
    last = max(phases[-1].end for _, phases in told)
    span = max(1e-9, last - first)
    rows = [
        together(
            element("span", f"{title_of(each.run)} {state_of(each.run)}", class_="caption"),
            element("span", *_bars(phases, first, span), class_="track"),
        )
        for each, phases in told
    ]
    states = dict.fromkeys(phase.state for _, phases in told for phase in phases)
    signs = [
        element("span", element("i", class_=f"phase {_word(state)}"), f" {state}", class_="sign") for state in states
    ]
    words = f"{formats.moment(first)} to {formats.moment(last)}, {formats.duration(span)} in all"
    return together(
        element("div", *rows, class_="timeline"), element("p", *signs, element("span", words), class_="caption")
    )


def _bars(phases: Sequence[Phase], first: float, span: float) -> Iterator[Html]:
    for phase in phases:
        left, width = 100 * (phase.begin - first) / span, 100 * (phase.end - phase.begin) / span
        place = f"left:{left:.2f}%;width:{max(_LEAST_PERCENT, width):.2f}%"
        said = f"{phase.state} for {formats.duration(phase.end - phase.begin)}"
        yield element("i", class_=f"phase {_word(phase.state)}", style=place, title=said)


def _word(state: str) -> str:
    return state if state.isalpha() else "other"
