"""Requests to endpoints that are down, slow, wrong or in a hurry; and what each of them means for the run."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import socket
from typing import Any

import pytest
from llm_worker.answers import Constraint
from llm_worker.cli import FIELDS
from llm_worker.endpoint import Endpoint, Refused, probe
from llm_worker.errors import EndpointFailed
from llm_worker.testing import FakeEndpoint, Fault, error, solve
from mosaic_wire.errors import GivenUp

HELLO = [{"role": "system", "content": "S"}, {"role": "user", "content": "hi"}]
USUAL = {field.name: field.default for field in FIELDS} | {"model": "m", "retry_wait_s": 0.01, "max_retries": 2}


def client(fake: FakeEndpoint, *, key: str = "", seed: int | None = 0, **parameters: Any) -> Endpoint:
    return Endpoint(fake.address, {**USUAL, **parameters}, key=key, seed=seed)


async def ask(fake: FakeEndpoint, **options: Any) -> str:
    async with client(fake, **options) as endpoint:
        return (await endpoint.ask(HELLO)).text


@pytest.mark.parametrize(
    "fault",
    [
        error(429, "slow down", retry_after="0"),
        error(500, "oh"),
        error(503, "later"),
        Fault(200, b'{"choices": [', cuts=True),
        Fault(200, b"<html>hello"),
        Fault(200, b"[1]"),
    ],
)
async def test_what_passes_is_tried_again(endpoint: FakeEndpoint, fault: Fault) -> None:
    endpoint.faults.extend([fault, fault])
    assert await ask(endpoint) == "left"
    assert len(endpoint.requests) == 3


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (error(429, "slow down"), "answers with status 429: slow down"),
        (error(500, "oh"), "answers with status 500: oh"),
        (Fault(200, b"{", cuts=True), "cannot be reached or broke off"),
        (Fault(200, b"<html>hello"), "answers something that is no JSON object: <html>hello"),
    ],
)
async def test_what_does_not_pass_fails_with_the_reason(endpoint: FakeEndpoint, fault: Fault, told: str) -> None:
    endpoint.faults.extend([fault] * 3)
    with pytest.raises(EndpointFailed, match=f"{told}.*3 attempts"):
        await ask(endpoint)


@pytest.mark.parametrize(
    "fault", [Fault(200, b'{"choices": []}'), Fault(200, b'{"choices": [{"message": 5}]}'), Fault(200, b"{}")]
)
async def test_an_answer_of_another_form_fails(endpoint: FakeEndpoint, fault: Fault) -> None:
    endpoint.faults.append(fault)
    with pytest.raises(EndpointFailed, match="answers without a message"):
        await ask(endpoint)


async def test_an_endpoint_that_is_down_is_named() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
    async with Endpoint(address, USUAL) as endpoint:
        with pytest.raises(EndpointFailed, match=f"{address} cannot be reached.*3 attempts"):
            await endpoint.ask(HELLO)


async def test_a_slow_endpoint_is_left_after_the_timeout(endpoint: FakeEndpoint) -> None:
    endpoint.faults.append(Fault(hangs=True))
    with pytest.raises(EndpointFailed, match=r"gave no answer within 0\.1 s \(one attempt\)"):
        await ask(endpoint, timeout_s=0.1, max_retries=0)
    assert await asyncio.to_thread(endpoint.dropped.acquire, timeout=60)


async def test_an_endless_answer_is_refused(endpoint: FakeEndpoint) -> None:
    endpoint.faults.append(Fault(200, b" " * (5 << 20)))
    with pytest.raises(EndpointFailed, match="more than 4 MiB"):
        await ask(endpoint)


async def test_a_cancelled_request_closes_its_connection(endpoint: FakeEndpoint) -> None:
    endpoint.faults.append(Fault(hangs=True))
    task = asyncio.create_task(ask(endpoint, timeout_s=3600))
    assert await asyncio.to_thread(endpoint.hanging.acquire, timeout=60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(endpoint.dropped.acquire, timeout=60)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (error(401, "no"), "refuses the key (401: no); give its --api-key"),
        (error(403, "no"), "refuses the key (403: no)"),
        (error(404, "no such model"), "has no model 'm', or is no openai endpoint (404: no such model)"),
        (error(400, "too long for the context"), "too long for the context); a smaller --history"),
        (Fault(302, headers={"location": "http://example.invalid"}), "refuses the request (302)"),
    ],
)
async def test_a_refusal_is_not_repeated(endpoint: FakeEndpoint, fault: Fault, told: str) -> None:
    endpoint.faults.append(fault)
    with pytest.raises(Refused) as refusal:
        await ask(endpoint)
    assert told in str(refusal.value)
    assert len(endpoint.requests) == 1


async def test_the_key_is_sent_and_not_repeated_in_errors() -> None:
    key = "sk-canary-4711aabb"
    with FakeEndpoint(solve, key=key) as fake:
        assert await ask(fake, key=key) == "left"
        with pytest.raises(GivenUp) as refusal:
            await ask(fake, key="sk-wrong-4711aabb")
        assert "sk-wrong" not in str(refusal.value)
        assert "wrong key Bearer •••" in str(refusal.value)


async def test_a_bad_address_is_named() -> None:
    async with Endpoint("http://", USUAL) as endpoint:
        with pytest.raises((GivenUp, EndpointFailed), match="http:"):
            await endpoint.ask(HELLO)


@pytest.mark.parametrize(
    ("base", "path"),
    [
        ("/v1/", "/v1/chat/completions"),
        ("/deep/v1?api-version=2026-01", "/deep/v1/chat/completions?api-version=2026-01"),
        ("/a%20b/v1/?x=1", "/a%20b/v1/chat/completions?x=1"),
    ],
)
async def test_a_base_url_may_have_a_path_and_a_query(endpoint: FakeEndpoint, base: str, path: str) -> None:
    async with Endpoint(endpoint.address.removesuffix("/v1") + base, USUAL) as asked:
        await asked.ask(HELLO)
    assert endpoint.paths == [path]


@pytest.mark.parametrize("address", ["http://[", "ftp://x/v1", "http://127.0.0.1:99999/v1", "http://a b/v1"])
async def test_an_address_that_is_none_is_named(address: str) -> None:
    async with Endpoint(address, USUAL) as asked:
        with pytest.raises((GivenUp, EndpointFailed), match=re.escape(address)):
            await asked.ask(HELLO)


async def test_a_password_in_the_address_is_used_and_not_told(endpoint: FakeEndpoint) -> None:
    endpoint.faults.append(error(403, "no"))
    async with Endpoint(endpoint.address.replace("//", "//user:canary-1234@"), USUAL) as asked:
        with pytest.raises(Refused, match="•••@127") as refusal:
            await asked.ask(HELLO)
    assert "canary" not in str(refusal.value)
    assert endpoint.headers[0]["authorization"] == f"Basic {base64.b64encode(b'user:canary-1234').decode()}"


async def test_what_an_endpoint_says_cannot_control_a_terminal(endpoint: FakeEndpoint) -> None:
    endpoint.faults.append(error(404, "\x1b[2J\x1b]0;owned\x07 gone\u202e"))
    with pytest.raises(Refused) as refusal:
        await ask(endpoint)
    assert "gone" in str(refusal.value)
    assert str(refusal.value).isprintable()


async def test_half_a_surrogate_pair_does_not_go_further(endpoint: FakeEndpoint) -> None:
    endpoint.script = lambda _: "left \ud83d"
    assert (await ask(endpoint)).encode() == b"left ?"


async def test_an_endpoint_that_does_not_count_tokens_is_estimated(endpoint: FakeEndpoint) -> None:
    told = {"choices": [{"message": {"content": "x" * 40}}]}
    endpoint.faults.append(Fault(200, json.dumps(told).encode()))
    async with client(endpoint) as asked:
        reply = await asked.ask([{"role": "user", "content": "y" * 400}])
    assert (reply.prompt_tokens, reply.completion_tokens) == (104, 14)


async def test_parameters_that_a_model_does_not_know_are_left_out(endpoint: FakeEndpoint) -> None:
    endpoint.faults.extend(
        [
            error(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."),
            error(400, "Unsupported value: 'temperature' does not support 0"),
        ]
    )
    async with client(endpoint, seed=3) as asked:
        await asked.ask(HELLO)
        await asked.ask(HELLO)
    *_, first, second = endpoint.requests
    assert first == second
    assert (first["max_completion_tokens"], first["seed"]) == (256, 3)
    assert not {"max_tokens", "temperature"} & first.keys()


async def test_a_rate_limit_holds_all_requests_back(endpoint: FakeEndpoint) -> None:
    endpoint.faults.append(error(429, "slow down", retry_after="0.3"))
    began = asyncio.get_running_loop().time()
    async with client(endpoint) as asked:
        await asked.ask(HELLO)
        waited = asyncio.get_running_loop().time() - began
    assert waited >= 0.3


async def test_every_attempt_asks_whether_it_may(endpoint: FakeEndpoint) -> None:
    endpoint.faults.extend([error(500, "oh")] * 2)
    allowed: list[int] = []
    async with Endpoint(endpoint.address, USUAL, before_request=lambda: allowed.append(1)) as asked:
        await asked.ask(HELLO)
    assert len(allowed) == 3


# ---------------------------------------------------------------- constraints


@pytest.mark.parametrize(
    ("honors", "expected"),
    [
        ((Constraint.JSON_SCHEMA, Constraint.GRAMMAR), Constraint.JSON_SCHEMA),
        ((Constraint.GRAMMAR,), Constraint.GRAMMAR),
        ((), Constraint.TEXT),
    ],
)
async def test_the_probe_finds_out_what_the_endpoint_applies(
    endpoint: FakeEndpoint, honors: tuple[Constraint, ...], expected: Constraint
) -> None:
    endpoint.honors = honors
    async with client(endpoint) as asked:
        assert await probe(asked) is expected


@pytest.mark.parametrize("status", [400, 422])
async def test_an_endpoint_that_refuses_schemas_is_asked_in_text(endpoint: FakeEndpoint, status: int) -> None:
    endpoint.faults.extend([error(status, "unknown field")] * 2)
    async with client(endpoint) as asked:
        assert await probe(asked) is Constraint.TEXT


async def test_a_wrong_key_ends_the_probe(endpoint: FakeEndpoint) -> None:
    endpoint.faults.append(error(401, "no"))
    async with client(endpoint) as asked:
        with pytest.raises(Refused, match="refuses the key"):
            await probe(asked)


async def test_the_models_of_an_endpoint_are_listed(endpoint: FakeEndpoint) -> None:
    async with client(endpoint) as asked:
        assert await asked.models() == ["first", "second"]


# ---------------------------------------------------------------- Anthropic's messages


async def test_anthropic_messages_are_spoken(endpoint: FakeEndpoint) -> None:
    async with client(endpoint, api="anthropic", key="canary-key-9") as asked:
        reply = await asked.ask(HELLO, ("left", "up"), Constraint.JSON_SCHEMA)
    assert json.loads(reply.text) == {"action": "left"}
    assert (reply.prompt_tokens, reply.completion_tokens) == (100, 10)
    (request,) = endpoint.requests
    assert (request["system"], request["messages"]) == ("S", [{"role": "user", "content": "hi"}])
    assert "seed" not in request
    assert endpoint.headers[0]["x-api-key"] == "canary-key-9"
    assert endpoint.headers[0]["anthropic-version"]


async def test_thoughts_before_an_answer_are_left_out(endpoint: FakeEndpoint) -> None:
    endpoint.script = lambda _: "<think>left? no, up</think>up"
    assert await ask(endpoint) == "up"
