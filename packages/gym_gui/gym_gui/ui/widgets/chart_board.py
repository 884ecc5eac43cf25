"""Charts of some runs with everything around them: which curves, how they are drawn, a legend, what can be saved.

The Charts tab of a run and the Compare page are this board over different runs. Curves are loaded by `ChartFeed`,
figures computed in a thread, and drawn a chart at a time.
Importing this loads pyqtgraph, which takes a while: import it in a thread first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QSettings, Qt, QTimer, Signal
from PySide6.QtWidgets import QFrame, QLabel, QScrollArea, QSplitter, QVBoxLayout, QWidget

from gym_gui.services.analytics.curves import Axis
from gym_gui.services.analytics.figure import Figure
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.presenters.charts import (
    MOST_CHARTS,
    ChartChoice,
    Entry,
    entries_of,
    in_view,
    usual_tags,
)
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.chart_controls import ChartControls
from gym_gui.ui.widgets.chart_export import ChartExport
from gym_gui.ui.widgets.chart_feed import ChartFeed
from gym_gui.ui.widgets.chart_legend import ChartLegend
from gym_gui.ui.widgets.chart_view import ChartView
from gym_gui.ui.widgets.figure_card import CardGrid
from gym_gui.ui.widgets.figure_maker import FigureMaker
from gym_gui.ui.widgets.plot_parts import value_text
from gym_gui.ui.widgets.tag_list import TagList

_NEXT_TURN_MS = 10
_NARROWEST_CHART_CHARS = 52


class ChartBoard(QWidget):
    """Charts of the runs that `set_runs` names."""

    drawn = Signal()
    """Every chart shows what is known by now"""

    def __init__(
        self, link: DaemonLink, settings_group: str, usual: ChartChoice, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setObjectName("chart_board")
        self._link, self._group, self._usual = link, settings_group, usual
        self.feed = ChartFeed(link, self)
        self._maker = FigureMaker(self.feed, link.background, lambda: self.choice, self)
        self.views: dict[str, ChartView] = {}
        self.figures: dict[str, Figure] = {}
        self._chosen_tags: list[str] = []
        self._shown_choice = usual
        self._to_show: dict[str, None] = {}
        self._pointed: tuple[str, float] | None = None
        self._turn_timer = QTimer(self, singleShot=True, interval=_NEXT_TURN_MS)
        self._turn_timer.timeout.connect(self._take_turn)
        self._build()
        self._restore()
        self._connect()

    # ---------------------------------------------------------------- runs

    def set_runs(self, runs: Iterable[pb.Run]) -> None:
        """The charts of these runs."""
        before = set(self.feed.runs)
        self.feed.set_runs(runs)
        if not before & self.feed.runs.keys():
            self.legend.forget_hidden()
            self.banner.clear()
            self.reset_zoom()
        self._take_tags()
        self._maker.at_once()
        self._explain()

    def update_run(self, run: pb.Run) -> None:
        """A newer record of one of them."""
        self.feed.update_run(run)
        self._explain()

    def set_active(self, active: bool) -> None:
        """Whether somebody looks; nothing is loaded or drawn otherwise."""
        self.feed.set_active(active)
        if active:
            self._maker.at_once()

    @property
    def runs(self) -> list[pb.Run]:
        return list(self.feed.runs.values())

    @property
    def is_settled(self) -> bool:
        """Every chart shows all there is; nothing is on its way."""
        return self.feed.is_complete and not self._maker.is_busy and not self._to_show

    @property
    def choice(self) -> ChartChoice:
        return self.controls.choice

    @property
    def tags(self) -> list[str]:
        """Those that have a chart."""
        return list(self.feed.tags)

    def show_tags(self, tags: Sequence[str]) -> None:
        """Choose curves, as if somebody had ticked them."""
        self._chosen_tags = list(tags)
        _settings(self._group).setValue("tags", json.dumps(self._chosen_tags))
        self._take_tags()
        self._maker.at_once()

    def entries(self) -> dict[str, Entry]:
        """What the legend shows: the lines of all charts."""
        found: dict[str, Entry] = {}
        for figure in self.figures.values():
            for key, entry in entries_of(figure).items():
                found.setdefault(key, entry)
        return found

    # ---------------------------------------------------------------- which curves

    def _take_tags(self) -> None:
        """The chosen ones that the runs have; the return when none of them is there."""
        known = self.feed.known_tags
        wanted = [tag for tag in self._chosen_tags if tag in known or not known][:MOST_CHARTS]
        if not wanted:
            wanted = usual_tags(known)
        self.tag_list.show_tags(known, wanted)
        self.feed.set_tags(wanted, with_episodes=self.choice.axis is Axis.EPISODE)
        for tag in [tag for tag in self.views if tag not in wanted]:
            self.views.pop(tag).deleteLater()
            self.figures.pop(tag, None)
        self._place()

    def _tags_ticked(self) -> None:
        ticked = self.tag_list.chosen()
        if len(ticked) > MOST_CHARTS:
            words = self.tr("At most {0} charts are shown at once; remove one first.").format(MOST_CHARTS)
            self.banner.say(words, "warning", action=self.tr("Dismiss"), on_action=self.banner.clear)
            ticked = ticked[:MOST_CHARTS]
        self.show_tags(ticked)

    # ---------------------------------------------------------------- figures

    def _show(self, choice: ChartChoice, figures: dict[str, Figure]) -> None:
        if choice.is_grouped is not self._shown_choice.is_grouped:
            self.legend.forget_hidden()
        self._shown_choice = choice
        self.figures = {tag: figure for tag, figure in figures.items() if tag in self.feed.tags}
        entries = self.entries()
        self.legend.show_entries(entries)
        self.legend.setVisible(len(entries) > 1)
        self._to_show = dict.fromkeys(self.figures)
        self._turn_timer.start()
        self._explain()

    def _take_turn(self) -> None:
        """Draw one chart, or make it: all of them at once would hold the window up."""
        tag = next(iter(self._to_show), None)
        if tag is None:
            return
        if tag in self.figures and not self.figures[tag].is_empty:
            if tag not in self.views:
                self._make(tag)
                self._turn_timer.start()
                return
            self.views[tag].show_figure(
                self.figures[tag], self._shown_choice.axis, self.legend.hidden, self.legend.chosen
            )  # fmt: skip
        elif tag in self.views:
            self.views.pop(tag).deleteLater()
            self._place()
        del self._to_show[tag]
        if self._to_show:
            self._turn_timer.start()
        else:
            self._explain()
            self.drawn.emit()

    def _make(self, tag: str) -> None:
        view = ChartView(tag)
        view.pointed_at.connect(lambda x: self._point(tag, x))
        save = self.export.button(tag, lambda: self.figure_in_view(tag), lambda: self.runs_in_view(tag))
        view.header.addWidget(save)
        first = next(iter(self.views.values()), None)
        if first is not None:
            view.plot.setXLink(first.plot)
        self.views[tag] = view
        self.views = {tag: self.views[tag] for tag in self.feed.tags if tag in self.views}
        self._place()

    def _place(self) -> None:
        self._grid.set_widgets(list(self.views.values()))

    def reset_zoom(self) -> None:
        for view in self.views.values():
            view.reset_zoom()

    # ---------------------------------------------------------------- reading values

    def _point(self, tag: str, x: float | None) -> None:
        """One place, read out in every chart and in the legend."""
        self._pointed = None if x is None else (tag, x)
        for view in self.views.values():
            view.mark(x)
        self.legend.model.refresh_values()

    def _value_of(self, key: str) -> str:
        """Under the crosshair; without one, the last value of the first chart."""
        tag, x = self._pointed or (next(iter(self.views), ""), None)
        view = self.views.get(tag)
        if view is None:
            return ""
        if x is None:
            entry = self.entries_by_tag(tag).get(key)
            value = float(entry.line.y[-1]) if entry is not None and len(entry.line.y) else None
        else:
            value = view.value_at(key, x)
        return "–" if value is None else value_text(value)

    def entries_by_tag(self, tag: str) -> dict[str, Entry]:
        return self.views[tag].entries if tag in self.views else {}

    def _change_look(self) -> None:
        for view in self.views.values():
            view.set_look(self.legend.hidden, self.legend.chosen)

    # ---------------------------------------------------------------- saving

    def figure_in_view(self, tag: str) -> Figure:
        """As it is seen: without the lines that are hidden."""
        return in_view(self.figures[tag], self.legend.hidden)

    def runs_in_view(self, tag: str) -> list[pb.Run]:
        shown = {run_id for line in self.figure_in_view(tag).lines for run_id in line.run_ids}
        return [run for run in self.runs if run.run_id in shown]

    # ---------------------------------------------------------------- words

    def _progress(self, loaded: int, total: int) -> None:
        if loaded < total:
            self.progress.setText(self.tr("{0} of {1} runs are loaded").format(f"{loaded:,}", f"{total:,}"))
        self.progress.setVisible(loaded < total)

    def _fail(self, words: str) -> None:
        self.banner.say(
            self.tr("The curves cannot be read: {0}").format(words), "bad", action=self.tr("Try again"),
            on_action=self._try_again,
        )  # fmt: skip

    def _try_again(self) -> None:
        self.banner.clear()
        self.feed.try_again()

    def _saved(self, words: str, tone: str) -> None:
        self.banner.say(
            words, "bad" if tone == "bad" else "info", action=self.tr("Dismiss"), on_action=self.banner.clear
        )  # fmt: skip

    def _explain(self) -> None:
        """Words in place of charts."""
        has_charts = bool(self.views)
        self._scroll.setVisible(has_charts)
        runs = self.runs
        if has_charts or not runs:
            self._words.setVisible(not has_charts)
            self._words.setText("" if runs else self.tr("No runs are chosen."))
            return
        if all(run.status == "INIT" for run in runs):
            words = self.tr("Waiting in the queue. Curves appear here when training begins.")
        elif not self.feed.is_complete or self._maker.is_busy or not self.feed.tags:
            is_over = all(run.status == "TERM" for run in runs)
            words = self.tr("Looking for curves…") if is_over else self.tr("No curves yet. They appear with the first "
                                                                           "finished episode or update.")  # fmt: skip
        elif all(run.status == "TERM" for run in runs):
            words = self.tr("There are no such curves: choose others in the list, or look at the logs.")
        else:
            words = self.tr("No curves yet. They appear with the first finished episode or update.")
        self._words.setText(words)
        self._words.show()

    # ---------------------------------------------------------------- choices

    def _change_choice(self, choice: ChartChoice) -> None:
        _settings(self._group).setValue("choice", choice.to_text())
        self.feed.set_tags(self.feed.tags, with_episodes=choice.axis is Axis.EPISODE)
        self._maker.at_once()

    def _restore(self) -> None:
        settings = _settings(self._group)
        self.controls.show_choice(ChartChoice.from_text(str(settings.value("choice") or ""), self._usual))
        self._shown_choice = self.choice
        try:
            kept = json.loads(str(settings.value("tags") or "[]"))
        except ValueError:  # edited by hand
            kept = []
        self._chosen_tags = [str(tag) for tag in kept] if isinstance(kept, list) else []

    # ---------------------------------------------------------------- widgets

    def _build(self) -> None:
        self.controls = ChartControls()
        self.banner = Banner()
        self.progress = QLabel()
        self.progress.setObjectName("chart_progress")
        self.progress.setProperty("role", "caption")
        self.progress.hide()
        self.tag_list = TagList()
        self.legend = ChartLegend()
        self.legend.model.value_of = self._value_of
        self.legend.hide()
        self.export = ChartExport(self._link, self)
        self._words = QLabel()
        self._words.setObjectName("chart_words")
        self._words.setProperty("role", "caption")
        self._words.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._words.setWordWrap(True)
        self._grid = CardGrid(least_chars=_NARROWEST_CHART_CHARS)
        self._scroll = QScrollArea()
        self._scroll.setFrameShape(QFrame.Shape.NoFrame)
        self._scroll.setWidgetResizable(True)
        self._scroll.setWidget(self._grid)
        self._scroll.hide()
        middle = QWidget()
        inside = QVBoxLayout(middle)
        inside.setContentsMargins(0, 0, 0, 0)
        inside.addWidget(self._words, 1)
        inside.addWidget(self._scroll, 1)
        self._split = QSplitter(Qt.Orientation.Horizontal)
        self._split.setObjectName("chart_split")
        for part, share in ((self.tag_list, 0), (middle, 1), (self.legend, 0)):
            self._split.addWidget(part)
            self._split.setStretchFactor(self._split.count() - 1, share)
        self._split.setCollapsible(1, False)
        unit = self.fontMetrics().averageCharWidth()
        self._split.setSizes([unit * 28, unit * 100, unit * 44])
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(6)
        for widget in (self.controls, self.banner, self.progress):
            layout.addWidget(widget)
        layout.addWidget(self._split, 1)

    def _connect(self) -> None:
        self.controls.changed.connect(self._change_choice)
        self.controls.reset_wanted.connect(self.reset_zoom)
        self.tag_list.chosen_changed.connect(self._tags_ticked)
        self.legend.look_changed.connect(self._change_look)
        self.feed.grew.connect(self._maker.soon)
        self._maker.made.connect(self._show)
        self.feed.tags_found.connect(self._take_tags)
        self.feed.progressed.connect(self._progress)
        self.feed.failed.connect(self._fail)
        self.export.said.connect(self._saved)


def _settings(group: str) -> QSettings:
    settings = QSettings("MOSAIC", "mosaic")
    settings.beginGroup(group)
    return settings
