"""Base class of the run page's tabs: built when first opened, idle while hidden."""

from __future__ import annotations

from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_status import RunStatus
from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.presenters.run_files import RunArtifacts

_LIVE = (RunStatus.HSHK, RunStatus.RDY, RunStatus.EXEC, RunStatus.PAUSE)


def is_live(run: pb.Run) -> bool:
    """Return whether the run has a process that may render and send."""
    return run.status in _LIVE


class RunTab(QWidget):
    """A tab about one run at a time.

    The page calls `show_run` when another run is selected, `refresh` with each newer record of the same run, and
    `set_active` when the tab becomes visible or hidden: only an active tab reads files or holds streams.
    """

    run_requested = Signal(str)
    """The user wants to open another run (its id)"""
    tab_requested = Signal(str)
    """The user wants to open another tab of this run (its name)"""
    form_requested = Signal(str, object)
    """The user wants to open a form (its kind) for a run"""
    config_requested = Signal(object)
    """The user wants to open the training form with this config (`TrainingConfig`)"""

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.link = link
        self.run: pb.Run | None = None
        self.is_active = False
        self.artifacts: RunArtifacts | None = None
        """Manifest and W&B folders found by the page; None before the first scan"""
        self.chosen_runs: tuple[str, ...] = ()
        """Ids of the runs selected in the list, for tabs that show several"""

    def set_artifacts(self, found: RunArtifacts | None) -> None:
        """Set what was found in the run's folder; called before `show_run` and `refresh`."""
        self.artifacts = found

    def show_run(self, run: pb.Run) -> None:
        """Show another run, or the first one."""
        self.run = run

    def refresh(self, run: pb.Run) -> None:
        """Apply a newer record of the shown run."""
        has_changed = self.run is None or self.run.status != run.status
        self.run = run
        if has_changed and self.is_active:
            self.on_status_changed()

    def on_status_changed(self) -> None:
        """React to a changed status of the shown run."""

    def set_active(self, active: bool) -> None:
        """Set whether the tab is visible."""
        self.is_active = active
