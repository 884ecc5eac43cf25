"""The registry as its callers use it: submitting, finding, changing, telling, removing, bringing back."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from gym_gui.services.trainer.errors import (
    AmbiguousRunId,
    ArchiveRefused,
    InvalidTransition,
    NotPossibleNow,
    RegistryError,
    RunNotFound,
    StaleRun,
)
from gym_gui.services.trainer.fsm import RunEvent, RunOutcome, RunStatus
from gym_gui.services.trainer.records import NewRun, Parent, RunQuery, RunStatistics
from gym_gui.services.trainer.registry import RunRegistry
from mosaic_wire.ids import new_run_id

E, S = RunEvent, RunStatus
TO_EXEC = (E.DISPATCHED, E.REGISTERED, E.STARTED)


class Clock:
    """Goes on by a second a look."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RunRegistry]:
    with RunRegistry(tmp_path / "trainer.sqlite", clock=Clock()) as registry:
        yield registry


def submit(registry: RunRegistry, *events: RunEvent, **fields: object) -> str:
    """Submit a run, lead it through events, and return its id."""
    run_id = new_run_id()
    registry.submit(NewRun(run_id, "random", **fields))  # type: ignore[arg-type]
    for event in events:
        registry.apply(run_id, event)
    return run_id


def at_once(*calls: Callable[[], object]) -> list[BaseException]:
    """Run the calls in threads that start together; return what they raised."""
    errors: list[BaseException] = []
    gate = threading.Barrier(len(calls))

    def run(call: Callable[[], object]) -> None:
        gate.wait()
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - the test looks at every one of them
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return errors


# ---------------------------------------------------------------- submitting


def test_what_was_submitted_is_kept_whole(registry: RunRegistry) -> None:
    new = NewRun(
        new_run_id(),
        "cleanrl",
        name="première",
        worker_id="w1",
        algo="ppo",
        env_id="CartPole-v1",
        seed=2**62,
        total=50_000,
        priority=-3,
        tags=("b", "a", "b"),
        notes="a\nnote",
        parent=Parent(new_run_id(), 1_000, "0" * 64),
        cpus=1.5,
        gpus=2,
        gpus_mandatory=1,
        memory_mb=512,
        max_wallclock_minutes=0.5,
        silence_s=9.5,
        retries=3,
        extras={"tensorboard_dir": "tb", "nested": {"x": [1, None]}},
    )
    run, known = registry.submit(new)
    assert not known
    assert run == registry.get(new.run_id)
    for name in NewRun.__slots__:
        expected = ("b", "a") if name == "tags" else getattr(new, name)
        assert getattr(run, name) == expected, name
    assert (run.status, run.outcome, run.attempt, run.number) == (S.INIT, None, 1, 1)
    assert (run.created_at, run.started_at, run.finished_at) == (1_001.0, 0.0, 0.0)
    [reported] = registry.history(new.run_id)
    assert (reported.kind, reported.from_status, reported.to_status, reported.seq) == (
        "submitted",
        "",
        "INIT",
        run.event_seq,
    )


def test_the_same_config_twice_makes_two_runs_and_the_same_key_makes_one(registry: RunRegistry) -> None:
    first, second = submit(registry, name="same"), submit(registry, name="same")
    assert first != second
    with_key, known = registry.submit(NewRun(new_run_id(), "random"), idempotency_key="k")
    assert not known
    again, known = registry.submit(NewRun(new_run_id(), "random"), idempotency_key="k")
    assert known
    assert again == with_key == registry.known_submission("k")
    assert registry.known_submission("") is None
    assert registry.known_submission("other") is None
    assert len(registry.list().runs) == 3


def test_the_same_key_from_many_threads_and_two_registries_makes_one_run(registry: RunRegistry, tmp_path: Path) -> None:
    answers: list[tuple[str, bool]] = []
    with RunRegistry(tmp_path / "trainer.sqlite") as other:

        def ask(asked: RunRegistry) -> None:
            run, known = asked.submit(NewRun(new_run_id(), "random"), idempotency_key="one")
            answers.append((run.run_id, known))

        assert not at_once(*(lambda asked=asked: ask(asked) for asked in (registry, other) * 4))
    assert len({run_id for run_id, _ in answers}) == 1
    assert [known for _, known in answers].count(False) == 1
    assert len(registry.list().runs) == 1


def test_an_id_that_is_taken_is_refused(registry: RunRegistry) -> None:
    run_id = submit(registry)
    with pytest.raises(RegistryError, match=f"already a run {run_id}"):
        registry.submit(NewRun(run_id, "random"))
    assert len(registry.history(run_id)) == 1


def test_odd_text_and_numbers_are_stored_or_refused_clearly(registry: RunRegistry) -> None:
    run_id = submit(registry, name="half a pair \ud800 and a NUL \0", notes="'; DROP TABLE runs; --")
    assert registry.get(run_id).name == "half a pair ? and a NUL \0"
    reported = registry.record(run_id, "odd", payload={"nan": math.nan, "path": Path("/x"), "deep": [math.inf]})
    assert registry.history(run_id)[-1].payload == {"nan": None, "path": "/x", "deep": [None]}
    with pytest.raises(RegistryError, match="64 bits"):
        registry.record(run_id, "", step=2**63)
    with pytest.raises(RegistryError, match="the registry"):
        registry.record(run_id, "", step="many")
    assert registry.get(run_id) == reported


# ---------------------------------------------------------------- looking


def test_a_run_is_found_by_the_beginning_of_its_id(registry: RunRegistry) -> None:
    ids = ["01J0000000AAAAAAAAAAAAAAAA", "01J0000000ABBBBBBBBBBBBBBB", "01J1000000CCCCCCCCCCCCCCCC"]
    for run_id in ids:
        registry.submit(NewRun(run_id, "random"))
    assert registry.find("01j1").run_id == ids[2]
    assert registry.find(ids[0]).run_id == ids[0]
    with pytest.raises(AmbiguousRunId, match="matches 2 runs") as caught:
        registry.find("01J0")
    assert caught.value.matches == (ids[1], ids[0])
    for wrong in ("", "  ", "%", "01J2", "01J_", ids[0] + "A", "\ud800"):
        with pytest.raises(RunNotFound):
            registry.find(wrong)
    with pytest.raises(RunNotFound, match="mosaic runs --all"):
        registry.get("01J0")
    assert [run.run_id for run in registry.list(RunQuery(run_id_prefix="01j0")).runs] == [ids[1], ids[0]]


def test_lists_are_filtered_and_newest_first(registry: RunRegistry) -> None:
    queued = submit(registry, name="one", algo="ppo", tags=("a", "b"))
    done = submit(registry, *TO_EXEC, E.COMPLETED, name="two", env_id="CartPole-v1", tags=("a",))
    failed = submit(registry, E.FAULTED, E.GIVEN_UP, notes="50% of_it", tags=("b",))
    hidden = submit(registry, E.CANCELLED, name="three")
    registry.record(hidden, "archived", archived=True)

    def ids(**fields: object) -> list[str]:
        return [run.run_id for run in registry.list(RunQuery(**fields)).runs]  # type: ignore[arg-type]

    assert ids() == [failed, done, queued]
    assert ids(include_archived=True) == [hidden, failed, done, queued]
    assert ids(statuses=("INIT", "EXEC")) == [queued]
    assert ids(statuses=("TERM",)) == [failed, done]
    assert ids(outcomes=("failed", "cancelled")) == [failed]
    assert ids(tags=("a",)) == [done, queued]
    assert ids(tags=("a", "b")) == [queued]
    assert ids(tags=("a", "b", "c")) == []
    assert ids(text="CARTPOLE") == [done]
    assert ids(text="PPO") == [queued]
    assert ids(text="50% of_it") == [failed]
    assert ids(text="%") == [failed]
    assert ids(text=queued[-8:].lower()) == [queued]
    assert ids(text="two", tags=("b",)) == []
    page = registry.list(RunQuery(limit=2))
    assert [run.run_id for run in page.runs] == [failed, done]
    assert (page.matching, page.last_seq) == (3, registry.last_seq())
    assert registry.list(RunQuery(limit=3)).matching == 3
    assert registry.list(RunQuery(limit=9)).matching == 3


def test_a_text_is_the_beginning_or_the_end_of_an_id_but_never_found_within_one(registry: RunRegistry) -> None:
    run_id = "01J0000000PZAAAAAAAACCWXYZ"
    registry.submit(NewRun(run_id, "random", name="mine"))
    for text, is_found in (
        ("pz", False),
        ("PZAAAA", False),
        ("yz", False),
        ("01", False),
        ("wxyz", True),
        ("01j00", True),
        (run_id, True),
        ("min", True),
    ):
        assert registry.list(RunQuery(text=text)).matching == is_found, text


def test_tags_changed_later_are_found_and_the_old_ones_are_not(registry: RunRegistry) -> None:
    run_id = submit(registry, tags=("old", "kept"))
    registry.record(run_id, "edited", tags=("kept", "new", "new"))
    assert registry.get(run_id).tags == ("kept", "new")
    assert not registry.list(RunQuery(tags=("old",))).runs
    assert registry.list(RunQuery(tags=("kept", "new"))).matching == 1


def test_the_queue_goes_by_priority_then_by_order_of_submission(registry: RunRegistry) -> None:
    low, first, second, urgent = (submit(registry, priority=priority) for priority in (-1, 0, 0, 5))
    running = submit(registry, *TO_EXEC, priority=9)
    submit(registry, E.CANCELLED, priority=9)
    assert [run.run_id for run in registry.queue()] == [urgent, first, second, low]
    registry.record(low, "edited", priority=6)
    assert [run.run_id for run in registry.queue()] == [low, urgent, first, second]
    assert [run.run_id for run in registry.unfinished()] == [low, first, second, urgent, running]


def test_frequent_questions_are_answered_through_an_index(registry: RunRegistry) -> None:
    def plan(question: Callable[[], object]) -> str:
        asked: list[str] = []
        with registry._database.read() as connection:
            connection.set_trace_callback(asked.append)
        question()
        with registry._database.read() as connection:
            connection.set_trace_callback(None)
            selects = [text for text in asked if text.startswith("SELECT") and "FROM runs" in text]
            assert selects
            rows = [row for text in selects for row in connection.execute(f"EXPLAIN QUERY PLAN {text}").fetchall()]
        return "\n".join(row[3] for row in rows)

    run_id = submit(registry, tags=("a",))
    assert "runs_unfinished" in plan(registry.unfinished)
    assert "runs_queued" in plan(registry.queue)
    for question in (
        registry.unfinished,
        registry.queue,
        lambda: registry.list(RunQuery(limit=1)),
        lambda: registry.list(RunQuery(limit=1, include_archived=True)),
        lambda: registry.list(RunQuery(statuses=("TERM",), limit=1)),
    ):
        assert "TEMP B-TREE" not in plan(question), "sorts what an index has in order"
    for selective in (
        lambda: registry.get(run_id),
        lambda: registry.find(run_id[:12]),
        lambda: registry.known_submission("k"),
        lambda: registry.list(RunQuery(tags=("a",))),
        lambda: registry.list(RunQuery(outcomes=("failed",))),
    ):
        assert "SCAN runs" not in plan(selective), "reads every run"


def test_ten_thousand_finished_runs_cost_the_questions_about_the_others_nothing(registry: RunRegistry) -> None:
    waiting = [submit(registry, tags=("mine",)) for _ in range(20)]

    def cost(question: Callable[[], object]) -> int:
        """Count in SQLite's own instructions: the same on every machine."""
        ticks = [0]

        def tick() -> None:
            ticks[0] += 1

        with registry._database.read() as connection:
            connection.set_progress_handler(tick, 20)
        question()
        with registry._database.read() as connection:
            connection.set_progress_handler(None, 0)
        return ticks[0]

    questions: dict[str, Callable[[], object]] = {
        "unfinished": registry.unfinished,
        "queue": registry.queue,
        "get": lambda: registry.get(waiting[3]),
        "find": lambda: registry.find(waiting[3]),
        "story": lambda: registry.history(waiting[3]),
        "status": lambda: registry.list(RunQuery(statuses=("INIT",))),
        "tag": lambda: registry.list(RunQuery(tags=("mine",))),
        "events": lambda: registry.events_since(registry.last_seq() - 3),
        "change": lambda: registry.record(waiting[3], "noted", notes="n"),
    }
    before = {name: cost(question) for name, question in questions.items()}
    with registry._database.write() as connection:
        connection.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)"
            " INSERT INTO runs (run_id, status, outcome, worker_type, created_at, tags)"
            " SELECT printf('00J%023d', i), 'TERM', 'completed', 'random', i, '[\"old\"]' FROM n"
        )
        connection.execute(
            "INSERT INTO events (run_id, timestamp, kind, from_status, to_status, reason, payload, attempt)"
            " SELECT run_id, 1, 'completed', 'EXEC', 'TERM', '', '{}', 1 FROM runs WHERE status = 'TERM'"
        )
    after = {name: cost(question) for name, question in questions.items()}
    assert {name for name in questions if after[name] > before[name] + 5} == set(), f"{before} {after}"
    page = registry.list(RunQuery(limit=50))
    assert (len(page.runs), page.matching) == (50, 10_020)
    assert registry.list().matching == registry.list(RunQuery(tags=("old",))).matching + 20 == 10_020


# ---------------------------------------------------------------- changing


def test_a_life_sets_times_reasons_and_outcome(registry: RunRegistry) -> None:
    run_id = submit(registry)
    registry.record(run_id, "", queue_reason="waits for 2 CPUs")
    dispatched = registry.apply(run_id, E.DISPATCHED, pid=7, start_ticks=8, boot_id="b", mark="m", gpu_ids=("0", "1"))
    assert (dispatched.queue_reason, dispatched.pid, dispatched.gpu_ids) == ("", 7, ("0", "1"))
    registry.apply(run_id, E.REGISTERED, capabilities={"lane": "analytics"}, protocol_version=1)
    started = registry.apply(run_id, E.STARTED)
    assert started.started_at > started.created_at
    done = registry.apply(run_id, E.COMPLETED, reason="completed", result={"return": 500.0}, pid=0)
    assert (done.status, done.outcome, done.reason) == (S.TERM, RunOutcome.COMPLETED, "completed")
    assert done.finished_at > started.started_at == done.started_at
    assert (done.result, done.capabilities) == ({"return": 500.0}, {"lane": "analytics"})
    seqs = [event.seq for event in registry.history(run_id)]
    assert seqs == list(range(1, 6))


def test_a_fault_keeps_its_reason_until_it_is_retried_or_given_up(registry: RunRegistry) -> None:
    run_id = submit(registry, *TO_EXEC)
    started_at = registry.get(run_id).started_at
    assert registry.apply(run_id, E.FAULTED, reason="killed by signal 9").reason == "killed by signal 9"
    retried = registry.apply(run_id, E.RETRIED)
    assert (retried.attempt, retried.reason, retried.fault_reason) == (2, "", "")
    for event in TO_EXEC:
        again = registry.apply(run_id, event)
    assert again.started_at == started_at
    registry.apply(run_id, E.FAULTED, reason="out of memory")
    given_up = registry.apply(run_id, E.GIVEN_UP)
    assert (given_up.outcome, given_up.reason) == (RunOutcome.FAILED, "out of memory")
    assert [event.attempt for event in registry.history(run_id)] == [1] * 5 + [2] * 6


def test_a_caller_knows_better_than_the_clock_when_a_run_ended(registry: RunRegistry) -> None:
    run_id = submit(registry, *TO_EXEC)
    assert registry.apply(run_id, E.COMPLETED, finished_at=1_003.5).finished_at == 1_003.5


def test_compare_and_swap_refuses_a_stale_view_and_changes_nothing(registry: RunRegistry) -> None:
    run_id = submit(registry, E.DISPATCHED)
    before = registry.get(run_id)
    with pytest.raises(StaleRun, match="is HSHK by now, not INIT"):
        registry.apply(run_id, E.CANCELLED, expected=S.INIT, notes="lost")
    assert registry.get(run_id) == before
    assert registry.last_seq() == before.event_seq


def test_of_many_endings_at_once_exactly_one_is_stored(registry: RunRegistry, tmp_path: Path) -> None:
    run_id = submit(registry, *TO_EXEC)
    with RunRegistry(tmp_path / "trainer.sqlite") as other:
        calls = [
            lambda asked=asked, event=event: asked.apply(run_id, event)
            for asked in (registry, other)
            for event in (E.COMPLETED, E.CANCELLED, E.COMPLETED, E.CANCELLED)
        ]
        errors = at_once(*calls)
    assert len(errors) == len(calls) - 1
    assert {type(error) for error in errors} == {InvalidTransition}
    assert [event.to_status for event in registry.history(run_id)].count(S.TERM) == 1


def test_the_file_itself_refuses_a_second_life(registry: RunRegistry) -> None:
    run_id = submit(registry, E.CANCELLED)
    with pytest.raises(RegistryError, match="finished run"), registry._database.write() as connection:
        connection.execute("UPDATE runs SET status = 'INIT', outcome = NULL WHERE run_id = ?", (run_id,))
    with pytest.raises(RegistryError), registry._database.write() as connection:
        connection.execute("UPDATE runs SET outcome = NULL WHERE run_id = ?", (run_id,))
    assert registry.get(run_id).outcome is RunOutcome.CANCELLED


@pytest.mark.parametrize("column", ["status", "outcome", "number", "event_seq", "created_at", "color"])
def test_what_only_the_registry_writes_cannot_be_passed_in(registry: RunRegistry, column: str) -> None:
    run_id = submit(registry)
    for change in (registry.record, registry.apply):
        with pytest.raises(TypeError, match=column):
            change(run_id, E.DISPATCHED, **{column: 1})
    assert registry.get(run_id).status is S.INIT


def test_a_fact_is_published_without_a_change_of_status_and_a_silent_change_is_not(registry: RunRegistry) -> None:
    run_id = submit(registry)
    reported = registry.record(run_id, "checkpoint_saved", reason="r", payload={"step": 10}, lifecycle_seq=4)
    assert (reported.status, reported.lifecycle_seq) == (S.INIT, 4)
    event = registry.history(run_id)[-1]
    assert (event.kind, event.from_status, event.to_status, event.payload) == ("checkpoint_saved", "", "", {"step": 10})
    silent = registry.record(run_id, "", size_bytes=99)
    assert (silent.size_bytes, silent.event_seq) == (99, reported.event_seq)
    assert registry.record(run_id, "") == silent
    with pytest.raises(RunNotFound):
        registry.record(new_run_id(), "noted")


def test_headlines_of_many_runs_are_stored_at_once(registry: RunRegistry) -> None:
    one, two = submit(registry, total=100), submit(registry, total=100)
    registry.update_statistics(
        {
            one: RunStatistics(step=10, total=200, episodic_return=1.5, sps=9.0, seconds_since_step=0.1),
            two: RunStatistics(step=20, episodic_return=math.nan),
            new_run_id(): RunStatistics(step=5),
        }
    )
    first, second = registry.get(one), registry.get(two)
    assert (first.step, first.total, first.episodic_return, first.sps) == (10, 200, 1.5, 9.0)
    assert (second.step, second.total, second.episodic_return) == (20, 100, None)
    assert registry.last_seq() == 2
    registry.update_statistics({})


def test_flags_say_what_a_status_does_not(registry: RunRegistry) -> None:
    run_id = submit(registry, *TO_EXEC)
    run = registry.record(run_id, "", stalled=True, no_progress=True, cancel_requested=True, pause_requested="release")
    assert run.flags == ("stalled", "no_progress", "cancelling", "pausing")
    assert registry.record(run_id, "", pause_requested="resume", stalled=False).flags == ("no_progress", "cancelling")
    assert registry.apply(run_id, E.CANCELLED).flags == ()


def test_state_changes_are_synced_to_disk_and_headlines_are_not(registry: RunRegistry) -> None:
    with registry._database.write() as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2
    with registry._database.write(durable=False) as connection:
        assert connection.execute("PRAGMA synchronous").fetchone()[0] == 1


# ---------------------------------------------------------------- stories


def test_events_are_numbered_over_all_runs_and_can_be_followed(registry: RunRegistry) -> None:
    one, two = submit(registry), submit(registry)
    registry.apply(one, E.DISPATCHED)
    registry.apply(two, E.CANCELLED)
    assert [(event.seq, event.run_id) for event in registry.events_since(0)] == [(1, one), (2, two), (3, one), (4, two)]
    assert [event.seq for event in registry.events_since(1, run_id=two)] == [2, 4]
    assert [event.seq for event in registry.events_since(1, limit=2)] == [2, 3]
    assert registry.events_since(registry.last_seq()) == []
    assert [event.seq for event in registry.history(one, since_seq=1)] == [3]
    with pytest.raises(RunNotFound):
        registry.history(new_run_id())


# ---------------------------------------------------------------- removing and bringing back


def test_a_removed_run_leaves_nothing_and_its_numbers_are_not_used_again(registry: RunRegistry, tmp_path: Path) -> None:
    kept = submit(registry)
    run, _ = registry.submit(NewRun(new_run_id(), "random", tags=("t",)), idempotency_key="k")
    last_seq = registry.apply(run.run_id, E.CANCELLED).event_seq
    registry.remove(run.run_id)
    with pytest.raises(RunNotFound):
        registry.get(run.run_id)
    with pytest.raises(RunNotFound):
        registry.remove(run.run_id)
    with registry._database.read() as connection:
        for table in ("run_tags", "submissions"):
            assert connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] == 0
        assert connection.execute("SELECT DISTINCT run_id FROM events").fetchall() == [(kept,)]
    registry.close()
    with RunRegistry(tmp_path / "trainer.sqlite") as reopened:
        assert reopened.last_seq() == last_seq
        fresh, known = reopened.submit(NewRun(new_run_id(), "random"), idempotency_key="k")
        assert not known
        assert (fresh.number, fresh.event_seq) == (run.number + 1, last_seq + 1)


@pytest.mark.parametrize("events", [TO_EXEC[:1], TO_EXEC, (*TO_EXEC, E.PAUSED), (E.FAULTED,)])
def test_a_run_that_may_have_a_process_is_not_removed(registry: RunRegistry, events: tuple[RunEvent, ...]) -> None:
    run_id = submit(registry, *events)
    with pytest.raises(NotPossibleNow, match="cancel it first"):
        registry.remove(run_id)
    assert registry.get(run_id)


def test_an_archived_run_comes_back_with_its_history_under_new_numbers(registry: RunRegistry, tmp_path: Path) -> None:
    run_id = submit(registry, name="kept", tags=("a", "b"), parent=Parent(new_run_id(), 5, "f" * 64))
    registry.apply(run_id, E.DISPATCHED, pid=4, mark="m", run_token_sha256="0" * 64, claimed=True)
    registry.apply(run_id, E.FAULTED, reason="gone", payload={"tail": ["x"]})
    record, story = registry.apply(run_id, E.GIVEN_UP), registry.history(run_id)

    with pytest.raises(NotPossibleNow, match="already here"):
        registry.restore(record, story)
    with RunRegistry(tmp_path / "other.sqlite") as other:
        submit(other)
        back = other.restore(record, story)
        assert other.get(run_id) == back
        assert (back.number, back.event_seq, back.pid, back.mark) == (2, 5, 0, "")
        assert (back.run_token_sha256, back.claimed) == ("", False)
        kept = replace(back, number=record.number, event_seq=record.event_seq)
        ours = {"pid": 4, "mark": "m", "run_token_sha256": "0" * 64, "claimed": True}
        assert replace(kept, **ours) == record  # type: ignore[arg-type]
        assert [replace(event, seq=0) for event in other.history(run_id)] == [replace(event, seq=0) for event in story]
        assert other.list(RunQuery(tags=("a", "b"))).matching == 1


def test_an_unfinished_run_is_not_brought_back(registry: RunRegistry, tmp_path: Path) -> None:
    record = registry.get(submit(registry, *TO_EXEC))
    with RunRegistry(tmp_path / "other.sqlite") as other:
        with pytest.raises(ArchiveRefused, match="EXEC"):
            other.restore(record, [])
        assert other.list().matching == 0


# ---------------------------------------------------------------- filters, closing, threads


def test_filters_are_kept_by_name(registry: RunRegistry) -> None:
    registry.save_filter("mine", {"tags": ["a"]})
    registry.save_filter("failed", {"outcomes": ["failed"]})
    registry.save_filter("mine", {"tags": ["b"], "limit": 5})
    assert registry.filters() == {"failed": {"outcomes": ["failed"]}, "mine": {"tags": ["b"], "limit": 5}}
    registry.remove_filter("failed")
    registry.remove_filter("never there")
    assert list(registry.filters()) == ["mine"]


def test_a_closed_registry_reports_it(tmp_path: Path) -> None:
    registry = RunRegistry(tmp_path / "trainer.sqlite")
    registry.close()
    registry.close()
    with pytest.raises(RegistryError, match="closed"):
        registry.list()
    with pytest.raises(RegistryError, match="closed"):
        registry.submit(NewRun(new_run_id(), "random"))


def test_threads_and_registries_that_write_and_read_at_once_never_meet_a_locked_database(
    registry: RunRegistry, tmp_path: Path
) -> None:
    rounds = 25
    with RunRegistry(tmp_path / "trainer.sqlite") as other:

        def live(asked: RunRegistry) -> None:
            for _ in range(rounds):
                run_id = submit(asked, *TO_EXEC)
                asked.update_statistics({run_id: RunStatistics(step=1)})
                asked.apply(run_id, E.COMPLETED)

        def look(asked: RunRegistry) -> None:
            for _ in range(rounds):
                page = asked.list(RunQuery(limit=5))
                assert asked.last_seq() >= page.last_seq
                for run in asked.unfinished():
                    assert asked.history(run.run_id)[0].kind == "submitted"

        calls = [lambda asked=asked: live(asked) for asked in (registry, registry, other, other)]
        assert not at_once(*calls, lambda: look(registry), lambda: look(other))
        assert other.list(RunQuery(outcomes=("completed",))).matching == 4 * rounds
    assert registry.last_seq() == 4 * rounds * 5
    assert all(run.step == 1 for run in registry.list().runs)
