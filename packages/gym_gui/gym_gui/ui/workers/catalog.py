"""The workers a person can choose from: four that MOSAIC names itself, then whatever else is installed. No Qt.

    entries = entries_from(client.workers())          what `ListWorkers` answered
    entry = find(entries, run.worker_type)

An entry says which lane its runs take, which form starts one and which presenter shows one; widgets ask the entry and
never the worker's name. A worker that is named here and not installed stays in the list with the command for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from mosaic_wire.capabilities import Lane
from mosaic_wire.errors import SpecError
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.sweep_settings import WORKER_TYPE as SWEEP
from mosaic_wire.worker_spec import WorkerSpec

SCHEMA_FORM = "schema"
"""The form of a worker that brings none of its own: made from its `--describe` alone"""
SWEEP_FORM = "sweep"
"""The form of the sweep worker, which is that of the worker that runs the trials"""


@dataclass(frozen=True)
class WorkerEntry:
    """One worker, as the actor selector offers it."""

    name: str
    """`metadata.worker.type` of its runs"""
    display_name: str
    lane: Lane
    form: str = SCHEMA_FORM
    """Which forms start its runs, see `ui/widgets/dialog_factory.py`; empty: it is not started by a form"""
    presenter: str = ""
    """Which presenter shows its runs, see `ui/presenters/workers/registry.py`; empty: by its lane"""
    is_builtin: bool = False
    install_command: str = ""
    is_written: bool = True
    """False: its requirements and its place in the window are there, the worker itself comes with a later version"""
    spec: WorkerSpec | None = None
    problem: str = ""
    """Why it cannot be used although it is installed"""
    version: str = ""
    other_names: tuple[str, ...] = field(default=())
    """What it was called in older documents and configs"""

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
        """What is in the way and what to do, for people; empty when nothing is."""
        if self.is_usable:
            return ""
        if self.problem:
            return f"{self.display_name} cannot be used: {self.problem}"
        if not self.is_written:
            return (
                f"{self.display_name} comes with a later version of MOSAIC. What it will need is installed with: "
                f"{self.install_command}"
            )
        return f"{self.display_name} is not installed. Install it with: {self.install_command}"


BUILTIN: tuple[WorkerEntry, ...] = (
    WorkerEntry(
        "human", "Human-Only", Lane.TELEMETRY, form="", presenter="human", is_builtin=True,
        install_command="pip install -e workers/human_worker", other_names=("human_worker",),
    ),
    WorkerEntry(
        "spade_bdi", "Spade BDI Worker", Lane.TELEMETRY, presenter="spade_bdi", is_builtin=True,
        install_command="pip install -r requirements/spade_bdi_worker.txt", is_written=False,
        other_names=("spade_bdi_worker", "spade_bdi_rl_worker", "spade_bdi_rl"),
    ),
    WorkerEntry(
        "llm", "LLM Multi-Step Worker", Lane.HYBRID, presenter="llm", is_builtin=True,
        install_command="pip install -r requirements/llm_worker.txt", is_written=False, other_names=("llm_worker",),
    ),
    WorkerEntry(
        "cleanrl", "CleanRL Worker", Lane.ANALYTICS, form="cleanrl", presenter="cleanrl", is_builtin=True,
        install_command="pip install -r requirements/cleanrl_worker.txt", other_names=("cleanrl_worker",),
    ),
)  # fmt: skip
"""In the order of the actor selector"""


def entries_from(workers: Iterable[pb.Worker], *, with_hidden: bool = False) -> tuple[WorkerEntry, ...]:
    """The named workers in their order, then every other one by its display name; hidden ones only on request."""
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
    """The entry of a run's worker type, also by an older name."""
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
    """What we know of a worker by name, with what the installed one says of itself."""
    names = (builtin.name, *builtin.other_names)
    installed = next((entry for entry in found if entry.name in names), None)
    if installed is None:
        return builtin
    lane = installed.lane if installed.spec is not None else builtin.lane
    return replace(
        builtin, name=installed.name, lane=lane, spec=installed.spec, problem=installed.problem,
        version=installed.version, other_names=tuple(name for name in names if name != installed.name),
    )  # fmt: skip
