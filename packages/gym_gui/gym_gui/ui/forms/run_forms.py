"""Keep the list of workers and open the forms that start their runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.sweep_settings import WORKER_TYPE as SWEEP
from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QWidget

from gym_gui.ui.background import Background, defer
from gym_gui.ui.daemon_link import DaemonLink, LinkPhase, LinkState
from gym_gui.ui.presenters.workers.sweep import trial_worker_of
from gym_gui.ui.workers import catalog
from gym_gui.ui.workers.catalog import WorkerEntry
from gym_gui.ui.workers.environments import environments_of
from gym_gui.wording.run_view import extras_of

if TYPE_CHECKING:
    from gym_gui.services.sweeps import TrainingConfig
    from gym_gui.ui.forms.run_form import RunForm

SCRIPT_WORKER = "cleanrl"
"""The worker whose form runs scripts"""


class RunForms(QObject):
    """Keeps the catalog up to date and opens forms; a form requested before the catalog is loaded opens afterwards."""

    entries_changed = Signal(object)  # tuple[WorkerEntry, ...], including unusable ones
    submitted = Signal(object)  # tuple of run ids
    play_requested = Signal()  # the selected worker is played by hand
    problem = Signal(str)

    def __init__(self, link: DaemonLink, background: Background, home: Home | None, window: QWidget) -> None:
        super().__init__(window)
        self._link, self._background, self._home, self._window = link, background, home, window
        self.entries: tuple[WorkerEntry, ...] = ()
        """All workers: hidden ones have runs, too"""
        self._waiting: list[Callable[[], object]] = []
        self._is_loading = False
        link.state_changed.connect(self._link_changed)

    def load(self, *, refresh: bool = False) -> None:
        """Load the installed workers from the daemon, which describes each of them the first time."""
        if not self._is_loading:
            self._is_loading = True
            self._link.call(
                lambda client: tuple(client.workers(refresh=refresh)),
                owner=self,
                done=self._loaded,
                failed=self._failed,
            )

    def new_run(self, worker: str) -> None:
        """Open the form that starts a run of this worker."""
        self._when_loaded(lambda: self._open_new(worker))

    def open(self, kind: str, run: pb.Run | None = None) -> None:
        """Open a form for a run (clone, resume, extend, evaluate), `script`, or `sweep` (of a run, or a new one)."""
        worker = run.worker_type if run is not None else SCRIPT_WORKER
        if kind == "sweep" or (kind == "clone" and worker == SWEEP):
            self._when_loaded(lambda: self._open_sweep(run))
        else:
            self._when_loaded(lambda: self._open(kind, worker, run))

    def open_config(self, requested: TrainingConfig) -> None:
        """Open the training form with a configuration of a study."""
        self._when_loaded(lambda: self._open_filled(requested))

    # -- private

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
        # Hundreds of patterns are matched: do it before a form needs it.
        specs = [entry.spec for entry in self.entries if entry.spec is not None]
        self._background.run(lambda: [environments_of(spec) for spec in specs], owner=self)
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()

    def _failed(self, text: str) -> None:
        self._is_loading = False
        if self._waiting:
            self._waiting.clear()
            self.problem.emit(self.tr("The list of workers could not be read: {reason}").format(reason=text))

    def _open_sweep(self, run: pb.Run | None = None, document: object = None) -> None:
        """Open the sweep form of the worker that runs the trials; `document` is the config of every trial."""
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
            worker = trial_worker_of(extras_of(run)) if run.worker_type == SWEEP else run.worker_type
        form = self._open("sweep", worker, run)
        if form is not None and document is not None:
            defer(form, lambda: form.load_document(document))

    def _open_filled(self, requested: TrainingConfig) -> None:
        form = self._open("train", requested.worker, None)
        if form is None:
            return

        def fill() -> None:
            form.load_document(requested.document)
            if requested.notice and not form.banner.text:
                form.banner.set_message(requested.notice, "warning")

        defer(form, fill)

    def _open_new(self, worker: str) -> None:
        entry = catalog.find(self.entries, worker)
        if entry is not None and entry.form == catalog.SWEEP_FORM:
            self._open_sweep()
            return
        if entry is not None and entry.is_usable and not entry.form:
            self.play_requested.emit()
        else:
            self._open("train", worker, None)

    def _open(self, kind: str, worker: str, run: pb.Run | None) -> RunForm | None:
        from gym_gui.ui.forms.dialog_factory import NoSuchForm, open_form
        from gym_gui.ui.forms.train_form import TrainForm

        entry = catalog.find(self.entries, worker)
        if entry is None:
            self.problem.emit(
                self.tr("No worker named {name} is installed; Management lists the installed ones.").format(name=worker)
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
                is_deferred=True,
            )
        except NoSuchForm as error:
            self.problem.emit(str(error))
            return None
        form.submitted.connect(self.submitted)
        if isinstance(form, TrainForm) and kind in ("train", "clone"):
            form.sweep_button.setVisible(catalog.find(self.entries, SWEEP) is not None)
            form.sweep_requested.connect(lambda document: self._open_sweep(document=document))
        return form
