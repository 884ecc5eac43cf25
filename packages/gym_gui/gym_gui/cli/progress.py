"""Shows followed runs: a live display on a terminal, plain lines elsewhere, and a summary at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gym_gui.cli.context import say
from gym_gui.cli.follow import RunFollower
from gym_gui.cli.terminal import Cleaned, as_it_is
from gym_gui.wording import formats
from gym_gui.wording.run_view import (
    COLOURS,
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

    from gym_gui.services.trainer.client import TrainerClient

FRAME_S = 0.25
LINE_S = 5.0


Headline = Callable[[Sequence["pb.Run"]], str]
"""What a display says about all of its runs together"""


def follow(
    client: TrainerClient, runs: Sequence[pb.Run], *, headline: Headline | None = None
) -> list[pb.Run] | None:  # fmt: skip
    """Show these runs until each has ended and return them; None when the person left with Ctrl-C."""
    with RunFollower(client, runs) as follower:
        try:
            show(follower, until=lambda: follower.is_over, headline=headline)
        except KeyboardInterrupt:
            return None
    return list(follower.runs.values())


def show(follower: RunFollower, *, until: Callable[[], bool], headline: Headline | None = None) -> None:
    """Draw the followed runs until the condition holds."""
    if sys.stdout.isatty():
        _show_live(follower, until, headline)
    else:
        _show_lines(follower, until, headline)


def _show_live(follower: RunFollower, until: Callable[[], bool], headline: Headline | None) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(file=as_it_is(sys.stdout))
    with Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        while True:
            runs = list(follower.runs.values())
            above = headline(runs) if headline else ""
            live.update(picture(runs, console, follower.trouble, headline=above), refresh=True)
            if until():
                return
            follower.poll(FRAME_S)


def _show_lines(follower: RunFollower, until: Callable[[], bool], headline: Headline | None) -> None:
    told: dict[str, tuple[str, str]] = {}
    told_at: dict[str, float] = {}
    trouble = above = ""
    while True:
        now = time.monotonic()
        for run in follower.runs.values():
            state = (state_of(run), remark_on(run) if run.status in ("INIT", "FAULT") else "")
            is_due = run.status == "EXEC" and now - told_at.get(run.run_id, 0) >= LINE_S
            if told.get(run.run_id) != state or is_due:
                print(line_about(run), flush=True)
                told[run.run_id], told_at[run.run_id] = state, now
        if headline is not None and (words := headline(list(follower.runs.values()))) != above:
            above = words
            print(f"{time.strftime('%H:%M:%S')} {above}", flush=True)
        if follower.trouble != trouble:
            trouble = follower.trouble
            say(trouble or "the daemon answers again")
        if until():
            return
        follower.poll(0.5)


def line_about(run: pb.Run) -> str:
    """One line for a log: time, run, state, numbers."""
    parts = [state_of(run)]
    if remark := remark_on(run):
        parts[0] += f" ({remark})"
    if run.step or run.status == "EXEC":
        of_total = f"/{formats.count(run.total)} ({progress_of(run)})" if run.total else ""
        parts.append(f"{formats.count(run.step)}{of_total} {unit_of(run)}")
    if run.HasField("episodic_return"):
        parts.append(f"return {formats.quantity(run.episodic_return)}")
    if run.HasField("sps") and run.status == "EXEC":
        parts.append(f"{formats.count(run.sps)} {unit_of(run)}/s")
    if (remaining := remaining_s(run)) is not None:
        parts.append(f"ETA {formats.duration(remaining)}")
    return f"{time.strftime('%H:%M:%S')} {short_id(run.run_id)} {title_of(run)}: {', '.join(parts)}"


def picture(runs: Sequence[pb.Run], console: Console, trouble: str = "", *, headline: str = "") -> RenderableType:
    """The live display: one row a run, below it why some of them wait."""
    from rich.console import Group
    from rich.constrain import Constrain
    from rich.text import Text

    height = max(3, console.size.height - (7 if headline else 6))
    shown = sorted(runs, key=lambda run: (run.status == "TERM", run.number))[:height]
    shown.sort(key=lambda run: run.number)
    parts: list[Any] = [Text(headline, style="bold", overflow="ellipsis", no_wrap=True)] if headline else []
    parts.append(_table(shown, console.width))
    if len(runs) == 1 and (figures := figures_of(runs[0])):
        parts.append(Text(figures, style="dim", overflow="ellipsis", no_wrap=True))
    remarks = [run for run in shown if run.status != "TERM" and remark_on(run)]
    for run in remarks[:3]:
        label = f"{short_id(run.run_id)} " if len(runs) > 1 else ""
        parts.append(
            Text(f"{label}{state_of(run)}: {remark_on(run)}", style="yellow", overflow="ellipsis", no_wrap=True)
        )
    if len(runs) > len(shown):
        parts.append(Text(f"… and {formats.plural(len(runs) - len(shown), 'more run')}", style="dim"))
    if trouble:
        parts.append(Text(f"no news: {trouble}", style="red"))
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
    # Widths that hold what usually comes, so that the bars do not jump at every change.
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
            Text(state, style=COLOURS.get(state, "")),
            ProgressBar(total=1.0, completed=done or 0.0, finished_style="green", complete_style="blue"),
            steps,
            formats.quantity(run.episodic_return) if run.HasField("episodic_return") else "",
            number(run.sps) if run.HasField("sps") and run.status != "TERM" and run.step > 1 else "",
            formats.duration(remaining) if remaining is not None else "",
            formats.duration(elapsed) if elapsed is not None else "",
        )
    return table


def _label(run: pb.Run, same: bool, roomy: bool) -> str:
    """What tells this row from the others; the heading names what they have in common."""
    if same and not run.HasField("seed"):
        return short_id(run.run_id)
    name = f"seed {run.seed}" if same else title_of(run)
    return f"{name} · {short_id(run.run_id)}" if roomy else name
