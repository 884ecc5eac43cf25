"""A sweep on the terminal: its own line, the trials that run, and the table of all trials."""

from __future__ import annotations

import json
import math
import shlex
import sys
import time
from typing import TYPE_CHECKING, Any

import click
from mosaic_wire.run_request import algo_params, worker_part
from mosaic_wire.run_status import RunOutcome, RunStatus

from gym_gui.cli.context import Cleaned, hint, notify
from gym_gui.cli.listing import Column, write_json, write_json_object, write_table
from gym_gui.cli.progress import RunFollower, line_about, show_live
from gym_gui.cli.scripts import NO_ENVIRONMENT
from gym_gui.services.sweeps import SweepUnreadable, settings_of, study_of, trial_of
from gym_gui.services.trainer.run_copies import STUDY
from gym_gui.wording import formats
from gym_gui.wording.run_view import COLORS, extras_of, fraction, remaining_s, remark_on, short_id, state_of

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb
    from rich.console import Console, RenderableType

    from gym_gui.services.analytics.studies.study import Study, Trial
    from gym_gui.services.trainer.client import TrainerClient

_LINE_S = 30.0
_ENDED_SHOWN = 5


def follow_sweep(client: TrainerClient, run: pb.Run) -> pb.Run | None:
    """Show a sweep until it ends and return it; None when the person left with Ctrl-C."""
    known = client.list(submitted_by=run.run_id)
    with RunFollower(client, [run, *known.runs], since_seq=run.event_seq, adopt=True) as follower:
        try:
            if sys.stdout.isatty():
                show_live(
                    follower,
                    lambda: follower.runs[run.run_id].status == RunStatus.TERM,
                    lambda console: live_display(
                        follower.runs[run.run_id], _children(follower, run.run_id), console, follower.trouble
                    ),
                )
            else:
                _show_lines(follower, run.run_id)
        except KeyboardInterrupt:
            return None
        return follower.runs[run.run_id]


def trial_number(run: pb.Run) -> str:
    return next((tag.removeprefix("trial:") for tag in run.tags if tag.startswith("trial:")), "?")


def searched_values(run: pb.Run, sweep: pb.Run) -> str:
    """Return the values this run was given of what the sweep searches for."""
    searched = algo_params(extras_of(sweep)).get("parameters") or {}
    given = algo_params(extras_of(run))
    return "  ".join(f"{name} {value_text(given[name])}" for name in searched if name in given)


def _children(follower: RunFollower, sweep_id: str) -> list[pb.Run]:
    return [run for run in follower.runs.values() if run.submitted_by == sweep_id]


def _show_lines(follower: RunFollower, sweep_id: str) -> None:
    printed: set[str] = set()
    state, printed_at, trouble = "", 0.0, ""
    while True:
        sweep = follower.runs[sweep_id]
        for run in sorted(_children(follower, sweep_id), key=lambda run: run.number):
            if run.status == RunStatus.TERM and run.run_id not in printed:
                printed.add(run.run_id)
                print(_line_about_trial(run, sweep), flush=True)
        now = time.monotonic()
        if state_of(sweep) != state or now - printed_at > _LINE_S:
            print(line_about(sweep).replace(" steps", " trials"), flush=True)
            state, printed_at = state_of(sweep), now
        if follower.trouble != trouble:
            trouble = follower.trouble
            notify(trouble or "the daemon answers again")
        if sweep.status == RunStatus.TERM:
            return
        follower.poll(0.5)


def _line_about_trial(run: pb.Run, sweep: pb.Run) -> str:
    seed = f" seed {run.seed}" if len(algo_params(extras_of(sweep)).get("seeds") or [1]) > 1 else ""
    figure = f", return {formats.quantity(run.episodic_return)}" if run.HasField("episodic_return") else ""
    remark = f" ({remark_on(run)})" if run.outcome == RunOutcome.FAILED else ""
    label = "pruned" if "pruned at step" in run.reason else state_of(run)
    values = searched_values(run, sweep)
    return (
        f"{time.strftime('%H:%M:%S')} {short_id(run.run_id)} trial {trial_number(run)}{seed}: {label}{remark}{figure}"
        f"  {values}"
    )


def live_display(sweep: pb.Run, children: list[pb.Run], console: Console, trouble: str = "") -> RenderableType:
    """Return the live display."""
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
        Text(state, style=COLORS.get(state, "")),
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
    going = sorted((run for run in children if run.status != RunStatus.TERM), key=lambda run: run.number)
    ended = sorted((run for run in children if run.status == RunStatus.TERM), key=lambda run: run.finished_at)
    for run in [*ended[-_ENDED_SHOWN:], *going[:height]]:
        label = "pruned" if "pruned at step" in run.reason else state_of(run)
        done = fraction(run)
        table.add_row(
            Text(f"trial {trial_number(run)}", style="" if run.status != RunStatus.TERM else "dim"),
            Text(f"seed {run.seed}" if run.HasField("seed") else "", style="dim"),
            Text(label, style="yellow" if label == "pruned" else COLORS.get(label, "")),
            f"{100 * done:.0f} %" if done is not None and run.status != RunStatus.TERM else "",
            formats.quantity(run.episodic_return) if run.HasField("episodic_return") else "",
            Text(searched_values(run, sweep), style="dim", overflow="ellipsis", no_wrap=True),
        )
    parts: list[Any] = [head, table]
    if len(going) > height:
        parts.append(Text(f"… and {formats.plural(len(going) - height, 'more run')}", style="dim"))
    if remark := remark_on(sweep):
        parts.append(Text(remark, style="yellow", overflow="ellipsis", no_wrap=True))
    if trouble:
        parts.append(Text(f"no updates: {trouble}", style="red"))
    return Constrain(Cleaned(Group(*parts)), console.width - 3)


# ---------------------------------------------------------------- the table of trials


_COLORS = {"complete": "green", "pruned": "yellow", "fail": "red", "running": "blue", "waiting": "cyan"}
_SHOWN_AT_THE_END = 5


def write_trials(run: pb.Run, *, limit: int | None = None, as_json: bool = False) -> int:
    """Print the trials, best first; those without a value after them, the newest first."""
    study = _readable(run)
    trials = in_order_of_merit(study)
    shown = trials if limit is None else trials[:limit]
    if as_json:
        write_json(_document(trial) for trial in shown)
        return 0
    if not shown:
        click.echo("no trial has begun yet")
        return 0
    names = list(study.parameters)
    states = [trial.state.name.lower() for trial in shown]
    write_table(
        [
            Column("trial", [str(trial.number) for trial in shown], right=True),
            Column("state", states, colors=[_COLORS.get(state) for state in states]),
            Column("objective", [_value(trial) for trial in shown], right=True),
            *(
                Column(name, [value_text(trial.params.get(name)) for trial in shown], right=True, shrink_to=8)
                for name in names
            ),
            Column("runs", [" ".join(map(short_id, trial.run_ids)) for trial in shown], shrink_to=8, optional=2),
            Column(
                "remark", [str(trial.user_attrs.get("mosaic_reason", "")) for trial in shown], shrink_to=12, optional=1
            ),
        ]
    )
    if len(shown) < len(trials):
        click.echo(f"… and {formats.plural(len(trials) - len(shown), 'more trial')}")
    return 0


def write_best(run: pb.Run, *, as_json: bool = False) -> int:
    """Print the best trial."""
    try:
        trial, settings = trial_of(run), settings_of(run)
    except SweepUnreadable as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        write_json_object(_document(trial))
        return 0
    click.echo(f"trial {trial.number}: {_value(trial)}")
    for name, value in trial.params.items():
        click.echo(f"  {name} = {value_text(value)}")
    part = worker_part(settings["trial"])
    extras = part.get("extras") or {}
    values = {"total_timesteps": part["total_timesteps"], **(extras.get("algo_params") or {}), **trial.params}
    script = extras.get("script_path")
    what = [script] if script and part["env_id"] == NO_ENVIRONMENT else [script or part["algo"], part["env_id"]]
    flags = [flag for name, value in values.items() for flag in (f"--{name.replace('_', '-')}", _typed(value))]
    click.echo(hint(f"\ntrain with it:  mosaic train --from-trial {short_id(run.run_id)}:{trial.number}"))
    click.echo(f"or by hand:     mosaic train {shlex.join([*what, *flags])}")
    return 0


def write_end(client: TrainerClient, run: pb.Run) -> int:
    """Print how a followed sweep ended, and its best trials; return the exit code."""
    from gym_gui.cli.summary import summarize

    code = summarize(client, [run])
    run = client.local(run, *STUDY)
    try:
        study = study_of(run)
    except SweepUnreadable:
        return code
    if study.best is not None:
        click.echo("")
        write_trials(run, limit=_SHOWN_AT_THE_END)
        click.echo(hint(f"\ntrain with the best:  mosaic train --from-trial {short_id(run.run_id)}"))
    return code


def in_order_of_merit(study: Study) -> list[Trial]:
    sign = -1 if study.is_maximized() else 1

    def rank(trial: Trial) -> tuple[int, float, int]:
        is_judged = trial.state.name == "COMPLETE" and bool(trial.values)
        return (0, sign * trial.values[0], trial.number) if is_judged else (1, 0.0, -trial.number)

    return sorted(study.trials, key=rank)


def _readable(run: pb.Run) -> Study:
    try:
        return study_of(run)
    except SweepUnreadable as error:
        raise click.ClickException(str(error)) from error


def _value(trial: Trial) -> str:
    return formats.quantity(trial.values[0]) if trial.values and math.isfinite(trial.values[0]) else ""


def value_text(value: Any) -> str:
    """Return a parameter's value, short."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value) if isinstance(value, bool) else str(value)


def _typed(value: Any) -> str:
    return repr(value) if isinstance(value, float) else json.dumps(value) if isinstance(value, bool) else str(value)


def _document(trial: Trial) -> dict[str, Any]:
    return {
        "number": trial.number,
        "state": trial.state.name.lower(),
        "value": trial.values[0] if trial.values else None,
        "params": trial.params,
        "runs": list(trial.run_ids),
        "reason": trial.user_attrs.get("mosaic_reason", ""),
    }
