"""The banner about the daemon: gone, stopped on purpose, impossible to start, or silent. Hidden while all is well."""

from __future__ import annotations

from typing import Protocol

from PySide6.QtWidgets import QWidget

from gym_gui.ui.daemon_link import DaemonLink, LinkPhase, LinkState
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.crash_dialog import ReportDialog


class Connector(Protocol):
    """How the daemon is found, see `ui/connector.py`."""

    @property
    def is_stopped(self) -> bool: ...

    @property
    def failure(self) -> str: ...

    def start_again(self) -> None: ...


class DaemonBanner(Banner):
    """Says what is wrong with the daemon and what happens about it; goes by itself when it is right again."""

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
            self.say(
                self.tr("The trainer daemon was stopped. Its runs go on, but nothing new starts and nothing is shown."),
                "warning",
                action=self.tr("Start the daemon"),
                on_action=self._connector.start_again,
            )
        else:
            self.say(
                self._words_for_loss(state.detail),
                "bad",
                action=self.tr("Details…"),
                on_action=lambda: self._show_details(state.detail),
            )

    def show_silence(self, words: str) -> None:
        """It is connected and does not answer: why, as far as we can tell; "" when it answers again."""
        if not self._link.is_connected:
            return  # that is told already
        if not words:
            self.clear()
            return
        reason = words.partition("\n")[0].rstrip(".")
        self.say(
            self.tr("The trainer daemon is silent: {reason}. What you see may be old.").format(reason=reason), "warning"
        )

    def _words_for_loss(self, detail: str) -> str:
        failure = self._connector.failure if self._connector is not None else ""
        if self._is_local and not failure:
            return self.tr("The trainer daemon does not answer; it is started again. Its runs go on meanwhile.")
        reason = (failure or detail).partition("\n")[0].rstrip(".:; ")
        if self._is_local:
            return self.tr("The trainer daemon cannot be started: {reason}. Trying again from time to time.").format(
                reason=reason
            )
        return self.tr("The trainer daemon does not answer: {reason}. Looking for it again; its runs go on.").format(
            reason=reason
        )

    def _show_details(self, text: str) -> None:
        ReportDialog(
            self.tr("The trainer daemon does not answer"),
            self.tr("This is what it said last. The window goes on trying."),
            text,
            self.window(),
        ).show()
