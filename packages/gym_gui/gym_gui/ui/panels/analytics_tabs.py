"""Which analytics tabs the shown run has, followed while its files appear.

    manager = AnalyticsTabManager(background, parent)
    manager.watch(run)                 another run, or a newer record of it
    manager.tabs_of(run, named)        of the tabs its presenter names, those it has now
    manager.changed                    emitted when that answer, or the manifest, is another one

The run's folder is looked at in the background every two seconds while the run is live and somebody looks. Looking is
cheap (a stat and a listing) and works on network disks, where the kernel's notices do not.
"""

from __future__ import annotations

from collections.abc import Iterable

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QObject, QTimer, Signal

from gym_gui.ui.background import Background
from gym_gui.ui.presenters.analytics_artefacts import Artefacts, look, tabs_of

LOOK_EVERY_MS = 2000


class AnalyticsTabManager(QObject):
    """Follows the manifest and the files of one run."""

    changed = Signal(str)
    """The id of the run whose manifest or files changed"""

    def __init__(self, background: Background, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._background = background
        self._run: pb.Run | None = None
        self._is_seen = False
        self._is_looking = False
        self._looks_again = False
        self.found: Artefacts | None = None
        """What is known of the watched run's files; None until they were looked at"""
        self._clock = QTimer(self)
        self._clock.setInterval(LOOK_EVERY_MS)
        self._clock.timeout.connect(self.look)

    def watch(self, run: pb.Run | None) -> None:
        """Follow this run (None: no run any more)."""
        before, self._run = self._run, run
        if run is None or before is None or before.run_id != run.run_id:
            self.found = None
            self._follow_or_not()
        elif before.status != run.status:
            self._follow_or_not()  # what a run leaves at its end, or a first look at what a queued one makes

    def set_seen(self, seen: bool) -> None:
        """Whether anybody looks at the run."""
        if seen != self._is_seen:
            self._is_seen = seen
            self._follow_or_not()

    def tabs_of(self, run: pb.Run, named: Iterable[str]) -> tuple[str, ...]:
        """Of the tabs that a presenter names, those that this run has now."""
        is_watched = self._run is not None and self._run.run_id == run.run_id
        return tabs_of(run, named, self.found if is_watched else None)

    def _follow_or_not(self) -> None:
        run = self._run
        if run is None or not self._is_seen:
            self._clock.stop()
            return
        self.look()
        if run.status == "TERM":
            self._clock.stop()
        elif not self._clock.isActive():
            self._clock.start()

    def look(self) -> None:
        """Look at the files now, in the background."""
        run = self._run
        if run is None:
            return
        if self._is_looking:
            self._looks_again = True
            return
        self._is_looking = True
        run_id, run_dir, before = run.run_id, run.run_dir, self.found
        self._background.run(
            lambda: look(run_dir, before),
            owner=self,
            done=lambda found: self._take(run_id, found),
        )

    def _take(self, run_id: str, found: Artefacts) -> None:
        self._is_looking = False
        if self._looks_again:
            self._looks_again = False
            self.look()
        if self._run is None or self._run.run_id != run_id or found == self.found:
            return
        self.found = found
        self.changed.emit(run_id)
