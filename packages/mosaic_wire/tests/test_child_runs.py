"""Runs that a worker asks for: asked for once, heard of to their end, whatever the daemon does meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from mosaic_wire.child_runs import ChildRun, ChildRuns
from mosaic_wire.errors import ChildRunRefused, SessionStopped
from mosaic_wire.ids import new_run_id
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.testing import wait_until

SWEEP = new_run_id()


class Refusal(grpc.RpcError):
    """What a gRPC call raises."""

    def __init__(self, code: grpc.StatusCode, text: str = "") -> None:
        self._code, self._words = code, text

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._words


class PlayedDaemon:
    """The calls a worker makes, answered from a dictionary of runs."""

    def __init__(self) -> None:
        self.runs: dict[str, pb.Run] = {}
        self.keys: dict[str, str] = {}
        self.last_seq = 10
        self.asked: list[str] = []
        self.troubles: list[Refusal] = []
        self.updates: list[pb.RunUpdate] = []
        self.cut = threading.Event()
        self.metadata: Any = None

    def _ask(self, name: str, metadata: Any) -> None:
        self.asked.append(name)
        self.metadata = metadata
        if self.troubles:
            raise self.troubles.pop(0)

    def SubmitRun(self, request: pb.SubmitRunRequest, *, metadata: Any, timeout: float) -> pb.SubmitRunResponse:
        self._ask("SubmitRun", metadata)
        run_id = self.keys.setdefault(request.idempotency_key, new_run_id())
        known = self.runs.setdefault(run_id, pb.Run(run_id=run_id, status="EXEC", event_seq=self.last_seq + 1))
        return pb.SubmitRunResponse(run=known)

    def GetRun(self, request: pb.RunRequest, *, metadata: Any, timeout: float) -> pb.Run:
        self._ask("GetRun", metadata)
        if request.run_id not in self.runs:
            raise Refusal(grpc.StatusCode.NOT_FOUND)
        return self.runs[request.run_id]

    def CancelRun(self, request: pb.CancelRunRequest, *, metadata: Any, timeout: float) -> pb.Run:
        self._ask("CancelRun", metadata)
        return self.runs[request.run_id]

    def ListRuns(self, request: pb.ListRunsRequest, *, metadata: Any, timeout: float) -> pb.ListRunsResponse:
        self._ask("ListRuns", metadata)
        return pb.ListRunsResponse(last_seq=self.last_seq)

    def WatchRuns(self, request: pb.WatchRunsRequest, *, metadata: Any) -> Any:
        self.asked.append("WatchRuns")
        daemon = self

        class Stream:
            def __iter__(self) -> Iterator[pb.RunUpdate]:
                while not daemon.cut.wait(0.005):
                    while daemon.updates:
                        yield daemon.updates.pop(0)

            def cancel(self) -> None:
                daemon.cut.set()

        return Stream()

    def end(self, run_id: str, outcome: str, seq: int) -> None:
        self.runs[run_id] = pb.Run(run_id=run_id, status="TERM", outcome=outcome, event_seq=seq)


@pytest.fixture
def daemon() -> PlayedDaemon:
    return PlayedDaemon()


@pytest.fixture
def stop() -> threading.Event:
    return threading.Event()


@pytest.fixture
def children(daemon: PlayedDaemon, stop: threading.Event) -> Iterator[ChildRuns]:
    link: Any = SimpleNamespace(stub=daemon, metadata=(("x-mosaic-session-token", "s"),))
    with ChildRuns(link, SWEEP, stop) as children:
        yield children


def heard(children: ChildRuns) -> list[ChildRun]:
    found: list[ChildRun] = []
    wait_until(lambda: found.extend(children.poll(0.02)) or any(run.is_over for run in found))
    return found


def test_calls_say_whose_they_are(children: ChildRuns, daemon: PlayedDaemon) -> None:
    children.submit({}, key="k")
    assert set(daemon.metadata) == {("x-mosaic-session-token", "s"), ("x-mosaic-run-id", SWEEP)}


def test_a_daemon_that_is_away_is_asked_again(children: ChildRuns, daemon: PlayedDaemon) -> None:
    daemon.troubles = [Refusal(grpc.StatusCode.UNAVAILABLE), Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED)]
    assert children.submit({}, key="k").status == "EXEC"
    assert daemon.asked.count("SubmitRun") == 3
    assert len(daemon.runs) == 1


def test_a_refusal_is_reported_with_its_words(children: ChildRuns, daemon: PlayedDaemon) -> None:
    daemon.troubles = [Refusal(grpc.StatusCode.INVALID_ARGUMENT, "no such flag")]
    with pytest.raises(ChildRunRefused, match="no such flag"):
        children.submit({}, key="k")
    daemon.troubles = [Refusal(grpc.StatusCode.INTERNAL, "a bug")] * 5
    with pytest.raises(ChildRunRefused, match="a bug"):
        children.submit({}, key="k")


def test_whoever_is_to_stop_does_not_wait_for_the_daemon(
    children: ChildRuns, daemon: PlayedDaemon, stop: threading.Event
) -> None:
    stop.set()
    daemon.troubles = [Refusal(grpc.StatusCode.UNAVAILABLE)]
    with pytest.raises(SessionStopped):
        children.submit({}, key="k")


def test_cancelling_what_is_over_or_gone_is_no_error(children: ChildRuns, daemon: PlayedDaemon) -> None:
    daemon.troubles = [Refusal(grpc.StatusCode.FAILED_PRECONDITION, "over"), Refusal(grpc.StatusCode.NOT_FOUND)]
    children.cancel(new_run_id(), "why")
    children.cancel(new_run_id(), "why")
    daemon.troubles = [Refusal(grpc.StatusCode.UNAUTHENTICATED, "not yours")]
    with pytest.raises(ChildRunRefused, match="not yours"):
        children.cancel(new_run_id(), "why")


def test_changes_are_heard_and_old_ones_are_not_heard_again(children: ChildRuns, daemon: PlayedDaemon) -> None:
    run = children.submit({}, key="k")
    assert wait_until(lambda: "WatchRuns" in daemon.asked)
    ended = pb.Run(run_id=run.run_id, status="TERM", outcome="completed", event_seq=20)
    older = pb.Run(run_id=run.run_id, status="RDY", event_seq=run.event_seq - 1)
    daemon.updates += [pb.RunUpdate(run=older), pb.RunUpdate(run=ended), pb.RunUpdate(run=ended)]
    assert [change.outcome for change in heard(children) if change.event_seq == 20] == ["completed"]
    assert not [change for change in children.poll(0.1) if change.event_seq < run.event_seq]


def test_after_a_gap_every_awaited_run_is_reported_as_it_is_now(children: ChildRuns, daemon: PlayedDaemon) -> None:
    gone, ended = children.submit({}, key="gone"), children.submit({}, key="ended")
    assert wait_until(lambda: "WatchRuns" in daemon.asked)
    del daemon.runs[gone.run_id]
    daemon.end(ended.run_id, "failed", 30)
    daemon.cut.set()  # the daemon was killed; the next one knows more
    found: dict[str, str] = {}
    assert wait_until(
        lambda: found.update({run.run_id: run.outcome for run in children.poll(0.02) if run.is_over}) or len(found) == 2
    )
    assert found == {gone.run_id: "deleted", ended.run_id: "failed"}


def test_a_run_that_ended_between_its_answer_and_the_stream_is_not_missed(
    children: ChildRuns, daemon: PlayedDaemon
) -> None:
    """A controller that was started again asks for runs that are known already, while its stream is being opened."""
    children.submit({}, key="first")
    assert wait_until(lambda: "WatchRuns" in daemon.asked)
    run_id = daemon.keys["second"] = new_run_id()
    daemon.runs[run_id] = pb.Run(run_id=run_id, status="EXEC", event_seq=3)  # as it was when the answer was written
    real = daemon.SubmitRun

    def answer_then_end(request: pb.SubmitRunRequest, **options: Any) -> pb.SubmitRunResponse:
        answer = pb.SubmitRunResponse.FromString(real(request, **options).SerializeToString())
        daemon.end(run_id, "completed", 9)  # before the event that the stream begins after
        return answer

    daemon.SubmitRun = answer_then_end  # type: ignore[method-assign]
    assert children.submit({}, key="second").outcome == "completed"
