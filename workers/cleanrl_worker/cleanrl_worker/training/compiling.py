"""`--compile`: torch.compile where this machine can, the function as it is where it cannot. `--cudagraphs`: a function
recorded once and replayed by the GPU, without Python in between.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

logger = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])
Result = TypeVar("Result")
Update = Callable[[], Result]
"""Reads and writes tensors that stay where they are; what it returns is overwritten by the next call"""

_WARM_UP_CALLS = 3
"""Before a function is recorded: libraries set themselves up in the first ones"""


def compiled(function: Function, *, wanted: bool) -> Function:
    """Compile a function at its first call; when that fails, say so once and go on without.

    torch finds out whether there is a compiler for C++ (or Triton, on a GPU) only when it needs it.
    """
    if not wanted:
        return function
    chosen: Callable[..., Any] | None = None

    def call(*arguments: Any) -> Any:
        nonlocal chosen
        if chosen is not None:
            return chosen(*arguments)
        try:
            compiling = _compile(function)
            found = compiling(*arguments)
        except Exception as error:  # noqa: BLE001  # whatever the compiler met: the function runs without it
            chosen = function
            logger.warning("--compile is not possible here, training goes on without it: %s", _reason(error))
            return function(*arguments)
        chosen = compiling
        return found

    return call  # type: ignore[return-value]


def _reason(error: Exception) -> str:
    """The line that says something: torch's first one only names its backend."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.endswith("raised:")]
    return lines[0] if lines else type(error).__name__


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    from torch._inductor import config  # takes seconds to import, for those who want it

    config.compile_threads = 1  # otherwise a pool of processes compiles, and waits for more until training is over
    return torch.compile(function)


class CudaGraph(Generic[Result]):
    """A function on fixed tensors as a CUDA graph. Every call does the function's work once, the first ones without it.

    Shapes must not change, and nothing in it may wait for the GPU (`.item()`, `nonzero`, copies to the host).
    """

    def __init__(self, function: Update[Result]) -> None:
        self._function = function
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Result

    def __call__(self) -> Result:
        if self._calls < _WARM_UP_CALLS:
            self._calls += 1
            return self._beside_the_main_stream()
        if self._graph is None:
            graph = torch.cuda.CUDAGraph()
            # Records; nothing is computed yet. Other threads may use the GPU meanwhile.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._result = self._function()
            self._graph = graph
        self._graph.replay()
        return self._result

    def _beside_the_main_stream(self) -> Result:
        """As recording will run it: what is set up per stream must not be set up while it records."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = self._function()
        torch.cuda.current_stream().wait_stream(stream)
        return result


def accelerated(function: Update[Result], device: torch.device, *, compile: bool, cudagraphs: bool) -> Update[Result]:
    """An update as the flags want it; on a CPU there are no CUDA graphs and it runs without."""
    function = compiled(function, wanted=compile)
    return CudaGraph(function) if cudagraphs and device.type == "cuda" else function
