"""The local executor against workers that behave badly, with and without control groups."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from gym_gui.services.trainer.cgroups import AttemptGroup, Cgroups
from gym_gui.services.trainer.errors import SpawnFailed
from gym_gui.services.trainer.executors.contract import Attempt, Worker
from gym_gui.services.trainer.executors.local import LocalExecutor
from gym_gui.services.trainer.launch import Launch
from gym_gui.services.trainer.process_tree import (
    ProcessIdentity,
    marked_processes,
    process_state,
    read_process_table,
    send_signal,
    tree_of,
)
from mosaic_wire import env
from mosaic_wire.ids import new_run_id
from mosaic_wire.testing import wait_until

SLEEP = "import time; print('ready', flush=True); time.sleep(120)"
Scenario = Callable[[], Awaitable[None]]


@pytest.fixture(params=["control groups", "version 2 groups", "polling"])
def executor(request: pytest.FixtureRequest) -> Iterator[LocalExecutor]:
    """Every way there is; on many machines the first two are the same, on some neither is possible."""
    cgroups = None
    if request.param != "polling":
        cgroups = Cgroups.detect(allow_v1=request.param == "control groups")
        if cgroups is None:
            pytest.skip("no control group can be made here (needs root or a delegated group)")
    executor = LocalExecutor(use_cgroups=cgroups is not None, cgroups=cgroups)
    yield executor
    executor.close()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launch]]:
    """Make launches of Python code; whatever a failed test leaves running is killed at the end."""
    marks: list[str] = []

    def make(code: str, *, memory_mb: int | None = None, max_processes: int = 4096, **variables: str) -> Launch:
        run_id = new_run_id()
        mark = f"{run_id}.1.{secrets.token_hex(4)}"
        marks.append(mark)
        return Launch(
            run_id=run_id,
            attempt=1,
            argv=(sys.executable, "-S", "-c", code),
            env={"PATH": os.defpath, env.MOSAIC_RUN_MARK: mark, "HERE": str(tmp_path), **variables},
            cwd=tmp_path,
            stdout=tmp_path / "logs" / f"{run_id}.out",
            stderr=tmp_path / "logs" / f"{run_id}.err",
            mark=mark,
            memory_mb=memory_mb,
            max_processes=max_processes,
        )

    yield make
    for mark in marks:
        for member in marked_processes(mark):
            send_signal(member, signal.SIGKILL)
        for folder in groups_of(mark):  # after a failure; otherwise there is none
            with suppress(OSError):
                folder.rmdir()


def attempt(mark: str, identity: ProcessIdentity | None = None) -> Attempt:
    """What the registry knows of an attempt; without an identity only that it was claimed."""
    return Attempt("", mark, Path("/nowhere"), identity=identity, memory_mb=512, max_processes=100)


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def zombies() -> list[int]:
    return [entry.pid for entry in read_process_table().values() if entry.ppid == os.getpid() and entry.state == "Z"]


async def printed(launch: Launch, lines: int = 1) -> list[str]:
    """Wait for a worker's first lines."""
    for _ in range(3000):
        if launch.stdout.exists() and len(found := launch.stdout.read_text().splitlines()) >= lines:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError(f"{launch.stdout} has not {lines} lines; stderr: {launch.stderr.read_text()}")


def nothing_left(worker: Worker) -> bool:
    return tree_of(worker.identity, worker.mark) == []


# ------------------------------------------------------------------ starting


def test_a_worker_runs_in_its_own_session_and_writes_to_files_only_we_can_read(
    executor: LocalExecutor, launch: Callable[..., Launch]
) -> None:
    code = (
        "import os, sys\n"
        "print(os.getpid() == os.getsid(0) == os.getpgid(0), os.getcwd(), repr(sys.stdin.read()), os.environ['X'])\n"
        "print('oops', file=sys.stderr)\n"
        "sys.exit(7)\n"
    )

    async def scenario() -> None:
        one = launch(code, X="ä")
        one.stdout.parent.mkdir()
        one.stdout.write_text("the attempt before\n")
        worker = await executor.submit(one)
        assert await worker.wait() == 7
        assert await worker.wait() == 7, "it may be asked again"
        assert one.stdout.read_text() == f"the attempt before\nTrue {one.cwd} '' ä\n"
        assert one.stderr.read_text() == "oops\n"
        assert stat.S_IMODE(one.stderr.stat().st_mode) == 0o600
        assert await worker.stop_tree(0)
        worker.close()

    asyncio.run(scenario())


def test_a_worker_gets_exactly_its_environment_and_default_signals(
    executor: LocalExecutor, launch: Callable[..., Launch]
) -> None:
    async def scenario() -> None:
        one = replace(
            launch(""),
            argv=("/bin/sh", "-c", "tr '\\0' '\\n' < /proc/$$/environ; grep ^SigIgn: /proc/$$/status"),
            env={"B": "2", "A": "1", "EMPTY": ""},
        )
        worker = await executor.submit(one)
        assert await worker.wait() == 0
        *environment, ignored = one.stdout.read_text().splitlines()
        assert sorted(environment) == ["A=1", "B=2", "EMPTY="]
        # 32 and 33 are the C library's own: make leaves them ignored in what it starts, and that must not change.
        assert int(ignored.split()[1], 16) & ~(0b11 << 31) == 0
        worker.close()

    asyncio.run(scenario())


def test_a_worker_inherits_no_descriptors(executor: LocalExecutor, launch: Callable[..., Launch]) -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)

    async def scenario() -> None:
        one = launch("import os; print(sorted(int(fd) for fd in os.listdir('/proc/self/fd')))")
        worker = await executor.submit(one)
        assert await worker.wait() == 0
        assert one.stdout.read_text() == "[0, 1, 2, 3]\n"  # 3 is the listing itself
        worker.close()

    asyncio.run(scenario())
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"argv": ("/nowhere/python", "x")}, "'/nowhere/python' was not found.*installed"),
        ({"argv": ("no-such-program-at-all",)}, "'no-such-program-at-all' was not found"),
        ({"argv": ()}, "argv is empty"),
        ({"argv": ("/bin/sleep", "nul\0byte")}, "null byte"),
        ({"argv": ("/bin/sleep", "x" * 3_000_000)}, "too long"),
        ({"cwd": Path("/nowhere/at/all")}, "folder /nowhere/at/all does not exist"),
        ({"stdout": Path("/proc/nowhere/out")}, "output file .* cannot be opened"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_started_says_why(
    executor: LocalExecutor, launch: Callable[..., Launch], change: dict[str, object], reported: str
) -> None:
    async def scenario() -> None:
        before = descriptors()
        with pytest.raises(SpawnFailed, match=reported):
            await executor.submit(replace(launch(SLEEP), **change))  # type: ignore[arg-type]
        assert not descriptors() - before

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("mode", "reported"), [(0o755, "not a program this machine can run"), (0o644, "may not be executed")]
)
def test_a_file_that_is_no_program_says_why(
    executor: LocalExecutor, launch: Callable[..., Launch], tmp_path: Path, mode: int, reported: str
) -> None:
    program = tmp_path / "garbage"
    program.write_bytes(b"\x7fELFgarbage")
    program.chmod(mode)
    with pytest.raises(SpawnFailed, match=reported):
        asyncio.run(executor.submit(replace(launch(SLEEP), argv=(str(program),))))


def test_a_launch_does_not_print_its_secrets(launch: Callable[..., Launch]) -> None:
    assert "hunter2" not in repr(launch(SLEEP, PASSWORD="hunter2"))


def test_a_cancelled_submit_leaves_nothing_running(executor: LocalExecutor, launch: Callable[..., Launch]) -> None:
    one = launch(SLEEP)

    async def scenario() -> None:
        before = descriptors()
        submitting = asyncio.create_task(executor.submit(one))
        await asyncio.sleep(0)
        submitting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submitting
        # A second submit queues behind the first in the spawner thread.
        worker = await executor.submit(launch("pass"))
        await worker.wait()
        worker.close()
        while descriptors() - before or zombies():
            await asyncio.sleep(0.01)

    asyncio.run(scenario())
    assert wait_until(lambda: marked_processes(one.mark) == [])


# ------------------------------------------------------------------ stopping


def test_a_worker_that_obeys_is_asked_and_not_killed(executor: LocalExecutor, launch: Callable[..., Launch]) -> None:
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(1)\n"
    )

    async def scenario() -> None:
        one = launch(code)
        worker = await executor.submit(one)
        await printed(one)
        assert await worker.stop_tree(60)
        assert await worker.wait() == 130
        assert nothing_left(worker)
        worker.close()

    asyncio.run(scenario())


MISBEHAVING = {
    "ignores SIGTERM": (
        "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(120)\n"
    ),
    "has a child that left the session": (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid(); print('ready', flush=True); time.sleep(120)\n"
        "time.sleep(120)\n"
    ),
    "double-forked a daemon that ignores SIGTERM and ended": (
        "import os, signal, sys, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    signal.signal(15, signal.SIG_IGN)\n"
        "    if os.fork() == 0:\n"
        "        print('ready', flush=True)\n"
        "        time.sleep(120)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    ),
    "left an orphan in its session that shed the mark": (
        "import os\nprint('ready', flush=True)\nif os.fork() == 0:\n    os.execve('/bin/sleep', ['sleep', '120'], {})\n"
    ),
    "is stopped": "import os, signal; print('ready', flush=True); os.kill(os.getpid(), signal.SIGSTOP)",
    "is stopped, child too": (
        "import os, signal\nos.fork()\nprint('ready', flush=True)\nos.kill(os.getpid(), signal.SIGSTOP)\n"
    ),
    "starts a new child whenever one dies": (
        "import os, signal, time\n"
        "signal.signal(15, signal.SIG_IGN)\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    if os.fork() == 0:\n"
        "        os.setsid(); time.sleep(120)\n"
        "    os.wait()\n"
    ),
}


@pytest.mark.parametrize("kind", MISBEHAVING)
def test_the_whole_tree_goes_when_a_worker(executor: LocalExecutor, launch: Callable[..., Launch], kind: str) -> None:
    async def scenario() -> None:
        before = descriptors()
        one = launch(MISBEHAVING[kind])
        worker = await executor.submit(one)
        await printed(one)
        assert await worker.stop_tree(0.3)
        assert nothing_left(worker)
        await worker.wait()
        worker.close()
        assert zombies() == []
        assert not descriptors() - before

    asyncio.run(scenario())


def test_a_stopped_worker_gets_its_chance_to_obey(executor: LocalExecutor, launch: Callable[..., Launch]) -> None:
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))\n"
        "print('ready', flush=True)\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n"
        "while True: signal.pause()\n"
    )

    async def scenario() -> None:
        one = launch(code)
        worker = await executor.submit(one)
        await printed(one)
        while not worker.is_stopped():
            await asyncio.sleep(0.01)
        assert await worker.stop_tree(60)
        assert await worker.wait() == 130
        worker.close()

    asyncio.run(scenario())


def test_a_daemon_that_shed_everything_is_found_in_its_control_group(
    executor: LocalExecutor, launch: Callable[..., Launch]
) -> None:
    if executor._cgroups is None:
        pytest.skip("this executor polls: what the kernel does for a control group does not apply")
    code = (
        "import os\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        print(os.getpid(), flush=True)\n"
        "        os.execve('/bin/sleep', ['sleep', '120'], {})\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )

    async def scenario() -> None:
        one = launch(code)
        worker = await executor.submit(one)
        [pid] = await printed(one)
        escaped = ProcessIdentity.of(int(pid))
        assert escaped is not None
        assert await worker.wait() == 0
        # The next daemon knows nothing but the mark.
        again = await executor.attach(attempt(one.mark, worker.identity))
        assert again is not None
        assert await again.wait() is None
        assert escaped.is_alive()
        assert await again.stop_tree(0.2)
        assert not escaped.is_alive()
        again.close()
        worker.close()
        assert marked_processes(one.mark) == []

    asyncio.run(scenario())


FORK_BOMB = (
    "import os, signal, time\n"
    "signal.signal(15, signal.SIG_IGN)\n"
    "print('ready', flush=True)\n"
    "for generation in range(GENERATIONS):\n"  # 2**GENERATIONS processes at most: this machine shall survive
    "    try: os.fork()\n"
    "    except OSError: time.sleep(0.01)\n"
    "deadline = time.monotonic() + 120\n"
    "while time.monotonic() < deadline:\n"
    "    try:\n"
    "        if os.fork() == 0: time.sleep(0.01); os._exit(0)\n"  # and keeps forking: no list of it is complete
    "        os.wait()\n"
    "    except OSError: time.sleep(0.01)\n"
)


def test_a_fork_bomb_is_limited_and_ended(executor: LocalExecutor, launch: Callable[..., Launch]) -> None:
    async def scenario() -> None:
        neighbor_launch = launch(SLEEP)
        neighbor = await executor.submit(neighbor_launch)
        one = launch(FORK_BOMB.replace("GENERATIONS", "6"), max_processes=40)
        bomb = await executor.submit(one)
        while (hit := bomb.limit_hit()) is None:
            await asyncio.sleep(0.02)
        assert "40" in hit
        assert "processes and threads" in hit
        if bomb.is_limited:
            assert bomb.usage().threads <= 40
        assert await bomb.stop_tree(0.2)
        assert nothing_left(bomb)
        assert bomb.limit_hit() == hit, "once hit, it stays hit"
        bomb.close()
        assert neighbor.identity.is_alive(), "the others are unhurt"
        assert neighbor.limit_hit() is None
        assert await neighbor.stop_tree(0)
        neighbor.close()

    asyncio.run(scenario())


def test_threads_count_towards_the_limit(executor: LocalExecutor, launch: Callable[..., Launch]) -> None:
    code = (
        "import threading, time\n"
        "threading.stack_size(65536)\n"
        "for _ in range(500):\n"
        "    try: threading.Thread(target=time.sleep, args=(120,), daemon=True).start()\n"
        "    except RuntimeError: break\n"
        "print('ready', flush=True)\n"
        "time.sleep(120)\n"
    )

    async def scenario() -> None:
        one = launch(code, max_processes=100)
        worker = await executor.submit(one)
        await printed(one)
        hit = worker.limit_hit()
        assert hit is not None
        assert "100" in hit
        assert await worker.stop_tree(0)
        worker.close()

    asyncio.run(scenario())


def test_a_worker_that_eats_memory_is_noticed(executor: LocalExecutor, launch: Callable[..., Launch]) -> None:
    code = (
        "import time\n"
        "eaten = []\n"
        "for _ in range(30):\n"
        "    eaten.append(bytearray(b'x') * (8 << 20)); time.sleep(0.01)\n"
        "time.sleep(120)\n"
    )

    async def scenario() -> None:
        worker = await executor.submit(launch(code, memory_mb=96))
        while (hit := worker.limit_hit()) is None:
            await asyncio.sleep(0.02)
        assert "memory" in hit
        assert "96 MB" in hit
        if worker.is_limited:
            assert await worker.wait() == -signal.SIGKILL
        assert await worker.stop_tree(0)
        worker.close()
        assert worker.limit_hit() == hit, "also when its group is gone"

    asyncio.run(scenario())


def test_usage_measures_the_tree(executor: LocalExecutor, launch: Callable[..., Launch]) -> None:
    code = (
        "import os, threading, time\n"
        "ballast = bytearray(b'x') * (48 << 20)\n"
        "threading.Thread(target=time.sleep, args=(120,), daemon=True).start()\n"
        "child = os.fork()\n"
        "if child: print('ready', flush=True)\n"
        "time.sleep(120)\n"
    )

    async def scenario() -> None:
        one = launch(code)
        worker = await executor.submit(one)
        await printed(one)
        usage = worker.usage()
        assert (usage.processes, usage.threads) == (2, 3)
        assert usage.memory_bytes > 48 << 20
        assert worker.elapsed_s() > 0
        assert worker.limit_hit() is None
        assert executor._cgroups is not None or not worker.is_limited
        assert await worker.stop_tree(0)
        worker.close()

    asyncio.run(scenario())


# ------------------------------------------------------------------ pausing


def test_a_tree_is_stopped_and_continues(executor: LocalExecutor, launch: Callable[..., Launch]) -> None:
    code = "import os, time\nchild = os.fork()\nif child: print(child, flush=True)\ntime.sleep(120)\n"

    async def scenario() -> None:
        one = launch(code)
        worker = await executor.submit(one)
        [child] = await printed(one)
        assert not worker.is_stopped()
        assert worker.signal_tree(signal.SIGSTOP) == 2
        while not worker.is_stopped() or process_state(int(child)) != "T":
            await asyncio.sleep(0.01)
        assert worker.signal_tree(signal.SIGCONT) == 2
        while worker.is_stopped() or process_state(int(child)) == "T":
            await asyncio.sleep(0.01)
        assert await worker.stop_tree(0)
        worker.close()

    asyncio.run(scenario())


# ------------------------------------------------------------------ re-attaching

_OTHER_DAEMON = """
import asyncio, os, sys
from pathlib import Path
from gym_gui.services.trainer.cgroups import Cgroups
from gym_gui.services.trainer.launch import Launch
from gym_gui.services.trainer.executors.local import LocalExecutor

async def main() -> None:
    mark, folder, way, code = sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]
    cgroups = Cgroups.detect(allow_v1=way == "any") if way != "none" else None
    executor = LocalExecutor(use_cgroups=cgroups is not None, cgroups=cgroups)
    worker = await executor.submit(Launch(
        "run", 1, (sys.executable, "-S", "-c", code),
        {"MOSAIC_RUN_MARK": mark, "HERE": str(folder)}, folder, folder / "out", folder / "err", mark, 512, 100,
    ))
    print(worker.identity.pid, worker.identity.start_ticks, worker.identity.boot_id, flush=True)
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


def start_in_another_daemon(mark: str, folder: Path, code: str, like: LocalExecutor) -> ProcessIdentity:
    """Start a worker from a daemon that is then killed."""
    way = "none" if like._cgroups is None else "v2" if "unified" in like._cgroups._bases else "any"
    argv = [sys.executable, "-c", _OTHER_DAEMON, mark, str(folder), way, code]
    ended = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    pid, start_ticks, boot = ended.stdout.split()
    return ProcessIdentity(int(pid), int(start_ticks), boot)


def test_a_worker_outlives_its_daemon_and_the_next_one_takes_it_over(executor: LocalExecutor, tmp_path: Path) -> None:
    mark = f"test.1.{secrets.token_hex(4)}"
    identity = start_in_another_daemon(mark, tmp_path, SLEEP, executor)

    async def scenario() -> None:
        assert identity.is_alive()
        unknown = await executor.attach(attempt(mark))
        assert unknown is not None
        assert unknown.identity == identity, "a claim without a stored process is found by its mark"
        unknown.close()
        worker = await executor.attach(attempt(mark, identity))
        assert worker is not None
        assert executor._cgroups is not None or not worker.is_limited
        assert worker.limit_hit() is None
        assert worker.usage().processes == 1
        waiting = asyncio.create_task(worker.wait())
        assert await worker.stop_tree(0.2)
        assert await waiting is None, "not our child: its exit code is unknown"
        worker.close()
        assert marked_processes(mark) == []

    asyncio.run(scenario())


def test_the_end_of_another_processes_child_is_noticed(executor: LocalExecutor, tmp_path: Path) -> None:
    mark = f"test.1.{secrets.token_hex(4)}"
    code = "import os, time\nwhile not os.path.exists(os.environ['HERE'] + '/go'): time.sleep(0.01)\n"
    identity = start_in_another_daemon(mark, tmp_path, code, executor)

    async def scenario() -> None:
        worker = await executor.attach(attempt(mark, identity))
        assert worker is not None
        waiting = asyncio.create_task(worker.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        (tmp_path / "go").touch()
        assert await waiting is None
        assert not identity.is_alive(), "also before it is reaped"
        assert await worker.stop_tree(0)
        worker.close()

    asyncio.run(scenario())


def test_what_has_exited_cannot_be_attached(executor: LocalExecutor, launch: Callable[..., Launch]) -> None:
    async def scenario() -> None:
        one = launch("pass")
        worker = await executor.submit(one)
        await worker.wait()
        assert await worker.stop_tree(0)
        worker.close()
        for identity in (worker.identity, None):
            assert await executor.attach(attempt(one.mark, identity)) is None
        assert marked_processes(one.mark) == []

    asyncio.run(scenario())


def test_a_stranger_with_the_same_pid_is_left_alone(executor: LocalExecutor, launch: Callable[..., Launch]) -> None:
    async def scenario() -> None:
        one = launch(SLEEP)
        worker = await executor.submit(one)
        await printed(one)
        earlier = replace(worker.identity, start_ticks=worker.identity.start_ticks - 100)
        assert await executor.attach(attempt("another.mark", earlier)) is None
        assert worker.identity.is_alive()
        assert await worker.stop_tree(0)
        worker.close()

    asyncio.run(scenario())


# ------------------------------------------------------------------ beside gRPC, and many of them


@pytest.mark.parametrize("spawns", [60, pytest.param(200, marks=pytest.mark.slow)])
def test_many_spawns_beside_living_grpc_threads(
    executor: LocalExecutor, launch: Callable[..., Launch], spawns: int
) -> None:
    server = grpc.server(ThreadPoolExecutor(4))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    grpc.channel_ready_future(channel).result(timeout=30)
    stop = threading.Event()

    def chatter() -> None:
        call = channel.unary_unary("/nobody/home")
        while not stop.wait(0.005):
            with pytest.raises(grpc.RpcError):
                call(b"", timeout=30)

    talking = threading.Thread(target=chatter)
    talking.start()

    async def scenario() -> None:
        before = descriptors()
        one = replace(launch(""), argv=("/bin/sh", "-c", "exit 3"))
        for number in range(spawns):
            worker = await executor.submit(replace(one, mark=f"{one.mark}-{number}"))
            assert await worker.wait() == 3
            assert await worker.stop_tree(0)
            worker.close()
        assert zombies() == []
        # gRPC opens and closes sockets of its own; a leak with each would show.
        assert len(descriptors() - before) < 20

    try:
        asyncio.run(scenario())
    finally:
        stop.set()
        talking.join()
        channel.close()
        server.stop(0).wait()


def test_closing_a_handle_leaves_a_living_worker_alone(executor: LocalExecutor, launch: Callable[..., Launch]) -> None:
    async def scenario() -> None:
        one = launch(SLEEP)
        worker = await executor.submit(one)
        await printed(one)
        waiting = asyncio.create_task(worker.wait())
        await asyncio.sleep(0)
        worker.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert worker.identity.is_alive()
        again = await executor.attach(attempt(one.mark, worker.identity))
        assert again is not None
        assert await again.stop_tree(0)
        assert await again.wait() in (-signal.SIGTERM, -signal.SIGKILL)
        again.close()
        assert zombies() == []

    asyncio.run(scenario())


# ------------------------------------------------------------------ control groups themselves


def groups_of(mark: str) -> list[Path]:
    found = []
    # Not with a glob: that breaks off when a group of a run elsewhere on the machine vanishes under it.
    for folder, names, _ in os.walk("/sys/fs/cgroup"):
        if os.path.basename(folder) == "mosaic":
            found += [Path(folder, name) for name in names if name == mark]
            names.clear()
    return found


def test_a_group_exists_from_the_first_instant_to_the_end(
    executor: LocalExecutor, launch: Callable[..., Launch]
) -> None:
    if executor._cgroups is None:
        pytest.skip("this executor polls: what the kernel does for a control group does not apply")

    async def scenario() -> None:
        mine = Path("/proc/self/cgroup").read_text()
        one = launch("print(open('/proc/self/cgroup').read())", memory_mb=256)
        worker = await executor.submit(one)
        assert await worker.wait() == 0
        assert f"/mosaic/{one.mark}\n" in one.stdout.read_text()
        assert groups_of(one.mark) != []
        assert await worker.stop_tree(0)
        worker.close()
        assert groups_of(one.mark) == []
        for task in Path("/proc/self/task").iterdir():
            assert (task / "cgroup").read_text() == mine, "no thread of the daemon stays inside"

    asyncio.run(scenario())


def test_version_2_limits_and_events_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    for name, text in {
        "memory.max": "max\n",
        "memory.swap.max": "max\n",
        "pids.max": "max\n",
        "cpu.weight": "100\n",
        "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n",
        "pids.events": "max 0\n",
        "memory.stat": "anon 1000\nfile 5000\nshmem 24\n",
        "pids.current": "3\n",
    }.items():
        (tmp_path / name).write_text(text)
    group = AttemptGroup({"unified": tmp_path}, {})
    assert (group.memory_limit_mb, group.process_limit, group.limit_hit()) == (None, None, None)
    group.set_limits(memory_mb=100, max_processes=7, cpus=2)
    assert (group.memory_limit_mb, group.process_limit) == (100, 7)
    assert (tmp_path / "memory.swap.max").read_text() == "0"
    assert (tmp_path / "cpu.weight").read_text() == "200"
    assert (group.memory_bytes(), group.task_count()) == (1024, 3)
    (tmp_path / "pids.events").write_text("max 2\n")
    assert "limit of 7 processes" in (group.limit_hit() or "")
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 0\noom 0\noom_kill 1\n")
    assert "machine ran out of memory" in (group.limit_hit() or "")
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 4\noom 1\noom_kill 1\n")
    assert "memory limit of 100 MB" in (group.limit_hit() or "")


@pytest.mark.parametrize("mark", ["../escape", "a/b", "", ".hidden", "x" * 200, "nul\0"])
def test_a_mark_cannot_lead_out_of_the_tree(mark: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="control group"):
        Cgroups({"unified": tmp_path}, {}).create(mark)
