"""The trainer daemon: owns runs from submission to their end.."""

from importlib import import_module
from typing import Any

_EXPORTS = {"TrainerDispatcher": "dispatcher", "RunRegistry": "registry", "GPUAllocator": "gpu"}


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)
