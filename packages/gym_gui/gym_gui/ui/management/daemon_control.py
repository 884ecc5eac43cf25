"""Start, stop and restart the daemon of a home; report progress and outcome."""

from __future__ import annotations

from collections.abc import Callable

from mosaic_wire.paths import Home
from PySide6.QtCore import QObject, Signal

from gym_gui.services.trainer.errors import TrainerError
from gym_gui.services.trainer.local_daemon import running_record, start_daemon, stop_process, wait_for_end
from gym_gui.ui.daemon_link import DaemonLink

END_S = 30.0
"""Timeout for the daemon to exit"""


class DaemonControl(QObject):
    """Runs one operation at a time. The link finds a daemon that was started here."""

    busy_changed = Signal(str)  # the running operation; empty: none
    done = Signal(str)  # a message for users
    failed = Signal(str)

    def __init__(self, link: DaemonLink, home: Home | None, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._link = link
        self._home = home
        self.is_busy = False

    @property
    def can_start(self) -> bool:
        """Return whether a daemon can be started from here: a remote one cannot."""
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
        """Stop the daemon gracefully; its runs continue, and the next daemon recovers them."""
        home = self._home
        if home is not None:
            self._do(self.tr("Stopping the daemon…"), lambda: self._end(home))
            return
        if self._begin(self.tr("Stopping the daemon…")):
            self._link.call(
                lambda client: client.shutdown(),
                owner=self,
                done=lambda running: self._finish(self._stopped_message(running)),
                failed=lambda text: self._finish("", text),
            )

    def restart(self) -> None:
        """Stop and start it, so that changed settings take effect. Runs continue."""
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
        """Kill the process of a daemon that does not respond."""
        if self._home is None:
            return
        home = self._home

        def force() -> str:
            record = running_record(home)
            if record is not None and not stop_process(record, timeout_s=END_S):
                raise TrainerError(f"the daemon's process {record.pid} does not exit; kill it manually")
            return self.tr("The daemon's process was ended. Its runs keep running.")

        self._do(self.tr("Ending the daemon's process…"), force)

    # ------------------------------------------------------------------ private

    def _end(self, home: Home) -> str:
        """Stop the daemon, in the background, with a client of its own: the link loses its connection meanwhile."""
        from gym_gui.services.trainer.client import TrainerClient

        record = running_record(home)
        if record is None:
            return self.tr("No daemon runs.")
        with TrainerClient.connect(home) as client:
            running = client.shutdown()
        if not wait_for_end(record, END_S):
            raise TrainerError(f"the daemon (pid {record.pid}) is still running after {END_S:g} s")
        return self._stopped_message(running)

    def _stopped_message(self, running: int) -> str:
        if running == 0:
            return self.tr("The daemon was stopped.")
        if running == 1:
            return self.tr("The daemon was stopped. 1 run keeps running; the next daemon recovers it.")
        return self.tr("The daemon was stopped. {} runs keep running; the next daemon recovers them.").format(running)

    def _do(self, text: str, function: Callable[[], str]) -> None:
        if not self._begin(text):
            return

        def on_error(error: Exception) -> None:
            if not isinstance(error, TrainerError | OSError):
                raise error
            self._finish("", str(error))

        self._link.background.run(function, owner=self, done=self._finish, failed=on_error)

    def _begin(self, text: str) -> bool:
        if self.is_busy:
            return False
        self.is_busy = True
        self.busy_changed.emit(text)
        return True

    def _finish(self, text: str, problem: str = "") -> None:
        self.is_busy = False
        self.busy_changed.emit("")
        if problem:
            self.failed.emit(problem)
        else:
            self.done.emit(text)
