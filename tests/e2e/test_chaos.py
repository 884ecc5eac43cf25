"""Fault 14: daemon, workers and window are killed at random; each run has one terminal record and a true manifest."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from typing import Any

import pytest
from gym_gui.services.trainer.errors import DaemonUnreachable, NotPossibleNow
from gym_gui.services.trainer.process_tree import read_mark, read_process_table
from gym_gui.testing import RunningDaemon, WindowProcess, processes_of, random_config
from mosaic_wire.checkpoints import verify_checkpoint
from mosaic_wire.lifecycle import LifecycleKind
from mosaic_wire.testing import wait_until

from tests.e2e.conftest import fault_runs

KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"scheduling": {"retries": 3}, "checkpoint_every": 5},
    {"fail_at_step": 30},
    {"kill_at_step": 30, "scheduling": {"retries": 1}, "checkpoint_every": 7},
    {"spawn_children": 2, "detach_children": True},
    {"ignore_sigterm": True},
)


class Chaos:
    """Does harm, in an order that a seed repeats (the machine's own timing aside)."""

    def __init__(self, daemon: RunningDaemon, window: WindowProcess, seed: int) -> None:
        self._daemon, self._window, self._dice = daemon, window, random.Random(seed)
        self.accepted: dict[str, str] = {}
        """Run ids by idempotency key"""

    def submit(self, number: int) -> None:
        kind = {"timesteps": 50, "steps_per_second": 100, **self._dice.choice(KINDS)}
        config = random_config(resources={"cpus": {"requested": 0.25}}, seed=number, **kind)
        key = f"run {number}"
        while True:
            try:
                self.accepted[key] = self._daemon.client.submit(config, idempotency_key=key).run.run_id
                return
            except DaemonUnreachable:
                self._daemon.restart()

    def strike(self) -> None:
        harm = self._dice.choice(
            (self._kill_daemon, self._kill_worker, self._kill_window, self._cancel, self._pause, self._resume, str)
        )
        with suppress(NotPossibleNow, ProcessLookupError):
            harm()

    def _kill_daemon(self) -> None:
        self._daemon.restart()

    def _kill_worker(self) -> None:
        known = tuple(f"{run_id}." for run_id in self.accepted.values())
        ours = [pid for pid in read_process_table() if (read_mark(pid) or "").startswith(known)]
        if ours:
            os.kill(self._dice.choice(ours), self._dice.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV)))

    def _kill_window(self) -> None:
        assert self._window.is_open, f"it ended by itself:\n{self._window.stderr()}"
        self._window.end(signal.SIGKILL)
        self._window.open()

    def _one(self) -> str:
        return self._dice.choice(list(self.accepted.values()))

    def _cancel(self) -> None:
        self._daemon.client.cancel(self._one())

    def _pause(self) -> None:
        self._daemon.client.pause(self._one(), release=self._dice.random() < 0.5)

    def _resume(self) -> None:
        run_id = self._one()
        if self._daemon.client.get(run_id).status == "PAUSE":
            self._daemon.client.resume(run_id)


def wait_for_all(daemon: RunningDaemon, timeout_s: float) -> None:
    def all_over() -> bool:
        unfinished = daemon.unfinished()
        for run in unfinished:
            if run.status == "PAUSE":
                with suppress(NotPossibleNow):
                    daemon.client.resume(run.run_id)
        return not unfinished

    if not wait_until(all_over, timeout_s=timeout_s, poll_s=0.2):
        raise AssertionError(f"not over: {daemon.unfinished()}\n{daemon.log()[-6000:]}")


def check_run(daemon: RunningDaemon, run_id: str) -> None:
    run, folder = daemon.client.get(run_id), daemon.home.run_folder(run_id)
    events = list(daemon.client.history(run_id))
    reported = f"{run.outcome} ({run.reason}): {[event.kind for event in events]}"
    assert sum(event.to_status == "TERM" for event in events) == 1, reported
    assert events[0].kind == "submitted", reported
    assert processes_of(run_id) == [], reported
    starts = [event.attempt for event in daemon.lifecycle(run_id) if event.event is LifecycleKind.RUN_STARTED]
    assert len(starts) == len(set(starts)), reported
    if run.outcome == "completed":
        assert run.step == 50, reported
    if not folder.root.exists():
        assert run.outcome == "cancelled", reported
        return
    manifest = daemon.manifest(run_id)
    assert manifest.outcome == run.outcome, reported
    assert manifest.finalised_by in ("worker", "daemon"), reported
    on_disk = {path.name for path in folder.checkpoints.glob("step-*")} if folder.checkpoints.exists() else set()
    listed = {entry.path: entry for entry in manifest.checkpoints}
    assert {f"checkpoints/{name}" for name in on_disk} >= listed.keys(), reported
    for path, entry in listed.items():
        assert verify_checkpoint(folder.root / path, entry.sha256) is None, reported


def check_chaos(daemon: RunningDaemon, *, runs: int, seed: int) -> None:
    # By its address: a window of the home itself would replace the daemons we kill before we do.
    where = ("--connect", f"unix:{daemon.home.socket}", "--token-file", str(daemon.home.token))
    window = WindowProcess(daemon.config_home / "window", *where, variables=daemon.variables)
    window.open()
    try:
        _harm_and_check(daemon, window, runs=runs, seed=seed)
        assert window.is_open, f"the window ended by itself:\n{window.stderr()}"
    finally:
        window.end(signal.SIGTERM)
    assert "Traceback" not in window.stderr()


def _harm_and_check(daemon: RunningDaemon, window: WindowProcess, *, runs: int, seed: int) -> None:
    chaos = Chaos(daemon, window, seed)
    for number in range(runs):
        chaos.submit(number)
        chaos.strike()
        time.sleep(0.02)  # not a wait for anything: the runs get a little further
    for _ in range(runs // 4):
        chaos.strike()
    wait_for_all(daemon, timeout_s=60 + 2 * runs)
    assert len(set(chaos.accepted.values())) == runs
    assert {run.run_id for run in daemon.client.list().runs} == set(chaos.accepted.values())
    for run_id in chaos.accepted.values():
        check_run(daemon, run_id)
    assert {daemon.client.get(run_id).outcome for run_id in chaos.accepted.values()} >= {"completed", "cancelled"}
    health = daemon.client.health()
    assert (health.cpus_free, health.queued, health.running) == (health.cpus_total, 0, 0)
    assert "Traceback" not in daemon.log()


def test_a_little_chaos(make_daemon) -> None:
    check_chaos(make_daemon(grace_s=1), runs=12, seed=1)


@pytest.mark.fault
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [2, 3])
def test_two_hundred_runs_in_chaos(make_daemon, seed: int) -> None:
    check_chaos(make_daemon(grace_s=1), runs=fault_runs(200), seed=seed)
