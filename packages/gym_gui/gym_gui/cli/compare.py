"""`mosaic compare | report`: runs side by side, with how sure the values are, and reports to read offline."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gym_gui.cli.context import Cli, as_it_is, json_option, notify, pass_cli, style
from gym_gui.cli.listing import Column, check_target, force_option, terminal_width, write_json_object, write_table
from gym_gui.cli.selection import Selection, notify_left_out, run_selection, select_runs
from gym_gui.wording import formats
from gym_gui.wording.formats import one_line
from gym_gui.wording.run_view import short_id

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.analytics.baselines import Baseline
    from gym_gui.services.analytics.comparison import Comparison, GroupFigures, RunFigures, Verdict
    from gym_gui.services.analytics.statistics import Estimate
    from gym_gui.services.trainer.client import TrainerClient

_MOST_RUNS_SHOWN = 20
"""Beyond that only groups are listed, unless --runs asks for all"""
_MOST_PAIRS = 12
_NOTHING = "–"
_COLORS = {"learned": "green", "learned nothing": "red", "some learned": "yellow", "did not improve": "yellow"}
_REASONS = {
    "learned nothing": "never updated, or its last 100 episodes are not better than a random policy's (95 % interval)",
    "did not improve": "better than a random policy, but not than its own first 100 episodes (95 % interval)",
}


@click.command()
@run_selection
@click.option("--tag", metavar="TAG", help="Compare by this curve (more is better).  [default: the return]")
@click.option("--no-baseline", is_flag=True, help="Do not measure a random policy where none is known yet.")
@click.option("--runs/--no-runs", "show_runs", default=None, help=f"List runs.  [default: up to {_MOST_RUNS_SHOWN}]")
@click.option("--csv", "as_csv", is_flag=True, help="Print one line a run as CSV.")
@json_option
@pass_cli
def compare_command(cli: Cli, /, **options: Any) -> int:
    """Compare runs: final and best return, area under the curve, speed, parameters, probability of improvement.

    Runs that differ only in their seed are one group, in which each seed counts once. FINAL is the mean of the last 100
    episodes (of all, when there are fewer), BEST the highest mean of 100 in a row, AUC the mean over all steps; [ ] are
    95 % bootstrap intervals, of groups from three seeds on. A run "learned nothing" when its last episodes are not
    better than those of a policy that acts at random, which is measured once per environment.
    """
    selection = Selection.pop_from(options)
    from gym_gui.services.analytics.comparison import compare
    from gym_gui.services.analytics.lineage import members

    with cli.client() as client:
        runs = select_runs(client, selection)
        baselines = {} if options["tag"] else find_baselines(client, runs, measure=not options["no_baseline"])
        by_conditions = not selection.runs
        found = compare(client, runs, tag=options["tag"], baselines=baselines, only_with_data=by_conditions)
    if by_conditions:
        by_id = {run.run_id: run for run in runs}
        shown = {part for run_id in found.runs for part in members(by_id[run_id], by_id)}
        notify_left_out([run for run in runs if run.run_id not in shown], "episodes")
    if options["as_json"]:
        from gym_gui.services.analytics.exporting import comparison_document

        write_json_object(comparison_document(found, runs))
    elif options["as_csv"]:
        _write_csv(found, runs)
    else:
        show_runs = options["show_runs"]
        _write(found, runs, show_runs=len(found.runs) <= _MOST_RUNS_SHOWN if show_runs is None else show_runs)
    return 0


def find_baselines(client: TrainerClient, runs: Sequence[pb.Run], *, measure: bool) -> dict[str, Baseline | None]:
    from gym_gui.services.analytics.baselines import baselines_for

    progress = _Progress()
    try:
        return baselines_for(client, runs, measure=measure, on_progress=progress)
    finally:
        progress.end()


class _Progress:
    """A line that is written over on a terminal; elsewhere only what is new in kind."""

    def __init__(self) -> None:
        self._is_live = sys.stderr.isatty()
        self._width = 0
        self._last = ""

    def __call__(self, line: str) -> None:
        line = one_line(line)
        is_final = "no baseline" in line
        if self._is_live:
            room = (terminal_width() or 100) - 1
            text = line[:room]
            print(f"\r{text.ljust(self._width)}", end="\n" if is_final else "", file=as_it_is(sys.stderr), flush=True)
            self._width = 0 if is_final else len(text)
        elif is_final or line.partition(":")[0] != self._last:
            self._last = line.partition(":")[0]
            notify(line if is_final else self._last)

    def end(self) -> None:
        if self._is_live and self._width:
            print(f"\r{' ' * self._width}\r", end="", file=as_it_is(sys.stderr), flush=True)


# ---------------------------------------------------------------- tables


def _write(found: Comparison, runs: Sequence[pb.Run], *, show_runs: bool) -> None:
    from gym_gui.services.analytics.curves import RETURN_TAGS
    from gym_gui.services.analytics.statistics import ENOUGH_SEEDS

    if found.tag != RETURN_TAGS[0]:
        click.echo(style(f"by {found.tag}", dim=True))
    for environment in dict.fromkeys(group.environment for group in found.groups):
        groups = [group for group in found.groups if group.environment == environment]
        click.echo(style(one_line(_headline(environment, groups, found)), bold=True))
        _write_groups(groups, found)
        _write_parameters(groups, found)
        _write_improvements(groups, found)
        if show_runs:
            click.echo()
            _write_runs([run for group in groups for run in _members(group, runs)], found)
        click.echo()
    _write_overall(found)
    if found.note:
        notify(found.note)
    few = [group.label for group in found.groups if 1 < len(group.run_ids) < ENOUGH_SEEDS]
    if few:
        named = ", ".join(few[:3]) + (" …" if len(few) > 3 else "")
        notify(f"few seeds ({named}): with fewer than {ENOUGH_SEEDS} an interval is too narrow to rely on")
    for verdict, reason in _REASONS.items():
        if any(figures.learned == verdict for figures in found.runs.values()):
            notify(f"{verdict}: {reason}")


def _headline(environment: str, groups: Sequence[GroupFigures], found: Comparison) -> str:
    number = sum(len(group.run_ids) for group in groups)
    text = f"{environment or 'no environment'}: {formats.plural(number, 'run')}"
    if (baseline := found.baselines.get(environment)) is None:
        return f"{text} · no baseline"
    mean, spread = formats.quantity(baseline.mean), formats.quantity(baseline.std)
    return f"{text} · random policy {mean} ± {spread} over {baseline.episodes} episodes"


def _write_groups(groups: Sequence[GroupFigures], found: Comparison) -> None:
    # Of fewer than four runs nothing is cut off: the interquartile mean is the mean.
    middles = [_value(group.final_iqm) if len(group.run_ids) > 3 else "" for group in groups]
    write_table(
        [
            Column("GROUP", [_short_label(group) for group in groups], shrink_to=18),
            Column("FINAL", [_estimate(group.final) for group in groups], right=True),
            Column("± STD", [_quantity(group.final_std) for group in groups], right=True, optional=5),
            Column("IQM", middles, right=True, optional=6),
            Column("BEST", [_value(group.best) for group in groups], right=True, optional=1),
            Column("AUC", [_value(group.auc) for group in groups], right=True, optional=2),
            Column("SPS", [_speed(group.sps) for group in groups], right=True, optional=3),
            Column("STEPS", [_steps(group, found) for group in groups], right=True, optional=7),
            Column("TIME", [_time(group.wall_s) for group in groups], right=True, optional=4),
            *fact_columns(found, groups),
            _learned_column([_learned_text(group) for group in groups], [group.learned for group in groups]),
        ]
    )


def _write_parameters(groups: Sequence[GroupFigures], found: Comparison) -> None:
    """Print the parameters in which the groups differ."""
    differing = [name for name in found.differing if len({group.parameters[name] for group in groups}) > 1]
    if not differing:
        return
    click.echo()
    columns = [Column("GROUP", [_short_label(group) for group in groups], shrink_to=20)]
    for rank, name in enumerate(differing):
        values = [group.parameters[name] for group in groups]
        columns.append(Column(name.upper(), values, shrink_to=len(name), optional=rank))
    write_table(columns)


def _write_improvements(groups: Sequence[GroupFigures], found: Comparison) -> None:
    keys = {group.key for group in groups}
    pairs = [pair for pair in found.improvements if pair.better in keys]
    if not pairs:
        return
    shown = pairs[:_MOST_PAIRS]
    click.echo()
    write_table(
        [
            Column("BETTER", [_short_label(found.group(pair.better)) for pair in shown], shrink_to=14),
            Column("THAN", [_short_label(found.group(pair.worse)) for pair in shown], shrink_to=14),
            Column("PROBABILITY", [_probability(pair.probability) for pair in shown]),
        ]
    )
    if len(pairs) > len(shown):
        notify(f"… and {formats.plural(len(pairs) - len(shown), 'more pair')}; --json has them all")


def _write_overall(found: Comparison) -> None:
    if not found.overall:
        return
    click.echo(style("over all environments that both were trained in", bold=True))
    write_table(
        [
            Column("BETTER", [pair.better for pair in found.overall], shrink_to=14),
            Column("THAN", [pair.worse for pair in found.overall], shrink_to=14),
            Column("PROBABILITY", [_probability(pair.probability) for pair in found.overall]),
            Column("ENVIRONMENTS", [str(len(pair.environments)) for pair in found.overall], right=True, optional=1),
        ]
    )
    click.echo()


def _write_runs(runs: Sequence[pb.Run], found: Comparison) -> None:
    figures = [found.runs[run.run_id] for run in runs]
    on_terminal = sys.stdout.isatty()
    verdicts = [figure.learned for figure in figures]
    write_table(
        [
            Column("RUN", [short_id(run.run_id) if on_terminal else run.run_id for run in runs]),
            Column("ALGO", [run.algo for run in runs], shrink_to=8),
            Column("SEED", [str(run.seed) if run.HasField("seed") else "" for run in runs], right=True, optional=2),
            Column("FINAL", [_with_interval(figure) for figure in figures], right=True),
            Column("BEST", [_quantity(figure.best) for figure in figures], right=True, optional=1),
            Column("AUC", [_quantity(figure.auc) for figure in figures], right=True, optional=3),
            Column("EPISODES", [formats.short_count(figure.episodes) for figure in figures], right=True, optional=6),
            Column("STEPS", [formats.short_count(figure.steps) for figure in figures], right=True, optional=7),
            Column("SPS", [_speed(figure.sps) for figure in figures], right=True, optional=4),
            Column("TIME", [_time(figure.wall_s) for figure in figures], right=True, optional=5),
            *fact_columns(found, figures),
            _learned_column([str(verdict) for verdict in verdicts], verdicts),
        ]
    )


def _learned_column(texts: list[str], verdicts: Sequence[Verdict]) -> Column:
    return Column("LEARNED", texts, colors=[_COLORS.get(str(verdict)) for verdict in verdicts])


def fact_columns(found: Comparison, figures: Sequence[GroupFigures | RunFigures]) -> list[Column]:
    """Return a column for each fact that a run reported."""
    return [
        Column(fact.title.upper(), [fact.text(each.facts) for each in figures], right=True, optional=1)
        for fact in found.facts
    ]


def _steps(group: GroupFigures, found: Comparison) -> str:
    """`50k`; `30k-50k` where its runs took different numbers of steps."""
    steps = sorted({found.runs[run_id].steps for run_id in group.run_ids})
    return "-".join(dict.fromkeys(map(formats.short_count, (steps[0], steps[-1]))))


def _speed(value: float | None) -> str:
    return formats.short_count(value) if value else ""


def _time(seconds: float | None) -> str:
    return formats.duration(seconds) if seconds else ""


def _members(group: GroupFigures, runs: Sequence[pb.Run]) -> list[pb.Run]:
    by_id = {run.run_id: run for run in runs}
    return [by_id[run_id] for run_id in (*group.run_ids, *group.repeated)]


def _short_label(group: GroupFigures) -> str:
    """Return the group's label without its environment, which the heading names."""
    return group.label.replace(f" · {group.env_id}", "", 1)


def _learned_text(group: GroupFigures) -> str:
    if group.learned == "some learned":
        return f"{group.learned_count} of {len(group.run_ids)}"
    return str(group.learned)


def _quantity(value: float | None) -> str:
    return _NOTHING if value is None else formats.quantity(value)


def _value(estimate: Estimate | None) -> str:
    return _quantity(estimate.value if estimate is not None else None)


def _estimate(estimate: Estimate | None) -> str:
    if estimate is None or estimate.interval is None:
        return _value(estimate)
    low, high = formats.quantity(estimate.interval.low), formats.quantity(estimate.interval.high)
    return f"{formats.quantity(estimate.value)} [{low}, {high}]"


def _with_interval(figure: RunFigures) -> str:
    from gym_gui.services.analytics.statistics import Estimate

    return _estimate(Estimate(figure.final, figure.final_interval) if figure.final is not None else None)


def _probability(estimate: Estimate) -> str:
    if estimate.interval is None:
        return f"{estimate.value:.2f} (fewer than 3 seeds: no interval)"
    return f"{estimate.value:.2f} [{estimate.interval.low:.2f}, {estimate.interval.high:.2f}]"


def _write_csv(found: Comparison, runs: Sequence[pb.Run]) -> None:
    from gym_gui.services.analytics.exporting import RUN_COLUMNS, run_rows

    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(RUN_COLUMNS)
    out.writerows(run_rows(found, runs))


# ---------------------------------------------------------------- reports


MOST_RUNS = 200
"""More make a page too long to read"""


@click.command()
@run_selection
@click.option(
    "-o",
    "--out",
    type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
    metavar="FILE.html",
    help="Where to (- is standard output).  [default: mosaic-report-<RUN>.html]",
)
@click.option("--title", default="", help="Heading of the page.")
@click.option("--no-baseline", is_flag=True, help="Measure no random policy; use what is known.")
@force_option
@pass_cli
def report_command(cli: Cli, /, out: Path | None, title: str, no_baseline: bool, force: bool, **options: Any) -> int:
    """Write a report of RUNs, or of those that the conditions find, as one HTML file.

    It needs no network, no script and nothing beside it: summary, curves, comparison, parameters, failures, history,
    machine and versions, files, and how to do it again. Small videos are in it, larger ones linked.
    """
    selection = Selection.pop_from(options)
    with cli.client() as client:
        runs = select_runs(client, selection, with_failed=True)
        if len(runs) > MOST_RUNS:
            raise click.UsageError(f"a report has at most {MOST_RUNS} runs; these are {len(runs):,}")
        target = out or Path(f"mosaic-report-{_name(runs, selection)}.html")
        check_target(target, force=force)
        from gym_gui.services.analytics.html_report import write_html_report

        baselines = find_baselines(client, runs, measure=not no_baseline)
        size = write_html_report(
            client, runs, target, commands=commands_of(client, runs), baselines=baselines, title=title
        )
    if str(target) != "-":
        click.echo(f"{target}  {formats.size(size)}")
    return 0


def _name(runs: Sequence[pb.Run], selection: Selection) -> str:
    if len(runs) == 1 or not selection.run_tags:
        return short_id(runs[0].run_id)
    from gym_gui.services.analytics.bench_report import file_name

    return file_name(selection.run_tags[0])


def commands_of(client: TrainerClient, runs: Sequence[pb.Run]) -> dict[str, str]:
    """Return what does each run again, where its config can be read."""
    from gym_gui.ui.presenters.workers.train_request import command_of_run

    commands = {}
    for run in runs:
        try:
            commands[run.run_id] = command_of_run(client.local(run, "config/*")).text
        except (OSError, ValueError) as error:
            notify(f"mosaic: the command for {short_id(run.run_id)} is omitted: {error}")
    return commands


REPORT, PLOTS = "report.html", "plots"


def keep_report(client: TrainerClient, run: pb.Run) -> None:
    """Write `report.html` and `plots/` into the run's folder, in place of those it has."""
    folder = Path(run.run_dir)
    if not run.run_dir or not folder.is_dir():
        raise click.ClickException(
            f"the folder of {short_id(run.run_id)} is on the daemon's machine: --report writes into it. "
            "Export without it, or on the daemon's machine"
        )
    from gym_gui.services.analytics.bench_report import plots_in_place
    from gym_gui.services.analytics.html_report import write_html_report

    baselines = find_baselines(client, [run], measure=False)
    write_html_report(client, [run], folder / REPORT, commands=commands_of(client, [run]), baselines=baselines)
    plots_in_place(client, [run], folder / PLOTS)
