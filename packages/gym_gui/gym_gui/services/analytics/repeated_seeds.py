"""Which runs of one configuration count as independent: a seed trained twice says the same thing twice."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from gym_gui.wording import formats
from gym_gui.wording.run_view import short_id

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

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
        is_complete = run.outcome == "completed"
        return having_data is None or run.run_id in having_data, is_complete, 0 if is_complete else run.step, run.number

    for run in runs:
        if run.HasField("seed") and (run.seed not in chosen or rank(run) > rank(chosen[run.seed])):
            chosen[run.seed] = run
    counted = {run.run_id for run in chosen.values()}
    kept = [run for run in runs if not run.HasField("seed") or run.run_id in counted]
    return kept, [run for run in runs if run.HasField("seed") and run.run_id not in counted]


def is_unfinished(run: pb.Run) -> bool:
    """Whether its figures are only those so far."""
    return run.status not in ("", "TERM")


def unfinished_note(runs: Sequence[pb.Run]) -> str:
    """Say which runs go on; empty for none."""
    going = [run for run in runs if is_unfinished(run)]
    return f"so far: {formats.plural(len(going), 'run')} not finished ({named(going)})" if going else ""


def not_completed_note(runs: Sequence[pb.Run]) -> str:
    """Say which runs failed or were cancelled; empty for none."""
    ended = [run for run in runs if run.outcome in ("failed", "cancelled")]
    return f"not completed: {formats.plural(len(ended), 'run')} ({named(ended)})" if ended else ""


def repeated_note(run_ids: Sequence[str]) -> str:
    """Say which runs do not count; empty for none."""
    if not run_ids:
        return ""
    number = formats.plural(len(run_ids), "run")
    return f"each seed counts once: {number} with a repeated seed left out ({named(run_ids)})"


def named(runs: Sequence[pb.Run | str]) -> str:
    """The short ids of the first few."""
    ids = [short_id(run if isinstance(run, str) else run.run_id) for run in runs[:_MOST_NAMED]]
    return ", ".join(ids) + (" …" if len(runs) > _MOST_NAMED else "")
