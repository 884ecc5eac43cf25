"""The workers that users can choose: built-in entries first, then other installed ones. No Qt.

    entries = entries_from(client.workers())          the answer of `ListWorkers`
    entry = find(entries, run.worker_type)

An entry names the lane, the form and the presenter of its runs; widgets never compare names of workers. A built-in
entry that is not installed stays in the list with its install command.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mosaic_wire.capabilities import Lane
from mosaic_wire.errors import SpecError
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.sweep_settings import WORKER_TYPE as SWEEP
from mosaic_wire.worker_spec import WorkerSpec

SCHEMA_FORM = "schema"
"""The form of workers without one of their own: built from `--describe`"""
SWEEP_FORM = "sweep"
"""The form of the sweep worker: it extends the form of the worker that runs the trials"""


@dataclass(frozen=True)
class WorkerEntry:
    """One worker in the actor selector."""

    name: str
    """`metadata.worker.type` of its runs"""
    display_name: str
    lane: Lane
    form: str = SCHEMA_FORM
    """The forms that start its runs, see `ui/forms/dialog_factory.py`; empty: none"""
    presenter: str = ""
    """The presenter of its runs, see `ui/presenters/workers/registry.py`; empty: by its lane"""
    is_builtin: bool = False
    install_command: str = ""
    spec: WorkerSpec | None = None
    problem: str = ""
    """Why it cannot be used although it is installed"""
    version: str = ""
    other_names: tuple[str, ...] = field(default=())
    """Former names in documents and configs"""

    @property
    def requires_live_telemetry(self) -> bool:
        return self.lane is not Lane.ANALYTICS

    @property
    def provides_fast_analytics(self) -> bool:
        return self.lane is not Lane.TELEMETRY

    @property
    def is_installed(self) -> bool:
        return self.spec is not None or bool(self.problem)

    @property
    def is_usable(self) -> bool:
        return self.spec is not None

    @property
    def remedy(self) -> str:
        """Return why it cannot be used and how to fix that; empty if it can be used."""
        if self.is_usable:
            return ""
        if self.problem:
            return f"{self.display_name} cannot be used: {self.problem}"
        return f"{self.display_name} is not installed. Install it with: {self.install_command}"


def _builtin(name: str, title: str, lane: Lane, install: str, *other_names: str, **more: Any) -> WorkerEntry:
    return WorkerEntry(
        name, title, lane, presenter=name, is_builtin=True, install_command=install, other_names=other_names, **more
    )


_REQUIRED = "pip install -r requirements/"
BUILTIN: tuple[WorkerEntry, ...] = (
    _builtin("human", "Human-Only", Lane.TELEMETRY, "pip install -e workers/human_worker", "human_worker", form=""),
    _builtin(
        "spade_bdi",
        "Spade BDI Worker",
        Lane.TELEMETRY,
        f"{_REQUIRED}spade_bdi_worker.txt",
        "spade_bdi_worker",
        "spade_bdi_rl_worker",
        "spade_bdi_rl",
        form="spade_bdi",
    ),
    _builtin("llm", "LLM Multi-Step Worker", Lane.HYBRID, f"{_REQUIRED}llm_worker.txt", "llm_worker", form="llm"),
    _builtin(
        "cleanrl", "CleanRL Worker", Lane.ANALYTICS, f"{_REQUIRED}cleanrl_worker.txt", "cleanrl_worker", form="cleanrl"
    ),
)
"""In the order of the actor selector"""


def entries_from(workers: Iterable[pb.Worker], *, with_hidden: bool = False) -> tuple[WorkerEntry, ...]:
    """Return the built-in entries in order, then others by display name; hidden ones only on request."""
    found = [_discovered(worker) for worker in workers]
    named = tuple(_merged(builtin, found) for builtin in BUILTIN)
    taken = {name for builtin in BUILTIN for name in (builtin.name, *builtin.other_names)}
    others = [
        entry
        for entry in found
        if entry.name not in taken and (with_hidden or entry.spec is None or not entry.spec.hidden)
    ]
    return (*named, *sorted(others, key=lambda entry: entry.display_name.lower()))


def find(entries: Sequence[WorkerEntry], name: str) -> WorkerEntry | None:
    """Return the entry of a run's worker type, also for former names."""
    return next((entry for entry in entries if name in (entry.name, *entry.other_names)), None)


def _discovered(worker: pb.Worker) -> WorkerEntry:
    spec, problem = None, worker.problem
    if worker.spec_json and not problem:
        try:
            spec = WorkerSpec.from_json(json.loads(worker.spec_json))
        except (SpecError, ValueError) as error:
            problem = str(error)
    lane = spec.capabilities.lane if spec is not None else Lane.ANALYTICS
    title = spec.display_name if spec is not None else worker.display_name or worker.name
    if spec is None and not problem:
        problem = "it gave no description; `mosaic workers --refresh` asks again"
    form = SWEEP_FORM if worker.name == SWEEP else SCHEMA_FORM
    return WorkerEntry(worker.name, title, lane, form=form, spec=spec, problem=problem, version=worker.version)


def _merged(builtin: WorkerEntry, found: Sequence[WorkerEntry]) -> WorkerEntry:
    """Return the built-in entry completed by the installed worker's description."""
    names = (builtin.name, *builtin.other_names)
    installed = next((entry for entry in found if entry.name in names), None)
    if installed is None:
        return builtin
    lane = installed.lane if installed.spec is not None else builtin.lane
    return replace(
        builtin,
        name=installed.name,
        lane=lane,
        spec=installed.spec,
        problem=installed.problem,
        version=installed.version,
        other_names=tuple(name for name in names if name != installed.name),
    )
