"""A home is a folder: it can be moved, and a copy of it is a backup that does the original no harm."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import DaemonUnreachable
from gym_gui.services.trainer.launching import with_checkpoint_here
from gym_gui.services.trainer.local_daemon import running_record
from gym_gui.testing import RunningDaemon, processes_of, random_config
from mosaic_wire.paths import Home
from mosaic_wire.testing import wait_until

QUICK = {"heartbeat_s": 0.2, "grace_s": 2, "silence_s": 20, "handshake_s": 60}
NOTHING_STARTS = {"min_free_disk_mb": 2**30}
SECRET = "hunter2-is-not-for-backups"


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Any]:
    """Start a daemon of any folder; all of them are ended with their runs."""
    with ExitStack() as stack:

        def start(folder: str, **settings: Any) -> RunningDaemon:
            daemon = RunningDaemon(
                Home(tmp_path / folder), tmp_path / "config", settings={**QUICK, "min_free_disk_mb": 0, **settings}
            )
            stack.enter_context(daemon)
            return daemon

        yield start


def hand_over(daemon: RunningDaemon) -> None:
    """Stop it for good: its home will be somewhere else."""
    assert daemon.stop() == 0
    daemon._process = None


def files_with(folder: Path, text: str) -> list[str]:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sorted(str(path.relative_to(folder)) for path in files if text.encode() in path.read_bytes())


@pytest.mark.slow  # a copied home is tried in every CI
def test_a_moved_home_keeps_every_run_and_continues_where_it_was(serve: Any, tmp_path: Path) -> None:
    before = serve("before")
    done = before.wait_for(before.submit(timesteps=20, checkpoint_every=10, tags=("keep",)).run_id)
    secret_config = random_config(timesteps=5, extras={"wandb_api_key": SECRET})
    keyed = before.wait_for(before.client.submit(secret_config).run.run_id)
    held = before.submit(timesteps=5000, steps_per_second=500, checkpoint_every=10).run_id
    before.wait_for_run(held, lambda run: run.step > 20)
    before.client.pause(held, release=True)
    before.wait_for_run(held, lambda run: run.status == "PAUSE" and not run.pid)
    hand_over(before)
    # One that continues another waits in the queue: its config names the checkpoint by where the home was.
    waiting = serve("before", **NOTHING_STARTS)
    child = waiting.client.resume(done.run_id, additional_timesteps=10).run_id
    events = [(event.kind, event.reason) for event in waiting.client.history(done.run_id)]
    hand_over(waiting)

    shutil.move(tmp_path / "before", tmp_path / "after")
    after = serve("after")

    assert {run.run_id for run in after.client.list().runs} == {done.run_id, keyed.run_id, held, child}
    assert [(event.kind, event.reason) for event in after.client.history(done.run_id)] == events
    moved = after.client.get(done.run_id)
    assert (moved.run_dir, list(moved.tags)) == (str(after.home.run_folder(done.run_id).root), ["keep"])
    continued = after.wait_for(child)
    assert (continued.outcome, continued.step, continued.parent.run_id) == ("completed", 30, done.run_id)
    after.client.resume(held)
    after.wait_for_run(held, lambda run: run.status == "EXEC" and run.attempt == 2 and run.step > 20)
    longer = after.wait_for(after.client.resume(child, additional_timesteps=5).run_id)
    assert (longer.outcome, longer.step) == ("completed", 35)
    # The key lies with the user, not in the home: a backup of the home is one without it.
    assert files_with(after.home.root, SECRET) == []
    assert keyed.run_id in json.loads((tmp_path / "config" / "secrets.json").read_text())["runs"]
    assert not (tmp_path / "before").exists()


def test_a_checkpoint_is_looked_for_here_only_when_it_is_missing_from_where_it_was(tmp_path: Path) -> None:
    run_id, home = "01JZZZZZZZZZZZZZZZZZZZZZZZ", Home(tmp_path / "home")
    here = home.run_folder(run_id).checkpoints / "step-10"
    here.mkdir(parents=True)
    there = Home(tmp_path / "other").run_folder(run_id).checkpoints / "step-10"

    def chosen(path: object) -> object:
        return with_checkpoint_here({"extras": {"checkpoint_path": path, "seed": 3}}, home)["extras"]["checkpoint_path"]

    assert chosen(str(there)) == str(here)
    assert chosen(str(there.with_name("step-20"))) == str(there.with_name("step-20"))
    assert chosen(run_id) == run_id
    assert chosen(None) is None
    assert with_checkpoint_here({"extras": None}, home) == {"extras": None}
    there.mkdir(parents=True)
    assert chosen(str(there)) == str(there)


@pytest.mark.expects_log("could not be taken up")
def test_a_copy_made_while_runs_are_going_neither_speaks_for_them_nor_ends_them(serve: Any, tmp_path: Path) -> None:
    original = serve("original")
    done = original.wait_for(original.submit(timesteps=5).run_id)
    going = original.submit(timesteps=10**6, steps_per_second=200).run_id
    original.wait_for_run(going, lambda run: run.step > 10)
    subprocess.run(["cp", "-a", tmp_path / "original", tmp_path / "copy"], check=True)

    copy = Home(tmp_path / "copy")
    # The record of the original's daemon was copied too; who asks for the copy must not get the original.
    assert running_record(original.home) is not None
    assert running_record(copy) is None
    with pytest.raises(DaemonUnreachable):
        TrainerClient.connect(copy, timeout_s=5)
    other = serve("copy")
    assert {run.run_id for run in other.client.list().runs} == {done.run_id, going}
    refused = [event.reason for event in other.client.history(going) if event.kind == "recovery_failed"]
    assert len(refused) == 1
    assert f"belongs to {tmp_path / 'original'}: this home is a copy" in refused[0]
    other.client.delete(done.run_id)
    assert original.client.get(done.run_id).outcome == "completed"
    before = original.client.get(going).step
    assert original.wait_for_run(going, lambda run: run.step > before).status == "EXEC"

    original.client.cancel(going)
    assert original.wait_for(going).outcome == "cancelled"
    assert processes_of(going) == []
    # Only then it ends in the copy, too: as the copy's files show.
    ended = other.wait_for(going)
    assert ended.outcome == "failed"
    assert "left no exit.json" in ended.reason or "exited" in ended.reason
    assert wait_until(lambda: not other.unfinished())
