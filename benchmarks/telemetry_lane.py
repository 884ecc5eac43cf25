"""Steps a second through the telemetry lane: a worker's steps, stored in SQLite by a real daemon, none of them lost.

The peer is the floor: the same rows inserted into SQLite by one process, in transactions of the same size.
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
import time
from pathlib import Path

from gym_gui.testing import RunningDaemon, install_scripted_worker, scripted_config
from measure import cpu_of, print_table, temporary_home
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.telemetry import encode

TARGET = 20_000
WORKER = """
session = open_session(lane="telemetry")
session.started({})
telemetry = session.telemetry()
began = time.monotonic()
for number in range(config.extras["algo_params"]["steps"]):
    telemetry.step([0.1, 0.2, 0.3, 0.4], 1, 1.0, terminated=number % 200 == 199, truncated=False)
telemetry.close(timeout_s=600)
print("TOOK", time.monotonic() - began, "CPU", time.process_time(), flush=True)
session.finish(ExitOutcome.COMPLETED, exit_code=0)
"""


def through_the_daemon(daemon: RunningDaemon, steps: int) -> tuple[float, float, float]:
    before = cpu_of(daemon.pid)
    run_id = daemon.client.submit(scripted_config("live", timesteps=steps, steps=steps)).run.run_id
    daemon.wait_for(run_id, timeout_s=600)
    fields = daemon.output(run_id).split()
    ours = cpu_of(daemon.pid) - before
    stored = 0
    with daemon.client.steps(run_id) as stream:
        for batch in stream:
            stored += len(batch.steps)
    if stored != steps:
        raise SystemExit(f"{stored} of {steps} steps are stored")
    return float(fields[fields.index("TOOK") + 1]), float(fields[fields.index("CPU") + 1]), ours


def bare_inserts(folder: Path, steps: int) -> float:
    connection = sqlite3.connect(folder / "bare.sqlite", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("CREATE TABLE steps (run, seq, episode, message, PRIMARY KEY (run, seq)) WITHOUT ROWID")
    message = pb.RunStep(seq=1, observation=encode([0.1, 0.2, 0.3, 0.4]), action=encode(1), reward=1.0)
    data, began = message.SerializeToString(), time.process_time()
    for start in range(0, steps, 2_000):
        connection.execute("BEGIN")
        rows = [(1, seq, seq // 200, data) for seq in range(start, min(steps, start + 2_000))]
        connection.executemany("INSERT INTO steps VALUES (?, ?, ?, ?)", rows)
        connection.execute("COMMIT")
    connection.close()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200_000)
    steps = parser.parse_args().steps
    with temporary_home() as (home, config_home):
        install_scripted_worker(home, "live", WORKER, lane="telemetry")
        with RunningDaemon(home, config_home) as daemon:
            took, worker, ours = through_the_daemon(daemon, steps)
    with tempfile.TemporaryDirectory() as folder:
        floor = bare_inserts(Path(folder), steps)
    print_table(
        f"{steps:,} steps through the telemetry lane, every one stored",
        [
            ("wall-clock", f"{took:8.2f} s  {steps / took:,.0f} steps/s  (to reach: {TARGET:,})"),
            ("CPU of the worker, encoding included", f"{worker:8.2f} s"),
            ("CPU of the daemon", f"{ours:8.2f} s  {steps / ours:,.0f} steps/s"),
            ("bare inserts, CPU", f"{floor:8.2f} s  (the daemon takes {ours / floor:.1f} ×)"),
        ],
    )


if __name__ == "__main__":
    main()
