"""Archive, export, delete and import through the real client: what a run was is there again, and only there."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest
from gym_gui.services.trainer.errors import ArchiveRefused, NotPossibleNow, RunNotFound
from gym_gui.testing import RunningDaemon, install_scripted_worker, scripted_config
from mosaic_wire.checkpoints import last_good_checkpoint
from mosaic_wire.frames import fastlane_path
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb


def export(daemon: RunningDaemon, run_id: str) -> bytes:
    return b"".join(chunk.data for chunk in daemon.client.export(run_id))


def take_in(daemon: RunningDaemon, archive: bytes, folder: Path) -> pb.Run:
    file = folder / "run.tar.gz"
    file.write_bytes(archive)
    return daemon.client.import_archive(file)


def content_of(home: Home, run_id: str) -> dict[str, str]:
    """Every file of a run by its place in an archive, with its hash."""
    found = {}
    for name, place in home.places_of_run(run_id).items():
        for path in [place] if place.is_file() else place.rglob("*"):
            if path.is_file():
                inside = "" if path == place else f"/{path.relative_to(place)}"
                found[name + inside] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def described(run: pb.Run) -> pb.Run:
    """A run without what belongs to one daemon: its number, where its files lie, what it knows of the worker."""
    copy = pb.Run()
    copy.CopyFrom(run)
    for field in ("number", "run_dir", "logs_dir", "event_seq", "size_bytes", "learning_json"):
        copy.ClearField(field)
    return copy


def reported(daemon: RunningDaemon, run_id: str) -> list[tuple[str, str, str, str]]:
    return [(event.kind, event.to_status, event.reason, event.payload_json) for event in daemon.client.history(run_id)]


@pytest.fixture
def elsewhere(tmp_path: Path, daemon: RunningDaemon):
    """A daemon of another home: another machine, as far as files go."""
    settings = {"heartbeat_s": 0.2, "grace_s": 2, "min_free_disk_mb": 0}
    with RunningDaemon(Home(tmp_path / "elsewhere"), tmp_path / "config elsewhere", settings=settings) as other:
        yield other


def test_a_run_goes_to_another_home_and_back_with_history_manifest_lineage_and_checkpoints(
    daemon: RunningDaemon, elsewhere: RunningDaemon, tmp_path: Path
) -> None:
    parent = daemon.wait_for(daemon.submit(timesteps=20, checkpoint_every=10, tags=("keep", "me")).run_id)
    child = daemon.wait_for(daemon.client.resume(parent.run_id, additional_timesteps=15).run_id)
    assert (child.outcome, child.step, child.parent.run_id) == ("completed", 35, parent.run_id)
    daemon.client.update(child.run_id, name="my best", notes="worth keeping\nreally", add_tags=["second"])
    (daemon.home.evaluation_folder(child.run_id)).mkdir(parents=True)
    (daemon.home.evaluation_folder(child.run_id) / "result.json").write_text("{}")

    archives = {run.run_id: export(daemon, run.run_id) for run in (parent, child)}
    for run_id, archive in archives.items():
        run = take_in(elsewhere, archive, tmp_path)
        assert described(run) == described(daemon.client.get(run_id))
        assert content_of(elsewhere.home, run_id) == content_of(daemon.home, run_id)
        events = reported(elsewhere, run_id)
        assert events[:-1] == reported(daemon, run_id)
        assert events[-1][0] == "imported"
        assert elsewhere.manifest(run_id) == daemon.manifest(run_id)
    there = elsewhere.client.get(child.run_id)
    assert (there.parent.run_id, there.parent.step, there.parent.sha256) == (
        child.parent.run_id,
        child.parent.step,
        child.parent.sha256,
    )
    assert (there.name, there.notes, list(there.tags)) == ("my best", "worth keeping\nreally", ["keep", "me", "second"])
    assert [run.run_id for run in elsewhere.client.list().runs] == [child.run_id, parent.run_id]  # newest first

    # It can be continued there, from its own checkpoint, and survives a restart.
    elsewhere.restart()
    grandchild = elsewhere.wait_for(elsewhere.client.resume(child.run_id, additional_timesteps=5).run_id)
    assert (grandchild.outcome, grandchild.step, grandchild.parent.run_id) == ("completed", 40, child.run_id)
    best = last_good_checkpoint(elsewhere.home.run_folder(child.run_id))
    assert best is not None
    assert grandchild.parent.sha256 == best.sha256


def repacked(archive: bytes, member: str, old: str, new: str) -> bytes:
    """An archive with a member changed, and a manifest that fits it."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        content = {entry.name: tar.extractfile(entry).read() for entry in tar if entry.isfile()}
    document = json.loads(content[member].replace(old.encode(), new.encode()))
    document.pop("checksum", None)
    content[member] = json.dumps(document).encode()
    manifest = json.loads(content.pop("manifest.json"))
    manifest["members"][member] = {"size": len(content[member]), "sha256": hashlib.sha256(content[member]).hexdigest()}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, data in {**content, "manifest.json": json.dumps(manifest).encode()}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def test_an_archive_whose_config_trains_something_else_than_its_record_says_is_refused(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    run = daemon.wait_for(daemon.submit(timesteps=5).run_id)
    archive = export(daemon, run.run_id)
    daemon.client.delete(run.run_id)
    for name, value in {"env_id": run.env_id, "algo": run.algo}.items():
        changed = repacked(archive, "config/config.json", f'"{name}": "{value}"', f'"{name}": "Other"')
        with pytest.raises(ArchiveRefused, match=f"names the {name} 'Other', run.json '{value}'"):
            take_in(daemon, changed, tmp_path)
    assert take_in(daemon, archive, tmp_path).run_id == run.run_id


def test_a_run_whose_worker_registered_under_other_names_comes_back_with_those_of_its_config(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    code = """
    import dataclasses
    config = dataclasses.replace(config, algo="ppo", env_id="CartPole-v1")
    open_session()
    """
    install_scripted_worker(daemon.home, "renamer", code)
    run = daemon.wait_for(daemon.client.submit(scripted_config("renamer")).run.run_id)
    archive = export(daemon, run.run_id)
    daemon.client.delete(run.run_id)
    there = take_in(daemon, archive, tmp_path)
    assert (run.env_id, there.env_id, there.outcome) == ("CartPole-v1", "none", run.outcome)


def test_deleting_a_run_removes_every_trace_and_importing_brings_it_back(daemon: RunningDaemon, tmp_path: Path) -> None:
    keep = daemon.wait_for(daemon.submit(timesteps=10, checkpoint_every=5).run_id)
    gone = daemon.wait_for(daemon.submit(timesteps=10, checkpoint_every=5).run_id)
    segment = fastlane_path(gone.run_id)
    segment.write_bytes(b"x" * 100)
    custom = daemon.home.custom_scripts / gone.run_id
    custom.mkdir(parents=True)
    (custom / "mine.py").write_text("print()\n")
    before, kept, archive = content_of(daemon.home, gone.run_id), content_of(daemon.home, keep.run_id), None
    archive = export(daemon, gone.run_id)
    events = reported(daemon, gone.run_id)
    size = sum(
        path.stat().st_size
        for place in daemon.home.places_of_run(gone.run_id).values()
        for path in ([place] if place.is_file() else place.rglob("*"))
        if path.is_file()
    )
    assert daemon.client.delete(gone.run_id) == size
    assert not segment.exists()
    assert [path for path in daemon.home.root.rglob("*") if gone.run_id in str(path)] == []
    with pytest.raises(RunNotFound):
        daemon.client.get(gone.run_id)
    with pytest.raises(RunNotFound):
        daemon.client.delete(gone.run_id)
    daemon.restart()
    assert [run.run_id for run in daemon.client.list(include_archived=True).runs] == [keep.run_id]

    run = take_in(daemon, archive, tmp_path)
    assert described(run) == described(gone)
    assert content_of(daemon.home, gone.run_id) == before
    assert content_of(daemon.home, keep.run_id) == kept
    assert reported(daemon, gone.run_id)[:-1] == events
    with pytest.raises(NotPossibleNow, match="already exists; delete it first"):
        take_in(daemon, archive, tmp_path)
    assert content_of(daemon.home, gone.run_id) == before
    assert export(daemon, gone.run_id) != b""  # and it can travel again


def test_an_archived_run_is_hidden_and_nothing_of_it_is_removed(daemon: RunningDaemon) -> None:
    run = daemon.wait_for(daemon.submit(timesteps=5).run_id)
    before = content_of(daemon.home, run.run_id)
    assert daemon.client.archive(run.run_id).archived
    assert daemon.client.archive(run.run_id).archived  # twice is once
    assert list(daemon.client.list().runs) == []
    assert [found.run_id for found in daemon.client.list(include_archived=True).runs] == [run.run_id]
    daemon.restart()
    assert list(daemon.client.list().runs) == []
    assert content_of(daemon.home, run.run_id) == before
    assert not daemon.client.archive(run.run_id, archived=False).archived
    assert [found.run_id for found in daemon.client.list().runs] == [run.run_id]
    assert daemon.event_kinds(run.run_id)[-2:] == ["archived", "unarchived"]


def test_only_a_finished_run_can_be_archived_exported_or_deleted(daemon: RunningDaemon) -> None:
    run = daemon.wait_for(daemon.submit(timesteps=10**6, steps_per_second=50).run_id, "EXEC")
    for request in (daemon.client.archive, daemon.client.delete, lambda run_id: next(daemon.client.export(run_id))):
        with pytest.raises(NotPossibleNow, match="cancel it first, then it can be"):
            request(run.run_id)
    assert daemon.client.get(run.run_id).status == "EXEC"


def test_an_archive_lists_the_hash_of_everything_in_it_and_leaves_links_out(daemon: RunningDaemon) -> None:
    run = daemon.wait_for(daemon.submit(timesteps=10, checkpoint_every=5).run_id)
    folder = daemon.home.run_folder(run.run_id).root
    (folder / "to the token").symlink_to(daemon.home.token)
    data = export(daemon, run.run_id)
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
        members = {member.name: member for member in tar}
        manifest = json.loads(tar.extractfile("manifest.json").read())  # type: ignore[union-attr]
        for name, entry in manifest["members"].items():
            content = tar.extractfile(name).read()  # type: ignore[union-attr]
            assert entry == {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    files = {name for name, member in members.items() if member.isfile()}
    assert files == {*manifest["members"], "manifest.json"}
    assert all(member.isfile() or member.isdir() for member in members.values())
    assert manifest["left_out"] == ["'run/to the token': it is a link, socket, pipe or device"]
    assert daemon.home.token.read_bytes().strip() not in data
    assert not [path for path in daemon.home.archive.iterdir() if path.name.endswith(".part")]


def test_an_import_that_is_cut_off_leaves_nothing_and_can_be_repeated(daemon: RunningDaemon, tmp_path: Path) -> None:
    run = daemon.wait_for(daemon.submit(timesteps=10).run_id)
    archive = export(daemon, run.run_id)
    daemon.client.delete(run.run_id)
    files = {path for path in daemon.home.root.rglob("*") if path.is_file()}
    with pytest.raises(ArchiveRefused, match="truncated"):
        take_in(daemon, archive[: len(archive) // 2], tmp_path)
    # The daemon dies in the middle: what it had unpacked is swept at the next start.
    staged = daemon.home.trainer / "imports" / "0123456789abcdef"
    (staged / "run").mkdir(parents=True)
    (staged / "run" / "half").write_text("x")
    (daemon.home.runs / run.run_id).mkdir()
    daemon.restart()
    assert not staged.exists()
    (daemon.home.runs / run.run_id).rmdir()
    assert {path for path in daemon.home.root.rglob("*") if path.is_file()} - files == set()
    (daemon.home.runs / run.run_id).mkdir()  # what an import that died after its first rename leaves
    assert take_in(daemon, archive, tmp_path).outcome == "completed"
    assert daemon.lifecycle(run.run_id) != []
