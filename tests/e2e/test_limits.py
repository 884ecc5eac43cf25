"""Fault 10: endless lines and logs, fork bombs, threads, memory: that run is limited, the others are unhurt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from gym_gui.testing import RunningDaemon, install_scripted_worker, processes_of, scripted_config
from mosaic_wire.testing import wait_until

ENDLESS = {"timesteps": 10_000_000, "steps_per_second": 50}
MB = 1 << 20

NO_CGROUPS = """
import functools, logging, sys
from gym_gui.config.settings import load_settings
from gym_gui.services.trainer import daemon
daemon.LocalExecutor = functools.partial(daemon.LocalExecutor, use_cgroups=False)
from mosaic_wire.paths import find_home
logging.basicConfig(level=logging.INFO, stream=sys.stderr)
sys.exit(daemon.run_daemon(find_home(), load_settings()))
"""


@pytest.fixture(params=["limited by the kernel", "measured by the daemon"])
def make_limiting_daemon(request: pytest.FixtureRequest, make_daemon):
    """The same limits with and without control groups."""
    script = NO_CGROUPS if request.param == "measured by the daemon" else ""

    def make(**settings) -> RunningDaemon:
        return make_daemon(script=script, **settings)

    return make


@contextmanager
def an_unhurt_neighbor(daemon: RunningDaemon) -> Iterator[None]:
    """Another run continues all the while, and a new one can be started afterwards."""
    neighbor = daemon.submit(**ENDLESS).run_id
    pid = daemon.wait_for(neighbor, "EXEC").pid
    yield
    before = daemon.client.get(neighbor)
    after = daemon.wait_for_run(neighbor, lambda run: run.step > before.step + 10 or run.status != "EXEC")
    assert (after.status, after.pid) == ("EXEC", pid), after.reason
    assert not {"faulted", "stalled"} & set(daemon.event_kinds(neighbor))
    daemon.client.cancel(neighbor)
    assert daemon.wait_for(daemon.submit(timesteps=3).run_id).outcome == "completed"


def size_of_logs(daemon: RunningDaemon, run_id: str) -> int:
    return sum(path.stat().st_size for path in daemon.home.run_logs(run_id).iterdir())


def resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


def test_a_line_of_a_million_characters_is_harmless(daemon: RunningDaemon) -> None:
    with an_unhurt_neighbor(daemon):
        run = daemon.wait_for(daemon.submit(timesteps=5, log_line_chars=1_000_000, fail_at_step=4).run_id)
    assert "AskedToFail" in run.reason
    assert "x" * 1_000_000 in daemon.output(run.run_id)
    (end,) = [event for event in daemon.client.history(run.run_id) if event.to_status == "TERM"]
    assert len(end.payload_json) < 200_000
    assert len(daemon.log()) < 100_000
    # Whoever asks for it gets the whole line.
    with daemon.client.logs(run.run_id) as chunks:
        assert b"x" * 1_000_000 in b"".join(chunk.data for chunk in chunks)


def check_a_flood_is_cut(daemon: RunningDaemon, *, log_mb: int, cap_mb: int) -> None:
    before = resident_mb(daemon.pid)
    with an_unhurt_neighbor(daemon):
        # It lives on after the flood, so that the cap has its chance; at its end nothing is cut any more.
        run_id = daemon.submit(**ENDLESS, log_mb=log_mb).run_id
        daemon.wait_for_run(run_id, lambda run: run.step > 0, timeout_s=300)
        assert wait_until(lambda: size_of_logs(daemon, run_id) < 2 * cap_mb * MB, timeout_s=60)
        daemon.client.cancel(run_id)
        assert daemon.wait_for(run_id).outcome == "cancelled"
    assert size_of_logs(daemon, run_id) < 2 * cap_mb * MB
    assert resident_mb(daemon.pid) < before + 64


def test_a_flood_of_log_is_cut_to_its_cap(make_daemon) -> None:
    check_a_flood_is_cut(make_daemon(log_cap_mb=1), log_mb=40, cap_mb=1)


@pytest.mark.fault
@pytest.mark.timeout(600)
def test_a_gigabyte_of_log_is_cut_to_its_cap(make_daemon) -> None:
    check_a_flood_is_cut(make_daemon(log_cap_mb=16), log_mb=1024, cap_mb=16)


@pytest.mark.parametrize(
    "parameters",
    [
        {"fork_bomb": 300},
        pytest.param({"threads": 300}, marks=pytest.mark.slow),
        pytest.param({"fork_bomb": 1500}, marks=[pytest.mark.fault, pytest.mark.timeout(600)]),
        pytest.param({"threads": 10_000}, marks=[pytest.mark.fault, pytest.mark.timeout(600)]),
    ],
    ids=str,
)
def test_a_fork_bomb_or_a_flood_of_threads_is_stopped(make_limiting_daemon, parameters: dict[str, int]) -> None:
    daemon = make_limiting_daemon(max_processes=64 if max(parameters.values()) < 1000 else 500)
    with an_unhurt_neighbor(daemon):
        run = daemon.wait_for(daemon.submit(**ENDLESS, **parameters).run_id, timeout_s=300)
    assert run.outcome == "failed"
    assert "processes and threads" in run.reason
    assert processes_of(run.run_id) == []


def test_a_run_over_its_memory_limit_is_ended_with_that_reason(make_limiting_daemon) -> None:
    daemon = make_limiting_daemon()
    with an_unhurt_neighbor(daemon):
        run = daemon.wait_for(daemon.submit(**ENDLESS, memory_mb=300, resources={"memory_mb": 150}).run_id)
        modest = daemon.submit(timesteps=50, steps_per_second=50, memory_mb=50, resources={"memory_mb": 300}).run_id
        assert daemon.wait_for(modest).outcome == "completed"
    assert run.outcome == "failed"
    assert "limit of 150 MB" in run.reason, run.reason
    assert processes_of(run.run_id) == []


def test_a_flood_of_lifecycle_events_delays_no_cancel_and_loses_none(daemon: RunningDaemon) -> None:
    install_scripted_worker(
        daemon.home,
        "talker",
        """
        session = open_session()
        session.started()
        with open(os.devnull, "w") as sys.stdout:
            for step in range(1500):
                session.emit(LifecycleKind.CHECKPOINT_LOADED, {"step": step})
        session.stop_requested.wait()
        session.finish(ExitOutcome.CANCELLED, exit_code=130)
        sys.exit(130)
        """,
    )

    def reported() -> int:
        return daemon.event_kinds(run_id).count("checkpoint_loaded")

    run_id = daemon.client.submit(scripted_config("talker")).run.run_id
    assert wait_until(lambda: len(daemon.lifecycle(run_id)) > 1000, timeout_s=60)
    daemon.client.cancel(run_id)
    assert wait_until(lambda: not processes_of(run_id), timeout_s=60, poll_s=0.005)
    assert reported() < 1500
    assert daemon.wait_for(run_id).outcome == "cancelled"
    assert reported() == 1500


def test_garbage_in_the_lifecycle_file_is_passed_over(daemon: RunningDaemon) -> None:
    run = daemon.wait_for(daemon.submit(timesteps=20, lifecycle_garbage=True).run_id)
    assert (run.outcome, run.step) == ("completed", 20)


@pytest.mark.parametrize("what", ["lifecycle.jsonl", "analytics.json", "exit.json"])
def test_a_folder_in_the_place_of_a_workers_file_does_not_keep_the_run_from_its_end(
    daemon: RunningDaemon, what: str
) -> None:
    install_scripted_worker(
        daemon.home,
        "untidy",
        f"""
        session = open_session()
        session.started()
        time.sleep(0.5)
        path = run_folder_of(config.run_id).root / {what!r}
        path.unlink(missing_ok=True)
        path.mkdir()
        (path / "in the way").touch()
        session.stop_requested.wait(1)
        sys.exit(3)
        """,
    )
    run = daemon.wait_for(daemon.client.submit(scripted_config("untidy")).run.run_id)
    assert run.outcome == "failed"
    if what == "lifecycle.jsonl":
        assert "lifecycle file cannot be read" in run.reason
    assert processes_of(run.run_id) == []
    assert daemon.client.health().running == 0
