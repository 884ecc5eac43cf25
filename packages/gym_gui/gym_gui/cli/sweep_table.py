"""The trials of a sweep as a table, and its best one as flags of `mosaic train`."""

from __future__ import annotations

import json
import math
import shlex
from typing import TYPE_CHECKING, Any

import click

from gym_gui.cli.listing import Column, write_json, write_json_object, write_table
from gym_gui.cli.scripts import NO_ENVIRONMENT
from gym_gui.services.sweeps import SweepUnreadable, settings_of, study_of, trial_of
from gym_gui.wording import formats
from gym_gui.wording.run_view import short_id

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.analytics.studies import Study, Trial
    from gym_gui.services.trainer.client import TrainerClient

_COLOURS = {"complete": "green", "pruned": "yellow", "fail": "red", "running": "blue", "waiting": "cyan"}
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
    write_table([
        Column("trial", [str(trial.number) for trial in shown], right=True),
        Column("state", states, colours=[_COLOURS.get(state) for state in states]),
        Column("objective", [_value(trial) for trial in shown], right=True),
        *(
            Column(name, [value_text(trial.params.get(name)) for trial in shown], right=True, shrink_to=8)
            for name in names
        ),
        Column("runs", [" ".join(map(short_id, trial.run_ids)) for trial in shown], shrink_to=8, optional=2),
        Column("remark", [str(trial.user_attrs.get("mosaic_reason", "")) for trial in shown], shrink_to=12, optional=1),
    ])  # fmt: skip
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
    part = settings["trial"]["metadata"]["worker"]["config"]
    extras = part.get("extras") or {}
    values = {"total_timesteps": part["total_timesteps"], **(extras.get("algo_params") or {}), **trial.params}
    script = extras.get("script_path")
    what = [script] if script and part["env_id"] == NO_ENVIRONMENT else [script or part["algo"], part["env_id"]]
    flags = [flag for name, value in values.items() for flag in (f"--{name.replace('_', '-')}", _typed(value))]
    click.echo(f"\ntrain with it:  mosaic train --from-trial {short_id(run.run_id)}:{trial.number}")
    click.echo(f"or by hand:     mosaic train {shlex.join([*what, *flags])}")
    return 0


def write_end(client: TrainerClient, run: pb.Run) -> int:
    """The end of a followed sweep: how it ended, and its best trials."""
    from gym_gui.cli.summary import summarise

    code = summarise(client, [run])
    try:
        study = study_of(run)
    except SweepUnreadable:
        return code
    if study.best is not None:
        click.echo("")
        write_trials(run, limit=_SHOWN_AT_THE_END)
        click.echo(f"\ntrain with the best:  mosaic train --from-trial {short_id(run.run_id)}")
    return code


def in_order_of_merit(study: Study) -> list[Trial]:
    sign = -1 if study.is_maximised() else 1

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
    """A parameter's value, short."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value) if isinstance(value, bool) else str(value)


def _typed(value: Any) -> str:
    return repr(value) if isinstance(value, float) else json.dumps(value) if isinstance(value, bool) else str(value)


def _document(trial: Trial) -> dict[str, Any]:
    return {
        "number": trial.number, "state": trial.state.name.lower(),
        "value": trial.values[0] if trial.values else None, "params": trial.params, "runs": list(trial.run_ids),
        "reason": trial.user_attrs.get("mosaic_reason", ""),
    }  # fmt: skip
