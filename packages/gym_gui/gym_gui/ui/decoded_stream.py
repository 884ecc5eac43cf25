"""A stream whose messages are made ready where they arrive: in the thread that reads them, not in the window's.

link.stream(lambda client: DecodedStream(client.frames(run_id), picture_of), self.show_pictures, owner=self)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from gym_gui.services.trainer.client import RpcStream

M = TypeVar("M")
T = TypeVar("T")


class DecodedStream(RpcStream[T]):
    """What `decode` makes of each message of another stream."""

    def __init__(self, stream: RpcStream[M], decode: Callable[[M], T]) -> None:
        self._stream: RpcStream[Any] = stream
        self._next: Callable[[], T] = lambda: decode(next(stream))

    def __next__(self) -> T:
        return self._next()

    def cancel(self) -> None:
        self._stream.cancel()
