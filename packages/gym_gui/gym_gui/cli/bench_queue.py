"""Brings a benchmark's cells to the daemon: each once, however often it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gym_gui.cli.context import say
from gym_gui.services.analytics.bench_plan import BenchPlan, Cell, Misfit, config_of, key_of, tag_of
from gym_gui.services.trainer.errors import DaemonUnreachable, InvalidConfig, TrainerError

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.trainer.client import TrainerClient

_ENVIRONMENT, _THOSE_OF = "metadata.worker.config.env_id", "; those of "
"""Of a worker that says: ppo needs discrete actions; those of Pendulum-v1 are …"""
_RETRY = "retry-of:"
"""Tag of a run that was queued because an earlier one of its cell failed"""


@dataclass
class Queued:
    """The runs of a plan, in its order; new ones and those that were known."""

    runs: list[pb.Run] = field(default_factory=list)
    known: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)
    misfits: list[Misfit] = field(default_factory=list)
    """Combinations that are left out"""


@dataclass(frozen=True)
class Wishes:
    """How the runs are to be carried out."""

    cpus: float
    gpus: int = 0
    install_missing: bool = False
    retry_failed: bool = False


def queue(client: TrainerClient, plan: BenchPlan, wishes: Wishes) -> Queued:
    """Queue what is not there yet; a cell that the daemon refuses is noted, and the others go on."""
    queued = Queued()
    retried = _retried(runs_of(client, plan.name))
    for cell in plan.cells:
        if any((cell.algo, cell.env_id) == (each.algo, each.env_id) for each in queued.misfits):
            continue
        try:
            run, is_known = _submit(client, plan, cell, wishes, key_of(plan.name, cell))
            while run.run_id in retried:
                run, is_known = retried[run.run_id], True
            if wishes.retry_failed and run.outcome in ("failed", "cancelled"):
                run, is_known = _submit(
                    client, plan, cell, wishes, f"{key_of(plan.name, cell)}:after:{run.run_id}", run
                )
        except InvalidConfig as error:
            if all(problem.path == _ENVIRONMENT and _THOSE_OF in problem.message for problem in error.problems):
                queued.misfits.append(Misfit(cell.algo, cell.env_id, error.problems[0].message))
                continue
            queued.refused.append((cell.title, str(error)))
            continue
        except TrainerError:
            if queued.runs:
                say(f"mosaic: {len(queued.runs)} of {len(plan.cells)} runs are queued; the same command goes on")
            raise
        queued.runs.append(run)
        queued.known += is_known
    return queued


def runs_of(client: TrainerClient, name: str) -> list[pb.Run]:
    """Every run of a benchmark, the oldest first."""
    return sorted(client.list(tags=[tag_of(name)], include_archived=True).runs, key=lambda run: run.number)


def newest_tries(runs: Sequence[pb.Run]) -> list[pb.Run]:
    """Without those that failed and were queued again."""
    replaced = _retried(runs).keys()
    return [run for run in runs if run.run_id not in replaced]


def _submit(
    client: TrainerClient, plan: BenchPlan, cell: Cell, wishes: Wishes, key: str, failed: pb.Run | None = None
) -> tuple[pb.Run, bool]:
    config = config_of(plan, cell, cpus=wishes.cpus, gpus=wishes.gpus, install_missing=wishes.install_missing)
    if failed is not None:
        config["tags"].append(f"{_RETRY}{failed.run_id}")
    try:
        answer = client.submit(config, idempotency_key=key)
    except DaemonUnreachable:  # an answer that got lost is asked for again without making two runs
        answer = client.submit(config, idempotency_key=key)
    return answer.run, answer.already_known


def _retried(runs: Sequence[pb.Run]) -> dict[str, pb.Run]:
    """Which run was queued in place of one that failed."""
    return {tag.removeprefix(_RETRY): run for run in runs for tag in run.tags if tag.startswith(_RETRY)}
