"""The parts of a report's page that say what was reached and with which parameters. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mosaic_wire.redaction import redact_document
from mosaic_wire.redaction import redact_text as clean

from gym_gui.services.analytics.bench_figures import held_against_published
from gym_gui.services.analytics.comparison import Comparison, GroupFigures, RunFigures, Verdict
from gym_gui.services.analytics.configurations import Configuration, configuration_of, parameters_of, short_value
from gym_gui.services.analytics.figure_words import decided, estimate_text, fewest_seeds, number, probability_text
from gym_gui.services.analytics.html_page import Html, element, pairs, table, together
from gym_gui.services.analytics.labels import NOT_GIVEN, configuration_labels
from gym_gui.services.analytics.report_facts import RunFacts
from gym_gui.wording import formats
from gym_gui.wording.run_view import (
    SYMBOLS,
    elapsed_s,
    evaluation_of,
    mean_return,
    parsed,
    progress_of,
    short_id,
    state_of,
    title_of,
)

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

_MOST_COLUMNS = 12


# ---------------------------------------------------------------- summary and comparison


def summary(facts: Sequence[RunFacts], comparison: Comparison) -> Html:
    if len(facts) == 1:
        return _one_run(facts[0], comparison)
    runs = [each.run for each in facts]
    states = {state: sum(state_of(run) == state for run in runs) for state in dict.fromkeys(map(state_of, runs))}
    counted = ", ".join(f"{number} {state}" for state, number in states.items())
    nothing = [group.label for group in comparison.groups if group.learned is Verdict.LEARNED_NOTHING]
    words = (
        element("p", element("span", "Learned nothing: ", class_="bad"), ", ".join(nothing)) if nothing else Html("")
    )
    note = element("p", comparison.note, class_="caption") if comparison.note else Html("")
    return together(element("p", f"{formats.plural(len(runs), 'run')}: {counted}."), words, _groups(comparison), note)


def _one_run(facts: RunFacts, comparison: Comparison) -> Html:
    run, figures = facts.run, comparison.runs.get(facts.run.run_id)
    state = state_of(run)
    tone = {"completed": "good", "failed": "bad"}.get(state)
    took = elapsed_s(run)
    cards = [
        _card("state", element("span", f"{SYMBOLS.get(state, '')} {state}".strip(), class_=tone)),
        _card("steps", f"{formats.count(run.step)}" + (f" of {formats.count(run.total)}" if run.total else "")),
        _card("final return", number(figures.final) if figures else NOT_GIVEN),
        _card("best return", number(figures.best) if figures else NOT_GIVEN),
        _card("learned?", _verdict(figures.learned if figures else Verdict.NO_EPISODES)),
        _card("steps/s", formats.count(figures.sps) if figures and figures.sps is not None else NOT_GIVEN),
        _card("time", formats.duration(took) if took is not None else NOT_GIVEN),
    ]
    evaluation = mean_return(evaluation_of(run))
    lines = [
        ("run", element("code", run.run_id)),
        ("name", run.name),
        ("algorithm", run.algo),
        ("environment", run.env_id),
        ("seed", str(run.seed) if run.HasField("seed") else ""),
        ("worker", run.worker_type),
        ("reason", "" if run.reason in ("", run.outcome) else clean(run.reason)),
        ("progress", progress_of(run) if run.status != "TERM" else ""),
        ("evaluation", f"mean return {formats.quantity(evaluation)}" if evaluation is not None else ""),
        ("area under the curve", number(figures.auc) if figures and figures.auc is not None else ""),
        ("episodes", formats.count(figures.episodes) if figures else ""),
        ("submitted", formats.moment(run.created_at)),
        ("started", formats.moment(run.started_at)),
        ("finished", formats.moment(run.finished_at)),
        (
            "continues",
            f"{run.parent.run_id} from step {formats.count(run.parent.step)}" if run.HasField("parent") else "",
        ),
        ("tags", ", ".join(run.tags)),
        ("note", clean(run.notes)),
    ]
    return together(element("div", *cards, class_="cards"), pairs(lines), _groups(comparison, only_published=True))


def _card(label: str, value: str) -> Html:
    return element("div", element("span", label, class_="caption"), element("b", value), class_="card")


def _verdict(verdict: Verdict) -> Html:
    tone = {Verdict.LEARNED: "good", Verdict.LEARNED_NOTHING: "bad"}.get(verdict)
    return element("span", str(verdict), class_=tone)


def _verdict_on(group: GroupFigures) -> Html:
    if group.learned is Verdict.PARTLY:
        return element("span", f"{group.learned_count} of {len(group.run_ids)} learned")
    return _verdict(group.learned)


def _groups(comparison: Comparison, *, only_published: bool = False) -> Html:
    """A row for each group of seeds, the best first; and what others reached."""
    rows, against = [], []
    for group in comparison.groups:
        rows.append(
            [
                group.label, str(len(group.run_ids)), estimate_text(group.final_iqm), estimate_text(group.final),
                number(group.final_std), number(group.best.value if group.best else None),
                number(group.auc.value if group.auc else None),
                formats.count(group.sps) if group.sps is not None else NOT_GIVEN,
                formats.duration(group.wall_s) if group.wall_s is not None else NOT_GIVEN, _verdict_on(group),
            ]
        )  # fmt: skip
        held = held_against_published(group, comparison)
        if held is not None and group.final is not None:
            theirs = held.published
            said = f"{number(theirs.mean)} ± {number(theirs.std)} at {formats.count(theirs.steps)} steps"
            ours = f"{number(group.final.value)} at {formats.count(held.steps)} steps"
            against.append([group.label, ours, said, held.words, theirs.source])
    headers = ("group", "seeds", "final return: IQM", "mean", "std", "best", "AUC", "steps/s", "time", "learned?")
    made = Html("") if only_published else table(headers, rows, numbers=range(1, 9), row_headers=True)
    published = table(("group", "ours", "published", "comparison", "source"), against, row_headers=True)
    caption = element("h3", "Held against published returns") if against else Html("")
    return together(made, _baselines(comparison), caption, published)


def _baselines(comparison: Comparison) -> Html:
    said = [
        f"{env_id}: {formats.quantity(each.mean)} ± {formats.quantity(each.std)}"
        for env_id, each in comparison.baselines.items()
        if each is not None
    ]
    return element("p", f"Acting at random reaches {'; '.join(said)}.", class_="caption") if said else Html("")


def comparison(runs: Sequence[pb.Run], compared: Comparison, pictures: Sequence[Html]) -> Html:
    """How sure it is that one is better, and each run on its own."""
    if len(runs) < 2:
        return Html("")
    labels = {group.key: group.label for group in compared.groups}
    chances = [
        [
            labels.get(pair.better, ""),
            labels.get(pair.worse, ""),
            probability_text(pair.probability),
            decided(pair.probability, fewest_seeds(pair, compared)),
        ]
        for pair in compared.improvements
    ]
    headers = ("first", "second", "probability that a run of the first ends better", "decided?")
    each = [_run_row(run, compared.runs.get(run.run_id)) for run in runs]
    own = ("run", "what", "state", "final", "95 % interval", "best", "AUC", "steps/s", "time", "learned?")
    return together(
        element("div", *pictures, class_="figures") if pictures else "",
        table(headers, chances, numbers=(2,)),
        element("h3", "Every run"),
        table(own, each, numbers=range(3, 9)),
    )


def _run_row(run: pb.Run, figures: RunFigures | None) -> list[str]:
    state = state_of(run)
    interval = figures.final_interval if figures else None
    return [
        element("code", short_id(run.run_id)),
        together(title_of(run), element("span", run.name, class_="name caption") if run.name else ""),
        element("span", state, class_={"completed": "good", "failed": "bad"}.get(state)),
        number(figures.final if figures else None),
        f"{number(interval.low)} … {number(interval.high)}" if interval else NOT_GIVEN,
        number(figures.best if figures else None),
        number(figures.auc if figures else None),
        formats.count(figures.sps) if figures and figures.sps is not None else NOT_GIVEN,
        formats.duration(figures.wall_s) if figures and figures.wall_s is not None else NOT_GIVEN,
        _verdict(figures.learned) if figures else NOT_GIVEN,
    ]


# ---------------------------------------------------------------- parameters


def parameters(facts: Sequence[RunFacts]) -> Html:
    """What training used, a column for each configuration; what differs stands out, and in front."""
    runs = [each.run for each in facts]
    configurations = list(dict.fromkeys(configuration_of(run) for run in runs))
    shown = configurations[:_MOST_COLUMNS]
    used = [redact_document(_settings(facts, own)) for own in shown]
    names = list(dict.fromkeys(name for own in used for name in own))
    differing = [name for name in names if len({own.get(name, NOT_GIVEN) for own in used}) > 1]
    ordered = [*differing, *(name for name in names if name not in differing)]
    rows = [
        [f"{name} ≠" if name in differing else name, *(own.get(name, NOT_GIVEN) for own in used)] for name in ordered
    ]
    if not rows:
        return Html("")
    words = [
        "≠ marks what differs." if differing else "",
        "" if all(each.manifest and each.manifest.hyperparameters for each in facts)
        else "Where a run did not tell its hyper-parameters, only those it was given are listed.",
        f"{len(configurations) - len(shown)} more configurations are not shown." if configurations != shown else "",
    ]  # fmt: skip
    labels = configuration_labels(shown)
    return together(
        table(("parameter", *labels), rows, row_headers=True, marked=range(len(differing))),
        element("p", " ".join(filter(None, words)), class_="caption"),
    )


def _settings(facts: Sequence[RunFacts], configuration: Configuration) -> dict[str, str]:
    own = [each for each in facts if configuration_of(each.run) is configuration]
    seeds = sorted({each.run.seed for each in own if each.run.HasField("seed")})
    extras = parsed(own[0].run.extras_json)
    others = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in sorted((extras if isinstance(extras, Mapping) else {}).items())
        if name != "algo_params" and value not in (None, "", {}, [])
    }
    told = [dict(each.manifest.hyperparameters) for each in own if each.manifest and each.manifest.hyperparameters]
    used = told[0] if told else parameters_of(own[0].run)
    return {
        "algorithm": configuration.algo,
        "environment": configuration.env_id,
        "steps": formats.count(configuration.total) if configuration.total else "",
        **({"seeds": ", ".join(map(str, seeds))} if seeds else {}),
        **{
            name: short_value(json.dumps(value, ensure_ascii=False))
            for name, value in used.items()
            if name not in ("seed", "env_id", "total_timesteps")
        },
        **others,
    }


MEANING = together(
    element(
        "p",
        "Final return: the mean over the last 100 training episodes, or over all of a run that had fewer. Best: the "
        "highest mean over 100 episodes in a row. AUC: the area under the curve of the return divided by the steps, "
        "that is the mean return over the training. IQM: the interquartile mean over the seeds. Brackets hold 95 % "
        "intervals of a percentile bootstrap over the seeds: none with fewer than three seeds, and too narrow to rely "
        "on with fewer than five. Learned: better than a policy that acts at random, which is measured once for each "
        "environment.",
    ),
    element(
        "p",
        "Curves: mean over the seeds, band: its 95 % bootstrap interval. Definitions: Agarwal et al. (2021), as in "
        "rliable.",
    ),
)
