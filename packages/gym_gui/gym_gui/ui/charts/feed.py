"""Load the curves of runs and build their figures in threads; follow live runs by a stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_status import RunStatus
from PySide6.QtCore import QObject, QTimer, Signal

from gym_gui.services.analytics.curves import RETURN_TAGS, Curve
from gym_gui.services.analytics.figure import Figure
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import DaemonUnreachable, TrainerError
from gym_gui.ui.background import Background
from gym_gui.ui.charts.curves import (
    MAX_FOLLOWED_POINTS,
    REFRESH_S,
    ChartChoice,
    CurvePart,
    CurveStore,
    PartReader,
    build_figures,
    load_present,
    loaded_tags,
    points_for,
    runs_to_query,
)
from gym_gui.ui.daemon_link import DaemonLink, DecodedStream, Subscription
from gym_gui.ui.widgets.run_tab import is_live

BATCH_RUNS = 8
"""Runs whose curves are requested in one call: progress is visible, and later calls do not wait long"""
_MAX_FOLLOWED = 4
"""Live runs with a stream of their own"""
_POLL_MS = 1_000
_POLLS_PER_TAG_REQUEST = 5
"""Polls between two queries of the curves of live runs"""
_FOLLOW_MS = 250


class CurveFeed(QObject):
    """The curves of the runs and tags it was given; it requests nothing while it is not active."""

    grew = Signal()
    """There are more curves, or longer ones"""
    tags_found = Signal()
    progressed = Signal(int, int)  # loaded runs, all runs
    failed = Signal(str)  # message for the user

    def __init__(
        self,
        link: DaemonLink,
        parent: QObject | None = None,
        *,
        points_for: Callable[[int], int] = points_for,
        refresh_s: float = REFRESH_S,
        max_followed: int = _MAX_FOLLOWED,
    ) -> None:
        """`points_for` gives the points of each curve for so many runs; live runs beyond `max_followed` are polled."""
        super().__init__(parent)
        self._link = link
        self._points_for, self._max_followed = points_for, max_followed
        self.store = CurveStore(refresh_s=refresh_s)
        self.runs: dict[str, pb.Run] = {}
        self.tags: tuple[str, ...] = ()
        self.known_tags: set[str] = set()
        """Tags of the runs queried so far"""
        self._with_episodes = False
        self._is_active = False
        self._is_loading = False
        self._has_failed = False
        self._tags_requested_of: set[str] = set()
        self._polls = 0
        self._streams: dict[str, Subscription[list[CurvePart]]] = {}
        self._refused: set[str] = set()
        """Runs whose stream ended with an error; opened again on `retry`"""
        self._poll_timer = QTimer(self, interval=_POLL_MS)
        self._poll_timer.timeout.connect(self._poll)
        link.state_changed.connect(lambda _: self._poll())

    # ---------------------------------------------------------------- requests

    def set_runs(self, runs: Iterable[pb.Run]) -> None:
        """Replace the runs, or their records."""
        before = set(self.runs)
        self.runs = {run.run_id: run for run in runs}
        self.store.trim(self.runs)
        if not before & self.runs.keys():
            self.known_tags.clear()
            self._tags_requested_of.clear()
        self.retry()

    def update_run(self, run: pb.Run) -> None:
        """Replace the record of one run."""
        if run.run_id in self.runs:
            before, self.runs[run.run_id] = self.runs[run.run_id], run
            if before.status != run.status:
                self._tags_requested_of.discard(run.run_id)  # it may have begun to write curves, or more of them
                self._refused.discard(run.run_id)
                self._load()

    def set_tags(self, tags: Sequence[str], *, with_episodes: bool) -> None:
        if (tuple(tags), with_episodes) != (self.tags, self._with_episodes):
            self.tags, self._with_episodes = tuple(tags), with_episodes
            self._stop_streams()
            self._load()

    def set_active(self, active: bool) -> None:
        self._is_active = active
        if active:
            self._poll_timer.start()
            self._tags_requested_of.clear()
            self.retry()
        else:
            self._poll_timer.stop()
            self._stop_streams()

    def retry(self) -> None:
        """Load what is missing, also what failed before."""
        self._has_failed = False
        self._refused.clear()
        self._load()

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing that could be requested now."""
        return not self._is_loading and not self._due()

    @property
    def is_following(self) -> bool:
        return bool(self._streams)

    # ---------------------------------------------------------------- loading

    def _due(self) -> list[pb.Run]:
        if not self.tags:
            return []
        points = self._points_for(len(self.runs))
        return self.store.due(self.runs.values(), loaded_tags(self.tags), points, episodes=self._with_episodes)

    def _poll(self) -> None:
        if self._is_active and self._link.is_connected:
            self._has_failed = False
            self._polls += 1
            if not self.known_tags or self._polls % _POLLS_PER_TAG_REQUEST == 0:  # a live run may have begun others
                self._tags_requested_of.difference_update(run.run_id for run in self.runs.values() if is_live(run))
            self._load()

    def _load(self) -> None:
        if not self._is_active or not self._link.is_connected:
            return
        self._follow()
        self._ask_for_tags()
        if self._is_loading or self._has_failed:
            return
        due = self._due()
        if not due:
            return
        self._is_loading = True
        batch, tags = due[:BATCH_RUNS], loaded_tags(self.tags)
        points, episodes = self._points_for(len(self.runs)), self._with_episodes

        def store(loaded: dict[str, dict[str, Curve]]) -> None:
            self._is_loading = False
            for run in batch:
                self.store.put(run, tags, loaded[run.run_id], points, episodes=episodes)
            total = sum(run.status != RunStatus.INIT for run in self.runs.values())
            self.progressed.emit(total - len(self._due()), total)
            self.grew.emit()
            self._load()

        self._link.call(
            lambda client: load_present(client, batch, tags, points, episodes=episodes),
            owner=self,
            done=store,
            failed=self._fail,
        )

    def _fail(self, message: str) -> None:
        self._is_loading = False
        self._has_failed = True
        if self._link.is_connected:  # the window itself reports a daemon that is away
            self.failed.emit(message)

    # ---------------------------------------------------------------- known tags

    def _ask_for_tags(self) -> None:
        requested = [
            run for run in runs_to_query(list(self.runs.values())) if run.run_id not in self._tags_requested_of
        ]
        if not requested:
            return
        self._tags_requested_of.update(run.run_id for run in requested)
        of = set(self.runs)
        self._link.call(
            lambda client: {tag.tag for run in requested for tag in _tags_of(client, run.run_id)},
            owner=self,
            done=lambda tags: self._add_tags(tags, of),
            failed=lambda _message: self._tags_requested_of.clear(),  # requested again at the next poll
        )

    def _add_tags(self, tags: set[str], of: set[str]) -> None:
        if of & self.runs.keys() and not tags <= self.known_tags:
            self.known_tags |= tags
            self.tags_found.emit()

    # ---------------------------------------------------------------- streams

    def _follow(self) -> None:
        live = [run.run_id for run in self.runs.values() if is_live(run)] if self.tags else []
        for run_id in [run_id for run_id in self._streams if run_id not in self.runs]:
            self._stop_stream(run_id)
        for run_id in live[: self._max_followed]:
            is_open = run_id in self._streams or run_id in self._refused
            if not is_open and len(self._streams) < self._max_followed:
                self.store.follow(run_id)
                self._streams[run_id] = self._open(run_id, tuple(dict.fromkeys((*self.tags, *RETURN_TAGS))))

    def _open(self, run_id: str, tags: Sequence[str]) -> Subscription[list[CurvePart]]:
        def curves(client: TrainerClient) -> DecodedStream[list[CurvePart]]:
            # A new reader for each stream: after the daemon was away the curves come again from their beginning.
            stream = client.metrics(run_id, tags, max_points=MAX_FOLLOWED_POINTS, follow=True)
            return DecodedStream(stream, PartReader(run_id))

        return self._link.stream(
            curves, partial(self._add, run_id), owner=self, ended=partial(self._ended, run_id), every_ms=_FOLLOW_MS
        )

    def _add(self, run_id: str, batch: list[list[CurvePart]]) -> None:
        if self.store.add(run_id, [part for parts in batch for part in parts], loaded_tags(self.tags)):
            self.grew.emit()

    def _ended(self, run_id: str, error: str) -> None:
        self._streams.pop(run_id, None)
        self.store.unfollow(run_id)
        if error:
            self._refused.add(run_id)
            self.failed.emit(error)
        elif run_id in self.runs and not is_live(self.runs[run_id]):
            self._load()  # its last points; otherwise the next poll loads them

    def _stop_stream(self, run_id: str) -> None:
        stream = self._streams.pop(run_id, None)
        if stream is not None:
            stream.cancel()
            stream.deleteLater()
            self.store.unfollow(run_id)

    def _stop_streams(self) -> None:
        for run_id in list(self._streams):
            self._stop_stream(run_id)


def _tags_of(client: TrainerClient, run_id: str) -> Sequence[pb.MetricTag]:
    try:
        return client.metric_tags(run_id)
    except DaemonUnreachable:
        raise
    except TrainerError:
        return ()


_SOON_MS = 60
_WHILE_LOADING_MS = 600
"""Between two builds while more curves are being loaded: each uses all that have arrived"""
_SHARE, _SHARE_WHILE_LOADING = 2, 5
"""And at least so many times as long as the last build took: a bootstrap of many runs is not repeated for each batch"""


class FigureBuilder(QObject):
    """Build the figures of a feed in a thread, one set at a time; `built` carries the choice they were built by."""

    built = Signal(object, object)  # ChartChoice, dict[str, Figure]

    def __init__(
        self, feed: CurveFeed, background: Background, choice: Callable[[], ChartChoice], parent: QObject
    ) -> None:
        super().__init__(parent)
        self._feed, self._background, self._choice = feed, background, choice
        self._is_building = False
        self._is_outdated = False
        self._has_built = False
        self._took_ms = 0.0
        self._timer = QTimer(self, singleShot=True)
        self._timer.timeout.connect(self._build)

    @property
    def is_busy(self) -> bool:
        return self._is_building or self._is_outdated or self._timer.isActive()

    def build_later(self) -> None:
        """There are more curves: build again, but not too often."""
        wait = _SOON_MS
        if self._has_built and self._feed.is_complete:
            wait = max(wait, round(_SHARE * self._took_ms))
        elif self._has_built:
            wait = max(_WHILE_LOADING_MS, round(_SHARE_WHILE_LOADING * self._took_ms))
        if not self._timer.isActive() or self._timer.remainingTime() > wait:
            self._timer.start(wait)

    def build_soon(self) -> None:
        """The user changed something."""
        self._timer.start(_SOON_MS)

    def _build(self) -> None:
        self._is_outdated = self._is_building
        if self._is_building:
            return
        runs, tags, choice = list(self._feed.runs.values()), self._feed.tags, self._choice()
        if not runs or not tags:
            self._has_built = False
            self.built.emit(choice, {})
            return
        self._is_building = True
        curves = self._feed.store.curves(runs, loaded_tags(tags))

        def build() -> tuple[dict[str, Figure], float]:
            began = time.thread_time()
            return build_figures(runs, curves, choice, tags), (time.thread_time() - began) * 1000

        def show(answer: tuple[dict[str, Figure], float]) -> None:
            figures, self._took_ms = answer
            self._is_building, self._has_built = False, True
            if self._is_outdated:
                self.build_soon()
            self.built.emit(choice, figures)

        self._background.run(build, owner=self, done=show, failed=self._fail)

    def _fail(self, error: Exception) -> None:
        self._is_building = False
        raise error
