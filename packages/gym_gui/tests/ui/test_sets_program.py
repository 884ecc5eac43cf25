"""Requirement sets: the worker's program is run for real; jobs report their progress and can be cancelled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from gym_gui.ui.management.sets_table import SetsProblem, SetsProgram, can_be_installed, can_be_removed
from gym_gui.ui.workers.requirement_sets import InstallProgress, SetsJob
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb


def job_of(tmp_path: Path, source: str) -> SetsJob:
    script = tmp_path / "installer.py"
    script.write_text(textwrap.dedent(source))
    return SetsJob([sys.executable, str(script)], os.environ)


def test_progress_and_result(tmp_path: Path) -> None:
    job = job_of(
        tmp_path,
        """
        import json
        for done in range(3):
            print(json.dumps({"event": "progress", "set": "atari", "phase": "fetching", "message": f"wheel {done}",
                              "done": done, "total": 3}), flush=True)
        print("a word of pip")
        print(json.dumps({"event": "result", "ready": True, "sets": [{"set": "atari", "ready": True}]}))
        """,
    )
    reported: list[InstallProgress] = []
    result = job.run(reported.append)
    assert [(progress.message, progress.done, progress.total) for progress in reported] == [
        ("wheel 0", 0, 3),
        ("wheel 1", 1, 3),
        ("wheel 2", 2, 3),
    ]
    assert result.succeeded
    assert not result.was_cancelled


def test_a_failure_is_reported_in_the_programs_words(tmp_path: Path) -> None:
    reported = job_of(
        tmp_path,
        """
        import json, sys
        print(json.dumps({"event": "result", "ready": False, "sets": [{"set": "x", "message": "no network"}]}))
        sys.exit(1)
        """,
    )
    assert reported.run(lambda _: None).message == "no network"
    silent = job_of(tmp_path, "raise SystemExit('the disk is full')")
    assert silent.run(lambda _: None).message == "the disk is full"
    nothing = job_of(tmp_path, "raise SystemExit(3)")
    assert nothing.run(lambda _: None).message == "It exited with code 3."


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    result = SetsJob([str(tmp_path / "gone")], os.environ).run(lambda _: None)
    assert not result.succeeded
    assert "cannot be started" in result.message


def test_cancel_ends_the_process(tmp_path: Path) -> None:
    job = job_of(
        tmp_path,
        """
        import json, time
        print(json.dumps({"event": "progress", "set": "a", "phase": "fetching", "message": "begun"}), flush=True)
        time.sleep(600)
        """,
    )
    begun = threading.Event()
    results = []
    thread = threading.Thread(target=lambda: results.append(job.run(lambda _: begun.set())))
    thread.start()
    assert begun.wait(30)
    job.cancel()
    thread.join(30)
    assert results[0].was_cancelled
    assert job.run(lambda _: None).was_cancelled  # nothing is started any more


def test_the_list_of_the_real_program(tmp_path: Path) -> None:
    described = subprocess.run(
        [sys.executable, "-m", "cleanrl_worker.cli", "--describe"], capture_output=True, text=True, check=True
    )
    # As the daemon's catalog has it: with the way to start it.
    spec = {**json.loads(described.stdout), "argv": [sys.executable, "-m", "cleanrl_worker.cli"]}
    workers = [pb.Worker(name="broken", spec_json="{"), pb.Worker(name="cleanrl", spec_json=json.dumps(spec))]
    home = Home(tmp_path / "home")
    program = SetsProgram.of(workers, home)
    sets = {entry.name: entry for entry in program.list_sets()}
    assert {"atari", "minigrid", "video", "base"} <= set(sets)
    assert not can_be_removed(sets["base"])
    missing = next(entry for entry in sets.values() if entry.state == "not installed")
    assert can_be_installed(missing)
    assert not can_be_removed(missing)
    assert missing.expected_mb > 0
    result = program.remove([missing.name]).run(lambda _: None)
    assert result.succeeded
    assert result.freed_bytes == 0


def test_without_a_worker_that_has_sets(tmp_path: Path) -> None:
    with pytest.raises(SetsProblem, match="CleanRL"):
        SetsProgram.of([pb.Worker(name="broken", problem="gone")], Home(tmp_path))
