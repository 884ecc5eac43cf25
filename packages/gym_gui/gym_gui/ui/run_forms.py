"""Which workers there are, and the forms that start their runs: the window's way to `dialog_factory`."""

from __future__ import annotations

from collections.abc import Callable

from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QWidget

from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink, LinkPhase, LinkState
from gym_gui.ui.workers import catalog
from gym_gui.ui.workers.catalog import WorkerEntry

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
        self._waiting: list[Callable[[], None]] = []
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
        """A form about a run (clone, resume, extend, evaluate), or `script`."""
        worker = run.worker_type if run is not None else SCRIPT_WORKER
        self._when_loaded(lambda: self._open(kind, worker, run))

    # -- inside

    def _link_changed(self, state: LinkState) -> None:
        if state.phase is LinkPhase.CONNECTED:
            self.load()

    def _when_loaded(self, then: Callable[[], None]) -> None:
        if self.entries:
            then()
        else:
            self._waiting.append(then)
            self.load()

    def _loaded(self, workers: tuple[pb.Worker, ...]) -> None:
        self._is_loading = False
        self.entries = catalog.entries_from(workers, with_hidden=True)
        self.entries_changed.emit(self.entries)
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()

    def _failed(self, words: str) -> None:
        self._is_loading = False
        if self._waiting:
            self._waiting.clear()
            self.problem.emit(self.tr("The list of workers could not be read: {reason}").format(reason=words))

    def _open_new(self, worker: str) -> None:
        entry = catalog.find(self.entries, worker)
        if entry is not None and entry.is_usable and not entry.form:
            self.play_wanted.emit()
        else:
            self._open("train", worker, None)

    def _open(self, kind: str, worker: str, run: pb.Run | None) -> None:
        from gym_gui.ui.widgets.dialog_factory import NoSuchForm, open_form

        entry = catalog.find(self.entries, worker)
        if entry is None:
            self.problem.emit(
                self.tr("No worker named {name} is installed; Management lists those that are.").format(name=worker)
            )
            return
        try:
            form = open_form(
                kind,
                entry,
                link=self._link,
                background=self._background,
                home=self._home,
                parent=self._window,
                run=run,
            )
        except NoSuchForm as error:
            self.problem.emit(str(error))
            return
        form.submitted.connect(self.submitted)
