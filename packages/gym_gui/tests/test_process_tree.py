"""Identities, marks and trees, with real processes that do what workers should not."""

from __future__ import annotations

import os
import platform
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from gym_gui.services.trainer.process_tree import (
    ProcessIdentity,
    elapsed_s,
    marked_processes,
    measure,
    process_state,
    read_process_table,
    read_stat,
    send_signal,
    tree_of,
)
from mosaic_wire import env
from mosaic_wire.testing import wait_until

Start = Callable[..., "subprocess.Popen[str]"]
SLEEP = "import time; time.sleep(60)"


@pytest.fixture
def mark() -> str:
    return f"test.1.{secrets.token_hex(4)}"


@pytest.fixture
def start(mark: str) -> Iterator[Start]:
    """Start Python code in a session of its own, with the mark; at the end everybody who has the mark is killed."""
    started: list[subprocess.Popen[str]] = []

    def run(code: str, *, new_session: bool = True) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", code],
            env={"PATH": os.defpath, env.MOSAIC_RUN_MARK: mark},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=new_session,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        identity = ProcessIdentity.of(process.pid) if process.returncode is None else None
        for member in tree_of(identity, mark):
            send_signal(member, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def identity_of(process: subprocess.Popen[str]) -> ProcessIdentity:
    identity = ProcessIdentity.of(process.pid)
    assert identity is not None
    return identity


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_an_identity_is_alive_until_the_process_ends_and_a_zombie_has_exited(start: Start) -> None:
    process = start(SLEEP)
    identity = identity_of(process)
    assert identity.is_alive()
    process.kill()
    assert wait_until(lambda: process_state(process.pid) == "Z")
    assert identity.stat() is not None, "the zombie is still in the table"
    assert not identity.is_alive()
    process.wait()
    assert process_state(process.pid) is None
    assert not identity.is_alive()


def test_another_process_with_the_same_pid_is_not_the_same(start: Start) -> None:
    identity = identity_of(start(SLEEP))
    assert not replace(identity, start_ticks=identity.start_ticks - 1).is_alive()
    assert not replace(identity, boot_id="another boot").is_alive()


def test_a_stale_identity_is_never_signaled(start: Start) -> None:
    process = start(SLEEP)
    identity = identity_of(process)
    stale = replace(identity, start_ticks=identity.start_ticks - 1)
    assert not send_signal(stale, signal.SIGKILL)
    assert not send_signal(stale, signal.SIGKILL, whole_group=True)
    assert identity.is_alive()
    assert send_signal(identity, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not send_signal(identity, signal.SIGKILL)


def test_a_dead_main_thread_with_living_siblings_has_not_exited(start: Start) -> None:
    process = start(
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "print('ready', flush=True)\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    identity = identity_of(process)
    assert first_line(process) == "ready"
    assert wait_until(lambda: process_state(process.pid) == "Z")
    assert identity.is_alive()
    assert send_signal(identity, signal.SIGKILL)
    assert wait_until(lambda: not identity.is_alive())


def test_a_command_name_with_parentheses_does_not_confuse_the_parser(tmp_path: Path) -> None:
    program = tmp_path / "a) Z 1 (b"
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([program, "60"], start_new_session=True)
    try:
        assert wait_until(lambda: b") Z 1 (" in Path(f"/proc/{process.pid}/stat").read_bytes())
        stat = read_stat(process.pid)
        assert stat is not None
        assert (stat.ppid, stat.session, stat.threads) == (os.getpid(), process.pid, 1)
        assert not stat.has_exited
    finally:
        process.kill()
        process.wait()


def test_every_descendant_belongs_to_the_tree_also_after_setsid(start: Start, mark: str) -> None:
    process = start(
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    os.execve('/bin/sleep', ['sleep', '60'], {})\n"  # without the mark: found as a child
        "if os.fork() == 0:\n"
        "    os.execve('/bin/sleep', ['sleep', '60'], {})\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    identity = identity_of(process)
    first_line(process)
    tree = tree_of(identity, mark)
    assert len(tree) == 3
    assert tree[0] == identity, "the leader comes first"


def test_a_double_forked_daemon_is_found_by_its_mark(start: Start, mark: str) -> None:
    process = start(
        "import os, sys, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        print(os.getpid(), flush=True)\n"
        "        time.sleep(60)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    identity = identity_of(process)
    daemon = int(first_line(process))
    process.wait()
    assert [member.pid for member in tree_of(identity, mark)] == [daemon]
    assert [member.pid for member in marked_processes(mark)] == [daemon]


def test_the_session_counts_while_the_leader_is_a_zombie_and_not_after(start: Start, mark: str) -> None:
    process = start(
        "import os\nif os.fork() == 0:\n    os.execve('/bin/sleep', ['sleep', '60'], {})\nprint('ready', flush=True)\n"
    )
    identity = identity_of(process)
    first_line(process)
    assert wait_until(lambda: process_state(process.pid) == "Z")
    assert wait_until(lambda: not marked_processes(mark))  # the child has shed it by exec
    [orphan] = tree_of(identity, mark)
    process.wait()
    # The leader's number is free now: a session of that number could be a stranger's.
    assert tree_of(identity, mark) == []
    assert tree_of(identity, mark, members=[orphan]) == [orphan], "whom we saw before is still ours"
    stale = replace(orphan, start_ticks=orphan.start_ticks - 1)
    assert tree_of(identity, mark, members=[stale]) == []
    assert send_signal(orphan, signal.SIGKILL)
    assert wait_until(lambda: not orphan.is_alive())


@pytest.mark.skipif(
    tuple(int(word) for word in platform.release().split("-")[0].split(".")[:2]) < (6, 9),
    reason="older kernels cannot signal a group through a pidfd",
)
def test_one_call_reaches_the_whole_group_also_of_a_zombie(start: Start, mark: str) -> None:
    process = start("import os, time\nif os.fork() == 0:\n    print(os.getpid(), flush=True); time.sleep(60)\n")
    identity, child = identity_of(process), int(first_line(process))
    assert wait_until(lambda: process_state(process.pid) == "Z")
    assert send_signal(identity, signal.SIGSTOP, whole_group=True)
    assert wait_until(lambda: process_state(child) == "T")
    assert send_signal(identity, signal.SIGKILL, whole_group=True)
    assert wait_until(lambda: tree_of(identity, mark) == [])


def test_a_leader_in_a_foreign_session_does_not_drag_that_session_in(start: Start, mark: str) -> None:
    process = start(SLEEP, new_session=False)
    tree = tree_of(identity_of(process), mark)
    assert [member.pid for member in tree] == [process.pid]


def test_a_mark_is_compared_whole(start: Start, mark: str) -> None:
    start(SLEEP)
    assert wait_until(lambda: marked_processes(mark))
    assert marked_processes(mark[:-1]) == []


def test_the_daemon_itself_is_never_part_of_a_tree() -> None:
    me = ProcessIdentity.of(os.getpid())
    assert me is not None
    assert me not in tree_of(me, "")


def test_elapsed_time_follows_the_boot_clock(start: Start) -> None:
    before = time.monotonic()
    identity = identity_of(start(SLEEP))
    tick_s = 1 / os.sysconf("SC_CLK_TCK")  # the kernel rounds the start down to one
    assert 0 <= elapsed_s(identity) <= time.monotonic() - before + tick_s
    assert wait_until(lambda: elapsed_s(identity) > 0.05)
    assert elapsed_s(replace(identity, start_ticks=identity.start_ticks + 10**9)) == 0


def test_usage_counts_threads_and_shares_shared_pages(start: Start, mark: str) -> None:
    process = start(
        "import os, threading, time\n"
        "ballast = bytearray(os.urandom(1)) * (64 << 20)\n"
        "for _ in range(2):\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(60)\n"
        "for _ in range(3): threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "print('ready', flush=True)\n"
    )
    first_line(process)
    table = read_process_table()
    tree = tree_of(identity_of(process), mark, table=table)
    cheap, fair = measure(tree, table), measure(tree, table, shared_once=True)
    assert (cheap.processes, cheap.threads) == (3, 6)
    assert cheap.memory_bytes > 3 * (64 << 20)
    assert (64 << 20) < fair.memory_bytes < 2 * (64 << 20)
