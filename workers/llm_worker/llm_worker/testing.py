"""For tests: an endpoint on this machine that plays well, plays at random, or misbehaves, and a tiny random model."""

from __future__ import annotations

import json
import random
import re
import struct
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from llm_worker.answers import Constraint

Request = Mapping[str, Any]
MOVES = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}


@dataclass(frozen=True)
class Fault:
    """What an endpoint does in place of an answer."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    hangs: bool = False
    """It accepts the request and says nothing"""
    cuts: bool = False
    """It promises more than it sends"""


def error(status: int, message: str, **headers: str) -> Fault:
    """Return an error as OpenAI-compatible servers send it."""
    body = json.dumps({"error": {"message": message}}).encode()
    return Fault(status, body, {name.replace("_", "-"): value for name, value in headers.items()})


Script = Callable[[Request], "str | Fault"]


class FakeEndpoint:
    """A real HTTP server; `script` answers a request with a text or a fault, and `faults` come before that."""

    def __init__(
        self, script: Script, *, honors: Sequence[Constraint] = (Constraint.JSON_SCHEMA,), key: str = ""
    ) -> None:
        self.script, self.honors, self.key = script, honors, key
        self.faults: deque[Fault] = deque()
        self.requests: list[dict[str, Any]] = []
        """Bodies of the requests for an answer, those of a probe included"""
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.is_closing = threading.Event()
        self.hanging = threading.Semaphore(0)
        """Released when a request begins to hang"""
        self.dropped = threading.Semaphore(0)
        """Released when a client left a request that hangs"""
        self.lock = threading.RLock()  # a script may ask for the turns so far
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.endpoint = self  # type: ignore[attr-defined]  # for its handlers
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Return the base URL of its OpenAI-compatible part."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server and every request that hangs."""
        self.is_closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def turns(self) -> list[dict[str, Any]]:
        """Return the requests for an action or a plan, without those of a probe."""
        with self.lock:
            return [request for request in self.requests if not is_probe(request)]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two packets, and the second would wait for an answer

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    @property
    def endpoint(self) -> FakeEndpoint:
        return self.server.endpoint  # type: ignore[attr-defined, no-any-return]  # set by FakeEndpoint

    def handle(self) -> None:
        """Serve; a client that leaves in the middle is what some tests are about."""
        with suppress(ConnectionError):
            super().handle()

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._send(Fault(200, json.dumps({"data": [{"id": "second"}, {"id": "first"}]}).encode()))
        else:
            self._send(error(404, "no such page"))

    def do_POST(self) -> None:
        endpoint = self.endpoint
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with endpoint.lock:
            endpoint.requests.append(request)
            endpoint.paths.append(self.path)
            endpoint.headers.append({name.lower(): value for name, value in self.headers.items()})
            fault = endpoint.faults.popleft() if endpoint.faults else None
        if endpoint.key and self.headers.get("authorization") != f"Bearer {endpoint.key}":
            fault = error(401, f"wrong key {self.headers.get('authorization')}")
        answer = fault or self._answer(request)
        self._send(answer if isinstance(answer, Fault) else _reply(self.path, answer))

    def _answer(self, request: Request) -> str | Fault:
        endpoint = self.endpoint
        offered = offered_by(request)
        if is_probe(request):
            enforced = next((names for kind, names in offered.items() if kind in endpoint.honors), None)
            return _named(enforced[0], request) if enforced else "hello"
        with endpoint.lock:
            answer = endpoint.script(request)
        enforced = next((names for kind, names in offered.items() if kind in endpoint.honors), None)
        if isinstance(answer, str) and enforced and answer in enforced:
            return _named(answer, request)
        return answer

    def _send(self, answer: Fault) -> None:
        if answer.hangs:
            self._hang()
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer.body) + (100 if answer.cuts else 0)))
        self.end_headers()
        self.wfile.write(answer.body)
        self.close_connection = self.close_connection or answer.cuts

    def _hang(self) -> None:
        self.close_connection = True
        self.endpoint.hanging.release()
        self.connection.settimeout(0.05)
        while not self.endpoint.is_closing.is_set():
            try:
                if not self.connection.recv(1):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        self.endpoint.dropped.release()


def _reply(path: str, text: str) -> Fault:
    usage: dict[str, Any]
    if path.endswith("/messages"):
        usage = {"input_tokens": 100, "output_tokens": 10}
        document: dict[str, Any] = {"content": [{"type": "text", "text": text}], "usage": usage}
    else:
        usage = {"prompt_tokens": 100, "completion_tokens": 10}
        document = {"choices": [{"message": {"role": "assistant", "content": text}}], "usage": usage}
    return Fault(200, json.dumps(document).encode())


def is_probe(request: Request) -> bool:
    """Return whether a request asks how answers can be constrained."""
    return str(request["messages"][-1]["content"]) == "Say hello."


def offered_by(request: Request) -> dict[Constraint, list[str]]:
    """Return the legal actions of a request by the constraint that names them."""
    found = {}
    if "response_format" in request:
        schema = request["response_format"]["json_schema"]["schema"]
        found[Constraint.JSON_SCHEMA] = schema["properties"]["action"]["enum"]
    if "output_config" in request:
        found[Constraint.JSON_SCHEMA] = request["output_config"]["format"]["schema"]["properties"]["action"]["enum"]
    if "grammar" in request:
        found[Constraint.GRAMMAR] = re.findall(r'"([^"]+)"', request["grammar"])
    return found


def _named(action: str, request: Request) -> str:
    return action if "grammar" in request else json.dumps({"action": action})


def last_text(request: Request) -> str:
    """Return the last message to the model."""
    return str(request["messages"][-1]["content"])


# ---------------------------------------------------------------- players


def solve(request: Request) -> str:
    """Play FrozenLake or an empty MiniGrid room perfectly, from the text alone."""
    text = last_text(request)
    seen = text.rpartition("You see:")[2]
    if goal := re.search(r"green goal (?:(\d+) ahead)?(?: and )?(?:(\d+) to the (left|right))?", seen):
        return "forward" if goal[1] else str(goal[3])
    rows = [line.split() for line in text.splitlines() if re.fullmatch(r"[SFHGA]( [SFHGA])+", line)]
    return _shortest_path(rows)[0] if rows else "left"


def _shortest_path(rows: Sequence[Sequence[str]]) -> list[str]:
    (start,) = [(r, c) for r, row in enumerate(rows) for c, sign in enumerate(row) if sign == "A"]
    paths: dict[tuple[int, int], list[str]] = {start: []}
    waiting = deque([start])
    while waiting:
        row, column = waiting.popleft()
        if rows[row][column] == "G":
            return paths[row, column]
        for name, (down, right) in MOVES.items():
            place = row + down, column + right
            inside = 0 <= place[0] < len(rows) and 0 <= place[1] < len(rows[0])
            if inside and place not in paths and rows[place[0]][place[1]] != "H":
                paths[place] = [*paths[row, column], name]
                waiting.append(place)
    return ["left"]


def plays_at_random(seed: int = 0) -> Script:
    """Return a script that names a random legal action, the same one for the same request."""

    def play(request: Request) -> str:
        offered = next(iter(offered_by(request).values()), [])
        names: list[str] = offered or re.findall(r"Actions: ([\w, -]+)\.", str(request["messages"]))[-1].split(", ")
        return random.Random(f"{seed}{json.dumps(request['messages'])}").choice(names)

    return play


# ---------------------------------------------------------------- a tiny random model

_U32, _F32, _STRING, _ARRAY, _I32 = 4, 6, 8, 9, 5
_ALIGNMENT = 32


def write_tiny_model(path: Path, *, seed: int = 0) -> Path:
    """Write a llama of random weights with a vocabulary of bytes as GGUF: half a megabyte that any llama.cpp loads."""
    import numpy as np

    width, inner, layers, heads = 64, 128, 2, 2
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [2, 3, 3, *[6] * 256]  # unknown, control, control, bytes
    known: dict[str, tuple[int, Any]] = {
        "general.architecture": (_STRING, "llama"),
        "general.name": (_STRING, "tiny"),
        "llama.context_length": (_U32, 8192),
        "llama.embedding_length": (_U32, width),
        "llama.block_count": (_U32, layers),
        "llama.feed_forward_length": (_U32, inner),
        "llama.attention.head_count": (_U32, heads),
        "llama.attention.head_count_kv": (_U32, heads),
        "llama.attention.layer_norm_rms_epsilon": (_F32, 1e-5),
        "llama.rope.dimension_count": (_U32, width // heads),
        "llama.vocab_size": (_U32, len(tokens)),
        "tokenizer.ggml.model": (_STRING, "llama"),
        "tokenizer.ggml.tokens": (_ARRAY, (_STRING, tokens)),
        "tokenizer.ggml.scores": (_ARRAY, (_F32, [0.0] * len(tokens))),
        "tokenizer.ggml.token_type": (_ARRAY, (_I32, kinds)),
        "tokenizer.ggml.bos_token_id": (_U32, 1),
        "tokenizer.ggml.eos_token_id": (_U32, 2),
        "tokenizer.ggml.unknown_token_id": (_U32, 0),
    }
    shapes = {"token_embd.weight": (len(tokens), width), "output_norm.weight": (width,)}
    shapes["output.weight"] = (len(tokens), width)
    for layer in range(layers):
        block = f"blk.{layer}."
        shapes |= {f"{block}{name}_norm.weight": (width,) for name in ("attn", "ffn")}
        shapes |= {f"{block}attn_{name}.weight": (width, width) for name in ("q", "k", "v", "output")}
        shapes |= {f"{block}ffn_{name}.weight": (inner, width) for name in ("gate", "up")}
        shapes[f"{block}ffn_down.weight"] = (width, inner)
    rng = np.random.default_rng(seed)
    head, data = [struct.pack("<4sIQQ", b"GGUF", 3, len(shapes), len(known))], bytearray()
    for name, (kind, value) in known.items():
        head.append(_text(name) + struct.pack("<I", kind) + _packed(kind, value))
    for name, shape in shapes.items():
        numbers = np.ones(shape) if name.endswith("norm.weight") else rng.normal(0, 0.4, shape)
        sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head.append(_text(name) + sizes + struct.pack("<IQ", 0, len(data)))
        data += numbers.astype("<f4").tobytes()
        data += bytes(-len(data) % _ALIGNMENT)
    start = b"".join(head)
    path.write_bytes(start + bytes(-len(start) % _ALIGNMENT) + data)
    return path


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _packed(kind: int, value: Any) -> bytes:
    if kind == _STRING:
        return _text(value)
    if kind == _ARRAY:
        inner, items = value
        return struct.pack("<IQ", inner, len(items)) + b"".join(_packed(inner, each) for each in items)
    return struct.pack({_U32: "<I", _F32: "<f", _I32: "<i"}[kind], value)
