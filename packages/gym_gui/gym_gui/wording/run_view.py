"""A run as people read it: short id, label of its state, one JSON object."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, cast

from mosaic_wire.lifecycle import RunLifecycleEvent
from mosaic_wire.run_request import UPSTREAM, Extras, Mode
from mosaic_wire.run_status import RunOutcome, RunStatus

from gym_gui.wording import formats
from gym_gui.wording.formats import one_line, short_count

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

SHORT_ID = 8
"""Ids of one day begin alike and end at random, so the short form is the end."""

STATE_LABELS: dict[str, str] = {
    RunStatus.INIT: "queued",
    RunStatus.HSHK: "starting",
    RunStatus.RDY: "starting",
    RunStatus.EXEC: "running",
    RunStatus.PAUSE: "paused",
    RunStatus.FAULT: "faulted",
    RunStatus.TERM: "finished",
}
COLORS = {
    "queued": "yellow",
    "starting": "cyan",
    "running": "blue",
    "paused": "magenta",
    "faulted": "red",
    "completed": "green",
    "failed": "red",
    "cancelled": "bright_black",
    "stalled": "red",
    "cancelling": "magenta",
    "pausing": "magenta",
    "released": "magenta",
}
_SHOWN_ELSEWHERE = frozenset({"charts/SPS", "charts/episodic_return", "charts/episodic_length"})
_NEVER_S = 100 * 365 * 86400.0
"""Slower speeds give no useful estimate"""
SYMBOLS = {"completed": "✓", "failed": "✗", "cancelled": "–"}


def short_id(run_id: str) -> str:
    """Return the end of a run id, as listings show it."""
    return run_id[-SHORT_ID:]


def state_of(run: pb.Run) -> str:
    """Return the label of its state: the outcome once it has one, else what it is doing."""
    status = run.status
    if status == RunStatus.TERM:
        return run.outcome or "finished"
    for flag in run.flags:
        if flag in ("cancelling", "stalled", "pausing", "released"):
            return flag
    return STATE_LABELS.get(status, status)


def continued_by(runs: Iterable[pb.Run], listed: Iterable[pb.Run]) -> list[str]:
    """Return the ids of the listed runs that continue one of these, and lose the beginning of their curves with it."""
    chosen = {run.run_id for run in runs}
    return [run.run_id for run in listed if run.parent.run_id in chosen and run.run_id not in chosen]


def remark_on(run: pb.Run) -> str:
    """Why it waits or how it ended, in one line."""
    if run.status == RunStatus.INIT:
        text = run.queue_reason
    elif run.status == RunStatus.TERM and run.outcome == RunOutcome.COMPLETED:
        text = f"stopped early: {early}" if (early := stopped_early(run)) else ""
    else:
        text = run.reason
        if not text and run.node and run.status != RunStatus.TERM:
            text = f"on {run.executor}, {run.node}"
    return one_line(" ".join(text.split())) if text else ""


def stopped_early(run: pb.Run) -> str:
    """Why a completed run did not take all of its steps; empty when it did."""
    if '"stopped_early"' not in run.result_json:  # most runs, and listings are long
        return ""
    result = parsed(run.result_json)
    return str(result.get("stopped_early") or "") if isinstance(result, dict) else ""


def unit_of(run: pb.Run) -> str:
    """Return what `step` and `total` count: an evaluation plays episodes, a sweep makes trials."""
    if run.worker_type == "sweep":
        return "trials"
    return "episodes" if '"policy_eval"' in run.extras_json else "steps"


def fraction(run: pb.Run) -> float | None:
    """Return how much is done, from 0 to 1; None when the total is not known.

    Whole batches, or a script that counts otherwise, may end a completed run short of its total.
    """
    if run.total > 0 and run.outcome == RunOutcome.COMPLETED and unit_of(run) == "steps" and not stopped_early(run):
        return 1.0
    return min(1.0, run.step / run.total) if run.total > 0 else None


def progress_of(run: pb.Run) -> str:
    """Return how much is done: `42%`, or the steps where the total is not known."""
    if (done := fraction(run)) is not None:
        return f"{100 * done:.0f}%"
    return short_count(run.step) if run.step else ""


def elapsed_s(run: pb.Run, now: float | None = None) -> float | None:
    """Seconds since it started to work; None before."""
    if not run.started_at:
        return None
    return max(0.0, (run.finished_at or now or time.time()) - run.started_at)


def remaining_s(run: pb.Run) -> float | None:
    """Seconds to go at the present speed; None if unknown."""
    if run.status != RunStatus.EXEC or run.total <= run.step or not run.HasField("sps") or not run.sps > 0:
        return None
    if run.step < 2:
        return None  # the speed of a single step means nothing
    seconds = (run.total - run.step) / run.sps
    return seconds if seconds < _NEVER_S else None


def figures_of(run: pb.Run) -> str:
    """The last values of its curves in one line: `entropy 0.52 · value_loss 3.1`; without those shown elsewhere."""
    shown = {
        tag.rpartition("/")[2]: value
        for tag, value in sorted(run.metrics.items())
        if "/" in tag and tag not in _SHOWN_ELSEWHERE
    }
    return " · ".join(f"{name} {value:.3g}" for name, value in shown.items())


def algo_of(run: pb.Run) -> str:
    """`ppo`; `my_ppo.py` for a script of the user's, `dqn (upstream)` for one of CleanRL's own."""
    if '"script_path"' not in run.extras_json:  # most runs, and listings are long
        return run.algo
    extras = extras_of(run)
    if not (script := extras.get("script_path")):
        return run.algo
    if extras.get("mode") == Mode.CUSTOM_SCRIPT:
        return PurePath(script).name
    return f"{run.algo} (upstream)" if extras.get("source") == UPSTREAM else f"{run.algo}.py"


def title_of(run: pb.Run) -> str:
    """`ppo CartPole-v1 seed 1`"""
    parts = [algo_of(run) or run.worker_type or "run", run.env_id]
    if run.HasField("seed"):
        parts.append(f"seed {run.seed}")
    return one_line(" ".join(filter(None, parts)))


def run_document(run: pb.Run) -> dict[str, Any]:
    """Return a run for `--json`; what is not known yet is null."""
    return {
        "run_id": run.run_id,
        "number": run.number,
        "status": run.status,
        "outcome": run.outcome or None,
        "reason": run.reason,
        "name": run.name,
        "worker_type": run.worker_type,
        "worker_id": run.worker_id or None,
        "algo": run.algo,
        "env_id": run.env_id,
        "seed": run.seed if run.HasField("seed") else None,
        "step": run.step,
        "total": run.total,
        "return": _finite(run.episodic_return) if run.HasField("episodic_return") else None,
        "sps": _finite(run.sps) if run.HasField("sps") else None,
        "seconds_since_step": _finite(run.seconds_since_step) if run.HasField("seconds_since_step") else None,
        "eta_s": _finite(run.eta_s) if run.HasField("eta_s") else None,
        "metrics": dict(run.metrics),
        "result": parsed(run.result_json),
        "priority": run.priority,
        "tags": list(run.tags),
        "notes": run.notes,
        "archived": run.archived,
        "flags": list(run.flags),
        "queue_reason": run.queue_reason,
        "executor": run.executor or "local",
        "node": run.node or None,
        "parent": _parent(run),
        "submitted_by": run.submitted_by or None,
        "created_at": run.created_at or None,
        "started_at": run.started_at or None,
        "finished_at": run.finished_at or None,
        "cpus": run.cpus,
        "gpus": run.gpus,
        "gpu_ids": list(run.gpu_ids),
        "memory_mb": run.memory_mb or None,
        "max_wallclock_minutes": run.max_wallclock_minutes or None,
        "attempt": run.attempt,
        "retries": run.retries,
        "pid": run.pid or None,
        "run_dir": run.run_dir,
        "logs_dir": run.logs_dir,
        "size_bytes": run.size_bytes,
        "protocol_version": run.protocol_version or None,
        "capabilities": parsed(run.capabilities_json),
        "extras": parsed(run.extras_json),
        "learning": parsed(run.learning_json),
        "event_seq": run.event_seq,
    }


def evaluation_of(run: pb.Run) -> dict[str, Any] | None:
    """Return the evaluation at the end of training, when the worker made one."""
    result = parsed(run.result_json)
    evaluation = result.get("evaluation") if isinstance(result, dict) else None
    return evaluation if isinstance(evaluation, dict) else None


def mean_return(evaluation: dict[str, Any] | None) -> float | None:
    """Return the mean return of an evaluation; None without one."""
    value = (evaluation or {}).get("mean_return")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def extras_of(run: pb.Run) -> Extras:
    """Return the extras of a run's config; empty when they are damaged."""
    extras = parsed(run.extras_json)
    return cast(Extras, extras) if isinstance(extras, dict) else {}


def parsed(text: str) -> Any:
    """JSON that came in a message; null when there is none or it is damaged."""
    if not text:
        return None
    try:
        return json.loads(text, parse_constant=lambda name: None)
    except ValueError:
        return None


def _parent(run: pb.Run) -> dict[str, Any] | None:
    if not run.HasField("parent"):
        return None
    return {"run_id": run.parent.run_id, "step": run.parent.step, "sha256": run.parent.sha256}


def _finite(number: float) -> float | None:
    # NaN and infinity are no JSON.
    return number if math.isfinite(number) else None


TAIL_LINES = 20


def last_output(events: Iterable[pb.StoryEvent], *, lines: int = TAIL_LINES) -> tuple[str, list[str]]:
    """The stream (`stderr`, or `stdout` when that is empty) and its last lines; ("", []) when it wrote nothing.

    Lifecycle events, which a worker prints to stdout as well, are left out.
    """
    payloads = (parsed(event.payload_json) for event in reversed(list(events)))
    tails = next(
        (tail for tail in payloads if isinstance(tail, dict) and tail.keys() & {"stderr_tail", "stdout_tail"}), {}
    )
    for name in ("stderr", "stdout"):  # what went wrong is in stderr, mostly
        written = str(tails.get(f"{name}_tail") or "").rstrip().splitlines()
        if kept := [line for line in written if lifecycle_line(line) == line]:
            return name, kept[-lines:]
    return "", []


def lifecycle_line(text: str) -> str:
    """Return a lifecycle event's line as time, event and payload; any other line as it is."""
    if not text.startswith("{"):
        return text
    try:
        event = RunLifecycleEvent.from_line(text)
    except ValueError:
        return text
    payload = "  ".join(f"{key}={_short(value)}" for key, value in event.payload.items())
    return f"{formats.moment(event.timestamp)}  {event.event:<18} {payload}".rstrip()


def _short(value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 120 else f"{text[:117]}…"
