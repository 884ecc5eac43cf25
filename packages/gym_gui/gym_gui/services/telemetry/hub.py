"""TelemetryAsyncHub: takes steps and episodes of live workers, answers when they are stored, passes them on.

Credits keep a worker from sending more than the store keeps up with: each message costs one until it is on disk. At
zero the run is starved; when half of them are back, a grant goes to its worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from mosaic_wire.proto import trainer_pb2 as pb

from gym_gui.services.telemetry.bus import Control, RunBus
from gym_gui.services.telemetry.store import KINDS, Kind, TelemetryStore

logger = logging.getLogger(__name__)

Message = pb.RunStep | pb.RunEpisode

CREDITS_A_RUN = 10_000
_PARSE = {"steps": pb.RunStep.FromString, "episodes": pb.RunEpisode.FromString}


@dataclass(frozen=True)
class Receipt:
    """What a worker is told about a batch."""

    stored_seq: int
    credits: int
    next_episode: int = 0
    """Told to a worker that begins, and sent nothing yet"""


@dataclass(frozen=True)
class Parcel:
    """What a subscriber is given at once."""

    messages: list[Any]
    skipped: int = 0
    control: Control | None = None
    total: int = 0
    """How many the run had stored when the stream began"""


class TelemetryAsyncHub:
    """One for a daemon; `grant` tells a run's worker over its control stream that it may go on."""

    def __init__(self, store: TelemetryStore, grant: Callable[[str, int], None]) -> None:
        self._store, self._grant = store, grant
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="telemetry")
        self._bus: RunBus[Any] = RunBus()
        self._spent: dict[str, int] = {}
        self._starved: set[str] = set()
        self._last: dict[tuple[str, Kind], int] = {}
        self._waiting: dict[Kind, list[tuple[str, Sequence[Message], asyncio.Future[None]]]] = {}
        self._writing: asyncio.Task[None] | None = None
        self._trouble = ""
        """Why nothing can be stored now; empty: it can"""

    # ------------------------------------------------------------------ workers

    async def publish(self, run_id: str, kind: Kind, messages: Sequence[Message]) -> Receipt:
        """Store a batch; returns when it is on disk. More than the credits are refused, the first of it is taken."""
        if (run_id, kind) not in self._last:
            self._last[run_id, kind] = await self._in_thread(self._store.last_seq, kind, run_id)
        if not messages:
            next_episode = await self._in_thread(self._store.next_episode, kind, run_id)
            return Receipt(self._last.get((run_id, kind), 0), self._credits(run_id), next_episode)
        taken = messages[: self._credits(run_id)]
        if taken:
            self._spent[run_id] = self._spent.get(run_id, 0) + len(taken)
            if not self._credits(run_id):
                self._starve(run_id)
            try:
                await self._stored(run_id, kind, taken)
            finally:
                self._give_back(run_id, len(taken))
            known = self._last.get((run_id, kind))
            if known is None:  # the run ended while its last batch was written
                return Receipt(taken[-1].seq, 0)
            self._last[run_id, kind] = max(known, taken[-1].seq)
            self._bus.publish(run_id, kind, [message for message in taken if message.seq > known])
        return Receipt(self._last[run_id, kind], self._credits(run_id))

    def _credits(self, run_id: str) -> int:
        return max(0, CREDITS_A_RUN - self._spent.get(run_id, 0))

    def _starve(self, run_id: str) -> None:
        if run_id not in self._starved:
            self._starved.add(run_id)
            self._bus.publish(run_id, "control", [Control.STARVED])

    def _give_back(self, run_id: str, count: int) -> None:
        if run_id not in self._spent:
            return  # it has ended meanwhile
        self._spent[run_id] -= count
        if run_id in self._starved and self._spent[run_id] <= CREDITS_A_RUN // 2:
            self._starved.discard(run_id)
            self._bus.publish(run_id, "control", [Control.RESUMED])
            self._grant(run_id, self._credits(run_id))

    async def _stored(self, run_id: str, kind: Kind, messages: Sequence[Message]) -> None:
        """Wait for the transaction that holds this batch: batches that come while one is written share the next."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(kind, []).append((run_id, messages, done))
        # A task of its own: a worker that goes away while it waits must not take the others' batches with it.
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write(), name="telemetry")
        await done

    async def _write(self) -> None:
        while self._waiting:
            await self._write_next()

    async def _write_next(self) -> None:
        kind, batches = self._waiting.popitem()
        try:
            await self._in_thread(self._store.append, kind, [(run_id, messages) for run_id, messages, _ in batches])
        except Exception as error:  # noqa: BLE001 - told to each of the workers that wait for it
            if not self._trouble:
                logger.error("steps and episodes cannot be stored, workers keep theirs: %s", error)
            self._trouble = str(error)
            for _, _, done in batches:
                if not done.done():
                    done.set_exception(error)
            return
        if self._trouble:
            logger.info("steps and episodes can be stored again")
            self._trouble = ""
        for _, _, done in batches:
            if not done.done():
                done.set_result(None)

    async def _in_thread(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(call, *arguments))

    def is_starved(self, run_id: str) -> bool:
        """Whether its worker has to wait for the store."""
        return run_id in self._starved

    # ------------------------------------------------------------------ clients

    async def stream(
        self, run_id: str, kind: Kind, since_seq: int, *, episode: int | None, follow: bool
    ) -> AsyncIterator[Parcel]:
        """What is stored after a number, then what comes; live steps of a slow reader are skipped and counted.

        A negative number: the last so many that are stored.
        """
        subscriber = self._bus.subscribe(run_id, kind)  # before the look at the store: nothing falls in between
        try:
            if since_seq < 0:
                since_seq = max(0, since_seq + await asyncio.to_thread(self._store.last_seq, kind, run_id))
            totals = await asyncio.to_thread(self._store.totals, run_id)
            total = totals.steps if kind == "steps" else totals.episodes
            pages = self._store.read(kind, run_id, since_seq, episode)
            while (page := await asyncio.to_thread(next, pages, None)) is not None:
                since_seq = page.last_seq
                yield Parcel([_PARSE[kind](data) for data in page.messages], page.damaged, total=total)
            if not follow:
                return
            while (news := await subscriber.take()) is not None:
                waiting, skipped, control = news
                fresh = [
                    message
                    for message in waiting
                    if message.seq > since_seq and (episode is None or message.episode == episode)
                ]
                if fresh or skipped or control:
                    yield Parcel(fresh, skipped, control[-1] if control else None, total)
        finally:
            self._bus.unsubscribe(subscriber)

    def end(self, run_id: str) -> None:
        """The run is over."""
        self._bus.end(run_id)
        self._spent.pop(run_id, None)
        self._starved.discard(run_id)
        for kind in KINDS:
            self._last.pop((run_id, kind), None)

    async def forget(self, run_id: str) -> None:
        """Remove what is stored of a run."""
        await self._in_thread(self._store.forget, run_id)

    def close(self) -> None:
        self._thread.shutdown(wait=True)
        self._store.close()
