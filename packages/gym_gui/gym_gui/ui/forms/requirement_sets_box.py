"""Requirement sets of a worker: which a run needs, which are installed, and a button that installs one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mosaic_wire.paths import Home
from PySide6.QtCore import QCoreApplication, Qt, Signal
from PySide6.QtWidgets import (
    QCheckBox,
    QGridLayout,
    QLabel,
    QProgressBar,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from gym_gui.ui.background import Background
from gym_gui.ui.workers.requirement_sets import ExtrasFailed, Installation, InstallProgress, RequirementSet, list_sets
from gym_gui.wording.formats import size


class RequirementSetsBox(QWidget):
    """A line for each set. Ticked: the run is to have it, whether it seems to need it or not."""

    changed = Signal()
    installed = Signal()
    """Something was installed: what could not be looked at before may be there now"""

    def __init__(self, background: Background, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("requirement_sets")
        self._background = background
        self._program: tuple[str, ...] = ()
        self._home: Home | None = None
        self._sets: tuple[RequirementSet, ...] = ()
        self._needed: tuple[str, ...] = ()
        self._asked: set[str] = set()
        self._installation: Installation | None = None
        self._was_asked = False
        self._ticks: dict[str, QCheckBox] = {}
        self._states: dict[str, QLabel] = {}
        self._buttons: dict[str, QPushButton] = {}
        self._summary = QLabel(self)
        self._summary.setObjectName("requirement_summary")
        self._summary.setProperty("role", "caption")
        self._summary.setWordWrap(True)
        self._everything = QCheckBox(self.tr("Show all sets"), self)
        self._everything.setObjectName("requirement_show_all")
        self._everything.setAccessibleName(self._everything.text())
        self._everything.toggled.connect(self._show_rows)
        self._progress = QProgressBar(self)
        self._progress.setObjectName("requirement_progress")
        self._progress.setAccessibleName(self.tr("Progress of the installation"))
        self._progress.hide()
        self._stop = QPushButton(self.tr("Stop the installation"), self)
        self._stop.setObjectName("requirement_stop")
        self._stop.setAccessibleName(self._stop.text())
        self._stop.clicked.connect(self.cancel)
        self._stop.hide()
        self._told = QLabel(self)
        self._told.setObjectName("requirement_told")
        self._told.setWordWrap(True)
        self._told.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._told.hide()
        self.install_missing = QCheckBox(self.tr("Install what is missing before the run starts"), self)
        self.install_missing.setObjectName("install_missing")
        self.install_missing.setAccessibleName(self.install_missing.text())
        self.install_missing.toggled.connect(self.changed)
        self._lay_out()
        application = QCoreApplication.instance()
        if application is not None:  # the background waits for what has begun: do not let it wait for a download
            application.aboutToQuit.connect(self.cancel)

    def _lay_out(self) -> None:
        self._grid = QGridLayout()
        self._grid.setColumnStretch(1, 1)
        self._grid.setVerticalSpacing(3)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(8, 2, 0, 6)
        layout.setSpacing(4)
        layout.addWidget(self._summary)
        layout.addLayout(self._grid)
        for widget in (self._progress, self._told, self._stop, self._everything, self.install_missing):
            layout.addWidget(widget)

    # ------------------------------------------------------------------ what the form says

    def set_program(self, program: Sequence[str], home: Home | None) -> None:
        """How sets are listed and installed; without a home of this machine, they are only asked for by name."""
        self._program, self._home = tuple(program), home
        if not program:
            self._summary.setText(self.tr("This worker has no requirement sets."))
        elif home is None:
            self._summary.setText(
                self.tr("The daemon is on another machine: sets are installed there (mosaic extras install NAME).")
            )
        self._everything.setVisible(bool(program) and home is not None)

    def ensure_listed(self) -> None:
        """Ask how the sets stand, if nobody has asked yet: most runs need none, and asking takes a process."""
        if not self._was_asked:
            self.refresh()

    def set_needed(self, names: Iterable[str]) -> None:
        """What the run of this form needs."""
        if tuple(names) != self._needed:
            self._needed = tuple(names)
            if self._needed:
                self.ensure_listed()
            self._show_rows()

    @property
    def asked(self) -> tuple[str, ...]:
        """Sets the person ticked."""
        return tuple(sorted(self._asked))

    def set_asked(self, names: Iterable[str]) -> None:
        self._asked = set(names) - {"base"}
        for name, tick in self._ticks.items():
            tick.blockSignals(True)
            tick.setChecked(name in self._asked)
            tick.blockSignals(False)
        self._show_rows()

    @property
    def missing(self) -> tuple[str, ...]:
        """Needed or asked for, known, and not installed."""
        wanted = {*self._needed, *self._asked}
        return tuple(entry.name for entry in self._sets if entry.name in wanted and not entry.is_ready)

    # ------------------------------------------------------------------ listing

    def refresh(self) -> None:
        """Ask how the sets stand."""
        if not self._program or self._home is None:
            return
        self._was_asked = True
        program, home = self._program, self._home
        self._summary.setText(self.tr("Looking which sets are installed …"))
        self._background.run(lambda: list_sets(program, home), owner=self, done=self._show_sets, failed=self._complain)

    def _show_sets(self, sets: tuple[RequirementSet, ...]) -> None:
        self._sets = tuple(entry for entry in sets if entry.name != "base")
        for row, entry in enumerate(self._sets):
            if entry.name not in self._ticks:
                self._add_row(row, entry)
            self._show_state(entry)
        self._show_rows()

    def _add_row(self, row: int, entry: RequirementSet) -> None:
        tick = QCheckBox(entry.name, self)
        tick.setObjectName(f"set_{entry.name}")
        tick.setAccessibleName(self.tr("Requirement set {name}").format(name=entry.name))
        tick.setToolTip(entry.purpose)
        tick.setChecked(entry.name in self._asked)
        tick.toggled.connect(lambda on, name=entry.name: self._tick(name, on))
        state = QLabel(self)
        state.setProperty("role", "caption")
        state.setWordWrap(True)
        button = QPushButton(self.tr("Install"), self)
        button.setObjectName(f"install_{entry.name}")
        button.setAccessibleName(self.tr("Install the requirement set {name}").format(name=entry.name))
        button.clicked.connect(lambda _=False, name=entry.name: self.install(name))
        self._grid.addWidget(tick, row, 0)
        self._grid.addWidget(state, row, 1)
        self._grid.addWidget(button, row, 2)
        self._ticks[entry.name], self._states[entry.name], self._buttons[entry.name] = tick, state, button

    def _show_state(self, entry: RequirementSet) -> None:
        if entry.in_base:
            words = self.tr("installed (part of the base)")
        elif entry.is_ready:
            words = self.tr("installed, {size}").format(size=size(entry.bytes))
        else:
            words = self.tr("not installed ({count} MB)").format(count=entry.expected_mb)
        self._states[entry.name].setText(words)
        self._states[entry.name].setToolTip(entry.detail)
        self._buttons[entry.name].setVisible(not entry.is_ready)

    def _show_rows(self) -> None:
        for entry in self._sets:
            needed = entry.name in self._needed
            shown = needed or entry.name in self._asked or self._everything.isChecked()
            tick = self._ticks[entry.name]
            tick.setText(self.tr("{name} (needed)").format(name=entry.name) if needed else entry.name)
            tick.setVisible(shown)
            self._states[entry.name].setVisible(shown)
            self._buttons[entry.name].setVisible(shown and not entry.is_ready)
            self._buttons[entry.name].setEnabled(self._installation is None)
        if self._sets:
            self._summary.setText(self._summary_words())

    def _summary_words(self) -> str:
        if missing := self.missing:
            return self.tr("Not installed yet: {names}. The run cannot start without.").format(names=", ".join(missing))
        if self._needed:
            return self.tr("Everything this run needs is installed.")
        return self.tr("This run needs nothing beyond the base.")

    def _tick(self, name: str, on: bool) -> None:
        (self._asked.add if on else self._asked.discard)(name)
        self._show_rows()
        self.changed.emit()

    # ------------------------------------------------------------------ installing

    def install(self, name: str) -> None:
        """Install one set; the window stays free meanwhile."""
        if self._installation is not None or self._home is None:
            return
        installation = self._installation = Installation(self._program, self._home, [name])
        self._progress.setRange(0, 0)
        self._progress.show()
        self._stop.show()
        self._say(self.tr("Installing {name} …").format(name=name))
        self._show_rows()
        background = self._background

        def report(progress: InstallProgress) -> None:
            background.in_window(lambda: self._show_progress(progress), owner=self)

        background.run(
            lambda: installation.run(report),
            owner=self,
            done=lambda _: self._end(self.tr("{name} is installed.").format(name=name)),
            failed=self._fail,
        )

    def cancel(self) -> None:
        """Stop an installation that runs."""
        if self._installation is not None:
            self._installation.cancel()

    def _show_progress(self, progress: InstallProgress) -> None:
        self._progress.setRange(0, progress.total)
        self._progress.setValue(progress.done)
        self._say(f"{progress.set}: {progress.message}")

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, ExtrasFailed):
            raise error
        self._end(str(error), is_problem=True)

    def _end(self, words: str, *, is_problem: bool = False) -> None:
        self._installation = None
        self._progress.hide()
        self._stop.hide()
        self._say(words, is_problem=is_problem)
        self.refresh()
        self.installed.emit()

    def _complain(self, error: Exception) -> None:
        if not isinstance(error, ExtrasFailed):
            raise error
        self._summary.setText(self.tr("The sets cannot be listed: {why}").format(why=error))

    def _say(self, words: str, *, is_problem: bool = False) -> None:
        self._told.setText(words)
        self._told.setProperty("role", "problem" if is_problem else "caption")
        self._told.style().unpolish(self._told)
        self._told.style().polish(self._told)
        self._told.setVisible(bool(words))
