"""What every tab of the run page is: built when it is first opened, quiet while nobody looks at it."""

from __future__ import annotations

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtWidgets import QWidget

from gym_gui.ui.daemon_link import DaemonLink


class RunTab(QWidget):
    """A tab about one run at a time.

    The page calls `show_run` when another run is chosen, `refresh` with each newer record of the same run, and
    `set_active` when the tab comes to the front or goes to the back: only an active tab reads files or holds streams.
    """

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.link = link
        self.run: pb.Run | None = None
        self.is_active = False

    def show_run(self, run: pb.Run) -> None:
        """Another run (or the first one)."""
        self.run = run

    def refresh(self, run: pb.Run) -> None:
        """A newer record of the run that is shown."""
        self.run = run

    def set_active(self, active: bool) -> None:
        """Whether somebody looks."""
        self.is_active = active
