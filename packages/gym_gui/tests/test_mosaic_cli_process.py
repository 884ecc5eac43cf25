"""The `mosaic` command as a process: pipes, Ctrl-C, a terminal, its start-up, and a real daemon with real runs."""

from __future__ import annotations

import json
import os
import pty
import resource
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fcntl import ioctl

import pytest
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import DaemonUnreachable
from gym_gui.services.trainer.local_daemon import running_record, start_daemon
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.testing import wait_until

MOSAIC = [sys.executable, "-m", "gym_gui"]
TIMEOUT_S = 120


def mosaic(*message: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*MOSAIC, *message], capture_output=True, text=True, timeout=TIMEOUT_S, **options)


class Terminal:
    """A command in a pseudo-terminal of its own, and everything it drew."""

    def __init__(self, *message: str, columns: int = 80, rows: int = 24) -> None:
        self._screen, inside = pty.openpty()
        ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process = subprocess.Popen(
            [*MOSAIC, *message],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color"},
        )
        os.close(inside)
        self.drawn = b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._screen, 65536)
            except OSError:  # EIO: the other end is closed
                return
            if not data:
                return
            self.drawn += data

    @property
    def text(self) -> str:
        return self.drawn.decode(errors="replace")

    def press(self, key: bytes) -> None:
        os.write(self._screen, key)

    def close(self) -> int:
        code = self.process.wait(TIMEOUT_S)
        self._thread.join(10)
        os.close(self._screen)
        return code


@pytest.fixture
def daemon(home) -> Iterator[Callable[[], int]]:
    """Starts a real daemon when called, and ends it with the test."""
    yield lambda: start_daemon(home, TIMEOUT_S).pid
    if (record := running_record(home)) is not None:
        os.kill(record.pid, signal.SIGKILL)
        assert wait_until(lambda: not record.is_alive())


# ---------------------------------------------------------------- pipes, terminals, start-up


@pytest.mark.parametrize("number_of_runs", [1, 3000])
def test_a_reader_that_leaves_early_is_no_error(fake_trainer, number_of_runs):
    for _ in range(number_of_runs):
        fake_trainer.add(name="x" * 50)
    with subprocess.Popen([*MOSAIC, "runs", "--all"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        if number_of_runs > 1:
            process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode in (0, 1)  # the shell looks at the reader's


@pytest.mark.usefixtures("fake_trainer")
@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&-"])
def test_closed_streams_are_no_error(closed):
    ended = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", *MOSAIC, "runs"], capture_output=True, timeout=TIMEOUT_S
    )
    assert (ended.returncode, ended.stderr.count(b"\n")) == (0, "2" not in closed), ended.stderr  # "no runs yet; …"


@pytest.mark.usefixtures("home")
def test_a_secret_is_asked_for_on_a_terminal_and_not_shown():
    """With a mistake beside it, so that nothing is queued."""
    terminal = Terminal("train", "llm", "FrozenLake-v1", "Another-v1", "--api-key", "-")
    assert wait_until(lambda: "--api-key: " in terminal.text), terminal.text
    terminal.press(b"canary-key-1\n")
    assert terminal.close() == 2
    assert "one environment at a time" in terminal.text
    assert "canary" not in terminal.text
    assert "nothing was entered" not in terminal.text


@pytest.mark.parametrize("command", ["submit", "sweep"])
def test_a_file_without_an_end_is_not_read_whole(command):
    limit = (1 << 30, 1 << 30)
    ended = mosaic(command, "/dev/zero", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, limit))
    assert ended.returncode == 2, ended.stderr
    assert "larger than 1048576 bytes" in ended.stderr


def _imported_by(*message: str) -> set[str]:
    command = [sys.executable, "-X", "importtime", "-m", "gym_gui", *message]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    return {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}


@pytest.mark.parametrize("message", [["--help"], ["runs", "--help"], ["version"]])
def test_help_imports_nothing_heavy(message):
    imported = _imported_by(*message)
    assert "click" in imported
    assert not imported & {"grpc", "google.protobuf", "pydantic", "rich", "psutil", "asyncio", "keyring", "ulid"}


def test_a_listing_does_not_load_what_it_does_not_use(fake_trainer):
    imported = _imported_by("runs")
    assert "grpc" in imported
    assert not imported & {"pydantic", "rich", "rich.live", "keyring", "sqlite3"}


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_listing_fits_the_terminal(fake_trainer, columns):
    fake_trainer.add(
        name="a-rather-long-name-of-a-run",
        tags=["baseline", "draft"],
        seed=1,
        sps=12345.0,
        step=1,
        total=3,
        algo="ppo_atari_envpool_xla_jax_scan",
        env_id="BreakoutNoFrameskip-v4",
        episodic_return=-123.45,
        status="TERM",
        outcome="failed",
        reason="more words than a narrow window has room for",
    )
    terminal = Terminal("runs", columns=columns)
    assert terminal.close() == 0
    plain = [line for line in _without_escapes(terminal.text).splitlines() if line.strip()]
    assert all(len(line) <= columns for line in plain), plain
    assert fake_trainer.runs[0].run_id[-8:] in plain[1]


def test_the_live_display_shows_progress_and_ends_with_the_run(fake_trainer):
    proceed = threading.Event()

    def live(run: pb.Run) -> Iterator[pb.Run]:
        yield pb.Run(status="EXEC", step=120_000, sps=2000, episodic_return=187.5, started_at=1000)
        proceed.wait(60)
        yield pb.Run(status="TERM", outcome="completed", step=500_000, finished_at=1250)

    fake_trainer.on_watch = live
    terminal = Terminal("train", "ppo")
    assert wait_until(lambda: "running" in terminal.text, timeout_s=60)
    proceed.set()
    assert terminal.close() == 0
    drawn = _without_escapes(terminal.text)
    for expected in ("ppo CartPole-v1", "120k/500k", "187.5", "2,000", "3:10", "✓ completed", "after 4:10"):
        assert expected in drawn, expected


def test_ctrl_c_detaches_and_says_how_to_come_back(fake_trainer):
    fake_trainer.on_watch = lambda run: iter([pb.Run(status="EXEC", step=1, started_at=1000)])
    terminal = Terminal("train", "ppo")
    assert wait_until(lambda: "running" in terminal.text, timeout_s=60)
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.close() == 130
    short = fake_trainer.runs[0].run_id[-8:]
    assert f"mosaic watch {short}" in terminal.text
    assert f"mosaic cancel {short}" in terminal.text
    assert "Traceback" not in terminal.text
    assert not [
        request for request in fake_trainer.asked if isinstance(request, pb.RunRequest)
    ]  # nothing was cancelled


def test_delete_asks_and_takes_no_for_an_answer(fake_trainer):
    run = fake_trainer.add(size_bytes=3 << 20)
    terminal = Terminal("delete", run.run_id)
    assert wait_until(lambda: "Delete 1 run (3.0 MiB) for good?" in terminal.text, timeout_s=60)
    terminal.press(b"n\n")
    assert terminal.close() == 1
    assert len(fake_trainer.runs) == 1


def _without_escapes(text: str) -> str:
    import re

    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


# ---------------------------------------------------------------- a real daemon


def test_clients_that_start_a_daemon_at_the_same_time_get_one(home, daemon):
    with ThreadPoolExecutor(4) as threads:
        started = list(threads.map(lambda _: mosaic("daemon", "start"), range(4)))
    assert [ended.returncode for ended in started] == [0] * 4
    assert sum("started" in ended.stdout for ended in started) == 1
    pids = {ended.stdout.split("pid ")[1].split(",")[0] for ended in started}
    assert pids == {str(json.loads(mosaic("daemon", "status", "--json").stdout)["pid"])}
    assert mosaic("daemon", "stop").returncode == 0
    assert running_record(home) is None


def test_train_starts_a_daemon_and_follows_a_real_run_to_its_end(home, daemon):
    ended = mosaic("train", "random", "none", "--total-timesteps", "50", "--seeds", "1-2", "--tag", "t", "--notes", "n")
    assert ended.returncode == 0, ended.stderr
    assert "started the trainer daemon (pid " in ended.stderr
    assert ended.stdout.count("✓ completed") == 2
    runs = json.loads(mosaic("runs", "--json", "--tag", "t").stdout)
    assert [(run["status"], run["outcome"], run["step"], run["notes"]) for run in runs] == [
        ("TERM", "completed", 50, "n")
    ] * 2
    assert "run_completed" in mosaic("logs", "last", "--stream", "stdout").stdout
    assert "dispatched" in mosaic("story", runs[0]["run_id"][-6:]).stdout


def test_a_listing_starts_a_daemon_where_none_ever_ran_or_one_died_but_not_one_that_was_stopped(home, daemon):
    for _ in ("the first time", "after it was killed"):
        ended = mosaic("runs")
        assert (ended.returncode, ended.stderr.count("started the trainer daemon (pid ")) == (0, 1), ended.stderr
        record = running_record(home)
        assert record is not None
        assert mosaic("runs").stderr.count("started") == 0
        os.kill(record.pid, signal.SIGKILL)
        assert wait_until(lambda r=record: not r.is_alive())
    daemon()
    assert mosaic("daemon", "stop").returncode == 0
    ended = mosaic("runs")
    assert (ended.returncode, "was stopped; `mosaic daemon start` starts it again" in ended.stderr) == (1, True)
    assert mosaic("--connect", "127.0.0.1:1", "runs").returncode == 1
    assert running_record(home) is None


def test_a_real_run_that_fails_shows_its_traceback_and_how_to_continue_it(home, daemon):
    ended = mosaic(
        "train", "random", "none", "--total-timesteps", "50", "--fail-at-step", "5", "--checkpoint-every", "2"
    )
    assert ended.returncode == 1
    assert "mosaic resume" in ended.stderr
    assert "✗ failed" in ended.stdout
    assert "the end of its stderr:" in ended.stderr
    assert "AskedToFail" in ended.stderr


def test_a_real_run_is_cancelled_exported_deleted_and_imported(home, daemon, tmp_path):
    assert mosaic("daemon", "start", "--listen").returncode == 0
    run_id = mosaic(
        "train", "random", "none", "--total-timesteps", "1000", "--steps-per-second", "1", "-d"
    ).stdout.strip()
    assert mosaic("cancel", run_id, "--wait").returncode == 0
    (run,) = json.loads(mosaic("show", run_id, "--json").stdout)
    assert (run["status"], run["outcome"]) == ("TERM", "cancelled")
    archive = tmp_path / "run.tar.gz"
    for message in (["export", run_id, "-o", str(archive)], ["delete", run_id, "--yes"], ["import", str(archive)]):
        ended = mosaic(*message)
        assert ended.returncode == 0, ended.stderr
    tcp = json.loads(mosaic("daemon", "status", "--json").stdout)["addresses"][1]
    assert tcp.startswith("127.0.0.1:")
    (again,) = json.loads(mosaic("--connect", tcp, "--token-file", str(home.token), "runs", "--json").stdout)
    assert (again["run_id"], again["outcome"]) == (run_id, "cancelled")


def test_following_survives_a_daemon_that_is_killed_and_started_again(home, daemon):
    pid = daemon()
    message = ["train", "random", "none", "--total-timesteps", "60", "--steps-per-second", "10"]
    with subprocess.Popen([*MOSAIC, *message], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any("running" in line for line in process.stdout)
        os.kill(pid, signal.SIGKILL)
        daemon()
        out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    assert "✓ completed" in out


def test_a_stopped_daemon_is_named_and_can_be_ended_by_force(home, daemon):
    pid = daemon()
    with TrainerClient.connect(home, timeout_s=1) as client:
        client.health()
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(DaemonUnreachable, match=f"pid {pid}.* is stopped by a signal"):
            client.health()
    with pytest.raises(DaemonUnreachable, match=f"kill -CONT {pid}"):
        start_daemon(home, 30)
    ended = mosaic("daemon", "stop", "--force", "--timeout", "4")
    assert ended.returncode == 0, ended.stderr
    assert running_record(home) is None
