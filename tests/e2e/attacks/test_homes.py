"""A home that another user could change is not used, odd paths work, and a home that vanishes ends its daemon."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from gym_gui.services.trainer.catalog import find_sources
from gym_gui.testing import RunningDaemon, processes_of
from mosaic_wire.errors import WireError
from mosaic_wire.paths import Home
from mosaic_wire.testing import wait_until

QUICK = {"heartbeat_s": 0.2, "grace_s": 2, "min_free_disk_mb": 0}
NOBODY = 65534
Serve = Callable[[Path | str], RunningDaemon]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    with ExitStack() as stack:

        def start(folder: Path | str) -> RunningDaemon:
            daemon = RunningDaemon(Home(tmp_path / folder), tmp_path / "config", settings=QUICK)
            return stack.enter_context(daemon)

        yield start


# ---------------------------------------------------------------------- another user


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_home_whose_root_is_another_users_is_refused(make_daemon, home: Home) -> None:
    daemon = make_daemon(start=False)
    home.create()
    os.chown(home.root, NOBODY, NOBODY)
    refused = daemon.attempt()
    assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 1)
    assert f"{home.root} belongs to another user (uid {NOBODY})" in refused.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("runtime", ["ours", "another user's", "none"])
def test_a_folder_that_another_user_made_for_our_socket_keeps_no_daemon_from_starting(
    monkeypatch: pytest.MonkeyPatch, serve: Serve, runtime: str
) -> None:
    with tempfile.TemporaryDirectory(prefix="m", dir="/tmp") as short:  # the path of a socket has a limit
        temporary, own = Path(short) / "t", Path(short) / "x"
        (temporary / f"mosaic-{os.getuid()}").mkdir(parents=True)
        own.mkdir(mode=0o700)
        os.chown(temporary / f"mosaic-{os.getuid()}", NOBODY, NOBODY)
        os.chown(own, *((NOBODY, NOBODY) if runtime == "another user's" else (0, 0)))
        monkeypatch.setenv("TMPDIR", str(temporary))
        monkeypatch.setattr(tempfile, "tempdir", None)
        monkeypatch.setenv("HOME", short)
        monkeypatch.setenv("XDG_RUNTIME_DIR", "" if runtime == "none" else str(own))
        daemon = serve("long" * 30)
        assert daemon.wait_for(daemon.submit(timesteps=3).run_id).outcome == "completed"
        assert daemon.home.socket.is_relative_to(own if runtime == "ours" else Path(short) / ".cache")
        daemon.close()


def test_a_home_that_others_may_write_to_is_closed_to_them(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.root.mkdir()
    home.root.chmod(0o777)
    home.create()
    assert home.root.stat().st_mode & 0o777 == 0o755


def plant(workers: Path) -> Path:
    file = workers / "evil" / "worker.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"name": "evil", "argv": ["/bin/sh", "-c", "echo as the victim"]}))
    return file


@pytest.mark.parametrize("part", ["file", "folder", "workers"])
def test_a_worker_file_that_others_may_write_is_never_run(tmp_path: Path, part: str) -> None:
    home = Home(tmp_path / "home")
    home.create()
    file = plant(home.workers)
    (source,) = [source for source in find_sources(home, sys.executable) if source.name == "evil"]
    assert source.argv
    open_one = {"file": file, "folder": file.parent, "workers": home.workers}[part]
    open_one.chmod(0o777)
    (source,) = [source for source in find_sources(home, sys.executable) if source.name == "evil"]
    assert not source.argv
    assert f"other users may write to {open_one}" in source.problem
    if os.getuid() == 0:
        open_one.chmod(0o755)
        os.chown(open_one, NOBODY, NOBODY)
        (source,) = [source for source in find_sources(home, sys.executable) if source.name == "evil"]
        assert f"(uid {NOBODY} owns it)" in source.problem


# ---------------------------------------------------------------------- odd paths


@pytest.mark.parametrize("name", ["100%41 a#b?c ü", "x" * 90 + "%2F"])
def test_a_home_with_an_odd_name_serves_as_any_other(serve: Serve, name: str) -> None:
    daemon = serve(name)
    run = daemon.wait_for(daemon.submit(timesteps=5).run_id)
    assert (run.outcome, Path(run.run_dir).is_dir()) == ("completed", True)


def test_a_home_that_is_not_utf_8_is_refused_in_one_sentence(make_daemon, tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    with pytest.raises(WireError, match="is not UTF-8"):
        Home(folder).create()
    refused = make_daemon(start=False).attempt("--home", str(folder))
    assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 1)
    assert r"\xff is not UTF-8; rename the folder" in refused.stderr
    assert not folder.exists()


# ---------------------------------------------------------------------- homes that go away


def wait_for_the_end(daemon: RunningDaemon) -> None:
    assert daemon.wait_for_exit() == 1
    daemon._process = None


def test_a_daemon_whose_home_was_removed_ends(serve: Serve) -> None:
    daemon = serve("home")
    assert daemon.client.health().pid == daemon.pid  # it has begun to serve
    shutil.rmtree(daemon.home.root)
    wait_for_the_end(daemon)
    assert not daemon.home.root.exists()


def test_a_daemon_whose_home_was_moved_ends_after_its_last_run_and_harms_no_new_one(
    serve: Serve, tmp_path: Path
) -> None:
    before = serve("home")
    run_id = before.submit(timesteps=10**6, steps_per_second=20).run_id
    before.wait_for_run(run_id, lambda run: run.step > 1)
    before._disconnect()
    (tmp_path / "home").rename(tmp_path / "moved")
    log = tmp_path / "moved/logs/daemon.log"
    assert wait_until(lambda: "was moved, removed or replaced while this daemon served it" in log.read_text())
    after = serve("home")  # another home in its place
    new = after.wait_for(after.submit(timesteps=5).run_id)
    for pid in processes_of(run_id):
        os.kill(pid, signal.SIGKILL)
    wait_for_the_end(before)
    assert [run.run_id for run in after.client.list().runs] == [new.run_id]
    assert after.wait_for(after.submit(timesteps=5).run_id).outcome == "completed"
    again: Any = serve("moved")
    assert again.wait_for(run_id).outcome == "failed"
