"""A benchmark's report as Markdown: what was reached, how sure that is, and what it may be compared with. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gym_gui import __version__
from gym_gui.services.analytics import markdown
from gym_gui.services.analytics.bench_figures import (
    baseline_for,
    held_against_published,
    name_of,
    overall_improvements,
)
from gym_gui.services.analytics.bench_plan import Misfit, tag_of
from gym_gui.services.analytics.comparison import Comparison, GroupFigures, Improvement, Verdict
from gym_gui.services.analytics.figure_words import decided, estimate_text, fewest_seeds, number, probability_text
from gym_gui.services.analytics.labels import NOT_GIVEN as NONE
from gym_gui.wording import formats
from gym_gui.wording.last_words import last_words
from gym_gui.wording.run_view import progress_of, short_id, state_of, title_of

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

_LAST_LINES = 8


@dataclass(frozen=True)
class Bench:
    """A benchmark that was carried out, as far as it was."""

    name: str
    runs: tuple[pb.Run, ...]
    misfits: tuple[Misfit, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    """What the daemon did not take, and why"""
    command: str = ""
    """What does it again"""

    @property
    def completed(self) -> list[pb.Run]:
        return [run for run in self.runs if run.outcome == "completed"]

    @property
    def failed(self) -> list[pb.Run]:
        return [run for run in self.runs if run.status == "TERM" and run.outcome != "completed"]

    @property
    def unfinished(self) -> list[pb.Run]:
        return [run for run in self.runs if run.status != "TERM"]


@dataclass(frozen=True)
class Plot:
    env_id: str
    file: str
    """Relative to the report; the SVG lies beside the PNG"""
    shows: str


def render(
    bench: Bench,
    comparison: Comparison | None,
    plots: Sequence[Plot],
    stories: Mapping[str, Sequence[pb.StoryEvent]],
    *,
    now: float,
) -> str:
    """The whole report; `stories` of the runs that failed."""
    parts = [f"# Benchmark {markdown.text(bench.name)}", _summary(bench, comparison, now)]
    if comparison is not None:
        for env_id in dict.fromkeys(group.env_id for group in comparison.groups):
            parts += _environment(env_id, comparison, [plot for plot in plots if plot.env_id == env_id])
        parts += _overall(comparison)
        parts += _published(comparison)
    parts += _failures(bench, stories)
    parts += _left_out(bench)
    parts += _each_run(bench, comparison)
    parts += _repeat(bench)
    parts += [_MEANING]
    return "\n\n".join(parts) + "\n"


def _summary(bench: Bench, comparison: Comparison | None, now: float) -> str:
    counted = [
        f"{len(runs)} {word}"
        for runs, word in (
            (bench.completed, "completed"), (bench.failed, "failed or cancelled"), (bench.unfinished, "unfinished")
        )
        if runs
    ]  # fmt: skip
    lines = [
        f"{formats.plural(len(bench.runs), 'run')}: {', '.join(counted) or 'none'}. "
        f"Written {formats.moment(now)} by MOSAIC {__version__}."
    ]
    nothing = [group for group in comparison.groups if group.learned is Verdict.LEARNED_NOTHING] if comparison else []
    if nothing:
        named = ", ".join(f"{markdown.text(group.algo)} on {markdown.text(group.env_id)}" for group in nothing)
        lines.append(f"**Learned nothing** (no better than acting at random): {named}.")
    if comparison is not None and comparison.note:
        lines.append(f"{comparison.note[:1].upper()}{comparison.note[1:]}.")
    if bench.unfinished:
        lines.append("Runs that have not ended are in no figure.")
    return "\n\n".join(lines)


# ---------------------------------------------------------------- one environment


def _environment(env_id: str, comparison: Comparison, plots: Sequence[Plot]) -> Iterator[str]:
    groups = [group for group in comparison.groups if group.env_id == env_id]
    yield f"## {markdown.text(env_id)}"
    headers = (
        "algorithm",
        "seeds",
        "steps",
        "final return: IQM",
        "mean",
        "std",
        "best",
        "AUC",
        "steps/s",
        "time",
        "learned?",
    )
    yield markdown.table(headers, [_group_cells(group, comparison) for group in groups], right=range(1, 10))
    if (baseline := baseline_for(env_id, comparison)) is not None:
        yield (
            f"A policy that acts at random reaches {number(baseline.mean)} ± {number(baseline.std)} "
            f"({formats.plural(baseline.episodes, 'episode')})."
        )
    else:
        yield "There is no baseline of a random policy for this environment, so nothing says whether a run learned."
    labels = short_labels(groups)
    pairs = [pair for pair in comparison.improvements if pair.better in labels and pair.worse in labels]
    if pairs:
        rows = [_pair_cells(pair, labels, comparison) for pair in pairs]
        yield "How likely a run of the first ends better than one of the second:"
        yield markdown.table(("first", "second", "probability of improvement", "decided?"), rows, right=(2,))
    for plot in plots:
        yield f"![{markdown.text(f'{env_id}: {plot.shows}')}]({plot.file})"


def short_labels(groups: Sequence[GroupFigures]) -> dict[str, str]:
    """What a group is called within its environment: the algorithm, and its parameters where that does not tell."""
    algos = [group.algo for group in groups]
    return {group.key: group.algo if algos.count(group.algo) == 1 else name_of(group) for group in groups}


def _group_cells(group: GroupFigures, comparison: Comparison) -> list[str]:
    steps = min((comparison.runs[run_id].steps for run_id in group.run_ids if run_id in comparison.runs), default=0)
    return [
        markdown.code(name_of(group)),
        str(len(group.run_ids)),
        formats.count(steps),
        estimate_text(group.final_iqm),
        estimate_text(group.final),
        number(group.final_std),
        number(group.best.value if group.best else None),
        number(group.auc.value if group.auc else None),
        formats.count(group.sps) if group.sps is not None else NONE,
        formats.duration(group.wall_s) if group.wall_s is not None else NONE,
        verdict_text(group),
    ]


def _pair_cells(pair: Improvement, labels: Mapping[str, str], comparison: Comparison) -> list[str]:
    return [
        markdown.code(labels[pair.better]),
        markdown.code(labels[pair.worse]),
        probability_text(pair.probability),
        decided(pair.probability, fewest_seeds(pair, comparison)),
    ]


def verdict_text(group: GroupFigures) -> str:
    """`learned`, `**learned nothing**`, `2 of 3 learned`"""
    if group.learned is Verdict.PARTLY:
        return f"{group.learned_count} of {len(group.run_ids)} learned"
    return f"**{group.learned}**" if group.learned is Verdict.LEARNED_NOTHING else str(group.learned)


# ---------------------------------------------------------------- over all environments, and held against others


def _overall(comparison: Comparison) -> Iterator[str]:
    found = overall_improvements(comparison)
    if not found:
        return
    yield "## Over all environments"
    rows = [
        [
            markdown.code(each.first), markdown.code(each.second), str(each.environments),
            probability_text(each.probability), decided(each.probability, each.seeds),
        ]
        for each in found
    ]  # fmt: skip
    headers = ("first", "second", "environments", "probability of improvement", "decided?")
    yield markdown.table(headers, rows, right=(2, 3))
    yield "The mean over the environments, each of which counts the same; seeds are drawn again within each of them."


def _published(comparison: Comparison) -> Iterator[str]:
    rows = []
    for group in comparison.groups:
        held = held_against_published(group, comparison)
        if held is None or group.final is None:
            continue
        theirs = held.published
        spread = f" ± {number(group.final_std)}" if group.final_std is not None else ""
        ours = f"{number(group.final.value)}{spread}"
        rows.append(
            [
                markdown.text(group.env_id),
                markdown.code(name_of(group)),
                f"{ours} ({formats.plural(len(group.run_ids), 'seed')}, {formats.count(held.steps)} steps)",
                f"[{number(theirs.mean)} ± {number(theirs.std)}]({theirs.source}) "
                f"({formats.plural(theirs.seeds, 'seed')}, {formats.count(theirs.steps)} steps)",
                markdown.text(held.words),
            ]
        )
    yield "## Held against published returns"
    if not rows:
        yield "Nothing was published for these algorithms in these environments."
        return
    yield markdown.table(("environment", "algorithm", "ours", "published", "comparison"), rows)
    yield (
        "Published: CleanRL's documentation, mean ± standard deviation over seeds. Reached: our mean is no more than "
        "two of its standard deviations below it (or 5 % of the way from a random policy, where that is more). A "
        "shorter training is held against nothing."
    )


# ---------------------------------------------------------------- what went wrong, what was left out


def _failures(bench: Bench, stories: Mapping[str, Sequence[pb.StoryEvent]]) -> Iterator[str]:
    if not bench.failed and not bench.refused:
        return
    yield "## Failures"
    for run in bench.failed:
        reason = markdown.text(run.reason) or "no reason was given"
        yield f"**{markdown.text(title_of(run))}** {state_of(run)} ({markdown.code(run.run_id)}): {reason}"
        _, lines = last_words(stories.get(run.run_id, ()), lines=_LAST_LINES)
        if lines:
            yield markdown.code_block("\n".join(lines))
    for title, reason in bench.refused:
        yield f"**{markdown.text(title)}** was not queued: {markdown.text(reason)}"


def _left_out(bench: Bench) -> Iterator[str]:
    if bench.misfits:
        yield "## Left out"
        yield "\n".join(
            f"- {markdown.code(each.algo)} on {markdown.text(each.env_id)}: {markdown.text(each.reason)}"
            for each in bench.misfits
        )


def _each_run(bench: Bench, comparison: Comparison | None) -> Iterator[str]:
    if not bench.runs:
        return
    yield "## Every run"
    rows = []
    for run in sorted(bench.runs, key=lambda each: (each.env_id, each.algo, each.seed, each.number)):
        known = comparison.runs.get(run.run_id) if comparison else None
        state = state_of(run) if run.status == "TERM" else f"{state_of(run)} {progress_of(run)}"
        rows.append(
            [
                markdown.code(short_id(run.run_id)),
                markdown.code(run.algo),
                markdown.text(run.env_id),
                str(run.seed) if run.HasField("seed") else NONE,
                markdown.text(state),
                number(known.final if known else None),
                number(known.best if known else None),
                number(known.auc if known else None),
                formats.count(known.sps) if known and known.sps is not None else NONE,
                formats.duration(known.wall_s) if known and known.wall_s is not None else NONE,
                str(known.learned) if known else NONE,
            ]
        )
    headers = (
        "run",
        "algorithm",
        "environment",
        "seed",
        "state",
        "final",
        "best",
        "AUC",
        "steps/s",
        "time",
        "learned?",
    )
    yield markdown.table(headers, rows, right=(3, 5, 6, 7, 8, 9))


def _repeat(bench: Bench) -> Iterator[str]:
    yield "## Again"
    lines = [bench.command] if bench.command else []
    lines += [f"mosaic bench --report-only {bench.name}", f"mosaic runs --tag {tag_of(bench.name)} --all"]
    yield markdown.code_block("\n".join(lines), "sh")
    yield (
        "The first goes on with these runs (it queues none twice), the second writes this report anew, the third "
        "lists them."
        if bench.command
        else "The first writes this report anew, the second lists the runs."
    )


_MEANING = """## What the figures mean

- **Final return**: the mean over the last 100 training episodes of a run, or over all where there were fewer; over
  seeds, the interquartile mean (IQM) and the mean, each with its 95 % interval from a percentile bootstrap over the
  seeds, from three seeds on. **std**: over the seeds.
- **Best**: the highest mean over 100 episodes in a row. **AUC**: the area under the curve of the return divided by the
  steps, that is the mean return over the whole training.
- **Learned?**: against a policy that acts at random, measured once for each environment.
- **Probability of improvement**: how likely a run of the first group ends better than one of the second; ties count
  half. With fewer than five seeds the interval of a bootstrap is too narrow to be relied on.
- Plots: mean over the seeds, band: its 95 % bootstrap interval. Definitions are those of Agarwal et al. (2021), as in
  rliable.
- `runs.csv`, `groups.csv` and `curves.csv` hold the same figures and the curves; the plots are there as SVG, too."""
