"""The node process: what it reads, what it gives its worker, and what is left of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mosaic_wire import env
from mosaic_wire.errors import SessionError
from mosaic_wire.files import write_json_atomically
from mosaic_wire.ids import new_run_id
from mosaic_wire.node import Bootstrap
from mosaic_wire.node.__main__ import read_bootstrap
from mosaic_wire.node.uploads import grows
from mosaic_wire.testing import wait_until

VARIABLES = {
    env.MOSAIC_RUN_ID: new_run_id(),
    env.MOSAIC_RUN_ATTEMPT: "2",
    env.MOSAIC_RUN_TOKEN: "secret-token",
    env.MOSAIC_RUN_MARK: "RUN.2.abcd",
}


def test_a_bootstrap_is_made_of_a_workers_environment_and_read_back(tmp_path: Path) -> None:
    bootstrap = Bootstrap.of(VARIABLES, "[::1]:50056", "PEM")
    write_json_atomically(tmp_path / "file", bootstrap.to_json(), mode=0o600)
    assert read_bootstrap(str(tmp_path / "file")) == bootstrap
    assert (bootstrap.host, bootstrap.port, bootstrap.attempt) == ("::1", 50056, 2)
    assert bootstrap.mark != VARIABLES[env.MOSAIC_RUN_MARK], "not that of the job, which may be on this machine"
    assert "secret-token" not in repr(bootstrap)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"address": "no port"}, "not HOST:PORT"),
        ({"run_id": "../x"}, "not a run id"),
        ({"attempt": "2"}, "a whole number"),
        ({"run_token": None}, "missing"),
    ],
)
def test_a_bootstrap_that_is_none_is_explained(tmp_path: Path, change: dict[str, object], expected: str) -> None:
    document = {**Bootstrap.of(VARIABLES, "box:1", "PEM").to_json(), **change}
    (tmp_path / "file").write_text(json.dumps(document))
    (tmp_path / "file").chmod(0o600)
    with pytest.raises(SessionError, match=expected):
        read_bootstrap(str(tmp_path / "file"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *(
            ("logs/stdout.log", True),
            ("run/lifecycle.jsonl", True),
            ("run/tensorboard/events.out.tfevents.1.host", True),
        ),
        *(("run/analytics.json", False), ("run/checkpoints/step-1/state.safetensors", False)),
        ("run/a.tfevents.folder/state.bin", False),
    ],
)
def test_files_that_grow_are_known_by_their_names(name: str, expected: bool) -> None:
    assert grows(name) is expected


GUARDED = """
import os, subprocess, sys, time
from pathlib import Path
from mosaic_wire.node import process_tree
process_tree.guard("a-mark.node", Path(sys.argv[1]))
variables = {**os.environ, "MOSAIC_RUN_MARK": "a-mark.node"}
sleeper = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", sleeper], env=variables, start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


def test_the_guard_ends_the_workers_processes_of_a_killed_node_and_removes_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "frames").write_bytes(b"x")
    node = subprocess.Popen([sys.executable, "-c", GUARDED, str(folder)], stdout=subprocess.PIPE, text=True)
    assert node.stdout is not None
    with node.stdout:
        child = int(node.stdout.readline())
        node.send_signal(signal.SIGKILL)
        node.wait(60)
    assert wait_until(lambda: not _is_alive(child))
    assert wait_until(lambda: not folder.exists())


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


TREE = """
import os, subprocess, sys, time
from mosaic_wire.node import process_tree
process_tree.adopt_orphans()
middle = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True)"
sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
subprocess.run(["env", "-i", sys.executable, "-c", middle, *sleeper], check=True)
first = subprocess.Popen(sleeper)
found = process_tree.descendants(os.getpid())
assert len(found) == 2, found

def tree():
    first.poll()
    process_tree.reap(first.pid)
    return process_tree.descendants(os.getpid())

process_tree.end_all(tree, 5)
print(len(found), len(tree()), first.returncode)
"""


def test_an_orphan_without_the_mark_and_in_a_session_of_its_own_is_ended_with_the_tree() -> None:
    ended = subprocess.run([sys.executable, "-c", TREE], capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout.split() == ["2", "0", "-15"], ended.stderr


def test_the_process_says_in_one_sentence_what_is_wrong(tmp_path: Path) -> None:
    missing = subprocess.run(
        [sys.executable, "-m", "mosaic_wire.node", str(tmp_path / "none")],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"]},
        check=False,
    )
    assert missing.returncode == 2
    assert missing.stderr.startswith("mosaic node: the bootstrap ")
    assert missing.stderr.count("\n") == 1
