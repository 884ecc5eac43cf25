"""The registry's SQLite file: opening, migrating, transactions, and errors in words.

Two connections: one fsyncs each commit (synchronous=FULL), one does not (headlines, which the next heartbeat repeats).
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from gym_gui.services.trainer.errors import RegistryError, RegistryTooNew, RegistryUnwritable
from gym_gui.services.trainer.registry_schema import APPLICATION_ID, Migration

logger = logging.getLogger(__name__)

BUSY_TIMEOUT_S = 5.0
"""How long to wait for another process that holds the write lock; a client waits longer for its answer."""
_STILL_BUSY_TIMEOUT_S = 0.1
"""The same once it has held the lock that long: readers wait behind a writer"""
_OPENING_TIMEOUT_S = 30.0

_JOURNAL_LIMIT_BYTES = 16 * 2**20
_MAGIC = b"SQLite format 3\0"
_SMALLEST_PAGE_BYTES = 512

_NO_ROOM = {sqlite3.SQLITE_FULL}
_NOT_WRITABLE = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}
_HELD = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}


def explain(error: sqlite3.Error, database: Path) -> RegistryError:
    """Say in words what SQLite's error means and what to do about it."""
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
    return RegistryError(f"the registry {database} could not do that: {error}")


def damaged(database: Path, detail: str) -> RegistryUnwritable:
    """The error for a file that is not, or no longer, a sound registry."""
    return RegistryUnwritable(
        f"{database} is damaged or not a MOSAIC registry ({detail}). Restore it from a backup, or move it away "
        "(with its -wal and -shm files): the run folders stay as they are and a new registry is begun"
    )


class RegistryDatabase:
    """An open, migrated registry file; safe to use from several threads."""

    def __init__(
        self, database: Path, migrations: Sequence[Migration], *, fail_write: Callable[[], None] | None = None
    ) -> None:
        self.path = database
        self.fail_write = fail_write
        """Test seam: called before each COMMIT; what it raises is a crash at this point."""
        # One lock for both connections: a thread of ours never meets another one's file lock.
        self._lock = threading.RLock()
        self._is_held = False
        """Another program has the write lock and did not let go of it in time"""
        with self._explained():
            _refuse_what_is_not_ours(database, len(migrations))
            _create_private(database)
            self._durable = _connect(database, synchronous="FULL")
            try:
                _switch_to_wal(self._durable)
                self._check_its_structure()
                self._migrate(migrations)
                self._quick = _connect(database, synchronous="NORMAL")
            except BaseException:
                self._durable.close()
                raise
            self._inode, self._log_inode = database.stat().st_ino, self._inode_of_the_log()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise explain(error, self.path) from error
        except UnicodeDecodeError as error:
            # SQLite quotes the broken bytes in its own message, which Python then cannot read.
            raise damaged(self.path, "text that is not UTF-8") from error
        except OSError as error:
            raise RegistryUnwritable(f"{self.path} cannot be used: {error.strerror or error}") from error
        except OverflowError as error:
            raise RegistryError(f"a number is too large for the registry (64 bits): {error}") from error

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """One consistent view of the database."""
        with self._lock, self._explained():
            self._check_the_log_is_still_there()
            self._durable.execute("BEGIN")
            try:
                yield self._durable
            finally:
                self._leave(self._durable)

    @contextmanager
    def write(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it is on disk when this block ends, or none of it."""
        with self._lock, self._explained():
            self._check_the_file_is_still_there()
            self._check_the_log_is_still_there()
            connection = self._durable if durable else self._quick
            self._begin(connection)
            try:
                yield connection
                if self.fail_write is not None:
                    self.fail_write()
                connection.execute("COMMIT")
            finally:
                self._leave(connection)

    def _begin(self, connection: sqlite3.Connection) -> None:
        is_held = False
        try:
            # IMMEDIATE: wait for the lock here, where the busy timeout works, not in the middle.
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            is_held = error.sqlite_errorcode & 0xFF in _HELD
            raise
        finally:
            if is_held != self._is_held:
                self._is_held = is_held
                for each in (self._durable, self._quick):
                    timeout_s = _STILL_BUSY_TIMEOUT_S if is_held else BUSY_TIMEOUT_S
                    each.execute(f"PRAGMA busy_timeout = {timeout_s * 1000:.0f}")

    def close(self) -> None:
        """Close both connections; the last one to close a registry folds its journal into the file."""
        with self._lock, self._explained():
            self._log_inode = None  # the log goes with the last connection
            self._quick.close()
            self._durable.close()

    @staticmethod
    def _leave(connection: sqlite3.Connection) -> None:
        # After a commit there is nothing to undo; after a full disk SQLite has undone it already.
        with suppress(sqlite3.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _check_the_file_is_still_there(self) -> None:
        try:
            same = self.path.stat().st_ino == self._inode
        except FileNotFoundError:
            same = False
        if not same:
            # SQLite would go on writing to the unlinked file, and every change would be lost at exit.
            raise RegistryUnwritable(
                f"{self.path} was moved, deleted or replaced while it was in use; nothing was changed. "
                "Put it back or restart the daemon (`mosaic daemon stop`, `mosaic daemon start`)"
            )

    def _check_the_log_is_still_there(self) -> None:
        """Save what a deleted write-ahead log held: SQLite would keep appending to the deleted file."""
        if self._inode_of_the_log() == self._log_inode:
            return
        if self._log_inode is not None:
            logger.error("the write-ahead log was removed beside %s; what it held was saved", self.path)
            # The open connections still have the deleted log: fold it into the database, then begin a new one.
            for connection in (self._quick, self._durable):
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                connection.close()
            self._durable = _connect(self.path, synchronous="FULL")
            self._quick = _connect(self.path, synchronous="NORMAL")
        self._log_inode = self._inode_of_the_log()

    def _inode_of_the_log(self) -> int | None:
        """SQLite creates the log with the first transaction."""
        try:
            return self.path.with_name(f"{self.path.name}-wal").stat().st_ino
        except FileNotFoundError:
            return None

    def _check_its_structure(self) -> None:
        # Found now (2 ms a megabyte) rather than by whichever query first touches the broken page.
        verdict = self._durable.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise damaged(self.path, " ".join(verdict.split()))

    def _migrate(self, migrations: Sequence[Migration]) -> None:
        connection = self._durable
        if _pragma(connection, "user_version") == len(migrations):
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = _pragma(connection, "user_version")  # somebody else may have done it meanwhile
            if version == 0 and connection.execute("SELECT 1 FROM sqlite_schema").fetchone():
                raise damaged(self.path, "it has tables but no schema version")
            if version > len(migrations):
                raise _too_new(self.path, version, len(migrations))
            for number, migration in enumerate(migrations[version:], version + 1):
                for statement in migration:
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {number}")
            if self.fail_write is not None:
                self.fail_write()
            connection.execute("COMMIT")
        finally:
            self._leave(connection)


def _refuse_what_is_not_ours(database: Path, newest: int) -> None:
    """Look before opening for writing: a newer or foreign file keeps every byte.

    It is looked at without a lock. Who is refused while another process writes it may have seen half of that: the
    verdict counts once the file has kept still.
    """
    deadline = time.monotonic() + _OPENING_TIMEOUT_S
    while True:
        before = _stamps(database)
        try:
            return _look(database, newest)
        except (RegistryError, sqlite3.DatabaseError, OSError):
            if _stamps(database) == before or time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def _stamps(database: Path) -> list[tuple[int, int, int] | None]:
    """What changes when somebody writes the database or its journals."""
    stamps: list[tuple[int, int, int] | None] = []
    for suffix in ("", "-wal", "-journal"):
        try:
            stat = database.with_name(database.name + suffix).stat()
            stamps.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
        except OSError:
            stamps.append(None)
    return stamps


def _look(database: Path, newest: int) -> None:
    if not database.parent.is_dir():
        raise RegistryUnwritable(f"{database.parent} is not a folder; create it or set MOSAIC_HOME to another one")
    if not database.exists():
        return
    if not database.is_file():
        raise RegistryUnwritable(f"{database} is in the way of the registry: it is not a file; move it away")
    if database.stat().st_size == 0 or database.with_name(f"{database.name}-journal").exists():
        return  # new, or its very first page was being written when the machine went down: SQLite undoes that
    with database.open("rb") as stream:
        if stream.read(len(_MAGIC)) != _MAGIC or database.stat().st_size < _SMALLEST_PAGE_BYTES:
            raise damaged(database, "it is not an SQLite file")  # SQLite takes a stump for an empty database
    journal = database.with_name(f"{database.name}-wal")
    # Without a journal `immutable` leaves no -wal and -shm behind; with one it would not see what the journal holds.
    mode = "mode=ro" if journal.exists() and journal.stat().st_size else "mode=ro&immutable=1"
    with closing(sqlite3.connect(f"{database.absolute().as_uri()}?{mode}", uri=True)) as connection:
        connection.execute("BEGIN")  # all three as of the same moment: another process may be making it just now
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
        f"{database} was written by a newer MOSAIC (schema version {version}; this one knows {newest}) "
        "and was left untouched. Update MOSAIC, or set MOSAIC_HOME to another folder"
    )


def _create_private(database: Path) -> None:
    """Create the file for this user alone, whatever the umask; SQLite's -wal and -shm files inherit its mode.

    Only before the first connection: closing the file beside SQLite drops its POSIX locks, and the next program that
    reads the database then deletes the write-ahead log as if nobody used it.
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
    # Changing the journal mode does not wait for a lock, whatever the busy timeout: ask again.
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
