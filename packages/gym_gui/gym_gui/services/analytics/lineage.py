"""Runs joined with the runs they continue, and which runs of a configuration count once per seed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from mosaic_wire.run_status import RunOutcome, RunStatus

from gym_gui.services.trainer.errors import RunNotFound
from gym_gui.wording import formats
from gym_gui.wording.run_view import short_id

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.analytics.curves import Curve
    from gym_gui.services.trainer.client import TrainerClient

    Curves = Mapping[str, Mapping[str, Curve]]


def with_earlier(client: TrainerClient, runs: Sequence[pb.Run]) -> list[pb.Run]:
    """Return these runs, then the runs they continue, which are part of their curves; skip deleted ones."""
    found = {run.run_id: run for run in runs}
    waiting = list(runs)
    while waiting:
        run = waiting.pop()
        if run.HasField("parent") and run.parent.run_id not in found:
            try:
                earlier = client.get(run.parent.run_id)
            except RunNotFound:
                continue
            found[earlier.run_id] = earlier
            waiting.append(earlier)
    return list(found.values())


def joined(runs: Sequence[pb.Run], curves: Curves) -> tuple[list[pb.Run], dict[str, dict[str, Curve]]]:
    """Join each run with the earlier ones it continues, which then have no line of their own."""
    by_id = {run.run_id: run for run in runs}
    continued = {run.parent.run_id for run in runs if _continues(run, by_id)}
    result: dict[str, dict[str, Curve]] = {}
    for run in runs:
        if run.run_id not in continued:
            result[run.run_id] = _whole(run, by_id, curves)
    return [run for run in runs if run.run_id in result], result


def members(run: pb.Run, by_id: Mapping[str, pb.Run]) -> tuple[str, ...]:
    """Return the run and the earlier runs that are present, the first one first."""
    chain = [run.run_id]
    while _continues(run, by_id) and run.parent.run_id not in chain:
        run = by_id[run.parent.run_id]
        chain.append(run.run_id)
    return tuple(reversed(chain))


def missing_note(runs: Sequence[pb.Run]) -> str:
    """Return a note on runs of `with_earlier` whose curves lack their beginning, or an empty text."""
    by_id = {run.run_id: run for run in runs}
    continued = {run.parent.run_id for run in runs if _continues(run, by_id)}
    firsts = {run_id: by_id[members(run, by_id)[0]] for run_id, run in by_id.items() if run_id not in continued}
    cut = [run_id for run_id, first in firsts.items() if first.HasField("parent") and first.parent.run_id not in by_id]
    what = "the run it continues is" if len(cut) == 1 else "the runs they continue are"
    return f"the beginning of {named(cut)} is missing: {what} not here" if cut else ""


def _continues(run: pb.Run, by_id: Mapping[str, pb.Run]) -> bool:
    return run.HasField("parent") and run.parent.run_id in by_id and run.parent.run_id != run.run_id


def _whole(run: pb.Run, by_id: Mapping[str, pb.Run], curves: Curves) -> dict[str, Curve]:
    from gym_gui.services.analytics.curves import continued_curve  # imports NumPy, which the list of runs lacks

    own = dict(curves.get(run.run_id, {}))
    for earlier_id in reversed(members(run, by_id)[:-1]):
        earlier = curves.get(earlier_id, {})
        step = run.parent.step
        own = {tag: continued_curve(earlier.get(tag), own.get(tag), step) for tag in own.keys() | earlier.keys()}
        run = by_id[earlier_id]
    return own


# ---------------------------------------------------------------- repeated seeds


_MOST_NAMED = 3


def once_per_seed(
    runs: Sequence[pb.Run], having_data: Collection[str] | None = None
) -> tuple[list[pb.Run], list[pb.Run]]:
    """Split runs of one configuration into those that count, one per seed, and those that repeat a seed.

    Of a seed the newest completed run counts; where none is completed, the longest. A run without data
    (not in `having_data`) yields to one that has some. Runs whose seed is unknown all count.
    """
    chosen: dict[int, pb.Run] = {}

    def rank(run: pb.Run) -> tuple[bool, bool, int, int]:
        is_complete = run.outcome == RunOutcome.COMPLETED
        return having_data is None or run.run_id in having_data, is_complete, 0 if is_complete else run.step, run.number

    for run in runs:
        if run.HasField("seed") and (run.seed not in chosen or rank(run) > rank(chosen[run.seed])):
            chosen[run.seed] = run
    counted = {run.run_id for run in chosen.values()}
    kept = [run for run in runs if not run.HasField("seed") or run.run_id in counted]
    return kept, [run for run in runs if run.HasField("seed") and run.run_id not in counted]


def is_unfinished(run: pb.Run) -> bool:
    """Return whether its values are preliminary."""
    return run.status not in ("", RunStatus.TERM)


def unfinished_note(runs: Sequence[pb.Run]) -> str:
    """Return a note on the runs that have not ended; empty for none."""
    going = [run for run in runs if is_unfinished(run)]
    return f"so far: {formats.plural(len(going), 'run')} not finished ({named(going)})" if going else ""


def not_completed_note(runs: Sequence[pb.Run]) -> str:
    """Return a note on runs that failed or were cancelled, or an empty text."""
    ended = [run for run in runs if run.outcome in (RunOutcome.FAILED, RunOutcome.CANCELLED)]
    return f"not completed: {formats.plural(len(ended), 'run')} ({named(ended)})" if ended else ""


def repeated_note(run_ids: Sequence[str]) -> str:
    """Return a note on runs that do not count, or an empty text."""
    if not run_ids:
        return ""
    number = formats.plural(len(run_ids), "run")
    return f"each seed counts once: {number} with a repeated seed left out ({named(run_ids)})"


def named(runs: Sequence[pb.Run | str]) -> str:
    """Return the short ids of the first runs."""
    ids = [short_id(run if isinstance(run, str) else run.run_id) for run in runs[:_MOST_NAMED]]
    return ", ".join(ids) + (" …" if len(runs) > _MOST_NAMED else "")
