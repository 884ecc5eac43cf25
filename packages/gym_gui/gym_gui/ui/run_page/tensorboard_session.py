"""The TensorBoard server of one tab and the runs added to it. No Qt.

`start` and `add` read files and wait for processes: call them outside the window's thread. `drop` never blocks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from mosaic_wire.proto import trainer_pb2 as pb

from gym_gui.services.analytics.web_servers import (
    LinkFolder,
    ServerProblem,
    TensorBoardServer,
    find_interpreter,
    has_event_files,
    linked,
    log_for,
)
from gym_gui.ui.presenters.run_files import home_of

_NOT_NEEDED = "TensorBoard is no longer needed"


class TensorBoardSession:
    """Owns the server; used by the window's thread and the background."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.generation = 0
        """Number of calls of `drop`; `start` gets the one of the moment when a server was requested"""
        self.server: TensorBoardServer | None = None
        self._shown: dict[str, str] = {}

    @property
    def runs(self) -> tuple[str, ...]:
        """Return the ids of the runs it shows."""
        return tuple(self._shown)

    def has_events(self, run: pb.Run) -> bool:
        return has_event_files(linked(run).folder)

    def start(self, runs: Sequence[pb.Run], generation: int, pythons: Iterable[str] = ()) -> TensorBoardServer:
        """Return a server for these runs; raise ServerProblem on failure or if `drop` was called since `generation`."""
        if self.generation != generation:
            raise ServerProblem(_NOT_NEEDED)
        python = find_interpreter(pythons)
        home = home_of(runs[0].run_dir)
        try:
            links = LinkFolder.make(home)
        except OSError as error:
            raise ServerProblem(f"Cannot create a folder for TensorBoard in {home.cache}: {error.strerror}") from error
        try:
            shown = {one.run_id: links.add(one.name, one.folder) for one in map(linked, runs)}
            server = TensorBoardServer.start(
                links, python, log_for(home), is_given_up=lambda: self.generation != generation
            )
        except OSError as error:
            links.remove()
            raise ServerProblem(f"TensorBoard cannot be started: {error}") from error
        except ServerProblem:
            links.remove()
            raise
        with self._lock:
            if self.generation == generation:
                self.server, self._shown = server, shown
                return server
        server.stop()
        raise ServerProblem(_NOT_NEEDED)

    def add(self, runs: Sequence[pb.Run]) -> int:
        """Add runs; return how many new ones with event files there were."""
        server = self.server
        if server is None:
            return 0
        added = 0
        for run in runs:
            one = linked(run)
            if run.run_id not in self._shown and has_event_files(one.folder):
                self._shown[run.run_id] = server.links.add(one.name, one.folder)
                added += 1
        return added

    def drop(self) -> None:
        """End the server, even one that is being started, without waiting for it."""
        with self._lock:
            self.generation += 1
            server, self.server, self._shown = self.server, None, {}
        if server is not None:
            server.abandon()
