"""Fault 1: the daemon dies at any moment; its runs do not notice, and the next daemon takes every one of them up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from gym_gui.cli.progress import LINE_S
from gym_gui.testing import _CURVE_WRITER, RunningDaemon, curve_config, install_scripted_worker, processes_of
from mosaic_wire.lifecycle import LifecycleKind
from mosaic_wire.testing import wait_until

ENDLESS = {"timesteps": 1_000_000, "steps_per_second": 200}


def starts_per_attempt(daemon: RunningDaemon, run_id: str) -> dict[int, int]:
    """How often each attempt of a run was really started, by the worker's own account."""
    counts: dict[int, int] = {}
    for event in daemon.lifecycle(run_id):
        if event.event is LifecycleKind.RUN_STARTED:
            counts[event.attempt] = counts.get(event.attempt, 0) + 1
    return counts


def checkpoints_in(daemon: RunningDaemon, run_id: str) -> set[Path]:
    return set(daemon.home.run_folder(run_id).checkpoints.glob("step-*"))


def check_that_a_crash_disturbs_nobody(daemon: RunningDaemon, *, runs: int, kills: int) -> None:
    going = [daemon.submit(**ENDLESS, checkpoint_every=40).run_id for _ in range(runs)]
    pids = {run_id: daemon.wait_for(run_id, "EXEC").pid for run_id in going}
    for kill in range(1, kills + 1):
        daemon.kill()
        before = {run_id: checkpoints_in(daemon, run_id) for run_id in going}
        # No run pauses: each gets on without a daemon.
        assert wait_until(lambda b=before: all(checkpoints_in(daemon, r) > b[r] for r in going), timeout_s=60)
        daemon.start()
        listed = {run.run_id: run for run in daemon.client.list().runs}
        assert {run_id: listed[run_id].pid for run_id in going} == pids
        assert {listed[run_id].status for run_id in going} == {"EXEC"}
        for run_id in going:
            kinds = daemon.event_kinds(run_id)
            assert (kinds.count("dispatched"), kinds.count("reattached")) == (1, kill)
    # Each still does what it is asked to, and ends as it should.
    for run_id in going:
        daemon.client.cancel(run_id)
    for run_id in going:
        run = daemon.wait_for(run_id)
        assert (run.outcome, run.attempt) == ("cancelled", 1)
        assert starts_per_attempt(daemon, run_id) == {1: 1}
        assert processes_of(run_id) == []


def test_a_killed_daemon_is_missed_by_no_run_and_the_next_one_takes_them_up(daemon: RunningDaemon) -> None:
    check_that_a_crash_disturbs_nobody(daemon, runs=3, kills=2)


@pytest.mark.fault
@pytest.mark.timeout(600)
def test_twenty_runs_outlive_five_kills_of_the_daemon(daemon: RunningDaemon) -> None:
    check_that_a_crash_disturbs_nobody(daemon, runs=20, kills=5)


def test_runs_that_end_while_no_daemon_looks_are_finished_from_their_files(daemon: RunningDaemon) -> None:
    expected = {
        "completes": daemon.submit(timesteps=60, steps_per_second=40),
        "raises": daemon.submit(timesteps=10_000, steps_per_second=40, fail_at_step=60),
        "is killed": daemon.submit(timesteps=10_000, steps_per_second=40, kill_at_step=60),
        "is stopped by a signal": daemon.submit(**ENDLESS),
    }
    pids = {what: daemon.wait_for(run.run_id, "EXEC").pid for what, run in expected.items()}
    daemon.kill()
    os.kill(pids["is stopped by a signal"], signal.SIGTERM)
    assert wait_until(lambda: not any(processes_of(run.run_id) for run in expected.values()), timeout_s=60)
    gone_at = time.time()

    daemon.start()

    ended = {what: daemon.wait_for(run.run_id) for what, run in expected.items()}
    assert {what: run.outcome for what, run in ended.items()} == {
        "completes": "completed",
        "raises": "failed",
        "is killed": "failed",
        "is stopped by a signal": "failed",
    }
    assert ended["completes"].step == 60
    assert ended["completes"].finished_at < gone_at, "its exit.json says when it was"
    assert ended["raises"].finished_at < gone_at
    assert "fail_at_step asked for an error" in ended["raises"].reason
    assert "left no exit.json" in ended["is killed"].reason
    assert "signal that did not come from MOSAIC" in ended["is stopped by a signal"].reason
    for what, run in ended.items():
        assert starts_per_attempt(daemon, run.run_id) == {1: 1}, what
        manifest = daemon.manifest(run.run_id)
        assert manifest.outcome == run.outcome, what
        assert manifest.finalised_by in ("worker", "daemon"), what
    assert daemon.manifest(ended["is killed"].run_id).finalised_by == "daemon"


def test_runs_that_were_queued_are_still_queued_in_their_order(daemon: RunningDaemon) -> None:
    cpus = daemon.client.health().cpus_total
    everything = {"cpus": {"requested": cpus}}
    first = daemon.submit(**ENDLESS, resources=everything)
    daemon.wait_for(first.run_id, "EXEC")
    queued = [daemon.submit(resources=everything).run_id for _ in range(3)]
    urgent = daemon.submit(resources=everything, scheduling={"priority": 5}).run_id

    daemon.restart()

    assert [daemon.client.get(run_id).status for run_id in (*queued, urgent)] == ["INIT"] * 4
    daemon.client.cancel(first.run_id)
    runs = [daemon.wait_for(run_id) for run_id in (urgent, *queued)]
    assert {run.outcome for run in runs} == {"completed"}
    started = [run.started_at for run in runs]
    assert started == sorted(started)


def test_an_orderly_stop_leaves_the_runs_alone_and_no_trace_of_itself(daemon: RunningDaemon) -> None:
    run = daemon.submit(**ENDLESS)
    pid = daemon.wait_for(run.run_id, "EXEC").pid

    daemon.client.shutdown()

    assert daemon.wait_for_exit() == 0
    assert not daemon.home.daemon_record.exists()
    assert pid in processes_of(run.run_id)
    assert "Traceback" not in daemon.log()
    daemon.start()
    assert daemon.client.get(run.run_id).pid == pid


def test_a_run_that_was_cancelled_right_before_an_orderly_stop_ends_with_it(daemon: RunningDaemon) -> None:
    runs = [daemon.submit(**ENDLESS).run_id for _ in range(2)]
    for run_id in runs:
        daemon.wait_for(run_id, "EXEC")
        daemon.client.cancel(run_id)
    daemon.client.shutdown()
    assert daemon.wait_for_exit() == 0
    assert [pid for run_id in runs for pid in processes_of(run_id)] == []
    daemon.start()
    assert [daemon.client.get(run_id).outcome for run_id in runs] == ["cancelled"] * 2


def test_a_cancel_that_was_cut_short_is_finished_by_the_next_daemon(make_daemon) -> None:
    daemon = make_daemon(grace_s=3)
    run = daemon.submit(**ENDLESS, ignore_sigterm=True)
    daemon.wait_for(run.run_id, "EXEC")
    daemon.client.cancel(run.run_id)
    daemon.restart()

    ended = daemon.wait_for(run.run_id)

    assert ended.outcome == "cancelled"
    assert processes_of(run.run_id) == []
    assert daemon.event_kinds(run.run_id).count("cancelled") == 1


CLUMSY = """
import logging, os, pathlib, sys
from gym_gui.config.settings import load_settings
from gym_gui.services.trainer import daemon
from gym_gui.services.trainer.executors.local import LocalExecutor
from mosaic_wire.paths import find_home

class ClumsyExecutor(LocalExecutor):
    async def attach(self, *args, **kwargs):
        if not (find_home().root / "handy").exists():
            raise OSError("it slipped out of my hands")
        return await super().attach(*args, **kwargs)

daemon.LocalExecutor = ClumsyExecutor
logging.basicConfig(level=logging.INFO, stream=sys.stderr)
sys.exit(daemon.run_daemon(find_home(), load_settings()))
"""


def test_a_run_that_cannot_be_taken_up_at_once_is_neither_lost_nor_cancelled_behind_its_back(
    daemon: RunningDaemon,
) -> None:
    kept, unwanted = (daemon.submit(**ENDLESS).run_id for _ in range(2))
    pids = {run_id: daemon.wait_for(run_id, "EXEC").pid for run_id in (kept, unwanted)}
    daemon.kill()
    daemon.script = CLUMSY
    daemon.start()
    assert daemon.wait_for(daemon.submit(timesteps=3).run_id).outcome == "completed"  # the others are served
    # Until its processes have ended, it is not finished.
    assert daemon.client.cancel(unwanted).status == "EXEC"
    assert set(processes_of(unwanted)) == {pids[unwanted]}
    (daemon.home.root / "handy").touch()
    assert daemon.wait_for(unwanted).outcome == "cancelled"
    assert processes_of(unwanted) == []
    before = daemon.client.get(kept).step
    assert daemon.wait_for_run(kept, lambda run: run.step > before).pid == pids[kept]


def test_commands_that_follow_a_run_wait_for_the_next_daemon_and_continue(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    source = _CURVE_WRITER.replace("    step += 10\n", "    step += 10\n    print('line', step, flush=True)\n")
    install_scripted_worker(daemon.home, "curves", source)
    run_id = daemon.client.submit(curve_config(endless=True, pause_s=0.05)).run.run_id
    daemon.wait_for_run(run_id, lambda run: run.step > 20)
    commands = {
        "logs": ["logs", "-f", run_id, "--stream", "stdout"],
        "watch": ["watch", run_id],
        "metrics": ["metrics", "-f", run_id, "charts/SPS"],
    }
    out, said = ({name: tmp_path / f"{name}.{end}" for name in commands} for end in ("out", "err"))
    with ExitStack() as stack:
        for name, text in commands.items():
            streams = {
                "stdout": stack.enter_context(out[name].open("wb")),
                "stderr": stack.enter_context(said[name].open("wb")),
            }
            process = subprocess.Popen([sys.executable, "-m", "gym_gui", *text], env=daemon.variables, **streams)
            stack.callback(process.wait)
            stack.callback(process.kill)
        assert wait_until(lambda: all(file.stat().st_size > 60 for file in out.values()), timeout_s=60)
        daemon.kill()
        assert wait_until(lambda: all("trainer daemon" in file.read_text() for file in said.values()))
        before = {name: file.read_text() for name, file in out.items()}
        time.sleep(LINE_S + 0.5)
        assert out["watch"].read_text() == before["watch"]  # nothing is reported again that is not new
        daemon.start()
        assert wait_until(
            lambda: all(len(file.read_text()) > len(before[name]) for name, file in out.items()), timeout_s=60
        )
        assert wait_until(lambda: all("the daemon answers again" in file.read_text() for file in said.values()))
    lines = [line for line in out["logs"].read_text().splitlines() if line.startswith("line ")][:-1]
    assert lines == [f"line {step}" for step in range(10, 10 * len(lines) + 1, 10)]
    steps = [int(line.split(",")[1]) for line in out["metrics"].read_text().splitlines()[1:-1]]
    assert steps == list(range(10, 10 * len(steps) + 1, 10))
    assert all(said[name].read_text().count("waiting for it") == 1 for name in ("logs", "metrics"))
    assert not [file for file in said.values() if "did not answer within" in file.read_text()]
