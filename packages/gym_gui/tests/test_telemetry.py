"""Credits, starvation, slow readers and the store of the telemetry lane."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from gym_gui.services.trainer import streams
from gym_gui.services.trainer.streams import Control, RunBus, TelemetryAsyncHub, TelemetryError, TelemetryStore
from mosaic_wire.ids import new_run_id
from mosaic_wire.proto import trainer_pb2 as pb


def steps(first: int, last: int) -> list[pb.RunStep]:
    return [pb.RunStep(seq=seq, episode=seq // 10, reward=seq) for seq in range(first, last + 1)]


@pytest.fixture
def store(tmp_path: Path):
    store = TelemetryStore(tmp_path / "telemetry" / "telemetry.sqlite")
    yield store
    store.close()


def stored(store: TelemetryStore, run_id: str) -> list[int]:
    return [pb.RunStep.FromString(data).seq for page in store.read("steps", run_id, 0) for data in page.messages]


def test_what_is_sent_twice_is_stored_once_and_runs_are_apart(store: TelemetryStore) -> None:
    one, two = new_run_id(), new_run_id()
    store.append("steps", [(one, steps(1, 5)), (two, steps(1, 3))])
    store.append("steps", [(one, steps(4, 8))])
    assert stored(store, one) == list(range(1, 9))
    assert stored(store, two) == [1, 2, 3]
    assert (store.last_seq("steps", one), store.last_seq("episodes", one)) == (8, 0)
    assert store.count("steps", one) == 8
    store.forget(one)
    assert stored(store, one) == []
    assert stored(store, two) == [1, 2, 3]


def test_a_batch_that_fails_leaves_nothing_behind(store: TelemetryStore) -> None:
    run_id = new_run_id()
    with pytest.raises(AttributeError):
        store.append("steps", [(run_id, [*steps(1, 2), pb.RunStep(seq=3), None])])  # type: ignore[list-item]
    assert stored(store, run_id) == []
    store.append("steps", [(run_id, steps(1, 2))])
    assert stored(store, run_id) == [1, 2]


def test_a_store_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(TelemetryError, match="newer MOSAIC"):
        TelemetryStore(path)


def test_rows_of_version_1_are_read_on(tmp_path: Path) -> None:
    path, run_id = tmp_path / "telemetry.sqlite", new_run_id()
    with closing(TelemetryStore(path)) as store:
        store.append("steps", [(run_id, steps(1, 5))])
    with closing(sqlite3.connect(path)) as connection:
        for kind in ("steps", "episodes"):
            connection.execute(f"ALTER TABLE {kind} DROP COLUMN crc")
        connection.execute("PRAGMA user_version = 1")
        connection.commit()
    with closing(TelemetryStore(path)) as store:
        store.append("steps", [(run_id, steps(6, 7))])
        assert stored(store, run_id) == list(range(1, 8))


@pytest.mark.expects_log("is damaged .* it was renamed")
def test_a_store_that_is_no_database_is_set_aside_and_a_new_one_begins(tmp_path: Path) -> None:
    path, run_id = tmp_path / "telemetry.sqlite", new_run_id()
    path.write_bytes(b"this is no database " * 1000)
    with closing(TelemetryStore(path)) as store:
        store.append("steps", [(run_id, steps(1, 5))])
        assert stored(store, run_id) == [1, 2, 3, 4, 5]
    (aside,) = tmp_path.glob("*.damaged-*")
    assert aside.read_bytes().startswith(b"this is no database")


@pytest.mark.expects_log("is damaged .* it was renamed", "damaged steps of run .* are skipped")
def test_a_store_cut_or_with_a_flipped_bit_never_gives_what_was_not_stored(tmp_path: Path) -> None:
    """Fault 7: each step that comes back is one that was stored; what is lost is said."""
    path, run_id, dice = tmp_path / "telemetry.sqlite", new_run_id(), random.Random(7)
    with closing(TelemetryStore(path)) as store:
        store.append("steps", [(run_id, steps(1, 400))])
    data, expected = path.read_bytes(), {step.seq: step for step in steps(1, 400)}
    lost = 0
    for number in range(120):
        damaged = bytearray(data)
        if number % 3 == 0:
            del damaged[dice.randrange(len(data)) :]
        else:
            damaged[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        for left in tmp_path.iterdir():
            left.unlink()
        path.write_bytes(damaged)
        try:
            with closing(TelemetryStore(path)) as store:
                pages = list(store.read("steps", run_id, 0))
        except TelemetryError:
            lost += 1
            continue
        found = [pb.RunStep.FromString(message) for page in pages for message in page.messages]
        assert all(step == expected[step.seq] for step in found), number
        assert len({step.seq for step in found}) == len(found)
        lost += len(found) < len(expected)
    assert 40 <= lost < 120  # every cut, and some bits; others fall where nothing is stored


def test_a_slow_subscriber_gets_the_newest_and_the_number_it_missed_while_others_miss_nothing() -> None:
    async def scenario() -> None:
        bus = RunBus()
        slow, quick = bus.subscribe("r", "steps", credits=5), bus.subscribe("r", "steps", credits=100)
        other = bus.subscribe("another", "steps")
        bus.publish("r", "steps", [1, 2, 3])
        bus.publish("r", "steps", [4, 5, 6, 7])
        bus.publish("r", "steps", [8])
        assert await slow.get() == ([4, 5, 6, 7, 8], 3, [Control.STARVED])
        assert await quick.get() == ([1, 2, 3, 4, 5, 6, 7, 8], 0, [])
        bus.publish("r", "steps", [9])
        assert await slow.get() == ([9], 0, [Control.RESUMED])
        bus.end("r")
        assert await slow.get() is None
        bus.unsubscribe(slow)
        bus.publish("another", "steps", [1])
        assert await other.get() == ([1], 0, [])

    asyncio.run(scenario())


class HeldStore(TelemetryStore):
    """A disk that takes its time."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.go = threading.Event()

    def append(self, kind, batches) -> None:
        self.go.wait(10)
        super().append(kind, batches)


def test_a_worker_without_credits_is_starved_and_granted_new_ones(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(streams, "CREDITS_PER_RUN", 10)
    run_id, granted = new_run_id(), []

    async def scenario() -> None:
        store = HeldStore(tmp_path / "telemetry.sqlite")
        hub = TelemetryAsyncHub(store, lambda run, credits: granted.append((run, credits)))
        assert await _first(hub, run_id) == (0, 10)
        first = asyncio.create_task(hub.publish(run_id, "steps", steps(1, 25)))
        await asyncio.sleep(0.1)
        assert hub.is_starved(run_id)
        refused = await hub.publish(run_id, "steps", steps(11, 12))
        assert (refused.stored_seq, refused.credits) == (0, 0)
        assert granted == []
        store.go.set()
        receipt = await first
        assert (receipt.stored_seq, receipt.credits) == (10, 10)  # the rest comes again
        assert granted == [(run_id, 10)]
        assert not hub.is_starved(run_id)
        receipt = await hub.publish(run_id, "steps", steps(11, 20))
        assert receipt.stored_seq == 20
        assert stored(store, run_id) == list(range(1, 21))
        hub.close()

    asyncio.run(scenario())


async def _first(hub: TelemetryAsyncHub, run_id: str) -> tuple[int, int]:
    receipt = await hub.publish(run_id, "steps", [])
    return receipt.stored_seq, receipt.credits


def test_a_batch_that_is_stored_after_its_worker_died_counts_for_the_next_attempt(tmp_path: Path) -> None:
    run_id = new_run_id()

    async def scenario() -> None:
        store = HeldStore(tmp_path / "telemetry.sqlite")
        hub = TelemetryAsyncHub(store, lambda run, credits: None)
        assert await _first(hub, run_id) == (0, streams.CREDITS_PER_RUN)
        dying = asyncio.create_task(hub.publish(run_id, "steps", steps(1, 5)))
        await asyncio.sleep(0.05)
        dying.cancel()  # its connection is closed in the middle of the write
        next_attempt = asyncio.create_task(_first(hub, run_id))
        await asyncio.sleep(0.05)
        store.go.set()
        assert await asyncio.wait_for(next_attempt, 60) == (5, streams.CREDITS_PER_RUN)
        assert (await hub.publish(run_id, "steps", steps(6, 7))).stored_seq == 7
        assert stored(store, run_id) == list(range(1, 8))
        hub.close()

    asyncio.run(scenario())


def test_a_worker_that_goes_away_while_it_waits_does_not_take_others_with_it(tmp_path: Path) -> None:
    one, two = new_run_id(), new_run_id()

    async def scenario() -> None:
        store = HeldStore(tmp_path / "telemetry.sqlite")
        hub = TelemetryAsyncHub(store, lambda run, credits: None)
        leaving = asyncio.create_task(hub.publish(one, "steps", steps(1, 5)))
        await asyncio.sleep(0.05)
        staying = asyncio.create_task(hub.publish(two, "steps", steps(1, 5)))
        await asyncio.sleep(0.05)
        leaving.cancel()
        store.go.set()
        assert (await asyncio.wait_for(staying, 60)).stored_seq == 5
        assert stored(store, two) == [1, 2, 3, 4, 5]
        hub.close()

    asyncio.run(scenario())


@pytest.mark.expects_log("cannot be stored; workers keep them: no room")
def test_a_disk_that_fails_is_reported_to_the_worker_and_the_next_batch_goes_through(tmp_path: Path) -> None:
    run_id = new_run_id()

    class Failing(TelemetryStore):
        fails = True

        def append(self, kind, batches) -> None:
            if self.fails:
                raise TelemetryError("no room")
            super().append(kind, batches)

    async def scenario() -> None:
        store = Failing(tmp_path / "telemetry.sqlite")
        hub = TelemetryAsyncHub(store, lambda run, credits: None)
        with pytest.raises(TelemetryError, match="no room"):
            await hub.publish(run_id, "steps", steps(1, 5))
        store.fails = False
        assert (await hub.publish(run_id, "steps", steps(1, 5))).stored_seq == 5
        hub.close()

    asyncio.run(scenario())
