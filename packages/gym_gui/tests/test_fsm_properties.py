"""Random lives of runs, with crashes in between, through a real registry on a real file."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from gym_gui.services.trainer.errors import InvalidTransition, NotPossibleNow, RunNotFound, StaleRun
from gym_gui.services.trainer.fsm import OUTCOMES, TRANSITIONS, RunEvent, RunStatus, advance
from gym_gui.services.trainer.records import NewRun, RunStatistics
from gym_gui.services.trainer.registry import RunRegistry
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from mosaic_wire.ids import new_run_id

E, S = RunEvent, RunStatus
runs = st.integers(min_value=0, max_value=2)
# A plain draw would spend most lives on events that are refused: the frequent half is drawn from what is possible.
events = st.tuples(st.booleans(), st.sampled_from(list(RunEvent)), st.integers(min_value=0, max_value=20))


class Crash(BaseException):
    """The process is gone before COMMIT."""


@dataclass
class Life:
    """What the registry must know about a run: the events it accepted, and nothing else."""

    run_id: str
    status: RunStatus = S.INIT
    kinds: list[str] = field(default_factory=lambda: ["submitted"])
    step: int = 0


class RegistryLives(RuleBasedStateMachine):
    """Up to three runs at a time; every rule may meet a crash at its commit."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="registry-lives-"))
        self.registry = RunRegistry(self.folder / "trainer.sqlite")
        self.lives: list[Life] = []
        self.events_stored = 0
        self.crashing = False

    def teardown(self) -> None:
        self.registry.close()
        shutil.rmtree(self.folder)

    def life(self, index: int) -> Life:
        return self.lives[index % len(self.lives)]

    def crash(self) -> None:
        raise Crash

    def reopen(self) -> None:
        self.registry.close()
        self.registry = RunRegistry(self.folder / "trainer.sqlite")
        self.crashing = False

    def survives(self, change: object) -> bool:
        """Make the change; False when the planned crash met it (the registry is then a new one)."""
        assert callable(change)
        if not self.crashing:
            change()
            return True
        with pytest.raises(Crash):
            change()
        self.reopen()
        return False

    @initialize()
    def first_run(self) -> None:
        self.submit()

    @precondition(lambda self: not self.crashing)
    @rule()
    def crash_at_the_next_commit(self) -> None:
        self.crashing = True
        self.registry.fail_write = self.crash

    @precondition(lambda self: len(self.lives) < 3)
    @rule()
    def submit(self) -> None:
        run_id = new_run_id()
        key = f"key of {run_id}"
        if not self.survives(lambda: self.registry.submit(NewRun(run_id, "random"), idempotency_key=key)):
            assert self.registry.known_submission(key) is None
            with pytest.raises(RunNotFound):
                self.registry.get(run_id)
            # What a client does that got no answer: the same key again.
            _, known = self.registry.submit(NewRun(run_id, "random"), idempotency_key=key)
            assert not known
        again, known = self.registry.submit(NewRun(new_run_id(), "random"), idempotency_key=key)
        assert known
        assert again.run_id == run_id
        self.lives.append(Life(run_id))
        self.events_stored += 1

    @precondition(lambda self: self.lives)
    @rule(index=runs, draw=events)
    def apply(self, index: int, draw: tuple[bool, RunEvent, int]) -> None:
        life = self.life(index)
        likely, event, choice = draw
        possible = sorted(event for status, event in TRANSITIONS if status is life.status)
        if likely and possible:
            event = possible[choice % len(possible)]
        following = TRANSITIONS.get((life.status, event))
        if following is None:
            with pytest.raises(InvalidTransition):
                self.registry.apply(life.run_id, event)
        elif self.survives(lambda: self.registry.apply(life.run_id, event, expected=life.status, reason=event)):
            life.status = following
            life.kinds.append(event)
            self.events_stored += 1

    @precondition(lambda self: self.lives)
    @rule(index=runs, seen=st.sampled_from(list(RunStatus)))
    def apply_on_a_stale_view(self, index: int, seen: RunStatus) -> None:
        life = self.life(index)
        if seen is not life.status:
            with pytest.raises(StaleRun):
                self.registry.apply(life.run_id, E.CANCELLED, expected=seen)

    @precondition(lambda self: self.lives)
    @rule(index=runs)
    def tell_a_fact(self, index: int) -> None:
        life = self.life(index)
        if self.survives(lambda: self.registry.record(life.run_id, "noted", notes="seen")):
            life.kinds.append("noted")
            self.events_stored += 1

    @precondition(lambda self: self.lives)
    @rule(index=runs, step=st.integers(min_value=0, max_value=2**62))
    def beat(self, index: int, step: int) -> None:
        life = self.life(index)
        if self.survives(lambda: self.registry.update_statistics({life.run_id: RunStatistics(step=step)})):
            life.step = step

    @precondition(lambda self: self.lives)
    @rule(index=runs)
    def remove(self, index: int) -> None:
        life = self.life(index)
        if life.status.is_active:
            with pytest.raises(NotPossibleNow):
                self.registry.remove(life.run_id)
        elif self.survives(lambda: self.registry.remove(life.run_id)):
            self.lives.remove(life)

    @rule()
    def restart(self) -> None:
        self.reopen()

    @invariant()
    def the_registry_tells_what_happened(self) -> None:
        for life in self.lives:
            record = self.registry.get(life.run_id)
            story = self.registry.history(life.run_id)
            assert [event.kind for event in story] == life.kinds
            assert record.event_seq == story[-1].seq
            assert record.step == life.step
            status = S.INIT
            for event in story[1:]:
                if event.to_status:
                    assert event.from_status == status
                    status = advance(life.run_id, status, RunEvent(event.kind))
                    assert event.to_status == status
            assert record.status is status is life.status
            endings = [event.kind for event in story if event.to_status == S.TERM]
            assert len(endings) == status.is_terminal
            assert record.outcome is (OUTCOMES[RunEvent(endings[0])] if endings else None)

    @invariant()
    def numbers_have_no_gaps_and_nothing_is_doubled(self) -> None:
        assert self.registry.last_seq() == self.events_stored
        assert {run.run_id for run in self.registry.list().runs} == {life.run_id for life in self.lives}
        unfinished = {life.run_id for life in self.lives if not life.status.is_terminal}
        assert {run.run_id for run in self.registry.unfinished()} == unfinished


class TestRegistryLives(RegistryLives.TestCase):  # type: ignore[misc]
    settings = settings(max_examples=40, stateful_step_count=30, deadline=None, database=None)


@given(st.lists(st.sampled_from(list(RunEvent)), max_size=40))
@settings(deadline=None, database=None)
def test_any_sequence_of_events_ends_at_most_once_and_then_for_good(drawn: list[RunEvent]) -> None:
    status, endings = S.INIT, 0
    for event in drawn:
        try:
            status = advance("r1", status, event)
        except InvalidTransition:
            continue
        endings += status.is_terminal
    assert endings == status.is_terminal
