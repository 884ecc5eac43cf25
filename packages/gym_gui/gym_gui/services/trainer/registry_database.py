"""The registry's SQLite file: opening, migrations, transactions and readable errors.

It has two connections: one fsyncs each commit (synchronous=FULL), the other one, for statistics, does not.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from gym_gui.services.trainer.errors import RegistryError, RegistryTooNew, RegistryUnwritable

logger = logging.getLogger(__name__)

BUSY_TIMEOUT_S = 5.0
"""How long to wait for another process that holds the write lock; clients wait longer for an answer"""
_STILL_BUSY_TIMEOUT_S = 0.1
"""The same after a first timeout, because readers wait behind a writer"""
_OPENING_TIMEOUT_S = 30.0

_JOURNAL_LIMIT_BYTES = 16 * 2**20
_MAGIC = b"SQLite format 3\0"
_SMALLEST_PAGE_BYTES = 512

_NO_ROOM = {sqlite3.SQLITE_FULL}
_NOT_WRITABLE = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}
_HELD = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}


def explain(error: sqlite3.Error, database: Path) -> RegistryError:
    """Return a SQLite error as one that states its meaning and a remedy."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _NO_ROOM:
        return RegistryUnwritable(
            f"the disk that holds {database} is full; nothing was changed. Free some space there and try again"
        )
    if code in _NOT_WRITABLE:
        return RegistryUnwritable(
            f"{database} cannot be written ({error}); nothing was changed. Check that its folder exists, "
            "that this user may write there and that the disk is not mounted read-only"
        )
    if code in _DAMAGED:
        return damaged(database, str(error))
    if code in _HELD:
        return RegistryUnwritable(
            f"another program has held {database} locked for more than {BUSY_TIMEOUT_S:.0f} s; nothing was changed. "
            "Close whatever else has the database open (a SQLite browser, a backup) and try again"
        )
    if code == sqlite3.SQLITE_IOERR:
        return RegistryUnwritable(
            f"reading or writing {database} failed ({error}); nothing was changed. "
            "Check the disk (full? unplugged? failing?) and try again"
        )
    return RegistryError(f"the registry {database} failed: {error}")


def damaged(database: Path, detail: str) -> RegistryUnwritable:
    """Return the error for a file that is not an intact registry."""
    return RegistryUnwritable(
        f"{database} is damaged or not a MOSAIC registry ({detail}). Restore it from a backup, or move it away "
        "(with its -wal and -shm files): the run folders stay as they are and a new registry is created"
    )


class RegistryDatabase:
    """An open, migrated registry file; thread-safe."""

    def __init__(self, database: Path, *, fail_write: Callable[[], None] | None = None) -> None:
        self.path = database
        self.fail_write = fail_write
        """Test hook called before each COMMIT; raising in it simulates a crash at this point"""
        # One lock for both connections, so that threads of the daemon never wait for each other's file locks.
        self._lock = threading.RLock()
        self._is_locked = False
        """Whether another program held the write lock for longer than the timeout"""
        with self._explained():
            _check_before_opening(database, len(MIGRATIONS))
            _create_private(database)
            self._durable = _connect(database, synchronous="FULL")
            try:
                _switch_to_wal(self._durable)
                self._check_integrity()
                self._migrate()
                self._quick = _connect(database, synchronous="NORMAL")
            except BaseException:
                self._durable.close()
                raise
            self._inode, self._known_wal_inode = database.stat().st_ino, self._wal_inode()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise explain(error, self.path) from error
        except UnicodeDecodeError as error:
            # SQLite quotes the broken bytes in its message, which Python cannot decode.
            raise damaged(self.path, "text that is not UTF-8") from error
        except OSError as error:
            raise RegistryUnwritable(f"{self.path} cannot be used: {error.strerror or error}") from error
        except OverflowError as error:
            raise RegistryError(f"a number is too large for the registry (64 bits): {error}") from error

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Return a connection in a read transaction."""
        with self._lock, self._explained():
            self._recover_deleted_wal()
            self._durable.execute("BEGIN")
            try:
                yield self._durable
            finally:
                self._rollback(self._durable)

    @contextmanager
    def write(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """Return a connection in a write transaction: when the block ends, all of it is on disk, or none of it."""
        with self._lock, self._explained():
            self._check_file_exists()
            self._recover_deleted_wal()
            connection = self._durable if durable else self._quick
            self._begin(connection)
            try:
                yield connection
                if self.fail_write is not None:
                    self.fail_write()
                connection.execute("COMMIT")
            finally:
                self._rollback(connection)

    def _begin(self, connection: sqlite3.Connection) -> None:
        is_held = False
        try:
            # IMMEDIATE: wait for the lock here, where the busy timeout applies, not in the middle.
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            is_held = error.sqlite_errorcode & 0xFF in _HELD
            raise
        finally:
            if is_held != self._is_locked:
                self._is_locked = is_held
                for each in (self._durable, self._quick):
                    timeout_s = _STILL_BUSY_TIMEOUT_S if is_held else BUSY_TIMEOUT_S
                    each.execute(f"PRAGMA busy_timeout = {timeout_s * 1000:.0f}")

    def close(self) -> None:
        """Close both connections; the last close of a registry merges its journal into the file."""
        with self._lock, self._explained():
            self._known_wal_inode = None  # closing the last connection removes the log
            self._quick.close()
            self._durable.close()

    @staticmethod
    def _rollback(connection: sqlite3.Connection) -> None:
        # There is nothing to roll back after a commit, or after a full disk, where SQLite rolled back itself.
        with suppress(sqlite3.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _check_file_exists(self) -> None:
        try:
            same = self.path.stat().st_ino == self._inode
        except FileNotFoundError:
            same = False
        if not same:
            # SQLite would keep writing to the unlinked file, and every change would be lost at exit.
            raise RegistryUnwritable(
                f"{self.path} was moved, deleted or replaced while it was in use; nothing was changed. "
                "Put it back or restart the daemon (`mosaic daemon stop`, `mosaic daemon start`)"
            )

    def _recover_deleted_wal(self) -> None:
        """Save the content of a deleted write-ahead log; SQLite would keep appending to the deleted file."""
        if self._wal_inode() == self._known_wal_inode:
            return
        if self._known_wal_inode is not None:
            logger.error("the write-ahead log of %s was deleted; its content was saved", self.path)
            # The connections still have the deleted log open: merge it into the database, then start a new one.
            for connection in (self._quick, self._durable):
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                connection.close()
            self._durable = _connect(self.path, synchronous="FULL")
            self._quick = _connect(self.path, synchronous="NORMAL")
        self._known_wal_inode = self._wal_inode()

    def _wal_inode(self) -> int | None:
        """Return the inode of the write-ahead log, or None before the first transaction creates it."""
        try:
            return self.path.with_name(f"{self.path.name}-wal").stat().st_ino
        except FileNotFoundError:
            return None

    def _check_integrity(self) -> None:
        # Find damage now (2 ms per megabyte) instead of in the first query that reads a broken page.
        result = self._durable.execute("PRAGMA quick_check(1)").fetchone()[0]
        if result != "ok":
            raise damaged(self.path, " ".join(result.split()))

    def _migrate(self) -> None:
        connection = self._durable
        if _pragma(connection, "user_version") == len(MIGRATIONS):
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = _pragma(connection, "user_version")  # another process may have migrated it meanwhile
            if version == 0 and connection.execute("SELECT 1 FROM sqlite_schema").fetchone():
                raise damaged(self.path, "it has tables but no schema version")
            if version > len(MIGRATIONS):
                raise _too_new(self.path, version, len(MIGRATIONS))
            for number, migration in enumerate(MIGRATIONS[version:], version + 1):
                for statement in migration:
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {number}")
            if self.fail_write is not None:
                self.fail_write()
            connection.execute("COMMIT")
        finally:
            self._rollback(connection)


def _check_before_opening(database: Path, newest: int) -> None:
    """Refuse a newer or foreign file before opening it for writing, so that it is not modified.

    The check takes no lock, so another process may be writing the file: a refusal counts only if the file did not
    change meanwhile.
    """
    deadline = time.monotonic() + _OPENING_TIMEOUT_S
    while True:
        before = _stamps(database)
        try:
            return _check_file(database, newest)
        except (RegistryError, sqlite3.DatabaseError, OSError):
            if _stamps(database) == before or time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def _stamps(database: Path) -> list[tuple[int, int, int] | None]:
    """Return values that change when a process writes the database or its journals."""
    stamps: list[tuple[int, int, int] | None] = []
    for suffix in ("", "-wal", "-journal"):
        try:
            stat = database.with_name(database.name + suffix).stat()
            stamps.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
        except OSError:
            stamps.append(None)
    return stamps


def _check_file(database: Path, newest: int) -> None:
    if not database.parent.is_dir():
        raise RegistryUnwritable(f"{database.parent} is not a folder; create it or set MOSAIC_HOME to another one")
    if not database.exists():
        return
    if not database.is_file():
        raise RegistryUnwritable(f"{database} is not a file, but the registry's path; move it away")
    if database.stat().st_size == 0 or database.with_name(f"{database.name}-journal").exists():
        return  # new, or the machine crashed while its first page was written, which SQLite rolls back
    with database.open("rb") as stream:
        if stream.read(len(_MAGIC)) != _MAGIC or database.stat().st_size < _SMALLEST_PAGE_BYTES:
            raise damaged(
                database, "it is not an SQLite file"
            )  # SQLite would treat a truncated file as an empty database
    journal = database.with_name(f"{database.name}-wal")
    # Without a journal, `immutable` creates no -wal and -shm files; with one, it would not see the journal's content.
    mode = "mode=ro" if journal.exists() and journal.stat().st_size else "mode=ro&immutable=1"
    with closing(sqlite3.connect(f"{database.absolute().as_uri()}?{mode}", uri=True)) as connection:
        connection.execute("BEGIN")  # consistent reads: another process may be creating it
        version = _pragma(connection, "user_version")
        owner = _pragma(connection, "application_id")
        empty = connection.execute("SELECT 1 FROM sqlite_schema").fetchone() is None
    if empty and version == 0:
        return
    if owner != APPLICATION_ID or version < 0:
        raise damaged(database, f"its application id is {owner:#x}, its schema version {version}")
    if version > newest:
        raise _too_new(database, version, newest)


def _too_new(database: Path, version: int, newest: int) -> RegistryTooNew:
    return RegistryTooNew(
        f"{database} was written by a newer MOSAIC (schema version {version}; this one supports {newest}) "
        "and was left untouched. Update MOSAIC, or set MOSAIC_HOME to another folder"
    )


def _create_private(database: Path) -> None:
    """Create the file for this user only, whatever the umask; SQLite's -wal and -shm files inherit its mode.

    Call this only before the first connection: closing the file later drops SQLite's POSIX locks, and the next program
    that reads the database then deletes the write-ahead log.
    """
    os.close(os.open(database, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _connect(database: Path, *, synchronous: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        database, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    try:
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"PRAGMA journal_size_limit = {_JOURNAL_LIMIT_BYTES}")
    except BaseException:
        connection.close()
        raise
    return connection


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    # Changing the journal mode ignores the busy timeout, so retry.
    deadline = time.monotonic() + _OPENING_TIMEOUT_S
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
            continue
        if mode != "wal":
            raise RegistryUnwritable(
                f"the file system of the registry cannot share memory (journal mode {mode}); "
                "set MOSAIC_HOME to a folder on a local disk"
            )
        return


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


# ---------------------------------------------------------------- registry schema


Migration = tuple[str, ...]
"""SQL statements run in one transaction (`executescript` would commit in between)"""

APPLICATION_ID = 0x4D4F5341
"""'MOSA' in the file's header identifies a registry"""

_RUNS = """
CREATE TABLE runs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id TEXT NOT NULL UNIQUE,
    status TEXT NOT NULL,
    outcome TEXT,
    reason TEXT NOT NULL DEFAULT '',
    name TEXT NOT NULL DEFAULT '',
    worker_type TEXT NOT NULL,
    worker_id TEXT NOT NULL DEFAULT '',
    algo TEXT NOT NULL DEFAULT '',
    env_id TEXT NOT NULL DEFAULT '',
    seed INTEGER,
    step INTEGER NOT NULL DEFAULT 0,
    total INTEGER NOT NULL DEFAULT 0,
    episodic_return REAL,
    sps REAL,
    seconds_since_step REAL,
    result TEXT,
    priority INTEGER NOT NULL DEFAULT 0,
    tags TEXT NOT NULL DEFAULT '[]',
    notes TEXT NOT NULL DEFAULT '',
    archived INTEGER NOT NULL DEFAULT 0,
    queue_reason TEXT NOT NULL DEFAULT '',
    parent TEXT,
    created_at REAL NOT NULL,
    started_at REAL NOT NULL DEFAULT 0,
    finished_at REAL NOT NULL DEFAULT 0,
    cpus REAL NOT NULL DEFAULT 1,
    gpus INTEGER NOT NULL DEFAULT 0,
    gpus_mandatory INTEGER NOT NULL DEFAULT 0,
    gpu_ids TEXT NOT NULL DEFAULT '[]',
    memory_mb INTEGER,
    max_wallclock_minutes REAL,
    silence_s REAL,
    attempt INTEGER NOT NULL DEFAULT 1,
    retries INTEGER NOT NULL DEFAULT 0,
    size_bytes INTEGER NOT NULL DEFAULT 0,
    protocol_version INTEGER NOT NULL DEFAULT 0,
    capabilities TEXT NOT NULL DEFAULT '{}',
    extras TEXT NOT NULL DEFAULT '{}',
    event_seq INTEGER NOT NULL DEFAULT 0,
    pid INTEGER NOT NULL DEFAULT 0,
    start_ticks INTEGER NOT NULL DEFAULT 0,
    boot_id TEXT NOT NULL DEFAULT '',
    mark TEXT NOT NULL DEFAULT '',
    run_token_sha256 TEXT NOT NULL DEFAULT '',
    session_token_sha256 TEXT NOT NULL DEFAULT '',
    worker_instance TEXT NOT NULL DEFAULT '',
    lifecycle_seq INTEGER NOT NULL DEFAULT 0,
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    pause_requested TEXT NOT NULL DEFAULT '',
    paused_by_signal INTEGER NOT NULL DEFAULT 0,
    released INTEGER NOT NULL DEFAULT 0,
    stalled INTEGER NOT NULL DEFAULT 0,
    no_progress INTEGER NOT NULL DEFAULT 0,
    fault_reason TEXT NOT NULL DEFAULT '',
    claimed INTEGER NOT NULL DEFAULT 0,
    CHECK ((status = 'TERM') = (outcome IS NOT NULL))
) STRICT
"""

_VERSION_1: Migration = (
    f"PRAGMA application_id = {APPLICATION_ID}",
    _RUNS,
    # Few runs are unfinished, so partial indexes stay small.
    "CREATE INDEX runs_unfinished ON runs (number) WHERE status <> 'TERM'",
    "CREATE INDEX runs_queued ON runs (status, priority DESC, number) WHERE status = 'INIT'",
    "CREATE INDEX runs_by_status ON runs (status)",
    "CREATE INDEX runs_by_outcome ON runs (outcome)",
    "CREATE INDEX runs_by_archived ON runs (archived)",
    # Enforces "exactly one terminal record", also for changes made with a SQL prompt.
    """
    CREATE TRIGGER runs_term_is_final BEFORE UPDATE OF status ON runs WHEN old.status = 'TERM'
    BEGIN SELECT RAISE(ABORT, 'a finished run does not change its status'); END
    """,
    # runs.tags keeps the order of tags; run_tags is its index, updated by triggers.
    """
    CREATE TABLE run_tags (
        tag TEXT NOT NULL,
        number INTEGER NOT NULL REFERENCES runs (number) ON DELETE CASCADE,
        PRIMARY KEY (tag, number)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX run_tags_by_run ON run_tags (number)",
    """
    CREATE TRIGGER runs_tagged_at_birth AFTER INSERT ON runs WHEN new.tags <> '[]'
    BEGIN INSERT OR IGNORE INTO run_tags (tag, number) SELECT value, new.number FROM json_each(new.tags); END
    """,
    """
    CREATE TRIGGER runs_retagged AFTER UPDATE OF tags ON runs WHEN new.tags <> old.tags
    BEGIN
        DELETE FROM run_tags WHERE number = new.number;
        INSERT OR IGNORE INTO run_tags (tag, number) SELECT value, new.number FROM json_each(new.tags);
    END
    """,
    """
    CREATE TABLE events (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
        timestamp REAL NOT NULL,
        kind TEXT NOT NULL,
        from_status TEXT NOT NULL,
        to_status TEXT NOT NULL,
        reason TEXT NOT NULL,
        payload TEXT NOT NULL,
        attempt INTEGER NOT NULL
    ) STRICT
    """,
    "CREATE INDEX events_by_run ON events (run_id, seq)",
    """
    CREATE TABLE submissions (
        key_sha256 TEXT PRIMARY KEY,
        run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX submissions_by_run ON submissions (run_id)",
    "CREATE TABLE filters (name TEXT PRIMARY KEY, query TEXT NOT NULL) STRICT, WITHOUT ROWID",
)

_VERSION_2: Migration = ("ALTER TABLE runs ADD COLUMN metrics TEXT NOT NULL DEFAULT '{}'",)

_VERSION_3: Migration = (
    "ALTER TABLE runs ADD COLUMN submitted_by TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE runs ADD COLUMN cancel_reason TEXT NOT NULL DEFAULT ''",
)

# The fingerprint of what was submitted with a key; empty for submissions to an older MOSAIC.
_VERSION_4: Migration = ("ALTER TABLE submissions ADD COLUMN fingerprint TEXT NOT NULL DEFAULT ''",)

_VERSION_5: Migration = ("ALTER TABLE runs ADD COLUMN pid_namespace TEXT NOT NULL DEFAULT ''",)

_VERSION_6: Migration = (
    "ALTER TABLE runs ADD COLUMN executor TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE runs ADD COLUMN job_id TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE runs ADD COLUMN node TEXT NOT NULL DEFAULT ''",
)

MIGRATIONS: tuple[Migration, ...] = (_VERSION_1, _VERSION_2, _VERSION_3, _VERSION_4, _VERSION_5, _VERSION_6)
