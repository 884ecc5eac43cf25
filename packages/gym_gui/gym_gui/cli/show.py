"""`mosaic show | history | logs`: everything about a run."""

from __future__ import annotations

import codecs
import json
import queue
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder
from mosaic_wire.run_status import RunStatus

from gym_gui.cli.context import Cli, as_it_is, find_runs, json_option, notify, one_run, pass_cli, some_runs, style
from gym_gui.cli.listing import Column, write_json, write_pairs, write_table
from gym_gui.cli.progress import reconnecting
from gym_gui.cli.summary import evaluation_text
from gym_gui.services.trainer.errors import TrainerError
from gym_gui.wording import formats
from gym_gui.wording.formats import printable, without_escapes
from gym_gui.wording.run_view import (
    COLORS,
    elapsed_s,
    evaluation_of,
    figures_of,
    lifecycle_line,
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

    from gym_gui.services.trainer.client import RpcStream, TrainerClient


@click.command()
@some_runs
@json_option
@pass_cli
def show_command(cli: Cli, /, runs: tuple[str, ...], as_json: bool) -> int:
    """Everything about a run: state, progress, resources, result, hyper-parameters, checkpoints, videos, files."""
    with cli.client() as client:
        found = [(run, client.local(run, "run/analytics.json")) for run in find_runs(client, runs)]
    if as_json:
        write_json({**run_document(run), **details_of(here), "provenance": provenance_of(here)} for run, here in found)
        return 0
    for position, (run, here) in enumerate(found):
        if position:
            click.echo()
        write_pairs(_pairs(run, here))
    return 0


def provenance_of(run: pb.Run) -> dict[str, Any]:
    """Return the run's provenance from its manifest: argv, versions, requirement sets, machine, foreign code.

    Empty where the run has no manifest yet.
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
    manifest = AnalyticsManifest.find(RunFolder(Path(run.run_dir)).manifest)
    return manifest.to_json() if manifest is not None else {}


def _pairs(run: pb.Run, here: pb.Run) -> Iterator[tuple[str, str]]:
    state = state_of(run)
    flags = f" ({', '.join(run.flags)})" if run.flags else ""
    yield "run", style(run.run_id, bold=True) + ("  (archived)" if run.archived else "")
    yield "name", run.name
    yield "what", f"{title_of(run)}, worker {run.worker_type}"
    yield "status", style(state, fg=COLORS.get(state)) + f"  {run.status}{flags}"
    yield "reason", run.reason if run.reason != run.outcome else ""
    yield "stopped early", stopped_early(run)
    yield "waits for", run.queue_reason
    yield "runs on", run.executor + (f", node {run.node}" if run.node else "")
    yield "progress", _progress(run)
    yield "curves", figures_of(run)
    yield "evaluation", evaluation_text(evaluation_of(run))
    yield "result", _compact(parsed(run.result_json), leave_out=("evaluation", "stopped_early"))
    yield "submitted", formats.moment(run.created_at)
    yield "started", formats.moment(run.started_at)
    yield "finished", formats.moment(run.finished_at)
    took = elapsed_s(run)
    yield "took" if run.finished_at else "runs for", formats.duration(took) if took is not None else ""
    yield "resources", _resources(run)
    yield "priority", str(run.priority) if run.priority or run.status == RunStatus.INIT else ""
    yield "attempt", f"{run.attempt} of {run.retries + 1}" if run.retries or run.attempt > 1 else ""
    if run.HasField("parent"):
        yield "continues", f"{run.parent.run_id} from step {formats.count(run.parent.step)}"
    yield "tags", ", ".join(run.tags)
    yield "note", run.notes
    yield "parameters", _compact(parsed(run.extras_json))
    details = details_of(here)
    yield "hyper-parameters", _compact(details["hyperparameters"])
    kept = [f"step {formats.count(each['step'])}  {each['kind']}  {each['path']}" for each in details["checkpoints"]]
    yield "checkpoints", "\n".join(kept)
    yield "videos", "\n".join(details["videos"])
    yield from _provenance(here)
    yield "pid", str(run.pid) if run.pid else ""
    yield "run folder", run.run_dir
    yield "logs", run.logs_dir
    yield "size", formats.size(run.size_bytes) if run.size_bytes else ""


_SHOWN_VERSIONS = ("python", "torch", "gymnasium", "minigrid", "agentspeak", "spade", "httpx")


def _provenance(run: pb.Run) -> Iterator[tuple[str, str]]:
    known = provenance_of(run)
    host, versions = known.get("host", {}), known.get("versions", {})
    gpus = ", ".join(str(gpu.get("model", "")) for gpu in host.get("gpus", []))
    parts = [host.get("name"), host.get("cpu"), gpus and f"{gpus} (driver {host.get('gpu_driver')})"]
    yield "noted", "\n".join(known.get("training_notes", []))
    yield "made on", ", ".join(str(part) for part in parts if part)
    shown = [f"{name} {versions[name]}" for name in _SHOWN_VERSIONS if name in versions]
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


# ---------------------------------------------------------------- history


@click.command()
@one_run
@json_option
@pass_cli
def history_command(cli: Cli, /, run: str, as_json: bool) -> int:
    """Show the history of a run."""
    with cli.client() as client:
        events = list(client.history(client.find(run).run_id))
    if as_json:
        write_json(
            {
                "seq": event.seq,
                "run_id": event.run_id,
                "timestamp": event.timestamp,
                "kind": event.kind,
                "from": event.from_status or None,
                "to": event.to_status or None,
                "reason": event.reason,
                "payload": parsed(event.payload_json),
                "attempt": event.attempt,
            }
            for event in events
        )
        return 0
    several = any(event.attempt > 1 for event in events)
    moves = [
        f"{event.from_status} → {event.to_status}"
        if event.from_status and event.from_status != event.to_status
        else event.to_status
        for event in events
    ]
    write_table(
        [
            Column("TIME", [formats.moment(event.timestamp) for event in events]),
            Column("EVENT", [event.kind for event in events]),
            Column("STATUS", moves),
            Column("ATTEMPT", [str(event.attempt) if several else "" for event in events], right=True),
            Column("REASON", [" ".join(event.reason.split()) for event in events], shrink_to=20),
        ]
    )
    return 0


# ---------------------------------------------------------------- logs


STREAMS = ("stdout", "stderr", "training_stdout", "training_stderr")
_BYTES_PER_LINE = 256
_GROWTH = 1 << 20
"""A log may grow this much between finding its last lines and following it, without a gap"""


@click.command()
@one_run
@click.option("-f", "--follow", is_flag=True, help="Print what is written until the run ends.")
@click.option("--stream", type=click.Choice(STREAMS), help="Only this one.  [default: all that hold something]")
@click.option("--raw", is_flag=True, help="Print lifecycle events as the JSON lines they are.")
@click.option("-n", "--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@pass_cli
def logs_command(cli: Cli, /, run: str, follow: bool, stream: str | None, raw: bool, tail: int | None) -> int:
    """Print what the worker (stdout, stderr) and its training process (training_…) wrote."""
    with cli.client() as client:
        found = client.find(run)
        printer = _Printer(with_headings=stream is None, raw=raw)
        streams = (stream,) if stream else STREAMS
        if follow and found.status != RunStatus.TERM:
            try:
                _follow(client, found.run_id, streams, tail, printer)
            except KeyboardInterrupt:
                return 130
        else:
            for name in streams:
                for data in _content(client, found.run_id, name, tail):
                    printer.write(name, data)
                printer.end(name)
        if not printer.wrote:
            notify(f"{run} wrote nothing yet" if found.status != RunStatus.TERM else f"{run} wrote nothing")
    return 0


class _Printer:
    """Writes bytes through, to a terminal their text; with a heading when another stream begins, as `tail` does.

    Lifecycle events, which a worker prints to stdout as JSON lines, are rendered unless `raw`.
    """

    def __init__(self, *, with_headings: bool, raw: bool) -> None:
        self.wrote = False
        self._raw, self._rest = raw, b""
        self._with_headings = with_headings
        self._last = ""
        self._at_line_start = True
        self._decoders: dict[str, codecs.IncrementalDecoder] = defaultdict(
            lambda: codecs.getincrementaldecoder("utf-8")("replace")
        )

    def write(self, stream: str, data: bytes) -> None:
        """Print what was written to a stream; of the worker's stdout whole lines alone."""
        if stream == "stdout" and not self._raw:
            whole, newline, self._rest = (self._rest + data).rpartition(b"\n")
            data = b"".join(_rendered(line) + b"\n" for line in whole.split(b"\n")) if newline else b""
        self._print(stream, data)

    def end(self, stream: str) -> None:
        """Print what is left of a last line."""
        if stream == "stdout":
            self._print(stream, self._rest)
            self._rest = b""

    def _print(self, stream: str, data: bytes) -> None:
        if not data:
            return
        if self._with_headings and stream != self._last:
            gap = "" if not self.wrote else "\n" if self._at_line_start else "\n\n"
            print(f"{gap}==> {stream} <==", flush=True)
        self.wrote, self._last, self._at_line_start = True, stream, data.endswith(b"\n")
        if sys.stdout.isatty():  # elsewhere, the bytes as they are
            parts = self._decoders[stream].decode(data).split("\r")  # progress bars go back to the line's beginning
            as_it_is(sys.stdout).write("\r".join(printable(without_escapes(part)) for part in parts))
            sys.stdout.flush()
            return
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def _rendered(line: bytes) -> bytes:
    return lifecycle_line(line.decode(errors="replace")).encode() if line.startswith(b'{"event"') else line


def _content(client: TrainerClient, run_id: str, stream: str, tail: int | None) -> Iterator[bytes]:
    if tail is not None:
        yield _last_lines(client, run_id, stream, tail)[1]
        return
    with client.logs(run_id, stream) as chunks:
        for chunk in chunks:
            yield chunk.data


def _last_lines(client: TrainerClient, run_id: str, stream: str, lines: int) -> tuple[int, bytes]:
    """Return the last lines of a log and where they begin; reads only as far back as it must."""
    reach = max(1 << 16, lines * _BYTES_PER_LINE)
    while True:
        with client.logs(run_id, stream, tail_bytes=reach) as chunks:
            received = list(chunks)
        if not received:
            return 0, b""
        start, data = received[0].offset, b"".join(chunk.data for chunk in received)
        if start == 0 or data.count(b"\n") > lines:
            break
        reach *= 8
    if lines == 0:
        return start + len(data), b""
    kept = b"".join(data.splitlines(keepends=True)[-lines:])
    return start + len(data) - len(kept), kept


_Arrived = queue.SimpleQueue[tuple[str, bytes | str | TrainerError | None]]
"""An item of a stream: bytes, a message for the user, the error that ended it, or None at its end"""


def _follow(client: TrainerClient, run_id: str, streams: Sequence[str], tail: int | None, printer: _Printer) -> None:
    arrived: _Arrived = queue.SimpleQueue()
    for stream in streams:
        threading.Thread(target=_read, args=(client, run_id, stream, tail, arrived), daemon=True).start()
    open_streams, notice = len(streams), ""
    while open_streams:
        stream, item = arrived.get()
        if isinstance(item, TrainerError):
            raise item
        if item is None:
            open_streams -= 1
            printer.end(stream)
        elif isinstance(item, bytes):
            printer.write(stream, item)
        elif item != notice:  # the streams break off together
            notice = item
            notify(item)


def _read(client: TrainerClient, run_id: str, stream: str, tail: int | None, arrived: _Arrived) -> None:
    start, seen = 0, 0

    def opened() -> RpcStream[pb.LogChunk]:
        nonlocal start, seen
        reach = 0
        if seen:  # after a break: what is printed already is left out
            start, seen = seen, 0
        elif tail is not None:
            start, kept = _last_lines(client, run_id, stream, tail)
            reach = len(kept) + _GROWTH
        return client.logs(run_id, stream, follow=True, tail_bytes=reach)

    try:
        for chunk in reconnecting(opened, lambda message: arrived.put((stream, message))):
            if chunk.offset < seen:
                start = 0  # the log outgrew its cap, was cut and begins anew
            arrived.put((stream, chunk.data[max(0, start - chunk.offset) :]))
            seen = chunk.offset + len(chunk.data)
        arrived.put((stream, None))
    except TrainerError as error:
        arrived.put((stream, error))
