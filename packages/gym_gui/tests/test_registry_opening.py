"""Opening the registry: old, new, foreign, on a full or read-only disk."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from gym_gui.services.trainer import registry_database
from gym_gui.services.trainer.errors import RegistryError, RegistryTooNew, RegistryUnwritable
from gym_gui.services.trainer.fsm import RunEvent, RunStatus
from gym_gui.services.trainer.records import NewRun
from gym_gui.services.trainer.registry import RunRegistry
from mosaic_wire.ids import new_run_id

E = RunEvent
NEWEST = len(registry_database.MIGRATIONS)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "trainer.sqlite"


def submit(registry: RunRegistry, **fields: object) -> str:
    run_id = new_run_id()
    registry.submit(NewRun(run_id, "random", **fields))  # type: ignore[arg-type]
    return run_id


def files_of(database: Path) -> dict[str, bytes]:
    """The database and its journal, byte for byte (-shm is an index that any reader rebuilds)."""
    return {
        path.name: path.read_bytes()
        for path in database.parent.glob(f"{database.name}*")
        if not path.name.endswith("-shm")
    }


def version_of(database: Path) -> int:
    with closing(sqlite3.connect(database)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


# ---------------------------------------------------------------- versions


def test_a_new_registry_is_for_this_user_alone_and_has_the_newest_version(database: Path) -> None:
    before = os.umask(0)
    try:
        with RunRegistry(database) as registry:
            submit(registry)
            for path in database.parent.glob("trainer.sqlite*"):
                assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    finally:
        os.umask(before)
    assert version_of(database) == NEWEST


# The schema as an older MOSAIC might have had it: no silence limit, no notes.
OLDER = tuple(
    statement.replace("silence_s REAL,\n", "\n").replace("notes TEXT NOT NULL DEFAULT '',\n", "\n")
    for statement in registry_database.MIGRATIONS[0]
)
ADD_WHAT_IT_LACKS = (
    "ALTER TABLE runs ADD COLUMN silence_s REAL",
    "ALTER TABLE runs ADD COLUMN notes TEXT NOT NULL DEFAULT ''",
    "UPDATE runs SET notes = 'from before' WHERE status = 'TERM'",
    # What the real migrations added since.
    *(statement for migration in registry_database.MIGRATIONS[1:] for statement in migration),
)


def make_an_older_database(database: Path) -> tuple[str, str]:
    """Two runs, one of them finished, in a file of version 1 of a history that has two."""
    queued, done = new_run_id(), new_run_id()
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        for statement in OLDER:
            connection.execute(statement)
        insert = "INSERT INTO runs (run_id, status, outcome, worker_type, created_at) VALUES (?, ?, ?, 'random', 5)"
        connection.execute(insert, (queued, "INIT", None))
        connection.execute(insert, (done, "TERM", "failed"))
        connection.execute("PRAGMA user_version = 1")
    return queued, done


def test_an_older_database_is_migrated_with_its_runs(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_database, "MIGRATIONS", (OLDER, ADD_WHAT_IT_LACKS))
    queued, done = make_an_older_database(database)
    with closing(sqlite3.connect(database)) as connection, pytest.raises(sqlite3.OperationalError, match="notes"):
        connection.execute("SELECT notes FROM runs")
    with RunRegistry(database) as registry:
        assert registry.get(done).notes == "from before"
        assert registry.get(queued).notes == ""
        assert registry.record(queued, "edited", notes="now", silence_s=4.5).silence_s == 4.5
        assert registry.apply(queued, E.DISPATCHED).status is RunStatus.HSHK
        submit(registry, notes="new")
    assert version_of(database) == 2
    with RunRegistry(database) as registry:
        assert [run.notes for run in registry.list().runs] == ["new", "from before", "now"]


def test_a_new_database_goes_through_every_migration(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_database, "MIGRATIONS", (OLDER, ADD_WHAT_IT_LACKS))
    with RunRegistry(database) as registry:
        assert registry.get(submit(registry, notes="kept")).notes == "kept"
    assert version_of(database) == 2


@pytest.mark.parametrize("last", ["ALTER TABLE runs ADD COLUMN notes TEXT", "NO SUCH STATEMENT"])
def test_a_migration_that_fails_leaves_the_older_database_whole(
    database: Path, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    make_an_older_database(database)
    monkeypatch.setattr(registry_database, "MIGRATIONS", (OLDER, (*ADD_WHAT_IT_LACKS, last)))
    with pytest.raises(RegistryError):
        RunRegistry(database)
    assert version_of(database) == 1
    monkeypatch.setattr(registry_database, "MIGRATIONS", (OLDER, ADD_WHAT_IT_LACKS))
    with RunRegistry(database) as registry:
        assert registry.list().matching == 2


def test_a_crash_in_a_migration_leaves_the_older_database_whole(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_database, "MIGRATIONS", (OLDER, ADD_WHAT_IT_LACKS))
    make_an_older_database(database)

    def crash() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        RunRegistry(database, fail_write=crash)
    assert version_of(database) == 1
    with RunRegistry(database) as registry:
        assert registry.list().matching == 2


def test_a_database_from_a_newer_version_is_refused_politely_and_keeps_every_byte(database: Path) -> None:
    with RunRegistry(database) as registry:
        submit(registry)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(f"PRAGMA user_version = {NEWEST + 1}")
    before, names = files_of(database), set(os.listdir(database.parent))
    with pytest.raises(RegistryTooNew, match=r"newer MOSAIC.*left untouched.*Update MOSAIC"):
        RunRegistry(database)
    assert files_of(database) == before
    assert set(os.listdir(database.parent)) == names


def test_a_newer_version_is_seen_in_the_journal_of_a_killed_daemon_and_the_journal_is_kept(database: Path) -> None:
    with RunRegistry(database) as registry:
        submit(registry)
    script = (
        "import os, sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
        f" c.execute('PRAGMA user_version = {NEWEST + 4}'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(database)], check=False, timeout=60)
    before = files_of(database)
    assert before["trainer.sqlite-wal"]
    for _ in range(2):
        with pytest.raises(RegistryTooNew, match=f"version {NEWEST + 4}"):
            RunRegistry(database)
        assert files_of(database) == before


def test_another_programs_database_is_refused_and_keeps_every_byte(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    before = files_of(database)
    with pytest.raises(RegistryUnwritable, match="not a MOSAIC registry"):
        RunRegistry(database)
    assert files_of(database) == before


@pytest.mark.parametrize("content", [b"x", b"not a database\n" * 500, b"\0" * 8192, b"SQLite format 3\0"])
def test_a_file_that_is_no_database_is_refused_and_keeps_every_byte(database: Path, content: bytes) -> None:
    database.write_bytes(content)
    with pytest.raises(RegistryUnwritable, match=r"damaged.*Restore it from a backup"):
        RunRegistry(database)
    assert files_of(database) == {"trainer.sqlite": content}


def test_an_empty_file_becomes_a_registry(database: Path) -> None:
    database.touch()
    with RunRegistry(database) as registry:
        assert registry.get(submit(registry))


def test_a_registry_that_is_made_while_one_looks_at_it_is_no_damaged_one(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its version must not be that of before and its tables those of after."""
    begun = sqlite3.connect(database, isolation_level=None)
    for statement in ("PRAGMA journal_mode = WAL", "CREATE TABLE x (y)", "DROP TABLE x"):
        begun.execute(statement)
    ask, others = registry_database._pragma, []

    def ask_while_another_makes_it(connection: sqlite3.Connection, name: str) -> int:
        answer = ask(connection, name)
        if name == "application_id" and not others:
            others.append("is at it")
            with RunRegistry(database) as registry:
                others.append(submit(registry))
        return answer

    monkeypatch.setattr(registry_database, "_pragma", ask_while_another_makes_it)
    with closing(begun), RunRegistry(database) as registry:
        assert [run.run_id for run in registry.list().runs] == others[1:]


def test_two_processes_that_make_the_registry_at_once_make_one(database: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from gym_gui.services.trainer.registry import RunRegistry;"
        " from gym_gui.services.trainer.records import NewRun; from mosaic_wire.ids import new_run_id;"
        " sys.stdin.read(); RunRegistry(Path(sys.argv[1])).submit(NewRun(new_run_id(), 'random'))"
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, str(database)], stdin=subprocess.PIPE) for _ in range(3)]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.close()
    assert [writer.wait(120) for writer in writers] == [0, 0, 0]
    with RunRegistry(database) as registry:
        assert registry.list().matching == 3


# ---------------------------------------------------------------- places that cannot be written


def test_a_missing_folder_and_a_folder_in_the_way_are_named(tmp_path: Path) -> None:
    with pytest.raises(RegistryUnwritable, match="nowhere is not a folder"):
        RunRegistry(tmp_path / "nowhere" / "trainer.sqlite")
    with pytest.raises(RegistryUnwritable, match="is not a file, but the registry's path; move it away"):
        RunRegistry(tmp_path)


def test_a_registry_deleted_or_replaced_under_a_daemon_takes_no_more_changes(database: Path) -> None:
    with RunRegistry(database) as registry:
        submit(registry)
        away = database.with_name("away")
        database.rename(away)
        with pytest.raises(RegistryUnwritable, match="moved, deleted or replaced"):
            submit(registry)
        database.touch()
        with pytest.raises(RegistryUnwritable, match="moved, deleted or replaced"):
            submit(registry)
        away.replace(database)
        submit(registry)
        assert registry.list().matching == 2


WRITER = """
import os, sys
from pathlib import Path
from gym_gui.services.trainer.records import NewRun
from gym_gui.services.trainer.registry import RunRegistry
from mosaic_wire.ids import new_run_id
registry = RunRegistry(Path(sys.argv[1]))
for line in sys.stdin:
    run_id = new_run_id()
    registry.submit(NewRun(run_id, "random"))
    print(run_id, flush=True)
os._exit(9)
"""


def test_another_programs_reading_costs_no_accepted_run(database: Path) -> None:
    """A foreign `select` closed the file as its last user and deleted the write-ahead log under the daemon."""
    select = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('select count(*) from runs').fetchone()"
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(database)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        accepted = []
        for _ in range(4):
            daemon.stdin.write("submit\n")
            daemon.stdin.flush()
            accepted.append(daemon.stdout.readline().strip())
            subprocess.run([sys.executable, "-c", select, str(database)], check=True, capture_output=True)
            assert database.with_name("trainer.sqlite-wal").exists()
        daemon.stdin.close()
        daemon.wait()
    with RunRegistry(database) as registry:
        assert sorted(run.run_id for run in registry.list().runs) == sorted(accepted)


@pytest.mark.expects_log("write-ahead log of .* was deleted")
def test_a_write_ahead_log_that_is_removed_costs_no_run(database: Path) -> None:
    with RunRegistry(database) as registry:
        before = submit(registry)
        for suffix in ("-wal", "-shm"):
            database.with_name(f"trainer.sqlite{suffix}").unlink()
        after = submit(registry)
        assert {run.run_id for run in registry.list().runs} == {before, after}
        with closing(sqlite3.connect(database)) as connection:  # as the next daemon would see it
            assert connection.execute("SELECT count(*) FROM runs").fetchone() == (2,)


def test_a_change_that_sqlite_refuses_as_read_only_is_explained(database: Path) -> None:
    with RunRegistry(database) as registry:
        submit(registry)
        with registry._database.read() as connection:
            connection.execute("PRAGMA query_only = ON")
        with pytest.raises(RegistryUnwritable, match=r"cannot be written.*read-only"):
            submit(registry)
        with registry._database.read() as connection:
            connection.execute("PRAGMA query_only = OFF")
        submit(registry)
        assert registry.list().matching == 2


def test_a_database_held_by_another_program_is_explained(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gym_gui.services.trainer.registry_database.BUSY_TIMEOUT_S", 0.05)
    with RunRegistry(database) as registry, closing(sqlite3.connect(database, isolation_level=None)) as stranger:
        stranger.execute("BEGIN IMMEDIATE")
        with pytest.raises(RegistryUnwritable, match=r"another program has held .* locked"):
            submit(registry)
        assert registry.list().matching == 0
        stranger.execute("ROLLBACK")
        submit(registry)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(mount, check=False, capture_output=True, timeout=60).returncode:
        pytest.skip("mounting a small disk needs root and the right to mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True, timeout=60)


def fill(disk: Path) -> Path:
    """Leave not one free byte."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as stream:
        for size in (65_536, 1):
            try:
                while stream.write(b"\0" * size) == size:
                    pass
            except OSError:
                continue
    return filler


def submit_until_refused(registry: RunRegistry, accepted: list[str]) -> str:
    """Submit until the registry says no (its journal may have room for a few); return its words."""
    try:
        for _ in range(500):
            accepted.append(submit(registry, notes="n" * 4_000))
    except RegistryUnwritable as error:
        return str(error)
    pytest.fail("the disk was never full")


def test_a_full_disk_refuses_changes_loses_nothing_and_works_again_with_room(small_disk: Path) -> None:
    database = small_disk / "trainer.sqlite"
    with RunRegistry(database) as registry:
        accepted = [submit(registry)]
        filler = fill(small_disk)
        refusal = submit_until_refused(registry, accepted)
        assert f"{database} is full" in refusal
        assert "Free some space" in refusal
        for change in (
            lambda: registry.apply(accepted[0], E.DISPATCHED),
            lambda: registry.record(accepted[0], "noted", reason="r" * 9_000),
            lambda: registry.save_filter("f", {"text": "t" * 9_000}),
        ):
            with pytest.raises(RegistryUnwritable):
                change()
        # Reading goes on.
        assert [run.run_id for run in registry.list().runs] == accepted[::-1]
        assert registry.get(accepted[0]).status is RunStatus.INIT
        filler.unlink()
        assert registry.apply(accepted[0], E.DISPATCHED).status is RunStatus.HSHK
        accepted.append(submit(registry))
    with RunRegistry(database) as registry:
        assert [run.run_id for run in registry.list().runs] == accepted[::-1]
        assert [event.seq for event in registry.events_since(0)] == list(range(1, len(accepted) + 2))


def test_a_registry_is_not_begun_on_a_full_disk_but_is_when_there_is_room(small_disk: Path) -> None:
    filler = fill(small_disk)
    for _ in range(2):
        with pytest.raises(RegistryUnwritable, match=r"full|failed|cannot be"):
            RunRegistry(small_disk / "trainer.sqlite")
    filler.unlink()
    with RunRegistry(small_disk / "trainer.sqlite") as registry:
        assert registry.get(submit(registry))


def test_a_read_only_disk_is_named_and_the_registry_opens_once_it_is_writable(small_disk: Path) -> None:
    database = small_disk / "trainer.sqlite"

    def remount(mode: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{mode}", str(small_disk)], check=True, timeout=60)

    remount("ro")
    try:
        with pytest.raises(RegistryUnwritable, match="Read-only file system"):
            RunRegistry(database)
        remount("rw")
        with RunRegistry(database) as registry:
            run_id = submit(registry)
        remount("ro")
        before = files_of(database)
        with pytest.raises(RegistryUnwritable, match="Read-only file system"):
            RunRegistry(database)
        assert files_of(database) == before
    finally:
        remount("rw")
    with RunRegistry(database) as registry:
        assert registry.get(run_id)


@pytest.mark.skipif(os.getuid() == 0, reason="root may write where the mode forbids it")
def test_a_folder_without_the_right_to_write_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o500)
    with pytest.raises(RegistryUnwritable, match="Permission denied"):
        RunRegistry(folder / "trainer.sqlite")
