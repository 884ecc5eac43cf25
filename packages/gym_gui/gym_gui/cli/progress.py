"""`mosaic watch`, and how every command follows runs: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click
from mosaic_wire.run_status import UNFINISHED, RunStatus

from gym_gui.cli.context import Cleaned, Cli, as_it_is, complete_run, find_runs, notify, pass_cli
from gym_gui.services.trainer.errors import DaemonUnreachable, NotPossibleNow, RunNotFound, TrainerError
from gym_gui.wording import formats
from gym_gui.wording.run_view import (
    COLORS,
    elapsed_s,
    figures_of,
    fraction,
    progress_of,
    remaining_s,
    remark_on,
    short_id,
    state_of,
    title_of,
    unit_of,
)

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb
    from rich.console import Console, RenderableType

    from gym_gui.services.trainer.client import RpcStream, TrainerClient

QUIET_S = 10
"""After this long without updates the daemon is polled, because a stopped one keeps its streams open"""
GIVE_UP_S = 60
"""A daemon that is unreachable for this long is given up"""
_RETRY_S = 0.5
T = TypeVar("T")


def reconnecting(open_stream: Callable[[], RpcStream[T]], on_message: Callable[[str], object]) -> Iterator[T]:
    """Yield a stream's messages, reopening it while the daemon is unreachable; `on_message` is called about that."""
    away_since: float | None = None
    while True:
        try:
            with open_stream() as stream:
                for item in stream:
                    if away_since is not None:
                        on_message("the daemon answers again")
                        away_since = None
                    yield item
            return
        except DaemonUnreachable as error:
            if away_since is None:
                away_since = time.monotonic()
                on_message(f"{error}; waiting for it")
            elif time.monotonic() - away_since > GIVE_UP_S:
                raise DaemonUnreachable(f"{error}. Runs continue without it; the same command follows again") from None
        time.sleep(_RETRY_S)


class RunFollower:
    """Follows runs: `poll` updates their states in `runs`."""

    def __init__(
        self, client: TrainerClient, runs: Sequence[pb.Run], *, since_seq: int | None = None, adopt: bool = False
    ) -> None:
        self.runs: dict[str, pb.Run] = {run.run_id: run for run in runs}
        self.trouble = ""
        """Why there are no updates, or empty"""
        self._client = client
        self._adopt = adopt
        self._queue: queue.SimpleQueue[pb.RunUpdate | TrainerError] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._stream: RpcStream[pb.RunUpdate] | None = None
        self._last_seq = min((run.event_seq for run in runs), default=0) if since_seq is None else since_seq
        self._only = next(iter(self.runs)) if len(self.runs) == 1 and not adopt else ""
        self._last_update = time.monotonic()
        self._away_since: float | None = None
        self._thread = threading.Thread(target=self._read, name="follow-runs", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        if self._stream is not None:
            self._stream.cancel()
        self._thread.join(timeout=2)

    @property
    def is_over(self) -> bool:
        return all(run.status == RunStatus.TERM for run in self.runs.values())

    def poll(self, timeout_s: float) -> list[pb.RunUpdate]:
        """Wait up to `timeout_s` for updates; raise when the daemon stays unreachable."""
        deadline = time.monotonic() + timeout_s
        updates: list[pb.RunUpdate] = []
        while True:
            try:
                item = self._queue.get(timeout=max(0.0, deadline - time.monotonic()) if not updates else 0)
            except queue.Empty:
                break
            self._last_update = time.monotonic()
            if isinstance(item, TrainerError):
                self._handle_unreachable(item)
                continue
            self.trouble, self._away_since = "", None
            if self._adopt or item.run.run_id in self.runs:
                known = self.runs.get(item.run.run_id)
                # A replayed event brings the run as it is now; the live ones behind it are older.
                if known is None or item.run.event_seq >= known.event_seq:
                    self.runs[item.run.run_id] = item.run
                updates.append(item)
        if time.monotonic() - self._last_update > QUIET_S:
            self._poll_one_run()
        return updates

    def _handle_unreachable(self, error: TrainerError) -> None:
        if not isinstance(error, DaemonUnreachable):
            raise error
        now = time.monotonic()
        self._away_since = self._away_since or now
        self.trouble = str(error)
        if now - self._away_since > GIVE_UP_S:
            raise DaemonUnreachable(f"{error}. Runs continue without it; `mosaic watch` follows them again later")

    def _poll_one_run(self) -> None:
        run = next((run for run in self.runs.values() if run.status != RunStatus.TERM), None)
        if run is None:
            return
        self._last_update = time.monotonic()
        try:
            self.runs[run.run_id] = self._client.get(run.run_id)
            self.trouble, self._away_since = "", None
        except RunNotFound:
            del self.runs[run.run_id]
            if not self.runs:
                raise
        except DaemonUnreachable as error:
            self._handle_unreachable(error)

    def _read(self) -> None:
        while not self._closed.is_set():
            try:
                self._stream = self._client.watch(run_id=self._only, since_seq=self._last_seq)
                if self._closed.is_set():
                    self._stream.cancel()
                for update in self._stream:
                    if update.HasField("event"):
                        self._last_seq = max(self._last_seq, update.event.seq)
                    self._queue.put(update)
            except NotPossibleNow:
                pass  # the stream was too slow; missed events are sent again
            except TrainerError as error:
                self._queue.put(error)
            except ValueError:
                return  # the channel was closed: the command has ended
            self._closed.wait(_RETRY_S)


FRAME_S = 0.25
LINE_S = 5.0


Headline = Callable[[Sequence["pb.Run"]], str]
"""The summary line of a display"""


def follow(client: TrainerClient, runs: Sequence[pb.Run], *, headline: Headline | None = None) -> list[pb.Run] | None:
    """Show these runs until each has ended and return them; None after Ctrl-C."""
    with RunFollower(client, runs) as follower:
        try:
            show(follower, until=lambda: follower.is_over, headline=headline)
        except KeyboardInterrupt:
            return None
    return list(follower.runs.values())


def follow_to_end(
    client: TrainerClient, runs: Sequence[pb.Run], *, expect_return: float | None = None, code_when_left: int = 130
) -> int:
    """Follow these runs, print how they ended and return the exit code."""
    from gym_gui.cli.summary import notify_detached, summarize

    ended = follow(client, runs)
    if ended is None:
        notify_detached(runs)
        return code_when_left
    return summarize(client, ended, expect_return=expect_return)


class Noted:
    """What trainings have noted for the user, read once from each run's folder when its first step is reported."""

    def __init__(self) -> None:
        self._notes: dict[str, list[str]] = {}

    def of(self, run: pb.Run) -> list[str]:
        from gym_gui.cli.summary import notes_of

        if run.step and run.run_id not in self._notes:
            self._notes[run.run_id] = notes_of(run)
        return self._notes.get(run.run_id, [])


def show(follower: RunFollower, *, until: Callable[[], bool], headline: Headline | None = None) -> None:
    """Draw the followed runs until the condition holds."""
    if not sys.stdout.isatty():
        _show_lines(follower, until, headline)
        return

    def draw(console: Console) -> RenderableType:
        runs = list(follower.runs.values())
        running = [run for run in runs if run.status != RunStatus.TERM]
        notes = dict.fromkeys(note for run in running for note in noted.of(run))
        return live_display(runs, console, follower.trouble, headline=headline(runs) if headline else "", notes=notes)

    noted = Noted()
    show_live(follower, until, draw)


def show_live(follower: RunFollower, until: Callable[[], bool], draw: Callable[[Console], RenderableType]) -> None:
    """Draw the followed runs on the terminal until the condition holds."""
    from rich.console import Console
    from rich.live import Live

    console = Console(file=as_it_is(sys.stdout))
    with Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        while True:
            live.update(draw(console), refresh=True)
            if until():
                return
            follower.poll(FRAME_S)


def _show_lines(follower: RunFollower, until: Callable[[], bool], headline: Headline | None) -> None:
    printed: dict[str, tuple[str, str]] = {}
    printed_at: dict[str, float] = {}
    trouble = above = ""
    noted, printed_notes = Noted(), set[tuple[str, str]]()
    while True:
        now = time.monotonic()
        for run in follower.runs.values():
            state = (state_of(run), remark_on(run) if run.status in (RunStatus.INIT, RunStatus.FAULT) else "")
            is_due = now - printed_at.get(run.run_id, 0) >= LINE_S and not follower.trouble
            if printed.get(run.run_id) != state or (is_due and run.status == RunStatus.EXEC):
                print(line_about(run), flush=True)
                printed[run.run_id], printed_at[run.run_id] = state, now
            for note in noted.of(run) if run.status != RunStatus.TERM else ():  # its summary has them
                if (run.run_id, note) not in printed_notes:
                    printed_notes.add((run.run_id, note))
                    print(f"{time.strftime('%H:%M:%S')} {short_id(run.run_id)} note: {note}", flush=True)
        if headline is not None and (line := headline(list(follower.runs.values()))) != above:
            above = line
            print(f"{time.strftime('%H:%M:%S')} {above}", flush=True)
        if follower.trouble != trouble:
            trouble = follower.trouble
            notify(trouble or "the daemon answers again")
        if until():
            return
        follower.poll(0.5)


def line_about(run: pb.Run) -> str:
    """Return one log line: time, run, state, values."""
    parts = [state_of(run)]
    if remark := remark_on(run):
        parts[0] += f" ({remark})"
    if run.status == RunStatus.PAUSE:
        parts[0] += f"; `mosaic resume {short_id(run.run_id)}` continues it"
    if run.step or run.status == RunStatus.EXEC:
        of_total = f"/{formats.count(run.total)} ({progress_of(run)})" if run.total else ""
        parts.append(f"{formats.count(run.step)}{of_total} {unit_of(run)}")
    if run.HasField("episodic_return"):
        parts.append(f"return {formats.quantity(run.episodic_return)}")
    if run.HasField("sps") and run.status == RunStatus.EXEC:
        parts.append(f"{formats.count(run.sps)} {unit_of(run)}/s")
    if (remaining := remaining_s(run)) is not None:
        parts.append(f"ETA {formats.duration(remaining)}")
    return f"{time.strftime('%H:%M:%S')} {short_id(run.run_id)} {title_of(run)}: {', '.join(parts)}"


def live_display(
    runs: Sequence[pb.Run], console: Console, trouble: str = "", *, headline: str = "", notes: Iterable[str] = ()
) -> RenderableType:
    """Return the live display: one row per run, below it why some of them wait and what their trainings have noted."""
    from rich.console import Group
    from rich.constrain import Constrain
    from rich.text import Text

    height = max(3, console.size.height - (7 if headline else 6))
    shown = sorted(runs, key=lambda run: (run.status == RunStatus.TERM, run.number))[:height]
    shown.sort(key=lambda run: run.number)
    parts: list[Any] = [Text(headline, style="bold", overflow="ellipsis", no_wrap=True)] if headline else []
    parts.append(_table(shown, console.width))
    if len(runs) == 1 and (figures := figures_of(runs[0])):
        parts.append(Text(figures, style="dim", overflow="ellipsis", no_wrap=True))
    remarks = [run for run in shown if run.status != RunStatus.TERM and remark_on(run)]
    for run in remarks[:3]:
        label = f"{short_id(run.run_id)} " if len(runs) > 1 else ""
        parts.append(
            Text(f"{label}{state_of(run)}: {remark_on(run)}", style="yellow", overflow="ellipsis", no_wrap=True)
        )
    parts += [Text(f"note: {note}", style="dim") for note in notes]
    if len(runs) > len(shown):
        parts.append(Text(f"… and {formats.plural(len(runs) - len(shown), 'more run')}", style="dim"))
    if trouble:
        parts.append(Text(f"no updates: {trouble}", style="red"))
    # The terminal prints ^C at the end of the last line; without room for it the line would wrap and be drawn twice.
    return Constrain(Cleaned(Group(*parts)), console.width - 3)


def _table(runs: Sequence[pb.Run], width: int) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    roomy = width >= 100
    same = len({(run.algo, run.env_id) for run in runs}) == 1
    table = Table.grid(padding=(0, 2 if roomy else 1, 0, 0))
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=40 if roomy else 22)
    table.add_column(no_wrap=True, min_width=9)
    table.add_column(ratio=1, min_width=6)
    # Fixed widths for usual values, so that the bars do not move at every change.
    for min_width in (9, 6, 5, 4, 4):
        table.add_column(justify="right", no_wrap=True, min_width=min_width)
    table.expand = True
    label = f"{runs[0].algo} {runs[0].env_id}" if same and runs else "run"
    units = {unit_of(run) for run in runs}
    unit = units.pop() if len(units) == 1 else "steps"
    headings = (label, "status", "", unit, "return", f"{unit}/s" if roomy else "sps", "ETA", "time")
    table.add_row(*(Text(heading, style="dim", overflow="ellipsis") for heading in headings))
    now = time.time()
    for run in runs:
        state = state_of(run)
        done, remaining, elapsed = fraction(run), remaining_s(run), elapsed_s(run, now)
        number = formats.count if roomy else formats.short_count
        steps = f"{number(run.step)}/{number(run.total)}" if run.total else number(run.step) if run.step else ""
        table.add_row(
            Text(_label(run, same, roomy), overflow="ellipsis"),
            Text(state, style=COLORS.get(state, "")),
            ProgressBar(total=1.0, completed=done or 0.0, finished_style="green", complete_style="blue"),
            steps,
            formats.quantity(run.episodic_return) if run.HasField("episodic_return") else "",
            number(run.sps) if run.HasField("sps") and run.status != RunStatus.TERM and run.step > 1 else "",
            formats.duration(remaining) if remaining is not None else "",
            formats.duration(elapsed) if elapsed is not None else "",
        )
    return table


def _label(run: pb.Run, same: bool, roomy: bool) -> str:
    """Return what distinguishes this row; the heading names what all rows have in common."""
    if same and not run.HasField("seed"):
        return short_id(run.run_id)
    name = f"seed {run.seed}" if same else title_of(run)
    return f"{name} · {short_id(run.run_id)}" if roomy else name


# ---------------------------------------------------------------- watch


@click.command()
@click.argument("runs", metavar="[RUN]...", nargs=-1, shell_complete=complete_run)
@pass_cli
def watch_command(cli: Cli, /, runs: tuple[str, ...]) -> int:
    """Follow these runs until they end; without RUN, follow whatever is queued or running until Ctrl-C."""
    with cli.client() as client:
        if not runs:
            return _watch_all(client)
        return follow_to_end(client, find_runs(client, runs), code_when_left=0)


def _watch_all(client: TrainerClient) -> int:

    answer = client.list(statuses=UNFINISHED)
    if not answer.runs:
        notify("nothing is queued or running; new runs show up here, Ctrl-C leaves")
    with RunFollower(client, answer.runs, since_seq=answer.last_seq, adopt=True) as follower:
        try:
            show(follower, until=lambda: False)
        except KeyboardInterrupt:
            notify("")
    return 0
