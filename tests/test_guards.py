"""The guards of conftest.py catch what they promise: each test runs pytest on a small misbehaving test."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from mosaic_wire.testing import wait_until

ROOT = Path(__file__).resolve().parents[1]

LEAKS_A_CHILD = """
import pathlib, subprocess, sys
kept = []

def test_it(tmp_path):
    kept.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))
    pathlib.Path("pid").write_text(str(kept[0].pid))
"""

LEAKS_A_DETACHED_PROCESS = """
import subprocess, sys

SPAWN = '''
import pathlib, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
pathlib.Path("pid").write_text(str(child.pid))
'''

def test_it(home):
    subprocess.run([sys.executable, "-c", SPAWN], check=True)
"""

LEAKS_A_THREAD = """
import threading
over = threading.Event()

def test_it():
    threading.Thread(target=over.wait, name="forgotten").start()

def test_after():
    over.set()
"""

LEAKS_SHARED_MEMORY = """
import os, pathlib

def test_it():
    pathlib.Path("/dev/shm", f"mosaic-guard-{os.getpid()}").write_bytes(b"x")
"""

SEES_A_STRANGERS_SHARED_MEMORY = """
import pathlib
from mosaic_wire.testing import wait_until

def test_it():
    pathlib.Path("begun").touch()
    assert wait_until(lambda: pathlib.Path("made").exists(), timeout_s=60)
"""


def run_pytest(folder: Path, source: str) -> subprocess.CompletedProcess[str]:
    """Run one test module under the repository's conftest and settings, in a process of its own."""
    project = folder / "project"
    project.mkdir()
    settings = (ROOT / "pyproject.toml").read_text()
    (project / "pyproject.toml").write_text(settings.replace('["packages", "workers", "tests"]', '["."]'))
    guards = (ROOT / "conftest.py").read_text()
    for usual, here in (
        ("LEAVE_S = 30.0", "LEAVE_S = 0.5"),
        ("ORPHAN_SEGMENT_S = 60.0", "ORPHAN_SEGMENT_S = 0.5"),
        ('SEGMENT_PATTERN = "mosaic-*"', 'SEGMENT_PATTERN = "mosaic-guard-*"'),  # not those of tests beside this one
    ):
        assert usual in guards
        guards = guards.replace(usual, here)
    (project / "conftest.py").write_text(guards)
    (project / "test_it.py").write_text(source)
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    argv += ["-p", "no:pytest-qt", "-p", "no:hypothesispytest", f"--basetemp={folder / 'inner'}", "test_it.py"]
    return subprocess.run(argv, cwd=project, capture_output=True, text=True, timeout=120, check=False)


def test_a_well_behaved_test_passes(tmp_path):
    done = run_pytest(tmp_path, "def test_it(home):\n    assert not home.root.exists()\n")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("source", [LEAKS_A_CHILD, LEAKS_A_DETACHED_PROCESS], ids=["child", "detached"])
def test_a_leaked_process_fails_the_test_and_is_ended(tmp_path, source):
    done = run_pytest(tmp_path, source)
    assert done.returncode == 1
    assert "the test left behind:\n  process " in done.stdout
    pid = int((tmp_path / "project" / "pid").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("source", "what"),
    [(LEAKS_A_THREAD, "thread forgotten"), (LEAKS_SHARED_MEMORY, "shared memory /dev/shm/mosaic-guard-")],
    ids=["thread", "shared memory"],
)
def test_a_leak_fails_the_test(tmp_path, source, what):
    done = run_pytest(tmp_path, source)
    assert done.returncode == 1
    assert what in done.stdout
    if "/dev/shm" in what:
        assert not list(Path("/dev/shm").glob("mosaic-guard-*"))


@pytest.mark.parametrize("is_mapped", [True, False], ids=["mapped", "open"])
def test_what_a_process_beside_the_test_has_in_memory_is_not_its_leak(tmp_path, is_mapped):
    segment = Path("/dev/shm", f"mosaic-guard-stranger-{os.getpid()}")
    with ThreadPoolExecutor(1) as thread:
        inner = thread.submit(run_pytest, tmp_path, SEES_A_STRANGERS_SHARED_MEMORY)
        project = tmp_path / "project"
        assert wait_until((project / "begun").exists, timeout_s=60)
        segment.write_bytes(b"x" * mmap.PAGESIZE)
        with segment.open("rb") as opened:
            held = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) if is_mapped else opened
            if is_mapped:
                opened.close()
            with held:
                (project / "made").touch()
                done = inner.result(120)
        assert segment.exists()
        segment.unlink()
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("head", "argument", "returncode"),
    [
        ("", "", 1),
        ("@pytest.mark.expects_log('^here: .* low')", "", 0),
        ("@pytest.mark.expects_log('^elsewhere')", "", 1),
        ("", "caplog", 0),
    ],
    ids=["unexpected", "expected", "another one expected", "read by the test"],
)
def test_a_warning_in_the_log_must_be_expected(tmp_path, head, argument, returncode):
    source = f"""
import logging, pytest

{head}
def test_it({argument}):
    logging.getLogger("here").warning("disk is %s", "low")
"""
    done = run_pytest(tmp_path, source)
    assert done.returncode == returncode, done.stdout
    assert ("here: disk is low" in done.stdout) == (returncode == 1)


def test_the_developers_own_home_is_out_of_reach(tmp_path, monkeypatch):
    monkeypatch.setenv("MOSAIC_HOME", "/my/real/home")
    monkeypatch.setenv("WANDB_API_KEY", "mine")
    source = """
import os
from mosaic_wire.paths import find_home

def test_it():
    assert "nobodys-home" in str(find_home().root)
    assert "WANDB_API_KEY" not in os.environ
"""
    assert run_pytest(tmp_path, source).returncode == 0
