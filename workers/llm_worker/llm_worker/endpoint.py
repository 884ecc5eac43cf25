"""Requests to a model: chat completions as OpenAI defined them, or Anthropic's messages; retried, bounded, cancellable.

    async with Endpoint(address, parameters, key) as endpoint:
        constraint = await probe(endpoint)
        reply = await endpoint.ask(messages, actions, constraint)

A request is one `await`, so cancelling its task closes the connection at once, however the endpoint behaves.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
from mosaic_wire.errors import GivenUp
from mosaic_wire.redaction import REDACTED, redact_text

from llm_worker.answers import NONSENSE, Constraint, grammar_of, parse, schema_of
from llm_worker.errors import EndpointFailed
from llm_worker.prompt import Message, estimated_tokens

ANTHROPIC = "https://api.anthropic.com"
_ANTHROPIC_VERSION = "2023-06-01"
_MOST_BYTES = 4 << 20
"""Length of an answer; a longer one is refused"""
_MOST_SHOWN = 300
_HIGHEST_PORT = 65535
_LONGEST_WAIT_S = 60.0
_LONGEST_RETRY_AFTER_S = 300.0
_PASSING = (408, 409, 425, 429)
"""Status codes of errors that pass; and all from 500"""
_UNSUPPORTED = (400, 404, 415, 422, 501)
"""Status codes with which an endpoint may refuse a constraint that it does not know"""


class Refused(GivenUp):
    """The endpoint refuses a request; it would refuse it again."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Reply:
    """One answer of a model."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    latency_ms: float


class Endpoint:
    """One model at one address."""

    def __init__(
        self,
        address: str,
        parameters: Mapping[str, Any],
        *,
        key: str = "",
        seed: int | None = None,
        before_request: Callable[[], None] = lambda: None,
    ) -> None:
        self.model, self.api = parameters["model"], parameters["api"]
        self._url = (address or (ANTHROPIC if self.api == "anthropic" else "")).rstrip("/")
        self.address = redact_text(self._url)
        """For people: without a password"""
        self._key, self._before_request = key, before_request
        self._timeout_s, self._max_retries = parameters["timeout_s"], parameters["max_retries"]
        self._retry_wait_s = parameters["retry_wait_s"]
        self._max_tokens = parameters["max_tokens"]
        sampling = {"temperature": parameters["temperature"], "seed": seed if self.api == "openai" else None}
        self._sampling = {name: value for name, value in sampling.items() if value is not None}
        self._limit = "max_tokens"
        self._not_before = 0.0
        """When the endpoint may be asked again; all requests wait together"""

    async def __aenter__(self) -> Self:
        headers = {"content-type": "application/json"}
        if self.api == "anthropic":
            headers |= {"anthropic-version": _ANTHROPIC_VERSION}
        if self._key:
            is_anthropic = self.api == "anthropic"
            headers |= {"x-api-key": self._key} if is_anthropic else {"authorization": f"Bearer {self._key}"}
        # A proxy from the environment does not know the loopback of this machine.
        self._client = httpx.AsyncClient(headers=headers, timeout=None, trust_env=not _is_loopback(self._url))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    # ------------------------------------------------------------------ asking

    async def models(self) -> list[str]:
        """Return the names of the endpoint's models; raise EndpointFailed or GivenUp."""
        document = await self._request("GET", "/v1/models" if self.api == "anthropic" else "/models")
        listed = document.get("data")
        return sorted(str(each["id"]) for each in listed or () if isinstance(each, dict) and "id" in each)

    async def ask(
        self, messages: Sequence[Message], actions: Sequence[str] = (), constraint: Constraint = Constraint.TEXT
    ) -> Reply:
        """Return the model's answer; raise EndpointFailed or GivenUp."""
        began = time.monotonic()
        is_anthropic = self.api == "anthropic"
        make = self._anthropic_body if is_anthropic else self._openai_body
        path = "/v1/messages" if is_anthropic else "/chat/completions"
        document = await self._request("POST", path, lambda: make(messages, actions, constraint))
        latency_ms = (time.monotonic() - began) * 1000
        try:
            text, usage = (_anthropic_answer if is_anthropic else _openai_answer)(document)
            text = text.encode(errors="replace").decode()  # half of a surrogate pair could not be stored
            counts = [int(usage.get(name) or 0) for name in _TOKENS[self.api]]
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            raise EndpointFailed(f"{self.address} answers without a message: {_shown(json.dumps(document))}") from None
        if not any(counts):  # an endpoint that does not count must not lift the budget
            counts = [estimated_tokens(messages), estimated_tokens([{"role": "assistant", "content": text}])]
        return Reply(text.rpartition("</think>")[2], counts[0], counts[1], latency_ms)

    def _openai_body(
        self, messages: Sequence[Message], actions: Sequence[str], constraint: Constraint
    ) -> dict[str, Any]:
        body = {"model": self.model, "messages": list(messages), self._limit: self._max_tokens, **self._sampling}
        if actions and constraint is Constraint.JSON_SCHEMA:
            schema = {"name": "action", "strict": True, "schema": schema_of(actions)}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif actions and constraint is Constraint.GRAMMAR:
            body["grammar"] = grammar_of(actions)
        return body

    def _anthropic_body(
        self, messages: Sequence[Message], actions: Sequence[str], constraint: Constraint
    ) -> dict[str, Any]:
        system = "\n".join(each["content"] for each in messages if each["role"] == "system")
        said = [each for each in messages if each["role"] != "system"]
        body = {"model": self.model, "messages": said, "max_tokens": self._max_tokens, **self._sampling}
        if system:
            body["system"] = system
        if actions and constraint is Constraint.JSON_SCHEMA:
            body["output_config"] = {"format": {"type": "json_schema", "schema": schema_of(actions)}}
        return body

    # ------------------------------------------------------------------ one request, and again

    async def _request(
        self, method: str, path: str, body: Callable[[], dict[str, Any]] | None = None
    ) -> dict[str, Any]:
        try:
            address = self._place(path)
        except httpx.InvalidURL as error:
            raise GivenUp(f"{self.address!r} is no address of an endpoint: {error}") from error
        failure, attempt = "", 0
        while attempt <= self._max_retries:
            await asyncio.sleep(max(0.0, self._not_before - time.monotonic()))
            self._before_request()
            retry_after = None
            try:
                status, headers, data = await self._send(method, address, body() if body is not None else None)
            except TimeoutError:
                failure = f"gave no answer within {self._timeout_s:g} s"
            except httpx.UnsupportedProtocol as error:
                raise GivenUp(f"{self.address!r} is no address of an endpoint: {error}") from error
            except httpx.HTTPError as error:
                failure = f"cannot be reached or broke off: {str(error) or type(error).__name__}"
            else:
                if status < 300:
                    if (document := _object_in(data)) is not None:
                        self._not_before = 0.0
                        return document
                    failure = f"answers something that is no JSON object: {_shown(data.decode(errors='replace'))}"
                else:
                    detail = self._detail_of(data)
                    if status == 400 and body is not None and self._adapts_to(detail):
                        continue  # asked at once without what this model does not know
                    if status not in _PASSING and status < 500:
                        raise Refused(self._refusal(status, detail), status)
                    failure = f"answers with status {status}{detail and f': {detail}'}"
                    retry_after = _seconds(headers.get("retry-after", ""))
            wait_s = min(_LONGEST_WAIT_S, self._retry_wait_s * 2**attempt) if retry_after is None else retry_after
            self._not_before = time.monotonic() + wait_s
            attempt += 1
        count = f"{attempt} attempts" if attempt > 1 else "one attempt"
        raise EndpointFailed(f"the endpoint {self.address} {failure} ({count})")

    async def _send(
        self, method: str, address: httpx.URL, body: dict[str, Any] | None
    ) -> tuple[int, httpx.Headers, bytes]:
        content = None if body is None else json.dumps(body).encode()
        async with asyncio.timeout(self._timeout_s), self._client.stream(method, address, content=content) as response:
            data = bytearray()
            async for chunk in response.aiter_bytes():
                data += chunk
                if len(data) > _MOST_BYTES:
                    raise EndpointFailed(f"the endpoint {self.address} answers with more than {_MOST_BYTES >> 20} MiB")
            return response.status_code, response.headers, bytes(data)

    def _place(self, path: str) -> httpx.URL:
        """Return the URL of a request: the path of the base goes before it, its query (`?api-version=…`) behind."""
        base = httpx.URL(self._url)
        if (base.port or 0) > _HIGHEST_PORT:  # httpx would try it
            raise httpx.InvalidURL(f"there is no port {base.port}")
        before = base.path.rstrip("/")
        return base.copy_with(path=(before.removesuffix("/v1") if self.api == "anthropic" else before) + path)

    def _detail_of(self, data: bytes) -> str:
        """Return the detail of an error response, without the key, which some repeat."""
        document = _object_in(data) or {}
        error = document.get("error", document.get("message", document.get("detail", "")))
        message = error.get("message", "") if isinstance(error, dict) else error
        text = _shown(str(message) if message else data.decode(errors="replace"))
        return text.replace(self._key, REDACTED) if self._key else text

    def _adapts_to(self, detail: str) -> bool:
        """Leave out or rename a parameter that the model does not support; return whether there was one."""
        named = set(re.findall(r"['\"`](\w+)['\"`]", detail))
        if self._limit in named and "max_completion_tokens" in named and self._limit != "max_completion_tokens":
            self._limit = "max_completion_tokens"
            return True
        dropped = named & self._sampling.keys()
        for name in dropped:
            del self._sampling[name]
        return bool(dropped)

    def _refusal(self, status: int, detail: str) -> str:
        said = f" ({status}{detail and f': {detail}'})"
        if status in (401, 403):
            cure = "check its --api-key" if self._key else "give its --api-key"
            return f"the endpoint {self.address} refuses the key{said}; {cure}"
        if status == 404:
            return f"the endpoint {self.address} has no model {self.model!r}, or is no {self.api} endpoint{said}"
        cure = "; a smaller --history makes prompts shorter" if "context" in detail else ""
        return f"the endpoint {self.address} refuses the request{said}{cure}"


async def probe(endpoint: Endpoint) -> Constraint:
    """Return the strictest constraint that the endpoint really applies, by asking for words that no model says."""
    known = [Constraint.JSON_SCHEMA] + ([Constraint.GRAMMAR] if endpoint.api == "openai" else [])
    for constraint in known:
        try:
            reply = await endpoint.ask([{"role": "user", "content": "Say hello."}], NONSENSE, constraint)
        except Refused as refusal:
            if refusal.status not in _UNSUPPORTED:
                raise
            continue
        if parse(reply.text, NONSENSE) is not None:
            return constraint
    await endpoint.ask([{"role": "user", "content": "Say hello."}])  # it answers at all
    return Constraint.TEXT


_TOKENS = {"openai": ("prompt_tokens", "completion_tokens"), "anthropic": ("input_tokens", "output_tokens")}


def _openai_answer(document: dict[str, Any]) -> tuple[str, Mapping[str, Any]]:
    return str(document["choices"][0]["message"]["content"] or ""), document.get("usage") or {}


def _anthropic_answer(document: dict[str, Any]) -> tuple[str, Mapping[str, Any]]:
    return "".join(str(each.get("text") or "") for each in document["content"]), document.get("usage") or {}


def _object_in(data: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _seconds(text: str) -> float | None:
    try:
        return min(_LONGEST_RETRY_AFTER_S, max(0.0, float(text)))
    except ValueError:  # missing, or a date
        return None


def _shown(text: str) -> str:
    flat = "".join(sign if sign.isprintable() else "\ufffd" for sign in " ".join(text[: 4 * _MOST_SHOWN].split()))
    return flat if len(flat) <= _MOST_SHOWN else f"{flat[:_MOST_SHOWN]}…"


def _is_loopback(address: str) -> bool:
    try:
        host = urlsplit(address).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
