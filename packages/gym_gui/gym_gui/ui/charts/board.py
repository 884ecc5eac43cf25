"""Charts of runs with everything around them: which curves, how they are drawn, a legend, what can be saved.

The Charts tab of a run and the Compare page are this board over different runs. Importing this loads pyqtgraph.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_status import RunStatus
from PySide6.QtCore import QSettings, Signal
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QComboBox, QFrame, QHBoxLayout, QMenu, QPushButton, QScrollArea, QVBoxLayout, QWidget

from gym_gui.services.analytics.curves import Axis, Curve, appended, curve_of
from gym_gui.services.analytics.figure import Figure, Line
from gym_gui.ui.charts.controls import ChartControls, ChartExport, ChartLegend, TagList
from gym_gui.ui.charts.curves import (
    MAX_CHARTS,
    ChartChoice,
    Entry,
    build_figures,
    downsampled,
    entries_of,
    return_tags,
    visible_part,
)
from gym_gui.ui.charts.feed import CurveFeed, FigureBuilder
from gym_gui.ui.charts.plot import ChartGrid, ChartView, value_text
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.parts import caption, fill, named, split

DefaultTags = Callable[[Iterable[str]], list[str]]
"""Known tags → those that have a chart until the user chooses"""


class ChartBoard(QWidget):
    """Charts of the runs that `set_runs` names; live runs are followed."""

    drawn = Signal()
    """Every chart shows what is known by now"""

    def __init__(
        self,
        link: DaemonLink,
        settings_group: str,
        default: ChartChoice,
        default_tags: DefaultTags,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.setObjectName("chart_board")
        self._link = link
        self._settings = QSettings("MOSAIC", "mosaic")
        self._settings.beginGroup(settings_group)
        self._default_tags = default_tags
        self.feed = CurveFeed(link, self)
        self._builder = FigureBuilder(self.feed, link.background, lambda: self.choice, self)
        self.figures: dict[str, Figure] = {}
        self._pointed: tuple[str, float] | None = None
        self._build()
        self.controls.show_choice(ChartChoice.from_text(str(self._settings.value("choice") or ""), default))
        self._shown_choice = self.choice
        self._chosen_tags = self._stored_tags()
        self._connect()

    # ---------------------------------------------------------------- runs

    def set_runs(self, runs: Iterable[pb.Run]) -> None:
        before = set(self.feed.runs)
        self.feed.set_runs(runs)
        if not before & self.feed.runs.keys():
            self.legend.reset()
            self.banner.clear()
            self.grid.reset_zoom()
        self._update_tags()
        self._builder.build_soon()
        self._show_message()

    def update_run(self, run: pb.Run) -> None:
        """Replace the record of one run."""
        self.feed.update_run(run)
        self._show_message()

    def set_active(self, active: bool) -> None:
        """Load and draw only while the board is visible."""
        self.feed.set_active(active)
        if active:
            self._builder.build_soon()

    @property
    def runs(self) -> list[pb.Run]:
        return list(self.feed.runs.values())

    @property
    def views(self) -> dict[str, ChartView]:
        return self.grid.views

    @property
    def is_settled(self) -> bool:
        """Whether every chart shows all there is and nothing is being loaded."""
        return self.feed.is_complete and not self._builder.is_busy and not self.grid.is_busy

    @property
    def choice(self) -> ChartChoice:
        return self.controls.choice

    def entries(self) -> dict[str, Entry]:
        """Return the lines of all charts, as the legend lists them."""
        found: dict[str, Entry] = {}
        for figure in self.figures.values():
            for key, entry in entries_of(figure).items():
                found.setdefault(key, entry)
        return found

    # ---------------------------------------------------------------- which curves

    def show_tags(self, tags: Sequence[str]) -> None:
        """Show charts of these curves, and remember the choice."""
        self._chosen_tags = list(tags)
        self._settings.setValue("tags", json.dumps(self._chosen_tags))
        self._update_tags()
        self._builder.build_soon()

    def _update_tags(self) -> None:
        """Show the chosen curves that the runs have, or the default ones when they have none of them."""
        known = self.feed.known_tags
        tags = [tag for tag in self._chosen_tags if tag in known or not known]
        tags = (tags or self._default_tags(known) or return_tags(known))[:MAX_CHARTS]
        self.tag_list.show_tags(known, tags)
        self.feed.set_tags(tags, with_episodes=self.choice.axis is Axis.EPISODE)
        self.figures = {tag: self.figures[tag] for tag in tags if tag in self.figures}
        self._show_figures()

    def _use_checked_tags(self) -> None:
        checked = self.tag_list.checked()
        if len(checked) > MAX_CHARTS:
            message = self.tr("At most {0} charts are shown at once; remove one first.").format(MAX_CHARTS)
            self.banner.set_message(message, "warning", action=self.tr("Dismiss"), on_action=self.banner.clear)
        self.show_tags(checked[:MAX_CHARTS])

    def _stored_tags(self) -> list[str]:
        try:
            stored = json.loads(str(self._settings.value("tags") or "[]"))
        except ValueError:  # edited by hand
            return []
        return [str(tag) for tag in stored] if isinstance(stored, list) else []

    # ---------------------------------------------------------------- figures

    def _show_built(self, choice: ChartChoice, figures: dict[str, Figure]) -> None:
        if choice.is_grouped is not self._shown_choice.is_grouped:
            self.legend.reset()
        self._shown_choice = choice
        self.figures = {tag: figures[tag] for tag in self.feed.tags if tag in figures}
        entries = self.entries()
        self.legend.show_entries(entries)
        self.legend.setVisible(len(entries) > 1)
        self._show_figures()

    def _show_figures(self) -> None:
        self.grid.show_figures(self.figures, self._shown_choice.axis, self.legend.hidden, self.legend.selected)
        self._show_message()

    def _finish(self) -> None:
        self._show_message()
        self.drawn.emit()

    def _make_view(self, tag: str) -> ChartView:
        view = ChartView(tag)
        view.header.addWidget(self.export.button(tag, lambda: self.visible_figure(tag), lambda: self.visible_runs(tag)))
        return view

    def visible_figure(self, tag: str) -> Figure:
        """Return a figure without the lines that are hidden."""
        return visible_part(self.figures[tag], self.legend.hidden)

    def visible_runs(self, tag: str) -> list[pb.Run]:
        shown = {run_id for line in self.visible_figure(tag).lines for run_id in line.run_ids}
        return [run for run in self.runs if run.run_id in shown]

    # ---------------------------------------------------------------- reading values

    def _point(self, tag: str, x: float | None) -> None:
        self._pointed = None if x is None else (tag, x)
        self.legend.model.refresh_values()

    def _value_of(self, key: str) -> str:
        """Return the value under the crosshair; without one, the last value of the first chart."""
        tag, x = self._pointed or (next(iter(self.views), ""), None)
        view = self.views.get(tag)
        if view is None:
            return ""
        value = view.last_value(key) if x is None else view.value_at(key, x)
        return "–" if value is None else value_text(value)

    # ---------------------------------------------------------------- messages

    def _show_progress(self, loaded: int, total: int) -> None:
        self.progress.setText(self.tr("{0} of {1} runs are loaded").format(f"{loaded:,}", f"{total:,}"))
        self.progress.setVisible(loaded < total)

    def _show_failure(self, message: str) -> None:
        text = self.tr("The curves cannot be read: {0}").format(message)
        self.banner.set_message(text, "bad", action=self.tr("Try again"), on_action=self._retry)

    def _retry(self) -> None:
        self.banner.clear()
        self.feed.retry()

    def _show_report(self, message: str, tone: str) -> None:
        self.banner.set_message(
            message, "bad" if tone == "bad" else "info", action=self.tr("Dismiss"), on_action=self.banner.clear
        )

    def _show_message(self) -> None:
        """Explain why there are no charts, if there are none."""
        self._scroll.setVisible(bool(self.views))
        self._message.setVisible(not self.views)
        statuses = {run.status for run in self.runs}
        if not statuses:
            message = self.tr("No runs are selected.")
        elif statuses == {RunStatus.INIT}:
            message = self.tr("Waiting in the queue. Curves appear here when training begins.")
        elif statuses != {RunStatus.TERM}:
            message = self.tr("No curves yet. They appear with the first finished episode or update.")
        elif self.is_settled and self.feed.tags:
            message = self.tr("There are no such curves: choose others in the list, or read the logs.")
        else:
            message = self.tr("Loading curves…")
        self._message.setText(message)

    # ---------------------------------------------------------------- widgets

    def _change_choice(self, choice: ChartChoice) -> None:
        self._settings.setValue("choice", choice.to_text())
        self.feed.set_tags(self.feed.tags, with_episodes=choice.axis is Axis.EPISODE)
        self._builder.build_soon()

    def _build(self) -> None:
        self.controls = ChartControls()
        self.banner = Banner()
        self.progress = caption("chart_progress")
        self.progress.hide()
        self.tag_list = TagList()
        self.legend = ChartLegend()
        self.legend.model.value_of = self._value_of
        self.legend.hide()
        self.export = ChartExport(self._link, self)
        self._message = caption("chart_message", wraps=True, centered=True)
        self.grid = ChartGrid(self._make_view)
        self._scroll = scrolled(self.grid)
        middle = QWidget()
        fill(QVBoxLayout(middle), (self._message, 1), (self._scroll, 1), margins=0)
        parts = ((self.tag_list, 0), (middle, 1), (self.legend, 0))
        splitter = split("chart_split", *parts, is_collapsible=True)
        splitter.setCollapsible(1, False)
        unit = self.fontMetrics().averageCharWidth()
        splitter.setSizes([unit * 28, unit * 100, unit * 44])
        fill(QVBoxLayout(self), self.controls, self.banner, self.progress, (splitter, 1), margins=0, spacing=6)

    def _connect(self) -> None:
        self.controls.changed.connect(self._change_choice)
        self.controls.reset_requested.connect(self.grid.reset_zoom)
        self.tag_list.checked_changed.connect(self._use_checked_tags)
        self.legend.changed.connect(lambda: self.grid.highlight(self.legend.hidden, self.legend.selected))
        self.grid.pointed_at.connect(self._point)
        self.grid.drawn.connect(self._finish)
        self.feed.grew.connect(self._builder.build_later)
        self._builder.built.connect(self._show_built)
        self.feed.tags_found.connect(self._update_tags)
        self.feed.progressed.connect(self._show_progress)
        self.feed.failed.connect(self._show_failure)
        self.export.reported.connect(self._show_report)


class CurveBoard(QWidget):
    """Charts of curves that the caller has, with a menu of which are shown (W&B's own files)."""

    def __init__(
        self, name: str, default_tags: DefaultTags, *, has_steps: bool = True, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setObjectName(name)
        self._default_tags = default_tags
        self._curves: Mapping[str, Curve] = {}
        self._chosen: list[str] | None = None
        self._menu = QMenu(self)
        self._menu.aboutToShow.connect(self._fill_menu)
        button = named(QPushButton(self.tr("Cur&ves")), f"{name}_curves", self.tr("Choose curves"))
        button.setMenu(self._menu)
        self.axis_box = named(QComboBox(), f"{name}_axis", self.tr("Horizontal axis"))
        if has_steps:
            self.axis_box.addItem(self.tr("over steps"), Axis.STEP.value)
        self.axis_box.addItem(self.tr("over time"), Axis.TIME.value)
        self.axis_box.setVisible(has_steps)
        self.axis_box.currentIndexChanged.connect(lambda: self._draw())
        self.count = caption(f"{name}_count")
        tools = fill(QHBoxLayout(), button, self.axis_box, self.count, 1)
        self.grid = ChartGrid(least_chars=40)
        self._scroll = named(scrolled(self.grid), f"{name}_scroll", self.tr("Charts"))
        self.message = caption(f"{name}_message", wraps=True, centered=True)
        fill(QVBoxLayout(self), tools, (self._scroll, 1), (self.message, 1), margins=(0, 6, 0, 0))
        self._draw()

    def show_curves(self, curves: Mapping[str, Curve], message: str = "") -> None:
        """Draw these curves; `message` is shown when there are none."""
        self._curves = curves
        self.message.setText(message)
        self._draw()

    def show_tags(self, tags: Sequence[str]) -> None:
        self._chosen = list(tags)
        self._draw()

    @property
    def tags(self) -> list[str]:
        tags = self._default_tags(self._curves) if self._chosen is None else self._chosen
        return [tag for tag in tags if tag in self._curves][:MAX_CHARTS]

    def _draw(self) -> None:
        tags, axis = self.tags, Axis(self.axis_box.currentData())
        run = pb.Run(run_id="curves")
        self.grid.show_figures(build_figures([run], {run.run_id: self._curves}, ChartChoice(axis), tags), axis)
        self._scroll.setVisible(bool(self._curves))
        self.message.setVisible(not self._curves)
        known = len(self._curves)
        self.count.setText(self.tr("{shown} of {known}").format(shown=len(tags), known=known) if known else "")

    def _fill_menu(self) -> None:
        self._menu.clear()
        for tag in sorted(self._curves):
            action = QAction(tag, self._menu, checkable=True, checked=tag in self.tags)
            action.toggled.connect(lambda is_on, tag=tag: self._toggle(tag, is_on))
            self._menu.addAction(action)
        if not self._curves:
            self._menu.addAction(self.tr("No curves yet")).setEnabled(False)

    def _toggle(self, tag: str, is_on: bool) -> None:
        self.show_tags([*self.tags, tag] if is_on else [each for each in self.tags if each != tag])


_RESOURCES = ("cpu_percent", "memory_mb", "written_mb_s", "disk_mb")


class ResourceBoard(ChartGrid):
    """Small charts of what a run uses of its machine: CPU, memory, disk, GPUs, over minutes."""

    def __init__(self) -> None:
        super().__init__(self._make_chart, least_chars=34)
        self.setObjectName("resource_charts")
        self._curves: dict[str, Curve] = {}

    def clear(self) -> None:
        self._curves.clear()
        self.show_figures({}, Axis.TIME)

    def add(self, parts: Iterable[pb.MetricCurve]) -> None:
        """Add points to the curves; tags other than `system/*` are ignored."""
        for part in parts:
            folder, _, name = part.tag.rpartition("/")
            if folder.endswith("system") and (name in _RESOURCES or name.startswith("gpu")):
                known = None if part.is_reset else self._curves.get(name)
                last = known.times[-1] if known is not None and len(known) else float("-inf")
                times = np.asarray(part.wall_times)
                new = times > last  # a stream that was interrupted sends everything again
                steps, values = np.asarray(part.steps)[new], np.asarray(part.values)[new]
                more = curve_of("", name, steps, times[new], values, part.total)
                self._curves[name] = downsampled(appended(known, more, is_reset=False))
        gpus = sorted(name for name in self._curves if name.startswith("gpu"))
        shown = [name for name in (*_RESOURCES, *gpus) if name in self._curves and len(self._curves[name])]
        begin = min((float(self._curves[name].times[0]) for name in shown), default=0.0)
        self.show_figures({name: self._figure(name, begin) for name in shown}, Axis.TIME)
        for name, view in self.views.items():
            self._describe(name, view)

    def _figure(self, name: str, begin: float) -> Figure:
        title, _ = self._title_and_unit(name)
        curve = self._curves[name]
        # The same color for the same thing, whichever curve comes first.
        color = _RESOURCES.index(name) if name in _RESOURCES else len(_RESOURCES) + ("memory" in name)
        line = Line(title, (curve.times - begin) / 60, curve.values, None, None, color, (name,))
        return Figure(title, self.tr("minutes"), "", False, False, (line,))

    def _make_chart(self, name: str) -> ChartView:
        view = ChartView(name, unit=self._title_and_unit(name)[1], is_small=True)
        self._describe(name, view)
        return view

    def _describe(self, name: str, view: ChartView) -> None:
        (title, unit), values = self._title_and_unit(name), self._curves[name].values
        now, peak = (f"{value_text(float(value))} {unit}" for value in (values[-1], values.max()))
        text = self.tr("{name}: now {value}, highest {peak}; over minutes").format(name=title, value=now, peak=peak)
        view.setToolTip(text)
        view.setAccessibleName(text)

    def _title_and_unit(self, name: str) -> tuple[str, str]:
        known = {
            "cpu_percent": (self.tr("CPU (100 % is one core)"), "%"),
            "memory_mb": (self.tr("Memory"), "MiB"),
            "written_mb_s": (self.tr("Written to disk"), "MiB/s"),
            "disk_mb": (self.tr("Size of the run folder"), "MiB"),
        }
        number, _, what = name.removeprefix("gpu").partition("_")
        if what == "percent" and name not in known:
            return self.tr("GPU {number}").format(number=number), "%"
        return known.get(name) or (self.tr("Memory of GPU {number}").format(number=number), "MiB")


def scrolled(content: QWidget) -> QScrollArea:
    """Return a frameless area that scrolls a page of charts."""
    area = QScrollArea()
    area.setFrameShape(QFrame.Shape.NoFrame)
    area.setWidgetResizable(True)
    area.setWidget(content)
    return area
