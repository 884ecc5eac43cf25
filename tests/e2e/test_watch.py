"""Watching runs: no event is missed or told twice, also over restarts of the daemon; a slow watcher harms nobody."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from gym_gui.services.trainer.client import RpcStream, TrainerClient
from gym_gui.services.trainer.errors import DaemonUnreachable, NotPossibleNow, TrainerError
from gym_gui.testing import RunningDaemon
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.testing import wait_until


class Watching:
    """A client that watches in a thread and, when the daemon vanishes, comes again with the last number it saw."""

    def __init__(self, home: Home, since_seq: int, run_id: str = "") -> None:
        self.updates: list[pb.RunUpdate] = []
        self.problems: list[str] = []
        self.connections = 0
        self._home, self._run_id, self._since = home, run_id, since_seq
        self._stopping = threading.Event()
        self._stream: RpcStream[pb.RunUpdate] | None = None
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    @property
    def seqs(self) -> list[int]:
        """Of everything but deletions, which have no number: the story of a deleted run is gone with it."""
        events = [update.event for update in self.updates if update.HasField("event")]
        return [event.seq for event in events if event.kind != "deleted"]

    @property
    def deleted(self) -> list[str]:
        return [update.run.run_id for update in self.updates if update.event.kind == "deleted"]

    def _watch(self) -> None:
        while not self._stopping.is_set():
            try:
                with TrainerClient.connect(self._home) as client:
                    self._stream = client.watch(run_id=self._run_id, since_seq=max([self._since, *self.seqs]))
                    self.connections += 1
                    for update in self._stream:
                        self.updates.append(update)
            except DaemonUnreachable:
                self._stopping.wait(0.05)
            except TrainerError as error:
                self.problems.append(str(error))
                self._stopping.wait(0.05)

    def close(self) -> None:
        self._stopping.set()
        if self._stream is not None:
            self._stream.cancel()
        self._thread.join()


@contextmanager
def watching(daemon: RunningDaemon, since_seq: int, run_id: str = "") -> Iterator[Watching]:
    watcher = Watching(daemon.home, since_seq, run_id)
    try:
        yield watcher
    finally:
        watcher.close()


def stories(daemon: RunningDaemon, after: int) -> list[int]:
    """The number of every event of every run."""
    runs = daemon.client.list(include_archived=True).runs
    return sorted(event.seq for run in runs for event in daemon.client.story(run.run_id) if event.seq > after)


def test_no_event_is_missed_or_told_twice_over_restarts(daemon: RunningDaemon, tmp_path) -> None:
    first = daemon.submit(timesteps=3)
    with watching(daemon, first.event_seq) as watcher:
        for round_ in range(3):
            runs = [daemon.submit(timesteps=10, checkpoint_every=2).run_id for _ in range(4)]
            daemon.client.update(runs[0], notes=f"round {round_}")
            if round_ < 2:
                daemon.restart()  # kill -9, in the middle of it all
        for run in daemon.client.list().runs:
            daemon.wait_for(run.run_id)
        # An imported run brings its whole story along.
        archive = tmp_path / "run.tar.gz"
        archive.write_bytes(b"".join(chunk.data for chunk in daemon.client.export(first.run_id)))
        daemon.client.delete(first.run_id)
        daemon.client.import_archive(archive)
        last = daemon.client.list().last_seq
        assert wait_until(lambda: watcher.seqs[-1:] == [last], timeout_s=30), (watcher.seqs[-5:], last)
        seqs = watcher.seqs
        assert watcher.deleted == [first.run_id]
        assert watcher.connections == 3
        assert watcher.problems == []
    assert seqs == sorted(set(seqs))  # in order, none twice
    assert set(stories(daemon, first.event_seq)) - set(seqs) == set()  # none missed
    assert seqs == list(range(first.event_seq + 1, last + 1))  # not even those of the run that was deleted


def test_a_watcher_of_one_run_hears_of_it_alone_and_of_its_figures(daemon: RunningDaemon) -> None:
    run = daemon.submit(timesteps=10**6, steps_per_second=100)
    with watching(daemon, run.event_seq, run.run_id) as watcher:
        daemon.wait_for(run.run_id, "EXEC")
        daemon.wait_for(daemon.submit(timesteps=3).run_id)
        figures = [update for update in watcher.updates if not update.HasField("event")]
        assert wait_until(
            lambda: len({update.run.step for update in watcher.updates if not update.HasField("event")}) > 3,
            timeout_s=30,
        ), figures
        daemon.client.cancel(run.run_id)
        assert wait_until(lambda: watcher.updates[-1].run.status == "TERM", timeout_s=30)
    assert {update.run.run_id for update in watcher.updates} == {run.run_id}
    story = [event.seq for event in daemon.client.story(run.run_id) if event.seq > run.event_seq]
    assert watcher.seqs == story
    ended = next(update for update in watcher.updates if update.event.to_status == "TERM")
    assert ended.run.outcome == "cancelled"
    steps = [update.run.step for update in watcher.updates]
    assert steps == sorted(steps)


def test_a_watcher_that_saw_more_than_ever_happened_is_told_so(daemon: RunningDaemon) -> None:
    """The home came from a backup, or is another one: silence would look like peace."""
    daemon.wait_for(daemon.submit(timesteps=3).run_id)
    last = daemon.client.list().last_seq
    with pytest.raises(NotPossibleNow, match=f"the last event here is {last}; list the runs again"):
        next(daemon.client.watch(since_seq=last + 1000))
    with daemon.client.watch(since_seq=last) as stream:  # the last one itself is fine
        run = daemon.submit(timesteps=3)
        assert next(stream).run.run_id == run.run_id


HURRIED = """
import logging, sys
from gym_gui.services.trainer import daemon, journal
journal._WATCHER_BACKLOG = 50
sys.exit(daemon.main([]))
"""
"""A daemon that lets a watcher fall behind by fifty updates instead of ten thousand"""


def test_a_watcher_that_does_not_read_is_dropped_and_catches_up_without_a_gap(make_daemon) -> None:
    daemon = make_daemon(script=HURRIED)
    run = daemon.wait_for(daemon.submit(timesteps=3).run_id)
    start = daemon.client.list().last_seq
    with (
        TrainerClient.connect(daemon.home) as lazy,
        lazy.watch(since_seq=start) as unread,
        watching(daemon, start) as keen,
    ):
        assert wait_until(lambda: keen.connections == 1)
        for number in range(250):
            daemon.client.update(run.run_id, notes=f"{number} " + "x" * 20_000)
        last = daemon.client.list().last_seq
        assert last == start + 250
        # The others are not kept waiting; the daemon is as it was.
        assert wait_until(lambda: keen.seqs[-1:] == [last], timeout_s=60)
        assert sorted(set(keen.seqs)) == list(range(start + 1, last + 1))
        seen: list[int] = []
        with pytest.raises(NotPossibleNow, match="fell too far behind"):
            seen.extend(update.event.seq for update in unread)
        assert len(seen) < 250
        assert seen == list(range(start + 1, start + 1 + len(seen)))
        with lazy.watch(since_seq=seen[-1] if seen else start) as again:
            rest = [next(again).event.seq for _ in range(250 - len(seen))]
        assert seen + rest == list(range(start + 1, last + 1))
    assert daemon.wait_for(daemon.submit(timesteps=3).run_id).outcome == "completed"
