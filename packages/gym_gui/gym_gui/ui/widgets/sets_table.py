"""Requirement sets: packages only some runs need; list them, install and remove them while the window goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mosaic_wire.paths import Home
from PySide6.QtCore import QCoreApplication, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QProgressBar, QPushButton, QVBoxLayout, QWidget

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink, LinkPhase
from gym_gui.ui.management.sets_program import (
    JobResult,
    SetsJob,
    SetsProblem,
    SetsProgram,
    can_be_installed,
    can_be_removed,
)
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.confirm import confirm
from gym_gui.ui.widgets.rows_table import ColumnSpec, Row, RowsTable
from gym_gui.ui.workers.requirement_sets import InstallProgress, RequirementSet
from gym_gui.wording import formats

_STATE = 1


class SetsTable(QWidget):
    """One installation or removal at a time; it ends with the window, and can be cancelled."""

    changed = Signal()  # something was installed or removed

    def __init__(
        self, link: DaemonLink, background: Background, home: Home | None, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setObjectName("sets_table_page")
        self._link, self._background, self._home = link, background, home
        self._program: SetsProgram | None = None
        self._sets: dict[str, RequirementSet] = {}
        self._job: SetsJob | None = None
        self._is_listing = False
        self._build()
        link.state_changed.connect(self._link_changed)
        # A window that closes must not wait for pip.
        held = _Held()
        self._held = held
        self.destroyed.connect(held.cancel)
        application = QCoreApplication.instance()
        if application is not None:
            application.aboutToQuit.connect(held.cancel)

    def _build(self) -> None:
        self.banner = Banner(parent=self)
        explanation = QLabel(
            self.tr(
                "Packages only some runs need, such as Atari's games. Each is installed beside the others, so none can "
                "spoil another; runs that need one say so."
            )
        )
        explanation.setProperty("role", "caption")
        explanation.setWordWrap(True)
        self.table = RowsTable(
            [
                ColumnSpec(self.tr("Set"), 10), ColumnSpec(self.tr("State"), 14),
                ColumnSpec(self.tr("Size"), 8, right=True), ColumnSpec(self.tr("For"), 30),
            ],
            name="sets_table", accessible=self.tr("Requirement sets"), multiple=True,
        )  # fmt: skip
        self.table.itemSelectionChanged.connect(self._offer)
        self.table.itemActivated.connect(lambda _item: self._install_chosen())
        self.install_button = self._button("install_sets", self.tr("&Install"), self._install_chosen)
        self.install_button.setProperty("role", "primary")
        self.remove_button = self._button("remove_sets", self.tr("&Remove…"), self._ask_to_remove)
        self.refresh_button = self._button("refresh_sets", self.tr("&Look again"), self.look)
        buttons = QHBoxLayout()
        buttons.addWidget(self.install_button)
        buttons.addWidget(self.remove_button)
        buttons.addStretch(1)
        buttons.addWidget(self.refresh_button)
        self.job_strip = QFrame()
        self.job_strip.setProperty("role", "card")
        self.job_words = QLabel()
        self.job_words.setObjectName("sets_job_words")
        self.job_words.setWordWrap(True)
        self.job_bar = QProgressBar()
        self.job_bar.setObjectName("sets_job_bar")
        self.job_bar.setAccessibleName(self.tr("Progress of the installation"))
        self.cancel_button = self._button("cancel_sets", self.tr("&Cancel"), self.cancel)
        strip = QHBoxLayout(self.job_strip)
        strip.addWidget(self.job_words, 2)
        strip.addWidget(self.job_bar, 1)
        strip.addWidget(self.cancel_button)
        self.job_strip.hide()
        layout = QVBoxLayout(self)
        layout.setContentsMargins(12, 12, 12, 12)
        layout.setSpacing(10)
        layout.addWidget(self.banner)
        layout.addWidget(explanation)
        layout.addWidget(self.table, 1)
        layout.addWidget(self.job_strip)
        layout.addLayout(buttons)
        self._offer()

    def _button(self, name: str, text: str, clicked: Callable[[], object]) -> QPushButton:
        button = QPushButton(text)
        button.setObjectName(name)
        button.setAccessibleName(text.replace("&", "").replace("…", ""))
        button.clicked.connect(lambda: clicked())
        return button

    # ------------------------------------------------------------------ listing

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if not self._sets:
            self.look()

    def look(self) -> None:
        """Ask the worker's program for the list; a second or two."""
        home = self._home
        if home is None:
            self.refresh_button.setEnabled(False)
            self.banner.say(
                self.tr("The daemon is on another machine; install requirement sets there: mosaic extras install …")
            )
            return
        if self._is_listing:
            return
        self._is_listing = True
        self.refresh_button.setEnabled(False)
        if not self._sets:
            self.banner.say(self.tr("Looking which sets there are…"))

        def ask(client: TrainerClient) -> tuple[SetsProgram, tuple[RequirementSet, ...]] | SetsProblem:
            try:
                program = SetsProgram.of(client.workers(), home)
                return program, program.list_sets()
            except SetsProblem as problem:
                return problem

        self._link.call(ask, owner=self, done=self._take, failed=self._failed)

    def _take(self, found: tuple[SetsProgram, tuple[RequirementSet, ...]] | SetsProblem) -> None:
        self._is_listing = False
        self.refresh_button.setEnabled(True)
        if isinstance(found, SetsProblem):
            self._failed(str(found))
            return
        self._program, sets = found
        self.show_sets(sets)
        if self.banner.tone == "info" and self._job is None and not self.banner.property("kept"):
            self.banner.clear()
        self.banner.setProperty("kept", False)

    def show_sets(self, sets: Sequence[RequirementSet]) -> None:
        self._sets = {entry.name: entry for entry in sets}
        self.table.fill(
            Row(entry.name, [entry.name, self._state(entry), self._size(entry), entry.purpose], tip=entry.detail)
            for entry in sets
        )
        self._offer()

    def _failed(self, words: str) -> None:
        self._is_listing = False
        self.refresh_button.setEnabled(True)
        self.banner.say(words, "bad", action=self.tr("Try again"), on_action=self.look)

    def _link_changed(self, _state: object) -> None:
        if self._link.state.phase is LinkPhase.CONNECTED and self.isVisible() and not self._sets:
            self.look()

    def _state(self, entry: RequirementSet) -> str:
        if entry.in_base:
            return self.tr("✓ in the base")
        return self.tr("✓ installed") if entry.is_ready else entry.state

    def _size(self, entry: RequirementSet) -> str:
        if entry.bytes:
            return formats.size(entry.bytes)
        return "" if entry.in_base or entry.name == "base" else self.tr("~{} MB").format(entry.expected_mb)

    # ------------------------------------------------------------------ installing and removing

    @property
    def is_busy(self) -> bool:
        return self._job is not None

    def _chosen(self) -> list[RequirementSet]:
        return [self._sets[name] for name in self.table.chosen() if name in self._sets]

    def _offer(self) -> None:
        chosen, idle = self._chosen(), self._job is None and self._program is not None
        self.install_button.setEnabled(idle and any(can_be_installed(entry) for entry in chosen))
        self.remove_button.setEnabled(idle and any(can_be_removed(entry) for entry in chosen))

    def _install_chosen(self) -> None:
        names = [entry.name for entry in self._chosen() if can_be_installed(entry)]
        if names and self._program is not None and self._job is None:
            self.run_job(self._program.install(names), names, self.tr("Installing {}…").format(", ".join(names)))

    def _ask_to_remove(self) -> None:
        chosen = [entry for entry in self._chosen() if can_be_removed(entry)]
        if not chosen:
            return
        names = [entry.name for entry in chosen]
        size = formats.size(sum(entry.bytes for entry in chosen))

        def remove() -> None:
            if self._program is not None and self._job is None:
                self.run_job(self._program.remove(names), names, self.tr("Removing {}…").format(", ".join(names)))

        confirm(
            self, self.tr("Remove {}?").format(", ".join(names)),
            self.tr("This frees {}. It can be installed again at any time.").format(size),
            yes=self.tr("Remove"), on_yes=remove,
        )  # fmt: skip

    def run_job(self, job: SetsJob, names: Sequence[str], words: str) -> None:
        """Run it in the background and show how far it is."""
        self._job = self._held.job = job
        self.job_words.setText(words)
        self.job_bar.setRange(0, 0)
        self.cancel_button.setEnabled(True)
        self.job_strip.show()
        self.banner.clear()
        self._offer()
        self._background.run(
            lambda: job.run(lambda progress: self._background.in_window(lambda: self._progress(progress), owner=self)),
            owner=self,
            done=lambda result: self._finish(result, names),
        )

    def cancel(self) -> None:
        """Ask it to end. pip is ended too; what was half made is not used."""
        if self._job is not None:
            self.cancel_button.setEnabled(False)
            self.job_words.setText(self.tr("Ending it…"))
            self._job.cancel()

    def _progress(self, progress: InstallProgress) -> None:
        if self._job is None or not self.cancel_button.isEnabled():
            return
        said = ": ".join(filter(None, (progress.set, progress.phase, progress.message)))
        self.job_words.setText(said)
        self.job_bar.setRange(0, progress.total)
        self.job_bar.setValue(progress.done)
        self.table.set_cell(progress.set, _STATE, progress.phase)

    def _finish(self, result: JobResult, names: Sequence[str]) -> None:
        self._job = self._held.job = None
        self.job_strip.hide()
        if result.was_cancelled:
            self.banner.say(self.tr("Cancelled. What was half made is not used."))
        elif not result.succeeded:
            self.banner.say(result.message, "bad")
        elif result.freed_bytes:
            self.banner.say(self.tr("{} became free.").format(formats.size(result.freed_bytes)))
        else:
            self.banner.say(self.tr("Done: {}.").format(", ".join(names)))
        self.banner.setProperty("kept", True)  # what was said stays through the look that follows
        self._offer()
        self.changed.emit()
        self.look()


class _Held:
    """The running job, for the end of a widget that is gone by then."""

    def __init__(self) -> None:
        self.job: SetsJob | None = None

    def cancel(self) -> None:
        if self.job is not None:
            self.job.cancel()
