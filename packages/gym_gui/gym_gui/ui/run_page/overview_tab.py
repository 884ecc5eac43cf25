"""The Overview tab: state, resources, provenance, related runs, and the reason for a failure."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_status import RunOutcome, RunStatus
from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QPlainTextEdit,
    QProgressBar,
    QPushButton,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

from gym_gui.ui.daemon_link import DaemonLink, Subscription
from gym_gui.ui.presenters.run_files import ManifestReading, ManifestTrouble, read_manifest
from gym_gui.ui.run_page.run_details import (
    Kinship,
    Lineage,
    Pairs,
    Relative,
    command_line_of,
    evaluation_pairs,
    files_of,
    host_of,
    origin_of,
    parameters_of,
    sources_of,
    versions_of,
)
from gym_gui.ui.run_page.run_labels import (
    HeadlineValue,
    advice_for,
    facts_of,
    headlines_of,
    manifest_problem_text,
    remark_of,
)
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.parts import (
    CardGrid,
    CodeFont,
    CopyLine,
    ElidedLabel,
    PageSection,
    fill,
    named,
    scrolled,
    styled,
    timer,
)
from gym_gui.ui.widgets.run_tab import RunTab
from gym_gui.ui.widgets.tables import PairsTable
from gym_gui.wording import formats
from gym_gui.wording.run_view import fraction, last_output, short_id, unit_of

if TYPE_CHECKING:
    from gym_gui.ui.charts.board import ResourceBoard

_MAX_LINES = 14


class HeadlineCard(QFrame):
    """A caption, a value in large type, and a note."""

    def __init__(self, key: str, caption: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        named(self, f"card_{key}", role="card")
        self._caption = named(ElidedLabel(caption), "", role="caption")
        self._value = named(ElidedLabel("–"), f"card_{key}_value", role="figure")
        self._note = named(ElidedLabel(), "", role="caption")
        fill(QVBoxLayout(self), self._caption, self._value, self._note, 1, margins=(12, 8, 12, 8), spacing=2)

    @property
    def value(self) -> str:
        return self._value.text()

    def show_headline(self, headline: HeadlineValue) -> None:
        caption, value, note = headline.caption, headline.value, headline.note
        if (self._caption.text(), self._value.text(), self._note.text()) == (caption, value, note):
            return  # skip unchanged values: runs are updated often
        self._caption.setText(caption)
        self._value.setText(value)
        self._note.setText(note)
        self._note.setVisible(bool(note))
        text = ", ".join(filter(None, (f"{caption}: {value}", note)))
        self.setToolTip(text)
        self.setAccessibleName(text)


class FailureCard(QFrame):
    """Shown for runs that failed or are being retried."""

    logs_requested = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        named(self, "failure", role="banner")
        self.setProperty("tone", "bad")
        self._title = styled(QLabel(), "problem")
        self.reason = _wrapped_label("failure_reason")
        self.advice = _wrapped_label("failure_advice")
        self._source = styled(QLabel(), "caption")
        self.lines = named(QPlainTextEdit(readOnly=True), "failure_lines", self.tr("The last lines the run wrote"))
        CodeFont(self.lines)
        self.lines.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.lines.setTabChangesFocus(True)
        self.logs_button = named(QPushButton(self.tr("Open lo&gs")), "failure_logs")
        self.logs_button.setAccessibleName(self.tr("Open the logs of this run"))
        self.logs_button.clicked.connect(self.logs_requested)
        head = fill(QHBoxLayout(), (self._title, 1), self.logs_button)
        layout = fill(QVBoxLayout(self), head, margins=(12, 8, 12, 10), spacing=6)
        for widget in (self.reason, self._source, self.lines, self.advice):
            layout.addWidget(widget)
        self.hide()

    def set_message(self, title: str, reason: str, advice: str) -> None:
        self._title.setText(title)
        self.reason.setText(reason)
        self.advice.setText(advice)
        self.show()

    def show_lines(self, source: str, lines: list[str]) -> None:
        """Show the end of the run's output; hidden when it is empty."""
        self._source.setText(source)
        text = "\n".join(lines)
        if text != self.lines.toPlainText():
            self.lines.setPlainText(text)
        for widget in (self._source, self.lines):
            widget.setVisible(bool(lines))
        rows = min(_MAX_LINES, len(lines)) + 1
        self.lines.setFixedHeight(round(self.lines.fontMetrics().lineSpacing() * rows) + 12)
        bar = self.lines.verticalScrollBar()
        bar.setValue(bar.maximum())  # the error is at the end


def _wrapped_label(name: str) -> QLabel:
    label = named(QLabel(), name)
    label.setWordWrap(True)
    label.setTextFormat(Qt.TextFormat.PlainText)
    label.setTextInteractionFlags(
        Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
    )
    return label


_MOST = 20


class LineageView(QWidget):
    """The parent first, then the children in order."""

    run_requested = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("lineage")
        self._shown: object = None
        self._layout = QVBoxLayout(self)
        self._layout.setContentsMargins(0, 0, 0, 0)
        self._layout.setSpacing(2)

    def show_family(self, origin: tuple[str, Kinship, int] | None, children: Sequence[Relative]) -> None:
        """Show the run this one came from (id, how, at which step) and the runs that came from it."""
        if (requested := (origin, tuple(children))) == self._shown:
            return
        self._shown = requested
        while (item := self._layout.takeAt(0)) is not None:
            if (widget := item.widget()) is not None:
                widget.deleteLater()
        if origin is not None:
            run_id, kinship, step = origin
            text = self.tr("Evaluates") if kinship is Kinship.EVALUATES else self.tr("Continues")
            note = self.tr("from step {step}").format(step=formats.count(step)) if step else ""
            self._add(text, run_id, "", note)
        for relative in children[:_MOST]:
            text = self.tr("Evaluated by") if relative.kinship is Kinship.EVALUATES else self.tr("Continued by")
            self._add(text, relative.run_id, relative.title, relative.state)
        if len(children) > _MOST:
            self._layout.addWidget(QLabel(self.tr("… and {count} more").format(count=len(children) - _MOST)))

    def _add(self, text: str, run_id: str, title: str, note: str) -> None:
        line = QWidget()
        row = QHBoxLayout(line)
        row.setContentsMargins(0, 0, 0, 0)
        caption = styled(QLabel(text), "caption")
        caption.setMinimumWidth(self.fontMetrics().averageCharWidth() * 14)
        button = QPushButton(f"{title} · {short_id(run_id)}" if title else short_id(run_id))
        button.setObjectName(f"relative_{run_id}")
        button.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Fixed)
        button.setAccessibleName(self.tr("{label} run {run}: open it").format(label=text, run=run_id))
        button.setToolTip(run_id)
        button.clicked.connect(lambda: self.run_requested.emit(run_id))
        about = styled(QLabel(note), "caption")
        fill(row, caption, button, about, 1)
        self._layout.addWidget(line)


_TICK_MS = 1000
_PLOTTED_POINTS = 400
_TABLE_ROWS = 12


class OverviewTab(RunTab):
    """Cards, progress, resources, related runs, parameters, command line, versions; the reason for a failure first."""

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(link, parent)
        self.setObjectName("overview_tab")
        self._lineage = Lineage()
        self._manifest_for = ("", "", "")
        """Run, status and progress for which the manifest was read: checkpoints and videos are added to it"""
        self._reading: ManifestReading | None = None
        self._failure_shown = ("", 0)
        self._stream: Subscription[pb.RunMetrics] | None = None
        self._plots: ResourceBoard | None = None
        self._waiting_curves: list[pb.MetricCurve] = []
        self._tables: dict[str, tuple[PageSection, PairsTable]] = {}
        self._pairs: dict[str, Pairs] = {}
        self._shown_tables: list[PageSection] = []
        self._evaluation: Pairs = []
        self._evaluation_cards: list[HeadlineCard] = []
        self._build()
        self._clock = timer(self, self._tick, _TICK_MS)

    # ------------------------------------------------------------------ building

    def _build(self) -> None:
        page = QWidget()
        self._page = QVBoxLayout(page)
        self._page.setContentsMargins(12, 10, 12, 12)
        self._page.setSpacing(8)
        self.banner = Banner(parent=page)
        self.failure = FailureCard()
        self.failure.logs_requested.connect(lambda: self.tab_requested.emit("logs"))
        self.cards = {each.key: HeadlineCard(each.key, each.caption) for each in headlines_of(pb.Run())}
        self.progress = named(QProgressBar(), "run_progress")
        self.progress.setRange(0, 1000)
        self.remark = named(QLabel(wordWrap=True), "run_remark")
        fill(self._page, self.banner, self.failure, CardGrid(list(self.cards.values())), self.progress, self.remark)
        self.evaluation = CardGrid(least_chars=16)
        self._evaluation_section = self._add_section("evaluation", self.tr("Evaluation"), self.evaluation)
        self._plots_place = QWidget()
        QVBoxLayout(self._plots_place).setContentsMargins(0, 0, 0, 0)
        self._plots_section = self._add_section(
            "resources", self.tr("Resource use of the run, over minutes"), self._plots_place
        )
        self.lineage = LineageView()
        self.lineage.run_requested.connect(self.run_requested)
        self._lineage_section = self._add_section("lineage", self.tr("Family"), self.lineage)
        self.command = CopyLine("command_line", self.tr("Command line of the training"))
        self._command_section = self._add_section("command", self.tr("Command line"), self.command)
        for section in (
            self._table("facts", self.tr("This run"), self.tr("What"), self.tr("Value")),
            self._table("parameters", self.tr("Parameters"), self.tr("Parameter"), self.tr("Value")),
            self._table("files", self.tr("Checkpoints and videos"), self.tr("What"), self.tr("File")),
            self._table("versions", self.tr("Versions"), self.tr("Package"), self.tr("Version")),
            self._table("host", self.tr("Machine"), self.tr("What"), self.tr("Value")),
            self._table("sources", self.tr("External code"), self.tr("What"), self.tr("Value")),
        ):
            section.hide()
        self._table_grid = CardGrid(least_chars=62)
        fill(self._page, self._table_grid, 1)
        scroll = named(scrolled(page), "overview_scroll", self.tr("Overview of the run"))
        fill(QVBoxLayout(self), scroll, margins=0)

    def _add_section(self, name: str, title: str, content: QWidget) -> PageSection:
        section = PageSection(name, title, content)
        section.hide()
        self._page.addWidget(section)
        return section

    def _table(self, name: str, title: str, left: str, right: str) -> PageSection:
        table = named(PairsTable(left, right, accessible=title), f"table_{name}")
        section = PageSection(name, title, table)
        self._tables[name] = section, table
        return section

    # ------------------------------------------------------------------ RunTab

    def set_lineage(self, lineage: Lineage) -> None:
        """Set the lineage of all runs; the run page owns it."""
        self._lineage = lineage

    def show_run(self, run: pb.Run) -> None:
        super().show_run(run)
        self._stop_stream()
        self._reading = None
        self._manifest_for, self._failure_shown = ("", "", ""), ("", 0)
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
            self._read_changed()

    def set_active(self, active: bool) -> None:
        super().set_active(active)
        if active and self.run is not None:
            self._draw()
            self._start()
        elif not active:
            self._clock.stop()
            self._stop_stream()

    def refresh_family(self) -> None:
        """Redraw the related runs: a parent or child was added or changed."""
        run = self.run
        if run is None:
            return
        origin = origin_of(run)
        step = run.parent.step if run.HasField("parent") else 0
        children = self._lineage.children_of(run.run_id)
        self._lineage_section.setVisible(origin is not None or bool(children))
        self.lineage.show_family((*origin, step) if origin else None, children)

    # ------------------------------------------------------------------ drawing

    def _start(self) -> None:
        self._clock.start()
        self._read_changed()
        self._follow_resources()

    def _tick(self) -> None:
        if self.run is not None and self.run.status != RunStatus.TERM:
            self._draw_figures(self.run)

    def _draw(self) -> None:
        run = self.run
        if run is None:
            return
        self._draw_figures(run)
        self.remark.setText(remark_of(run))
        self.remark.setVisible(bool(self.remark.text()))
        self._draw_failure(run)
        self._fill(facts=facts_of(run))
        self._draw_manifest(run)
        self.refresh_family()

    def _draw_figures(self, run: pb.Run) -> None:
        for headline in headlines_of(run, time.time()):
            self.cards[headline.key].show_headline(headline)
        done = fraction(run)
        self.progress.setVisible(done is not None)
        if done is not None:
            self.progress.setValue(round(1000 * done))
            counted = {
                "steps": self.tr("{step} of {total} steps"),
                "episodes": self.tr("{step} of {total} episodes"),
                "trials": self.tr("{step} of {total} trials"),
            }[unit_of(run)]
            text = counted.format(step=formats.count(run.step), total=formats.count(run.total))
            self.progress.setFormat(f"{100 * done:.0f} %  ·  {text}")
            self.progress.setAccessibleName(text)

    def _draw_failure(self, run: pb.Run) -> None:
        has_failed = run.outcome == RunOutcome.FAILED or run.status == RunStatus.FAULT
        if not has_failed:
            self.failure.hide()
            return
        title = self.tr("This run failed") if run.status == RunStatus.TERM else self.tr("This run has a fault")
        reason = run.reason or self.tr("The daemon has recorded no reason.")
        lines = self.failure.lines.toPlainText().splitlines() if self.failure.isVisibleTo(self) else []
        self.failure.set_message(title, reason, advice_for(run, lines))

    def _fill(self, **pairs_of: Pairs) -> None:
        """Fill the tables; hide the empty ones."""
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
            cards.append(HeadlineCard(f"evaluation_{name.replace(' ', '_')}", name.capitalize()))
            cards[-1].show_headline(HeadlineValue("", name.capitalize(), value))
        before, self._evaluation_cards = self._evaluation_cards, cards
        self.evaluation.set_widgets(cards)
        for card in before:
            card.deleteLater()

    # ------------------------------------------------------------------ what is read from files or requested

    def _read_changed(self) -> None:
        run = self.run
        if run is None:
            return
        requested = run.run_id, run.status, f"{run.attempt} {run.event_seq} {run.step > 0}"
        if requested != self._manifest_for:
            self._manifest_for = requested
            self._later(lambda: read_manifest(self.link.local(run, "run/analytics.json").run_dir), self._show_manifest)
        reported = run.run_id, run.event_seq
        if (run.outcome == RunOutcome.FAILED or run.status == RunStatus.FAULT) and reported != self._failure_shown:
            self._failure_shown = reported
            run_id = run.run_id
            self.link.call(
                lambda client: last_output(client.history(run_id)),
                owner=self,
                done=lambda found: self._show_last_lines(run_id, *found),
                failed=lambda text: self._show_last_lines(run_id, "", [text]),
            )

    def _later(self, function: Callable[[], ManifestReading], done: Callable[[str, ManifestReading], None]) -> None:
        run_id = self.run.run_id if self.run is not None else ""
        self.link.background.run(function, owner=self, done=lambda result: done(run_id, result))

    def _show_manifest(self, run_id: str, reading: ManifestReading) -> None:
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
            is_worse = reading.problem.trouble is not ManifestTrouble.MISSING
            self.banner.set_message(manifest_problem_text(reading.problem, run), "warning" if is_worse else "info")
        else:
            self.banner.clear()

    def _show_last_lines(self, run_id: str, stream: str, lines: list[str]) -> None:
        run = self.run
        if run is None or run.run_id != run_id:
            return
        source = self.tr("The end of its {stream}:").format(stream=stream) if stream else ""
        self.failure.show_lines(source, lines)
        self.failure.advice.setText(advice_for(run, lines))

    # ------------------------------------------------------------------ resource curves

    def _follow_resources(self) -> None:
        run = self.run
        if run is None or self._stream is not None:
            return
        run_id, follow = run.run_id, run.status != RunStatus.TERM
        self._stream = self.link.stream(
            lambda client: client.metrics(run_id, ["system/*"], max_points=_PLOTTED_POINTS, follow=follow),
            lambda batch: self._apply_curves(run_id, batch),
            owner=self,
            every_ms=_TICK_MS,
        )

    def _apply_curves(self, run_id: str, batch: list[pb.RunMetrics]) -> None:
        if self.run is None or self.run.run_id != run_id:
            return
        curves = [curve for message in batch for curve in message.curves if curve.values]
        if not curves:
            return
        self._waiting_curves += curves
        if self._plots is not None:
            self._show_curves()
            return
        # Importing pyqtgraph takes a third of a second: do it in another thread.
        self.link.background.run(
            lambda: importlib.import_module("gym_gui.ui.charts.board"),
            owner=self,
            done=lambda _module: self._make_plots(),
        )

    def _make_plots(self) -> None:
        if self._plots is None:
            from gym_gui.ui.charts.board import ResourceBoard

            self._plots = ResourceBoard()
            self._plots.drawn.connect(self._plots_section.show)
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
