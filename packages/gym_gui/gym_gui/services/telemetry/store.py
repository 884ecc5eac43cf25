"""Steps and episodes in `telemetry/telemetry.sqlite`: one row each, written in batches by one thread.

A row's key is (run, number), and the worker counts: what is sent twice is stored once, and what was acknowledged is
there after a kill -9. Messages are kept as the bytes they came in, with their checksum; the columns beside them are for
looking things up. A store that is damaged beyond use is set aside, and a new one begun: runs must not wait for it.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from mosaic_wire.paths import make_private_folder
from mosaic_wire.proto import trainer_pb2 as pb

from gym_gui.services.trainer.errors import TrainerError

logger = logging.getLogger(__name__)

Kind = Literal["steps", "episodes"]
KINDS: tuple[Kind, ...] = ("steps", "episodes")

_VERSION = 2
_SCHEMA = """
CREATE TABLE IF NOT EXISTS {kind} (
    run INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    episode INTEGER NOT NULL,
    message BLOB NOT NULL,
    crc INTEGER,
    PRIMARY KEY (run, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS {kind}_by_episode ON {kind} (run, episode, seq);
"""
_RUNS = "CREATE TABLE IF NOT EXISTS runs (run INTEGER PRIMARY KEY, run_id TEXT NOT NULL UNIQUE) STRICT;"
_PAGE = 1_000


class TelemetryError(TrainerError):
    """The store cannot be used now; says why."""


@dataclass(frozen=True)
class Totals:
    """What is stored of a run."""

    steps: int
    episodes: int
    last_step: int
    last_episode: int


class Page(NamedTuple):
    """Messages in their order; those whose checksum does not fit are left out and counted."""

    messages: list[bytes]
    last_seq: int
    damaged: int


class TelemetryStore:
    """Open for one daemon. Writes come from one thread; reads may come from others."""

    def __init__(self, path: Path) -> None:
        self._path = path
        make_private_folder(path.parent)
        self._lock = threading.Lock()
        self._runs: dict[str, int] = {}
        try:
            self._writer = self._opened()
        except (
            sqlite3.OperationalError
        ) as error:  # a full disk, a folder without rights: nothing is wrong with the file
            raise TelemetryError(f"the telemetry store {path} cannot be used: {error}") from error
        except sqlite3.DatabaseError as error:
            aside = self._set_aside()
            logger.error("%s is damaged (%s): it was set aside as %s, a new one begins", path, error, aside.name)
            with self._explained():
                self._writer = self._opened()

    def _opened(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=30)
        try:
            _set_up(connection)
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version > _VERSION:
                raise TelemetryError(f"{self._path} was written by a newer MOSAIC (version {version}); update this one")
            if version == 1:
                for kind in KINDS:  # rows of that version have no checksum
                    connection.execute(f"ALTER TABLE {kind} ADD COLUMN crc INTEGER")
            connection.executescript(_RUNS + "".join(_SCHEMA.format(kind=kind) for kind in KINDS))
            connection.execute(f"PRAGMA user_version = {_VERSION}")
            for table in ("runs", *KINDS):  # its first pages are read now, not when a worker waits
                connection.execute(f"SELECT max(run) FROM {table}").fetchone()
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_aside(self) -> Path:
        aside = self._path.with_name(f"{self._path.name}.damaged-{int(time.time())}")
        for suffix in ("", "-wal", "-shm"):
            part = self._path.with_name(self._path.name + suffix)
            if part.exists():
                part.rename(aside.with_name(aside.name + suffix))
        return aside

    def _connect(self) -> sqlite3.Connection:
        with self._explained():
            connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=30)
            _set_up(connection)
            return connection

    def _explained(self) -> _Explained:
        return _Explained(self._path)

    # ------------------------------------------------------------------ writing

    def append(self, kind: Kind, batches: Iterable[tuple[str, Sequence[pb.RunStep] | Sequence[pb.RunEpisode]]]) -> None:
        """Store the batches of several runs in one transaction."""
        with self._explained(), self._lock:
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                for run_id, messages in batches:
                    run = self._run(run_id)
                    rows = [_row(run, message) for message in messages]
                    self._writer.executemany(f"INSERT OR IGNORE INTO {kind} {_COLUMNS} VALUES (?, ?, ?, ?, ?)", rows)
                self._writer.execute("COMMIT")
            except BaseException:
                self._runs.clear()  # a run that was made in this transaction is not there
                if self._writer.in_transaction:  # a full disk has ended it already
                    self._writer.execute("ROLLBACK")
                raise

    def _run(self, run_id: str) -> int:
        number = self._runs.get(run_id)
        if number is None:
            self._writer.execute("INSERT OR IGNORE INTO runs (run_id) VALUES (?)", (run_id,))
            number = self._writer.execute("SELECT run FROM runs WHERE run_id = ?", (run_id,)).fetchone()[0]
            self._runs[run_id] = number
        return number

    def forget(self, run_id: str) -> None:
        """Remove what is stored of a run."""
        with self._explained(), self._lock:
            row = self._writer.execute("SELECT run FROM runs WHERE run_id = ?", (run_id,)).fetchone()
            if row is None:
                return
            self._writer.execute("BEGIN IMMEDIATE")
            for table in (*KINDS, "runs"):
                self._writer.execute(f"DELETE FROM {table} WHERE run = ?", row)
            self._writer.execute("COMMIT")
            self._runs.pop(run_id, None)

    # ------------------------------------------------------------------ reading

    def last_seq(self, kind: Kind, run_id: str) -> int:
        """The last number stored; 0: none."""
        with closing(self._connect()) as connection, self._explained():
            query = f"SELECT max(seq) FROM {kind} WHERE run = (SELECT run FROM runs WHERE run_id = ?)"
            return connection.execute(query, (run_id,)).fetchone()[0] or 0

    def next_episode(self, kind: Kind, run_id: str) -> int:
        """The number after the highest one stored; 0: none is."""
        with closing(self._connect()) as connection, self._explained():
            query = f"SELECT max(episode) FROM {kind} WHERE run = (SELECT run FROM runs WHERE run_id = ?)"
            highest = connection.execute(query, (run_id,)).fetchone()[0]
        return 0 if highest is None else highest + 1

    def totals(self, run_id: str) -> Totals:
        with closing(self._connect()) as connection, self._explained():
            of_run = "WHERE run = (SELECT run FROM runs WHERE run_id = ?)"
            queries = [f"SELECT count(*), coalesce(max(seq), 0) FROM {kind} {of_run}" for kind in KINDS]
            found = [connection.execute(query, (run_id,)).fetchone() for query in queries]
        return Totals(found[0][0], found[1][0], found[0][1], found[1][1])

    def read(self, kind: Kind, run_id: str, since_seq: int, episode: int | None = None) -> Iterator[Page]:
        """Messages after a number, in order, a page at a time."""
        of_episode = "" if episode is None else "AND episode = :episode"
        query = (
            f"SELECT seq, message, crc FROM {kind} WHERE run = (SELECT run FROM runs WHERE run_id = :run_id)"
            f" AND seq > :since {of_episode} ORDER BY seq LIMIT {_PAGE}"
        )
        with closing(self._connect()) as connection, self._explained():
            while True:
                values = {"run_id": run_id, "since": since_seq, "episode": episode}
                rows = connection.execute(query, values).fetchall()
                if not rows:
                    return
                since_seq = rows[-1][0]
                intact = [message for seq, message, crc in rows if crc is None or crc == _checksum(seq, message)]
                if damaged := len(rows) - len(intact):
                    logger.error("%s: %d damaged %s of run %s are left out", self._path, damaged, kind, run_id)
                yield Page(intact, since_seq, damaged)

    def close(self) -> None:
        self._writer.close()


_COLUMNS = "(run, seq, episode, message, crc)"


def _row(run: int, message: pb.RunStep | pb.RunEpisode) -> tuple[int, int, int, bytes, int]:
    data = message.SerializeToString()
    return run, message.seq, message.episode, data, _checksum(message.seq, data)


def _checksum(seq: int, message: bytes) -> int:
    return zlib.crc32(message, seq & 0xFFFFFFFF)


def _set_up(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    # A commit survives the death of this process; of the last moments before a power cut the worker has a copy.
    connection.execute("PRAGMA synchronous = NORMAL")


class _Explained:
    """Turns SQLite's words into a sentence about this file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, sqlite3.Error):
            raise TelemetryError(f"the telemetry store {self._path} cannot be used: {error}") from error
