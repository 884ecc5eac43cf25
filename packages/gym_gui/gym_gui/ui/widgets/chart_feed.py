"""Brings the curves of runs: in pieces, thinned by the daemon, and by a stream while a run goes on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QObject, QTimer, Signal

from gym_gui.services.analytics.curves import RETURN_TAGS, Curve, load_curves
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import DaemonUnreachable, TrainerError
from gym_gui.ui.daemon_link import DaemonLink, Subscription
from gym_gui.ui.decoded_stream import DecodedStream
from gym_gui.ui.presenters.charts import (
    MOST_FOLLOWED,
    PIECE_RUNS,
    CurveStore,
    asked_for_tags,
    loaded_tags,
    points_for,
)
from gym_gui.ui.presenters.live_curves import MOST_POINTS, CurvePart, PartReader
from gym_gui.ui.widgets.fastlane_words import is_live

_POLL_MS = 1_000
_ASK_AGAIN_LOOKS = 5
"""How many of these looks pass until live runs are asked again which curves they have"""
_FOLLOW_MS = 250

Loaded = dict[str, dict[str, Curve]]


class ChartFeed(QObject):
    """The curves of the runs and tags it was told of; it asks for nothing while nobody looks."""

    grew = Signal()
    """There are more curves, or longer ones"""
    tags_found = Signal()
    progressed = Signal(int, int)  # runs that are loaded, runs in all
    failed = Signal(str)  # words for people

    def __init__(self, link: DaemonLink, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._link = link
        self.store = CurveStore()
        self.runs: dict[str, pb.Run] = {}
        self.tags: tuple[str, ...] = ()
        self.known_tags: set[str] = set()
        """Of the runs, as far as they were asked"""
        self._with_episodes = False
        self._is_active = False
        self._is_loading = False
        self._has_failed = False
        self._asked_tags_of: set[str] = set()
        self._looks = 0
        self._streams: dict[str, Subscription[list[CurvePart]]] = {}
        self._poll = QTimer(self, interval=_POLL_MS)
        self._poll.timeout.connect(self._look_again)
        link.state_changed.connect(lambda _: self._look_again())

    # ---------------------------------------------------------------- what is wanted

    def set_runs(self, runs: Iterable[pb.Run]) -> None:
        """Other runs, or newer records of them."""
        before = set(self.runs)
        self.runs = {run.run_id: run for run in runs}
        self.store.trim(self.runs)
        if not before & self.runs.keys():
            self.known_tags.clear()
            self._asked_tags_of.clear()
        self._has_failed = False
        self._go_on()

    def update_run(self, run: pb.Run) -> None:
        """A newer record of one of them."""
        if run.run_id in self.runs:
            before, self.runs[run.run_id] = self.runs[run.run_id], run
            if before.status != run.status:
                self._asked_tags_of.discard(run.run_id)  # it may have begun to write curves, or more of them
                self._go_on()

    def set_tags(self, tags: Sequence[str], *, with_episodes: bool) -> None:
        if (tuple(tags), with_episodes) != (self.tags, self._with_episodes):
            self.tags, self._with_episodes = tuple(tags), with_episodes
            self._stop_streams()
            self._go_on()

    def set_active(self, active: bool) -> None:
        self._is_active = active
        if active:
            self._poll.start()
            self._has_failed = False
            self._asked_tags_of.clear()
            self._go_on()
        else:
            self._poll.stop()
            self._stop_streams()

    @property
    def is_complete(self) -> bool:
        """Nothing is missing that could be asked for now."""
        return not self._is_loading and not self._due()

    @property
    def is_following(self) -> bool:
        return bool(self._streams)

    def try_again(self) -> None:
        self._has_failed = False
        self._go_on()

    # ---------------------------------------------------------------- loading

    def _due(self) -> list[pb.Run]:
        if not self.tags:
            return []
        points = points_for(len(self.runs))
        return self.store.due(self.runs.values(), loaded_tags(self.tags), points, episodes=self._with_episodes)

    def _look_again(self) -> None:
        if self._is_active and self._link.is_connected:
            self._has_failed = False
            self._looks += 1
            if not self.known_tags or self._looks % _ASK_AGAIN_LOOKS == 0:  # a run that goes on may have begun others
                self._asked_tags_of.difference_update(run.run_id for run in self.runs.values() if is_live(run))
            self._go_on()

    def _go_on(self) -> None:
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
        piece, tags = due[:PIECE_RUNS], loaded_tags(self.tags)
        points, episodes = points_for(len(self.runs)), self._with_episodes
        self._link.call(
            lambda client: _load(client, piece, tags, points, episodes=episodes),
            owner=self,
            done=lambda loaded: self._take(piece, tags, points, episodes, loaded),
            failed=self._fail,
        )

    def _take(self, piece: list[pb.Run], tags: Sequence[str], points: int, episodes: bool, loaded: Loaded) -> None:
        self._is_loading = False
        for run in piece:
            self.store.put(run, tags, loaded.get(run.run_id, {}), points, episodes=episodes)
        total = sum(run.status != "INIT" for run in self.runs.values())
        self.progressed.emit(total - len(self._due()), total)
        self.grew.emit()
        self._go_on()

    def _fail(self, words: str) -> None:
        self._is_loading = False
        self._has_failed = True
        if self._link.is_connected:  # a daemon that is away the window itself tells of
            self.failed.emit(words)

    # ---------------------------------------------------------------- which curves there are

    def _ask_for_tags(self) -> None:
        asked = [run for run in asked_for_tags(list(self.runs.values())) if run.run_id not in self._asked_tags_of]
        if not asked:
            return
        self._asked_tags_of.update(run.run_id for run in asked)
        of = set(self.runs)
        self._link.call(
            lambda client: {tag.tag for run in asked for tag in _tags_of(client, run.run_id)},
            owner=self,
            done=lambda tags: self._learn_tags(tags, of),
            failed=lambda _words: self._asked_tags_of.clear(),  # asked again at the next look
        )

    def _learn_tags(self, tags: set[str], of: set[str]) -> None:
        if of & self.runs.keys() and not tags <= self.known_tags:
            self.known_tags |= tags
            self.tags_found.emit()

    # ---------------------------------------------------------------- following

    def _follow(self) -> None:
        live = [run.run_id for run in self.runs.values() if is_live(run)][:MOST_FOLLOWED] if self.tags else []
        for run_id in [run_id for run_id in self._streams if run_id not in self.runs]:
            self._stop_stream(run_id)
        for run_id in live:
            if run_id not in self._streams and len(self._streams) < MOST_FOLLOWED:
                self.store.follow(run_id)
                self._streams[run_id] = self._open(run_id, tuple(dict.fromkeys((*self.tags, *RETURN_TAGS))))

    def _open(self, run_id: str, tags: Sequence[str]) -> Subscription[list[CurvePart]]:
        def curves(client: TrainerClient) -> DecodedStream[list[CurvePart]]:
            # A new reader for each stream: after the daemon was away the curves come again from their beginning.
            return DecodedStream(client.metrics(run_id, tags, max_points=MOST_POINTS, follow=True), PartReader())

        return self._link.stream(
            curves, partial(self._add, run_id), owner=self, ended=partial(self._ended, run_id), every_ms=_FOLLOW_MS
        )

    def _add(self, run_id: str, batch: list[list[CurvePart]]) -> None:
        if self.store.add(run_id, [part for parts in batch for part in parts], loaded_tags(self.tags)):
            self.grew.emit()

    def _ended(self, run_id: str, _words: str) -> None:
        self._streams.pop(run_id, None)
        self.store.unfollow(run_id)
        if run_id in self.runs and not is_live(self.runs[run_id]):
            self._go_on()  # its last points; otherwise the next look does

    def _stop_stream(self, run_id: str) -> None:
        stream = self._streams.pop(run_id, None)
        if stream is not None:
            stream.cancel()
            stream.deleteLater()
            self.store.unfollow(run_id)

    def _stop_streams(self) -> None:
        for run_id in list(self._streams):
            self._stop_stream(run_id)


def _load(client: TrainerClient, runs: Sequence[pb.Run], tags: Sequence[str], points: int, *, episodes: bool) -> Loaded:
    """A run that was deleted meanwhile has no curves; the others do not suffer for it."""
    loaded: Loaded = {}
    for run in runs:
        try:
            loaded.update(load_curves(client, [run], tags, max_points=points, episodes=episodes))
        except DaemonUnreachable:
            raise
        except TrainerError:
            loaded[run.run_id] = {}
    return loaded


def _tags_of(client: TrainerClient, run_id: str) -> Sequence[pb.MetricTag]:
    try:
        return client.metric_tags(run_id)
    except DaemonUnreachable:
        raise
    except TrainerError:
        return ()
