"""TensorBoard as a process: it answers for linked runs, more can be added, and it never outlives its owner."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from gym_gui.services.analytics import guardian, web_servers
from gym_gui.services.analytics.web_servers import (
    LinkFolder,
    ServerProblem,
    TensorBoardServer,
    find_interpreter,
    has_event_files,
    log_for,
)
from gym_gui.testing import RunningDaemon
from mosaic_wire.event_files import ScalarEventWriter
from mosaic_wire.paths import Home
from mosaic_wire.testing import wait_until

WAIT_S = 60


def write_events(folder: Path) -> Path:
    writer = ScalarEventWriter(folder)
    for step in range(10):
        writer.add_scalars({"charts/episodic_return": float(step)}, step)
    writer.close()
    return folder


def tags_of(address: str) -> dict[str, dict[str, object]]:
    with urllib.request.urlopen(f"{address}data/plugin/scalars/tags", timeout=10) as answer:
        return json.load(answer)


def has_exited(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def processes_below(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TensorBoardServer]:
    folder = tmp_path_factory.mktemp("tensorboard")
    home = Home(folder / "home")
    links = LinkFolder.make(home)
    links.add("ppo CartPole-v1 seed 1", write_events(folder / "one"))
    server = TensorBoardServer.start(links, find_interpreter(), log_for(home))
    yield server
    pids = processes_below(server._process.pid)
    assert pids  # TensorBoard itself, and its data server
    server.stop()
    assert wait_until(lambda: all(map(has_exited, pids)), timeout_s=WAIT_S)
    assert not links.root.exists()
    assert server.log.exists()  # its log stays


def test_it_answers_on_loopback_under_names_people_know(server: TensorBoardServer) -> None:
    assert server.address.startswith("http://127.0.0.1:")
    assert wait_until(lambda: tags_of(server.address), timeout_s=WAIT_S)
    found = tags_of(server.address)
    assert list(found) == ["ppo CartPole-v1 seed 1"]
    assert list(found["ppo CartPole-v1 seed 1"]) == ["charts/episodic_return"]


def test_runs_are_added_while_it_runs(server: TensorBoardServer, tmp_path: Path) -> None:
    name = server.links.add("ppo CartPole-v1 seed 1", write_events(tmp_path / "other"))
    assert name == "ppo CartPole-v1 seed 1 (2)"  # never over another run
    assert server.links.add("whatever", tmp_path / "other") == name
    assert wait_until(lambda: name in tags_of(server.address), timeout_s=WAIT_S)


def test_names_cannot_leave_the_folder(tmp_path: Path) -> None:
    links = LinkFolder.make(Home(tmp_path / "home"))
    name = links.add("../../etc/passwd", tmp_path / "x")
    assert (links.root / name).parent == links.root
    assert (links.root / name).is_symlink()
    assert links.add(" .. ", tmp_path / "y") == "run"


def test_folders_of_a_killed_owner_are_swept(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left = home.cache / "tensorboard" / f"{gone.pid}-0"
    left.mkdir(parents=True)
    (left / "run").symlink_to(tmp_path)
    mine = LinkFolder.make(home)
    assert not left.exists()
    assert tmp_path.exists()  # what a link names is not touched
    assert LinkFolder.make(home).root != mine.root


def test_a_missing_package_is_reported_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(web_servers, "has_tensorboard", lambda python: python == "/has/python")
    with pytest.raises(ServerProblem, match=r"-m pip install tensorboard"):
        find_interpreter(["/no/python"])
    assert find_interpreter(["/no/python", "/has/python"]) == "/has/python"


def test_another_interpreter_is_really_asked(tmp_path: Path) -> None:
    assert web_servers.has_tensorboard(sys.executable)
    assert not web_servers.has_tensorboard(str(tmp_path / "python"))


def test_a_server_that_ends_at_once_leaves_its_output(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho 'no room on this device' >&2\nexit 3\n")
    program.chmod(0o755)
    links = LinkFolder.make(Home(tmp_path / "home"))
    with pytest.raises(ServerProblem, match="no room on this device"):
        TensorBoardServer.start(links, str(program), log_for(Home(tmp_path / "home")))


def test_an_owner_that_left_is_not_waited_for(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    links = LinkFolder.make(Home(tmp_path / "home"))
    with pytest.raises(ServerProblem, match="not needed"):
        TensorBoardServer.start(links, str(program), log_for(Home(tmp_path / "home")), is_given_up=lambda: True)


def test_only_the_last_logs_are_kept(tmp_path: Path) -> None:
    log = log_for(Home(tmp_path))
    log.parent.mkdir(parents=True)
    for number in range(9):
        (log.parent / f"tensorboard-20200101-00000{number}-1.log").touch()
    web_servers._drop_old_logs(log)
    assert [path.name[-7:] for path in sorted(log.parent.iterdir())] == [f"{number}-1.log" for number in range(5, 9)]


def test_event_files_are_found_at_any_depth(tmp_path: Path) -> None:
    assert not has_event_files(tmp_path / "nowhere")
    (tmp_path / "a").mkdir()
    assert not has_event_files(tmp_path)
    write_events(tmp_path / "a" / "b")
    assert has_event_files(tmp_path)


# ---------------------------------------------------------------------- the guardian

# The program ignores SIGTERM and starts another one, as stubborn as itself.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""  # noqa: E501


def start_guarded(source: str) -> tuple[subprocess.Popen[str], list[int]]:
    process = subprocess.Popen(
        [sys.executable, "-I", guardian.__file__, sys.executable, "-c", source],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    grandchild = int(process.stdout.readline())
    return process, [*processes_below(process.pid), grandchild]


def close(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.stdout.close()
    process.wait(WAIT_S)


def test_when_the_owner_lets_go_everything_ends() -> None:
    process, pids = start_guarded(STUBBORN)
    close(process)
    assert all(map(has_exited, pids))


def test_a_killed_guardian_takes_the_program_along() -> None:
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    process, pids = start_guarded(program)
    process.kill()
    close(process)
    assert wait_until(lambda: all(map(has_exited, pids)), timeout_s=WAIT_S)


def test_the_exit_code_of_the_program_is_passed_on() -> None:
    run = [sys.executable, "-I", guardian.__file__]
    assert subprocess.run([*run, sys.executable, "-c", "raise SystemExit(7)"], input=b"", check=False).returncode in (
        7,
        143,  # the end of the input may be seen first
    )
    missing = subprocess.run([*run, "/no/such/program"], input=b"", capture_output=True, check=False)
    assert missing.returncode == 127
    assert b"cannot be started" in missing.stderr


# ---------------------------------------------------------------------- mosaic tensorboard


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    folder = tmp_path_factory.mktemp("daemon")
    with RunningDaemon(Home(folder / "home"), folder / "config", settings={"min_free_disk_mb": 0}) as daemon:
        yield daemon


def command(daemon: RunningDaemon, *message: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "gym_gui", "tensorboard", *message],
        env=daemon.variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_command_serves_and_leaves_nothing_when_it_is_killed(
    daemon: RunningDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A package in the working folder, which may be another user's, is not imported in place of the installed one.
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard" / "__init__.py").write_text("raise SystemExit('planted')")
    monkeypatch.chdir(tmp_path)
    run = daemon.submit(timesteps=20)
    run = daemon.wait_for(run.run_id, "TERM")
    refused = command(daemon, run.run_id)
    _, message = refused.communicate(timeout=WAIT_S)
    assert refused.returncode == 1
    assert "none of these runs has written event files yet" in message

    write_events(Path(run.run_dir) / "tensorboard")
    served = command(daemon, run.run_id)
    assert served.stdout is not None
    assert served.stderr is not None
    address = served.stdout.readline().strip()
    assert wait_until(lambda: tags_of(address), timeout_s=WAIT_S)
    pids = processes_below(served.pid)
    assert len(pids) >= 2
    os.kill(served.pid, signal.SIGKILL)
    served.wait()
    served.stdout.close()
    served.stderr.close()
    assert wait_until(lambda: all(map(has_exited, pids)), timeout_s=WAIT_S)


def test_the_command_asks_which_runs(daemon: RunningDaemon) -> None:
    process = command(daemon)
    _, message = process.communicate(timeout=WAIT_S)
    assert process.returncode == 2
    assert "which runs?" in message
