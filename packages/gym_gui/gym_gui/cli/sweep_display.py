"""Follows a sweep: its own line, the trials that run, and those that have just ended."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from gym_gui.cli.context import say
from gym_gui.cli.follow import RunFollower
from gym_gui.cli.progress import FRAME_S, line_about
from gym_gui.cli.sweep_table import value_text
from gym_gui.cli.terminal import Cleaned, as_it_is
from gym_gui.wording import formats
from gym_gui.wording.run_view import COLOURS, fraction, remaining_s, remark_on, short_id, state_of

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb
    from rich.console import Console, RenderableType

    from gym_gui.services.trainer.client import TrainerClient

_LINE_S = 30.0
_ENDED_SHOWN = 5


def follow_sweep(client: TrainerClient, run: pb.Run) -> pb.Run | None:
    """Show a sweep until it ends and return it; None when the person left with Ctrl-C."""
    known = client.list(submitted_by=run.run_id)
    with RunFollower(client, [run, *known.runs], since_seq=run.event_seq, adopt=True) as follower:
        try:
            if sys.stdout.isatty():
                _show_live(follower, run.run_id)
            else:
                _show_lines(follower, run.run_id)
        except KeyboardInterrupt:
            return None
        return follower.runs[run.run_id]


def trial_number(run: pb.Run) -> str:
    return next((tag.removeprefix("trial:") for tag in run.tags if tag.startswith("trial:")), "?")


def searched_values(run: pb.Run, sweep: pb.Run) -> str:
    """The values this run was given of what the sweep searches for."""
    searched = _parameters(sweep).get("parameters") or {}
    given = _parameters(run)
    return "  ".join(f"{name} {value_text(given[name])}" for name in searched if name in given)


def _parameters(run: pb.Run) -> dict[str, Any]:
    try:
        found = json.loads(run.extras_json or "{}").get("algo_params")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _children(follower: RunFollower, sweep_id: str) -> list[pb.Run]:
    return [run for run in follower.runs.values() if run.submitted_by == sweep_id]


def _show_lines(follower: RunFollower, sweep_id: str) -> None:
    told: set[str] = set()
    state, told_at, trouble = "", 0.0, ""
    while True:
        sweep = follower.runs[sweep_id]
        for run in sorted(_children(follower, sweep_id), key=lambda run: run.number):
            if run.status == "TERM" and run.run_id not in told:
                told.add(run.run_id)
                print(_line_about_trial(run, sweep), flush=True)
        now = time.monotonic()
        if state_of(sweep) != state or now - told_at > _LINE_S:
            print(line_about(sweep).replace(" steps", " trials"), flush=True)
            state, told_at = state_of(sweep), now
        if follower.trouble != trouble:
            trouble = follower.trouble
            say(trouble or "the daemon answers again")
        if sweep.status == "TERM":
            return
        follower.poll(0.5)


def _line_about_trial(run: pb.Run, sweep: pb.Run) -> str:
    seed = f" seed {run.seed}" if len(_parameters(sweep).get("seeds") or [1]) > 1 else ""
    figure = f", return {formats.quantity(run.episodic_return)}" if run.HasField("episodic_return") else ""
    remark = f" ({remark_on(run)})" if run.outcome == "failed" else ""
    word = "pruned" if "pruned at step" in run.reason else state_of(run)
    values = searched_values(run, sweep)
    return (
        f"{time.strftime('%H:%M:%S')} {short_id(run.run_id)} trial {trial_number(run)}{seed}: {word}{remark}{figure}"
        f"  {values}"
    )


def _show_live(follower: RunFollower, sweep_id: str) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(file=as_it_is(sys.stdout))
    with Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        while True:
            sweep = follower.runs[sweep_id]
            live.update(picture(sweep, _children(follower, sweep_id), console, follower.trouble), refresh=True)
            if sweep.status == "TERM":
                return
            follower.poll(FRAME_S)


def picture(sweep: pb.Run, children: list[pb.Run], console: Console, trouble: str = "") -> RenderableType:
    """The live display."""
    from rich.console import Group
    from rich.constrain import Constrain
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    state, remaining = state_of(sweep), remaining_s(sweep)
    head = Table.grid(padding=(0, 2, 0, 0), expand=True)
    for ratio in (0, 0, 1, 0, 0, 0):
        head.add_column(no_wrap=True, ratio=ratio or None, min_width=6)
    label = f"{sweep.name or 'sweep'} · {short_id(sweep.run_id)}" if console.width >= 100 else short_id(sweep.run_id)
    head.add_row(
        Text(label, overflow="ellipsis"),
        Text(state, style=COLOURS.get(state, "")),
        ProgressBar(total=1.0, completed=fraction(sweep) or 0.0, finished_style="green", complete_style="blue"),
        f"{sweep.step}/{sweep.total} trials",
        f"best {formats.quantity(sweep.episodic_return)}" if sweep.HasField("episodic_return") else "",
        f"ETA {formats.duration(remaining)}" if remaining is not None else "",
    )
    table = Table.grid(padding=(0, 2, 0, 0))
    for width in (9, 6, 9):
        table.add_column(no_wrap=True, min_width=width)
    for width in (5, 7):
        table.add_column(no_wrap=True, min_width=width, justify="right")
    table.add_column(no_wrap=True)
    height = max(3, console.size.height - 6 - _ENDED_SHOWN)
    going = sorted((run for run in children if run.status != "TERM"), key=lambda run: run.number)
    ended = sorted((run for run in children if run.status == "TERM"), key=lambda run: run.finished_at)
    for run in [*ended[-_ENDED_SHOWN:], *going[:height]]:
        word = "pruned" if "pruned at step" in run.reason else state_of(run)
        done = fraction(run)
        table.add_row(
            Text(f"trial {trial_number(run)}", style="" if run.status != "TERM" else "dim"),
            Text(f"seed {run.seed}" if run.HasField("seed") else "", style="dim"),
            Text(word, style="yellow" if word == "pruned" else COLOURS.get(word, "")),
            f"{100 * done:.0f} %" if done is not None and run.status != "TERM" else "",
            formats.quantity(run.episodic_return) if run.HasField("episodic_return") else "",
            Text(searched_values(run, sweep), style="dim", overflow="ellipsis", no_wrap=True),
        )
    parts: list[Any] = [head, table]
    if len(going) > height:
        parts.append(Text(f"… and {formats.plural(len(going) - height, 'more run')}", style="dim"))
    if remark := remark_on(sweep):
        parts.append(Text(remark, style="yellow", overflow="ellipsis", no_wrap=True))
    if trouble:
        parts.append(Text(f"no news: {trouble}", style="red"))
    return Constrain(Cleaned(Group(*parts)), console.width - 3)
