"""A run or a group of runs as one HTML page that needs nothing else: for a mail, an archive, a reader far away."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mosaic_wire.files import write_bytes_atomically

from gym_gui import __version__
from gym_gui.services.analytics import html_facts as facts_parts
from gym_gui.services.analytics import html_parts as parts
from gym_gui.services.analytics.aggregate import Band
from gym_gui.services.analytics.bench_markdown import short_labels
from gym_gui.services.analytics.comparison import Comparison, compare
from gym_gui.services.analytics.curves import RETURN_TAGS, Curve, load_curves, return_curve, tags_in
from gym_gui.services.analytics.figure import Figure, FigureOptions, build_figure
from gym_gui.services.analytics.html_page import Html, element, folded, inline_svg, page, section, together
from gym_gui.services.analytics.html_timeline import timeline
from gym_gui.services.analytics.interval_plot import interval_picture, intervals_of
from gym_gui.services.analytics.lineage import with_earlier
from gym_gui.services.analytics.report_facts import RunFacts, facts_of, redacted_run
from gym_gui.services.analytics.smoothing import Smoothing
from gym_gui.services.analytics.steady_colours import SteadyColours
from gym_gui.wording import formats
from gym_gui.wording.run_view import title_of

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.analytics.baselines import Baseline
    from gym_gui.services.trainer.client import TrainerClient

_POINTS = 1_000
_LARGE, _SMALL = (1_100, 500), (620, 380)
"""Pixels of a figure as wide as the page, and of one of two beside each other"""
_FIRST = ("charts/episodic_length", "charts/SPS")
_PATTERNS = (*RETURN_TAGS, "charts/*", "losses/*", "eval/*", "rollout/*", "train/*")
_MOST_FIGURES = 20
"""Of one environment; a script may write hundreds of curves"""
_SMOOTHED = 0.05
"""Part of a curve that a window of its smoothed line covers"""


@dataclass(frozen=True)
class Drawn:
    """One figure of the page."""

    env_id: str
    svg: Html
    caption: str
    is_aside: bool = False
    """Shown to whoever asks for it"""


def write_html_report(
    client: TrainerClient,
    runs: Sequence[pb.Run],
    path: Path,
    *,
    commands: Mapping[str, str],
    baselines: Mapping[str, Baseline | None],
    title: str = "",
) -> int:
    """Write the page and return its size; `commands` say how each run is done again."""
    runs = [redacted_run(run) for run in runs]
    facts = facts_of(client, runs, commands)
    # Half a training would only blur what the whole ones reached.
    measured = [run for run in runs if run.outcome not in ("failed", "cancelled")] or runs
    comparison = compare(client, measured, baselines=baselines)
    measured = [redacted_run(run) for run in with_earlier(client, measured)]
    curves = load_curves(client, measured, _PATTERNS, max_points=_POINTS)
    text = render(facts, comparison, draw(measured, curves), path.absolute().parent, title=title, now=time.time())
    data = text.encode("utf-8", "replace")
    write_bytes_atomically(path, data)
    return len(data)


def render(
    facts: Sequence[RunFacts], comparison: Comparison, figures: Sequence[Drawn], folder: Path, *, title: str, now: float
) -> str:
    """The page; links to files are relative to the folder it will lie in."""
    runs = [each.run for each in facts]
    heading = title or title_of_all(runs)
    sections = [
        ("Summary", "summary", parts.summary(facts, comparison)),
        ("Curves", "curves", _figures(figures)),
        ("Comparison", "comparison", parts.comparison(runs, comparison, _finals(runs, comparison))),
        ("Parameters", "parameters", parts.parameters(facts)),
        ("Failures", "failures", facts_parts.failures(facts)),
        ("History", "story", together(timeline(facts, now=now), facts_parts.stories(facts))),
        ("Machine and versions", "machine", facts_parts.machines(facts)),
        ("Files", "files", facts_parts.files(facts, folder)),
        ("Reproduce", "reproduce", facts_parts.reproduce(facts)),
        ("What the figures mean", "meaning", parts.MEANING),
    ]
    present = [each for each in sections if each[2]]
    return page(
        heading,
        element(
            "header",
            element("h1", heading),
            element("p", f"Written {formats.moment(now)} by MOSAIC {__version__}", class_="caption"),
            element("nav", *(element("a", name, href=f"#{anchor}") for name, anchor, _ in present)),
        ),
        element("main", *(section(name, content, anchor=anchor) for name, anchor, content in present)),
    )


def title_of_all(runs: Sequence[pb.Run]) -> str:
    """`ppo CartPole-v1 seed 1`, or `6 runs: ppo, dqn on CartPole-v1`"""
    if len(runs) == 1:
        return title_of(runs[0])
    algos = ", ".join(dict.fromkeys(run.algo or run.worker_type for run in runs))
    environments = ", ".join(dict.fromkeys(run.env_id for run in runs if run.env_id))
    return f"{formats.plural(len(runs), 'run')}: {algos}" + (f" on {environments}" if environments else "")


# ---------------------------------------------------------------- figures


def draw(runs: Sequence[pb.Run], curves: Mapping[str, Mapping[str, Curve]]) -> list[Drawn]:
    """Return, length, speed and losses of each environment, seeds together with their band; then whatever else."""
    drawn: list[Drawn] = []
    colours = SteadyColours(runs)
    for env_id in dict.fromkeys(run.env_id for run in runs):
        own = [run for run in runs if run.env_id == env_id]
        mine = {run.run_id: curves.get(run.run_id, {}) for run in own}
        for index, tag in enumerate(_tags(mine)[:_MOST_FIGURES]):
            options = FigureOptions(tag, smoothing=_smoothing(mine, tag), band=Band.CI)
            figure = colours.on(build_figure(own, mine, options))
            if not figure.is_empty:
                svg = _svg(figure, f"f{len(drawn)}", _LARGE if index == 0 else _SMALL)
                drawn.append(Drawn(env_id, svg, tag, is_aside=not _is_wanted(tag)))
    return drawn


def _finals(runs: Sequence[pb.Run], comparison: Comparison) -> list[Html]:
    """What every seed reached, environment by environment, where there is something to compare."""
    colours = SteadyColours(runs)
    pictures = []
    for number, env_id in enumerate(dict.fromkeys(group.env_id for group in comparison.groups)):
        groups = [group for group in comparison.groups if group.env_id == env_id]
        shades = {group.key: colours.number(group.run_ids[-1]) for group in groups}
        figure = intervals_of(env_id, comparison, short_labels(groups), shades)
        if figure.rows and sum(len(row.finals) for row in figure.rows) > 1:
            svg = interval_picture(figure, "svg").decode()
            pictures.append(element("figure", inline_svg(svg, name=f"i{number}", label=figure.title), class_="first"))
    return pictures


def _svg(figure: Figure, name: str, size: tuple[int, int]) -> Html:
    from gym_gui.services.analytics.drawing import figure_svg

    label = f"{figure.title}: {', '.join(line.label for line in figure.lines if not line.is_faint)}"
    return inline_svg(figure_svg(figure, size=size), name=name, label=label)


def _tags(curves: Mapping[str, Mapping[str, Curve]]) -> list[str]:
    """The return in front, then length and speed, then losses, then the others by name."""
    present = tags_in(curves)
    # The first of RETURN_TAGS stands for whatever a run calls its return.
    returns = [tag for tag in RETURN_TAGS if tag in present][:1]
    front = [RETURN_TAGS[0]] if returns else []
    front += [tag for tag in _FIRST if tag in present]
    others = [tag for tag in present if tag not in front and tag not in returns]
    return [*front, *sorted(others, key=lambda tag: (not _is_wanted(tag), tag))]


def _is_wanted(tag: str) -> bool:
    """Whether people look at it first."""
    return tag in RETURN_TAGS or tag in _FIRST or tag.startswith("losses/")


def _smoothing(curves: Mapping[str, Mapping[str, Curve]], tag: str) -> Smoothing:
    found = [return_curve(own) if tag == RETURN_TAGS[0] else own.get(tag) for own in curves.values()]
    shortest = min((len(curve) for curve in found if curve is not None and len(curve)), default=0)
    return Smoothing.window(max(1, int(_SMOOTHED * shortest)))


def _figures(figures: Sequence[Drawn]) -> Html:
    environments = list(dict.fromkeys(figure.env_id for figure in figures))
    made = []
    for env_id in environments:
        own = [figure for figure in figures if figure.env_id == env_id]
        heading = element("h3", env_id) if len(environments) > 1 else Html("")
        aside = [_framed(figure) for figure in own if figure.is_aside]
        made += [heading, element("div", *(_framed(each) for each in own if not each.is_aside), class_="figures")]
        if aside:
            made.append(folded(formats.plural(len(aside), "more curve"), element("div", *aside, class_="figures")))
    return together(*made)


def _framed(figure: Drawn) -> Html:
    is_large = figure.caption == RETURN_TAGS[0]
    return element("figure", figure.svg, element("figcaption", figure.caption), class_="first" if is_large else None)
