"""Many live runs that publish at once: what the daemon takes, and how often a watching client receives each.

Every run has a process that the daemon supervises (a sleeping shell), a registered session, heartbeats, and a metric
bridge that follows an event file. All sessions live in one process, which writes the files, too.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

from gym_gui.testing import RunningDaemon, scripted_config
from measure import cpu_of, memory_mb_of, print_table, temporary_home
from mosaic_wire.capabilities import WorkerCapabilities
from mosaic_wire.files import write_json_atomically
from mosaic_wire.paths import Home
from mosaic_wire.testing import wait_until
from mosaic_wire.worker_spec import AlgorithmSpec, WorkerSpec

SETTINGS = {"min_free_disk_mb": 0, "min_free_memory_mb": 0, "handshake_s": 900, "silence_s": 900, "grace_s": 1}

SLEEPER = """\
cat /proc/self/environ > "$MOSAIC_HOME/sessions/$MOSAIC_RUN_ID.tmp"
mv "$MOSAIC_HOME/sessions/$MOSAIC_RUN_ID.tmp" "$MOSAIC_HOME/sessions/$MOSAIC_RUN_ID"
exec sleep 100000
"""

FLEET = """
import os, queue, sys, threading, time
from pathlib import Path
from mosaic_wire import env
from mosaic_wire.bridge import MetricBridge
from mosaic_wire.capabilities import WorkerCapabilities
from mosaic_wire import daemon_link
from mosaic_wire.daemon_link import WorkerLink
from mosaic_wire.event_files import ScalarEventWriter
from mosaic_wire.lifecycle import LifecycleKind, LifecycleSpool
from mosaic_wire.paths import RunFolder
from mosaic_wire.session import Progress

daemon_link._CHANNEL_OPTIONS += (("grpc.use_local_subchannel_pool", 1),)  # a connection for each, as processes have
sessions, scalars, every = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
runs = []
for file in sorted(sessions.iterdir()):
    variables = dict(item.split("=", 1) for item in file.read_text().split("\\0") if "=" in item)
    run_id, folder = variables[env.MOSAIC_RUN_ID], RunFolder(Path(variables[env.MOSAIC_RUN_DIR]))
    folder.root.mkdir(parents=True, exist_ok=True)
    progress = Progress()
    link = WorkerLink(variables[env.MOSAIC_GRPC_TARGET], run_id, progress, queue.SimpleQueue(), 5.0)
    link.register(
        run_token=variables[env.MOSAIC_RUN_TOKEN], attempt=1, instance=run_id, algo="script", env_id="none", extras={},
        capabilities=WorkerCapabilities("sleeper").to_json(), timeout_s=60, stop=threading.Event(),
    )
    spool = LifecycleSpool(folder.lifecycle, run_id)
    spool.append(LifecycleKind.RUN_STARTED, {})
    link.start(lifecycle_seq=spool.seq)
    bridge = MetricBridge(run_id, folder.tensorboard, link)
    bridge.start()
    runs.append((ScalarEventWriter(folder.tensorboard), progress))
print("ready", flush=True)
names = ["charts/SPS", "charts/episodic_return", *(f"losses/loss_{number}" for number in range(scalars - 2))]
step, due = 0, time.monotonic()
while True:
    for index, (writer, progress) in enumerate(runs):  # spread over the second, as runs are
        due += every / len(runs)
        time.sleep(max(0.0, due - time.monotonic()))
        writer.add_scalars({name: float(step) for name in names}, step)
        progress.update(step, 10**6, float(step), 100.0)
    step += 1
"""


def install_sleeper(home: Home) -> None:
    folder = home.workers / "sleeper"
    folder.mkdir(parents=True)
    (folder / "worker.sh").write_text(SLEEPER)
    spec = WorkerSpec(
        name="sleeper",
        display_name="sleeper",
        version="1",
        module="sleeper.cli",
        capabilities=WorkerCapabilities("sleeper", estimated_memory_mb=1),  # the next one waits for no memory
        argv=("/bin/sh", str(folder / "worker.sh")),
        algorithms=(AlgorithmSpec("script", open_flags=True, modes=("train",)),),
    )
    write_json_atomically(folder / "worker.json", spec.to_json())


class Listener:
    """A client that watches every run and records when it received each."""

    def __init__(self, daemon: RunningDaemon) -> None:
        self.received: dict[str, list[float]] = defaultdict(list)
        self._stream = daemon.client.watch(since_seq=daemon.client.list().last_seq)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        with contextlib.suppress(Exception):  # its stream is cancelled at the end
            for update in self._stream:
                if not update.HasField("event"):
                    self.received[update.run.run_id].append(time.monotonic())

    def close(self) -> None:
        self._stream.cancel()
        self._thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--scalars", type=int, default=10, help="values each run writes at a time")
    parser.add_argument("--every", type=float, default=0.5, help="seconds between two times")
    parser.add_argument("--profile", type=Path, help="write a profile of the daemon there")
    arguments = parser.parse_args()
    script = PROFILED.replace("FILE", repr(str(arguments.profile.absolute()))) if arguments.profile else ""
    results: dict[str, tuple[float, Listener | None]] = {}
    with temporary_home() as (home, config_home), tempfile.TemporaryFile() as errors:
        home.create()
        install_sleeper(home)
        sessions = home.root / "sessions"
        sessions.mkdir()
        with RunningDaemon(home, config_home, settings=SETTINGS, script=script) as daemon:
            for _ in range(arguments.runs):
                daemon.client.submit(scripted_config("sleeper"))
            if not wait_until(lambda: len(list(sessions.glob("*[!p]"))) == arguments.runs, timeout_s=300, poll_s=0.2):
                raise SystemExit("not every run started")
            command = [sys.executable, "-c", FLEET, str(sessions), str(arguments.scalars), str(arguments.every)]
            fleet = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=dict(os.environ))
            try:
                assert fleet.stdout is not None
                if fleet.stdout.readline() != b"ready\n":
                    errors.seek(0)
                    raise SystemExit(errors.read().decode())
                for name in ("no viewer", "a client watches all"):
                    listener = Listener(daemon) if "client" in name else None
                    time.sleep(10)  # until each knows its reporting interval
                    before, began = cpu_of(daemon.pid), time.monotonic()
                    time.sleep(arguments.seconds)
                    share = (cpu_of(daemon.pid) - before) / (time.monotonic() - began)
                    results[name] = 100 * share, listener
                    if listener is not None:
                        listener.close()
                memory = memory_mb_of(daemon.pid)
                written = sum(
                    tag.points for run in daemon.client.list().runs[:1] for tag in daemon.client.metric_tags(run.run_id)
                )
            finally:
                fleet.kill()
                fleet.wait()
    rows = [
        (f"CPU of the daemon, {name}", f"{share:8.1f} % of a core  (to reach: < 50)")
        for name, (share, _) in results.items()
    ]
    listener = results["a client watches all"][1]
    assert listener is not None
    gaps = [later - earlier for times in listener.received.values() for earlier, later in pairwise(times)]
    most = max(
        bisect_left(times, since + 1) - at for times in listener.received.values() for at, since in enumerate(times)
    )
    total = sum(map(len, listener.received.values()))
    rows += [
        ("runs the client received", f"{len(listener.received):8} of {arguments.runs}"),
        ("updates a run and second", f"{total / arguments.runs / (arguments.seconds + 10):8.2f}  (to reach: ≤ 10)"),
        ("most of one run within a second", f"{most:8}  (to reach: ≤ 10)"),
        ("shortest time between two of one run", f"{min(gaps):8.3f} s  (as they arrive; the daemon keeps 0.1 apart)"),
        ("points of one run the daemon has", f"{written:8,}"),
        ("memory of the daemon", f"{memory:8.0f} MB"),
    ]
    rate = arguments.runs * arguments.scalars / arguments.every
    print_table(
        f"{arguments.runs} live runs, {rate:,.0f} scalars a second in all, over {arguments.seconds:g} s each", rows
    )


PROFILED = """
import atexit, cProfile, sys
from gym_gui.services.trainer import daemon
profile = cProfile.Profile()
profile.enable()
code = daemon.main(["run"])
profile.disable()
profile.dump_stats(FILE)
sys.exit(code)
"""


if __name__ == "__main__":
    main()
