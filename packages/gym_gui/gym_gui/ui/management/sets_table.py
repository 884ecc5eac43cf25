"""The Requirement sets page: list, install and remove packages that only some runs need."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence

from mosaic_wire import env
from mosaic_wire.errors import SpecError
from mosaic_wire.paths import Home, cache_home
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.worker_spec import EXTRAS, WorkerSpec
from PySide6.QtCore import QCoreApplication, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QProgressBar, QVBoxLayout, QWidget

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink, LinkPhase
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.parts import caption, confirm, fill, named, push_button, styled
from gym_gui.ui.widgets.tables import ColumnSpec, RowsTable, TableRow
from gym_gui.ui.workers.requirement_sets import (
    ExtrasFailed,
    InstallProgress,
    JobResult,
    RequirementSet,
    SetsJob,
    list_sets,
)
from gym_gui.wording import formats

SetsProblem = ExtrasFailed
"""A message for users about what failed"""


def can_be_installed(entry: RequirementSet) -> bool:
    return not entry.is_ready and entry.state != "being installed" and entry.name != "base"


def can_be_removed(entry: RequirementSet) -> bool:
    return not entry.in_base and entry.state not in ("not installed", "being installed") and entry.name != "base"


class SetsProgram:
    """Runs the installer of requirement sets in the environment of the worker that has some."""

    def __init__(self, argv: Sequence[str], home: Home) -> None:
        self._argv, self._home = list(argv), home
        self._environment = {**os.environ, env.MOSAIC_HOME: str(home.root)}

    @classmethod
    def of(
        cls,
        workers: Iterable[pb.Worker],
        home: Home,
        program_of: Callable[[WorkerSpec], Sequence[str]] = lambda spec: spec.extras_program,
    ) -> SetsProgram:
        """Return the program of the first worker with sets; raise SetsProblem if there is none."""
        for worker in workers:
            try:
                spec = WorkerSpec.from_json(json.loads(worker.spec_json)) if worker.spec_json else None
            except (SpecError, ValueError):
                continue
            if spec is not None and spec.extras_program:
                return cls(program_of(spec), home)
        raise SetsProblem(
            "No installed worker has requirement sets. They come with the CleanRL worker; its page under Workers shows "
            "what is wrong with it."
        )

    def list_sets(self) -> tuple[RequirementSet, ...]:
        """Return every set and its state; takes a second."""
        return list_sets(self._argv, self._home)

    def install(self, names: Sequence[str]) -> SetsJob:
        return self._job(["--set", ",".join(names), "--progress-json"])

    def remove(self, names: Sequence[str]) -> SetsJob:
        return self._job(["--remove", "--set", ",".join(names), "--json"])

    def prune(self) -> SetsJob:
        """Remove superseded and incomplete environments that no run uses."""
        return self._job(["--prune", "--json"])

    def _job(self, arguments: Sequence[str]) -> SetsJob:
        return SetsJob([*self._argv, *arguments], self._environment)


_STATE = 1


class SetsTable(QWidget):
    """Runs one installation or removal at a time; it is cancelled with a button or by closing the window."""

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
        # Closing the window must not wait for pip.
        held = _Held()
        self._held = held
        self.destroyed.connect(held.cancel)
        application = QCoreApplication.instance()
        if application is not None:
            application.aboutToQuit.connect(held.cancel)

    def _build(self) -> None:
        self.banner = Banner(parent=self)
        explanation = caption(
            "",
            self.tr(
                "Packages that only some runs need, such as Atari games. Each set has its own environment, so sets "
                "cannot conflict. A run shows which sets it needs."
            ),
            wraps=True,
        )
        self.table = RowsTable(
            [
                ColumnSpec(self.tr("Set"), 10),
                ColumnSpec(self.tr("State"), 14),
                ColumnSpec(self.tr("Size"), 8, right=True),
                ColumnSpec(self.tr("For"), 30),
            ],
            name="sets_table",
            accessible=self.tr("Requirement sets"),
            multiple=True,
        )
        self.table.itemSelectionChanged.connect(self._offer)
        self.table.itemActivated.connect(lambda _item: self._install_chosen())
        self.install_button = push_button("install_sets", self.tr("&Install"), self._install_chosen)
        self.install_button.setProperty("role", "primary")
        self.remove_button = push_button("remove_sets", self.tr("&Remove…"), self._ask_to_remove)
        self.refresh_button = push_button("refresh_sets", self.tr("&Refresh"), self.poll)
        buttons = fill(QHBoxLayout(), self.install_button, self.remove_button, 1, self.refresh_button)
        self.job_line = styled(QFrame(), "card")
        self.job_text = named(QLabel(wordWrap=True), "sets_job_message")
        self.job_bar = named(QProgressBar(), "sets_job_bar", self.tr("Progress of the installation"))
        self.cancel_button = push_button("cancel_sets", self.tr("&Cancel"), self.cancel)
        fill(QHBoxLayout(self.job_line), (self.job_text, 2), (self.job_bar, 1), self.cancel_button)
        self.job_line.hide()
        layout = QVBoxLayout(self)
        layout.setContentsMargins(12, 12, 12, 12)
        layout.setSpacing(10)
        fill(layout, self.banner, explanation, (self.table, 1), self.job_line, buttons)
        self._offer()

    # ------------------------------------------------------------------ listing

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if not self._sets:
            self.poll()

    def poll(self) -> None:
        """Request the list from the worker's program; takes a second or two."""
        home = self._home or Home(cache_home())
        if self._is_listing:
            return
        self._is_listing = True
        self.refresh_button.setEnabled(False)
        if not self._sets:
            self.banner.set_message(self.tr("Listing requirement sets…"))

        def ask(client: TrainerClient) -> tuple[SetsProgram, tuple[RequirementSet, ...]] | SetsProblem:
            try:
                program = SetsProgram.of(client.workers(), home, lambda spec: client.program(spec, EXTRAS))
                return program, program.list_sets()
            except SetsProblem as problem:
                return problem

        self._link.call(ask, owner=self, done=self._show_listed, failed=self._failed)

    def _show_listed(self, found: tuple[SetsProgram, tuple[RequirementSet, ...]] | SetsProblem) -> None:
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
            TableRow(entry.name, [entry.name, self._state(entry), self._size(entry), entry.purpose], tip=entry.detail)
            for entry in sets
        )
        self._offer()

    def _failed(self, text: str) -> None:
        self._is_listing = False
        self.refresh_button.setEnabled(True)
        self.banner.set_message(text, "bad", action=self.tr("Retry"), on_action=self.poll)

    def _link_changed(self, _state: object) -> None:
        if self._link.state.phase is LinkPhase.CONNECTED and self.isVisible() and not self._sets:
            self.poll()

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
            self,
            self.tr("Remove {}?").format(", ".join(names)),
            self.tr("This frees {}. It can be installed again at any time.").format(size),
            yes=self.tr("Remove"),
            on_yes=remove,
        )

    def run_job(self, job: SetsJob, names: Sequence[str], text: str) -> None:
        """Run the job in the background and show its progress."""
        self._job = self._held.job = job
        self.job_text.setText(text)
        self.job_bar.setRange(0, 0)
        self.cancel_button.setEnabled(True)
        self.job_line.show()
        self.banner.clear()
        self._offer()
        self._background.run(
            lambda: job.run(lambda progress: self._background.in_window(lambda: self._progress(progress), owner=self)),
            owner=self,
            done=lambda result: self._finish(result, names),
        )

    def cancel(self) -> None:
        """Cancel the job."""
        if self._job is not None:
            self.cancel_button.setEnabled(False)
            self.job_text.setText(self.tr("Cancelling…"))
            self._job.cancel()

    def _progress(self, progress: InstallProgress) -> None:
        if self._job is None or not self.cancel_button.isEnabled():
            return
        status_text = ": ".join(filter(None, (progress.set, progress.phase, progress.message)))
        self.job_text.setText(status_text)
        self.job_bar.setRange(0, progress.total)
        self.job_bar.setValue(progress.done)
        self.table.set_cell(progress.set, _STATE, progress.phase)

    def _finish(self, result: JobResult, names: Sequence[str]) -> None:
        self._job = self._held.job = None
        self.job_line.hide()
        if result.was_cancelled:
            self.banner.set_message(self.tr("Cancelled. The incomplete installation is not used."))
        elif not result.succeeded:
            self.banner.set_message(result.message, "bad")
        elif result.freed_bytes:
            self.banner.set_message(self.tr("{} freed.").format(formats.size(result.freed_bytes)))
        else:
            self.banner.set_message(self.tr("Done: {}.").format(", ".join(names)))
        self.banner.setProperty("kept", True)  # keep the message during the next refresh
        self._offer()
        self.changed.emit()
        self.poll()


class _Held:
    """Holds the running job for the `destroyed` signal, when the widget's attributes no longer exist."""

    def __init__(self) -> None:
        self.job: SetsJob | None = None

    def cancel(self) -> None:
        if self.job is not None:
            self.job.cancel()
