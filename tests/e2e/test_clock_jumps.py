"""Fault 5: the wall clock jumps by a day, both ways, while runs continue: no timeout, no lost order."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

import pytest
from gym_gui.testing import RunningDaemon
from mosaic_wire.testing import wait_until

ENDLESS = {"timesteps": 1_000_000, "steps_per_second": 20}
DAY_S = 86_400


def fake_clock_library() -> Path:
    spec = importlib.util.find_spec("libfaketime")
    folders = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    found = [path for folder in folders for path in folder.rglob("libfaketime.so.1")]
    if not found:
        pytest.skip("libfaketime is not installed, and the machine's own clock is not ours to set")
    return found[0]


# Loaded into the daemon alone: the library makes every look at a clock slow, and workers ask theirs all the time.
DAEMON = """
import os, sys
del os.environ["LD_PRELOAD"]
from gym_gui.services.trainer.daemon import main
sys.exit(main([]))
"""


class Clock:
    """The wall clock of a daemon; its monotonic clock is the machine's."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.jump(0)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(fake_clock_library()),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "0",  # seconds; the file is looked at once in each
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }

    def jump(self, seconds: int) -> None:
        """In a second the clock will be wrong by this much."""
        temporary = self._file.with_suffix(".new")
        temporary.write_text(f"{seconds:+d}s\n")
        temporary.replace(self._file)


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path / "clock")


def wait_for_the_jump(daemon: RunningDaemon, run_id: str, seconds: int) -> None:
    """Wait until the daemon stamps its events with the wrong time."""

    def has_jumped() -> bool:
        notes = daemon.client.get(run_id).notes
        daemon.client.update(run_id, notes=notes + ".")
        stamp = list(daemon.client.history(run_id))[-1].timestamp
        return abs(stamp - (time.time() + seconds)) < DAY_S / 2

    assert wait_until(has_jumped, timeout_s=60, poll_s=0.2)


def wait_for_progress(daemon: RunningDaemon, run_id: str) -> None:
    """Wait for a few more heartbeats; a run that ended instead is shown."""
    before = daemon.client.get(run_id)
    run = daemon.wait_for_run(run_id, lambda run: run.step > before.step + 30 or run.status == "TERM")
    assert run.status == "EXEC", f"{run.reason}: {daemon.event_kinds(run_id)}"


def test_no_run_is_hurt_when_the_clock_jumps_by_a_day(make_daemon, clock: Clock) -> None:
    # Every limit is far below a day: one that is held against the wall clock would strike.
    daemon = make_daemon(script=DAEMON, environment=clock.environment, silence_s=5, handshake_s=20)
    everything = {"cpus": {"requested": daemon.client.health().cpus_total}}
    limited = daemon.submit(**ENDLESS, resources={**everything, "max_wallclock_minutes": 10}).run_id
    paused = daemon.submit(**ENDLESS).run_id
    for run_id in (limited, paused):
        daemon.wait_for(run_id, "EXEC")
    daemon.client.pause(paused)
    daemon.wait_for(paused, "PAUSE")

    queued = []
    for jump in (DAY_S, -DAY_S):
        clock.jump(jump)
        wait_for_the_jump(daemon, paused, jump)
        queued.append(daemon.submit(timesteps=3, resources=everything).run_id)
        wait_for_progress(daemon, limited)
        assert daemon.client.get(paused).status == "PAUSE"

    daemon.client.resume(paused)
    daemon.wait_for(paused, "EXEC")
    daemon.client.cancel(limited)
    for run_id in queued:
        run = daemon.wait_for(run_id)
        assert run.outcome == "completed", run.reason
    # In the order in which they were submitted, whatever their time stamps say.
    assert daemon.client.get(queued[0]).created_at > daemon.client.get(queued[1]).created_at
    events = [event for run_id in queued for event in daemon.client.history(run_id) if event.kind == "started"]
    assert [event.run_id for event in sorted(events, key=lambda event: event.seq)] == queued
    listed = [run.run_id for run in reversed(daemon.client.list().runs)]
    assert [run_id for run_id in listed if run_id in queued] == queued
    for run_id in (limited, paused):
        assert not {"faulted", "stalled", "no_progress"} & set(daemon.event_kinds(run_id))


@pytest.mark.fault
def test_a_restart_after_a_jump_finds_its_run_and_keeps_to_its_limits(make_daemon, clock: Clock) -> None:
    daemon = make_daemon(script=DAEMON, environment=clock.environment, silence_s=5)
    run_id = daemon.submit(**ENDLESS, resources={"max_wallclock_minutes": 10}).run_id
    pid = daemon.wait_for(run_id, "EXEC").pid
    for jump in (DAY_S, -DAY_S):
        daemon.kill()
        clock.jump(jump)
        daemon.start()
        wait_for_the_jump(daemon, run_id, jump)
        wait_for_progress(daemon, run_id)
        assert daemon.client.get(run_id).pid == pid
    daemon.client.cancel(run_id)
    assert daemon.wait_for(run_id).outcome == "cancelled"
