"""Texts of the run page: states, events, headline values, problems, and advice on failures."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_status import RunOutcome, RunStatus
from PySide6.QtCore import QCoreApplication

from gym_gui.ui.presenters.run_files import CheckpointFacts, FolderListing, ManifestProblem, ManifestTrouble, Role
from gym_gui.ui.runs.rows import state_text
from gym_gui.wording import formats
from gym_gui.wording.run_view import (
    algo_of,
    elapsed_s,
    progress_of,
    remaining_s,
    remark_on,
    short_id,
    state_of,
    title_of,
)


def tr(text: str) -> str:
    return QCoreApplication.translate("RunLabels", text)


def state_label(run: pb.Run) -> str:
    """Return the translated state of a run."""
    return state_text(state_of(run)).capitalize()


STATE_SYMBOLS = {
    "completed": "✓",
    "failed": "✗",
    "cancelled": "–",
    "running": "▶",
    "paused": "❚❚",
    "queued": "…",
    "stalled": "!",
    "faulted": "✗",
}


def chip_text(run: pb.Run) -> str:
    """Return symbol and label: color is never the only sign of a state."""
    symbol = STATE_SYMBOLS.get(state_of(run), "·")
    return f"{symbol} {state_label(run)}"


def event_label(kind: str) -> str:
    """Return the label of an event."""
    labels = {
        "submitted": tr("Submitted"),
        "prepared": tr("Prepared"),
        "preparing": tr("Preparing"),
        "dispatched": tr("Worker started"),
        "registered": tr("Worker registered"),
        "started": tr("Training began"),
        "paused": tr("Paused"),
        "resumed": tr("Resumed"),
        "released": tr("Released its resources"),
        "releasing": tr("Releasing"),
        "requeued": tr("Queued again"),
        "faulted": tr("Fault"),
        "retried": tr("Retried"),
        "given_up": tr("Given up"),
        "cancelled": tr("Cancelled"),
        "completed": tr("Completed"),
        "cancel_requested": tr("Cancel requested"),
        "pause_requested": tr("Pause requested"),
        "release_requested": tr("Release requested"),
        "resume_requested": tr("Resume requested"),
        "checkpoint_saved": tr("Checkpoint saved"),
        "checkpoint_loaded": tr("Checkpoint loaded"),
        "stage_changed": tr("Curriculum stage changed"),
        "worker_run_completed": tr("Worker reports completion"),
        "worker_run_failed": tr("Worker reports failure"),
        "worker_run_cancelled": tr("Worker reports cancellation"),
        "stalled": tr("Stalled"),
        "stalled_over": tr("No longer stalled"),
        "no_progress": tr("No progress"),
        "no_progress_over": tr("Progress resumed"),
        "handed_over": tr("Handed over to a cluster"),
        "preempted": tr("Preempted by the cluster"),
        "node_lost": tr("Its node was lost"),
        "reattached": tr("Recovered by a new daemon"),
        "recovery_failed": tr("Could not be recovered"),
        "edited": tr("Edited"),
        "archived": tr("Archived"),
        "unarchived": tr("Restored from the archive"),
        "imported": tr("Imported"),
        "hook_failed": tr("A hook failed"),
        "out_of_order": tr("Event out of order"),
        "on_node": tr("Opened on a node"),
    }
    return labels.get(kind) or kind.replace("_", " ").capitalize()


def role_label(role: Role) -> str:
    return {
        Role.FILE: "",
        Role.FOLDER: "",
        Role.MANIFEST: tr("Manifest"),
        Role.LIFECYCLE: tr("Lifecycle events"),
        Role.EXIT: tr("Exit record"),
        Role.CHECKPOINT: tr("Checkpoint"),
        Role.CHECKPOINTS: tr("Checkpoints"),
        Role.POLICY: tr("Policy"),
        Role.EVENTS: tr("TensorBoard events"),
        Role.METRICS: tr("Curves (made from the events)"),
        Role.VIDEO: tr("Video"),
        Role.DATABASE: tr("Optuna study"),
        Role.LOG: tr("Log"),
        Role.CONFIG: tr("Config"),
    }[role]


def artifact_label() -> str:
    """Return the mark of entries that the manifest names."""
    return tr("in the manifest")


def checkpoint_kind(kind: str) -> str:
    return {"last": tr("last"), "best": tr("best"), "periodic": tr("periodic")}.get(kind, kind)


def checkpoint_summary(facts: CheckpointFacts) -> str:
    """Return `Checkpoint · step 499,712 · last · return 498.2`."""
    parts = [tr("Checkpoint"), tr("step {step}").format(step=formats.count(facts.step))]
    if facts.kind:
        parts.append(checkpoint_kind(facts.kind))
    elif not facts.is_listed:
        parts.append(tr("not in the manifest"))
    if facts.mean_return is not None:
        parts.append(tr("return {value}").format(value=formats.quantity(facts.mean_return)))
    if facts.problem:
        parts.append(tr("damaged: {why}").format(why=facts.problem))
    return " · ".join(parts)


def listing_summary(listing: FolderListing) -> str:
    """Return the last line of a folder's listing; empty when the listing is complete."""
    if listing.problem is not None:
        return {
            ManifestTrouble.MISSING: tr("(no longer exists)"),
            ManifestTrouble.FORBIDDEN: tr("(cannot be read: check its permissions)"),
        }.get(listing.problem.trouble, tr("(cannot be read: {why})").format(why=listing.problem.detail))
    if listing.left_out:
        return tr("(and {count} more)").format(count=formats.count(listing.left_out))
    return "" if listing.entries else tr("(empty)")


def manifest_problem_text(problem: ManifestProblem, run: pb.Run) -> str:
    """Return why the manifest cannot be shown, and the consequences."""
    if problem.trouble is ManifestTrouble.MISSING:
        if run.status in (RunStatus.INIT, RunStatus.HSHK, RunStatus.RDY):
            return tr("The manifest (analytics.json) is written when the worker starts.")
        return tr(
            "The manifest (analytics.json) of this run is missing. Versions and the command line are unknown; the "
            "daemon's record is shown."
        )
    if problem.trouble is ManifestTrouble.DAMAGED:
        return tr(
            "The manifest (analytics.json) cannot be read: {why}. Its contents are omitted; everything else about the "
            "run is shown. `mosaic resume` and `mosaic eval` use the checkpoints in the folder."
        ).format(why=problem.detail)
    return tr("The manifest (analytics.json) cannot be opened: {why}. Check the permissions of the run folder.").format(
        why=problem.detail or problem.trouble.value
    )


# ------------------------------------------------------------------ advice on failures


def advice_for(run: pb.Run, lines: Iterable[str]) -> str:
    """Return advice on this failure, by known patterns of the reason and the output."""
    text = "\n".join((run.reason, *lines))
    for pattern, advice in _remedies().items():
        if found := re.search(pattern, text):
            return advice.format(*found.groups())
    return tr(
        "See the Logs tab for the whole output. To retry with other values, clone the run; with a checkpoint "
        "it can be resumed instead."
    )


def _remedies() -> dict[str, str]:
    return {
        r"No space left|the disk is full": tr(
            "The disk is full. Delete or archive runs you no longer need, then resume this one."
        ),
        r"CUDA out of memory|OutOfMemoryError": tr(
            "The GPU ran out of memory. Use fewer environments or smaller batches, or a larger GPU."
        ),
        r"out of memory|memory limit|Cannot allocate memory|MemoryError": tr(
            "The run ran out of memory. Request more memory, use fewer environments or a smaller replay buffer."
        ),
        r"No module named '([\w.]+)'|set `([\w-]+)` is not installed": tr(
            "A package is missing. Install its requirement set: Management › Workers, or `mosaic extras`."
        ),
        r"out of wall-clock time": tr(
            "It reached its time limit. Resume it with a longer one; it continues from its last checkpoint."
        ),
        r"did not register within": tr(
            "The worker did not start in time. Check its environment with `mosaic doctor`; see also Logs."
        ),
        r"silent for more than": tr(
            "The worker hung, or its machine was overloaded. If one step takes very long, give it a longer "
            "scheduling.silence_s; otherwise resume it from its last checkpoint."
        ),
        r"refused its config": tr("The worker does not accept these values. Clone the run and change what it names."),
        r"killed by SIGKILL": tr(
            "The process was killed, usually by the system because memory ran out. Use less memory, then resume."
        ),
        r"\bnan\b|\bNaN\b": tr(
            "Training produced NaN values. A smaller learning rate often helps; clone the run and change it."
        ),
    }


_tr = partial(QCoreApplication.translate, "RunFigures")


@dataclass(frozen=True)
class HeadlineValue:
    """One headline value of a run."""

    key: str
    caption: str
    value: str
    note: str = ""


NOTHING = "–"


def headlines_of(run: pb.Run, now: float | None = None) -> list[HeadlineValue]:
    """Return the headline values, always the same ones; an unknown one is a dash."""
    percent = progress_of(run).replace("%", " %") if run.total else ""
    total = _tr("of {total}").format(total=formats.count(run.total)) if run.total else ""
    last = _tr("last {value}").format(value=formats.quantity(run.episodic_return))
    has_return = run.HasField("episodic_return")
    left = run.eta_s if run.HasField("eta_s") else remaining_s(run)
    since = _tr("since {moment}").format(moment=_short_moment(run.started_at))
    step = run.step if run.step or run.total else None
    mean, speed = run.metrics.get("mean_return_100"), run.sps if run.HasField("sps") else None
    values: list[tuple[str, str, Callable[[float], str], float | None, str]] = [
        ("step", _tr("Step"), formats.count, step, " · ".join(filter(None, (total, percent)))),
        ("mean_return_100", _tr("Mean return (100)"), formats.quantity, mean, last if has_return else ""),
        ("sps", _tr("Steps per second"), formats.count, speed, ""),
        ("eta", _tr("Time left"), formats.duration, left if _is_live(run) else None, ""),
        ("duration", _tr("Duration"), formats.duration, elapsed_s(run, now), since if run.started_at else ""),
        ("size", _tr("Size"), formats.size, run.size_bytes or None, _tr("on disk") if run.size_bytes else ""),
    ]
    return [
        HeadlineValue(key, caption, NOTHING if value is None else write(value), note)
        for key, caption, write, value, note in values
    ]


def _short_moment(then: float) -> str:
    """Return the time for today, else also the date."""
    moment, today = formats.moment(then), formats.moment(time.time())
    return moment[11:] if moment[:10] == today[:10] else moment[:16]


def _is_live(run: pb.Run) -> bool:
    return run.status in (RunStatus.RDY, RunStatus.EXEC)


def headline_of(run: pb.Run) -> str:
    """Return the key values in one line, for the head of the page."""
    parts = [title_of(run)] if run.name else []
    parts.append(short_id(run.run_id))
    if run.total:
        parts.append(f"{formats.count(run.step)} / {formats.count(run.total)} ({progress_of(run)})")
    if (mean := run.metrics.get("mean_return_100")) is not None:
        parts.append(_tr("return {value}").format(value=formats.quantity(mean)))
    elif run.HasField("episodic_return"):
        parts.append(_tr("return {value}").format(value=formats.quantity(run.episodic_return)))
    if run.status == RunStatus.EXEC and run.HasField("sps"):
        parts.append(_tr("{speed} steps/s").format(speed=formats.count(run.sps)))
    left = run.eta_s if run.HasField("eta_s") else remaining_s(run)
    if _is_live(run) and left is not None:
        parts.append(_tr("{time} left").format(time=formats.duration(left)))
    if run.archived:
        parts.append(_tr("archived"))
    return "  ·  ".join(parts)


def remark_of(run: pb.Run) -> str:
    """Return why the run waits and unusual conditions; empty when there are none."""
    parts = [flags_text(run.flags)]
    if run.status == RunStatus.INIT and run.queue_reason:
        parts.insert(0, run.queue_reason)
    elif run.reason and (run.status == RunStatus.PAUSE or run.outcome == RunOutcome.CANCELLED):
        parts.insert(0, run.reason)
    elif run.outcome == RunOutcome.COMPLETED:
        parts.insert(0, remark_on(run))
    return " · ".join(filter(None, parts))


def facts_of(run: pb.Run) -> list[tuple[str, str]]:
    """Return the other facts that the daemon knows as names and values, without empty ones."""
    seed = str(run.seed) if run.HasField("seed") else ""
    gpus = formats.plural(run.gpus, "GPU") + (f" ({', '.join(run.gpu_ids)})" if run.gpu_ids else "") if run.gpus else ""
    resources = [f"{run.cpus:g} CPU" + ("" if run.cpus == 1 else "s"), gpus]
    if run.memory_mb:
        resources.append(_tr("at most {size}").format(size=formats.size(run.memory_mb * 2**20)))
    if run.max_wallclock_minutes:
        resources.append(_tr("at most {time}").format(time=formats.duration(run.max_wallclock_minutes * 60)))
    attempt = _tr("{number} of {most}").format(number=run.attempt, most=run.retries + 1)
    pairs = [
        (_tr("Run id"), run.run_id),
        (_tr("Worker"), " ".join(filter(None, (run.worker_type, run.worker_id)))),
        (_tr("Algorithm"), algo_of(run)),
        (_tr("Environment"), run.env_id),
        (_tr("Seed"), seed),
        (_tr("Resources"), ", ".join(filter(None, resources))),
        (_tr("Priority"), str(run.priority) if run.priority else ""),
        (_tr("Attempt"), attempt if run.retries or run.attempt > 1 else ""),
        (_tr("Submitted"), formats.moment(run.created_at)),
        (_tr("Started"), formats.moment(run.started_at)),
        (_tr("Finished"), formats.moment(run.finished_at)),
        (_tr("Tags"), ", ".join(run.tags)),
        (_tr("Notes"), " ".join(run.notes.split())),
        (_tr("Process"), str(run.pid) if run.pid else ""),
        (_tr("Run folder"), run.run_dir),
        (_tr("Logs"), run.logs_dir),
    ]
    return [pair for pair in pairs if pair[1]]


def flags_text(flags: Iterable[str]) -> str:
    labels = {
        "stalled": _tr("stalled: its worker does not respond"),
        "no_progress": _tr("no progress: alive, but its step does not advance"),
        "paused_by_signal": _tr("stopped by a signal"),
        "released": _tr("its CPUs and GPUs are free for other runs"),
        "cancelling": _tr("is being cancelled"),
        "pausing": _tr("is being paused"),
        "throttled": _tr("its metrics are delayed: the daemon is overloaded"),
    }
    return ", ".join(labels.get(flag, flag) for flag in flags)
