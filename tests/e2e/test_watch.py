"""Watching runs: no event is missed or repeated, also over restarts of the daemon; a slow watcher harms no other."""

from __future__ import annotations

import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from fcntl import ioctl
from pathlib import Path

import pytest
from gym_gui.services.trainer.client import RpcStream, TrainerClient
from gym_gui.services.trainer.errors import DaemonUnreachable, NotPossibleNow, TrainerError
from gym_gui.testing import RunningDaemon, install_scripted_worker, scripted_config
from mosaic_wire.event_files import EventFolderReader
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
    return sorted(event.seq for run in runs for event in daemon.client.history(run.run_id) if event.seq > after)


def test_no_event_is_missed_or_reported_twice_over_restarts(daemon: RunningDaemon, tmp_path) -> None:
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
        assert wait_until(lambda: watcher.seqs[-1:] == [last]), (watcher.seqs[-5:], last)
        seqs = watcher.seqs
        assert watcher.deleted == [first.run_id]
        assert watcher.connections >= 3  # a busy machine may cost it one more
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
        assert wait_until(lambda: watcher.updates[-1].run.status == "TERM")
    assert {update.run.run_id for update in watcher.updates} == {run.run_id}
    story = [event.seq for event in daemon.client.history(run.run_id) if event.seq > run.event_seq]
    assert watcher.seqs == story
    ended = next(update for update in watcher.updates if update.event.to_status == "TERM")
    assert ended.run.outcome == "cancelled"
    steps = [update.run.step for update in watcher.updates]
    assert steps == sorted(steps)


def test_a_watcher_that_saw_more_than_ever_happened_is_reported_so(daemon: RunningDaemon) -> None:
    """The home came from a backup, or is another one: silence would look like peace."""
    daemon.wait_for(daemon.submit(timesteps=3).run_id)
    last = daemon.client.list().last_seq
    with pytest.raises(NotPossibleNow, match=f"the last event is {last}. List the runs again"):
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


# ---------------------------------------------------------------------- figures: soon enough, and not too often

HURRIED_WORKER = """
from mosaic_wire.bridge import MetricBridge
from mosaic_wire.event_files import ScalarEventWriter

session = open_session()
session.started({})
folder = run_folder_of(config.run_id).tensorboard
writer, bridge, told = ScalarEventWriter(folder), MetricBridge(config.run_id, folder, session._link), 0
while not session.stop_requested.is_set():
    writer.add_scalars({"charts/told": float(told)}, told)
    bridge.poll()  # past the thread that polls once a second
    told += 1
    time.sleep(0.005)
session.finish(ExitOutcome.CANCELLED, exit_code=130)
"""


def test_a_client_hears_of_a_run_at_most_ten_times_a_second_however_often_it_publishes(make_daemon) -> None:
    daemon = make_daemon(start=False)
    install_scripted_worker(daemon.home, "hurried", HURRIED_WORKER)
    daemon.start()
    run_id = daemon.client.submit(scripted_config("hurried")).run.run_id
    daemon.wait_for_run(run_id, lambda run: "charts/told" in run.metrics)
    last = daemon.client.list().last_seq
    reported: list[float] = []
    with daemon.client.watch(since_seq=last) as stream:
        figures = (update.run.metrics["charts/told"] for update in stream if not update.HasField("event"))
        reported.append(next(figures))
        began = time.monotonic()
        for value in figures:
            reported.append(value)
            published = reported[-1] - reported[0]
            if time.monotonic() - began > 2 and len(reported) > 3 and published > 2 * len(reported):  # far more often
                break
        took = time.monotonic() - began
    assert len(reported) <= took / 0.1 + 2
    assert reported == sorted(reported)


CLOCK = """
import argparse, os, time
from torch.utils.tensorboard import SummaryWriter

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--env-id", type=str, default="CartPole-v1")
parser.add_argument("--total-timesteps", type=int, default=1000000)
args = parser.parse_args()
writer = SummaryWriter(f"runs/{args.env_id}__clock__{args.seed}__{int(time.time())}")
for step in range(args.total_timesteps):
    writer.add_scalar("losses/clock", time.time() - BEGAN, step)
    writer.add_scalar("charts/episodic_return", 20.0, step)
    time.sleep(0.02)
"""
"""A script in upstream's style that writes down what time it is"""

PATIENCE_S = 120


def keeps_up(written: Callable[[], float], shown: Callable[[], float | None]) -> bool:
    """Whether what is written now is shown soon after, five times in a row; how soon depends on the machine."""
    for _ in range(5):
        now = written()
        if not wait_until(lambda now=now: (shown() or -1.0) >= now, timeout_s=PATIENCE_S, poll_s=0.1):
            return False
    return True


class Screen:
    """`mosaic watch RUN` in a terminal of its own, and what it drew last."""

    def __init__(self, daemon: RunningDaemon, run_id: str) -> None:
        self._outside, inside = pty.openpty()
        ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 240, 0, 0))
        command = [sys.executable, "-m", "gym_gui", "watch", run_id]
        self._watch = subprocess.Popen(command, stdin=inside, stdout=inside, stderr=inside, env=daemon.variables)
        os.close(inside)
        os.set_blocking(self._outside, False)
        self._drawn = b""

    def shown(self, pattern: str) -> str | None:
        """What stands there now; the pattern has a group for it, and something that follows it."""
        with suppress(OSError):
            while data := os.read(self._outside, 65536):
                self._drawn = (self._drawn + data)[-65536:]
        found = re.findall(pattern, self.text)
        return found[-1] if found else None

    @property
    def text(self) -> str:
        """With a blank in place of each escape sequence."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", " ", self._drawn.decode(errors="replace"))

    def close(self) -> None:
        self._watch.kill()
        self._watch.wait()
        os.close(self._outside)


def test_the_figures_move_on_after_a_restart_of_the_daemon_and_after_an_edit(daemon: RunningDaemon) -> None:
    run_id = daemon.submit(timesteps=10**6, steps_per_second=100).run_id
    daemon.wait_for(run_id, "EXEC")

    def moves(screen: Screen) -> bool:
        steps: set[str | None] = set()
        pattern = r"([0-9,]+)/1,000,000\s"
        return wait_until(lambda: steps.add(screen.shown(pattern)) or len(steps - {None}) > 4, timeout_s=30)

    with closing(Screen(daemon, run_id)) as before:
        assert moves(before), before.text[-3000:]
        daemon.restart()
        assert moves(before), before.text[-3000:]
        with closing(Screen(daemon, run_id)) as after:
            assert moves(after), after.text[-3000:]
            daemon.client.update(run_id, add_tags=["good"])
            assert moves(after), after.text[-3000:]
            assert daemon.client.get(run_id).tags == ["good"]


def submit_cleanrl(daemon: RunningDaemon, **config: object) -> str:
    worker = {"type": "cleanrl", "module": "cleanrl_worker.cli", "config": {"env_id": "CartPole-v1", **config}}
    return daemon.client.submit({"resources": {"cpus": {"requested": 0}}, "metadata": {"worker": worker}}).run.run_id


@pytest.mark.slow  # test_scripts.py follows one in every CI
def test_what_a_script_writes_is_on_the_screen_while_it_runs(daemon: RunningDaemon, tmp_path: Path) -> None:
    began = time.time()
    script = tmp_path / "clock.py"
    script.write_text(CLOCK.replace("BEGAN", str(began)))
    run_id = submit_cleanrl(daemon, algo="clock", extras={"script_path": str(script)})

    def shown() -> float | None:
        clock = screen.shown(r"clock ([0-9.]+)\s")
        return float(clock) if clock else None

    with closing(Screen(daemon, run_id)) as screen:
        assert keeps_up(lambda: time.time() - began, shown), screen.text[-3000:]


@pytest.mark.slow
def test_what_ppo_writes_is_on_the_screen_while_it_trains(daemon: RunningDaemon) -> None:
    """How far it is, and a loss that its event file has at a step that is new."""
    run_id = submit_cleanrl(daemon, algo="ppo", seed=1, total_timesteps=10**8)
    events = EventFolderReader(daemon.home.run_folder(run_id).tensorboard)
    steps: dict[str, int] = {}  # a loss as it is shown: the step that it was written at

    def written() -> float:
        for batch in events.read():
            if (column := batch.columns.get("losses/policy_loss")) is not None:
                points = zip(column.steps, column.values, strict=True)
                steps.update({f"{value:.3g}": int(step) for step, value in points})
        return max(steps.values(), default=0)

    def shown() -> float | None:
        step = screen.shown(r"([0-9,]+)/[0-9,]+\s")
        loss = screen.shown(r"policy_loss (\S+) ·")
        written()
        if step is None or loss is None:
            return None
        return min(int(step.replace(",", "")), steps.get(loss, -1))

    with closing(Screen(daemon, run_id)) as screen:
        assert keeps_up(written, shown), screen.text[-3000:]
