"""The summary of runs that have ended: how, how well, where things are, and why not."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder
from mosaic_wire.run_status import RunOutcome

from gym_gui.cli.context import notify, style
from gym_gui.cli.listing import write_pairs
from gym_gui.services.trainer.errors import TrainerError
from gym_gui.wording import formats
from gym_gui.wording.run_view import (
    COLORS,
    SYMBOLS,
    elapsed_s,
    evaluation_of,
    last_output,
    mean_return,
    short_id,
    state_of,
    stopped_early,
    title_of,
)

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.trainer.client import TrainerClient


_MOST_VIDEOS = 3


def summarize(client: TrainerClient, runs: Sequence[pb.Run], *, expect_return: float | None = None) -> int:
    """Print the end of these runs; return the exit code."""
    for run in runs:
        _write_end(run, brief=len(runs) > 1)
        if run.outcome == RunOutcome.FAILED:
            _write_last_output(client, run)
    if len(runs) > 1:
        _write_spread(runs)
    if any(run.outcome != RunOutcome.COMPLETED for run in runs):
        return 1
    return _check_expectation(runs, expect_return)


def notify_detached(runs: Sequence[pb.Run]) -> None:
    """After Ctrl-C: the runs continue; how to see and to end them."""
    ids = " ".join(short_id(run.run_id) for run in runs)
    what = "the run continues" if len(runs) == 1 else f"{formats.plural(len(runs), 'run')} continue"
    notify(f"\ndetached; {what}\n  follow again   mosaic watch {ids}\n  end            mosaic cancel {ids}")


def _write_end(run: pb.Run, *, brief: bool) -> None:
    state = state_of(run)
    took = elapsed_s(run)
    headline = f"{SYMBOLS.get(state, '·')} {state}"
    after = f" after {formats.duration(took)}" if took is not None else ""
    click.echo(style(headline, fg=COLORS.get(state), bold=True) + f"  {title_of(run)}{after}  {run.run_id}")
    pairs = [("stopped early", stopped_early(run)), ("evaluation", evaluation_text(evaluation_of(run)))]
    if state != "completed":
        pairs.append(("reason", run.reason))
    if not brief or state == "failed":
        pairs += [("run folder", run.run_dir), ("logs", run.logs_dir), ("checkpoints", _checkpoints(run))]
    pairs += [("noted", "\n".join(notes_of(run))), ("videos", "\n".join(videos_of(run)[-_MOST_VIDEOS:]))]
    write_pairs((f"  {label}", value) for label, value in pairs)


def evaluation_text(evaluation: dict[str, Any] | None) -> str:
    """`mean return 498.2 ± 3.1 over 20 episodes`"""
    mean = mean_return(evaluation)
    if mean is None or evaluation is None:
        return ""
    spread = evaluation.get("std_return")
    text = f"mean return {formats.quantity(mean)}"
    if isinstance(spread, int | float):
        text += f" ± {formats.quantity(spread)}"
    episodes = evaluation.get("episodes")
    if isinstance(episodes, list):
        episodes = len(episodes)
    return text + (f" over {formats.plural(episodes, 'episode')}" if isinstance(episodes, int) else "")


def _checkpoints(run: pb.Run) -> str:
    folder = Path(run.run_dir) / "checkpoints" if run.run_dir else None
    # A daemon on another machine has its files there.
    return str(folder) if folder is not None and folder.is_dir() else ""


def notes_of(run: pb.Run) -> list[str]:
    """Return what its training has noted for the user; empty where the run's folder is on another machine."""
    manifest = AnalyticsManifest.find(RunFolder(Path(run.run_dir)).manifest)
    return list(manifest.extra.get("training_notes", ())) if manifest is not None else []


def videos_of(run: pb.Run) -> list[str]:
    """Return where its videos lie, the newest last; empty where the run's folder is on another machine."""
    manifest = AnalyticsManifest.find(RunFolder(Path(run.run_dir)).manifest)
    return [str(Path(run.run_dir) / video) for video in manifest.videos] if manifest is not None else []


def _write_last_output(client: TrainerClient, run: pb.Run) -> None:
    try:
        events = list(client.history(run.run_id))
    except TrainerError as error:
        notify(f"mosaic: cannot read the run's history: {error}")
        return
    name, lines = last_output(events)
    if lines and "\n".join(lines) != run.reason:
        notify(f"  the end of its {name}:")
    for line in lines:
        notify(f"    {line}")
    if any(event.kind == "checkpoint_saved" for event in events):
        notify(f"  to continue from its last checkpoint: mosaic resume {short_id(run.run_id)}")


def _write_spread(runs: Sequence[pb.Run]) -> None:
    values = [value for run in runs if (value := mean_return(evaluation_of(run))) is not None]
    what = "evaluation"
    if not values:
        what = "last return"
        values = [run.episodic_return for run in runs if run.HasField("episodic_return")]
    ended = {state: sum(state_of(run) == state for run in runs) for state in ("completed", "failed", "cancelled")}
    text = ", ".join(f"{number} {state}" for state, number in ended.items() if number)
    if len(values) > 1:
        mean, spread = statistics.fmean(values), statistics.stdev(values)
        text += f"; {what} {formats.quantity(mean)} ± {formats.quantity(spread)} over {len(values)} runs"
    click.echo(text)


def _check_expectation(runs: Sequence[pb.Run], expected: float | None) -> int:
    if expected is None:
        return 0
    code = 0
    for run in runs:
        reached = mean_return(evaluation_of(run))
        if reached is None:
            notify(
                f"mosaic: {short_id(run.run_id)} made no evaluation, so a return of {expected:g} cannot be confirmed"
            )
            code = 1
        elif reached < expected:
            notify(
                f"mosaic: {short_id(run.run_id)} reached a mean return of {formats.quantity(reached)}, "
                f"expected at least {expected:g}"
            )
            code = 1
    return code
