"""Figures and facts of a run as the page shows them: headline numbers, one line for the head, names and values."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QCoreApplication

from gym_gui.wording import formats
from gym_gui.wording.run_view import algo_of, elapsed_s, progress_of, remaining_s, short_id, title_of

translate = QCoreApplication.translate


@dataclass(frozen=True)
class Figure:
    """One headline number."""

    key: str
    caption: str
    value: str
    note: str = ""


NOTHING = "–"


def figures_of(run: pb.Run, now: float | None = None) -> list[Figure]:
    """The headline numbers, always the same ones: what is not known is a dash."""
    percent = f"{100 * min(1.0, run.step / run.total):.0f} %" if run.total else ""
    total = translate("RunFigures", "of {total}").format(total=formats.count(run.total)) if run.total else ""
    mean = run.metrics.get("mean_return_100")
    last = translate("RunFigures", "last {value}").format(value=formats.quantity(run.episodic_return))
    took, left = elapsed_s(run, now), run.eta_s if run.HasField("eta_s") else remaining_s(run)
    since = translate("RunFigures", "since {moment}").format(moment=_short_moment(run.started_at))
    return [
        Figure(
            "step",
            translate("RunFigures", "Step"),
            formats.count(run.step) if run.step or run.total else NOTHING,
            " · ".join(filter(None, (total, percent))),
        ),
        Figure(
            "mean_return_100",
            translate("RunFigures", "Mean return (100)"),
            _or_nothing(formats.quantity, mean),
            last if run.HasField("episodic_return") else "",
        ),
        Figure(
            "sps",
            translate("RunFigures", "Steps per second"),
            _or_nothing(formats.count, run.sps if run.HasField("sps") else None),
        ),
        Figure(
            "eta", translate("RunFigures", "Time left"), _or_nothing(formats.duration, left if _is_live(run) else None)
        ),
        Figure(
            "duration",
            translate("RunFigures", "Duration"),
            _or_nothing(formats.duration, took),
            since if run.started_at else "",
        ),
        Figure(
            "size",
            translate("RunFigures", "Size"),
            _or_nothing(formats.size, run.size_bytes or None),
            translate("RunFigures", "on disk") if run.size_bytes else "",
        ),
    ]


def _short_moment(then: float) -> str:
    """The time alone for today, else the day too."""
    moment, today = formats.moment(then), formats.moment(time.time())
    return moment[11:] if moment[:10] == today[:10] else moment[:16]


def _or_nothing(write: Callable[[float], str], number: float | None) -> str:
    return NOTHING if number is None else write(number)


def _is_live(run: pb.Run) -> bool:
    return run.status in ("RDY", "EXEC")


def headline_of(run: pb.Run) -> str:
    """The key figures in one line, for the head of the page."""
    parts = [title_of(run)] if run.name else []
    parts.append(short_id(run.run_id))
    if run.total:
        parts.append(f"{formats.count(run.step)} / {formats.count(run.total)} ({progress_of(run)})")
    if (mean := run.metrics.get("mean_return_100")) is not None:
        parts.append(translate("RunFigures", "return {value}").format(value=formats.quantity(mean)))
    elif run.HasField("episodic_return"):
        parts.append(translate("RunFigures", "return {value}").format(value=formats.quantity(run.episodic_return)))
    if run.status == "EXEC" and run.HasField("sps"):
        parts.append(translate("RunFigures", "{speed} steps/s").format(speed=formats.count(run.sps)))
    left = run.eta_s if run.HasField("eta_s") else remaining_s(run)
    if _is_live(run) and left is not None:
        parts.append(translate("RunFigures", "{time} left").format(time=formats.duration(left)))
    if run.archived:
        parts.append(translate("RunFigures", "archived"))
    return "  ·  ".join(parts)


def remark_in_words(run: pb.Run) -> str:
    """Why it waits, and what is odd about it; empty when all is well."""
    parts = [flags_in_words(run.flags)]
    if run.status == "INIT" and run.queue_reason:
        parts.insert(0, run.queue_reason)
    elif run.reason and (run.status == "PAUSE" or run.outcome == "cancelled"):
        parts.insert(0, run.reason)
    return " · ".join(filter(None, parts))


def facts_of(run: pb.Run) -> list[tuple[str, str]]:
    """Everything else the daemon knows, name by name; what is empty is left out."""
    seed = str(run.seed) if run.HasField("seed") else ""
    gpus = formats.plural(run.gpus, "GPU") + (f" ({', '.join(run.gpu_ids)})" if run.gpu_ids else "") if run.gpus else ""
    resources = [f"{run.cpus:g} CPU" + ("" if run.cpus == 1 else "s"), gpus]
    if run.memory_mb:
        resources.append(translate("RunFigures", "at most {size}").format(size=formats.size(run.memory_mb * 2**20)))
    if run.max_wallclock_minutes:
        resources.append(
            translate("RunFigures", "at most {time}").format(time=formats.duration(run.max_wallclock_minutes * 60))
        )
    attempt = translate("RunFigures", "{number} of {most}").format(number=run.attempt, most=run.retries + 1)
    pairs = [
        (translate("RunFigures", "Run id"), run.run_id),
        (translate("RunFigures", "Worker"), " ".join(filter(None, (run.worker_type, run.worker_id)))),
        (translate("RunFigures", "Algorithm"), algo_of(run)),
        (translate("RunFigures", "Environment"), run.env_id),
        (translate("RunFigures", "Seed"), seed),
        (translate("RunFigures", "Resources"), ", ".join(filter(None, resources))),
        (translate("RunFigures", "Priority"), str(run.priority) if run.priority else ""),
        (translate("RunFigures", "Attempt"), attempt if run.retries or run.attempt > 1 else ""),
        (translate("RunFigures", "Submitted"), formats.moment(run.created_at)),
        (translate("RunFigures", "Started"), formats.moment(run.started_at)),
        (translate("RunFigures", "Finished"), formats.moment(run.finished_at)),
        (translate("RunFigures", "Tags"), ", ".join(run.tags)),
        (translate("RunFigures", "Notes"), " ".join(run.notes.split())),
        (translate("RunFigures", "Process"), str(run.pid) if run.pid else ""),
        (translate("RunFigures", "Run folder"), run.run_dir),
        (translate("RunFigures", "Logs"), run.logs_dir),
    ]
    return [pair for pair in pairs if pair[1]]


def flags_in_words(flags: Iterable[str]) -> str:
    words = {
        "stalled": translate("RunFigures", "stalled: its worker gives no sign of life"),
        "no_progress": translate("RunFigures", "no progress: it lives, but its step does not move"),
        "paused_by_signal": translate("RunFigures", "held by a signal"),
        "released": translate("RunFigures", "its CPUs and GPUs are free for others"),
        "cancelling": translate("RunFigures", "is being cancelled"),
        "pausing": translate("RunFigures", "is being paused"),
        "throttled": translate("RunFigures", "its figures come late: the daemon has too much to do"),
    }
    return ", ".join(words.get(flag, flag) for flag in flags)
