"""What a watching client receives: every event, and the newest statistics, not too often."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from gym_gui.services.trainer.journal import STATISTICS_S, Watcher
from gym_gui.services.trainer.records import HistoryEvent, NewRun, RunRecord
from gym_gui.services.trainer.registry import RunRegistry
from mosaic_wire.ids import new_run_id


@pytest.fixture
def records(tmp_path) -> list[RunRecord]:
    with RunRegistry(tmp_path / "registry.sqlite") as registry:
        return [registry.submit(NewRun(run_id=new_run_id(), worker_type="random", name="r"))[0] for _ in range(3)]


def event(record: RunRecord, seq: int) -> HistoryEvent:
    return HistoryEvent(seq, record.run_id, 0.0, "started", "", "", "", {}, 1)


async def test_figures_are_reported_at_most_every_so_often_and_the_newest_win(records: list[RunRecord]) -> None:
    watcher, reported = Watcher(""), []
    for step in range(100):
        watcher.offer(replace(records[0], step=step))
    began = time.monotonic()
    for goal in (99, 199, 299):
        reported.append((await watcher.get())[0].step)
        assert reported[-1] == goal
        for step in range(100):
            watcher.offer(replace(records[0], step=goal + 1 + step))
    assert time.monotonic() - began >= 2 * STATISTICS_S
    assert reported == [99, 199, 299]


async def test_runs_share_a_round(records: list[RunRecord]) -> None:
    watcher = Watcher("")
    for record in records:
        watcher.offer(record)
    assert [(await watcher.get())[0] for _ in records] == records


async def test_events_are_sent_at_once_and_statistics_never_fall_behind_them(records: list[RunRecord]) -> None:
    watcher, record = Watcher(""), records[0]
    for each in records:
        watcher.offer(replace(each, step=1))
    assert (await watcher.get())[0].step == 1
    for seq in range(5):
        watcher.offer_events([(replace(records[1], step=10 + seq), event(records[1], seq))])
    reported = [await watcher.get() for _ in range(5)]
    assert [known.seq for _, known in reported if known is not None] == list(range(5))
    rest = await watcher.get()
    assert (rest[0].run_id, rest[1]) == (records[2].run_id, None)  # what was to be sent of the second run is older
    watcher.offer(replace(record, step=7))
    assert (await watcher.get())[0].step == 7


async def test_a_watcher_of_one_run_hears_of_no_other_and_one_that_waits_is_woken(records: list[RunRecord]) -> None:
    watcher = Watcher(records[0].run_id)
    watcher.offer(records[1])
    waiting = asyncio.create_task(watcher.get())
    await asyncio.sleep(0)
    assert not waiting.done()
    watcher.offer_events([(records[0], event(records[0], 1))])
    assert (await asyncio.wait_for(waiting, 60))[0].run_id == records[0].run_id


async def test_a_worker_hears_of_the_runs_it_asked_for_alone(records: list[RunRecord]) -> None:
    mine = replace(records[1], submitted_by=records[0].run_id)
    watcher = Watcher("", submitted_by=records[0].run_id)
    for seq, record in enumerate((records[0], mine, records[2]), 1):
        watcher.offer_events([(record, event(record, seq))])
    assert (await watcher.get())[0].run_id == mine.run_id
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watcher.get(), 0.05)
