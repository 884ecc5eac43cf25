"""Archives: a run goes out and comes back whole; a hostile archive is refused with the reason and leaves nothing."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import json
import os
import random
import socket
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path

import pytest
from gym_gui.services.trainer.archive_reader import ArchiveLimits
from gym_gui.services.trainer.archive_records import history_bytes, record_bytes
from gym_gui.services.trainer.archives import (
    delete_run_files,
    export_archive,
    import_archive,
    remove_leftovers,
    size_of_run,
)
from gym_gui.services.trainer.errors import ArchiveRefused, NotPossibleNow
from gym_gui.services.trainer.fsm import RunEvent, RunOutcome, RunStatus
from gym_gui.services.trainer.records import HistoryEvent, NewRun, Parent, RunRecord
from gym_gui.services.trainer.registry import RunRegistry
from mosaic_wire.files import write_json_atomically
from mosaic_wire.frames import fastlane_path
from mosaic_wire.ids import new_run_id
from mosaic_wire.paths import Home

CANARY = "canary-5ecret-0123456789"


def finished_record(run_id: str, **changes: object) -> RunRecord:
    values: dict[str, object] = {
        "run_id": run_id,
        "number": 7,
        "status": RunStatus.TERM,
        "outcome": RunOutcome.COMPLETED,
        "reason": "done",
        "name": "a run",
        "worker_type": "random",
        "worker_id": "",
        "algo": "random",
        "env_id": "E",
        "seed": 1,
        "step": 10,
        "total": 10,
        "episodic_return": 1.5,
        "sps": 100.0,
        "seconds_since_step": None,
        "metrics": {"charts/SPS": 100.0},
        "result": {"mean": 2},
        "priority": 0,
        "tags": ("a", "b"),
        "notes": "n",
        "archived": False,
        "queue_reason": "",
        "parent": Parent(new_run_id(), 5, "ab"),
        "created_at": 1.0,
        "submitted_by": new_run_id(),
        "cancel_reason": "",
        "started_at": 2.0,
        "finished_at": 3.0,
        "cpus": 1.0,
        "gpus": 0,
        "gpus_mandatory": 0,
        "gpu_ids": ("GPU-1",),
        "memory_mb": None,
        "max_wallclock_minutes": None,
        "silence_s": None,
        "attempt": 1,
        "retries": 0,
        "size_bytes": 0,
        "protocol_version": 1,
        "capabilities": {"worker_type": "random"},
        "extras": {"x": 1},
        "event_seq": 9,
        "pid": 4711,
        "start_ticks": 5,
        "boot_id": "boot",
        "mark": "mark",
        "run_token_sha256": "aa",
        "session_token_sha256": "bb",
        "worker_instance": "i",
        "lifecycle_seq": 3,
        "cancel_requested": False,
        "pause_requested": "",
        "paused_by_signal": False,
        "released": False,
        "stalled": False,
        "no_progress": False,
        "fault_reason": "",
        "claimed": True,
        **changes,
    }
    return RunRecord(**values)  # type: ignore[arg-type]


def story_of(run_id: str) -> list[HistoryEvent]:
    return [
        HistoryEvent(1, run_id, 1.0, "submitted", "", "INIT", "", {}, 1),
        HistoryEvent(2, run_id, 2.0, "completed", "EXEC", "TERM", "done", {"steps": 10}, 1),
    ]


@pytest.fixture
def run(home: Home) -> RunRecord:
    """A finished run with a file in each of its places."""
    home.create()
    record = finished_record(new_run_id())
    folder = home.run_folder(record.run_id)
    (folder.checkpoints / "step-10").mkdir(parents=True)
    (folder.checkpoints / "step-10" / "state.json").write_text("{}")
    (folder.root / "empty").mkdir()
    (folder.root / ("long-" * 30 + "ñ…")).write_bytes(os.urandom(300_000))
    folder.manifest.write_text("{}")
    home.run_logs(record.run_id).mkdir(parents=True)
    (home.run_logs(record.run_id) / "stdout.log").write_text("hello\n")
    home.evaluation_folder(record.run_id).mkdir(parents=True)
    (home.evaluation_folder(record.run_id) / "eval_summary.json").write_text("{}")
    (home.custom_scripts / record.run_id).mkdir(parents=True)
    (home.custom_scripts / record.run_id / "x.sh").write_text("true\n")
    write_json_atomically(home.config_file(record.run_id), {"extras": {"wandb_api_key": {"secret_ref": "k"}}})
    write_json_atomically(home.worker_config_file(record.run_id), {"algo": "random"})
    return record


def other_home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "other")
    home.create()
    return home


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


# ---------------------------------------------------------------- out and in again


def test_a_run_comes_back_as_it_went(home, run, tmp_path):
    archive = export_archive(home, run, story_of(run.run_id))
    there = other_home(tmp_path)
    imported = import_archive(archive, there)
    assert not there.run_folder(run.run_id).root.exists()  # nothing in place before commit
    imported.commit()
    for place in (
        lambda h: h.run_folder(run.run_id).root,
        lambda h: h.run_logs(run.run_id),
        lambda h: h.evaluation_folder(run.run_id),
        lambda h: h.custom_scripts / run.run_id,
    ):
        assert files_below(place(there)) == files_below(place(home))
    assert (there.run_folder(run.run_id).root / "empty").is_dir()
    config = json.loads(there.config_file(run.run_id).read_text())
    assert config["extras"]["wandb_api_key"] == {"secret_ref": "k"}
    assert imported.history == tuple(story_of(run.run_id))
    assert imported.record == dataclasses.replace(
        run,
        pid=0,
        start_ticks=0,
        boot_id="",
        mark="",
        run_token_sha256="",
        session_token_sha256="",
        worker_instance="",
        lifecycle_seq=0,
        claimed=False,
        gpu_ids=(),
    )
    assert everything(there.trainer / "imports") == set()


def test_an_imported_run_is_taken_in_by_a_registry(home, run, tmp_path):
    imported = import_archive(export_archive(home, run, story_of(run.run_id)), other_home(tmp_path))
    registry = RunRegistry(tmp_path / "other" / "trainer" / "trainer.sqlite")
    try:
        imported.commit()
        record = registry.restore(imported.record, imported.history)
        assert (record.status, record.outcome, record.tags) == (RunStatus.TERM, RunOutcome.COMPLETED, ("a", "b"))
        assert [event.kind for event in registry.history(run.run_id)] == ["submitted", "completed"]
    finally:
        registry.close()


def test_a_run_of_a_real_registry_can_be_packed(home, tmp_path):
    home.create()
    registry = RunRegistry(home.database)
    try:
        run_id = new_run_id()
        registry.submit(NewRun(run_id, "random", name="x"))
        record = registry.apply(run_id, RunEvent.CANCELLED, reason="asked")
        archive = export_archive(home, record, registry.history(run_id))
        imported = import_archive(archive, other_home(tmp_path))
        assert imported.record.outcome is RunOutcome.CANCELLED
        imported.abandon()
    finally:
        registry.close()


def test_the_manifest_holds_the_hash_of_each_file_and_plain_tar_reads_it(home, run):
    with tarfile.open(export_archive(home, run, story_of(run.run_id))) as tar:
        members = {member.name: member for member in tar.getmembers()}
        contents = {name: tar.extractfile(name).read() for name, member in members.items() if member.isfile()}
    manifest = json.loads(contents.pop("manifest.json"))
    assert manifest["run_id"] == run.run_id
    reported = {name: (entry["size"], entry["sha256"]) for name, entry in manifest["members"].items()}
    assert reported == {name: (len(data), hashlib.sha256(data).hexdigest()) for name, data in contents.items()}


def test_an_archive_holds_nothing_of_this_machine_and_is_private(home, run):
    archive = export_archive(home, run, story_of(run.run_id))
    assert archive.stat().st_mode & 0o777 == 0o600
    with tarfile.open(archive) as tar:
        record = json.loads(tar.extractfile("run.json").read())
    assert not record.keys() & {"pid", "mark", "run_token_sha256", "session_token_sha256", "boot_id"}


def test_no_secret_travels(home, run):
    folder = home.run_folder(run.run_id).root
    for at in (0, 65_530, 65_536, 131_060):  # also across the pieces in which files are read
        (folder / f"out-{at}.log").write_bytes(b"x" * at + CANARY.encode() + b"y" * 10)
    (home.run_logs(run.run_id) / "stdout.log").write_text(f"my key is {CANARY}\n" * 5000)
    home.config_file(run.run_id).write_text(json.dumps({"proxy": f"http://me:{CANARY}@host", "wandb_api_key": CANARY}))
    home.worker_config_file(run.run_id).write_text(f'{{"notes": "torn {CANARY}')
    leaky = dataclasses.replace(run, notes=CANARY, extras={"api_key": CANARY, "x": [CANARY]}, reason=f"died: {CANARY}")
    events = [dataclasses.replace(event, payload={"stderr_tail": CANARY}) for event in story_of(run.run_id)]
    archive = export_archive(home, leaky, events, secrets=[CANARY])
    unpacked = gzip.decompress(archive.read_bytes())
    assert CANARY.encode() not in unpacked
    assert b"my key is " + b"*" * len(CANARY) in unpacked
    with tarfile.open(archive) as tar:
        masked = tar.extractfile("run/out-65530.log").read()
    assert masked == b"x" * 65_530 + b"*" * len(CANARY) + b"y" * 10


def test_links_and_odd_files_of_a_run_folder_are_left_out_and_noted(home, run, tmp_path):
    folder = home.run_folder(run.run_id).root
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "key").write_text(CANARY)
    (folder / "link").symlink_to(tmp_path / "private" / "key")
    (folder / "folder-link").symlink_to(tmp_path / "private")
    (folder / "back\\slash").write_text("x")
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(folder)  # the path of a socket must be short
        try:
            listener.bind("socket")
        finally:
            os.chdir(here)
        archive = export_archive(home, run, [])
    with tarfile.open(archive) as tar:
        names = tar.getnames()
        manifest = json.loads(tar.extractfile("manifest.json").read())
    assert not [name for name in names if "link" in name or "slash" in name or name.endswith(("pipe", "socket"))]
    assert len(manifest["left_out"]) == 5
    import_archive(archive, other_home(tmp_path)).abandon()


def test_a_run_folder_that_is_a_link_is_not_followed(home, run, tmp_path):
    folder = home.run_folder(run.run_id).root
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with tarfile.open(export_archive(home, run, [])) as tar:
        assert not [name for name in tar.getnames() if name.startswith("run/")]
    before = everything(tmp_path / "elsewhere")
    delete_run_files(home, run.run_id)
    assert not folder.is_symlink()
    assert everything(tmp_path / "elsewhere") == before


def test_files_that_compress_extremely_well_still_come_back(home, run, tmp_path):
    (home.run_folder(run.run_id).root / "zeros").write_bytes(bytes(64 << 20))
    import_archive(export_archive(home, run, []), other_home(tmp_path)).abandon()


def test_an_export_that_fails_leaves_no_half_archive(home, run):
    with pytest.raises(TypeError, match="serializable"):
        export_archive(home, dataclasses.replace(run, extras={"x": {1, 2}}), [])
    assert list(home.archive.iterdir()) == []


# ---------------------------------------------------------------- commit and abandon


def test_abandon_after_commit_removes_what_was_placed(home, run, tmp_path):
    there = other_home(tmp_path)
    before = everything(there.root)
    imported = import_archive(export_archive(home, run, []), there)
    imported.commit()
    imported.abandon()
    assert {name for name in everything(there.root) - before if Path(there.root, name).is_file()} == set()
    assert not there.run_folder(run.run_id).root.exists()


def test_a_run_that_is_there_already_is_not_overwritten(home, run, tmp_path):
    archive = export_archive(home, run, [])
    before = files_below(home.run_folder(run.run_id).root)
    imported = import_archive(archive, home)
    with pytest.raises(ArchiveRefused, match="already exists"):
        imported.commit()
    imported.abandon()
    assert files_below(home.run_folder(run.run_id).root) == before


def test_what_an_interrupted_import_left_is_replaced_on_request(home, run, tmp_path):
    archive, there = export_archive(home, run, []), other_home(tmp_path)
    orphan = there.run_folder(run.run_id).root / "half"
    orphan.mkdir(parents=True)
    import_archive(archive, there).commit(replace=True)
    assert not orphan.exists()
    assert there.run_folder(run.run_id).manifest.exists()


def test_leftovers_of_a_dead_daemon_are_swept(home, run, tmp_path):
    archive = export_archive(home, run, [])
    import_archive(archive, home)  # neither committed nor abandoned
    remove_leftovers(home)
    assert list(home.archive.iterdir()) == []
    assert everything(home.trainer / "imports") == set()
    remove_leftovers(Home(tmp_path / "nowhere"))


# ---------------------------------------------------------------- hostile archives


class Forge:
    """Builds an archive as a stranger could: any header, any order, a manifest that fits or does not."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.raw = io.BytesIO()
        self.members: dict[str, dict[str, object]] = {}

    def header(self, name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, link: str = "") -> Forge:
        info = tarfile.TarInfo(name)
        info.size, info.type, info.linkname = size, kind, link
        self.raw.write(info.tobuf(tarfile.PAX_FORMAT))
        return self

    def bytes(self, data: bytes) -> Forge:
        self.raw.write(data + bytes(-len(data) % 512))
        return self

    def file(self, name: str, data: bytes = b"x") -> Forge:
        self.members[name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        return self.header(name, len(data)).bytes(data)

    def extended(self, data: bytes) -> Forge:
        info = tarfile.TarInfo("pax")
        info.type, info.size = tarfile.XHDTYPE, len(data)
        self.raw.write(info.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % 512))
        return self

    def run(self, **changes: object) -> Forge:
        document = {**json.loads(record_bytes(finished_record(self.run_id))), **changes}
        document = {key: value for key, value in document.items() if value is not ...}
        self.file("run.json", json.dumps(document).encode())
        return self.file("story.jsonl", history_bytes(story_of(self.run_id)))

    def pack(self, path: Path, *, manifest: bool = True, tail: bytes = b"", level: int = 6, **changes: object) -> Path:
        if manifest:
            document = {"format": 1, "run_id": self.run_id, "members": self.members, **changes}
            self.file("manifest.json", json.dumps(document).encode())
        path.write_bytes(gzip.compress(self.raw.getvalue() + bytes(1024) + tail, level))
        return path


@pytest.fixture
def forge() -> Forge:
    return Forge(new_run_id())


@pytest.fixture
def refused(home, tmp_path):
    """Import must refuse this archive for this reason, and leave the whole disk as it was."""
    home.create()

    def check(archive: Path, reason: str, **limits: int) -> None:
        (home.trainer / "imports").mkdir(mode=0o700, exist_ok=True)
        before = everything(tmp_path)
        with pytest.raises(ArchiveRefused, match=reason):
            import_archive(archive, home, limits=ArchiveLimits(**limits))
        assert everything(tmp_path) == before

    return check


def test_a_forged_archive_without_tricks_is_accepted(forge, home, tmp_path):
    home.create()
    archive = forge.run().header("run", kind=tarfile.DIRTYPE).file("run/a/b.txt", b"hello").pack(tmp_path / "a")
    imported = import_archive(archive, home)
    imported.commit()
    assert (home.run_folder(forge.run_id).root / "a" / "b.txt").read_text() == "hello"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("../escape", "leaves the archive"),
        ("run/../../../escape", "leaves the archive"),
        ("/tmp/mosaic-escape", "absolute"),
        ("//tmp/mosaic-escape", "absolute"),
        ("run/./x", "empty, '.'"),
        ("run//x", "empty, '.'"),
        ("run/a\\..\\b", "backslash"),
        ("run/a\nb", "control"),
        ("run/\x1b[31m", "control"),
        ("run/" + "x" * 300, "over-long"),
        ("run/" + "x/" * 600 + "y", "too long"),
        ("evil.sh", "does not belong"),
        ("config/other.json", "does not belong"),
        ("run", "does not belong"),
        (".ssh/authorized_keys", "does not belong"),
    ],
)
def test_a_member_with_a_hostile_name_is_refused(forge, refused, tmp_path, name, reason):
    refused(forge.run().file(name).pack(tmp_path / "a"), reason)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (tarfile.SYMTYPE, "symbolic link"),
        (tarfile.LNKTYPE, "hard link"),
        (tarfile.CHRTYPE, "device"),
        (tarfile.BLKTYPE, "device"),
        (tarfile.FIFOTYPE, "named pipe"),
        (tarfile.GNUTYPE_SPARSE, "sparse"),
        (tarfile.GNUTYPE_LONGNAME, "unknown kind"),
        (tarfile.XGLTYPE, "unknown kind"),
        (b"Z", "unknown kind"),
    ],
)
def test_anything_but_files_and_folders_is_refused(forge, refused, tmp_path, kind, reason):
    refused(forge.run().header("run/x", kind=kind, link="/etc/passwd").pack(tmp_path / "a"), reason)


def test_writing_through_a_link_is_refused(forge, refused, tmp_path):
    archive = forge.run().header("run/out", kind=tarfile.SYMTYPE, link="/tmp").file("run/out/x").pack(tmp_path / "a")
    refused(archive, "symbolic link")


def test_a_member_that_is_there_twice_is_refused(forge, refused, tmp_path):
    refused(forge.run().file("run/x", b"1").file("run/x", b"2").pack(tmp_path / "a"), "twice")


def test_a_file_that_is_also_a_folder_is_refused(forge, refused, tmp_path):
    refused(forge.run().file("run/x").file("run/x/y").pack(tmp_path / "a"), "cannot be unpacked")


def test_a_bomb_is_refused_before_it_fills_the_disk(forge, refused, tmp_path):
    archive = forge.run().file("run/zeros", bytes(80 << 20)).pack(tmp_path / "a", level=9)
    refused(archive, "bomb")


def test_too_many_too_large_and_too_much_is_refused(forge, refused, tmp_path):
    for number in range(30):
        forge.file(f"run/{number}", b"x" * 1000)
    archive = forge.run().pack(tmp_path / "a")
    refused(archive, "more than 20 members", members=20)
    refused(archive, "larger than 999 bytes", member_bytes=999)
    refused(archive, "more than 20000 bytes", total_bytes=20_000)


@pytest.mark.parametrize("size", [-5, 1 << 62])
def test_a_header_with_an_impossible_size_is_refused(forge, refused, tmp_path, size):
    info = tarfile.TarInfo("run/x")
    info.size = size
    forge.run().raw.write(info.tobuf(tarfile.GNU_FORMAT))
    refused(forge.pack(tmp_path / "a"), "impossible size|larger than")


def test_a_member_larger_than_the_disk_is_refused_before_it_is_written(forge, refused, tmp_path):
    refused(forge.run().header("run/x", 60 << 30).pack(tmp_path / "a"), "no space|truncated")


def test_an_extended_header_may_only_name_path_and_size(forge, home, refused, tmp_path):
    def record(key: bytes, value: bytes) -> bytes:
        body = b" " + key + b"=" + value + b"\n"
        length = len(body) + 2
        return b"%d" % length + body if len(b"%d" % length) == 2 else b"%d" % (length + 1) + body

    for data, reason in (
        (record(b"path", b"../../escape"), "leaves the archive"),
        (record(b"linkpath", b"/etc/passwd"), "linkpath"),
        (record(b"GNU.sparse.major", b"1"), "GNU.sparse"),
        (record(b"size", b"-1"), "impossible size"),
        (record(b"path", b"\xff\xfe"), "damaged"),
        (b"99999 path=x\n", "damaged"),
        (b"0 path=x\n", "damaged"),
        (b"garbage", "damaged"),
        (record(b"comment", b"x") * 20_000, "more than"),
    ):
        refused(Forge(forge.run_id).run().extended(data).file("run/x").pack(tmp_path / "a"), reason)
    twice = (
        Forge(forge.run_id).run().extended(record(b"path", b"run/a")).extended(record(b"path", b"run/b")).file("run/x")
    )
    refused(twice.pack(tmp_path / "a"), "extended header for")
    refused(
        Forge(forge.run_id).run().extended(record(b"path", b"run/a")).pack(tmp_path / "a", manifest=False), "ends after"
    )


def test_a_member_that_does_not_fit_its_hash_is_refused(forge, refused, tmp_path):
    forge.run().file("run/model", b"good weights")
    forge.members["run/model"]["sha256"] = hashlib.sha256(b"evil weights").hexdigest()
    refused(forge.pack(tmp_path / "a"), "hash")


def test_members_and_manifest_must_agree(forge, refused, tmp_path):
    archive = forge.run().header("run/extra", 1).bytes(b"x").pack(tmp_path / "a")
    refused(archive, "not in the archive's manifest")
    missing = Forge(new_run_id()).run()
    missing.members["run/gone"] = {"size": 1, "sha256": "0"}
    refused(missing.pack(tmp_path / "b"), "missing from the archive")
    refused(Forge(new_run_id()).run().pack(tmp_path / "c", manifest=False), "no manifest")
    refused(Forge(new_run_id()).run().pack(tmp_path / "d", format=99), "format 99")
    refused(Forge(new_run_id()).run().pack(tmp_path / "e", members=[]), "lists no members")
    refused(Forge(new_run_id()).run().file("manifest.json", b"{").pack(tmp_path / "f", manifest=False), "damaged")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"run_id": "../../../etc"}, "not a run id"),
        ({"run_id": 5}, "not a run id"),
        ({"status": "EXEC"}, "only finished runs"),
        ({"status": "DONE"}, "status"),
        ({"outcome": None}, "only finished runs"),
        ({"outcome": "won"}, "outcome"),
        ({"step": "ten"}, "step"),
        ({"step": 2**70}, "64 bits"),
        ({"tags": "abc"}, "tags"),
        ({"tags": [1]}, "tags"),
        ({"seed": 1.5}, "seed"),
        ({"parent": {"run_id": "../..", "step": 1, "sha256": "x"}}, "parent"),
        ({"parent": {}}, "parent"),
        ({"name": ...}, "lacks name"),
        ({"name": None}, "name"),
        ({"created_at": "yesterday"}, "created_at"),
        ({"notes": "x" * (1 << 21)}, "larger"),
    ],
)
def test_a_record_that_is_not_one_of_a_finished_run_is_refused(forge, refused, tmp_path, changes, reason):
    refused(forge.run(**changes).pack(tmp_path / "a"), reason)


@pytest.mark.parametrize(
    "events",
    [
        b"{",
        b"[]\n",
        b"{}\n",
        b'{"seq": 1}\n',
        b"\xff\n",
        b"[" * 100_000,
        json.dumps({**dataclasses.asdict(story_of("x")[0]), "run_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV"}).encode(),
    ],
)
def test_a_damaged_or_foreign_history_is_refused(forge, refused, tmp_path, events):
    forge.file("run.json", record_bytes(finished_record(forge.run_id))).file("story.jsonl", events)
    refused(forge.pack(tmp_path / "a"), "story.jsonl")


def test_daemon_private_fields_of_a_foreign_record_are_ignored(forge, home, tmp_path):
    home.create()
    archive = forge.run(pid=1, mark="x", run_token_sha256="known", claimed=True, unknown="new").pack(tmp_path / "a")
    imported = import_archive(archive, home)
    assert (imported.record.pid, imported.record.mark, imported.record.claimed) == (0, "", False)
    assert imported.record.run_token_sha256 == ""
    imported.abandon()


def test_an_archive_that_is_none_is_refused(refused, tmp_path):
    for number, data in enumerate((b"", b"hello", gzip.compress(b""), gzip.compress(b"x" * 2000), b"\x1f\x8b\x08")):
        (tmp_path / str(number)).write_bytes(data)
        refused(tmp_path / str(number), "archive|header")
    refused(tmp_path / "not-there", "cannot be read")


def test_data_after_the_end_is_refused(forge, refused, tmp_path):
    refused(forge.run().pack(tmp_path / "a", tail=b"more"), "after its end")


def test_an_archive_cut_anywhere_or_with_a_flipped_bit_is_never_taken_in(forge, home, refused, tmp_path):
    whole = forge.run().file("run/x", random.Random(1).randbytes(2000)).pack(tmp_path / "whole").read_bytes()
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"")
    for cut in range(0, len(whole), 17):
        damaged.write_bytes(whole[:cut])
        refused(damaged, ".")
    chosen = random.Random(2)
    for _ in range(150):
        flipped = bytearray(whole)
        # The gzip header's flags, time and system bytes mean nothing; everything after them does.
        flipped[chosen.randrange(10, len(whole))] ^= 1 << chosen.randrange(8)
        damaged.write_bytes(flipped)
        if not _unpacks_to(flipped, gzip.decompress(whole)):  # the bits that fill up the last byte mean nothing
            refused(damaged, ".")


def _unpacks_to(packed: bytes, expected: bytes) -> bool:
    try:
        return gzip.decompress(packed) == expected
    except (OSError, EOFError, zlib.error):
        return False


# ---------------------------------------------------------------- size and deletion


def test_size_and_deletion_cover_every_place_of_a_run(home, run):
    segment = fastlane_path(run.run_id)
    segment.write_bytes(bytes(4096))
    neighbor = fastlane_path(new_run_id())
    neighbor.write_bytes(b"x")
    try:
        size = size_of_run(home, run.run_id)
        assert size > 300_000
        assert delete_run_files(home, run.run_id) == size
        assert not list(home.root.rglob(f"*{run.run_id}*"))
        assert not segment.exists()
        assert neighbor.exists()
    finally:
        neighbor.unlink()
    assert delete_run_files(home, run.run_id) == 0
    assert size_of_run(home, run.run_id) == 0


def test_deletion_never_follows_a_link(home, run, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("keep")
    folder = home.run_folder(run.run_id).root
    (folder / "link").symlink_to(tmp_path / "precious")
    (folder / "file-link").symlink_to(tmp_path / "precious" / "file")
    assert size_of_run(home, run.run_id) < 400_000
    delete_run_files(home, run.run_id)
    assert (tmp_path / "precious" / "file").read_text() == "keep"
    assert not folder.exists()


def test_folders_that_a_worker_has_closed_are_deleted_too(home, run):
    closed = home.run_folder(run.run_id).root / "closed"
    (closed / "below").mkdir(parents=True)
    (closed / "below" / "x").write_text("x")
    (closed / "below").chmod(0)
    closed.chmod(0o500)
    delete_run_files(home, run.run_id)
    assert not home.run_folder(run.run_id).root.exists()


def test_deletion_never_descends_into_what_is_mounted_below_a_run(home, run, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("keep")
    mount = home.run_folder(run.run_id).root / "empty" / "a mount"
    mount.mkdir()
    before = everything(tmp_path)
    program = (
        "import sys; from pathlib import Path; from mosaic_wire.paths import Home\n"
        "from gym_gui.services.trainer.run_files import delete_run_files, remove\n"
        "home, run_id, folder = Home(Path(sys.argv[1])), sys.argv[2], Path(sys.argv[3])\n"
        "for call, given in ((delete_run_files, (home, run_id)), (remove, (folder,))):\n"
        "    try: call(*given)\n"
        "    except Exception as error: print(error)\n"
    )
    script = 'mount --bind "$1" "$2" || exit 77; shift 2; exec "$@"'
    message = ("sh", "-c", script, "sh", tmp_path / "precious", mount, sys.executable, "-c", program)
    done = subprocess.run(
        ["unshare", "-rm", *message, home.root, run.run_id, mount.parent], capture_output=True, text=True, check=False
    )
    if not done.stdout and done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr}")
    assert everything(tmp_path) == before
    assert done.stdout.count(f"{mount}") == 2, done
    assert f"cannot be deleted: {mount}: something is mounted there; unmount it first" in done.stdout


def test_a_deletion_that_fails_names_the_file_and_leaves_a_whole_run_or_none(home, run, monkeypatch):
    folder = home.run_folder(run.run_id)
    before = everything(home.root)
    unlink, rename = os.unlink, os.rename

    def refuse(call, name):
        def refusing(path, *args, **kwargs):
            if Path(path).name == name:
                raise PermissionError(1, "Operation not permitted", path)
            return call(path, *args, **kwargs)

        return refusing

    monkeypatch.setattr(os, "rename", refuse(rename, home.worker_config_file(run.run_id).name))
    with pytest.raises(NotPossibleNow, match=f"{run.run_id}.json: Operation not permitted"):
        delete_run_files(home, run.run_id)
    assert everything(home.root) == before
    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(os, "unlink", refuse(unlink, "state.json"))
    with pytest.raises(NotPossibleNow, match=r"cannot be deleted: /.*/state\.json: Operation not permitted"):
        delete_run_files(home, run.run_id)
    assert not folder.root.exists()
    assert not home.config_file(run.run_id).exists()
    monkeypatch.undo()
    delete_run_files(home, run.run_id)
    assert not list(home.root.rglob(f"*{run.run_id}*"))


@pytest.mark.parametrize("run_id", ["..", "../..", "", "x" * 26, "/etc"])
def test_a_run_id_that_is_none_never_touches_a_path(home, run, run_id):
    before = everything(home.root)
    for call in (delete_run_files, size_of_run):
        with pytest.raises(ValueError, match="run id"):
            call(home, run_id)
    assert everything(home.root) == before
