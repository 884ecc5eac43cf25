"""The state machine: every pair of state and event, alone and through the registry."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
from gym_gui.services.trainer.errors import InvalidTransition
from gym_gui.services.trainer.fsm import OUTCOMES, TRANSITIONS, RunEvent, RunOutcome, RunStatus, advance
from gym_gui.services.trainer.records import NewRun
from gym_gui.services.trainer.registry import RunRegistry
from mosaic_wire.ids import new_run_id

# Written by hand from the design, not computed from the table it checks.
ALLOWED = {
    tuple(line.split()[:2]): line.split()[2]
    for line in """\
        INIT  dispatched HSHK
        INIT  faulted    FAULT
        INIT  cancelled  TERM
        HSHK  registered RDY
        HSHK  faulted    FAULT
        HSHK  cancelled  TERM
        RDY   started    EXEC
        RDY   faulted    FAULT
        RDY   cancelled  TERM
        EXEC  paused     PAUSE
        EXEC  completed  TERM
        EXEC  faulted    FAULT
        EXEC  cancelled  TERM
        PAUSE resumed    EXEC
        PAUSE released   PAUSE
        PAUSE requeued   INIT
        PAUSE faulted    FAULT
        PAUSE cancelled  TERM
        FAULT retried    INIT
        FAULT given_up   TERM
        FAULT cancelled  TERM""".splitlines()
}

E = RunEvent
WAY_TO = {
    RunStatus.INIT: (),
    RunStatus.HSHK: (E.DISPATCHED,),
    RunStatus.RDY: (E.DISPATCHED, E.REGISTERED),
    RunStatus.EXEC: (E.DISPATCHED, E.REGISTERED, E.STARTED),
    RunStatus.PAUSE: (E.DISPATCHED, E.REGISTERED, E.STARTED, E.PAUSED),
    RunStatus.FAULT: (E.FAULTED,),
    RunStatus.TERM: (E.CANCELLED,),
}

PAIRS = [pytest.param(status, event, id=f"{status}-{event}") for status, event in product(RunStatus, RunEvent)]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunRegistry]:
    with RunRegistry(tmp_path_factory.mktemp("fsm") / "trainer.sqlite") as registry:
        yield registry


@pytest.mark.parametrize(("status", "event"), PAIRS)
def test_each_pair_leads_where_the_design_says_or_is_refused(status: RunStatus, event: RunEvent) -> None:
    if (following := ALLOWED.get((status.value, event.value))) is not None:
        assert advance("r1", status, event) is RunStatus(following)
    else:
        with pytest.raises(InvalidTransition, match=f"r1.*{event}.*{status}"):
            advance("r1", status, event)


@pytest.mark.parametrize(("status", "event"), PAIRS)
def test_the_registry_stores_an_allowed_pair_and_leaves_a_refused_one_without_a_trace(
    registry: RunRegistry, status: RunStatus, event: RunEvent
) -> None:
    run_id = new_run_id()
    before, _ = registry.submit(NewRun(run_id, "random"))
    for step in WAY_TO[status]:
        before = registry.apply(run_id, step)
    assert before.status is status

    following = ALLOWED.get((status.value, event.value))
    if following is None:
        with pytest.raises(InvalidTransition):
            registry.apply(run_id, event)
        assert registry.get(run_id) == before
        assert registry.last_seq() == before.event_seq
        return
    after = registry.apply(run_id, event, expected=status, reason="because", payload={"n": 1})
    assert after == registry.get(run_id)
    assert after.status is RunStatus(following)
    assert after.outcome is OUTCOMES.get(event)
    last = registry.history(run_id)[-1]
    assert (last.seq, last.kind, last.from_status, last.to_status) == (after.event_seq, event, status, following)
    assert (last.reason, last.payload) == ("because", {"n": 1})


def test_no_event_leaves_the_terminal_state() -> None:
    assert not [pair for pair in TRANSITIONS if pair[0].is_terminal]


def test_every_way_into_the_terminal_state_gives_an_outcome_and_no_other_event_does() -> None:
    assert {event for (_, event), following in TRANSITIONS.items() if following.is_terminal} == set(OUTCOMES)
    assert set(OUTCOMES.values()) == set(RunOutcome)


def test_a_run_can_be_cancelled_in_every_state_but_the_last() -> None:
    assert all((status, E.CANCELLED) in TRANSITIONS for status in RunStatus if not status.is_terminal)


def test_older_names_of_states_are_understood() -> None:
    assert RunStatus.TERMINATED is RunStatus.TERM
    assert RunStatus.EXECUTING is RunStatus.EXEC
