"""The page of a report: it loads nothing, runs nothing, and no name gets out of its place."""

from __future__ import annotations

import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from gym_gui.services.analytics.baselines import Baseline
from gym_gui.services.analytics.bench_plan import Misfit
from gym_gui.services.analytics.bench_report import Bench
from gym_gui.services.analytics.bench_report import render as render_markdown
from gym_gui.services.analytics.comparison import Verdict, compare_curves, decided
from gym_gui.services.analytics.curves import curve_of
from gym_gui.services.analytics.exporting import bench_group_rows, bench_run_rows, csv_text
from gym_gui.services.analytics.figure import FigureOptions, SteadyColors, build_figure
from gym_gui.services.analytics.html_report import (
    Phase,
    RunFacts,
    Video,
    draw,
    inline_svg,
    phases_of,
    redacted_run,
    render,
)
from gym_gui.services.analytics.published import compare_with_published
from gym_gui.services.analytics.report_templates import markdown_code, markdown_text
from gym_gui.services.analytics.statistics import Estimate, Interval
from mosaic_wire.ids import new_run_id
from mosaic_wire.manifest import AnalyticsManifest, CheckpointEntry
from mosaic_wire.proto import trainer_pb2 as pb

RETURN = "charts/episodic_return"
HOSTILE = "</title><script>alert(1)</script>\"'><img src=http://evil/x onerror=alert(2)>| `$x` \u202e\x00 [a](http://b)"
VOID = frozenset({"meta", "img", "br", "hr"})


class Page(HTMLParser):
    """What a browser would make of it, as far as loading, running and nesting go."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == [], f"not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(self.text)

    def check_that_it_loads_nothing(self) -> None:
        assert not {"script", "link", "iframe", "object", "embed", "base", "form"} & set(self.tags)
        for tag, name, value in self.attributes:
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "xlink:href", "srcset", "poster", "data", "action"):
                assert value.startswith(("#", "data:")) or ":" not in value.split("/")[0], (tag, name, value[:80])
                assert not value.startswith(("//", "http", "javascript")), (tag, name, value[:80])


def run(algo: str = "ppo", seed: int = 1, *, name: str = "", **fields) -> pb.Run:
    values = {
        "status": "TERM",
        "outcome": "completed",
        "env_id": "CartPole-v1",
        "worker_type": "cleanrl",
        "step": 1000,
        "total": 1000,
        "sps": 1234.0,
        "created_at": 1e9,
        "started_at": 1e9 + 1,
        "finished_at": 1e9 + 61,
        "number": seed,
    }
    made = pb.Run(run_id=new_run_id(), algo=algo, seed=seed, name=name or f"{algo}-{seed}")
    made.MergeFrom(pb.Run(**{**values, **fields}))
    return made


def curves_of(runs, level):
    made = {}
    for each in runs:
        values = np.linspace(20, level[each.algo] + each.seed, 150)
        steps = np.arange(150) * 7
        made[each.run_id] = {
            RETURN: curve_of(each.run_id, RETURN, steps, 1e9 + steps, values, 150),
            "losses/value_loss": curve_of(each.run_id, "losses/value_loss", steps, 1e9 + steps, 100 / (steps + 1), 150),
        }
    return made


BASELINE = Baseline("CartPole-v1", 22.0, 10.0, 100, "b", Interval(20.0, 24.0), tuple(np.linspace(10, 34, 100)))


@pytest.fixture(scope="module")
def compared():
    runs = [run(algo, seed) for seed in (1, 2, 3) for algo in ("ppo", "dqn")]
    curves = curves_of(runs, {"ppo": 200, "dqn": 20})
    return runs, curves, compare_curves(runs, curves, baselines={"CartPole-v1": BASELINE})


def facts(made: pb.Run, **more) -> RunFacts:
    event = pb.StoryEvent(timestamp=1e9, kind="submitted", to_status="INIT", reason=HOSTILE)
    return RunFacts(made, (event,), **more)


# ---------------------------------------------------------------- markup


def test_text_is_escaped_and_markup_is_not(tmp_path):
    made = run(name=HOSTILE)
    text = render([facts(made)], compare_curves([made], {}), [], tmp_path, title=HOSTILE, now=0.0)
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "<h1>" in text
    assert "\x00" not in text
    assert "\u202e" not in text


def test_an_inline_drawing_keeps_its_ids_to_itself_and_takes_the_pages_colors():
    svg = (
        '<?xml version="1.0"?><!DOCTYPE svg><svg width="9" height="9" viewBox="0 0 9 9"><metadata>http://x</metadata>'
        '<defs><path id="m1"/></defs><use xlink:href="#m1" style="stroke: #0072b2"/><g clip-path="url(#c)"/></svg>'
    )
    made = inline_svg(svg, name="f7", label='"><script>')
    assert made.startswith("<svg viewBox")
    assert 'id="f7-m1"' in made
    assert 'href="#f7-m1"' in made
    assert "url(#f7-c)" in made
    assert "var(--series-0, #0072b2)" in made
    assert "metadata" not in made
    assert "<script>" not in made


# ---------------------------------------------------------------- the whole page


def test_a_page_of_several_runs_says_everything_and_loads_nothing(compared, tmp_path):
    runs, curves, comparison = compared
    manifest = AnalyticsManifest(
        runs[0].run_id,
        host={"name": "box", "cpu": "Fast"},
        versions={"torch": "2.13"},
        argv=("python", "-m", "x"),
        checkpoints=(CheckpointEntry("checkpoints/step-10", 10, "a" * 64, "best"),),
    )
    reported = [facts(runs[0], manifest=manifest, command="mosaic train ppo"), *map(facts, runs[1:])]
    page = Page(render(reported, comparison, draw(runs, curves), tmp_path, title="", now=time.time()))
    page.check_that_it_loads_nothing()
    assert page.tags.count("svg") == 3  # return, loss, and what every seed reached
    for expected in (
        "6 runs: ppo, dqn on CartPole-v1",
        "learned nothing",
        "Acting at random reaches CartPole-v1: 22.0 ± 10.0",
        "not comparable: 1,000 of 500,000 steps",
        "likely: only 3 seeds",
        "torch",
        "2.13",
        "checkpoints/step-10",
        "mosaic train ppo",
        f"mosaic clone {runs[5].run_id}",
        "charts/episodic_return",
        "losses/value_loss",
        "≠",
    ):
        assert expected in page.words, expected


def test_hostile_names_stay_names(tmp_path):
    bad = run(
        HOSTILE,
        1,
        name=HOSTILE,
        env_id=HOSTILE,
        notes=HOSTILE,
        tags=[HOSTILE],
        outcome="failed",
        reason=HOSTILE,
        extras_json='{"algo_params": {"<b>": "</td><script>", "api_key": "s3cret-value"}}',
    )
    bad, other = redacted_run(bad), run(HOSTILE, 2, name=HOSTILE, env_id=HOSTILE)
    curves = curves_of([bad, other], {HOSTILE: 50})
    reported = [
        facts(
            each,
            last_stream=HOSTILE,
            last_lines=(HOSTILE, "curl https://me:hunter22@host/"),
            command=HOSTILE,
            videos=(Video(Path(tmp_path / HOSTILE.replace("/", "") / "x.mp4"), 9_000_000),),
            manifest=AnalyticsManifest(each.run_id, host={HOSTILE: HOSTILE}, versions={HOSTILE: HOSTILE}),
        )
        for each in (bad, other)
    ]
    for chosen in (reported, reported[:1]):
        runs = [each.run for each in chosen]
        text = render(chosen, compare_curves(runs, curves), draw(runs, curves), tmp_path, title="", now=0.0)
        page = Page(text)
        page.check_that_it_loads_nothing()
        assert "alert(1)" in page.words
        assert "s3cret-value" not in text
        assert "hunter22" not in text
        assert "script" not in page.tags
        assert "img" not in page.tags


def test_small_videos_are_in_the_page_and_large_ones_are_linked_from_where_it_lies(tmp_path):
    made = run()
    small, large = Video(tmp_path / "a.mp4", 3, b"abc"), Video(tmp_path / "runs" / "big & bold.mp4", 99_000_000)
    comparison = compare_curves([made], {})
    reported = [facts(made, manifest=AnalyticsManifest(made.run_id), videos=(small, large))]
    page = Page(render(reported, comparison, [], tmp_path / "reports", title="", now=0.0))
    page.check_that_it_loads_nothing()
    assert ("video", "src", "data:video/mp4;base64,YWJj") in page.attributes
    assert ("a", "href", "../runs/big%20%26%20bold.mp4") in page.attributes


def test_a_run_of_which_nothing_is_known_yet_still_has_a_page(tmp_path):
    made = pb.Run(run_id=new_run_id(), status="INIT")
    text = render([RunFacts(made, ())], compare_curves([made], {}), [], tmp_path, title="Mine", now=0.0)
    assert text.startswith("<!DOCTYPE html>")  # anything before it, and browsers draw the page as of 1995
    page = Page(text)
    page.check_that_it_loads_nothing()
    assert "queued" in page.words
    assert "Mine" in page.words


def test_a_timeline_shows_how_long_each_run_waited_and_worked(tmp_path):
    def event(at: float, status: str) -> pb.StoryEvent:
        return pb.StoryEvent(timestamp=at, kind="x", to_status=status)

    ended = [event(0, "INIT"), event(10, "HSHK"), event(11, "RDY"), event(12, "EXEC"), event(50, ""), event(90, "TERM")]
    assert phases_of(ended, now=999.0) == [Phase("queued", 0, 10), Phase("starting", 10, 12), Phase("running", 12, 90)]
    waiting = [event(40, "INIT")]
    assert phases_of(waiting, now=100.0) == [Phase("queued", 40, 100)]
    reported = [RunFacts(run("ppo", 1), tuple(ended)), RunFacts(run(HOSTILE, 2), tuple(waiting))]
    comparison = compare_curves([each.run for each in reported], {})
    page = Page(render(reported, comparison, [], tmp_path, title="", now=100.0))
    page.check_that_it_loads_nothing()
    places = [value for _, name, value in page.attributes if name == "style"]
    assert places == [
        "left:0.00%;width:10.00%",
        "left:10.00%;width:2.00%",
        "left:12.00%;width:78.00%",
        "left:40.00%;width:60.00%",
    ]
    alone = render(reported[:1], comparison, [], tmp_path, title="", now=100.0)
    assert 'class="track"' not in alone  # its history shows the same


def test_the_same_configuration_has_the_same_color_in_every_figure(compared):
    runs, curves, _ = compared
    only_dqn = {run.run_id: curves[run.run_id] for run in runs if run.algo == "dqn"}
    colors = SteadyColors(runs)
    both = colors.on(build_figure(runs, curves, FigureOptions(RETURN)))
    one = colors.on(build_figure(runs, only_dqn, FigureOptions(RETURN)))
    assert {line.label.split(" ")[0]: line.color for line in both.lines} == {"ppo": 0, "dqn": 1}
    assert [line.color for line in one.lines] == [1]


# ---------------------------------------------------------------- the benchmark's Markdown and tables


def test_the_markdown_of_a_benchmark_has_its_figures_failures_and_what_was_left_out(compared):
    runs, _, comparison = compared
    failed = run("ppo", 9, outcome="failed", reason="line one\n# not a heading | nor a cell <script>")
    event = pb.StoryEvent(payload_json='{"stderr_tail": "Traceback\\n```\\nBoom"}')
    bench = Bench(
        "mine", (*runs, failed), (Misfit("sac", "CartPole-v1", "needs"),), (("x seed 1", "refused"),), "mosaic bench"
    )
    text = render_markdown(bench, comparison, [], {failed.run_id: [event]}, now=0.0)
    assert "7 runs: 6 completed, 1 failed or cancelled" in text
    assert "**Learned nothing** (no better than acting at random): dqn on CartPole-v1" in text
    assert "| `ppo` | `dqn` | 1.00 [1.00, 1.00] | likely: only 3 seeds |" in text
    assert "line one \\# not a heading \\| nor a cell \\<script\\>" in text
    assert "````\nTraceback\n```\nBoom\n````" in text
    assert "- `sac` on CartPole-v1: needs" in text
    assert "**x seed 1** was not queued: refused" in text
    assert "| not comparable: 1,000 of 500,000 steps (0 %) |" in text


def test_facts_that_workers_report_have_columns_in_both_reports(tmp_path):
    result = '{"evaluation": {"success_rate": 0.625}, "total_tokens": 123456}'
    runs = [run("llm", 1, result_json=result), run("ppo", 2)]
    curves = curves_of(runs, {"llm": 200, "ppo": 20})
    comparison = compare_curves(runs, curves, baselines={"CartPole-v1": BASELINE})
    text = render_markdown(Bench("mine", tuple(runs)), comparison, [], {}, now=0.0)
    assert text.count("| time | success | tokens | learned? |") == 2
    assert text.count("| 62.5 % | 123k |") == 2
    assert text.count("| – | – |") == 2
    page = Page(render([*map(facts, runs)], comparison, [], tmp_path, title="", now=0.0))
    assert page.words.count("62.5 %") == page.words.count("123k") == 2
    (row,) = [each for each in bench_group_rows(comparison) if each["algo"] == "llm"]
    assert (row["success_rate"], row["total_tokens"], row["cost"]) == (0.625, 123456, None)
    assert [each["total_tokens"] for each in bench_run_rows(runs, comparison.runs)] == [123456, None]


def test_over_all_environments_each_counts_the_same():
    runs = [
        run(algo, seed, env_id=env_id, number=10 * seed)
        for env_id in ("A-v0", "B-v0")
        for algo in ("ppo", "dqn")
        for seed in (1, 2, 3)
    ]
    level = {("ppo", "A-v0"): 100, ("dqn", "A-v0"): 50, ("ppo", "B-v0"): 70, ("dqn", "B-v0"): 70}
    curves = {
        each.run_id: {RETURN: curve_of(each.run_id, RETURN, [0, 1], [0, 1], [level[each.algo, each.env_id]] * 2, 2)}
        for each in runs
    }
    (found,) = compare_curves(runs, curves).overall
    assert (found.better, found.worse, found.environments, found.seeds) == ("ppo", "dqn", ("A-v0", "B-v0"), 3)
    assert found.probability.value == pytest.approx((1.0 + 0.5) / 2)  # always better in one, always equal in the other
    only_one = [each for each in runs if each.env_id == "A-v0"]
    assert compare_curves(only_one, curves).overall == ()


def test_a_table_cell_cannot_break_its_table():
    assert markdown_text("a|b\n- c") == "a\\|b - c"
    assert markdown_text("a\x9bb\u202ec") == markdown_code("a\x9bb\u202ec").strip("`") == "a\ufffdb\ufffdc"
    assert markdown_code("a|`b`") == "`` a\\|`b` ``"
    assert markdown_code("") == ""


@pytest.mark.parametrize(
    ("interval", "seeds", "said"),
    [
        (None, 2, "no: fewer than 3 seeds"),
        (Interval(0.3, 1.0), 9, "no: 0.50 lies within"),
        (Interval(0.6, 1.0), 3, "likely: only 3 seeds"),
        (Interval(0.6, 1.0), 5, "yes"),
    ],
)
def test_what_is_decided_depends_on_the_interval_and_on_how_many_seeds_there_were(interval, seeds, said):
    assert decided(Estimate(0.8, interval), seeds) == said


def test_groups_are_compared_with_what_was_published_only_after_as_many_steps(compared):
    runs, curves, comparison = compared
    ppo = next(group for group in comparison.groups if group.algo == "ppo")
    short = compare_with_published(ppo, comparison)
    assert (short.is_comparable, short.is_reached) == (False, False)
    for each in runs:
        each.step = 500_000
    longer = compare_curves(runs, curves, baselines={"CartPole-v1": BASELINE})
    held = compare_with_published(next(group for group in longer.groups if group.algo == "ppo"), longer)
    assert (held.is_comparable, held.is_reached, held.text) == (True, False, "not reached")
    for each in runs:
        each.step = 1000


def test_the_tables_have_a_row_for_every_run_and_group_and_no_formulas(compared):
    runs, _, comparison = compared
    odd = run("ppo", 8, name="=HYPERLINK(1)", outcome="failed", reason="two\nlines")
    rows = bench_run_rows([*runs, odd], comparison.runs)
    text = csv_text(rows)
    assert len(text.splitlines()) == 8
    assert "'=HYPERLINK(1)" in text
    assert "two lines" in text
    groups = bench_group_rows(comparison)
    assert [row["algo"] for row in groups] == ["ppo", "dqn"]
    assert groups[0]["final_low"] <= groups[0]["final"] <= groups[0]["final_high"]
    assert (groups[0]["learned"], groups[1]["learned"]) == (Verdict.LEARNED, Verdict.LEARNED_NOTHING)
    assert csv_text([]) == ""
