"""Keeps the newest state of some runs while they change, and survives a daemon that goes away for a while."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from gym_gui.services.trainer.errors import DaemonUnreachable, NotPossibleNow, RunNotFound, TrainerError

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.trainer.client import RpcStream, TrainerClient

QUIET_S = 10
"""After this long without news the daemon is asked whether it is still there: a stopped one keeps its streams open."""
GIVE_UP_S = 60
"""A daemon that stays away this long does not come back by itself."""


class RunFollower:
    """The newest state of the followed runs is in `runs`; `poll` brings it up to date."""

    def __init__(
        self, client: TrainerClient, runs: Sequence[pb.Run], *, since_seq: int | None = None, adopt: bool = False
    ) -> None:
        self.runs: dict[str, pb.Run] = {run.run_id: run for run in runs}
        self.trouble = ""
        """Why there is no news; empty: all well"""
        self._client = client
        self._adopt = adopt
        self._news: queue.SimpleQueue[pb.RunUpdate | TrainerError] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._stream: RpcStream[pb.RunUpdate] | None = None
        self._last_seq = min((run.event_seq for run in runs), default=0) if since_seq is None else since_seq
        self._only = next(iter(self.runs)) if len(self.runs) == 1 and not adopt else ""
        self._last_news = time.monotonic()
        self._away_since: float | None = None
        self._thread = threading.Thread(target=self._read, name="follow-runs", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        if self._stream is not None:
            self._stream.cancel()
        self._thread.join(timeout=2)

    @property
    def is_over(self) -> bool:
        return all(run.status == "TERM" for run in self.runs.values())

    def poll(self, timeout_s: float) -> list[pb.RunUpdate]:
        """Wait for news of the followed runs, at most this long; raise when the daemon stays away."""
        deadline = time.monotonic() + timeout_s
        news: list[pb.RunUpdate] = []
        while True:
            try:
                item = self._news.get(timeout=max(0.0, deadline - time.monotonic()) if not news else 0)
            except queue.Empty:
                break
            self._last_news = time.monotonic()
            if isinstance(item, TrainerError):
                self._bear(item)
                continue
            self.trouble, self._away_since = "", None
            if self._adopt or item.run.run_id in self.runs:
                known = self.runs.get(item.run.run_id)
                # A replayed event brings the run as it is now; the live ones behind it are older.
                if known is None or item.run.event_seq >= known.event_seq:
                    self.runs[item.run.run_id] = item.run
                news.append(item)
        if time.monotonic() - self._last_news > QUIET_S:
            self._look_around()
        return news

    def _bear(self, error: TrainerError) -> None:
        if not isinstance(error, DaemonUnreachable):
            raise error
        now = time.monotonic()
        self._away_since = self._away_since or now
        self.trouble = str(error)
        if now - self._away_since > GIVE_UP_S:
            raise DaemonUnreachable(f"{error}. Runs go on without it; `mosaic watch` follows them again later")

    def _look_around(self) -> None:
        run = next((run for run in self.runs.values() if run.status != "TERM"), None)
        if run is None:
            return
        self._last_news = time.monotonic()
        try:
            self.runs[run.run_id] = self._client.get(run.run_id)
            self.trouble, self._away_since = "", None
        except RunNotFound:
            del self.runs[run.run_id]
            if not self.runs:
                raise
        except DaemonUnreachable as error:
            self._bear(error)

    def _read(self) -> None:
        while not self._closed.is_set():
            try:
                self._stream = self._client.watch(run_id=self._only, since_seq=self._last_seq)
                if self._closed.is_set():
                    self._stream.cancel()
                for update in self._stream:
                    if update.HasField("event"):
                        self._last_seq = max(self._last_seq, update.event.seq)
                    self._news.put(update)
            except NotPossibleNow:
                pass  # we read too slowly for the daemon's patience; what was missed is told again
            except TrainerError as error:
                self._news.put(error)
            except ValueError:
                return  # the channel was closed under us: the command is over
            self._closed.wait(0.5)
