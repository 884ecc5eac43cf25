"""Live telemetry: what a worker that sends its steps is doing now. Keeps up by skipping, and says how much it skipped.

A run of the analytics lane sends no steps; for such a run the view says so and where its figures are.
"""

from __future__ import annotations

import html
import time
from pathlib import Path

from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QItemSelection, Qt
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPushButton, QSplitter, QVBoxLayout, QWidget

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.ui.daemon_link import DaemonLink, Subscription
from gym_gui.ui.decoded_stream import DecodedStream
from gym_gui.ui.panels.run_tab import RunTab
from gym_gui.ui.panels.telemetry_words import Flow, Place, flow_of, flow_words, no_live_telemetry, places_of
from gym_gui.ui.presenters.recent_telemetry import News, RecentTelemetry, take_in_episodes, take_in_steps
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.fastlane_view import is_on_this_machine
from gym_gui.ui.widgets.fastlane_words import is_live
from gym_gui.ui.widgets.observation_view import ObservationView
from gym_gui.ui.widgets.steps_table import RecentTable, episodes_model, steps_model
from gym_gui.wording import formats

KEEP = 500
"""Rows of a table; older ones are in the store, and under Replay"""
_SHOW_MS = 200


class TelemetryTab(RunTab):
    """The last steps and episodes of one run, what the agent saw, and how the flow is."""

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(link, parent)
        self.setObjectName("telemetry_tab")
        self.recent_steps: RecentTelemetry[pb.RunStep]
        self.recent_episodes: RecentTelemetry[pb.RunEpisode]
        self._subscriptions: list[Subscription[None]] = []
        self._ended = 0
        self._is_paused = False
        self._control = ""
        self._rate_from: tuple[float, int] | None = None
        self._rate: float | None = None
        self._build()
        self._clear()

    # ---------------------------------------------------------------- the run

    @property
    def is_following(self) -> bool:
        return bool(self._subscriptions)

    @property
    def is_paused(self) -> bool:
        return self._is_paused

    def show_run(self, run: pb.Run) -> None:
        if self.run is None or run.run_id != self.run.run_id:
            self._stop()
            self._clear()
            self._pause_button.setChecked(False)
        super().show_run(run)
        self._show_what_there_is(run)
        self._follow_or_not()

    def refresh(self, run: pb.Run) -> None:
        before, self.run = self.run, run
        if before is None or flow_of(before) != flow_of(run):
            self._show_what_there_is(run)
        if before is not None and before.status != run.status and is_live(run):
            self._ended = 0  # it began, or went on: there is more to come
        self._follow_or_not()
        self._say_flow()

    def set_active(self, active: bool) -> None:
        super().set_active(active)
        if active:
            self._ended = 0
        self._follow_or_not()

    def _show_what_there_is(self, run: pb.Run) -> None:
        """The view of a worker that sends steps, of one that sends episodes, or words in its place."""
        flow = flow_of(run)
        has_telemetry = flow in (Flow.STEPS, Flow.EPISODES)
        self._body.setVisible(has_telemetry)
        self._tools.setVisible(has_telemetry)
        self._steps_part.setVisible(flow is Flow.STEPS)
        self.observation.setVisible(flow is Flow.STEPS)
        self._places.setVisible(flow is Flow.NOTHING)
        if flow is Flow.NOTHING:
            self.banner.say(no_live_telemetry(run), "info")
            self._find_places(run)
        elif flow is Flow.EPISODES:
            self.banner.say(
                self.tr(
                    "This run sends its episodes and no steps (minimal telemetry). "
                    "Its curves are under “Live view”."
                ),
                "info",
            )  # fmt: skip
        elif flow is Flow.UNKNOWN:
            self.banner.say(self.tr("Whether this run sends its steps is known when its worker has started."), "info")
        else:
            self.banner.clear()

    def _find_places(self, run: pb.Run) -> None:
        self._show_places(places_of(run, None))
        if not is_on_this_machine(self.link.state.target):
            return

        def look() -> tuple[str, tuple[Place, ...]]:
            try:
                manifest = AnalyticsManifest.read(RunFolder(Path(run.run_dir)).manifest)
            except (OSError, ValueError):  # not written yet, or damaged: the usual places are named
                return run.run_id, ()
            return run.run_id, places_of(run, manifest)

        self.link.background.run(look, owner=self, done=self._learn_places)

    def _learn_places(self, answer: tuple[str, tuple[Place, ...]]) -> None:
        run_id, places = answer
        if places and self.run is not None and self.run.run_id == run_id:
            self._show_places(places)

    def _show_places(self, places: tuple[Place, ...]) -> None:
        rows = "".join(
            f"<tr><td style='padding: 3px 18px 3px 0'>{html.escape(place.what)}</td>"
            f"<td style='padding: 3px 0'>{html.escape(place.where)}</td></tr>"
            for place in places
        )
        words = html.escape(self.tr("Its figures are here:"))
        self._places.setText(f"<p>{words}</p><table>{rows}</table>")

    # ---------------------------------------------------------------- following

    def _follow_or_not(self) -> None:
        run = self.run
        flow = flow_of(run) if run is not None else Flow.NOTHING
        wanted = self.is_active and run is not None and flow in (Flow.STEPS, Flow.EPISODES) and run.status != "INIT"
        if not wanted:
            self._stop()
        elif run is not None and not self._subscriptions and not self._ended:
            self._start(run.run_id, flow)

    def _start(self, run_id: str, flow: Flow) -> None:
        self._clear()
        recent_steps, recent_episodes = self.recent_steps, self.recent_episodes

        def steps(client: TrainerClient) -> DecodedStream[None]:
            # The last ones first; after an interruption, what came meanwhile.
            since = recent_steps.last_seq or -KEEP
            stream = client.steps(run_id, since_seq=since, follow=True)
            return DecodedStream(stream, lambda parcel: take_in_steps(recent_steps, parcel))

        def episodes(client: TrainerClient) -> DecodedStream[None]:
            since = recent_episodes.last_seq or -KEEP
            stream = client.episodes(run_id, since_seq=since, follow=True)
            return DecodedStream(stream, lambda parcel: take_in_episodes(recent_episodes, parcel))

        opened = [(steps, self._show_steps)] if flow is Flow.STEPS else []
        for open_stream, show in (*opened, (episodes, self._show_episodes)):
            # What arrives is kept in `recent_…`; the stream itself only says that something did.
            self._subscriptions.append(
                self.link.stream(
                    open_stream,
                    show,
                    owner=self,
                    ended=self._stream_ended,
                    every_ms=_SHOW_MS,
                    keep_last=1,
                )
            )

    def _stop(self) -> None:
        for subscription in self._subscriptions:
            subscription.cancel()
            subscription.deleteLater()
        self._subscriptions.clear()

    def _stream_ended(self, words: str) -> None:
        self._ended += 1
        if self._ended >= len(self._subscriptions):
            self._subscriptions.clear()
        if words:
            self.banner.say(self.tr("The steps cannot be read: {0}").format(words), "bad", action=self.tr("Try again"),
                            on_action=self._try_again)  # fmt: skip
        self._show_steps()
        self._show_episodes()

    def _try_again(self) -> None:
        self.banner.clear()
        self._ended = 0
        self._follow_or_not()

    # ---------------------------------------------------------------- what arrives

    def _show_steps(self, _signs: object = None) -> None:
        if self._is_paused:
            self._say_flow()
            return
        news = self.recent_steps.take_out()
        self._control = news.control
        self._measure(news)
        self.steps.add(news.fresh)
        self._steps_table.show_agents_or_not()
        if news.fresh and not self._steps_table.selectionModel().hasSelection():
            self.observation.show_step(news.fresh[-1])
        self._say_counts(news)
        self._say_flow()

    def _show_episodes(self, _signs: object = None) -> None:
        if not self._is_paused:
            self.episodes.add(self.recent_episodes.take_out().fresh)
            self._episodes_table.show_agents_or_not()
            self._say_flow()

    def _measure(self, news: News[pb.RunStep]) -> None:
        """Steps a second, over stretches of a second or more."""
        now = time.monotonic()
        if self._rate_from is None:
            self._rate_from = (now, news.last_seq)
        elif now - self._rate_from[0] >= 1:
            self._rate = (news.last_seq - self._rate_from[1]) / (now - self._rate_from[0])
            self._rate_from = (now, news.last_seq)

    def _say_counts(self, news: News[pb.RunStep]) -> None:
        rate = self.tr(" · {0} steps/s").format(formats.short_count(self._rate)) if self._rate is not None else ""
        self._counts.setText(self.tr("step {0}").format(formats.count(news.last_seq)) + rate)
        if not news.passed_over:
            self._skipped.setText(self.tr("nothing skipped"))
            self._skipped.setToolTip("")
            return
        self._skipped.setText(self.tr("{0} steps skipped here, all are stored").format(formats.count(news.passed_over)))
        self._skipped.setToolTip(
            self.tr("{0} of them were not sent because this window was too slow; the others passed between two looks.")
            .format(formats.count(news.left_out_by_daemon))
        )  # fmt: skip

    def _say_flow(self) -> None:
        if self.run is None:
            return
        word, sentence = flow_words(self.run, self._control, self._is_paused, self.is_following)
        self._flow.setText(word)
        self._flow.setToolTip(sentence)
        self._flow.setAccessibleDescription(sentence)
        self._flow_sentence.setText(sentence)

    def pause(self, paused: bool) -> None:
        """Let the view stand still, or catch up; the run does not notice."""
        self._is_paused = paused
        self._pause_button.setText(self.tr("Resume &view") if paused else self.tr("Pause &view"))
        if not paused:
            self._show_steps()
            self._show_episodes()
        self._say_flow()

    def _look_closer(self, _chosen: QItemSelection, _left: QItemSelection) -> None:
        """A step that was chosen is shown until it leaves the table, or the choice is taken back."""
        rows = self._steps_table.selectionModel().selectedRows()
        step = self.steps.message(rows[0].row()) if rows else None
        if step is not None:
            self.observation.show_step(step)

    def _clear(self) -> None:
        # New ones: a stream that is ending in its thread must not put another run's steps into these.
        self.recent_steps = RecentTelemetry(KEEP)
        self.recent_episodes = RecentTelemetry(KEEP)
        self.steps.clear()
        self.episodes.clear()
        self.observation.clear()
        self._control, self._rate_from, self._rate = "", None, None
        self._counts.setText("")
        self._skipped.setText("")

    # ---------------------------------------------------------------- widgets

    def _build(self) -> None:
        self.banner = Banner(parent=self)
        self._places = QLabel()
        self._places.setObjectName("telemetry_places")
        self._places.setTextFormat(Qt.TextFormat.RichText)
        self._places.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        self._places.setAlignment(Qt.AlignmentFlag.AlignTop)
        self._places.setWordWrap(True)
        self._places.setMargin(self.fontMetrics().averageCharWidth())
        self._build_tools()
        self._build_body()
        layout = QVBoxLayout(self)
        layout.addWidget(self.banner)
        layout.addWidget(self._places, 1)
        layout.addWidget(self._tools)
        layout.addWidget(self._body, 1)
        self._places.hide()

    def _build_tools(self) -> None:
        self._pause_button = QPushButton(self.tr("Pause &view"))
        self._pause_button.setObjectName("telemetry_pause")
        self._pause_button.setAccessibleName(self.tr("Pause or resume this view"))
        self._pause_button.setCheckable(True)
        self._pause_button.toggled.connect(self.pause)
        self._flow, self._flow_sentence, self._counts, self._skipped = QLabel(), QLabel(), QLabel(), QLabel()
        self._flow.setObjectName("telemetry_flow")
        self._flow.setAccessibleName(self.tr("State of the flow"))
        font = self._flow.font()
        font.setBold(True)
        self._flow.setFont(font)
        self._counts.setObjectName("telemetry_counts")
        self._skipped.setObjectName("telemetry_skipped")
        for label in (self._flow_sentence, self._skipped):
            label.setProperty("role", "caption")
        self._flow_sentence.setWordWrap(True)
        self._tools = QWidget()
        tools = QHBoxLayout(self._tools)
        tools.setContentsMargins(0, 0, 0, 0)
        tools.setSpacing(self.fontMetrics().averageCharWidth() * 2)
        tools.addWidget(self._pause_button)
        tools.addWidget(self._flow)
        tools.addWidget(self._flow_sentence, 1)
        tools.addWidget(self._counts)
        tools.addWidget(self._skipped)

    def _build_body(self) -> None:
        self.steps, self.episodes = steps_model(KEEP), episodes_model(KEEP)
        self.steps.setParent(self)
        self.episodes.setParent(self)
        self._steps_table = RecentTable(self.steps, "telemetry_steps", self.tr("Recent steps"))
        self._steps_table.selectionModel().selectionChanged.connect(self._look_closer)
        self._episodes_table = RecentTable(self.episodes, "telemetry_episodes", self.tr("Recent episodes"))
        self.observation = ObservationView(self.link.background)
        self._steps_part = _titled(self.tr("Recent steps, newest first"), self._steps_table)
        tables = QSplitter(Qt.Orientation.Vertical)
        tables.addWidget(self._steps_part)
        tables.addWidget(_titled(self.tr("Recent episodes, newest first"), self._episodes_table))
        tables.setStretchFactor(0, 3)
        tables.setStretchFactor(1, 2)
        gap = self.fontMetrics().averageCharWidth()
        self.observation.setContentsMargins(0, 0, gap, 0)
        tables.setContentsMargins(gap, 0, 0, 0)
        self._body = QSplitter(Qt.Orientation.Horizontal)
        self._body.addWidget(self.observation)
        self._body.addWidget(tables)
        self._body.setStretchFactor(0, 2)
        self._body.setStretchFactor(1, 3)
        for splitter in (tables, self._body):
            splitter.setChildrenCollapsible(False)


def _titled(title: str, widget: QWidget) -> QWidget:
    label = QLabel(title)
    label.setProperty("role", "caption")
    label.setBuddy(widget)
    part = QWidget()
    layout = QVBoxLayout(part)
    layout.setContentsMargins(0, 0, 0, 0)
    layout.setSpacing(2)
    layout.addWidget(label)
    layout.addWidget(widget, 1)
    return part
