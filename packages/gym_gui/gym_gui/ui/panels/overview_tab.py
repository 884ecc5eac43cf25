"""The first tab of a run: how it stands, what it takes of the machine, how it was made, and why it failed."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QFrame, QLabel, QProgressBar, QScrollArea, QVBoxLayout, QWidget

from gym_gui.ui.daemon_link import DaemonLink, Subscription
from gym_gui.ui.panels.run_figures import facts_of, figures_of, remark_in_words
from gym_gui.ui.panels.run_tab import RunTab
from gym_gui.ui.panels.run_words import advice_on, manifest_trouble
from gym_gui.ui.presenters.run_details import (
    Pairs,
    command_line_of,
    evaluation_pairs,
    files_of,
    host_of,
    parameters_of,
    sources_of,
    versions_of,
)
from gym_gui.ui.presenters.run_files import ManifestReading, Trouble, read_manifest
from gym_gui.ui.presenters.run_lineage import Lineage, origin_of
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.failure_card import FailureCard
from gym_gui.ui.widgets.figure_card import CardGrid, FigureCard
from gym_gui.ui.widgets.lineage_view import LineageView
from gym_gui.ui.widgets.page_section import CopyLine, PageSection
from gym_gui.ui.widgets.pairs_table import PairsTable
from gym_gui.wording import formats
from gym_gui.wording.last_words import last_words
from gym_gui.wording.run_view import fraction, unit_of

if TYPE_CHECKING:
    from gym_gui.ui.widgets.resource_plots import ResourcePlots

_TICK_MS = 1000
_PLOTTED_POINTS = 400
_TABLE_ROWS = 12


class OverviewTab(RunTab):
    """Cards, progress, resources, family, parameters, command line, versions; a failure comes first."""

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(link, parent)
        self.setObjectName("overview_tab")
        self._lineage = Lineage()
        self._manifest_for = ("", "", "")
        """Run, status and progress that the manifest was read for: it grows by checkpoints and videos"""
        self._reading: ManifestReading | None = None
        self._told_for = ("", 0)
        self._stream: Subscription[pb.RunMetrics] | None = None
        self._plots: ResourcePlots | None = None
        self._waiting_curves: list[pb.MetricCurve] = []
        self._tables: dict[str, tuple[PageSection, PairsTable]] = {}
        self._pairs: dict[str, Pairs] = {}
        self._shown_tables: list[PageSection] = []
        self._evaluation: Pairs = []
        self._evaluation_cards: list[FigureCard] = []
        self._build()
        self._clock = QTimer(self)
        self._clock.setInterval(_TICK_MS)
        self._clock.timeout.connect(self._tick)

    # ------------------------------------------------------------------ building

    def _build(self) -> None:
        page = QWidget()
        self._page = QVBoxLayout(page)
        self._page.setContentsMargins(12, 10, 12, 12)
        self._page.setSpacing(8)
        self.banner = Banner(parent=page)
        self.failure = FailureCard()
        self.failure.logs_wanted.connect(lambda: self.tab_wanted.emit("logs"))
        self.cards = {figure.key: FigureCard(figure.key, figure.caption) for figure in figures_of(pb.Run())}
        self.progress = QProgressBar()
        self.progress.setObjectName("run_progress")
        self.progress.setRange(0, 1000)
        self.remark = QLabel()
        self.remark.setObjectName("run_remark")
        self.remark.setWordWrap(True)
        for widget in (self.banner, self.failure, CardGrid(list(self.cards.values())), self.progress, self.remark):
            self._page.addWidget(widget)
        self.evaluation = CardGrid(least_chars=16)
        self._evaluation_section = self._add_section("evaluation", self.tr("Evaluation"), self.evaluation)
        self._plots_place = QWidget()
        QVBoxLayout(self._plots_place).setContentsMargins(0, 0, 0, 0)
        self._plots_section = self._add_section(
            "resources", self.tr("What it takes of the machine, over minutes"), self._plots_place
        )
        self.lineage = LineageView()
        self.lineage.run_wanted.connect(self.run_wanted)
        self._lineage_section = self._add_section("lineage", self.tr("Family"), self.lineage)
        self.command = CopyLine("command_line", self.tr("Command line of the training"))
        self._command_section = self._add_section("command", self.tr("Command line"), self.command)
        for section in (
            self._table("facts", self.tr("This run"), self.tr("What"), self.tr("Value")),
            self._table("parameters", self.tr("Parameters"), self.tr("Parameter"), self.tr("Value")),
            self._table("files", self.tr("Checkpoints and videos"), self.tr("What"), self.tr("File")),
            self._table("versions", self.tr("Versions"), self.tr("Package"), self.tr("Version")),
            self._table("host", self.tr("Machine"), self.tr("What"), self.tr("Value")),
            self._table("sources", self.tr("Code from elsewhere"), self.tr("What"), self.tr("Value")),
        ):
            section.hide()
        self._table_grid = CardGrid(least_chars=62)
        self._page.addWidget(self._table_grid)
        self._page.addStretch(1)
        scroll = QScrollArea()
        scroll.setObjectName("overview_scroll")
        scroll.setAccessibleName(self.tr("Overview of the run"))
        scroll.setFrameShape(QFrame.Shape.NoFrame)
        scroll.setWidgetResizable(True)
        scroll.setWidget(page)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(scroll)

    def _add_section(self, name: str, title: str, content: QWidget) -> PageSection:
        section = PageSection(name, title, content)
        section.hide()
        self._page.addWidget(section)
        return section

    def _table(self, name: str, title: str, left: str, right: str) -> PageSection:
        table = PairsTable(left, right, accessible=title)
        table.setObjectName(f"table_{name}")
        section = PageSection(name, title, table)
        self._tables[name] = section, table
        return section

    # ------------------------------------------------------------------ RunTab

    def set_lineage(self, lineage: Lineage) -> None:
        """Who came from whom; the page keeps it for all runs."""
        self._lineage = lineage

    def show_run(self, run: pb.Run) -> None:
        super().show_run(run)
        self._stop_stream()
        self._reading = None
        self._manifest_for, self._told_for = ("", "", ""), ("", 0)
        self.banner.clear()
        self.failure.hide()
        self._waiting_curves.clear()
        if self._plots is not None:
            self._plots.clear()
        self._plots_section.hide()
        self._draw()
        if self.is_active:
            self._start()

    def refresh(self, run: pb.Run) -> None:
        super().refresh(run)
        if self.is_active:
            self._draw()
            self._read_what_changed()

    def set_active(self, active: bool) -> None:
        super().set_active(active)
        if active and self.run is not None:
            self._draw()
            self._start()
        elif not active:
            self._clock.stop()
            self._stop_stream()

    def refresh_family(self) -> None:
        """Somebody came from this run, or changed."""
        run = self.run
        if run is None:
            return
        origin = origin_of(run)
        step = run.parent.step if run.HasField("parent") else 0
        children = self._lineage.children_of(run.run_id)
        self._lineage_section.setVisible(origin is not None or bool(children))
        self.lineage.show_family((*origin, step) if origin else None, children)

    # ------------------------------------------------------------------ drawing what is known

    def _start(self) -> None:
        self._clock.start()
        self._read_what_changed()
        self._follow_resources()

    def _tick(self) -> None:
        if self.run is not None and self.run.status != "TERM":
            self._draw_figures(self.run)

    def _draw(self) -> None:
        run = self.run
        if run is None:
            return
        self._draw_figures(run)
        self.remark.setText(remark_in_words(run))
        self.remark.setVisible(bool(self.remark.text()))
        self._draw_failure(run)
        self._fill(facts=facts_of(run))
        self._draw_manifest(run)
        self.refresh_family()

    def _draw_figures(self, run: pb.Run) -> None:
        for figure in figures_of(run, time.time()):
            self.cards[figure.key].show_figure(figure.caption, figure.value, figure.note)
        done = fraction(run)
        self.progress.setVisible(done is not None)
        if done is not None:
            self.progress.setValue(round(1000 * done))
            counted = {
                "steps": self.tr("{step} of {total} steps"), "episodes": self.tr("{step} of {total} episodes"),
                "trials": self.tr("{step} of {total} trials"),
            }[unit_of(run)]  # fmt: skip
            words = counted.format(step=formats.count(run.step), total=formats.count(run.total))
            self.progress.setFormat(f"{100 * done:.0f} %  ·  {words}")
            self.progress.setAccessibleName(words)

    def _draw_failure(self, run: pb.Run) -> None:
        has_failed = run.outcome == "failed" or run.status == "FAULT"
        if not has_failed:
            self.failure.hide()
            return
        title = self.tr("This run failed") if run.status == "TERM" else self.tr("This run went wrong")
        reason = run.reason or self.tr("The daemon knows no reason.")
        lines = self.failure.lines.toPlainText().splitlines() if self.failure.isVisibleTo(self) else []
        self.failure.say(title, reason, advice_on(run, lines))

    def _fill(self, **pairs_of: Pairs) -> None:
        """Tables that have something to say stand in the grid, the others do not."""
        self._pairs |= pairs_of
        for name, pairs in pairs_of.items():
            _, table = self._tables[name]
            if table.pairs() != pairs:
                table.show_pairs(pairs)
                rows = min(len(pairs), _TABLE_ROWS)
                height = rows * table.verticalHeader().defaultSectionSize()
                table.setFixedHeight(table.horizontalHeader().sizeHint().height() + height + 6)
        shown = [section for name, (section, _) in self._tables.items() if self._pairs.get(name)]
        if shown != self._shown_tables:
            self._shown_tables = shown
            self._table_grid.set_widgets(shown)

    def _show_evaluation(self, pairs: Pairs) -> None:
        self._evaluation_section.setVisible(bool(pairs))
        if pairs == self._evaluation:
            return
        self._evaluation = pairs
        cards = []
        for name, value in pairs:
            cards.append(FigureCard(f"evaluation_{name.replace(' ', '_')}", name.capitalize()))
            cards[-1].show_figure(name.capitalize(), value)
        before, self._evaluation_cards = self._evaluation_cards, cards
        self.evaluation.set_widgets(cards)
        for card in before:
            card.deleteLater()

    # ------------------------------------------------------------------ what lies in files, or is asked for

    def _read_what_changed(self) -> None:
        run = self.run
        if run is None:
            return
        wanted = run.run_id, run.status, f"{run.attempt} {run.event_seq} {run.step > 0}"
        if wanted != self._manifest_for:
            self._manifest_for = wanted
            run_dir = run.run_dir
            self._later(lambda: read_manifest(run_dir), self._take_manifest)
        told = run.run_id, run.event_seq
        if (run.outcome == "failed" or run.status == "FAULT") and told != self._told_for:
            self._told_for = told
            run_id = run.run_id
            self.link.call(
                lambda client: last_words(client.story(run_id)),
                owner=self,
                done=lambda found: self._take_last_words(run_id, *found),
                failed=lambda words: self._take_last_words(run_id, "", [words]),
            )

    def _later(self, function: Callable[[], ManifestReading], done: Callable[[str, ManifestReading], None]) -> None:
        run_id = self.run.run_id if self.run is not None else ""
        self.link.background.run(function, owner=self, done=lambda result: done(run_id, result))

    def _take_manifest(self, run_id: str, reading: ManifestReading) -> None:
        if self.run is not None and self.run.run_id == run_id:
            self._reading = reading
            self._draw_manifest(self.run)

    def _draw_manifest(self, run: pb.Run) -> None:
        reading = self._reading
        manifest = reading.manifest if reading is not None else None
        self._show_evaluation(evaluation_pairs(run, manifest))
        self._fill(
            parameters=parameters_of(run, manifest),
            files=files_of(manifest) if manifest else [],
            versions=versions_of(manifest) if manifest else [],
            host=host_of(manifest) if manifest else [],
            sources=sources_of(manifest) if manifest else [],
        )
        self.command.show_text(command_line_of(manifest) if manifest else "")
        self._command_section.setVisible(bool(self.command.text))
        if reading is not None and reading.problem is not None:
            is_worse = reading.problem.trouble is not Trouble.MISSING
            self.banner.say(manifest_trouble(reading.problem, run), "warning" if is_worse else "info")
        else:
            self.banner.clear()

    def _take_last_words(self, run_id: str, stream: str, lines: list[str]) -> None:
        run = self.run
        if run is None or run.run_id != run_id:
            return
        source = self.tr("The end of its {stream}:").format(stream=stream) if stream else ""
        self.failure.show_lines(source, lines)
        self.failure.advice.setText(advice_on(run, lines))

    # ------------------------------------------------------------------ curves of the machine

    def _follow_resources(self) -> None:
        run = self.run
        if run is None or self._stream is not None:
            return
        run_id, follow = run.run_id, run.status != "TERM"
        self._stream = self.link.stream(
            lambda client: client.metrics(run_id, ["system/*"], max_points=_PLOTTED_POINTS, follow=follow),
            lambda batch: self._take_curves(run_id, batch),
            owner=self,
            every_ms=_TICK_MS,
        )

    def _take_curves(self, run_id: str, batch: list[pb.RunMetrics]) -> None:
        if self.run is None or self.run.run_id != run_id:
            return
        curves = [curve for message in batch for curve in message.curves if curve.values]
        if not curves:
            return
        self._waiting_curves += curves
        if self._plots is not None:
            self._show_curves()
            return
        # pyqtgraph takes a third of a second to load: not in this thread.
        self.link.background.run(
            lambda: importlib.import_module("gym_gui.ui.widgets.resource_plots"),
            owner=self,
            done=lambda _module: self._make_plots(),
        )

    def _make_plots(self) -> None:
        if self._plots is None:
            from gym_gui.ui.widgets.resource_plots import ResourcePlots

            self._plots = ResourcePlots()
            self._plots.grew.connect(self._plots_section.show)
            place = self._plots_place.layout()
            assert place is not None
            place.addWidget(self._plots)
        self._show_curves()

    def _show_curves(self) -> None:
        assert self._plots is not None
        curves, self._waiting_curves = self._waiting_curves, []
        self._plots.add(curves)

    def _stop_stream(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None
