"""The calls of a node to its daemon: with the run's token, paced, and with two kinds of failures."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import grpc

from mosaic_wire import PROTOCOL_VERSION
from mosaic_wire.daemon_link import AWAY, CHANNEL_OPTIONS, RUN_TOKEN_HEADER
from mosaic_wire.errors import SessionError
from mosaic_wire.node import Bootstrap
from mosaic_wire.proto import trainer_pb2 as messages
from mosaic_wire.proto.trainer_pb2_grpc import TrainerServiceStub

_CALL_S = 60.0
_QUICK_S = 20.0
_TEMPORARY = AWAY | {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}


class DaemonAway(Exception):
    """A call failed in a way that may pass."""


class Refused(SessionError):
    """The daemon does not expect this node, or no longer."""


class DaemonCalls:
    """One channel; every method may be called from any thread, and raises DaemonAway or Refused."""

    def __init__(self, target: str, bootstrap: Bootstrap, instance: str) -> None:
        self._channel = grpc.insecure_channel(target, options=CHANNEL_OPTIONS)
        self._stub = TrainerServiceStub(self._channel)
        self._metadata = ((RUN_TOKEN_HEADER, bootstrap.run_token),)
        self._attempt, self._own = bootstrap.attempt, {"run_id": bootstrap.run_id, "instance": instance}
        self._bytes_per_s = 0

    def open(self) -> messages.OpenNodeResponse:
        """Ask the daemon for everything that the worker needs."""
        request = messages.OpenNodeRequest(
            **self._own, attempt=self._attempt, protocol_version=PROTOCOL_VERSION, host=os.uname().nodename
        )
        opened: messages.OpenNodeResponse = self._call(self._stub.OpenNode, request, _QUICK_S)
        self._bytes_per_s = opened.bytes_per_s
        return opened

    def read_inputs(self, offsets: Mapping[str, int]) -> Iterator[messages.FilePiece]:
        """Yield pieces of files that the run starts from."""
        files = [messages.FileRange(path=path, offset=offset) for path, offset in offsets.items()]
        request = messages.ReadRunFilesRequest(run_id=self._own["run_id"], files=files)
        try:
            yield from self._stub.ReadNodeInputs(request, metadata=self._metadata)
        except grpc.RpcError as error:
            raise _failure(error) from None

    def send_files(
        self, pieces: Sequence[messages.FilePiece], removed: Sequence[str], *, is_preparing: bool
    ) -> messages.SendRunFilesResponse:
        """Send pieces of files; without any, the daemon knows that the node is there."""
        request = messages.SendRunFilesRequest(**self._own, pieces=pieces, removed=removed, is_preparing=is_preparing)
        answer: messages.SendRunFilesResponse = self._call(
            self._stub.SendRunFiles, request, _CALL_S, sum(len(piece.data) for piece in pieces)
        )
        return answer

    def send_frame(self, frame: messages.RunFrame) -> float:
        """Send a frame; return the interval that a viewer requested."""
        request = messages.SendRunFrameRequest(**self._own, frame=frame)
        answer: messages.SendRunFrameResponse = self._call(self._stub.SendRunFrame, request, _QUICK_S, len(frame.data))
        return answer.frame_interval_s

    def close(self) -> None:
        self._channel.close()

    def _call(self, method: Any, request: Any, timeout_s: float, size: int = 0) -> Any:
        began = time.monotonic()
        try:
            answer = method(request, metadata=self._metadata, timeout=timeout_s)
        except ValueError as error:  # the channel was closed
            raise DaemonAway(str(error)) from None
        except grpc.RpcError as error:
            raise _failure(error) from None
        if self._bytes_per_s:
            time.sleep(max(0.0, size / self._bytes_per_s - (time.monotonic() - began)))
        return answer


def _failure(error: Any) -> DaemonAway | Refused:
    kind = DaemonAway if error.code() in _TEMPORARY else Refused
    return kind(error.details() or str(error.code()))
