"""How the window finds its daemon: the one of a home on this machine, started when need be, or one far away.

Called in the link's own thread, never in the window's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from mosaic_wire.paths import Home

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import DaemonUnreachable, TrainerError
from gym_gui.services.trainer.local_daemon import running_record, start_daemon

PATIENCE_S = 15.0
"""After a start that failed: how long to leave the machine in peace before the next one"""


class DaemonStopped(DaemonUnreachable):
    """Somebody ended the daemon in good order: it stays ended until somebody wants it back."""


class LocalConnector:
    """The daemon of a home. A daemon that died is replaced; one that was stopped on purpose is not."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.is_stopped = False
        self._start_is_wanted = True
        self._failed_at = float("-inf")
        self._failure: TrainerError | None = None

    @property
    def failure(self) -> str:
        """Why a daemon could not be started; empty: one is being started, or there was no need to."""
        return str(self._failure or "")

    def start_again(self) -> None:
        """From any thread: the next look starts a daemon even if the last one was stopped on purpose."""
        self._start_is_wanted = True
        self._failed_at = float("-inf")

    def __call__(self) -> TrainerClient:
        if running_record(self.home) is None:
            # An orderly end removes the record; one that is left behind tells of a crash.
            if not (self._start_is_wanted or self.home.daemon_record.exists()):
                self.is_stopped = True
                raise DaemonStopped(f"the trainer daemon of {self.home.root} was stopped")
            self._start()
        self.is_stopped = False
        client = TrainerClient.connect(self.home)
        self._start_is_wanted = False
        return client

    def _start(self) -> None:
        if self._failure is not None and time.monotonic() - self._failed_at < PATIENCE_S:
            raise self._failure
        try:
            start_daemon(self.home)
        except TrainerError as error:
            self._failure, self._failed_at = error, time.monotonic()
            raise
        self._failure = None


@dataclass(frozen=True)
class RemoteConnector:
    """A daemon at an address; it is looked for, never started."""

    target: str
    token: str
    tls_ca: Path | None = None
    is_stopped = False
    failure = ""

    def start_again(self) -> None:
        """Not ours to start."""

    def __call__(self) -> TrainerClient:
        return TrainerClient(self.target, self.token, tls_ca=self.tls_ca)
