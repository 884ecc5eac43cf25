"""Thousands of runs and hundreds of watchers keep no client waiting: runs are listed in pages, cancelled at once."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from gym_gui.services.trainer import registry_queries as sql
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.registry import RunRegistry
from gym_gui.testing import RunningDaemon
from mosaic_wire.ids import new_run_id
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.testing import wait_until

MOSAIC = Path(sys.executable).with_name("mosaic")


def fill(home: Home, count: int) -> None:
    home.create()
    with RunRegistry(home.database) as registry, registry._database.write() as connection:
        for number in range(count):
            run = {"run_id": new_run_id(), "worker_type": "random", "name": f"old {number}", "created_at": 1.0}
            sql.insert_row(connection, "runs", {**run, "status": "TERM", "outcome": "completed", "algo": "random"})


@pytest.mark.parametrize("count", [1100, pytest.param(100_000, marks=pytest.mark.fault)])
def test_every_run_is_listed_and_no_answer_is_longer_than_a_page(make_daemon, home: Home, count: int) -> None:
    fill(home, count)
    daemon: RunningDaemon = make_daemon()
    client = daemon.client
    answer: pb.ListRunsResponse = client._stub.ListRuns(pb.ListRunsRequest(), metadata=client._metadata)
    assert (len(answer.runs) <= 250, answer.matching, answer.next_before) == (True, count, answer.runs[-1].number)
    numbers = [run.number for run in client.list().runs]
    assert numbers == sorted(set(numbers), reverse=True)
    assert len(numbers) == count
    assert [run.number for run in client.list(limit=600).runs] == numbers[:600]
    assert len(client.list(limit=250).runs) == 250
    reported = subprocess.run([MOSAIC, "runs", "--all", "-q"], env=daemon.variables, capture_output=True, check=True)
    assert len(reported.stdout.splitlines()) == count


@pytest.mark.parametrize(("count", "watchers"), [(40, 5), pytest.param(2000, 300, marks=pytest.mark.fault)])
def test_queued_runs_are_cancelled_in_one_transaction_and_every_watcher_hears_of_each(
    make_daemon, count: int, watchers: int
) -> None:
    daemon: RunningDaemon = make_daemon()
    everything = {"cpus": {"requested": daemon.client.health().cpus_total}}
    blocker = daemon.submit(timesteps=1_000_000, steps_per_second=20, resources=everything).run_id
    daemon.wait_for(blocker, "EXEC")
    queued = [daemon.submit(timesteps=5, resources=everything, tags=("many",)).run_id for _ in range(count)]
    since = daemon.client.list(limit=1).last_seq
    with ExitStack() as stack:
        clients = [stack.enter_context(TrainerClient.connect(daemon.home, timeout_s=60)) for _ in range(watchers)]
        streams = [stack.enter_context(client.watch(since_seq=since)) for client in clients]
        refused = daemon.client.cancel_many([*queued, blocker, "01" + "0" * 24], reason="too many")
        assert list(refused) == ["01" + "0" * 24]
        for stream in streams:
            heard: list[str] = []
            while len(heard) < count:
                update = next(stream)
                if update.event.kind == "cancelled" and update.run.run_id != blocker:
                    assert (update.run.outcome, update.run.reason) == ("cancelled", "too many")
                    heard.append(update.run.run_id)
            assert heard == queued
    first = [list(daemon.client.history(run_id))[-1] for run_id in (queued[0], queued[-1])]
    assert first[1].seq - first[0].seq == count - 1  # nothing came in between
    assert daemon.event_kinds(queued[0]) == ["submitted", "cancelled"]
    assert wait_until(lambda: not daemon.unfinished(), timeout_s=60)
    assert daemon.client.health().queued == 0


def test_the_command_cancels_many_at_once_and_names_each(emptied_daemon: RunningDaemon) -> None:
    daemon = emptied_daemon
    everything = {"cpus": {"requested": daemon.client.health().cpus_total}}
    running = daemon.submit(timesteps=1_000_000, steps_per_second=20, resources=everything, tags=("these",)).run_id
    daemon.wait_for(running, "EXEC")
    queued = [daemon.submit(timesteps=5, resources=everything, tags=("these",)).run_id for _ in range(3)]
    reported = subprocess.run(
        [MOSAIC, "cancel", "--tag", "these", "--yes", "--wait"],
        env=daemon.variables,
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(run_id in reported.stdout for run_id in (*queued, running)), reported.stdout
    assert {daemon.client.get(run_id).outcome for run_id in (*queued, running)} == {"cancelled"}
