"""What every tab of the run page is: built when it is first opened, quiet while nobody looks at it."""

from __future__ import annotations

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.presenters.analytics_artefacts import Artefacts


class RunTab(QWidget):
    """A tab about one run at a time.

    The page calls `show_run` when another run is chosen, `refresh` with each newer record of the same run, and
    `set_active` when the tab comes to the front or goes to the back: only an active tab reads files or holds streams.
    """

    run_wanted = Signal(str)
    """Its reader wants to see another run (its id)"""
    tab_wanted = Signal(str)
    """Its reader wants to see another tab of this run (its name)"""
    form_wanted = Signal(str, object)
    """Its reader wants a form (its kind) about a run"""
    config_wanted = Signal(object)
    """Its reader wants the form that trains, filled with this (`TrainingConfig`)"""

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.link = link
        self.run: pb.Run | None = None
        self.is_active = False
        self.artefacts: Artefacts | None = None
        """Its manifest and W&B folders as the page last found them; None until it has looked"""
        self.chosen_runs: tuple[str, ...] = ()
        """Ids of the runs that are chosen in the list, for tabs that show several"""

    def take_artefacts(self, found: Artefacts | None) -> None:
        """What lies in the run's folder now; called before `show_run` and `refresh`."""
        self.artefacts = found

    def show_run(self, run: pb.Run) -> None:
        """Another run (or the first one)."""
        self.run = run

    def refresh(self, run: pb.Run) -> None:
        """A newer record of the run that is shown."""
        has_changed = self.run is None or self.run.status != run.status
        self.run = run
        if has_changed and self.is_active:
            self.on_status_changed()

    def on_status_changed(self) -> None:
        """The run that somebody looks at was started, paused, ended …"""

    def set_active(self, active: bool) -> None:
        """Whether somebody looks."""
        self.is_active = active
