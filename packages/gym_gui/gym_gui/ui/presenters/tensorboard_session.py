"""The TensorBoard of one tab: at most one server, for the runs that were added to it. No Qt.

`start` and `add` look at files and wait for processes: call them off the window's thread. `drop` never waits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from mosaic_wire.proto import trainer_pb2 as pb

from gym_gui.services.analytics.tensorboard_runs import linked
from gym_gui.services.analytics.tensorboard_server import (
    LinkFolder,
    TensorBoardProblem,
    TensorBoardServer,
    find_interpreter,
    has_event_files,
    log_for,
)
from gym_gui.ui.presenters.analytics_artefacts import home_of


class TensorBoardSession:
    """Keeps the server; used from the window's thread and from the background."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turn = 0
        self._server: TensorBoardServer | None = None
        self._shown: dict[str, str] = {}

    @property
    def server(self) -> TensorBoardServer | None:
        return self._server

    @property
    def runs(self) -> tuple[str, ...]:
        """Ids of the runs that it shows."""
        return tuple(self._shown)

    def has_events(self, run: pb.Run) -> bool:
        return has_event_files(linked(run).folder)

    def start(self, runs: Sequence[pb.Run], pythons: Iterable[str] = ()) -> TensorBoardServer:
        """A server for these runs; TensorBoardProblem when there is none, or when `drop` was called meanwhile."""
        with self._lock:
            turn = self._turn
        python = find_interpreter(pythons)
        home = home_of(runs[0].run_dir)
        try:
            links = LinkFolder.make(home)
        except OSError as error:
            raise TensorBoardProblem(
                f"No folder can be made for TensorBoard in {home.cache}: {error.strerror}"
            ) from error
        try:
            shown = {one.run_id: links.add(one.name, one.folder) for one in map(linked, runs)}
            server = TensorBoardServer.start(links, python, log_for(home), is_given_up=lambda: self._turn != turn)
        except OSError as error:
            links.remove()
            raise TensorBoardProblem(f"TensorBoard cannot be started: {error}") from error
        except TensorBoardProblem:
            links.remove()
            raise
        with self._lock:
            if self._turn == turn:
                self._server, self._shown = server, shown
                return server
        server.stop()
        raise TensorBoardProblem("TensorBoard is not needed any more")

    def add(self, runs: Sequence[pb.Run]) -> int:
        """Show more runs; how many of them it did not show before and have event files."""
        server = self._server
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
        """End the server, also one that is being started; it goes in its own time."""
        with self._lock:
            self._turn += 1
            server, self._server, self._shown = self._server, None, {}
        if server is not None:
            server.abandon()
