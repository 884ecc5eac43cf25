"""A study: its trials in a table with filters, the best configuration, and plots. What it shows others read."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TypeVar

from PySide6.QtCore import QCoreApplication, QPoint, Qt, QTimer, Signal
from PySide6.QtWidgets import (
    QComboBox,
    QLabel,
    QMenu,
    QScrollArea,
    QSplitter,
    QTabWidget,
    QVBoxLayout,
    QWidget,
)

from gym_gui.services.analytics.studies import Study, Trial, TrialState
from gym_gui.services.analytics.studies.importances import BEST_SHARE, FEWEST_TRIALS, METHOD
from gym_gui.ui.presenters.study_plots import parallel_of
from gym_gui.ui.presenters.study_rows import OBJECTIVE, STATE_WORDS
from gym_gui.ui.turns import in_a_later_turn
from gym_gui.ui.widgets.importance_bars import ImportanceBars
from gym_gui.ui.widgets.study_feed import StudyReading
from gym_gui.ui.widgets.study_filters import StudyFilters
from gym_gui.ui.widgets.study_plots import HistoryPlot, ParallelPlot, SlicePlot, StudyPlot
from gym_gui.ui.widgets.study_table import StudyTable
from gym_gui.ui.widgets.trial_card import TrialCard
from gym_gui.ui.workers.words import PRESENTERS
from gym_gui.wording.run_view import short_id

CARD, HISTORY, IMPORTANCES, PARALLEL, SLICE = range(5)
Plot = TypeVar("Plot", bound=StudyPlot)


class StudyView(QWidget):
    """Table on the left; on the right one of: the configuration, history, importances, parallel coordinates, slice."""

    run_wanted = Signal(str)
    train_wanted = Signal(object)  # Trial

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("study_view")
        self.reading: StudyReading | None = None
        self._objective = 0
        self._outdated: set[int] = set()
        """Plots that show an older reading; drawn when somebody looks at them"""
        self.filters = StudyFilters()
        self.table = StudyTable()
        self.card = TrialCard()
        self._pages: dict[int, QVBoxLayout] = {}
        self.bars = ImportanceBars()
        self._build()
        self.filters.changed.connect(self.table.trials.set_filter)
        self.table.trials.arranged.connect(self.filters.show_counts)
        self.table.trial_chosen.connect(self._show_chosen)
        self.table.trial_opened.connect(self._open_trial)
        self.table.customContextMenuRequested.connect(self._show_menu)
        self.card.run_wanted.connect(self.run_wanted)
        self.card.train_wanted.connect(self.train_wanted)
        self.side.currentChanged.connect(lambda _page: self._draw())
        self.parameter.currentIndexChanged.connect(lambda _place: self._draw_again(SLICE))
        self.objective.currentIndexChanged.connect(self._choose_objective)

    def _build(self) -> None:
        left = QWidget()
        column = QVBoxLayout(left)
        column.setContentsMargins(0, 0, 6, 0)
        column.setSpacing(4)
        column.addWidget(self.filters)
        column.addWidget(self.table, 1)
        self.side = QTabWidget()
        self.side.setObjectName("study_side")
        self.side.setAccessibleName(self.tr("Views of the study"))
        self.side.setDocumentMode(True)
        self.parameter = _combo("slice_parameter", self.tr("Parameter"))
        self.importance_words, self.parallel_words = _caption("importance_words"), _caption("parallel_words")
        history_words = _caption("history_words")
        history_words.setText(self.tr("● complete   △ pruned: where it stood   line: best so far"))
        for title, parts in (
            (self.tr("Configuration"), (self.card,)),
            (self.tr("History"), (history_words,)),
            (self.tr("Importances"), (self.importance_words, _scrolled(self.bars))),
            (self.tr("Parallel"), (self.parallel_words,)),
            (self.tr("Slice"), (self.parameter,)),
        ):
            page, layout = _page(*parts)
            self._pages[self.side.addTab(page, title)] = layout
        self.objective = _combo("study_objective", self.tr("Objective"))
        self.objective.hide()
        self.side.setCornerWidget(self.objective)
        self.splitter = QSplitter(Qt.Orientation.Horizontal)
        self.splitter.setObjectName("study_splitter")
        self.splitter.addWidget(left)
        self.splitter.addWidget(self.side)
        self.splitter.setStretchFactor(0, 3)
        self.splitter.setStretchFactor(1, 2)
        self.splitter.setSizes([700, 540])
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self.splitter)

    # ------------------------------------------------------------------ what is shown

    @property
    def study(self) -> Study | None:
        return self.reading.study if self.reading is not None else None

    def show_reading(self, reading: StudyReading | None) -> None:
        """Another study, or a newer reading of it."""
        before = self.study
        self.reading = reading
        study = self.study
        if before is None or study is None or (before.name, before.path) != (study.name, study.path):
            self.table.choose(None)
            self._objective = 0
        self.filters.show_rows(reading.rows if reading is not None else None)
        self.table.trials.show_rows(reading.rows if reading is not None else None)
        self._show_choices()
        self._show_card()
        self._outdated = {HISTORY, IMPORTANCES, PARALLEL, SLICE}
        # In a turn of its own: table and plot together are too much for one.
        QTimer.singleShot(0, self, self._draw)

    def _show_choices(self) -> None:
        study = self.study
        names = list(study.parameters) if study is not None else []
        shares = self.reading.shares_of(self._objective).shares if self.reading is not None else {}
        _fill(self.parameter, sorted(names, key=lambda name: -shares.get(name, 0.0)))
        several = study is not None and study.has_several_objectives
        _fill(self.objective, [self.objective_title(place) for place in range(len(study.directions))] if several and
              study is not None else [])  # fmt: skip
        self.objective.setVisible(several)

    def objective_title(self, place: int) -> str:
        study = self.study
        if study is not None and place < len(study.metric_names):
            return study.metric_names[place]
        word = QCoreApplication.translate(PRESENTERS, OBJECTIVE)
        return f"{word} {place + 1}" if study is not None and study.has_several_objectives else word

    def _choose_objective(self, place: int) -> None:
        if place >= 0 and place != self._objective:
            self._objective = place
            self._outdated = {HISTORY, IMPORTANCES, PARALLEL, SLICE}
            self._draw()

    @property
    def chosen(self) -> Trial | None:
        """What buttons are about: the chosen trial, else the best."""
        return self.card.trial

    def _show_card(self) -> None:
        study, chosen = self.study, self.table.chosen
        best = study.best if study is not None else None
        shown = chosen or best
        is_best = shown is not None and study is not None and study.row_of(shown.number) in study.best_rows
        self.card.show_trial(study, shown, is_best=is_best or shown is None)

    def _show_chosen(self) -> None:
        self._show_card()
        self._mark()

    # ------------------------------------------------------------------ plots

    # A plot takes a while to make: each is made when somebody first looks at it.

    @cached_property
    def history(self) -> HistoryPlot:
        return self._placed(HISTORY, HistoryPlot())

    @cached_property
    def parallel(self) -> ParallelPlot:
        return self._placed(PARALLEL, ParallelPlot())

    @cached_property
    def slice(self) -> SlicePlot:
        return self._placed(SLICE, SlicePlot())

    def _placed(self, page: int, plot: Plot) -> Plot:
        plot.trial_chosen.connect(self.table.choose)
        self._pages[page].addWidget(plot, 1)
        return plot

    def _is_made(self, page: int) -> bool:
        """Make the plot of this page if that was not done yet; False when it was done just now."""
        name = {HISTORY: "history", PARALLEL: "parallel", SLICE: "slice"}.get(page)
        if name is None or name in self.__dict__:
            return True
        getattr(self, name)
        return False

    def _draw_again(self, page: int) -> None:
        self._outdated.add(page)
        self._draw()

    def _draw(self) -> None:
        """The plot in front; the others when somebody looks."""
        page, study = self.side.currentIndex(), self.study
        if study is not None and not self._is_made(page):
            in_a_later_turn(self, self._draw)
            return
        if study is not None and page in self._outdated and self.isVisible():
            self._outdated.discard(page)
            title = self.objective_title(self._objective)
            if page == HISTORY:
                self.history.show_study(study, self._objective, title)
            elif page == IMPORTANCES:
                self._draw_importances()
            elif page == PARALLEL:
                self._draw_parallel(study, title)
            elif self.parameter.currentText() in study.parameters:
                self.slice.show_study(study, self._objective, self.parameter.currentText(), title)
        self._mark()

    def _draw_importances(self) -> None:
        assert self.reading is not None
        found = self.reading.shares_of(self._objective)
        self.bars.show_shares(dict(found.shares))
        if found.shares:
            words = self.tr(
                "{method}: how much a parameter decides whether a trial is among the best {share} ({best} of {trials} "
                "completed trials). It tells where to look, not that a parameter is the cause."
            ).format(method=METHOD, share=f"{BEST_SHARE:.0%}", best=found.best, trials=found.trials)
        else:
            words = self.tr("Importances need at least {count} completed trials with parameters.").format(
                count=FEWEST_TRIALS
            )
        self.importance_words.setText(words)

    def _draw_parallel(self, study: Study, title: str) -> None:
        assert self.reading is not None
        shares = dict(self.reading.shares_of(self._objective).shares)
        shown = parallel_of(study, self._objective, title, shares)
        self.parallel.show_parallel(shown)
        words = self.tr("A line is a completed trial; darker = better.")
        if shown.left_out:
            words = self.tr("A line is one of the best {count} trials; darker = better.").format(
                count=f"{sum(map(len, shown.shades)):,}"
            )
        self.parallel_words.setText(words)

    def _mark(self) -> None:
        study, chosen = self.study, self.table.chosen
        if study is None:
            return
        row = study.row_of(chosen.number) if chosen is not None else None
        page = self.side.currentIndex()
        if page == HISTORY:
            self.history.mark(study, self._objective, row)
        elif page == PARALLEL:
            self.parallel.mark(row)
        elif page == SLICE:
            self.slice.mark(study, self._objective, row)

    def showEvent(self, event: object) -> None:
        super().showEvent(event)  # type: ignore[arg-type]
        QTimer.singleShot(0, self, self._draw)

    # ------------------------------------------------------------------ trials

    def _open_trial(self, trial: Trial) -> None:
        """Its run; with several seeds the first, the others stand on its card."""
        if trial.run_ids:
            self.run_wanted.emit(trial.run_ids[0])

    def _show_menu(self, place: QPoint) -> None:
        trial = self.table.trials.trial_at(self.table.rowAt(place.y()))
        if trial is None:
            return
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.setObjectName("trial_menu")
        for run_id in trial.run_ids:
            text = self.tr("Open run {run}").format(run=short_id(run_id))
            menu.addAction(text, partial(self.run_wanted.emit, run_id))
        if not trial.run_ids:
            menu.addAction(self.tr("This trial has no run here")).setEnabled(False)
        menu.addSeparator()
        menu.addAction(self.tr("&Train this configuration…"), lambda: self.train_wanted.emit(trial))
        menu.addAction(self.tr("Cop&y parameters"), self.card.copy_parameters)
        menu.popup(self.table.viewport().mapToGlobal(place))

    def summary(self) -> str:
        """How many trials there are, by state."""
        study = self.study
        if study is None:
            return ""
        counted = ((state, study.count(state)) for state in _TOLD)
        words = [
            f"{count:,} {QCoreApplication.translate(PRESENTERS, STATE_WORDS[state])}"
            for state, count in counted
            if count
        ]
        total = self.tr("1 trial") if len(study) == 1 else self.tr("{count} trials").format(count=f"{len(study):,}")
        return f"{total}: {', '.join(words)}" if words else total


_TOLD = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING, TrialState.WAITING)


def _page(*parts: QWidget) -> tuple[QWidget, QVBoxLayout]:
    page = QWidget()
    layout = QVBoxLayout(page)
    layout.setContentsMargins(6, 6, 6, 6)
    layout.setSpacing(4)
    for part in parts:
        layout.addWidget(part)
    return page, layout


def _scrolled(content: QWidget) -> QScrollArea:
    area = QScrollArea()
    area.setObjectName("importances_scroll")
    area.setAccessibleName(content.accessibleName())
    area.setWidgetResizable(True)
    area.setFrameShape(QScrollArea.Shape.NoFrame)
    area.setWidget(content)
    return area


def _caption(name: str) -> QLabel:
    label = QLabel()
    label.setObjectName(name)
    label.setProperty("role", "caption")
    label.setWordWrap(True)
    return label


def _combo(name: str, accessible: str) -> QComboBox:
    combo = QComboBox()
    combo.setObjectName(name)
    combo.setAccessibleName(accessible)
    return combo


def _fill(combo: QComboBox, names: list[str]) -> None:
    """Other choices; what is chosen stays chosen where it can."""
    if names == [combo.itemText(place) for place in range(combo.count())]:
        return
    chosen = combo.currentText()
    combo.blockSignals(True)
    combo.clear()
    combo.addItems(names)
    combo.setCurrentIndex(max(0, combo.findText(chosen)))
    combo.blockSignals(False)
