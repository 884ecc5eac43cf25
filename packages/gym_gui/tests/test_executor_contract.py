"""What every executor does alike: the local one, and Slurm on a real cluster of three nodes."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import signal
import stat
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from gym_gui.config.settings import SlurmSettings
from gym_gui.services.trainer.errors import EngineUnavailable, SpawnFailed
from gym_gui.services.trainer.executors.contract import Attempt, Executor, Worker
from gym_gui.services.trainer.executors.handover import launch_file
from gym_gui.services.trainer.executors.local import LocalExecutor
from gym_gui.services.trainer.executors.slurm import SlurmExecutor
from gym_gui.services.trainer.launch import Launch
from gym_gui.services.trainer.process_tree import marked_processes, process_state, send_signal
from gym_gui.testing_slurm import SlurmCluster, why_no_slurm
from mosaic_wire import env
from mosaic_wire.ids import new_run_id
from mosaic_wire.testing import wait_until

READY = "print('ready', flush=True)\n"
SLEEP = f"import time\n{READY}time.sleep(120)\n"
MakeLaunch = Callable[..., Launch]


@pytest.fixture(scope="module", autouse=True)
def shared_cluster() -> Iterator[SlurmCluster | None]:
    """One for the module, started before its first test: the guard against leaks would end it otherwise."""
    if why_no_slurm():
        yield None
    else:
        with SlurmCluster() as cluster:
            yield cluster


@pytest.fixture
def cluster(shared_cluster: SlurmCluster | None) -> SlurmCluster:
    if shared_cluster is None:
        pytest.skip(why_no_slurm())
    return shared_cluster


@pytest.fixture
def slurm(cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmExecutor]:
    monkeypatch.setenv("PATH", cluster.environment["PATH"])
    executor = SlurmExecutor("cluster", SlurmSettings(poll_s=0.3), tmp_path / "config")
    yield executor
    executor.close()
    assert wait_until(lambda: cluster.jobs() == [])


@pytest.fixture(params=["local", "slurm"])
async def executor(request: pytest.FixtureRequest) -> AsyncIterator[Executor]:
    chosen: Executor = request.getfixturevalue("slurm") if request.param == "slurm" else LocalExecutor()
    yield chosen
    chosen.close()


slow_on_slurm = pytest.mark.parametrize(
    "executor", ["local", pytest.param("slurm", marks=pytest.mark.slow)], indirect=True
)
"""For variants: `test_the_whole_tree_ends_with_a_worker_that_is_stopped` and others run on Slurm in every CI"""


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[MakeLaunch]:
    """Make launches of Python code; whatever a failed test leaves running is killed at the end."""
    marks: list[str] = []

    def make(code: str, **changes: object) -> Launch:
        run_id = new_run_id()
        mark = f"{run_id}.1.{secrets.token_hex(4)}"
        marks.append(mark)
        logs = tmp_path / "logs" / run_id
        logs.mkdir(parents=True)
        one = Launch(
            run_id=run_id,
            attempt=1,
            argv=(sys.executable, "-S", "-c", code),
            env={"PATH": "/usr/bin:/bin", env.MOSAIC_RUN_MARK: mark, env.CUDA_VISIBLE_DEVICES: "", "WORD": "hunter2"},
            cwd=tmp_path,
            stdout=logs / "stdout.log",
            stderr=logs / "stderr.log",
            mark=mark,
            grace_s=0.5,
        )
        return replace(one, **changes)  # type: ignore[arg-type]

    yield make
    for mark in marks:
        for member in marked_processes(mark):
            send_signal(member, signal.SIGKILL)


def attempt_of(launch: Launch, worker: Worker | None = None) -> Attempt:
    """What the registry has stored: of a run that was only claimed, nothing but its mark."""
    attempt = Attempt(launch.run_id, launch.mark, launch.stdout, memory_mb=launch.memory_mb)
    if worker is None:
        return attempt
    return replace(attempt, job_id=worker.job_id, identity=None if worker.job_id else worker.identity)


async def printed(launch: Launch, lines: int = 1) -> list[str]:
    """Wait for a worker's first lines."""
    for _ in range(3000):
        if launch.stdout.exists() and len(found := launch.stdout.read_text().splitlines()) >= lines:
            return found
        await asyncio.sleep(0.01)
    logs = {log.name: log.read_text() for log in launch.stdout.parent.iterdir()}
    raise AssertionError(f"{launch.stdout} has not {lines} lines: {logs}")


async def gone(launch: Launch) -> bool:
    return await asyncio.to_thread(wait_until, lambda: marked_processes(launch.mark) == [])


async def test_a_worker_gets_its_environment_and_writes_to_files_only_we_can_read(
    executor: Executor, launch: MakeLaunch
) -> None:
    one = launch("import os, sys\nprint(os.getcwd(), os.environ['WORD'])\nprint('oops', file=sys.stderr)\nsys.exit(7)")
    one.stdout.write_text("the attempt before\n")
    worker = await executor.submit(one)
    await worker.started()
    assert await worker.wait() == 7
    assert one.stdout.read_text() == f"the attempt before\n{one.cwd} hunter2\n"
    assert one.stderr.read_text() == "oops\n"
    assert stat.S_IMODE(one.stderr.stat().st_mode) == 0o600
    assert await worker.stop_tree(0)
    assert (worker.engine_ending, worker.limit_hit()) == (None, None)
    worker.close()


@slow_on_slurm
async def test_a_worker_that_was_killed_says_by_what(executor: Executor, launch: MakeLaunch) -> None:
    worker = await executor.submit(launch("import os; os.kill(os.getpid(), 11)"))
    assert await worker.wait() == -signal.SIGSEGV
    assert await worker.stop_tree(0)
    worker.close()


@slow_on_slurm
async def test_a_run_without_a_gpu_sees_none(executor: Executor, launch: MakeLaunch) -> None:
    one = launch("import os; print(repr(os.environ['CUDA_VISIBLE_DEVICES']))")
    worker = await executor.submit(one)
    await worker.wait()
    assert one.stdout.read_text() == "''\n"
    assert await worker.stop_tree(0)
    worker.close()


ESCAPING = (
    "import os, signal, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    f"        {READY}"
    "        time.sleep(120)\n"
    "    os._exit(0)\n"
)


async def test_the_whole_tree_ends_with_a_worker_that_is_stopped(executor: Executor, launch: MakeLaunch) -> None:
    one = launch(f"{ESCAPING}time.sleep(120)\n")
    worker = await executor.submit(one)
    await printed(one)
    assert len(marked_processes(one.mark)) > 1
    assert await worker.stop_tree(0.5)
    assert await gone(one)
    await worker.wait()
    assert worker.engine_ending is None, "we ended it"
    worker.close()


@slow_on_slurm
async def test_what_a_worker_leaves_behind_ends_as_well(executor: Executor, launch: MakeLaunch) -> None:
    one = launch(f"{ESCAPING}os.wait()\ntime.sleep(0.5)\n")
    worker = await executor.submit(one)
    await printed(one)
    assert await worker.wait() == 0
    assert await worker.stop_tree(0.5)
    assert await gone(one)
    worker.close()


async def test_a_tree_is_paused_and_continues(executor: Executor, launch: MakeLaunch) -> None:
    one = launch(f"import os, time\nos.fork()\n{READY}time.sleep(120)\n")
    worker = await executor.submit(one)
    await printed(one, 2)

    def states() -> set[str | None]:
        return {process_state(member.pid) for member in marked_processes(one.mark)}

    await worker.pause_tree()
    assert await asyncio.to_thread(wait_until, lambda: states() == {"T"})
    await worker.continue_tree()
    assert await asyncio.to_thread(wait_until, lambda: states() == {"S"})
    assert await worker.stop_tree(0.5)
    worker.close()


@slow_on_slurm
async def test_a_memory_limit_is_enforced(executor: Executor, launch: MakeLaunch) -> None:
    code = f"import time\nhoard = b'x' * (300 << 20)\n{READY}time.sleep(120)\n"
    worker = await executor.submit(launch(code, memory_mb=100))
    waiting = asyncio.create_task(worker.wait())
    while not (waiting.done() or worker.limit_hit()):
        await asyncio.sleep(0.1)
    assert await worker.stop_tree(0.5)
    assert "memory" in (worker.limit_hit() or "")
    waiting.cancel()
    worker.close()


async def test_the_next_daemon_attaches_by_what_is_stored_or_by_the_mark_alone(
    executor: Executor, launch: MakeLaunch
) -> None:
    one = launch(SLEEP)
    first = await executor.submit(one)
    await printed(one)
    first.close()  # its daemon is gone
    for stored in (attempt_of(one, first), attempt_of(one)):
        again = await executor.attach(stored)
        assert again is not None
        await again.started()
        if stored.identity is None:
            assert not again.is_stopped()
        again.close()
    last = await executor.attach(attempt_of(one, first))
    assert last is not None
    assert await last.stop_tree(0.5)
    assert await gone(one)
    last.close()


async def test_a_claim_whose_worker_was_never_started_is_known_as_such(executor: Executor, launch: MakeLaunch) -> None:
    one = launch(SLEEP)
    if isinstance(executor, SlurmExecutor):  # the daemon died after the claim, before sbatch
        from gym_gui.services.trainer.executors.handover import offer

        offer(launch_file(executor._config_home, one.mark), one)
    assert await executor.attach(attempt_of(one)) is None


@slow_on_slurm
async def test_what_cannot_be_started_says_why(executor: Executor, launch: MakeLaunch) -> None:
    one = launch("", argv=("/nowhere/python",))
    if isinstance(executor, SlurmExecutor):  # known only on the node
        worker = await executor.submit(one)
        assert await worker.wait() is None
        assert "'/nowhere/python' was not found" in (worker.limit_hit() or "")
        worker.close()
    else:
        with pytest.raises(SpawnFailed, match="'/nowhere/python' was not found"):
            await executor.submit(one)


# ------------------------------------------------------------------ Slurm's own


async def test_a_job_that_slurm_refuses_says_why(slurm: SlurmExecutor, launch: MakeLaunch) -> None:
    one = launch(SLEEP)
    slurm.settings = replace(slurm.settings, partition="nowhere")
    with pytest.raises(SpawnFailed, match=r"cluster does not accept it: .*invalid partition"):
        await slurm.submit(one)
    assert not launch_file(slurm._config_home, one.mark).exists()
    assert slurm.trouble() == "", "others may be accepted"


@pytest.mark.slow
async def test_a_gpu_run_sees_the_gpu_that_slurm_chose(slurm: SlurmExecutor, launch: MakeLaunch) -> None:
    one = launch("import os; print(repr(os.environ['CUDA_VISIBLE_DEVICES']), 'SLURM_JOB_ID' in os.environ)", gpus=1)
    worker = await slurm.submit(one)
    assert await worker.wait() == 0
    assert one.stdout.read_text() == "'0' True\n"
    worker.close()


async def test_secrets_are_in_no_listing_of_slurm_and_their_file_is_taken_away(
    slurm: SlurmExecutor, cluster: SlurmCluster, launch: MakeLaunch
) -> None:
    holder = await slurm.submit(launch(SLEEP, cpus=12.0 / 3, gpus=1))
    others = [await slurm.submit(launch(SLEEP, cpus=4.0, gpus=1)) for _ in range(2)]
    one = launch(SLEEP, cpus=4.0)
    waiting = await slurm.submit(one)  # all CPUs of the cluster are taken
    for each in (holder, *others):
        await each.started()
    file = launch_file(slurm._config_home, one.mark)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "hunter2" in file.read_text()
    assert "hunter2" not in cluster.run("scontrol", "show", "job", waiting.job_id)
    await asyncio.to_thread(wait_until, lambda: "Resources" in waiting.waits_for or "Priority" in waiting.waits_for)
    assert waiting.waits_for in ("cluster: Pending: Resources", "cluster: Pending: Priority")
    assert await holder.stop_tree(0.5)
    await printed(one)
    assert not file.exists()
    assert "hunter2" not in cluster.run("scontrol", "show", "job", waiting.job_id)
    unstarted = launch(SLEEP, cpus=4.0, gpus=1)
    never = await slurm.submit(unstarted)
    assert await never.stop_tree(0.5)
    assert not launch_file(slurm._config_home, unstarted.mark).exists(), "nor does it stay behind a cancelled run"
    for each in (waiting, *others):
        assert await each.stop_tree(0.5)
    never.close()
    for each in (holder, waiting, *others):
        each.close()


async def test_a_submission_whose_answer_was_lost_is_not_made_twice(
    slurm: SlurmExecutor, cluster: SlurmCluster, launch: MakeLaunch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    mute = folder / "sbatch"  # submits, and is then cut off
    mute.write_text(f'#!/bin/sh\n{cluster.commands}/sbatch --hold "$@" > /dev/null; echo "timed out" >&2; exit 1\n')
    mute.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{cluster.environment['PATH']}")
    one = launch(SLEEP)
    with pytest.raises(EngineUnavailable, match="timed out"):
        await slurm.submit(one)
    assert "timed out" in slurm.trouble()
    with suppress(RuntimeError):  # it may have been cancelled by now
        for job in cluster.jobs():
            cluster.run("scontrol", "release", job)
    assert await asyncio.to_thread(wait_until, lambda: cluster.jobs() == [])
    assert not one.stdout.exists(), "the job found no launch to start"
    assert await slurm.attach(attempt_of(one)) is None


@pytest.mark.slow
async def test_a_guard_that_is_killed_takes_the_tree_with_it(slurm: SlurmExecutor, launch: MakeLaunch) -> None:
    one = launch(f"{ESCAPING}time.sleep(120)\n")
    worker = await slurm.submit(one)
    await printed(one)
    guard, *_sentinel = [pid for pid in _pids() if one.mark in _command_line(pid)]  # the older of two
    os.kill(guard, signal.SIGKILL)
    assert await gone(one)
    assert await worker.wait() is None
    assert worker.engine_ending is not None
    assert re.search(r"its job \d+ was killed on n\d", worker.engine_ending.reason)
    assert worker.engine_ending.kind == "node_lost", "the run is queued again"
    worker.close()


def _pids() -> list[int]:
    return sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


@pytest.mark.slow
async def test_a_job_cancelled_by_others_says_so(
    slurm: SlurmExecutor, cluster: SlurmCluster, launch: MakeLaunch
) -> None:
    one = launch(SLEEP)
    worker = await slurm.submit(one)
    await printed(one)
    cluster.run("scancel", worker.job_id)
    await worker.wait()
    assert worker.engine_ending is not None
    assert worker.engine_ending.reason == "its job was cancelled in Slurm, not by MOSAIC"
    assert await gone(one)
    worker.close()
