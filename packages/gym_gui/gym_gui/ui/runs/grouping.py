"""Group runs of one configuration that differ only in their seed: `ppo · CartPole-v1 · lr 2.5e-4`. No Qt."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gym_gui.services.analytics import configurations
from gym_gui.services.analytics.configurations import Configuration
from gym_gui.services.analytics.lineage import once_per_seed
from gym_gui.ui.runs.rows import RunColumn, RunRow, rank_of_state, return_text, started_text, state_text, tr
from gym_gui.wording import formats

_WAITING = frozenset({"queued", "starting"})


def configuration_of(row: RunRow) -> Configuration:
    """Return the configuration, computed once per run: a config never changes."""
    if row.configuration is None:
        row.configuration = configurations.configuration_of(row.run)
    configuration: Configuration = row.configuration
    return configuration


@dataclass(frozen=True)
class Summary:
    """Aggregated values of a group."""

    states: Counter[str]
    mean_return: float | None
    return_spread: float | None
    mean_fraction: float | None
    mean_sps: float | None
    total_size: int
    first_start: float
    seeds: int


class Group:
    """A header row above the runs of one configuration. `rows` are its visible runs in order."""

    def __init__(self, configuration: Configuration, rows: Sequence[RunRow], title: str, *, is_open: bool) -> None:
        self.configuration = configuration
        self.entry_id = configuration.key
        self.rows = list(rows)
        self.title = title
        self.is_open = is_open
        self._summary: Summary | None = None

    def set_rows(self, rows: Sequence[RunRow], title: str, *, is_open: bool) -> None:
        """Replace the rows, or their order."""
        self.rows, self.title, self.is_open = list(rows), title, is_open
        self._summary = None

    def forget_figures(self) -> None:
        """Discard the aggregated values: a member has changed."""
        self._summary = None

    @property
    def summary(self) -> Summary:
        if self._summary is None:
            self._summary = summarize(self.rows)
        return self._summary

    @property
    def state(self) -> str:
        """Return the member state that needs attention first."""
        return min(self.summary.states, key=rank_of_state, default="")

    @property
    def fraction(self) -> float | None:
        return self.summary.mean_fraction

    @property
    def full_title(self) -> str:
        """Return the title with the number of members."""
        return f"{self.title} ({self._count_text()})"

    def _count_text(self) -> str:
        if self.summary.seeds == len(self.rows):
            return tr("{0} seeds").format(len(self.rows))
        return tr("{0} runs").format(len(self.rows))

    def _common_tags(self) -> list[str]:
        first, *others = (row.run.tags for row in self.rows)
        return [tag for tag in first if all(tag in tags for tags in others)]

    def text(self, column: RunColumn) -> str:
        summary = self.summary
        if column is RunColumn.STATUS:
            others = len(self.rows) - summary.states[self.state]
            return f"{summary.states[self.state]} {state_text(self.state)}" + (f" +{others}" if others else "")
        if column is RunColumn.PROGRESS:
            return "" if summary.mean_fraction is None else f"{100 * summary.mean_fraction:.0f} %"
        if column is RunColumn.RETURN:
            return spread_text(summary.mean_return, summary.return_spread)
        texts: dict[RunColumn, Callable[[], str]] = {
            RunColumn.NAME: lambda: self.title,
            RunColumn.WORKER: lambda: self.configuration.worker,
            RunColumn.ALGORITHM: lambda: self.configuration.algo,
            RunColumn.ENVIRONMENT: lambda: self.configuration.env_id,
            RunColumn.SEED: self._count_text,
            RunColumn.SPS: lambda: "" if summary.mean_sps is None else formats.short_count(summary.mean_sps),
            RunColumn.STARTED: lambda: started_text(summary.first_start),
            RunColumn.SIZE: lambda: formats.size(summary.total_size) if summary.total_size else "",
            RunColumn.TAGS: lambda: ", ".join(self._common_tags()),
        }
        return texts[column]() if column in texts else ""

    def tooltip(self, column: RunColumn) -> str:
        if column is RunColumn.NAME:
            steps = tr("{0} steps").format(formats.count(self.configuration.total)) if self.configuration.total else ""
            lines = (self.full_title, steps, *(f"{name} = {value}" for name, value in self.configuration.parameters))
            return "\n".join(filter(None, lines))
        if column is RunColumn.STATUS:
            states = sorted(self.summary.states.items(), key=lambda pair: rank_of_state(pair[0]))
            return ", ".join(f"{count} {state_text(state)}" for state, count in states)
        if column is RunColumn.RETURN:
            return tr("Mean ± standard deviation over the seeds, each counted once")
        return self.text(column)


def spread_text(mean: float | None, spread: float | None) -> str:
    """Return `487.2 ± 11.4`."""
    if mean is None:
        return ""
    return return_text(mean) if spread is None else f"{return_text(mean)} ± {return_text(spread)}"


def summarize(rows: Iterable[RunRow]) -> Summary:
    rows = list(rows)
    reached = {
        row.run.run_id: value for row in rows if (value := row.headline_return) is not None and math.isfinite(value)
    }
    counted, _ = once_per_seed([row.run for row in rows if row.run.run_id in reached])
    returns = [reached[run.run_id] for run in counted]
    fractions = [value for row in rows if (value := row.fraction) is not None]
    speeds = [row.run.sps for row in rows if row.run.HasField("sps") and math.isfinite(row.run.sps)]
    starts = [start for row in rows if (start := row.run.started_at or row.run.created_at)]
    return Summary(
        states=Counter(row.state for row in rows),
        mean_return=statistics.fmean(returns) if returns else None,
        return_spread=statistics.stdev(returns) if len(returns) > 1 else None,
        mean_fraction=statistics.fmean(fractions) if fractions else None,
        mean_sps=statistics.fmean(speeds) if speeds else None,
        total_size=sum(row.run.size_bytes for row in rows),
        first_start=min(starts, default=0.0),
        seeds=len({row.run.seed for row in rows if row.run.HasField("seed")}),
    )


_BY_MEAN: dict[RunColumn, Callable[[RunRow], float | None]] = {
    RunColumn.RETURN: lambda row: row.headline_return,
    RunColumn.SPS: lambda row: row.run.sps if row.run.HasField("sps") else None,
    RunColumn.PROGRESS: lambda row: row.fraction,
}
"""Columns for which groups are sorted by their mean"""


def arranged(
    rows: Sequence[RunRow],
    column: RunColumn,
    *,
    descending: bool,
    is_open: Callable[[str], bool],
    known: dict[str, Group] | None = None,
) -> list[RunRow | Group]:
    """Insert a header above each configuration with several runs; a single run stays a plain row.

    Groups are sorted by their mean if the column has one, else by their first member. Groups in `known` are reused, so
    that references to them stay valid.
    """
    known = {} if known is None else known
    siblings = _configurations_active(rows)
    by_object: dict[int, list[RunRow]] = {}  # equal configurations are the same object
    for row in rows:
        key = id(row.configuration or configuration_of(row))
        if siblings and row.state in _WAITING:
            key = siblings.get(row.configuration.family, key)
        if key in by_object:
            by_object[key].append(row)
        else:
            by_object[key] = [row]
    members = [(_configuration_of_all(own), own) for own in by_object.values()]
    several = [configuration for configuration, own in members if len(own) > 1]
    same_title = Counter(configuration.title for configuration in several)
    blocks: list[tuple[Group | None, list[RunRow]]] = []
    for configuration, own in members:
        if len(own) == 1:
            blocks.append((None, own))
            continue
        title = configuration.title
        if same_title[title] > 1 and configuration.total:
            title += " · " + tr("{0} steps").format(formats.short_count(configuration.total))
        group = known.get(configuration.key)
        if group is None:
            group = known[configuration.key] = Group(configuration, own, title, is_open=True)
        group.set_rows(own, title, is_open=is_open(group.entry_id))
        blocks.append((group, own))
    if column in _BY_MEAN:
        blocks = _by_mean(blocks, _BY_MEAN[column], descending=descending)
    entries: list[RunRow | Group] = []
    for line, own in blocks:
        if line is not None:
            entries.append(line)
        if line is None or line.is_open:
            entries.extend(own)
    return entries


def _configurations_active(rows: Sequence[RunRow]) -> dict[tuple[object, ...], int]:
    """Return the configuration of each family's active runs; needed only while runs are queued.

    Workers round the requested steps to whole batches, so a queued run has another number of steps than started runs
    of the same configuration.
    """
    if not any(row.state in _WAITING for row in rows):
        return {}
    found: dict[tuple[object, ...], set[int]] = {}
    for row in rows:
        if row.state not in _WAITING:
            configuration = configuration_of(row)
            found.setdefault(configuration.family, set()).add(id(configuration))
    return {family: next(iter(ids)) for family, ids in found.items() if len(ids) == 1}


def _configuration_of_all(rows: Sequence[RunRow]) -> Configuration:
    return configuration_of(next((row for row in rows if row.state not in _WAITING), rows[0]))


def _by_mean(
    blocks: list[tuple[Group | None, list[RunRow]]], read: Callable[[RunRow], float | None], *, descending: bool
) -> list[tuple[Group | None, list[RunRow]]]:
    """Sort by value; rows without one come last in both directions."""
    valued: list[tuple[float, tuple[Group | None, list[RunRow]]]] = []
    others: list[tuple[Group | None, list[RunRow]]] = []
    for block in blocks:
        figures = [value for row in block[1] if (value := read(row)) is not None and math.isfinite(value)]
        if figures:
            valued.append((statistics.fmean(figures), block))
        else:
            others.append(block)
    valued.sort(key=lambda pair: pair[0], reverse=descending)
    return [block for _, block in valued] + others
