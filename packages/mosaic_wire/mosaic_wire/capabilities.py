"""What a worker can do: `WorkerCapabilities`, returned by its `mosaic.workers` entry point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from mosaic_wire.decoding import from_json
from mosaic_wire.errors import SpecError


class Lane(StrEnum):
    """How a run is observed: by its steps, by its files, or both."""

    TELEMETRY = "telemetry"
    ANALYTICS = "analytics"
    HYBRID = "hybrid"


@dataclass(frozen=True)
class WorkerCapabilities:
    """The capabilities of a worker type, with the field names that existing workers use.

    `supported_paradigms`, `env_families`, `max_agents` and `requires_gpu` are informational: the daemon decides nothing
    by them.
    """

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
    """Whether it obeys PAUSE and RESUME; otherwise the daemon pauses it with SIGSTOP"""
    lane: Lane = Lane.ANALYTICS
    submits_runs: bool = False
    """Whether it submits, watches and cancels runs with its session token (a sweep); they end with its own run"""

    @property
    def requires_live_telemetry(self) -> bool:
        """Return whether its runs publish steps."""
        return self.lane is not Lane.ANALYTICS

    @property
    def provides_fast_analytics(self) -> bool:
        """Return whether its runs write curves and files."""
        return self.lane is not Lane.TELEMETRY

    def to_json(self) -> dict[str, Any]:
        """Return the capabilities as in a description."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> WorkerCapabilities:
        """Return a worker's capabilities; ignore keys of a newer worker, but raise for wrong types."""
        try:
            return from_json(cls, document, "capabilities")
        except (TypeError, ValueError) as error:
            raise SpecError(str(error)) from error
