"""Authentication: clients need the daemon's token, workers the tokens of their run."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

_SERVICE = "/gymgui.trainer.TrainerService/"

PUBLISHING = ("PublishRunMetrics", "PublishRunSteps", "PublishRunEpisodes")
WORKER_METHODS = frozenset(_SERVICE + name for name in ("RegisterWorker", "Heartbeat", "ControlStream", *PUBLISHING))
"""Methods that carry a run's token, which the trainer checks against the run"""

NODE_METHODS = frozenset(_SERVICE + name for name in ("OpenNode", "ReadNodeInputs", "SendRunFiles", "SendRunFrame"))
"""Methods of the process that runs a worker on another machine; each call carries the run's token"""

SUBMITTER_METHODS = frozenset(
    _SERVICE + name
    for name in ("SubmitRun", "CancelRun", "GetRun", "ListRuns", "WatchRuns", "ListRunMetrics", "StreamRunMetrics")
)
"""Methods of clients that workers which submit runs may call with their session token; the service checks it"""

_WITH_RUN_TOKEN = NODE_METHODS | {_SERVICE + "RegisterWorker"}
_NO_CLIENT = "the daemon's token is missing or wrong; it is in <home>/trainer/token and only this user may read it"
_NO_RUN = "the token is missing, wrong, or not of a run with a live worker"
_NO_NODE_CALL = "nothing but the calls of a worker about its own run is answered at this address"

RUN_TOKEN_KEY = "x-mosaic-run-token"
SESSION_TOKEN_KEY = "x-mosaic-session-token"
RUN_ID_KEY = "x-mosaic-run-id"


class TokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs alone
    """Refuses every call without the daemon's token, or that of a live run, before its message is read."""

    def __init__(self, token: str, is_run_token: Callable[[str], Awaitable[bool]]) -> None:
        self._expected = f"Bearer {token}".encode()
        self._is_run_token = is_run_token

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        """Return a handler that refuses the call unless it has the token its method needs."""
        handler, metadata = await continuation(details), details.invocation_metadata
        if handler is None:
            return None
        token = metadata_value(metadata, RUN_TOKEN_KEY if details.method in _WITH_RUN_TOKEN else SESSION_TOKEN_KEY)
        if details.method in WORKER_METHODS | NODE_METHODS or (details.method in SUBMITTER_METHODS and token):
            return handler if token and await self._is_run_token(token) else _refusing(_NO_RUN)
        given = metadata_value(metadata, "authorization").encode()
        return handler if hmac.compare_digest(given, self._expected) else _refusing(_NO_CLIENT)


class RunTokenInterceptor(TokenInterceptor):
    """Answers the calls of workers and nodes only, for the address that nodes connect to."""

    def __init__(self, is_run_token: Callable[[str], Awaitable[bool]]) -> None:
        super().__init__("", is_run_token)

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        """Return a handler that refuses every other method, whatever token the call has."""
        if details.method not in WORKER_METHODS | NODE_METHODS:
            return _refusing(_NO_NODE_CALL)
        return await super().intercept_service(continuation, details)


def metadata_value(metadata: Any, key: str) -> str:
    """Return a metadata value as text, or an empty text if it is absent."""
    for name, value in metadata or ():
        if name == key:
            return value if isinstance(value, str) else value.decode("utf-8", "replace")
    return ""


def _refusing(message: str) -> Any:
    """Return a handler that answers UNAUTHENTICATED.

    It is always a streaming one, because gRPC reads the message before it calls any other kind.
    """

    async def refuse(_requests: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, message, (("mosaic-error", "NotAllowed"),))
        yield  # makes this a generator, as a streaming handler must be

    return grpc.stream_stream_rpc_method_handler(refuse)
