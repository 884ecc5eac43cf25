"""Which workers there are, and the forms that start their runs: the window's way to `dialog_factory`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.sweep_settings import WORKER_TYPE as SWEEP
from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QWidget

from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink, LinkPhase, LinkState
from gym_gui.ui.presenters.workers.sweep import trial_worker_of
from gym_gui.ui.turns import in_a_later_turn
from gym_gui.ui.workers import catalog
from gym_gui.ui.workers.catalog import WorkerEntry
from gym_gui.ui.workers.environment_families import environments_of
from gym_gui.wording.run_view import parsed

if TYPE_CHECKING:
    from gym_gui.services.analytics.studies.trial_config import TrainingConfig
    from gym_gui.ui.widgets.run_form import RunForm

SCRIPT_WORKER = "cleanrl"
"""Whose form runs a script of one's own"""


class RunForms(QObject):
    """Keeps the catalog up to date and opens forms; a form asked for before the catalog is there opens after it."""

    entries_changed = Signal(object)  # tuple[WorkerEntry, ...], usable and not
    submitted = Signal(object)  # tuple of run ids
    play_wanted = Signal()  # the chosen worker is a person
    problem = Signal(str)

    def __init__(self, link: DaemonLink, background: Background, home: Home | None, window: QWidget) -> None:
        super().__init__(window)
        self._link, self._background, self._home, self._window = link, background, home, window
        self.entries: tuple[WorkerEntry, ...] = ()
        """Hidden workers too: they have runs"""
        self._waiting: list[Callable[[], object]] = []
        self._is_loading = False
        link.state_changed.connect(self._link_changed)

    def load(self, *, refresh: bool = False) -> None:
        """Ask the daemon which workers are installed; the first time it looks at each of them."""
        if not self._is_loading:
            self._is_loading = True
            self._link.call(
                lambda client: tuple(client.workers(refresh=refresh)),
                owner=self,
                done=self._loaded,
                failed=self._failed,
            )

    def new_run(self, worker: str) -> None:
        """The form that starts a run of this worker."""
        self._when_loaded(lambda: self._open_new(worker))

    def open(self, kind: str, run: pb.Run | None = None) -> None:
        """A form about a run (clone, resume, extend, evaluate), `script`, or `sweep` (about a sweep, or a new one)."""
        worker = run.worker_type if run is not None else SCRIPT_WORKER
        if kind == "sweep" or (kind == "clone" and worker == SWEEP):
            self._when_loaded(lambda: self._open_sweep(run))
        else:
            self._when_loaded(lambda: self._open(kind, worker, run))

    def open_config(self, wanted: TrainingConfig) -> None:
        """The form that trains, filled with a configuration that a study found."""
        self._when_loaded(lambda: self._open_filled(wanted))

    # -- inside

    def _link_changed(self, state: LinkState) -> None:
        if state.phase is LinkPhase.CONNECTED:
            self.load()

    def _when_loaded(self, then: Callable[[], object]) -> None:
        if self.entries:
            then()
        else:
            self._waiting.append(then)
            self.load()

    def _loaded(self, workers: tuple[pb.Worker, ...]) -> None:
        self._is_loading = False
        self.entries = catalog.entries_from(workers, with_hidden=True)
        self.entries_changed.emit(self.entries)
        # Hundreds of patterns to look through: it is known, then, when a form asks for it.
        specs = [entry.spec for entry in self.entries if entry.spec is not None]
        self._background.run(lambda: [environments_of(spec) for spec in specs], owner=self)
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()

    def _failed(self, words: str) -> None:
        self._is_loading = False
        if self._waiting:
            self._waiting.clear()
            self.problem.emit(self.tr("The list of workers could not be read: {reason}").format(reason=words))

    def _open_sweep(self, run: pb.Run | None = None, document: object = None) -> None:
        """The sweep form of the worker that runs the trials; `document`: what every trial is to be like."""
        sweeps = catalog.find(self.entries, SWEEP)
        if sweeps is None or not sweeps.is_usable:
            why = sweeps.remedy if sweeps is not None else self.tr("The sweep worker is not installed.")
            self.problem.emit(
                self.tr("{why} Install it with: {command}").format(
                    why=why, command="pip install -r requirements/sweep_worker.txt"
                )
            )
            return
        part = document[0] if isinstance(document, list) else document
        worker = part["metadata"]["worker"]["type"] if isinstance(part, dict) else SCRIPT_WORKER
        if run is not None:
            worker = trial_worker_of(parsed(run.extras_json) or {}) if run.worker_type == SWEEP else run.worker_type
        form = self._open("sweep", worker, run)
        if form is not None and document is not None:
            in_a_later_turn(form, lambda: form.load_document(document))

    def _open_filled(self, wanted: TrainingConfig) -> None:
        form = self._open("train", wanted.worker, None)
        if form is None:
            return

        def fill() -> None:
            form.load_document(wanted.document)
            if wanted.notice and not form.banner.text:
                form.banner.say(wanted.notice, "warning")

        in_a_later_turn(form, fill)

    def _open_new(self, worker: str) -> None:
        entry = catalog.find(self.entries, worker)
        if entry is not None and entry.form == catalog.SWEEP_FORM:
            self._open_sweep()
            return
        if entry is not None and entry.is_usable and not entry.form:
            self.play_wanted.emit()
        else:
            self._open("train", worker, None)

    def _open(self, kind: str, worker: str, run: pb.Run | None) -> RunForm | None:
        from gym_gui.ui.widgets.dialog_factory import NoSuchForm, open_form
        from gym_gui.ui.widgets.train_form import TrainForm

        entry = catalog.find(self.entries, worker)
        if entry is None:
            self.problem.emit(
                self.tr("No worker named {name} is installed; Management lists those that are.").format(name=worker)
            )
            return None
        try:
            form = open_form(
                kind,
                entry,
                link=self._link,
                background=self._background,
                home=self._home,
                parent=self._window,
                run=run,
                in_turns=True,
            )
        except NoSuchForm as error:
            self.problem.emit(str(error))
            return None
        form.submitted.connect(self.submitted)
        if isinstance(form, TrainForm) and kind in ("train", "clone"):
            form.sweep_button.setVisible(catalog.find(self.entries, SWEEP) is not None)
            form.sweep_wanted.connect(lambda document: self._open_sweep(document=document))
        return form
