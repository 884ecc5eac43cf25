"""Workers and their algorithms, from the daemon or, without one, from this machine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import click
from mosaic_wire.errors import SpecError
from mosaic_wire.worker_spec import AlgorithmSpec, WorkerSpec, nearest

from gym_gui.cli.context import Cli

PREFERRED_WORKER = "cleanrl"


@dataclass(frozen=True)
class InstalledWorker:
    """A worker of the catalog; `spec` is None when it cannot be used; `problem` is the reason."""

    name: str
    display_name: str
    version: str
    origin: str
    spec: WorkerSpec | None
    problem: str


def installed_workers(cli: Cli, *, refresh: bool = False) -> list[InstalledWorker]:
    """Return every worker, from the daemon if one runs; do not start one."""
    if not cli.is_daemon_there():
        return _from_this_machine(cli, refresh)
    workers: list[InstalledWorker] = []
    with cli.client() as client:
        client.health()  # listing may take long the first time; a daemon that is stopped is noticed sooner
        for entry in client.workers(refresh=refresh):
            spec, problem = None, entry.problem
            if entry.spec_json:
                try:
                    spec = WorkerSpec.from_json(json.loads(entry.spec_json))
                except (SpecError, ValueError) as error:
                    problem = problem or str(error)
            workers.append(InstalledWorker(entry.name, entry.display_name, entry.version, entry.origin, spec, problem))
    return workers


def _from_this_machine(cli: Cli, refresh: bool) -> list[InstalledWorker]:
    from gym_gui.services.trainer.catalog import WorkerCatalog

    catalog = WorkerCatalog(cli.home)
    if refresh:
        catalog.refresh()
    return [
        InstalledWorker(
            entry.name, entry.display_name, entry.version, str(entry.origin), entry.spec, entry.problem or ""
        )
        for entry in catalog.entries()
    ]


def choose_algorithm(
    workers: Sequence[InstalledWorker], algo: str, worker_name: str | None
) -> tuple[WorkerSpec, AlgorithmSpec]:
    """Return the worker that runs this algorithm; a wrong name is answered with the nearest right one."""
    usable = [worker.spec for worker in workers if worker.spec is not None]
    if worker_name is not None:
        spec = next((spec for spec in usable if spec.name == worker_name), None)
        if spec is None:
            raise click.UsageError(_no_worker(workers, worker_name))
        if (meant := _meant(spec, algo)) is None:
            raise click.UsageError(
                _unknown("algorithm", algo, [known.name for known in spec.algorithms], f" of worker {worker_name!r}")
            )
        return meant
    fitting = [meant for spec in usable if (meant := _meant(spec, algo)) is not None]
    # The reference worker is for tests: it is used only when no other worker knows the name.
    offered = [pair for pair in fitting if not pair[0].hidden] or fitting
    if not offered:
        offers = [known.name for spec in usable if not spec.hidden for known in spec.algorithms]
        raise click.UsageError(_unknown("algorithm", algo, offers) + _broken(workers))
    preferred = [pair for pair in offered if pair[0].name == PREFERRED_WORKER] or offered
    if len(preferred) > 1:
        names = ", ".join(spec.name for spec, _ in preferred)
        raise click.UsageError(f"several workers have {algo!r} ({names}); choose with --worker")
    return preferred[0]


def _meant(spec: WorkerSpec, name: str) -> tuple[WorkerSpec, AlgorithmSpec] | None:
    """Return the algorithm of this name, for all that its variants can play; the daemon decides which one trains."""
    variants = spec.variants(name) if spec.checks else []
    own = spec.algorithm(name)
    if len(variants) < 2 and own is not None:
        return spec, own
    if not variants:
        return None
    meant = replace(
        own or variants[0],
        name=name,
        action_spaces=tuple({kind: None for each in variants for kind in each.action_spaces}),
        observation_spaces=tuple({kind: None for each in variants for kind in each.observation_spaces}),
    )
    if own is None:  # a short name has the flags of all of them
        fields = {field.name: field for each in reversed(variants) for field in each.fields}
        meant = replace(meant, fields=tuple(fields.values()))
    others = (known for known in spec.algorithms if known.name != name)
    return replace(spec, algorithms=(*others, meant)), meant


def _no_worker(workers: Sequence[InstalledWorker], name: str) -> str:
    broken = next((worker for worker in workers if worker.name == name), None)
    if broken is not None:
        return f"worker {name!r} cannot be used: {broken.problem}"
    return _unknown("worker", name, [worker.name for worker in workers])


def _unknown(what: str, name: str, known: Iterable[str], where: str = "") -> str:
    names = list(known)
    close = nearest(name, names)
    hint = f"; did you mean {close!r}?" if close else f"; there are {', '.join(sorted(names))}" if names else ""
    return f"there is no {what} {name!r}{where}{hint}"


def _broken(workers: Sequence[InstalledWorker]) -> str:
    broken = [
        f"\n  worker {worker.name!r} cannot be used: {worker.problem}" for worker in workers if worker.spec is None
    ]
    if not workers:
        return "\n  no worker is installed; `pip install` one, then `mosaic workers --refresh`"
    return "".join(broken)
