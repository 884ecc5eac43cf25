"""Telemetry of live workers: receive steps and episodes, store them, and forward them to subscribers.

Credits keep a worker from sending faster than the store can write: each message costs one until it is on disk. At zero
the run is starved; when half of the credits are free again, its worker gets a grant.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
import time
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from mosaic_wire.paths import make_private_folder
from mosaic_wire.proto import trainer_pb2 as pb

from gym_gui.services.trainer.errors import TrainerError

logger = logging.getLogger(__name__)

Message = pb.RunStep | pb.RunEpisode

CREDITS_PER_RUN = 10_000
_PARSE = {"steps": pb.RunStep.FromString, "episodes": pb.RunEpisode.FromString}


@dataclass(frozen=True)
class Receipt:
    """The answer to a worker that published a batch."""

    stored_seq: int
    credits: int
    next_episode: int = 0
    """Set for a worker that has not sent anything yet"""


@dataclass(frozen=True)
class Batch:
    """Messages that a subscriber receives together."""

    messages: list[Any]
    skipped: int = 0
    control: Control | None = None
    total: int = 0
    """Messages of the run that were stored when the stream began"""


_Unsaved = tuple[str, Sequence[Message], asyncio.Future[None]]
"""A run's messages, and what is done once they are stored"""


class TelemetryAsyncHub:
    """The telemetry of all runs of a daemon; `grant` sends credits to a run's worker over its control stream."""

    def __init__(self, store: TelemetryStore, grant: Callable[[str, int], None]) -> None:
        self._store, self._grant = store, grant
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="telemetry")
        self._bus = RunBus()
        self._spent: dict[str, int] = {}
        self._starved: set[str] = set()
        self._last: dict[tuple[str, Kind], int] = {}
        self._waiting: dict[Kind, list[_Unsaved]] = {}
        self._being_written: list[_Unsaved] = []
        self._writing: asyncio.Task[None] | None = None
        self._trouble = ""
        """Why messages cannot be stored now, or empty"""

    # ------------------------------------------------------------------ workers

    async def publish(self, run_id: str, kind: Kind, messages: Sequence[Message]) -> Receipt:
        """Store a batch and return when it is on disk; of a batch beyond the credits only the first part is stored."""
        if (run_id, kind) not in self._last:
            self._last[run_id, kind] = await self._in_thread(self._store.last_seq, kind, run_id)
        if not messages:
            await self._written_out(run_id)
            next_episode = await self._in_thread(self._store.next_episode, kind, run_id)
            return Receipt(self._last.get((run_id, kind), 0), self._credits(run_id), next_episode)
        accepted = messages[: self._credits(run_id)]
        if accepted:
            self._spent[run_id] = self._spent.get(run_id, 0) + len(accepted)
            if not self._credits(run_id):
                self._starved.add(run_id)
            await self._stored(run_id, kind, accepted)
        known = self._last.get((run_id, kind))
        if known is None:  # the run ended while its last batch was written
            return Receipt(accepted[-1].seq, 0)
        return Receipt(known, self._credits(run_id))

    def _credits(self, run_id: str) -> int:
        return max(0, CREDITS_PER_RUN - self._spent.get(run_id, 0))

    def _return_credits(self, run_id: str, count: int) -> None:
        if run_id not in self._spent:
            return  # it has ended meanwhile
        self._spent[run_id] -= count
        if run_id in self._starved and self._spent[run_id] <= CREDITS_PER_RUN // 2:
            self._starved.discard(run_id)
            self._grant(run_id, self._credits(run_id))

    async def _stored(self, run_id: str, kind: Kind, messages: Sequence[Message]) -> None:
        """Wait until the batch is stored; batches that arrive during a write share the next transaction."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(kind, []).append((run_id, messages, done))
        # A separate task, so that a worker that disconnects does not cancel the batches of other workers.
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write(), name="telemetry")
        await asyncio.shield(done)  # done is done when the batch is stored, even if its worker has died

    async def _written_out(self, run_id: str) -> None:
        """Wait for the batches that an earlier attempt of the run left behind."""
        batches = [*self._being_written, *(batch for waiting in self._waiting.values() for batch in waiting)]
        if left := [done for owner, _, done in batches if owner == run_id]:
            await asyncio.wait(left)

    async def _write(self) -> None:
        while self._waiting:
            await self._write_next()

    async def _write_next(self) -> None:
        kind, self._being_written = self._waiting.popitem()
        batches = self._being_written
        problem: Exception | None = None
        try:
            await self._in_thread(self._store.append, kind, [(run_id, messages) for run_id, messages, _ in batches])
        except Exception as error:  # noqa: BLE001 - raised to each waiting worker
            problem = error
            if not self._trouble:
                logger.error("steps and episodes cannot be stored; workers keep them: %s", error)
        else:
            if self._trouble:
                logger.info("steps and episodes can be stored again")
        self._trouble = "" if problem is None else str(problem)
        self._being_written = []
        for run_id, messages, done in batches:
            self._return_credits(run_id, len(messages))
            if problem is None:  # counted here, because the worker may have died: its next attempt continues after it
                self._accept(run_id, kind, messages)
                done.set_result(None)
            else:
                done.set_exception(problem)
                done.exception()  # no warning if no caller waits for it any more

    def _accept(self, run_id: str, kind: Kind, messages: Sequence[Message]) -> None:
        """Count stored messages and forward the new ones to subscribers."""
        known = self._last.get((run_id, kind))
        if known is not None:  # else the run has ended
            self._last[run_id, kind] = max(known, messages[-1].seq)
            self._bus.publish(run_id, kind, [message for message in messages if message.seq > known])

    async def _in_thread(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(call, *arguments))

    def is_starved(self, run_id: str) -> bool:
        """Return whether the run's worker has to wait for the store."""
        return run_id in self._starved

    # ------------------------------------------------------------------ clients

    async def stream(
        self, run_id: str, kind: Kind, since_seq: int, *, episode: int | None, follow: bool
    ) -> AsyncIterator[Batch]:
        """Yield stored messages after `since_seq`, then live ones; those a slow reader misses are counted.

        A negative `since_seq` selects that many of the last stored messages.
        """
        subscriber = self._bus.subscribe(run_id, kind)  # before reading the store, so that no message is missed
        try:
            if since_seq < 0:
                since_seq = max(0, since_seq + await asyncio.to_thread(self._store.last_seq, kind, run_id))
            total = await asyncio.to_thread(self._store.count, kind, run_id)
            pages = self._store.read(kind, run_id, since_seq, episode)
            while (page := await asyncio.to_thread(next, pages, None)) is not None:
                since_seq = page.last_seq
                yield Batch([_PARSE[kind](data) for data in page.messages], page.damaged, total=total)
            if not follow:
                return
            while (update := await subscriber.get()) is not None:
                waiting, skipped, control = update
                fresh = [
                    message
                    for message in waiting
                    if message.seq > since_seq and (episode is None or message.episode == episode)
                ]
                if fresh or skipped or control:
                    yield Batch(fresh, skipped, control[-1] if control else None, total)
        finally:
            self._bus.unsubscribe(subscriber)

    def end(self, run_id: str) -> None:
        """End the streams of a finished run and drop its state."""
        self._bus.end(run_id)
        self._spent.pop(run_id, None)
        self._starved.discard(run_id)
        for kind in KINDS:
            self._last.pop((run_id, kind), None)

    async def forget(self, run_id: str) -> None:
        """Delete the stored messages of a run."""
        await self._in_thread(self._store.forget, run_id)

    def close(self) -> None:
        """End the thread and close the store."""
        self._thread.shutdown(wait=True)
        self._store.close()


# ---------------------------------------------------------------- bus


CREDITS = 2_000
"""Messages a subscriber may be behind; further ones are skipped and counted"""


class Control(StrEnum):
    """Control events of a subscriber's flow."""

    STARVED = "STARVED"
    RESUMED = "RESUMED"


class Subscriber:
    """One reader of one topic; each queued message costs a credit until it is read."""

    def __init__(self, topic: tuple[str, str], credits: int) -> None:
        self.topic = topic
        self._credits = credits
        self._waiting: deque[Message] = deque()
        self._control: deque[Control] = deque()
        self._changed = asyncio.Event()
        self.skipped = 0
        self._is_starved = False
        self._is_over = False

    def offer(self, messages: Sequence[Message]) -> None:
        """Queue messages; beyond its credits the oldest are skipped and counted, so the last ones always arrive."""
        self._waiting.extend(messages)
        if (surplus := len(self._waiting) - self._credits) > 0:
            for _ in range(surplus):
                self._waiting.popleft()
            self.skipped += surplus
            if not self._is_starved:
                self._is_starved = True
                self._control.append(Control.STARVED)
        self._changed.set()

    def end(self) -> None:
        """End the subscription after the queued messages."""
        self._is_over = True
        self._changed.set()

    async def get(self) -> tuple[list[Message], int, list[Control]] | None:
        """Return all queued messages, the number skipped and control events; None at the end."""
        while not (self._waiting or self._control):
            if self._is_over:
                return None
            self._changed.clear()
            await self._changed.wait()
        messages = list(self._waiting)
        self._waiting.clear()
        control, skipped = list(self._control), self.skipped
        self._control.clear()
        self.skipped = 0
        if self._is_starved:  # it has credits again
            self._is_starved = False
            self._control.append(Control.RESUMED)
        return messages, skipped, control


class RunBus:
    """Forwards messages of (run, topic) to subscribers, in one event loop."""

    def __init__(self) -> None:
        self._subscribers: dict[tuple[str, str], set[Subscriber]] = {}

    def subscribe(self, run_id: str, topic: str, *, credits: int = CREDITS) -> Subscriber:
        """Return a new subscriber of a run's topic."""
        subscriber = Subscriber((run_id, topic), credits)
        self._subscribers.setdefault(subscriber.topic, set()).add(subscriber)
        return subscriber

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Remove a subscriber."""
        known = self._subscribers.get(subscriber.topic)
        if known is not None:
            known.discard(subscriber)
            if not known:
                del self._subscribers[subscriber.topic]

    def publish(self, run_id: str, topic: str, messages: Sequence[Message]) -> None:
        """Offer messages to the subscribers of a run's topic."""
        for subscriber in self._subscribers.get((run_id, topic), ()):
            subscriber.offer(messages)

    def end(self, run_id: str) -> None:
        """End the subscriptions of a finished run."""
        for (known, _), subscribers in self._subscribers.items():
            if known == run_id:
                for subscriber in subscribers:
                    subscriber.end()


# ---------------------------------------------------------------- store


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
    """The telemetry store cannot be used now."""


class Page(NamedTuple):
    """Messages in order, without damaged ones, which are counted."""

    messages: list[bytes]
    last_seq: int
    damaged: int


class TelemetryStore:
    """The SQLite store of telemetry; one thread writes, others may read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        make_private_folder(path.parent)
        self._lock = threading.Lock()
        self._runs: dict[str, int] = {}
        if os.path.lexists(path) and not path.is_file():
            logger.error(
                "%s is not a file: it was renamed to %s, and a new store is created", path, self._set_aside().name
            )
        try:
            self._writer = self._opened()
        except sqlite3.OperationalError as error:
            # A full disk or missing permissions: the file itself is intact.
            raise TelemetryError(f"the telemetry store {path} cannot be used: {error}") from error
        except sqlite3.DatabaseError as error:
            aside = self._set_aside()
            logger.error(
                "%s is damaged (%s): it was renamed to %s, and a new store is created", path, error, aside.name
            )
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
            for table in ("runs", *KINDS):  # read the first pages now, not while a worker waits
                connection.execute(f"SELECT max(run) FROM {table}").fetchone()
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_aside(self) -> Path:
        aside = self._path.with_name(f"{self._path.name}.damaged-{int(time.time())}")
        for suffix in ("", "-wal", "-shm"):
            part = self._path.with_name(self._path.name + suffix)
            if os.path.lexists(part):
                part.rename(aside.with_name(aside.name + suffix))
        return aside

    def _connect(self) -> sqlite3.Connection:
        with self._explained():
            connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=30)
            _set_up(connection)
            return connection

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise TelemetryError with this file's name instead of an SQLite error."""
        try:
            yield
        except sqlite3.Error as error:
            raise TelemetryError(f"the telemetry store {self._path} cannot be used: {error}") from error

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
                self._runs.clear()  # runs inserted in this transaction do not exist
                if self._writer.in_transaction:  # SQLite has already rolled back on a full disk
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
        """Delete the stored messages of a run."""
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
        """Return the last number stored, or 0."""
        with closing(self._connect()) as connection, self._explained():
            query = f"SELECT max(seq) FROM {kind} WHERE run = (SELECT run FROM runs WHERE run_id = ?)"
            return connection.execute(query, (run_id,)).fetchone()[0] or 0

    def next_episode(self, kind: Kind, run_id: str) -> int:
        """Return the number after the highest episode stored, or 0."""
        with closing(self._connect()) as connection, self._explained():
            query = f"SELECT max(episode) FROM {kind} WHERE run = (SELECT run FROM runs WHERE run_id = ?)"
            highest = connection.execute(query, (run_id,)).fetchone()[0]
        return 0 if highest is None else highest + 1

    def count(self, kind: Kind, run_id: str) -> int:
        """Return how many messages of a run are stored."""
        with closing(self._connect()) as connection, self._explained():
            query = f"SELECT count(*) FROM {kind} WHERE run = (SELECT run FROM runs WHERE run_id = ?)"
            number: int = connection.execute(query, (run_id,)).fetchone()[0]
        return number

    def read(self, kind: Kind, run_id: str, since_seq: int, episode: int | None = None) -> Iterator[Page]:
        """Yield messages after `since_seq` in order, in pages."""
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
                    logger.error("%s: %d damaged %s of run %s are skipped", self._path, damaged, kind, run_id)
                yield Page(intact, since_seq, damaged)

    def close(self) -> None:
        """Close the database."""
        self._writer.close()


_COLUMNS = "(run, seq, episode, message, crc)"


def _row(run: int, message: pb.RunStep | pb.RunEpisode) -> tuple[int, int, int, bytes, int]:
    data = message.SerializeToString()
    return run, message.seq, message.episode, data, _checksum(message.seq, data)


def _checksum(seq: int, message: bytes) -> int:
    return zlib.crc32(message, seq & 0xFFFFFFFF)


def _set_up(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    # Commits survive a crash of this process; the worker has a copy of those lost in a power failure.
    connection.execute("PRAGMA synchronous = NORMAL")
