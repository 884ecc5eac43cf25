"""Floods of output are held back: the logs of a run share one cap, and the daemon's own log repeats few lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from gym_gui.testing import RunningDaemon, install_scripted_worker, scripted_config

MB = 1 << 20
FLOODER = """
wanted = config.extras["algo_params"]
logs = run_folder_of(config.run_id).root / "logs"
logs.mkdir()
session = open_session()
session.started({})
line = b"LOG501 | flood | extra={}\\n" if wanted["structured"] else b"y" * 1023 + b"\\n"
piece = line * (wanted["piece_bytes"] // len(line))
append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
outputs = [1] if wanted["structured"] else [os.open(logs / f"{number}.log", append) for number in range(12)]
until = time.monotonic() + wanted["seconds"]
while time.monotonic() < until and not session.stop_requested.is_set():
    for output in outputs:
        os.write(output, piece)
    time.sleep(wanted["pause_s"])
session.finish(ExitOutcome.COMPLETED, exit_code=0)
"""


def flood(daemon: RunningDaemon, **parameters) -> tuple[str, int]:
    """Run a worker that floods; return its id and the most bytes that its logs had together, as far as was seen."""
    install_scripted_worker(daemon.home, "flooder", FLOODER)
    run_id = daemon.client.submit(scripted_config("flooder", **parameters)).run.run_id
    folders = (daemon.home.run_logs(run_id), daemon.home.run_folder(run_id).logs)
    largest = 0

    def watch(run) -> bool:
        nonlocal largest
        largest = max(largest, sum(_size(path) for folder in folders for path in folder.glob("*")))
        return run.status == "TERM"

    assert daemon.wait_for_run(run_id, watch, timeout_s=120).outcome == "completed"
    return run_id, largest


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def test_many_logs_share_one_cap(make_daemon) -> None:
    daemon = make_daemon(log_cap_mb=4)
    # 24 MB a second into twelve files: less than a look apart is what may lie above the cap.
    run_id, largest = flood(daemon, structured=False, piece_bytes=MB // 10, seconds=4, pause_s=0.05)
    assert largest < 24 * MB  # of 96 that were written
    assert sum(_size(path) for path in daemon.home.run_folder(run_id).logs.glob("*")) <= 4 * MB


def test_a_flood_of_structured_lines_does_not_fill_the_daemons_log(emptied_daemon: RunningDaemon) -> None:
    before = len(emptied_daemon.log())
    flood(emptied_daemon, structured=True, piece_bytes=MB // 4, seconds=3, pause_s=0.01)
    reported = emptied_daemon.log()[before:]
    assert "structured lines of its output are not repeated" in reported
    assert len(reported) < 200_000


@pytest.mark.fault
@pytest.mark.timeout(300)
def test_gigabytes_of_log_stay_near_the_cap(make_daemon) -> None:
    daemon = make_daemon(log_cap_mb=256)
    _, largest = flood(daemon, structured=False, piece_bytes=MB, seconds=20, pause_s=0)
    assert largest < 1500 * MB


def test_the_daemons_own_log_has_the_cap_too(make_daemon) -> None:
    daemon = make_daemon(start=False, log_cap_mb=1)
    daemon.home.create()
    daemon.home.daemon_log.write_bytes(b"old line\n" * (1 << 18))
    daemon.start()
    assert daemon.wait_for(daemon.submit(timesteps=20, steps_per_second=10).run_id).outcome == "completed"
    assert daemon.home.daemon_log.stat().st_size < MB
    assert daemon.home.daemon_log.with_name("daemon.log.1").stat().st_size <= MB
