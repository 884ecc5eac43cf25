"""A crash at every commit, a killed writer, a torn journal: no accepted run is lost or doubled."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gym_gui.services.trainer.errors import RegistryError, RegistryUnwritable, StaleRun
from gym_gui.services.trainer.fsm import RunEvent, RunStatus, advance
from gym_gui.services.trainer.records import NewRun, RunQuery, RunStatistics
from gym_gui.services.trainer.registry import RunRegistry
from mosaic_wire.ids import new_run_id
from mosaic_wire.testing import wait_until

E, S = RunEvent, RunStatus
A, B, C = "01J0000000AAAAAAAAAAAAAAAA", "01J0000000BBBBBBBBBBBBBBBB", "01J0000000CCCCCCCCCCCCCCCC"

Operation = Callable[[RunRegistry], Any]

# What a daemon does in a day; each line is one commit.
OPERATIONS: tuple[Operation, ...] = (
    lambda registry: registry.submit(NewRun(A, "random", tags=("x", "y")), idempotency_key="a"),
    lambda registry: registry.submit(NewRun(B, "random", priority=4), idempotency_key="b"),
    lambda registry: registry.record(A, "", claimed=True, run_token_sha256="0" * 64),
    lambda registry: registry.apply(A, E.DISPATCHED, expected=S.INIT, pid=12),
    lambda registry: registry.submit(NewRun(C, "random"), idempotency_key="c"),
    lambda registry: registry.apply(A, E.REGISTERED, expected=S.HSHK),
    lambda registry: registry.apply(C, E.FAULTED, expected=S.INIT, reason="8 GPUs asked for, none here"),
    lambda registry: registry.apply(A, E.STARTED, expected=S.RDY),
    lambda registry: registry.update_statistics({A: RunStatistics(step=50, total=100), B: RunStatistics()}),
    lambda registry: registry.record(A, "checkpoint_saved", payload={"step": 50}, lifecycle_seq=2),
    lambda registry: registry.apply(C, E.GIVEN_UP, expected=S.FAULT),
    lambda registry: registry.record(B, "edited", tags=("z",), notes="later"),
    lambda registry: registry.apply(A, E.PAUSED, expected=S.EXEC),
    lambda registry: registry.apply(A, E.RESUMED, expected=S.PAUSE),
    lambda registry: registry.save_filter("mine", {"tags": ["z"]}),
    lambda registry: registry.apply(A, E.COMPLETED, expected=S.EXEC, result={"return": 1.0}),
    lambda registry: registry.apply(B, E.CANCELLED, expected=S.INIT),
    lambda registry: registry.record(A, "archived", archived=True),
    lambda registry: registry.remove(C),
    lambda registry: registry.remove_filter("mine"),
)
COMMITS = 1 + len(OPERATIONS)  # the first makes the tables


class Crash(BaseException):
    """The process is gone before COMMIT."""


class CrashAt:
    """Crashes at the n-th commit, once."""

    def __init__(self, commit: int) -> None:
        self.left = commit

    def __call__(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Crash


def open_registry(database: Path, fail_write: Callable[[], None] | None = None) -> RunRegistry:
    return RunRegistry(database, clock=lambda: 1_000.0, fail_write=fail_write)


def everything(registry: RunRegistry) -> tuple[Any, ...]:
    """All that the registry knows."""
    page = registry.list(RunQuery(include_archived=True))
    known = [registry.known_submission(key) for key in "abc"]
    return page, registry.events_since(0), registry.filters(), known, registry.unfinished(), registry.queue()


def operations_before_a_crash_at(commit: int, database: Path) -> int:
    """Go through the script until it crashes; return how many operations had returned."""
    done = 0
    try:
        with open_registry(database, CrashAt(commit)) as registry:
            for operation in OPERATIONS:
                operation(registry)
                done += 1
    except Crash:
        return done
    pytest.fail(f"there is no commit {commit}")


def check_stories(registry: RunRegistry) -> None:
    """Each run's status is the fold of its story, and it ended at most once."""
    for run in registry.list(RunQuery(include_archived=True)).runs:
        events = registry.history(run.run_id)
        assert (events[0].kind, events[-1].seq) == ("submitted", run.event_seq)
        status = S.INIT
        for event in events[1:]:
            if event.to_status:
                assert event.from_status == status
                status = advance(run.run_id, status, RunEvent(event.kind))
        assert run.status is status
        assert [event.to_status for event in events].count(S.TERM) == status.is_terminal


def test_each_operation_of_the_script_is_one_commit(tmp_path: Path) -> None:
    crash = CrashAt(10**6)
    with open_registry(tmp_path / "trainer.sqlite", crash) as registry:
        for operation in OPERATIONS:
            operation(registry)
    assert 10**6 - crash.left == COMMITS


def test_a_crash_at_any_commit_leaves_what_was_before_it_and_the_work_can_continue(tmp_path: Path) -> None:
    def at(operations: int) -> tuple[Any, ...]:
        with open_registry(tmp_path / f"expected-{operations}.sqlite") as registry:
            for operation in OPERATIONS[:operations]:
                operation(registry)
            return everything(registry)

    whole = at(len(OPERATIONS))
    for commit in range(1, COMMITS + 1):
        database = tmp_path / f"crash-{commit}.sqlite"
        done = operations_before_a_crash_at(commit, database)
        assert done == max(0, commit - 2)
        with open_registry(database) as registry:
            assert everything(registry) == at(done), f"after a crash at commit {commit}"
            for operation in OPERATIONS[done:]:
                operation(registry)
            assert everything(registry) == whole, f"going on after a crash at commit {commit}"
            check_stories(registry)


def test_a_crash_in_the_same_process_leaves_the_open_registry_usable(tmp_path: Path) -> None:
    with open_registry(tmp_path / "trainer.sqlite") as registry:
        for operation in OPERATIONS:
            registry.fail_write = CrashAt(1)
            before = everything(registry)
            with pytest.raises(Crash):
                operation(registry)
            assert everything(registry) == before
            operation(registry)
        check_stories(registry)


def test_a_change_whose_answer_got_lost_is_not_made_twice(tmp_path: Path) -> None:
    database = tmp_path / "trainer.sqlite"
    with open_registry(database) as registry:
        registry.submit(NewRun(A, "random"), idempotency_key="a")
        registry.apply(A, E.DISPATCHED, expected=S.INIT)
    with open_registry(database) as registry:
        run, known = registry.submit(NewRun(B, "random"), idempotency_key="a")
        assert known
        assert run.run_id == A
        with pytest.raises(StaleRun):
            registry.apply(A, E.DISPATCHED, expected=S.INIT)
        assert [event.kind for event in registry.events_since(0)] == ["submitted", "dispatched"]


WRITER = """
import sys
from pathlib import Path
from gym_gui.services.trainer.fsm import RunEvent as E
from gym_gui.services.trainer.records import RunStatistics, NewRun
from gym_gui.services.trainer.registry import RunRegistry
from mosaic_wire.ids import new_run_id

registry = RunRegistry(Path(sys.argv[1]))
n = int(sys.argv[2])
while True:
    run, known = registry.submit(NewRun(new_run_id(), "random"), idempotency_key=f"key {n}")
    print("submitted", n, run.run_id, known, flush=True)
    for event in (E.DISPATCHED, E.REGISTERED, E.STARTED, E.COMPLETED):
        run = registry.apply(run.run_id, event)
        registry.update_statistics({run.run_id: RunStatistics(step=run.event_seq)})
        print("applied", n, run.run_id, run.status, flush=True)
    n += 1
"""


def test_a_writer_killed_in_mid_stream_loses_and_doubles_nothing(tmp_path: Path) -> None:
    database = tmp_path / "trainer.sqlite"
    chance = random.Random(7)
    reported: dict[str, str] = {}
    first = 0
    for _ in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(database), str(first)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            for _ in range(chance.randrange(5, 60)):
                assert writer.stdout.readline()
            os.kill(writer.pid, signal.SIGKILL)
            writer.wait(30)
        # The pipe holds lines that were written before the kill: all of them were promises.
        with RunRegistry(database) as registry:
            check_stories(registry)
            runs = registry.list().runs
            by_key = [registry.known_submission(f"key {n}") for n in range(len(runs) + 1)]
            assert by_key == [*runs[::-1], None]
            assert [event.seq for event in registry.events_since(0)] == list(range(1, registry.last_seq() + 1))
            # The interrupted one is ended here; the next writer goes on with the next key.
            for run in registry.unfinished():
                registry.apply(run.run_id, E.CANCELLED)
            reported = reported | {run.run_id: run.status for run in registry.list().runs}
            assert len(reported) == len(runs), "a run that was there before is gone"
            first = len(runs)


def test_every_line_a_killed_writer_printed_is_kept(tmp_path: Path) -> None:
    database, output = tmp_path / "trainer.sqlite", tmp_path / "said"
    with output.open("wb") as stream:
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(database), "0"], stdout=stream)
    try:
        assert wait_until(lambda: output.stat().st_size > 4_000, timeout_s=120)
        assert writer.poll() is None
    finally:
        writer.kill()
        writer.wait(30)
    with RunRegistry(database) as registry:
        promised = {line.split()[2]: line.split() for line in output.read_text().splitlines() if len(line.split()) == 4}
        assert len(promised) >= 10
        order = list(S)
        for run_id, (what, number, _, last) in promised.items():
            run = registry.get(run_id)
            assert registry.known_submission(f"key {number}") == run
            if what == "applied":
                assert order.index(run.status) >= order.index(RunStatus(last))
        assert registry.list().matching <= len(promised) + 1
        check_stories(registry)


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_torn_journal_gives_a_moment_of_the_past_never_a_mixture(tmp_path: Path, damage: str) -> None:
    database = tmp_path / "trainer.sqlite"
    moments = []
    with open_registry(database) as registry:
        moments.append(everything(registry))
        for operation in OPERATIONS:
            operation(registry)
            moments.append(everything(registry))
        # Copied while it is open: all that was committed is still in the journal.
        table = database.read_bytes()
        journal = Path(f"{database}-wal").read_bytes()
    chance = random.Random(11)
    seen = set()
    for number in range(60):
        place = chance.randrange(1, len(journal))
        torn = tmp_path / f"torn-{number}.sqlite"
        torn.write_bytes(table)
        broken = bytearray(journal[:place] if damage == "cut" else journal)
        if damage == "flipped":
            broken[place] ^= 1 << chance.randrange(8)
        Path(f"{torn}-wal").write_bytes(broken)
        with open_registry(torn) as registry:
            state = everything(registry)
            assert state in moments, f"{damage} at byte {place}"
            seen.add(moments.index(state))
            registry.submit(NewRun(new_run_id(), "random"))
    assert len(seen) > 5, "the cuts fell on different moments"


def cut_early(data: bytes, number: int, chance: random.Random) -> bytes:
    return data[: 1 + number * 13]


def cut_late(data: bytes, number: int, chance: random.Random) -> bytes:
    return data[: chance.randrange(1, len(data))]


def flip_in_the_header(data: bytes, number: int, chance: random.Random) -> bytes:
    broken = bytearray(data)
    broken[number % 100] ^= 1 << chance.randrange(8)
    return bytes(broken)


def flip_anywhere(data: bytes, number: int, chance: random.Random) -> bytes:
    broken = bytearray(data)
    for _ in range(4):
        broken[chance.randrange(100, len(data))] ^= 1 << chance.randrange(8)
    return bytes(broken)


def overwrite_a_page(data: bytes, number: int, chance: random.Random) -> bytes:
    page = chance.randrange(len(data) // 4096) * 4096
    return data[:page] + chance.randbytes(4096) + data[page + 4096 :]


@pytest.mark.parametrize("damage", [cut_early, cut_late, flip_in_the_header, flip_anywhere, overwrite_a_page])
def test_a_damaged_file_is_refused_clearly_or_works(
    tmp_path: Path, damage: Callable[[bytes, int, random.Random], bytes]
) -> None:
    database = tmp_path / "trainer.sqlite"
    with open_registry(database) as registry:
        for operation in OPERATIONS[:-2]:
            operation(registry)
    whole = database.read_bytes()
    chance, refusals = random.Random(3), []
    for number in range(120):
        folder = tmp_path / str(number)
        folder.mkdir()
        broken = folder / "trainer.sqlite"
        broken.write_bytes(damage(whole, number, chance))
        try:
            with open_registry(broken) as registry:
                everything(registry)
                run, _ = registry.submit(NewRun(new_run_id(), "random"))
                registry.apply(run.run_id, E.CANCELLED)
        except RegistryError as error:
            refusals.append(str(error))
        shutil.rmtree(folder)
    for message in refusals:
        assert any(arguments in message for arguments in ("damaged", "newer MOSAIC", "cannot be written")), message
    # SQLite has no checksums: a bit in a name or a number goes unseen, and so do unused bytes.
    least = {cut_early: 120, cut_late: 120, overwrite_a_page: 100, flip_in_the_header: 30, flip_anywhere: 1}
    assert len(refusals) >= least[damage]


def test_damage_is_found_at_opening_and_not_by_the_first_unlucky_question(tmp_path: Path) -> None:
    database = tmp_path / "trainer.sqlite"
    with open_registry(database) as registry:
        registry.submit(NewRun(A, "random"))
        for number in range(200):
            registry.record(A, "noted", payload={"number": number})
    whole = database.read_bytes()
    database.write_bytes(whole[:-4096] + b"\xff" * 4096)
    with pytest.raises(RegistryUnwritable, match=r"damaged.*Restore it from a backup"):
        open_registry(database)
    database.write_bytes(whole)
    with open_registry(database) as registry:
        assert len(registry.history(A)) == 201
