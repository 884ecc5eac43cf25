"""`mosaic show`: everything about a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder

from gym_gui.cli.context import Cli, find_runs, json_option, pass_cli, some_runs
from gym_gui.cli.listing import write_json, write_pairs
from gym_gui.cli.summary import evaluation_in_words
from gym_gui.cli.terminal import style
from gym_gui.wording import formats
from gym_gui.wording.run_view import (
    COLOURS,
    elapsed_s,
    evaluation_of,
    figures_of,
    parsed,
    progress_of,
    remaining_s,
    run_document,
    state_of,
    stopped_early,
    title_of,
    unit_of,
)

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb


@click.command()
@some_runs
@json_option
@pass_cli
def show_command(cli: Cli, /, runs: tuple[str, ...], as_json: bool) -> int:
    """Everything about a run: state, progress, resources, result, hyper-parameters, checkpoints, videos, files."""
    with cli.client() as client:
        found = find_runs(client, runs)
    if as_json:
        write_json({**run_document(run), **details_of(run), "provenance": provenance_of(run)} for run in found)
        return 0
    for position, run in enumerate(found):
        if position:
            click.echo()
        write_pairs(_pairs(run))
    return 0


def provenance_of(run: pb.Run) -> dict[str, Any]:
    """What the run was made with, from its manifest: argv, versions, requirement sets, machine, code that is not ours.

    Empty where the run's folder is on another machine, or has no manifest yet.
    """
    manifest = _manifest_of(run)
    names = ("argv", "requirements", "versions", "host", "script", "environment_source", "training_notes")
    return {name: manifest[name] for name in names if manifest.get(name)}


def details_of(run: pb.Run) -> dict[str, Any]:
    """Every hyper-parameter with the value that training uses, its checkpoints and its videos, from the manifest."""
    manifest = _manifest_of(run)
    empty: dict[str, Any] = {"hyperparameters": {}, "checkpoints": [], "videos": []}
    return {name: manifest.get(name) or nothing for name, nothing in empty.items()}


def _manifest_of(run: pb.Run) -> dict[str, Any]:
    try:
        return AnalyticsManifest.read(RunFolder(Path(run.run_dir)).manifest).to_json()
    except (OSError, ValueError):
        return {}


def _pairs(run: pb.Run) -> Iterator[tuple[str, str]]:
    state = state_of(run)
    flags = f" ({', '.join(run.flags)})" if run.flags else ""
    yield "run", style(run.run_id, bold=True) + ("  (archived)" if run.archived else "")
    yield "name", run.name
    yield "what", f"{title_of(run)}, worker {run.worker_type}"
    yield "status", style(state, fg=COLOURS.get(state)) + f"  {run.status}{flags}"
    yield "reason", run.reason if run.reason != run.outcome else ""
    yield "stopped early", stopped_early(run)
    yield "waits for", run.queue_reason
    yield "progress", _progress(run)
    yield "curves", figures_of(run)
    yield "evaluation", evaluation_in_words(evaluation_of(run))
    yield "result", _compact(parsed(run.result_json), leave_out=("evaluation", "stopped_early"))
    yield "submitted", formats.moment(run.created_at)
    yield "started", formats.moment(run.started_at)
    yield "finished", formats.moment(run.finished_at)
    took = elapsed_s(run)
    yield "took" if run.finished_at else "runs for", formats.duration(took) if took is not None else ""
    yield "resources", _resources(run)
    yield "priority", str(run.priority) if run.priority or run.status == "INIT" else ""
    yield "attempt", f"{run.attempt} of {run.retries + 1}" if run.retries or run.attempt > 1 else ""
    if run.HasField("parent"):
        yield "continues", f"{run.parent.run_id} from step {formats.count(run.parent.step)}"
    yield "tags", ", ".join(run.tags)
    yield "note", run.notes
    yield "parameters", _compact(parsed(run.extras_json))
    details = details_of(run)
    yield "hyper-parameters", _compact(details["hyperparameters"])
    kept = [f"step {formats.count(each['step'])}  {each['kind']}  {each['path']}" for each in details["checkpoints"]]
    yield "checkpoints", "\n".join(kept)
    yield "videos", "\n".join(details["videos"])
    yield from _provenance(run)
    yield "pid", str(run.pid) if run.pid else ""
    yield "run folder", run.run_dir
    yield "logs", run.logs_dir
    yield "size", formats.size(run.size_bytes) if run.size_bytes else ""


def _provenance(run: pb.Run) -> Iterator[tuple[str, str]]:
    known = provenance_of(run)
    host, versions = known.get("host", {}), known.get("versions", {})
    gpus = ", ".join(str(gpu.get("model", "")) for gpu in host.get("gpus", []))
    parts = [host.get("name"), host.get("cpu"), gpus and f"{gpus} (driver {host.get('gpu_driver')})"]
    yield "noted", "\n".join(known.get("training_notes", []))
    yield "made on", ", ".join(str(part) for part in parts if part)
    shown = [f"{name} {versions[name]}" for name in ("python", "torch", "gymnasium") if name in versions]
    yield "made with", ", ".join([*shown, *(f"set {name}" for name in known.get("requirements", []) if name != "base")])


def _progress(run: pb.Run) -> str:
    parts = []
    if run.step or run.total:
        total = f" of {formats.count(run.total)} ({progress_of(run)})" if run.total else ""
        parts.append(f"{formats.count(run.step)}{total} {unit_of(run)}")
    if run.HasField("episodic_return"):
        parts.append(f"return {formats.quantity(run.episodic_return)}")
    if odd := int(run.metrics.get("returns_not_finite", 0)):
        parts.append(f"NaN or infinite: {formats.plural(odd, 'return')} of the last hundred")
    if run.HasField("sps"):
        parts.append(f"{formats.count(run.sps)} {unit_of(run)}/s")
    if (remaining := remaining_s(run)) is not None:
        parts.append(f"about {formats.duration(remaining)} to go")
    return ", ".join(parts)


def _resources(run: pb.Run) -> str:
    parts = [f"{run.cpus:g} CPU" + ("s" if run.cpus != 1 else "")]
    if run.gpus:
        ids = f" ({', '.join(run.gpu_ids)})" if run.gpu_ids else ""
        parts.append(formats.plural(run.gpus, "GPU") + ids)
    if run.memory_mb:
        parts.append(f"at most {formats.size(run.memory_mb * 2**20)} of memory")
    if run.max_wallclock_minutes:
        parts.append(f"at most {formats.duration(run.max_wallclock_minutes * 60)}")
    return ", ".join(parts)


def _compact(value: Any, leave_out: tuple[str, ...] = ()) -> str:
    if not isinstance(value, dict):
        return ""
    return "\n".join(
        f"{key}: {json.dumps(item, ensure_ascii=False)}" for key, item in value.items() if key not in leave_out
    )
