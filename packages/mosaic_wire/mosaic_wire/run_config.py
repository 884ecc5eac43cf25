"""`TrainRunConfig`: the run config as the daemon validates and stores it. `run_request` builds and reads documents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mosaic_wire.run_request import WorkerPart

MAX_TAGS = 100

Count = Annotated[int, Field(ge=0, le=4096, strict=True)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CpuRequest(_Strict):
    """`cpus: 2` is an older way to write `cpus: {requested: 2}`."""

    requested: Annotated[float, Field(ge=0, le=4096)] = 1

    @model_validator(mode="before")
    @classmethod
    def _accept_a_plain_number(cls, value: Any) -> Any:
        return {"requested": value} if isinstance(value, int | float) and not isinstance(value, bool) else value


class GpuRequest(_Strict):
    """`gpus: 1` is an older way to write `gpus: {requested: 1, mandatory: 1}`."""

    requested: Count = 0
    """GPUs it would like"""
    mandatory: Count = 0
    """GPUs it cannot do without; with fewer than `requested` but at least this many free it starts"""

    @model_validator(mode="before")
    @classmethod
    def _accept_a_plain_number(cls, value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            return {"requested": value, "mandatory": value}
        return value

    @model_validator(mode="after")
    def _mandatory_is_part_of_requested(self) -> GpuRequest:
        if self.mandatory > self.requested:
            raise ValueError(f"mandatory ({self.mandatory}) must not exceed requested ({self.requested})")
        return self


class Resources(_Strict):
    """What the run reserves of its machine, and its limits."""

    cpus: CpuRequest = CpuRequest()
    gpus: GpuRequest = GpuRequest()
    memory_mb: Annotated[int, Field(ge=16, le=2**30, strict=True)] | None = None
    max_wallclock_minutes: Annotated[float, Field(gt=0, le=527_040)] | None = None


class Scheduling(_Strict):
    """When the run starts, and what happens when it faults or falls silent."""

    priority: Annotated[int, Field(ge=-1000, le=1000, strict=True)] = 0
    """Higher goes first; equal ones in order of submission"""
    retries: Annotated[int, Field(ge=0, le=100, strict=True)] = 0
    """How often a fault is retried from the last good checkpoint"""
    silence_s: Annotated[float, Field(ge=1, le=86_400)] | None = None
    """Silence limit of this run; None: the daemon's"""
    executor: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """Where it runs: an executor of the daemon's settings; None: the daemon's machine"""


class Toggle(_Strict):
    """A switch of `artifacts`."""

    enabled: bool


class Artifacts(_Strict):
    """Which artifacts the run writes."""

    tensorboard: Toggle = Toggle(enabled=True)
    wandb: Toggle = Toggle(enabled=False)


class WorkerRequest(_Strict):
    """Which worker runs it, and what the worker is asked to do."""

    type: Annotated[str, Field(min_length=1, max_length=64)]
    module: Annotated[str, Field(max_length=256)] | None = None
    worker_id: Annotated[str, Field(max_length=128)] | None = None
    config: dict[str, Any]
    """The worker's own part; checked against the worker's description, not here"""


class Metadata(_Strict):
    """Holds the worker's request."""

    worker: WorkerRequest


class TrainRunConfig(_Strict):
    """The canonical run config."""

    run_name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    resources: Resources = Resources()
    scheduling: Scheduling = Scheduling()
    tags: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=64)], ...], Field(max_length=MAX_TAGS)] = ()
    artifacts: Artifacts | None = None
    metadata: Metadata

    @property
    def part(self) -> WorkerPart:
        """The worker's own part."""
        return cast(WorkerPart, self.metadata.worker.config)

    def to_json(self) -> dict[str, Any]:
        """Return the document that is stored: every default written out, what is not given left out."""
        return self.model_dump(mode="json", exclude_none=True)

    @classmethod
    def from_json(cls, document: Mapping[str, Any], *, strict: bool = False) -> TrainRunConfig:
        """Validate a document; raise pydantic's ValidationError. `strict` refuses numbers in quotes."""
        # As text: only from JSON does `strict` accept a list for a tuple.
        return cls.model_validate_json(json.dumps(document), strict=strict)
