"""Comparisons: the figures of a run, groups, who is better, and whether anything was learned at all."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gym_gui.services.analytics.baselines import Baseline, is_baseline
from gym_gui.services.analytics.comparison import Verdict, best_mean, compare_curves, mean_over_steps, verdict_on
from gym_gui.services.analytics.configurations import environment_of
from gym_gui.services.analytics.curves import Curve
from gym_gui.services.analytics.exporting import RUN_COLUMNS, comparison_document, run_rows
from gym_gui.services.analytics.figure import FigureOptions, build_figure
from hypothesis import given, settings
from hypothesis import strategies as st
from mosaic_wire.proto import trainer_pb2 as pb

RETURN = "charts/episodic_return"
RANDOM = Baseline("CartPole-v1", 22.0, 10.0, 100, "B", None, tuple(np.random.default_rng(0).normal(22, 10, 100)))


def make_run(number: int, *, algo="ppo", env_id="CartPole-v1", parameters=None, **fields) -> pb.Run:
    return pb.Run(
        run_id=f"RUN{number:023}",
        number=number,
        algo=algo,
        env_id=env_id,
        seed=number,
        total=1000,
        step=1000,
        worker_type="cleanrl",
        extras_json=json.dumps({"algo_params": parameters or {}}),
        sps=100.0 * number,
        started_at=50.0,
        finished_at=60.0 + number,
        **fields,
    )


def curve(run: pb.Run, values, steps=None) -> dict[str, Curve]:
    values = np.asarray(values, float)
    steps = np.arange(1.0, len(values) + 1) if steps is None else np.asarray(steps, float)
    return {RETURN: Curve(run.run_id, RETURN, steps, steps, values, len(values))}


def learned(start: float, end: float, *, seed: int, number: int = 400) -> np.ndarray:
    return np.linspace(start, end, number) + np.random.default_rng(seed).normal(0, 5, number)


# ---------------------------------------------------------------- one run


def test_final_is_the_last_hundred_and_best_the_best_hundred_in_a_row():
    run = make_run(1)
    values = np.concatenate((np.zeros(50), np.full(100, 80.0), np.full(100, 30.0)))
    figures = compare_curves([run], {run.run_id: curve(run, values)}).runs[run.run_id]
    assert (figures.final, figures.best, figures.episodes) == (30.0, 80.0, 250)
    assert (figures.sps, figures.wall_s, figures.steps) == (100.0, 11.0, 1000)
    assert (figures.final_interval.low, figures.final_interval.high) == (30.0, 30.0)


@given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=30), st.integers(1, 12))
@settings(max_examples=60)
def test_the_best_mean_is_that_of_some_stretch(values, episodes):
    size = min(episodes, len(values))
    expected = max(np.mean(values[at : at + size]) for at in range(len(values) - size + 1))
    assert best_mean(np.array(values), episodes) == pytest.approx(expected, abs=1e-6)


def test_the_area_is_the_mean_over_steps_however_the_episodes_lie():
    run = make_run(1)
    crowded = curve(run, [0, 10, 10, 10], [0, 100, 150, 200])[RETURN]
    assert mean_over_steps(crowded) == (100 * 5 + 100 * 10) / 200
    assert mean_over_steps(curve(run, [3.0, 5.0], [7, 7])[RETURN]) == 4.0


def test_a_run_without_episodes_has_figures_all_the_same():
    run = make_run(1)
    comparison = compare_curves([run], {run.run_id: {}}, baselines={"CartPole-v1": RANDOM})
    assert comparison.runs[run.run_id].learned is Verdict.NO_EPISODES
    assert comparison.groups[0].final is None
    assert comparison.groups[0].learned is Verdict.NO_EPISODES
    assert json.loads(json.dumps(comparison_document(comparison, [run])))["groups"][0]["final"] is None


def test_facts_that_workers_report_are_compared_where_a_run_has_them():
    told = [
        {"evaluation": {"success_rate": 0.25}, "total_tokens": 1000, "cost": 0.5},
        {"evaluation": {"success_rate": 0.5}, "total_tokens": 3000, "cost": None},
        {"evaluation": "none", "total_tokens": True, "cost": float("inf")},
    ]
    runs = [make_run(number, result_json=json.dumps(told[number - 1])) for number in (1, 2, 3)]
    runs.append(make_run(4, algo="dqn", result_json='["damaged'))
    found = compare_curves(runs, {run.run_id: curve(run, [1.0, 2.0]) for run in runs})
    assert [fact.name for fact in found.facts] == ["success_rate", "total_tokens", "cost"]
    reported, plain = sorted(found.groups, key=lambda group: group.algo, reverse=True)
    assert reported.facts == {"success_rate": 0.375, "total_tokens": 2000, "cost": 0.5}
    assert plain.facts == found.runs[runs[2].run_id].facts == {}
    assert [fact.text(reported.facts) for fact in found.facts] == ["37.5 %", "2,000", "0.5"]
    assert {fact.text({}) for fact in found.facts} == {"–"}
    assert not compare_curves(runs[2:], {run.run_id: {} for run in runs[2:]}).facts
    document = json.loads(json.dumps(comparison_document(found, runs)))
    assert [run["total_tokens"] for run in document["runs"]] == [1000, 3000, None, None]
    rows = [dict(zip(RUN_COLUMNS, row, strict=True)) for row in run_rows(found, runs)]
    assert {row["run"]: row["cost"] for row in rows} == {run.run_id: (0.5 if run is runs[0] else None) for run in runs}


# ---------------------------------------------------------------- did it learn


def test_learned_means_better_than_random_by_more_than_chance():
    generator = np.random.default_rng(1)
    assert verdict_on(generator.normal(60, 20, 100), RANDOM) is Verdict.LEARNED
    assert verdict_on(generator.normal(22, 10, 100), RANDOM) is Verdict.LEARNED_NOTHING
    assert verdict_on(generator.normal(9, 1, 100), RANDOM) is Verdict.LEARNED_NOTHING
    assert verdict_on(np.array(RANDOM.returns), RANDOM) is Verdict.LEARNED_NOTHING
    assert verdict_on(np.full(100, 400.0), None) is Verdict.NO_BASELINE


def test_a_single_episode_has_to_beat_every_random_one():
    assert verdict_on(np.array([max(RANDOM.returns)]), RANDOM) is Verdict.LEARNED_NOTHING
    assert verdict_on(np.array([100.0]), RANDOM) is Verdict.LEARNED


def test_chance_alone_is_seldom_called_learning():
    generator = np.random.default_rng(2)
    verdicts = [verdict_on(generator.normal(RANDOM.mean, 10, 100), RANDOM) for _ in range(100)]
    assert verdicts.count(Verdict.LEARNED) <= 12


# ---------------------------------------------------------------- groups


@pytest.fixture
def comparison():
    ppo = [make_run(number) for number in (1, 2, 3)]
    dqn = [make_run(number, algo="dqn", parameters={"learning_rate": 1e-3}) for number in (4, 5)]
    other = [make_run(6, env_id="Acrobot-v1")]
    curves = {run.run_id: curve(run, learned(20, 200 + 10 * run.number, seed=run.number)) for run in ppo}
    curves |= {run.run_id: curve(run, learned(20, 20, seed=run.number)) for run in dqn[:1]}
    curves |= {dqn[1].run_id: curve(dqn[1], learned(20, 90, seed=5))}
    curves |= {other[0].run_id: curve(other[0], learned(-500, -100, seed=6))}
    runs = [*dqn, *ppo, *other]
    return runs, compare_curves(runs, curves, baselines={"CartPole-v1": RANDOM, "Acrobot-v1": None})


def test_groups_are_sorted_by_environment_and_final_return(comparison):
    _, found = comparison
    assert [group.label for group in found.groups] == [
        "ppo · CartPole-v1 (3 seeds)",
        "dqn · CartPole-v1 (2 seeds)",
        "ppo · Acrobot-v1 (seed 6)",
    ]
    ppo, _, acrobot = found.groups
    finals = [found.runs[run_id].final for run_id in ppo.run_ids]
    assert ppo.final.value == pytest.approx(np.mean(finals))
    assert ppo.final_std == pytest.approx(np.std(finals, ddof=1))
    assert min(finals) <= ppo.final.interval.low <= ppo.final.value <= ppo.final.interval.high <= max(finals)
    assert (ppo.seeds, ppo.sps, ppo.wall_s) == ((1, 2, 3), 200.0, 12.0)
    assert (acrobot.final_std, acrobot.final.interval) == (None, None)


def test_each_group_is_judged_by_its_runs(comparison):
    _, found = comparison
    ppo, dqn, acrobot = found.groups
    assert (ppo.learned, ppo.learned_count) == (Verdict.LEARNED, 3)
    assert (dqn.learned, dqn.learned_count) == (Verdict.PARTLY, 1)
    assert acrobot.learned is Verdict.NO_BASELINE


def test_pairs_are_of_one_environment_the_better_one_in_front(comparison):
    _, found = comparison
    (pair,) = found.improvements
    assert (found.group(pair.better).algo, found.group(pair.worse).algo) == ("ppo", "dqn")
    assert (pair.probability.value, pair.probability.interval) == (1.0, None)


def test_of_two_seeds_there_is_no_interval_and_of_three_there_is(comparison):
    """With two it was [lower, higher], called 95 %."""
    ppo, dqn, _ = comparison[1].groups
    assert (dqn.final.interval, dqn.final_iqm.interval, dqn.auc.interval) == (None, None, None)
    assert dqn.final_std is not None
    assert None not in (ppo.final.interval, ppo.final_iqm.interval, ppo.auc.interval)


def test_a_run_that_continues_has_no_verdict_and_is_named():
    runs = [make_run(1, status="TERM"), make_run(2, status="EXEC")]
    runs[1].step = 0
    curves = {run.run_id: curve(run, learned(20, 200, seed=run.number)) for run in runs}
    found = compare_curves(runs, curves, baselines={"CartPole-v1": RANDOM})
    assert [found.runs[run.run_id].learned for run in runs] == [Verdict.LEARNED, Verdict.UNFINISHED]
    assert [found.runs[run.run_id].steps for run in runs] == [1000, 400], "its curve is ahead of its heartbeat"
    assert found.groups[0].learned is Verdict.UNFINISHED
    assert found.note == "so far: 1 run not finished (00000002)"


def test_a_network_that_was_never_updated_learned_nothing_however_lucky_it_is():
    runs = [make_run(1), make_run(2, result_json='{"never_updated": true}')]
    curves = {run.run_id: curve(run, learned(40, 60, seed=1)) for run in runs}
    found = compare_curves(runs, curves, baselines={"CartPole-v1": RANDOM})
    assert [found.runs[run.run_id].learned for run in runs] == [Verdict.LEARNED, Verdict.LEARNED_NOTHING]


@pytest.mark.parametrize(
    ("returns", "verdict"),
    [
        (np.full(200, 60.0), Verdict.DID_NOT_IMPROVE),
        (learned(60, 60, seed=1), Verdict.DID_NOT_IMPROVE),
        (learned(80, 40, seed=1), Verdict.DID_NOT_IMPROVE),  # worse than it began
        (np.concatenate((learned(22, 60, seed=1, number=60), learned(60, 60, seed=2))), Verdict.LEARNED),  # soon
        (learned(40, 60, seed=1, number=20), Verdict.LEARNED),
        (np.full(3, 60.0), Verdict.LEARNED),  # too few to say
    ],
)
def test_better_than_random_from_the_start_is_not_called_learned(returns, verdict):
    run = make_run(1)
    found = compare_curves([run], {run.run_id: curve(run, returns)}, baselines={"CartPole-v1": RANDOM})
    assert (found.runs[run.run_id].learned, found.groups[0].learned) == (verdict, verdict)


def test_runs_that_failed_or_were_cancelled_are_named():
    outcomes = {1: "completed", 2: "failed", 3: "cancelled"}
    runs = [make_run(number, status="TERM", outcome=outcome) for number, outcome in outcomes.items()]
    found = compare_curves(runs, {run.run_id: curve(run, learned(20, 200, seed=run.number)) for run in runs})
    assert found.note == "not completed: 2 runs (00000002, 00000003)"


def test_a_run_whose_beginning_was_deleted_is_named():
    middle = make_run(2, parent=pb.ParentRun(run_id="GONE", step=1))
    last = make_run(3, parent=pb.ParentRun(run_id=middle.run_id, step=2))
    found = compare_curves([last, middle], {run.run_id: curve(run, [1, 2, 3]) for run in (middle, last)})
    assert found.note == "the beginning of 00000003 is missing: the run it continues is not here"


def test_runs_of_an_edited_script_are_another_configuration():
    hashes = {1: "a" * 64, 2: "a" * 64, 3: "b" * 64}
    runs = [make_run(number, algo="my_q") for number in hashes]
    for run in runs:
        run.extras_json = json.dumps({"script_path": "/x/my_q.py", "script_sha256": hashes[run.number]})
    other = make_run(4)
    curves = {run.run_id: curve(run, [4.0 - run.number]) for run in (*runs, other)}
    found = compare_curves([*runs, other], curves)
    assert [group.label for group in found.groups] == [
        "my_q.py · CartPole-v1 · script aaaaaaa (2 seeds)",
        "my_q.py · CartPole-v1 · script bbbbbbb (seed 3)",
        "ppo · CartPole-v1 (seed 4)",
    ]
    assert found.differing == ("script_sha256",)
    unedited = compare_curves([*runs[:2], other], curves)
    assert unedited.groups[0].label == "my_q.py · CartPole-v1 (2 seeds)"
    assert unedited.differing == ()


def test_a_seed_that_was_extended_is_reported_where_it_counts():
    runs = [make_run(number) for number in (1, 2, 3)]
    more = make_run(4, parent=pb.ParentRun(run_id=runs[0].run_id, step=1000))
    more.seed, more.total = 1, 2000
    curves = {run.run_id: curve(run, [1, 2, 3]) for run in (*runs, more)}
    found = compare_curves([*runs, more], curves)
    assert sorted(len(group.run_ids) for group in found.groups) == [1, 2]
    said = "00000001 (seed 1) counts only in 00000004, which continues it"
    assert found.note == said
    assert said in build_figure([*runs, more], curves, FigureOptions()).note


def test_who_has_the_higher_mean_need_not_be_better_more_often():
    """One lucky seed lifts a mean; it does not make the others better."""
    runs = [make_run(1), make_run(2), make_run(3), *(make_run(seed, algo="dqn") for seed in (4, 5, 6))]
    ends = [1000, 1, 1, 10, 10, 10]
    curves = {run.run_id: curve(run, [end] * 3) for run, end in zip(runs, ends, strict=True)}
    found = compare_curves(runs, curves)
    assert [group.algo for group in found.groups] == ["ppo", "dqn"]
    (pair,) = found.improvements
    assert found.group(pair.better).algo == "dqn"
    assert pair.probability.value == pytest.approx(2 / 3)
    assert pair.probability.interval.low <= 2 / 3 <= pair.probability.interval.high


def test_parameters_in_which_groups_differ_are_named(comparison):
    _, found = comparison
    assert found.differing == ("learning_rate",)
    assert [group.parameters["learning_rate"] for group in found.groups] == ["–", "1e-3", "–"]


def test_a_comparison_is_data_too(comparison):
    runs, found = comparison
    document = json.loads(json.dumps(comparison_document(found, runs)))
    assert document["baselines"]["CartPole-v1"]["mean"] == 22.0
    assert document["baselines"]["Acrobot-v1"] is None
    assert document["improvements"][0]["probability"] == 1.0
    assert {run["run_id"] for run in document["runs"]} == {run.run_id for run in runs}
    rows = list(run_rows(found, runs))
    assert len(rows) == 6
    assert dict(zip(RUN_COLUMNS, rows[0], strict=True))["group"] == "ppo · CartPole-v1 (3 seeds)"


def test_by_another_curve_there_is_no_baseline():
    run = make_run(1)
    losses = {"losses/x": Curve(run.run_id, "losses/x", np.arange(3.0), np.arange(3.0), np.array([3.0, 2, 1]), 3)}
    found = compare_curves([run], {run.run_id: losses}, tag="losses/x", baselines={"CartPole-v1": RANDOM})
    assert (found.runs[run.run_id].final, found.runs[run.run_id].learned) == (2.0, Verdict.NO_BASELINE)


def test_a_continued_run_counts_once_with_all_its_time():
    first = make_run(1)
    second = make_run(2, parent=pb.ParentRun(run_id=first.run_id, step=2))
    curves = {first.run_id: curve(first, [0, 0]), second.run_id: curve(second, [10, 10], [3, 4])}
    found = compare_curves([first, second], curves)
    assert list(found.runs) == [second.run_id]
    assert (found.runs[second.run_id].episodes, found.runs[second.run_id].wall_s) == (4, 23.0)


# ---------------------------------------------------------------- baselines


def test_copies_of_a_seed_make_no_interval():
    """One seed trained twice was `71.1 [71.1, 71.1]`."""
    runs = [make_run(1), make_run(2), make_run(3, algo="dqn")]
    runs[1].seed = 1
    curves = {run.run_id: curve(run, np.full(150, 71.1)) for run in runs}
    found = compare_curves(runs, curves)
    ppo = next(group for group in found.groups if group.algo == "ppo")
    assert (ppo.label, ppo.run_ids, ppo.repeated) == (
        "ppo · CartPole-v1 (seed 1)",
        (runs[1].run_id,),
        (runs[0].run_id,),
    )
    assert (ppo.final.interval, ppo.final_std, ppo.final_iqm.interval) == (None, None, None)
    assert [pair.probability.interval for pair in found.improvements] == [None]
    assert "1 run with a repeated seed left out (00000001)" in found.note
    document = comparison_document(found, runs)
    assert [group["repeated_seeds"] for group in document["groups"] if group["algo"] == "ppo"] == [[runs[0].run_id]]
    assert len(document["runs"]) == len(list(run_rows(found, runs))) == 3


def test_an_environment_made_otherwise_is_another_one():
    plain, other = make_run(1), make_run(2)
    other.extras_json = json.dumps({"env_kwargs": {"gravity": 5.0}})
    assert (environment_of(plain), environment_of(other)) == ("CartPole-v1", 'CartPole-v1 {"gravity": 5.0}')


def test_runs_in_an_environment_made_otherwise_are_compared_with_their_own_baseline_only():
    runs = [make_run(number, algo=algo) for number, algo in enumerate(("ppo", "dqn", "ppo"), 1)]
    runs[2].extras_json = json.dumps({"algo_params": {"env_kwargs": "gravity=5.0"}})
    curves = {run.run_id: curve(run, np.full(150, 40.0)) for run in runs}
    found = compare_curves(runs, curves, baselines={"CartPole-v1": RANDOM})
    assert [group.label for group in found.groups] == [
        "ppo · CartPole-v1 (seed 1)",
        "dqn · CartPole-v1 (seed 2)",
        'ppo · CartPole-v1 {"gravity": 5.0} (seed 3)',
    ]
    assert {pair.better for pair in found.improvements} | {pair.worse for pair in found.improvements} == {
        group.key for group in found.groups[:2]
    }
    judged = [found.runs[run.run_id].learned for run in runs]
    assert judged == [Verdict.DID_NOT_IMPROVE, Verdict.DID_NOT_IMPROVE, Verdict.NO_BASELINE]
    assert found.differing == ()


def test_a_run_that_a_user_tagged_baseline_is_not_ours():
    assert not is_baseline(make_run(1, tags=["baseline"]))
    assert not is_baseline(pb.Run(extras_json='{"eval_policy": "random"}'))
    assert is_baseline(pb.Run(extras_json='{"eval_policy": "random"}', tags=["baseline"]))


# ---------------------------------------------------------------- over several environments


def test_configurations_that_met_in_several_environments_are_compared_over_them():
    places = ("CartPole-v1", "Acrobot-v1")
    runs = [
        make_run(10 * at + seed, algo=algo, env_id=env_id)
        for at, (env_id, algo) in enumerate((env_id, algo) for env_id in places for algo in ("ppo", "dqn", "sac"))
        for seed in (1, 2, 3)
        if (env_id, algo) != ("Acrobot-v1", "sac")
    ]
    level = {
        ("CartPole-v1", "dqn"): 200,
        ("CartPole-v1", "ppo"): 100,
        ("Acrobot-v1", "dqn"): -80,
        ("Acrobot-v1", "ppo"): -400,
    }
    curves = {run.run_id: curve(run, np.full(5, level.get((run.env_id, run.algo), 0) + run.seed)) for run in runs}
    (pair,) = compare_curves(runs, curves).overall
    assert (pair.better, pair.worse, pair.environments) == ("dqn", "ppo", places)
    assert (pair.probability.value, pair.probability.interval.low) == (1.0, 1.0)


def test_a_tie_between_environments_is_a_half():
    runs = [
        make_run(at, algo=algo, env_id=env_id)
        for at, (env_id, algo) in enumerate((env_id, algo) for env_id in "AB" for algo in ("ppo", "dqn"))
    ]
    curves = {run.run_id: curve(run, [float((run.env_id == "A") == (run.algo == "ppo"))]) for run in runs}
    (pair,) = compare_curves(runs, curves).overall
    assert pair.probability.value == 0.5
