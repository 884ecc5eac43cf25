"""`mosaic doctor --executor NAME`: a run of ten seconds on an executor, from its queue to its end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from mosaic_wire.run_request import run_request
from mosaic_wire.run_status import RunOutcome, RunStatus
from mosaic_wire.worker_spec import nearest

from gym_gui.cli.context import Cli, notify
from gym_gui.cli.doctor import Finding
from gym_gui.services.trainer.errors import TrainerError
from gym_gui.wording import formats
from gym_gui.wording.run_view import short_id

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.trainer.client import TrainerClient

_STEPS, _STEPS_PER_SECOND = 100, 10.0
_QUEUE_S = 300.0
"""How long the run may wait in the queue of the engine"""
_RUN_S = 120.0
_POLL_S = 0.2


def executor_findings(cli: Cli, name: str) -> Iterator[Finding]:
    """Yield what works: the engine's answer, the start on a node, the worker's reports, its logs, and the end."""
    with cli.client(start=True) as client:
        executors = {executor.name: executor for executor in client.machines()}
        if (executor := executors.get(name)) is None:
            close = nearest(name, executors)
            cure = (
                f"did you mean {close!r}?" if close else f"add [executors.{name}] to the settings, restart the daemon"
            )
            yield Finding("executor", "broken", f"the daemon has no executor {name!r}", cure)
            return
        if executor.problem:
            yield Finding(
                "executor", "broken", executor.problem, "try `sinfo` as the user and on the machine of the daemon"
            )
            return
        free = sum(node.cpus_free for node in executor.nodes)
        text = f"{name} ({executor.type}) answers: {formats.plural(len(executor.nodes), 'node')}, {free:g} CPUs free"
        yield Finding("executor", "ok", text)
        try:
            run = client.submit(_config(name)).run
        except TrainerError as error:
            yield Finding("submission", "broken", " ".join(str(error).split()), "pip install -e workers/random_worker")
            return
        notify(f"a run of ten seconds is on its way: {short_id(run.run_id)}")
        try:
            yield from _findings_of(client, run)
        finally:
            with suppress(TrainerError):
                if client.get(run.run_id).status != RunStatus.TERM:
                    client.cancel(run.run_id)


def _config(executor: str) -> dict[str, object]:
    parameters = {"steps_per_second": _STEPS_PER_SECOND, "checkpoint_every": _STEPS // 2}
    return run_request(
        "random",
        algo="random",
        env_id="none",
        total_timesteps=_STEPS,
        extras={"algo_params": parameters},
        run_name=f"doctor of {executor}",
        tags=["doctor"],
        scheduling={"executor": executor},
        resources={"max_wallclock_minutes": 10},
    )


def _findings_of(client: TrainerClient, run: pb.Run) -> Iterator[Finding]:
    began = time.monotonic()
    run = _wait_while(client, run, (RunStatus.INIT,), _QUEUE_S)
    waited = formats.duration(time.monotonic() - began)
    if run.status == RunStatus.INIT:
        cure = "it is cancelled now; nodes, limits and priority are Slurm's: `squeue`, `sinfo`, `mosaic machines`"
        yield Finding("queue", "note", f"it still waits after {waited}: {run.queue_reason}", cure)
        return
    if run.status in (RunStatus.FAULT, RunStatus.TERM):
        yield _broken("start", run)
        return
    yield Finding("start", "ok", f"after {waited} in the queue")
    run = _wait_while(client, run, (RunStatus.HSHK, RunStatus.RDY), _RUN_S)
    if run.status != RunStatus.EXEC:
        yield _broken("worker", run)
        return
    yield Finding("worker", "ok", "its worker reached the daemon and reported that it trains")
    run = _wait_while(client, run, (RunStatus.EXEC,), _RUN_S)
    if run.outcome != RunOutcome.COMPLETED:
        yield _broken("end", run)
        return
    took = formats.duration(run.finished_at - run.started_at)
    yield Finding("end", "ok", f"completed {run.step} steps in {took} on {run.node or 'this machine'}")
    client.delete(run.run_id)


def _broken(name: str, run: pb.Run) -> Finding:
    cure = f"`mosaic history {short_id(run.run_id)}`; slurm.log in {run.logs_dir} is the output of the job"
    return Finding(name, "broken", run.reason or f"it is {run.status}, and nothing more is known", cure)


def _wait_while(client: TrainerClient, run: pb.Run, statuses: tuple[str, ...], limit_s: float) -> pb.Run:
    """Wait until the run has another status; return it as it is then, or after the limit."""
    deadline = time.monotonic() + limit_s
    while run.status in statuses and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        run = client.get(run.run_id)
    return run
