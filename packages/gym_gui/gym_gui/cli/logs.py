"""`mosaic logs`: print what a run wrote, and keep printing with -f."""

from __future__ import annotations

import codecs
import queue
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from gym_gui.cli.context import Cli, one_run, pass_cli, say
from gym_gui.cli.terminal import as_it_is
from gym_gui.services.trainer.errors import TrainerError
from gym_gui.wording.log_lines import lifecycle_line
from gym_gui.wording.plain_text import printable, without_escapes

if TYPE_CHECKING:
    from gym_gui.services.trainer.client import TrainerClient

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
        if follow and found.status != "TERM":
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
            say(f"{run} wrote nothing yet" if found.status != "TERM" else f"{run} wrote nothing")
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
    """The last lines of a log and where they begin; reads only as far back as it must."""
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


def _follow(client: TrainerClient, run_id: str, streams: Sequence[str], tail: int | None, printer: _Printer) -> None:
    arrived: queue.SimpleQueue[tuple[str, bytes | TrainerError | None]] = queue.SimpleQueue()

    def read(stream: str) -> None:
        try:
            start, reach, seen = 0, 0, 0
            if tail is not None:
                start, kept = _last_lines(client, run_id, stream, tail)
                reach = len(kept) + _GROWTH
            with client.logs(run_id, stream, follow=True, tail_bytes=reach) as chunks:
                for chunk in chunks:
                    if chunk.offset < seen:
                        start = 0  # the log outgrew its cap, was cut and begins anew
                    arrived.put((stream, chunk.data[max(0, start - chunk.offset) :]))
                    seen = chunk.offset + len(chunk.data)
            arrived.put((stream, None))
        except TrainerError as error:
            arrived.put((stream, error))

    for stream in streams:
        threading.Thread(target=read, args=(stream,), daemon=True).start()
    open_streams = len(streams)
    while open_streams:
        stream, item = arrived.get()
        if isinstance(item, TrainerError):
            raise item
        if item is None:
            open_streams -= 1
            printer.end(stream)
        else:
            printer.write(stream, item)
