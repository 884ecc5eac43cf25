"""A run or a group of runs as one HTML page that needs nothing else: for a mail, an archive, a reader elsewhere."""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from markupsafe import Markup, escape
from mosaic_wire.files import read_plain_file, write_bytes_atomically
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder
from mosaic_wire.redaction import redact_document, redact_text, secret_values
from mosaic_wire.run_status import RunOutcome, RunStatus

from gym_gui import __version__
from gym_gui.services.analytics.comparison import Comparison, Verdict, compare, short_labels
from gym_gui.services.analytics.configurations import (
    NOT_GIVEN,
    Configuration,
    configuration_labels,
    configuration_of,
    environment_of,
    parameters_of,
    short_value,
)
from gym_gui.services.analytics.curves import RETURN_TAGS, Curve, Smoothing, load_curves, return_curve, tags_in
from gym_gui.services.analytics.drawing import figure_svg, interval_image, intervals_of
from gym_gui.services.analytics.figure import Band, Figure, FigureOptions, SteadyColors, build_figure
from gym_gui.services.analytics.lineage import with_earlier
from gym_gui.services.analytics.palette import DARK, LIGHT, Scheme
from gym_gui.services.analytics.published import compared_with_published
from gym_gui.services.analytics.report_templates import html_template
from gym_gui.wording import formats
from gym_gui.wording.formats import printable
from gym_gui.wording.run_view import (
    STATE_LABELS,
    evaluation_of,
    extras_of,
    last_output,
    mean_return,
    parsed,
    short_id,
    state_of,
    title_of,
)

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.analytics.baselines import Baseline
    from gym_gui.services.trainer.client import TrainerClient

MOST_VIDEO_BYTES = 4 << 20
"""Largest video that is embedded in the page"""
MOST_BYTES_OF_VIDEOS = 16 << 20
_TAIL_BYTES = 64 << 10
_LAST_LINES = 40
_MEDIA_TYPES = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif"}
_POINTS = 1_000
_LARGE, _SMALL = (1_100, 500), (620, 380)
"""Pixels of a figure as wide as the page, and of one of two beside each other"""
_FIRST = ("charts/episodic_length", "charts/SPS")
_PATTERNS = (*RETURN_TAGS, "charts/*", "losses/*", "eval/*", "rollout/*", "train/*")
_MOST_FIGURES = 20
"""Figures per environment; a script may write hundreds of curves"""
_MOST_COLUMNS = 12
_SMOOTHED = 0.05
"""Part of a curve that a window of its smoothed line covers"""
_LEAST_PERCENT = 0.3
"""Width of a phase of a second in a timeline of a day"""


@dataclass(frozen=True)
class Video:
    """A recorded episode; `data` if it is small enough to be embedded."""

    path: Path
    size: int
    data: bytes | None = None


@dataclass(frozen=True)
class RunFacts:
    """Facts about a run besides its curves; empty if its folder is on another machine."""

    run: pb.Run
    history: tuple[pb.StoryEvent, ...]
    manifest: AnalyticsManifest | None = None
    videos: tuple[Video, ...] = ()
    last_stream: str = ""
    last_lines: tuple[str, ...] = ()
    """The end of the output of a run that did not complete"""
    command: str = ""
    """Starts the same run again"""


@dataclass(frozen=True)
class Drawn:
    """One figure of the page."""

    environment: str
    svg: Markup
    caption: str
    is_aside: bool = False
    """Folded away at first"""


def write_html_report(
    client: TrainerClient,
    runs: Sequence[pb.Run],
    path: Path,
    *,
    commands: Mapping[str, str],
    baselines: Mapping[str, Baseline | None],
    title: str = "",
) -> int:
    """Write the page (`-`: to standard output) and return its size; `commands` start each run again."""
    runs = [redacted_run(run) for run in runs]
    facts = facts_of(client, runs, commands)
    # Half a training would only blur what the whole ones reached.
    measured = [run for run in runs if run.outcome not in (RunOutcome.FAILED, RunOutcome.CANCELLED)] or runs
    comparison = compare(client, measured, baselines=baselines)
    measured = [redacted_run(run) for run in with_earlier(client, measured)]
    curves = load_curves(client, measured, _PATTERNS, max_points=_POINTS)
    text = render(facts, comparison, draw(measured, curves), path.absolute().parent, title=title, now=time.time())
    data = text.encode("utf-8", "replace")
    if str(path) == "-":
        sys.stdout.buffer.write(data)
    else:
        write_bytes_atomically(path, data)
    return len(data)


def render(
    facts: Sequence[RunFacts], comparison: Comparison, figures: Sequence[Drawn], folder: Path, *, title: str, now: float
) -> str:
    """Return the page; links to files are relative to the folder it will lie in."""
    runs = [each.run for each in facts]
    states = [state_of(run) for run in runs]
    argv = [each.manifest.argv for each in facts if each.manifest and each.manifest.argv]
    return html_template("report.html").render(
        heading=title or title_of_all(runs),
        version=__version__,
        now=now,
        facts=facts,
        runs=runs,
        states=", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)),
        evaluation=mean_return(evaluation_of(runs[0])),
        comparison=comparison,
        learned_nothing=[group.label for group in comparison.groups if group.learned is Verdict.LEARNED_NOTHING],
        published=compared_with_published(comparison),
        figures={
            environment: [drawn for drawn in figures if drawn.environment == environment]
            for environment in dict.fromkeys(drawn.environment for drawn in figures)
        },
        return_tag=RETURN_TAGS[0],
        finals=_finals(runs, comparison) if len(runs) > 1 else [],
        parameters=_parameters(facts),
        timeline=_timeline(facts, now),
        machines=_machines(facts),
        video_sources={video.path: _source(video, folder) for each in facts for video in each.videos},
        commands=list(dict.fromkeys(redact_text(each.command) for each in facts if each.command)),
        argv=list(dict.fromkeys(redact_text(shlex.join(arguments)) for arguments in argv)),
        light=_variables(LIGHT),
        dark=_variables(DARK),
    )


def title_of_all(runs: Sequence[pb.Run]) -> str:
    """Return `ppo CartPole-v1 seed 1`, or `6 runs: ppo, dqn on CartPole-v1`."""
    if len(runs) == 1:
        return title_of(runs[0])
    algos = ", ".join(dict.fromkeys(run.algo or run.worker_type for run in runs))
    environments = ", ".join(dict.fromkeys(run.env_id for run in runs if run.env_id))
    return f"{formats.plural(len(runs), 'run')}: {algos}" + (f" on {environments}" if environments else "")


# ---------------------------------------------------------------- facts from daemon and disk


def facts_of(
    client: TrainerClient,
    runs: Sequence[pb.Run],
    commands: Mapping[str, str],
    *,
    most_bytes: int = MOST_BYTES_OF_VIDEOS,
) -> list[RunFacts]:
    """Return everything about these runs; videos are embedded in their order until `most_bytes` are reached."""
    gathered = []
    left = most_bytes
    for run in runs:
        # Videos that are too large to be embedded are linked, so their copies are needed all the same.
        run = client.local(run, "run/analytics.json", "run/videos/*")
        history = tuple(client.history(run.run_id))
        manifest = AnalyticsManifest.find(RunFolder(Path(run.run_dir)).manifest)
        videos = tuple(_videos(run, manifest, left))
        left -= sum(len(video.data or b"") for video in videos)
        has_failed = run.status == RunStatus.TERM and run.outcome != RunOutcome.COMPLETED
        stream, lines = _end_of(client, run, history) if has_failed else ("", [])
        command = commands.get(run.run_id, "")
        gathered.append(RunFacts(run, history, manifest, videos, stream, tuple(lines), command))
    return gathered


def redacted_run(run: pb.Run) -> pb.Run:
    """Return a copy without what looks like a secret: the daemon keeps none, but a page travels further than a home."""
    clean = type(run)()
    clean.CopyFrom(run)
    for name in ("name", "notes", "reason"):
        setattr(clean, name, redact_text(getattr(run, name)))
    secrets = secret_values(extras_of(run))
    for name in ("extras_json", "learning_json"):
        if isinstance(document := parsed(getattr(run, name)), dict):
            setattr(clean, name, json.dumps(redact_document(document, secrets)))
    return clean


def _videos(run: pb.Run, manifest: AnalyticsManifest | None, budget: int) -> Iterator[Video]:
    folder = Path(run.run_dir)
    for name in manifest.videos if manifest else ():
        path = folder / name
        try:
            # A manifest is a file like any other: what it names may lie elsewhere, and is then not read.
            if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
                continue
            size = path.stat().st_size
            data = read_plain_file(path, size) if size <= min(MOST_VIDEO_BYTES, budget) else None
        except (OSError, ValueError):
            continue
        budget -= len(data or b"")
        yield Video(path, size, data)


def _end_of(client: TrainerClient, run: pb.Run, history: Sequence[pb.StoryEvent]) -> tuple[str, list[str]]:
    """Return its last output as the history keeps it, else the end of its log."""
    stream, lines = last_output(history, lines=_LAST_LINES)
    if lines:
        return stream, lines
    for name in ("training_stderr", "stderr", "stdout"):
        data = b""
        with client.logs(run.run_id, name, tail_bytes=_TAIL_BYTES) as chunks:
            for chunk in chunks:
                data = (data + chunk.data)[-_TAIL_BYTES:]
        if text := data.decode("utf-8", "replace").rstrip():
            return name.replace("_", " "), text.splitlines()[-_LAST_LINES:]
    return "", []


# ---------------------------------------------------------------- what the template shows


def _source(video: Video, folder: Path) -> str:
    """Return a small video as data, a large one as a link that holds while both files stay where they are."""
    kind = _MEDIA_TYPES.get(video.path.suffix.lower())
    if video.data is not None and kind is not None:
        return f"data:{kind};base64,{base64.b64encode(video.data).decode()}"
    link = quote(os.path.relpath(video.path, folder))
    return "" if link.startswith(("/", "javascript:")) else link


def _machines(facts: Sequence[RunFacts]) -> list[tuple[list[tuple[str, str]], list[str]]]:
    """Return each machine and set of versions once, with the runs made there."""
    seen: dict[str, tuple[list[tuple[str, str]], list[str]]] = {}
    for each in facts:
        if each.manifest is None:
            continue
        lines = [(str(name).replace("_", " "), _text(value)) for name, value in each.manifest.host.items()]
        lines += [(name, str(version)) for name, version in each.manifest.versions.items()]
        lines.append(("requirement sets", ", ".join(each.manifest.requirements or ())))
        if lines := [line for line in lines if line[1]]:
            seen.setdefault(json.dumps(lines), (lines, []))[1].append(short_id(each.run.run_id))
    return list(seen.values())


def _text(value: Any) -> str:
    if value in (None, "", [], {}):
        return ""
    return redact_text(value if isinstance(value, str) else json.dumps(redact_document(value), ensure_ascii=False))


@dataclass(frozen=True)
class Phase:
    """A state of a run and its period."""

    state: str
    begin: float
    end: float


def phases_of(events: Sequence[pb.StoryEvent], *, now: float) -> list[Phase]:
    """Return the states a run went through; the last one lasts until now, unless the run has ended."""
    changes = [(event.timestamp, event.to_status) for event in events if event.to_status]
    phases: list[Phase] = []
    ends = [at for at, _ in changes[1:]] + [now]
    for (begin, status), end in zip(changes, ends, strict=False):
        state = STATE_LABELS.get(status, status.lower())
        if status == RunStatus.TERM or end < begin:
            continue
        if phases and phases[-1].state == state:
            phases[-1] = Phase(state, phases[-1].begin, end)
        else:
            phases.append(Phase(state, begin, end))
    return phases


def _timeline(facts: Sequence[RunFacts], now: float) -> dict[str, Any] | None:
    """Return a bar for each run on a common axis; None for a single run, whose history shows the same."""
    shown = [(each.run, phases) for each in facts if (phases := phases_of(each.history, now=now))]
    if len(shown) < 2:
        return None
    first = min(phases[0].begin for _, phases in shown)
    last = max(phases[-1].end for _, phases in shown)
    span = max(1e-9, last - first)
    states = dict.fromkeys(phase.state for _, phases in shown for phase in phases)
    return {
        "rows": [(run, [_bar(phase, first, span) for phase in phases]) for run, phases in shown],
        "states": [(_css_class(state), state) for state in states],
        "caption": f"{formats.moment(first)} to {formats.moment(last)}, {formats.duration(span)} in all",
    }


def _bar(phase: Phase, first: float, span: float) -> dict[str, str]:
    left, width = 100 * (phase.begin - first) / span, 100 * (phase.end - phase.begin) / span
    title = f"{phase.state} for {formats.duration(phase.end - phase.begin)}"
    place = {"left": f"{left:.2f}", "width": f"{max(_LEAST_PERCENT, width):.2f}"}
    return {"css": _css_class(phase.state), "title": title, **place}


def _css_class(state: str) -> str:
    return state if state.isalpha() else "other"


def _parameters(facts: Sequence[RunFacts]) -> dict[str, Any]:
    """Return what training used, a column for each configuration; what differs comes first."""
    configurations = list(dict.fromkeys(configuration_of(each.run) for each in facts))
    shown = configurations[:_MOST_COLUMNS]
    used = [redact_document(_settings(facts, own)) for own in shown]
    names = list(dict.fromkeys(name for own in used for name in own))
    differing = [name for name in names if len({own.get(name, NOT_GIVEN) for own in used}) > 1]
    ordered = [*differing, *(name for name in names if name not in differing)]
    notes = {
        "≠ marks what differs.": bool(differing),
        "Where a run did not report its hyper-parameters, only those it was given are listed.": not all(
            each.manifest and each.manifest.hyperparameters for each in facts
        ),
        f"{len(configurations) - len(shown)} more configurations are not shown.": configurations != shown,
    }
    return {
        "labels": configuration_labels(shown),
        "rows": [(name, [own.get(name, NOT_GIVEN) for own in used]) for name in ordered],
        "differing": len(differing),
        "note": " ".join(note for note, applies in notes.items() if applies),
    }


def _settings(facts: Sequence[RunFacts], configuration: Configuration) -> dict[str, str]:
    own = [each for each in facts if configuration_of(each.run) is configuration]
    seeds = sorted({each.run.seed for each in own if each.run.HasField("seed")})
    others = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in sorted(extras_of(own[0].run).items())
        if name != "algo_params" and value not in (None, "", {}, [])
    }
    reported = [each.manifest.hyperparameters for each in own if each.manifest and each.manifest.hyperparameters]
    used = reported[0] if reported else parameters_of(own[0].run)
    return {
        "algorithm": configuration.algo,
        "environment": configuration.environment,
        "steps": formats.count(configuration.total) if configuration.total else "",
        **({"seeds": ", ".join(map(str, seeds))} if seeds else {}),
        **{
            name: short_value(json.dumps(value, ensure_ascii=False))
            for name, value in used.items()
            if name not in ("seed", "env_id", "total_timesteps")
        },
        **others,
    }


# ---------------------------------------------------------------- figures


def draw(runs: Sequence[pb.Run], curves: Mapping[str, Mapping[str, Curve]]) -> list[Drawn]:
    """Draw return, length, speed and losses of each environment, seeds together with their band; then the rest."""
    drawn: list[Drawn] = []
    colors = SteadyColors(runs)
    for environment in dict.fromkeys(map(environment_of, runs)):
        own = [run for run in runs if environment_of(run) == environment]
        mine = {run.run_id: curves.get(run.run_id, {}) for run in own}
        for index, tag in enumerate(_tags(mine)[:_MOST_FIGURES]):
            options = FigureOptions(tag, smoothing=_smoothing(mine, tag), band=Band.CI)
            figure = colors.on(build_figure(own, mine, options))
            if not figure.is_empty:
                svg = _svg(figure, f"f{len(drawn)}", _LARGE if index == 0 else _SMALL)
                drawn.append(Drawn(environment, svg, tag, is_aside=not _is_important(tag)))
    return drawn


def _finals(runs: Sequence[pb.Run], comparison: Comparison) -> list[Markup]:
    """Draw what every seed reached, environment by environment, where there is something to compare."""
    colors = SteadyColors(runs)
    images = []
    for number, environment in enumerate(dict.fromkeys(group.environment for group in comparison.groups)):
        groups = [group for group in comparison.groups if group.environment == environment]
        shades = {group.key: colors.number(group.run_ids[-1]) for group in groups}
        figure = intervals_of(environment, comparison, short_labels(groups), shades)
        if figure.rows and sum(len(row.finals) for row in figure.rows) > 1:
            svg = interval_image(figure, "svg").decode()
            images.append(inline_svg(svg, name=f"i{number}", label=figure.title))
    return images


def _svg(figure: Figure, name: str, size: tuple[int, int]) -> Markup:
    label = f"{figure.title}: {', '.join(line.label for line in figure.lines if not line.is_faint)}"
    return inline_svg(figure_svg(figure, size=size), name=name, label=label)


def inline_svg(svg: str, *, name: str, label: str) -> Markup:
    """Return a drawing within the page: its colors follow the page's, its ids cannot meet those of another."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, count=1, flags=re.DOTALL)
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', body)
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", body)
    body = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', body)
    for variable, color in _variables(LIGHT):
        # In a style only: a presentation attribute would not follow when the page's colors change.
        body = re.sub(rf"(:\s*){re.escape(color)}\b", rf"\1var(--{variable}, {color})", body, flags=re.IGNORECASE)
    opening, rest = body.split(">", 1)
    opening = re.sub(r'\s(width|height)="[^"]*"', "", opening)
    return Markup(f'{opening} role="img" aria-label="{escape(printable(label))}">{rest}')


def _variables(scheme: Scheme) -> list[tuple[str, str]]:
    """Return the CSS variables of a color scheme."""
    named = [("paper", scheme.background), ("ink", scheme.text), ("muted", scheme.muted), ("rule", scheme.grid)]
    return [*((f"series-{index}", color) for index, color in enumerate(scheme.series)), *named]


def _tags(curves: Mapping[str, Mapping[str, Curve]]) -> list[str]:
    """Return the return in front, then length and speed, then losses, then all other tags by name."""
    present = tags_in(curves)
    # The first of RETURN_TAGS stands for whatever a run calls its return.
    returns = [tag for tag in RETURN_TAGS if tag in present][:1]
    front = [RETURN_TAGS[0]] if returns else []
    front += [tag for tag in _FIRST if tag in present]
    others = [tag for tag in present if tag not in front and tag not in returns]
    return [*front, *sorted(others, key=lambda tag: (not _is_important(tag), tag))]


def _is_important(tag: str) -> bool:
    return tag in RETURN_TAGS or tag in _FIRST or tag.startswith("losses/")


def _smoothing(curves: Mapping[str, Mapping[str, Curve]], tag: str) -> Smoothing:
    found = [return_curve(own) if tag == RETURN_TAGS[0] else own.get(tag) for own in curves.values()]
    shortest = min((len(curve) for curve in found if curve is not None and len(curve)), default=0)
    return Smoothing.window(max(1, int(_SMOOTHED * shortest)))
