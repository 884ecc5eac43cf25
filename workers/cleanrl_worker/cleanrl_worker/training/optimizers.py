"""Optimizers over one flat block of parameters, schedules, and updates that are compiled or recorded as CUDA graphs.

With one block the optimizer step and the gradient norm are single calls, and on a CPU numpy shares the memory of the
parameters: acting during a rollout needs no tensor and no copy.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import nn


class FlatParameters:
    """Moves the parameters of a module, and their gradients, into one tensor each."""

    def __init__(self, module: nn.Module) -> None:
        parameters = list(module.parameters())
        device = parameters[0].device
        size = sum(parameter.numel() for parameter in parameters)
        self.block = nn.Parameter(torch.empty(size, device=device))
        self.block.grad = torch.zeros(size, device=device)
        self._on_cpu = device.type == "cpu"
        self._slices: dict[str, tuple[int, torch.Size]] = {}
        offset = 0
        for name, parameter in module.named_parameters():
            end = offset + parameter.numel()
            view = self.block.data[offset:end].view_as(parameter)
            view.copy_(parameter.data)
            parameter.data = view
            parameter.grad = self.block.grad[offset:end].view_as(parameter)
            self._slices[name] = (offset, parameter.shape)
            offset = end
        on_host = self.block.data.cpu()
        self._host_block = on_host.pin_memory() if device.type == "cuda" else on_host  # pinned for asynchronous copies
        self._host = self._host_block.numpy()
        self._host_gradient = self.block.grad.cpu().numpy()

    def backward(self, loss: torch.Tensor) -> None:
        """Set the gradients of a loss."""
        self.zero_gradients()
        loss.backward()  # type: ignore[no-untyped-call]

    def zero_gradients(self) -> None:
        """Set all gradients to zero."""
        assert self.block.grad is not None
        self.block.grad.zero_()

    def clip_gradients(self, max_norm: float) -> None:
        """Scale the gradients down to this norm; the arithmetic of `torch.nn.utils.clip_grad_norm_`."""
        assert self.block.grad is not None
        if self._on_cpu:  # in numpy: for gradients computed there, calls of torch would cost more
            gradient = self._host_gradient
            scale = max_norm / (math.sqrt(np.dot(gradient, gradient)) + 1e-6)
            if not scale >= 1:
                with np.errstate(invalid="ignore"):  # infinite gradients become NaN, as in torch
                    gradient *= np.float32(scale)
            return
        norm = torch.linalg.vector_norm(self.block.grad)
        self.block.grad.mul_(torch.clamp(max_norm / (norm + 1e-6), max=1.0))

    def refresh_host(self) -> None:
        """Update numpy's view after the parameters changed; nothing to do on a CPU, where the memory is shared."""
        if not self._on_cpu:
            self._host_block.copy_(self.block.data)

    def array(self, name: str) -> np.ndarray:
        """Return one parameter as a numpy array."""
        return self._view(self._host, name)

    def gradient(self, name: str) -> np.ndarray:
        """Return a parameter's gradient as a numpy array; it is shared with torch on a CPU only."""
        return self._view(self._host_gradient, name)

    def _view(self, block: np.ndarray, name: str) -> np.ndarray:
        offset, shape = self._slices[name]
        return block[offset : offset + shape.numel()].reshape(shape)


_BETAS = (0.9, 0.999)
"""Of the running means of gradients and of their squares"""


class FlatAdam:
    """`torch.optim.Adam(fused=True)` to the bit, in a sixth of its time per step for small networks."""

    def __init__(self, block: nn.Parameter, *, eps: float = 1e-8) -> None:
        assert block.grad is not None, "FlatParameters has made the gradient"
        self._eps = eps
        self._block, self._gradient = block.data, block.grad
        self._mean, self._square = torch.zeros_like(block.data), torch.zeros_like(block.data)
        self._count = torch.zeros((), device=block.device)
        on_cpu = block.device.type == "cpu"
        # On a CPU numpy increments it in the same memory, ten times faster than torch.
        self._counter: Any = self._count.numpy() if on_cpu else self._count
        tensors = (self._block, self._gradient, self._mean, self._square)
        self._blocks, self._gradients, self._means, self._squares = (
            [tensor] if on_cpu else _pieces(tensor) for tensor in tensors
        )
        self._counts = [self._count] * len(self._blocks)

    def step(self, learning_rate: float) -> None:
        """Take one step with the current gradient."""
        if torch.compiler.is_compiling():  # torch.compile does not support the fused kernel
            self._plain_step(learning_rate)
            return
        self._counter += 1
        # The kernel of torch.optim.Adam; its public interfaces take five times as long.
        torch._fused_adam_(
            self._blocks,
            self._gradients,
            self._means,
            self._squares,
            [],
            self._counts,
            lr=learning_rate,
            beta1=_BETAS[0],
            beta2=_BETAS[1],
            weight_decay=0.0,
            eps=self._eps,
            amsgrad=False,
            maximize=False,
        )

    def _plain_step(self, learning_rate: float) -> None:
        block, gradient, mean, square, count = self._block, self._gradient, self._mean, self._square, self._count
        first, second = _BETAS
        count.add_(1)
        mean.lerp_(gradient, 1 - first)
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        size = learning_rate / (1 - first**count)
        block.sub_(size * mean / (square.sqrt() / (1 - second**count).sqrt() + self._eps))

    @property
    def block(self) -> torch.Tensor:
        """Return the parameters; code compiled together with `step` must use this tensor, or views of it."""
        return self._block

    @property
    def gradient(self) -> torch.Tensor:
        """Return the gradient of the block."""
        return self._gradient

    def tensors(self) -> list[torch.Tensor]:
        """Return the block and the optimizer's state."""
        return [self._block, self._mean, self._square, self._count]

    def arrays(self) -> dict[str, np.ndarray]:
        """Return copies of what a checkpoint needs."""
        parts = {"step": self._count, "exp_avg": self._mean, "exp_avg_sq": self._square}
        return {name: part.cpu().numpy().copy() for name, part in parts.items()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Load what `arrays` returned."""
        for name, part in (("step", self._count), ("exp_avg", self._mean), ("exp_avg_sq", self._square)):
            part.copy_(torch.from_numpy(arrays[name].copy()).reshape(part.shape))  # a count comes back as [1]


def _pieces(block: torch.Tensor) -> list[torch.Tensor]:
    """Return at most 32 views that begin at multiples of 16 bytes.

    The kernel assigns 65,536 elements of a tensor to each multiprocessor of a GPU, so a single tensor leaves most of
    them idle: 36 µs for two critics on an H200, 8 µs in pieces.
    """
    return list(torch.split(block, 4 * -(-len(block) // 128)))


_LARGEST = float(np.finfo(np.float32).max)
"""Larger step sizes overflow; the weights become infinite either way, and the learner reports it"""


class RAdam:
    """`torch.optim.RAdam` without weight decay; a test compares the two.

    `in_numpy` is for gradients computed in numpy on a CPU: one torch operation in between costs as much as a tenth of a
    small network's update, because the libraries compete for the processor's caches.
    """

    def __init__(self, parameters: FlatParameters, *, eps: float = 1e-8, in_numpy: bool = False) -> None:
        self._block, self._eps = parameters.block, eps
        self._count = 0
        self._mean = torch.zeros_like(self._block.data)
        self._square = torch.zeros_like(self._block.data)
        self._spare = torch.empty_like(self._block.data)
        assert self._block.grad is not None
        tensors = (self._block.data, self._block.grad, self._mean, self._square, self._spare)
        self._arrays = tuple(tensor.numpy() for tensor in tensors) if in_numpy else None

    def step(self, learning_rate: float) -> None:
        """Take one step with the current gradient."""
        beta1, beta2 = _BETAS
        self._count += 1
        rate = min(learning_rate / (1 - beta1**self._count), _LARGEST)
        unbias = 1 - beta2**self._count
        longest = 2 / (1 - beta2) - 1
        length = longest - 2 * self._count * beta2**self._count / unbias
        rectified = length > 5  # before that the variance of the adaptive learning rate is unbounded
        if rectified:
            trust = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
            rate *= math.sqrt(trust * unbias)
        if self._arrays is not None:
            self._move_in_numpy(rate, rectified)
        else:
            self._move_in_torch(rate, rectified)

    def _move_in_numpy(self, rate: float, rectified: bool) -> None:
        assert self._arrays is not None
        block, gradient, mean, square, spare = self._arrays
        beta1, beta2 = _BETAS
        mean *= np.float32(beta1)
        mean += np.multiply(gradient, np.float32(1 - beta1), out=spare)
        square *= np.float32(beta2)
        np.multiply(gradient, gradient, out=spare)
        spare *= np.float32(1 - beta2)
        square += spare
        if rectified:
            np.sqrt(square, out=spare)
            spare += np.float32(self._eps)
            np.divide(mean, spare, out=spare)
            spare *= np.float32(rate)
        else:
            np.multiply(mean, np.float32(rate), out=spare)
        block -= spare

    @torch.no_grad()
    def _move_in_torch(self, rate: float, rectified: bool) -> None:
        assert self._block.grad is not None
        gradient, block = self._block.grad, self._block.data
        beta1, beta2 = _BETAS
        self._mean.lerp_(gradient, 1 - beta1)
        self._square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        if rectified:
            torch.sqrt(self._square, out=self._spare).add_(self._eps)
            block.addcdiv_(self._mean, self._spare, value=-rate)
        else:
            block.add_(self._mean, alpha=-rate)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return copies of what a checkpoint needs."""
        return {
            "step": np.array(self._count),
            "exp_avg": self._mean.cpu().numpy().copy(),
            "exp_avg_sq": self._square.cpu().numpy().copy(),
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Load what `arrays` returned."""
        self._count = int(arrays["step"].item())
        self._mean.copy_(torch.from_numpy(arrays["exp_avg"]))
        self._square.copy_(torch.from_numpy(arrays["exp_avg_sq"]))


@dataclass(frozen=True)
class LinearSchedule:
    """Linear from `start` to `end` over `duration` steps, then constant."""

    start: float
    end: float
    duration: float
    """0: `end` from the first step on"""

    def __call__(self, step: float) -> float:
        if step >= self.duration:
            return self.end
        return self.start + (self.end - self.start) * (step / self.duration)

    def over(self, steps: np.ndarray) -> np.ndarray:
        """Return the values at many steps, the same numbers to the bit."""
        if self.duration <= 0:
            return np.full(len(steps), float(self.end))
        values = self.start + (self.end - self.start) * (steps / self.duration)
        return np.where(steps >= self.duration, float(self.end), values)


def times_passed(every: int, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return how many multiples of `every` lie between two step counts."""
    return after // every - before // every


logger = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])
Result = TypeVar("Result")
Update = Callable[[], Result]
"""Reads and writes tensors at fixed addresses; its result is overwritten by the next call"""

_WARM_UP_CALLS = 3
"""Calls before a function is recorded, in which libraries initialize"""


def compiled(function: Function, *, enabled: bool) -> Function:
    """Compile a function at its first call; if that fails, log a warning and use the function as it is.

    torch checks for a C++ compiler (or Triton, on a GPU) only when it compiles.
    """
    if not enabled:
        return function
    chosen: Callable[..., Any] | None = None

    def call(*arguments: Any) -> Any:
        nonlocal chosen
        if chosen is not None:
            return chosen(*arguments)
        try:
            compiling = _compile(function)
            found = compiling(*arguments)
        except Exception as error:  # noqa: BLE001  # the function also runs uncompiled
            chosen = function
            logger.warning("--compile is not possible here, training continues without it: %s", _reason(error))
            return function(*arguments)
        chosen = compiling
        return found

    return call  # type: ignore[return-value]


def _reason(error: Exception) -> str:
    """Return the informative line of the message: torch's first one only names the backend."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.endswith("raised:")]
    return lines[0] if lines else type(error).__name__


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    from torch._inductor import config  # takes seconds to import

    config.compile_threads = 1  # otherwise a pool of processes stays until training ends
    return torch.compile(function)


class CudaGraph(Generic[Result]):
    """A function on fixed tensors as a CUDA graph. The first calls run the function directly.

    Shapes must not change, and the function must not wait for the GPU (`.item()`, `nonzero`, copies to the host).
    """

    def __init__(self, function: Update[Result]) -> None:
        self._function = function
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Result

    def __call__(self) -> Result:
        if self._calls < _WARM_UP_CALLS:
            self._calls += 1
            return self._run_in_side_stream()
        if self._graph is None:
            graph = torch.cuda.CUDAGraph()
            # Capturing computes nothing; other threads may use the GPU meanwhile.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._result = self._function()
            self._graph = graph
        self._graph.replay()
        return self._result

    def _run_in_side_stream(self) -> Result:
        """Run the function in another stream, as the capture does: per-stream setup must happen before it."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = self._function()
        torch.cuda.current_stream().wait_stream(stream)
        return result


def accelerated(function: Update[Result], device: torch.device, *, compile: bool, cudagraphs: bool) -> Update[Result]:
    """Return the update, compiled and as a CUDA graph if requested; on a CPU without CUDA graphs."""
    function = compiled(function, enabled=compile)
    return CudaGraph(function) if cudagraphs and device.type == "cuda" else function


class Trained:
    """A network with its optimizer and, optionally, its target network."""

    def __init__(self, network: nn.Module, learning_rate: float, *, with_target: bool = True) -> None:
        self.network, self.learning_rate = network, learning_rate
        target = deepcopy(network)
        self.target: Any = target if with_target else None
        self.parameters = FlatParameters(network)
        self.adam = FlatAdam(self.parameters.block)
        self.target_block = FlatParameters(target).block.data if with_target else torch.empty(0)

    def minimize(self, loss: torch.Tensor) -> None:
        """Set this network's gradients of a loss by autograd, and take a step."""
        parameters = list(self.network.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            assert parameter.grad is not None, "FlatParameters has made it"
            parameter.grad.copy_(gradient)
        self.step()

    def step(self) -> None:
        """Take one step with the current gradients."""
        self.adam.step(self.learning_rate)

    def move_target(self, share: float) -> None:
        """Move the target network towards the network (Polyak averaging); 1 makes it a copy."""
        if self.target is not None:
            self.target_block.lerp_(self.adam.block, share)

    def blocks(self) -> list[torch.Tensor]:
        """Return the weights, and those of the target network."""
        return [self.adam.block] if self.target is None else [self.adam.block, self.target_block]

    def tensors(self) -> list[torch.Tensor]:
        """Return everything that training changes."""
        return [*self.adam.tensors(), *self.blocks()[1:]]

    def load(self, tensors: Sequence[torch.Tensor]) -> None:
        """Set everything that training changes."""
        for tensor, value in zip(self.tensors(), tensors, strict=True):
            tensor.copy_(value)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return copies of what a checkpoint needs besides the network itself."""
        targets = {} if self.target is None else {"targets": self.target_block.cpu().numpy().copy()}
        return {**self.adam.arrays(), **targets}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Load what `arrays` returned."""
        self.adam.restore(arrays)
        if self.target is not None:
            self.target_block.copy_(torch.from_numpy(arrays["targets"].copy()))


class AutogradGradient:
    """Sets the gradients of a loss by autograd; compiled, or recorded as a CUDA graph, if requested."""

    def __init__(
        self,
        parameters: FlatParameters,
        losses_of: Callable[..., Any],
        device: torch.device,
        *,
        compile: bool,
        cudagraphs: bool,
    ) -> None:
        self._parameters, self._losses_of = parameters, compiled(losses_of, enabled=compile)
        self._recorded = CudaGraph(self._from_fixed) if cudagraphs and device.type == "cuda" else None
        self._fixed: list[torch.Tensor] = []
        """The fixed tensors of a recorded update's minibatch"""

    def __call__(self, columns: Sequence[torch.Tensor], shift: torch.Tensor | None = None) -> Any:
        given = columns if shift is None else (*columns, shift)
        if self._recorded is None:
            return self._backward(given)
        if not self._fixed:
            self._fixed = [tensor.clone() for tensor in given]
        for kept, new in zip(self._fixed, given, strict=True):
            kept.copy_(new)
        return self._recorded()

    def _from_fixed(self) -> Any:
        return self._backward(self._fixed)

    def _backward(self, given: Sequence[torch.Tensor]) -> Any:
        losses = self._losses_of(*given)
        self._parameters.backward(losses.total)
        return type(losses)(*(loss.detach() for loss in losses))


def shuffled(
    columns: Sequence[np.ndarray], orders: Iterator[np.ndarray], device: torch.device, *, stacked_frames: bool = False
) -> Iterator[list[torch.Tensor]]:
    """Yield all rows in each order, on the device.

    With `stacked_frames` the first column holds images (channels, height, width); they are converted to the
    channels-last memory format once, not in every epoch.
    """
    tensors = [torch.from_numpy(column).to(device) for column in columns]
    if stacked_frames:
        tensors[0] = tensors[0].permute(0, 2, 3, 1)
    rows = [tensor.reshape(len(tensor), -1) for tensor in tensors]  # copying flat rows is several times faster
    for order in orders:
        indices = torch.from_numpy(order).to(device)
        epoch = [row.index_select(0, indices).view(tensor.shape) for row, tensor in zip(rows, tensors, strict=True)]
        if stacked_frames:
            epoch[0] = epoch[0].permute(0, 3, 1, 2)
        yield epoch
