"""Metrics a second, end to end: from an event file through a worker's bridge and the daemon into its pyramid.

The peer is TensorBoard's EventAccumulator, which only reads the same file.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from gym_gui.testing import RunningDaemon, install_scripted_worker, scripted_config
from measure import cpu_of, print_table, temporary_home
from mosaic_wire.testing import wait_until
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

TARGET = 100_000
TAGS = 10
FOLLOWER = """
import resource
folder = run_folder_of(config.run_id).tensorboard
folder.parent.mkdir(parents=True, exist_ok=True)
folder.symlink_to(config.extras["algo_params"]["events"])
session = open_session()
session.started({})
session.follow_metrics(folder)
session.stop_requested.wait()
print("CPU", sum(resource.getrusage(resource.RUSAGE_SELF)[:2]), flush=True)
session.finish(ExitOutcome.CANCELLED, exit_code=130)
"""


def write_events(folder: Path, points: int) -> None:
    """Write events as a script does: one scalar per event."""
    with (folder / "events.out.tfevents.1700000000.host.1.0").open("wb") as stream:
        writer = RecordWriter(stream)
        writer.write(Event(wall_time=1.7e9, file_version="brain.Event:2").SerializeToString())
        for index in range(points):
            value = Summary.Value(tag=f"losses/loss_{index % TAGS}", simple_value=index * 0.5)
            event = Event(wall_time=1.7e9 + index, step=index // TAGS, summary=Summary(value=[value]))
            writer.write(event.SerializeToString())


def through_the_daemon(daemon: RunningDaemon, events: Path, points: int) -> tuple[float, float, float]:
    """Wall-clock seconds until the daemon has every point, and CPU seconds of worker and daemon."""
    before = cpu_of(daemon.pid)
    run_id = daemon.client.submit(scripted_config("follower", events=str(events))).run.run_id
    daemon.wait_for(run_id, "EXEC")
    began = time.monotonic()

    last = points - 1

    def arrived() -> bool:  # not by asking for the curves: then the daemon reads the file itself
        return daemon.client.get(run_id).metrics.get(f"losses/loss_{last % TAGS}") == last * 0.5

    if not wait_until(arrived, timeout_s=600, poll_s=0.1):
        raise SystemExit("not every point arrived")
    took = time.monotonic() - began
    if sum(tag.points for tag in daemon.client.metric_tags(run_id) if "loss" in tag.tag) != points:
        raise SystemExit("some points are missing")
    daemon.client.cancel(run_id)
    daemon.wait_for(run_id)
    worker = float(daemon.output(run_id).rpartition("CPU ")[2].split()[0])
    return took, worker, cpu_of(daemon.pid) - before


def with_tensorboard(events: Path) -> float:
    began = time.process_time()
    EventAccumulator(str(events), size_guidance={"scalars": 0}).Reload()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=1_000_000)
    points = parser.parse_args().points
    with temporary_home() as (home, config_home), RunningDaemon(home, config_home) as daemon:
        events = config_home / "events"
        events.mkdir()
        write_events(events, points)
        install_scripted_worker(daemon.home, "follower", FOLLOWER)
        daemon.restart()
        took, worker, ours = through_the_daemon(daemon, events, points)
        peer = with_tensorboard(events)
    rate = points / max(took, worker + ours)
    print_table(
        f"{points:,} scalars from an event file into the daemon",
        [
            ("wall-clock, worker and daemon at once", f"{took:8.2f} s"),
            ("CPU of the worker's bridge (with its start)", f"{worker:8.2f} s"),
            ("CPU of the daemon", f"{ours:8.2f} s"),
            ("scalars a second of CPU", f"{points / (worker + ours):8.0f}  (to reach: {TARGET:,})"),
            ("the lower of that and wall-clock", f"{rate:8.0f}"),
            ("EventAccumulator, reading alone, CPU", f"{peer:8.2f} s  ({peer / (worker + ours):.2f} × ours)"),
        ],
    )


if __name__ == "__main__":
    main()
