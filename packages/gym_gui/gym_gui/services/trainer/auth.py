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

RUN_TOKEN_KEY = "x-mosaic-run-token"
SESSION_TOKEN_KEY = "x-mosaic-session-token"
RUN_ID_KEY = "x-mosaic-run-id"


class TokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs alone
    """Refuses every client call without the daemon's token, before any of our code sees it."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        handler = await continuation(details)
        if handler is None or details.method in WORKER_METHODS:
            return handler
        if details.method in SUBMITTER_METHODS and metadata_value(details.invocation_metadata, SESSION_TOKEN_KEY):
            return handler
        given = metadata_value(details.invocation_metadata, "authorization").encode()
        return handler if hmac.compare_digest(given, self._expected) else _refusing(handler)


def metadata_value(metadata: Any, key: str) -> str:
    """One metadata value as text; empty when it is absent."""
    for name, value in metadata or ():
        if name == key:
            return value if isinstance(value, str) else value.decode("utf-8", "replace")
    return ""


def _refusing(handler: Any) -> Any:
    """A handler of the same shape that answers UNAUTHENTICATED."""
    message = "the daemon's token is missing or wrong; it lies in <home>/trainer/token and only this user may read it"
    trailing = (("mosaic-error", "NotAllowed"),)

    async def refuse(_request: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, message, trailing)

    async def refuse_stream(_request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, message, trailing)
        yield  # makes this a generator, as a streaming handler must be

    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming, handler.response_streaming]
    return make(
        refuse_stream if handler.response_streaming else refuse,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )
