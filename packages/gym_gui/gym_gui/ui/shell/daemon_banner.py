"""Find or start the daemon, and the banner that reports when it is unreachable."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from mosaic_wire.paths import Home
from PySide6.QtWidgets import QWidget

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import DaemonUnreachable, TrainerError
from gym_gui.services.trainer.local_daemon import running_record, start_daemon
from gym_gui.ui.daemon_link import DaemonLink, LinkPhase, LinkState
from gym_gui.ui.shell.crash_dialog import ReportDialog
from gym_gui.ui.widgets.banner import Banner

TIMEOUT_S = 15.0
"""Delay after a failed start before the next attempt"""


class DaemonStopped(DaemonUnreachable):
    """The user stopped the daemon: it is not restarted without a request."""


class LocalConnector:
    """Connects to the daemon of a home. A daemon that crashed is restarted; one that was stopped is not."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.is_stopped = False
        self._start_requested = True
        self._failed_at = float("-inf")
        self._failure: TrainerError | None = None

    @property
    def failure(self) -> str:
        """Return why the daemon could not be started; empty: it is starting or no start was necessary."""
        return str(self._failure or "")

    def restart_daemon(self) -> None:
        """Request a start at the next poll, even if the daemon was stopped; callable from any thread."""
        self._start_requested = True
        self._failed_at = float("-inf")

    def __call__(self) -> TrainerClient:
        if running_record(self.home) is None:
            # An orderly exit removes the record; a leftover record indicates a crash.
            if not (self._start_requested or self.home.daemon_record.exists()):
                self.is_stopped = True
                raise DaemonStopped(f"the trainer daemon of {self.home.root} was stopped")
            self._start()
        self.is_stopped = False
        client = TrainerClient.connect(self.home)
        self._start_requested = False
        return client

    def _start(self) -> None:
        if self._failure is not None and time.monotonic() - self._failed_at < TIMEOUT_S:
            raise self._failure
        try:
            start_daemon(self.home)
        except TrainerError as error:
            self._failure, self._failed_at = error, time.monotonic()
            raise
        self._failure = None


@dataclass(frozen=True)
class RemoteConnector:
    """Connects to a daemon at an address; it is never started from here."""

    target: str
    token: str
    tls_ca: Path | None = None
    is_stopped = False
    failure = ""

    def restart_daemon(self) -> None:
        """Do nothing: a remote daemon cannot be started from here."""

    def __call__(self) -> TrainerClient:
        return TrainerClient(self.target, self.token, tls_ca=self.tls_ca)


Connector = LocalConnector | RemoteConnector


class DaemonBanner(Banner):
    """Shows problems with the daemon and what is done about them; cleared when the daemon is back."""

    def __init__(
        self, link: DaemonLink, connector: Connector | None, *, is_local: bool, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent=parent)
        self._link, self._connector, self._is_local = link, connector, is_local
        link.state_changed.connect(self.show_state)

    def show_state(self, state: LinkState) -> None:
        if state.phase is not LinkPhase.LOST:
            self.clear()
        elif self._connector is not None and self._connector.is_stopped:
            self.set_message(
                self.tr(
                    "The trainer daemon was stopped. Its runs keep running; nothing new starts and nothing is shown."
                ),
                "warning",
                action=self.tr("Start the daemon"),
                on_action=self._connector.restart_daemon,
            )
        else:
            self.set_message(
                self._loss_text(state.detail),
                "bad",
                action=self.tr("Details…"),
                on_action=lambda: self._show_details(state.detail),
            )

    def show_unresponsive(self, text: str) -> None:
        """Show why a connected daemon probably does not respond; "" when it responds again."""
        if not self._link.is_connected:
            return  # the connection state already shows it
        if not text:
            self.clear()
            return
        reason = text.partition("\n")[0].rstrip(".")
        self.set_message(
            self.tr("The trainer daemon does not respond: {reason}. The data shown may be outdated.").format(
                reason=reason
            ),
            "warning",
        )

    def _loss_text(self, detail: str) -> str:
        failure = self._connector.failure if self._connector is not None else ""
        if self._is_local and not failure:
            return self.tr("The trainer daemon does not respond; it is being restarted. Its runs keep running.")
        reason = (failure or detail).partition("\n")[0].rstrip(".:; ")
        if self._is_local:
            return self.tr("The trainer daemon cannot be started: {reason}. Retrying periodically.").format(
                reason=reason
            )
        return self.tr("The trainer daemon cannot be reached: {reason}. Reconnecting; its runs keep running.").format(
            reason=reason
        )

    def _show_details(self, text: str) -> None:
        ReportDialog(
            self.tr("The trainer daemon is unreachable"),
            self.tr("The window keeps retrying. Last message:"),
            text,
            self.window(),
        ).show()
