"""What takes room in a home and what could go, on real folders and a real daemon."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
from gym_gui.testing import RunningDaemon
from gym_gui.ui.management.disk_survey import (
    CannotPrune,
    SuggestionKind,
    _disk,
    failed_runs,
    find_spare_checkpoints,
    is_needed,
    remove_spare_checkpoints,
    survey,
)
from mosaic_wire.checkpoints import SharedFile, good_checkpoints, write_checkpoint
from mosaic_wire.files import size_below
from mosaic_wire.ids import new_run_id
from mosaic_wire.manifest import AnalyticsManifest, CheckpointEntry, sha256_of_file
from mosaic_wire.paths import Home, RunFolder
from mosaic_wire.proto import trainer_pb2 as pb

DAY = 86_400.0


def run_that(outcome: str, *, days_ago: float, size: int = 100, **fields: object) -> pb.Run:
    run = pb.Run(
        run_id=new_run_id(), status="TERM" if outcome else "EXEC", outcome=outcome, name=outcome, size_bytes=size
    )
    run.finished_at = time.time() - days_ago * DAY if outcome else 0
    for name, value in fields.items():
        setattr(run, name, value)
    return run


def test_old_failed_runs_could_go() -> None:
    old, young, good = (
        run_that("failed", days_ago=9),
        run_that("failed", days_ago=2),
        run_that("completed", days_ago=90),
    )
    cancelled = run_that("cancelled", days_ago=30, reason="by\nhand")
    runs = [old, young, good, cancelled]
    sizes = {run.run_id: run.size_bytes for run in runs}
    found = failed_runs(runs, sizes, older_than_days=7, now=time.time())
    assert [suggestion.run_id for suggestion in found] == [old.run_id, cancelled.run_id]
    assert found[0].reason == "failed 9d ago"
    assert found[1].reason == "cancelled 30d ago: by hand"
    assert len(failed_runs(runs, sizes, older_than_days=0, now=time.time())) == 3


def test_a_run_that_another_one_starts_from_stays() -> None:
    parent = run_that("failed", days_ago=90)
    child = run_that("", days_ago=0)
    child.parent.run_id = parent.run_id
    runs = [parent, child]
    assert failed_runs(runs, {run.run_id: 1 for run in runs}, older_than_days=7, now=time.time()) == []
    evaluation = run_that("", days_ago=0, extras_json=f'{{"checkpoint_path": "/x/{parent.run_id}/checkpoints"}}')
    assert is_needed(parent.run_id, [evaluation])
    assert not is_needed(parent.run_id, [])


# ---------------------------------------------------------------- checkpoints


def make_run_folder(root: Path, steps: tuple[int, ...], best: int | None = None) -> RunFolder:
    folder = RunFolder(root)
    root.mkdir(parents=True)
    entries: list[CheckpointEntry] = []
    for step in steps:
        kind = "best" if step == best else "last" if step == max(steps) else "periodic"
        shared = _shared(folder, f"part-{step}")
        entries.append(
            write_checkpoint(folder, step, {"algo": "ppo"}, {"weights": b"w" * 5_000}, kind=kind, shared=[shared])
        )
    AnalyticsManifest(new_run_id(), checkpoints=tuple(entries), notes="keep me").write(folder.manifest)
    return folder


def _shared(folder: RunFolder, name: str) -> SharedFile:
    path = folder.checkpoints / "replay" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(name.encode() * 100)
    return SharedFile(f"replay/{name}", sha256_of_file(path), path.stat().st_size)


def test_all_but_the_newest_and_the_best_could_go(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path / "run", (100, 200, 300, 400), best=200)
    spare = find_spare_checkpoints(folder.root)
    assert spare is not None
    assert (spare.count, spare.kept) == (2, (200, 400))
    assert spare.bytes > 10_000
    before = size_below(folder.root)
    freed = remove_spare_checkpoints(folder.root)
    assert freed >= spare.bytes
    assert before - size_below(folder.root) == pytest.approx(freed, abs=2_000)  # the manifest became shorter too
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == ["replay", "step-200", "step-400"]
    assert sorted(path.name for path in (folder.checkpoints / "replay").iterdir()) == ["part-200", "part-400"]
    manifest = AnalyticsManifest.read(folder.manifest)
    assert [entry.step for entry in manifest.checkpoints] == [200, 400]
    assert manifest.notes == "keep me"
    assert [entry.step for entry in good_checkpoints(folder)] == [400, 200]
    assert find_spare_checkpoints(folder.root) is None


def test_nothing_goes_when_what_would_stay_is_damaged(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path / "run", (100, 200))
    (folder.checkpoints / "step-200" / "weights").write_bytes(b"changed")
    with pytest.raises(CannotPrune, match="damaged"):
        remove_spare_checkpoints(folder.root)
    assert [entry.step for entry in good_checkpoints(folder)] == [100]


def test_half_written_checkpoints_could_go(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path / "run", (100,))
    left = folder.checkpoints / ".step-200.abc.tmp"
    left.mkdir()
    (left / "weights").write_bytes(b"x" * 1_000)
    assert find_spare_checkpoints(folder.root).count == 1
    assert remove_spare_checkpoints(folder.root) == 1_000
    assert not left.exists()


def test_a_run_with_one_checkpoint_or_no_manifest_has_none_to_spare(tmp_path: Path) -> None:
    assert find_spare_checkpoints(make_run_folder(tmp_path / "run", (100,)).root) is None
    assert find_spare_checkpoints(tmp_path / "gone") is None


# ---------------------------------------------------------------- a whole home


def test_a_home_is_looked_through(window_daemon: RunningDaemon, tmp_path: Path) -> None:
    home, client = window_daemon.home, window_daemon.client
    submitted = window_daemon.submit(timesteps=20, checkpoint_every=5)
    good = window_daemon.wait_for_run(submitted.run_id, lambda run: run.size_bytes)  # measured a moment after its end
    bad = window_daemon.wait_for(window_daemon.submit(timesteps=20, fail_at_step=3).run_id)
    assert bad.outcome == "failed"
    nobodys, young = new_run_id(), new_run_id()
    for run_id in (nobodys, young):
        folder = home.run_folder(run_id).root
        folder.mkdir()
        (folder / "data").write_bytes(b"x" * 4_096)
    os.utime(home.run_folder(nobodys).root, (0, 0))
    found = survey(client, home, older_than_days=0)
    by_kind = {suggestion.kind: suggestion for suggestion in found.suggestions}
    assert by_kind[SuggestionKind.RUN].run_id == bad.run_id
    assert by_kind[SuggestionKind.ORPHAN].run_id == nobodys  # the young one may be on its way in
    assert by_kind[SuggestionKind.ORPHAN].bytes == 4_096
    assert by_kind[SuggestionKind.CHECKPOINTS].run_id == good.run_id
    assert found.runs_in_all == 2
    assert {use.run_id: use.bytes for use in found.runs}[good.run_id] == good.size_bytes
    assert found.free_bytes > 0
    assert found.used_bytes >= sum(use.bytes for use in found.runs)
    elsewhere = survey(client, None, older_than_days=0)
    assert [suggestion.kind for suggestion in elsewhere.suggestions] == [SuggestionKind.RUN]


def test_an_empty_home(tmp_path: Path) -> None:
    class Nobody:
        def list(self, *, include_archived: bool = False) -> pb.ListRunsResponse:
            return pb.ListRunsResponse()

    found = survey(Nobody(), Home(tmp_path / "home"), older_than_days=7)
    assert (found.suggestions, found.runs, found.used_bytes) == ((), (), 0)


def test_the_room_is_that_of_the_disk_of_the_runs(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.trainer.mkdir(parents=True)
    assert _disk(home)[1] == shutil.disk_usage(tmp_path).total
    home.runs.symlink_to("/dev/shm")
    assert _disk(home)[1] == shutil.disk_usage("/dev/shm").total != shutil.disk_usage(tmp_path).total


def test_of_very_many_suggestions_the_largest_are_shown() -> None:
    class Thousands:
        def list(self, *, include_archived: bool = False) -> pb.ListRunsResponse:
            return pb.ListRunsResponse(runs=[run_that("failed", days_ago=30, size=size) for size in range(1, 1_001)])

    found = survey(Thousands(), None, older_than_days=7)
    assert found.suggestions_in_all == 1_000
    assert [suggestion.bytes for suggestion in found.suggestions] == list(range(1_000, 900, -1))
    assert len(found.runs) == 100
    assert found.used_bytes == sum(range(1, 1_001))
