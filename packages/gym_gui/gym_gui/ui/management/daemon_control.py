"""Starts, stops and restarts the daemon of a home; tells what it does and how that ended."""

from __future__ import annotations

from collections.abc import Callable

from mosaic_wire.paths import Home
from PySide6.QtCore import QObject, Signal

from gym_gui.services.trainer.errors import TrainerError
from gym_gui.services.trainer.local_daemon import running_record, start_daemon, stop_process, wait_for_end
from gym_gui.ui.daemon_link import DaemonLink

END_S = 30.0
"""How long a daemon may take to end"""


class DaemonControl(QObject):
    """One thing at a time. The link finds a daemon that was started here by itself."""

    busy_changed = Signal(str)  # what is being done; empty: nothing
    done = Signal(str)  # words for people
    failed = Signal(str)

    def __init__(self, link: DaemonLink, home: Home | None, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._link = link
        self._home = home
        self.is_busy = False

    @property
    def can_start(self) -> bool:
        """A daemon on another machine is started there."""
        return self._home is not None

    def start(self) -> None:
        if self._home is None:
            return
        home = self._home

        def start() -> str:
            started = start_daemon(home)
            if started.already_running:
                return self.tr("The daemon runs already (pid {}).").format(started.pid)
            return self.tr("The daemon runs (pid {}).").format(started.pid)

        self._do(self.tr("Starting the daemon…"), start)

    def stop(self) -> None:
        """End it in good order; its runs go on and the next daemon takes them over."""
        home = self._home
        if home is not None:
            self._do(self.tr("Stopping the daemon…"), lambda: self._end(home))
            return
        if self._begin(self.tr("Stopping the daemon…")):
            self._link.call(
                lambda client: client.shutdown(),
                owner=self,
                done=lambda running: self._finish(self._stopped_words(running)),
                failed=lambda words: self._finish("", words),
            )

    def restart(self) -> None:
        """Stop, then start: how changed settings take effect. Runs go on meanwhile."""
        if self._home is None:
            return
        home = self._home

        def restart() -> str:
            if running_record(home) is not None:
                self._end(home)
            started = start_daemon(home)
            return self.tr("The daemon was restarted (pid {}).").format(started.pid)

        self._do(self.tr("Restarting the daemon…"), restart)

    def force(self) -> None:
        """End the process of a daemon that does not answer."""
        if self._home is None:
            return
        home = self._home

        def force() -> str:
            record = running_record(home)
            if record is not None and not stop_process(record, timeout_s=END_S):
                raise TrainerError(f"the daemon's process {record.pid} does not end; end it by hand")
            return self.tr("The daemon's process was ended. Its runs go on.")

        self._do(self.tr("Ending the daemon's process…"), force)

    # ------------------------------------------------------------------ inside

    def _end(self, home: Home) -> str:
        """In the background: a client of its own, because the link loses its daemon on the way."""
        from gym_gui.services.trainer.client import TrainerClient

        record = running_record(home)
        if record is None:
            return self.tr("No daemon runs.")
        with TrainerClient.connect(home) as client:
            running = client.shutdown()
        if not wait_for_end(record, END_S):
            raise TrainerError(f"the daemon (pid {record.pid}) is still there after {END_S:g} s")
        return self._stopped_words(running)

    def _stopped_words(self, running: int) -> str:
        if running == 0:
            return self.tr("The daemon was stopped.")
        if running == 1:
            return self.tr("The daemon was stopped. 1 run goes on; the next daemon takes it over.")
        return self.tr("The daemon was stopped. {} runs go on; the next daemon takes them over.").format(running)

    def _do(self, words: str, function: Callable[[], str]) -> None:
        if not self._begin(words):
            return

        def complain(error: Exception) -> None:
            if not isinstance(error, TrainerError | OSError):
                raise error
            self._finish("", str(error))

        self._link.background.run(function, owner=self, done=self._finish, failed=complain)

    def _begin(self, words: str) -> bool:
        if self.is_busy:
            return False
        self.is_busy = True
        self.busy_changed.emit(words)
        return True

    def _finish(self, words: str, problem: str = "") -> None:
        self.is_busy = False
        self.busy_changed.emit("")
        if problem:
            self.failed.emit(problem)
        else:
            self.done.emit(words)
