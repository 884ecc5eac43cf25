"""Runs that go on from one another, as one: its curve is that of the whole training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gym_gui.services.analytics.curves import Curve
from gym_gui.services.analytics.repeated_seeds import named
from gym_gui.services.trainer.errors import RunNotFound

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.trainer.client import TrainerClient

Curves = Mapping[str, Mapping[str, Curve]]


def with_earlier(client: TrainerClient, runs: Sequence[pb.Run]) -> list[pb.Run]:
    """These runs, then what they continue, however it ended: it is part of their curves. Deleted runs are left out."""
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
    """Put what a run continues in front of it, where both are here; the earlier run is then no line of its own."""
    by_id = {run.run_id: run for run in runs}
    continued = {run.parent.run_id for run in runs if _continues(run, by_id)}
    result: dict[str, dict[str, Curve]] = {}
    for run in runs:
        if run.run_id not in continued:
            result[run.run_id] = _whole(run, by_id, curves)
    return [run for run in runs if run.run_id in result], result


def members(run: pb.Run, by_id: Mapping[str, pb.Run]) -> tuple[str, ...]:
    """The run and those before it that are here too, the first one first."""
    chain = [run.run_id]
    while _continues(run, by_id) and run.parent.run_id not in chain:
        run = by_id[run.parent.run_id]
        chain.append(run.run_id)
    return tuple(reversed(chain))


def missing_note(runs: Sequence[pb.Run]) -> str:
    """Say which of the runs `with_earlier` found have lost the beginning of their curves; empty for none."""
    by_id = {run.run_id: run for run in runs}
    continued = {run.parent.run_id for run in runs if _continues(run, by_id)}
    firsts = {run_id: by_id[members(run, by_id)[0]] for run_id, run in by_id.items() if run_id not in continued}
    cut = [run_id for run_id, first in firsts.items() if first.HasField("parent") and first.parent.run_id not in by_id]
    what = "the run it continues is" if len(cut) == 1 else "the runs they continue are"
    return f"the beginning of {named(cut)} is missing: {what} not here" if cut else ""


def _continues(run: pb.Run, by_id: Mapping[str, pb.Run]) -> bool:
    return run.HasField("parent") and run.parent.run_id in by_id and run.parent.run_id != run.run_id


def _whole(run: pb.Run, by_id: Mapping[str, pb.Run], curves: Curves) -> dict[str, Curve]:
    own = dict(curves.get(run.run_id, {}))
    for earlier_id in reversed(members(run, by_id)[:-1]):
        earlier = curves.get(earlier_id, {})
        step = run.parent.step
        own = {tag: _continued(earlier.get(tag), own.get(tag), step) for tag in own.keys() | earlier.keys()}
        run = by_id[earlier_id]
    return own


def _continued(before: Curve | None, after: Curve | None, step: int) -> Curve:
    """One curve of two; what the earlier run measured after the checkpoint is not part of this story."""
    if before is None or not len(before):
        assert after is not None
        return after
    kept = before.steps <= step
    if after is None or not len(after):
        cut = [column[kept] for column in (before.steps, before.times, before.values)]
        episodes = before.episodes[kept] if len(before.episodes) else before.episodes
        return replace(before, steps=cut[0], times=cut[1], values=cut[2], episodes=episodes)
    steps, times, values = before.steps[kept], before.times[kept], before.values[kept]
    if not len(steps):
        return after
    # The time in between was no training: the later run's clock goes on where the earlier one's stopped.
    pause = (float(after.times[0]) if after.began is None else after.began) - float(times[-1])
    episodes = np.empty(0)
    if len(before.episodes) and len(after.episodes):
        episodes = np.concatenate((before.episodes[kept], after.episodes + before.episodes[kept][-1]))
    share = len(steps) / max(1, len(before))
    return Curve(
        after.run_id,
        after.tag,
        np.concatenate((steps, after.steps)),
        np.concatenate((times, after.times - max(0.0, pause))),
        np.concatenate((values, after.values)),
        round(before.total * share) + after.total,
        before.began,
        episodes,
    )
