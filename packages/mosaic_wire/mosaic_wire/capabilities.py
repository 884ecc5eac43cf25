"""What a worker can do: `WorkerCapabilities`, returned by its `mosaic.workers` entry point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from mosaic_wire.errors import SpecError


class Lane(StrEnum):
    """How a run is watched: step by step, by what it leaves, or both."""

    TELEMETRY = "telemetry"
    ANALYTICS = "analytics"
    HYBRID = "hybrid"


@dataclass(frozen=True)
class WorkerCapabilities:
    """Descriptor of a worker type. Fields have the names that existing workers already use."""

    worker_type: str
    supported_paradigms: tuple[str, ...] = ("sequential",)
    env_families: tuple[str, ...] = ()
    action_spaces: tuple[str, ...] = ()
    observation_spaces: tuple[str, ...] = ()
    max_agents: int = 1
    supports_checkpointing: bool = False
    requires_gpu: bool = False
    estimated_memory_mb: int = 256
    supports_pause: bool = False
    """Obeys PAUSE and RESUME itself; otherwise the daemon pauses with SIGSTOP"""
    lane: Lane = Lane.ANALYTICS
    submits_runs: bool = False
    """Submits, watches and cancels runs of its own with its session token (a sweep); what it asked for ends with it"""

    @property
    def requires_live_telemetry(self) -> bool:
        return self.lane is not Lane.ANALYTICS

    @property
    def provides_fast_analytics(self) -> bool:
        return self.lane is not Lane.TELEMETRY

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> WorkerCapabilities:
        """Read what a worker said; keys of a newer worker are ignored, wrong types are not."""
        values: dict[str, Any] = {}
        for field in fields(cls):
            if field.name not in document:
                continue
            value = document[field.name]
            if field.type == "tuple[str, ...]":
                if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
                    raise SpecError(f"capabilities.{field.name} must be a list of strings, not {value!r}")
                value = tuple(value)
            elif field.type == "Lane":
                if value not in tuple(Lane):
                    raise SpecError(f"capabilities.lane must be one of {', '.join(Lane)}, not {value!r}")
                value = Lane(value)
            elif type(value).__name__ != field.type:
                raise SpecError(f"capabilities.{field.name} must be of type {field.type}, not {value!r}")
            values[field.name] = value
        if "worker_type" not in values:
            raise SpecError("capabilities.worker_type is missing")
        return cls(**values)
