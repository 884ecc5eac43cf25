"""A pipe, or a link to a device without an end, in the place of any file of a run harms that run at most."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gym_gui.testing import RunningDaemon, install_scripted_worker, scripted_config
from mosaic_wire.files import NotAPlainFile, open_plain, read_json_object
from mosaic_wire.testing import wait_until

FILES = [
    "lifecycle.jsonl",
    "exit.json",
    "analytics.json",
    "checkpoints/step-1/state.json",
    "logs/stdout.log",
    "metrics/index.json",
    "tensorboard/events.out.tfevents.1.x",
    "study.journal",
    "../../../logs/trainer/{}/stdout.log",
]
PLANTER = """
import threading
wanted = config.extras["algo_params"]
root = run_folder_of(config.run_id).root
session = open_session()
session.started({})
while not (root / "go").exists():
    time.sleep(0.02)
place = Path(os.path.normpath(root / wanted["file"].format(config.run_id)))
place.parent.mkdir(parents=True, exist_ok=True)
place.unlink(missing_ok=True)
if wanted["kind"] == "pipe":
    os.mkfifo(place)
else:
    place.symlink_to("/dev/zero")
(root / "planted").touch()
session.stop_requested.wait()
os._exit(3)  # without a word: the daemon has to find out, and to write the manifest
"""


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))


@pytest.mark.parametrize(
    ("kind", "is_watched"),
    [
        ("pipe", False),
        ("device", True),
        pytest.param("pipe", True, marks=pytest.mark.fault),
        pytest.param("device", False, marks=pytest.mark.fault),
    ],
)
def test_what_is_no_file_blocks_neither_its_run_nor_the_daemon(
    daemon: RunningDaemon, kind: str, is_watched: bool
) -> None:
    install_scripted_worker(daemon.home, "planter", PLANTER)
    runs = {name: daemon.client.submit(scripted_config("planter", file=name, kind=kind)).run.run_id for name in FILES}
    for run_id in runs.values():
        daemon.wait_for(run_id, "EXEC")
    before = resident_mb(daemon.pid)
    if not is_watched:
        assert daemon.stop() == 0
    roots = [daemon.home.run_folder(run_id).root for run_id in runs.values()]
    for root in roots:
        (root / "go").touch()
    assert wait_until(lambda: all((root / "planted").exists() for root in roots))
    if not is_watched:
        daemon.start()
    # More such runs than the daemon has threads: others go on, and so do calls.
    assert daemon.wait_for(daemon.submit(timesteps=3).run_id).outcome == "completed"
    for name, run_id in runs.items():
        if name != "lifecycle.jsonl":  # that one is over by itself
            daemon.client.cancel(run_id)
    for name, run_id in runs.items():
        run = daemon.wait_for(run_id)
        if name == "lifecycle.jsonl":
            assert run.outcome == "failed"
            assert "lifecycle file cannot be read: it is a" in run.reason
        else:
            assert run.outcome == "cancelled"
        daemon.client.delete(run_id)
        assert not daemon.home.run_folder(run_id).root.exists()
    if is_watched:
        assert resident_mb(daemon.pid) < before + 64


def test_the_opener_refuses_what_is_no_plain_file_of_ours(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "real").write_text("{}")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "link", "device", "folder", "../../../../../../../../dev/null"):
        for mode in ("rb", "ab", "r+b"):
            with pytest.raises(NotAPlainFile, match=r"it is a .* not a plain file"):
                open_plain(tmp_path / name, mode)
    os.link(tmp_path / "real", tmp_path / "second name")
    assert read_json_object(tmp_path / "real") == {}
    with pytest.raises(NotAPlainFile, match="hard link"):
        open_plain(tmp_path / "real", "wb")
    assert (tmp_path / "real").read_text() == "{}"


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's file can only be made by root")
def test_another_users_file_is_refused_in_a_folder_of_ours(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    file.write_text("{}")
    os.chown(file, 65534, 65534)
    with pytest.raises(NotAPlainFile, match="it belongs to user 65534"):
        read_json_object(file)
    os.chown(tmp_path, 65534, 65534)  # a run of theirs, which root looks at
    assert read_json_object(file) == {}
