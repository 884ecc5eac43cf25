"""Who may call: clients with the daemon's token, workers with the tokens of their run."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

_SERVICE = "/gymgui.trainer.TrainerService/"

PUBLISHING = ("PublishRunMetrics", "PublishRunSteps", "PublishRunEpisodes")
WORKER_METHODS = frozenset(_SERVICE + name for name in ("RegisterWorker", "Heartbeat", "ControlStream", *PUBLISHING))
"""These carry a run's token; the trainer checks it against the run."""

SUBMITTER_METHODS = frozenset(
    _SERVICE + name
    for name in ("SubmitRun", "CancelRun", "GetRun", "ListRuns", "WatchRuns", "ListRunMetrics", "StreamRunMetrics")
)
"""Clients call these; so do workers that submit runs of their own, with their session token: the service checks it"""

_REGISTER = _SERVICE + "RegisterWorker"
_NO_CLIENT = "the daemon's token is missing or wrong; it lies in <home>/trainer/token and only this user may read it"
_NO_RUN = "the token is missing, wrong, or none of a run that has a live worker"

RUN_TOKEN_KEY = "x-mosaic-run-token"
SESSION_TOKEN_KEY = "x-mosaic-session-token"
RUN_ID_KEY = "x-mosaic-run-id"


class TokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs alone
    """Refuses every call without the daemon's token, or that of a live run, before its message is read."""

    def __init__(self, token: str, is_of_a_run: Callable[[str], Awaitable[bool]]) -> None:
        self._expected = f"Bearer {token}".encode()
        self._is_of_a_run = is_of_a_run

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        handler, metadata = await continuation(details), details.invocation_metadata
        if handler is None:
            return None
        token = metadata_value(metadata, RUN_TOKEN_KEY if details.method == _REGISTER else SESSION_TOKEN_KEY)
        if details.method in WORKER_METHODS or (details.method in SUBMITTER_METHODS and token):
            return handler if token and await self._is_of_a_run(token) else _refusing(_NO_RUN)
        given = metadata_value(metadata, "authorization").encode()
        return handler if hmac.compare_digest(given, self._expected) else _refusing(_NO_CLIENT)


def metadata_value(metadata: Any, key: str) -> str:
    """One metadata value as text; empty when it is absent."""
    for name, value in metadata or ():
        if name == key:
            return value if isinstance(value, str) else value.decode("utf-8", "replace")
    return ""


def _refusing(message: str) -> Any:
    """A handler that answers UNAUTHENTICATED.

    Always one of a stream, whatever the method is: gRPC reads the message of any other before it calls the handler.
    """

    async def refuse(_requests: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, message, (("mosaic-error", "NotAllowed"),))
        yield  # makes this a generator, as a streaming handler must be

    return grpc.stream_stream_rpc_method_handler(refuse)
