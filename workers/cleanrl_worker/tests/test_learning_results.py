"""What a training reached: read from its event files, and shown in generated documents."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from cleanrl_worker.tools import learning_results
from cleanrl_worker.training.metrics import EventWriter

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGES = DOCS / "workers" / "cleanrl"


def script(name: str):
    spec = importlib.util.spec_from_file_location(name, PAGES / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_run(folder: Path, returns: list[float], *, first_step: int = 0, **flags) -> None:
    values = {"exp_name": "mine", "env_id": "CartPole-v1", "seed": 3, "total_timesteps": 5000, **flags}
    writer = EventWriter(folder, resume_at=first_step - 1)
    if not first_step:
        rows = "\n".join(f"|{name}|{value}|" for name, value in values.items())
        writer.add_text("hyperparameters", f"|param|value|\n|-|-|\n{rows}")
    for index, value in enumerate(returns):
        writer.add_scalars({"charts/episodic_return": value}, first_step + 10 * (index + 1))
    writer.add_scalars({"charts/SPS": 1234.0}, first_step + 10 * len(returns))
    writer.close()


# -- reading


def test_the_last_hundred_episodes_are_averaged(tmp_path):
    write_run(tmp_path, [float(index) for index in range(250)])
    found = learning_results.read_result(tmp_path)
    assert (found.mean_last_100, found.best_mean_100, found.episodes) == (199.5, 199.5, 250)
    assert (found.algo, found.env_id, found.seed, found.total_timesteps, found.steps) == (
        "mine",
        "CartPole-v1",
        3,
        5000,
        2500,
    )
    assert found.sps == 1234


def test_what_a_resumed_run_did_again_counts_once(tmp_path):
    write_run(tmp_path, [1.0] * 100)
    write_run(tmp_path, [2.0] * 50, first_step=500)  # from episode 50 on
    found = learning_results.read_result(tmp_path)
    assert found.episodes == 49 + 50  # the one at step 500 is the first that was written again
    assert found.mean_last_100 == pytest.approx((49 + 100) / 99, abs=1e-3)


def test_the_best_hundred_need_not_be_the_last(tmp_path):
    values = [0.0] * 30 + [5.0] * 100 + [1.0] * 40
    assert learning_results.best_mean(values) == 5
    assert learning_results.best_mean(values[:99]) is None


def test_flags_that_were_changed_are_reported_and_defaults_are_not(tmp_path):
    defaults = {field.name: field.default for field in DEFAULT_ALGO_REGISTRY["ppo"].spec().fields}
    write_run(tmp_path, [1.0], **{**defaults, "exp_name": "ppo", "seed": 3, "gamma": 0.5})
    assert learning_results.read_result(tmp_path).flags == {"gamma": "0.5"}


def test_a_folder_without_events_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="no event file"):
        learning_results.read_result(tmp_path)


def test_a_training_is_run_and_reported(tmp_path, capsys):
    message = ["run", "--folder", str(tmp_path), "ppo", "--total-timesteps", "1024", "--num-steps", "64", "--seed", "5"]
    assert learning_results.main([*message, "--eval-episodes", "3"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert (reported["algo"], reported["env_id"], reported["seed"], reported["steps"]) == (
        "ppo",
        "CartPole-v1",
        5,
        1024,
    )
    assert reported["episodes"] > 10
    assert reported["mean_last_100"] > 5
    assert reported["evaluation"]["episodes"] == 3
    assert reported["flags"] == {"eval_episodes": "3", "num_steps": "64"}
    assert reported["cpu_seconds"] > 0
    assert reported["versions"]["gymnasium"]
    assert reported["command"].startswith("python -m cleanrl_worker.algorithms ppo")


@pytest.mark.slow  # one that succeeds is reported in every CI
def test_a_training_that_fails_is_no_result(tmp_path):
    with pytest.raises(SystemExit, match="does not divide"):
        learning_results.main(["run", "--folder", str(tmp_path), "ppo", "--num-minibatches", "7"])


# -- what is to be reached

EXPECTED = {
    "random": {"CartPole-v1": 22.0},
    "asked": [{"algos": ["sac_continuous_action"], "env_id": "Pendulum-v1", "at_least": -200}],
}


def result(env_id="CartPole-v1", algo="ppo", seed=1, mean=480.0, total=500_000, **more):
    found = learning_results.LearningResult(algo, env_id, seed, total, total, mean, 900, mean, machine="a machine")
    return {**found.to_json(), "cpu_seconds": 10.0, "date": "2026-01-02", **more}


@pytest.mark.parametrize(
    ("of", "least"),
    [
        (result(), 490.04 - 0.05 * (490.04 - 22)),
        (result("Acrobot-v1"), -86.36 - 2 * 1.32),
        (result("InvertedPendulum-v5", "ppo_continuous_action", total=1_000_000), 963.09 - 2 * 22.2),
        (result("PongNoFrameskip-v4", "ppo_atari", total=10_000_000), 20.36 - 2 * 0.2),
        (result("Pendulum-v1", "sac_continuous_action", total=20_000), -200),
    ],
)
def test_the_margin_is_two_deviations_or_a_twentieth_of_the_way(of, least):
    assert script("make_matrix").least_return(of, EXPECTED)[0] == pytest.approx(least)


def test_a_shorter_training_is_not_compared():
    maker = script("make_matrix")
    assert maker.least_return(result(total=499_999), EXPECTED) is None
    assert maker.least_return(result("Taxi-v4"), EXPECTED) is None
    stopped = {**result(total=20_000_000), "steps": 400_000}
    assert maker.least_return(stopped, EXPECTED) is None
    assert "20,000,000 (stopped at 400,000)" in maker.render_page([stopped], EXPECTED)


def test_a_target_may_be_for_some_arguments_of_the_environment_only():
    maker = script("make_matrix")
    easy = '{"is_slippery": false}'
    asked = [{"algos": ["ppo"], "env_id": "FrozenLake-v1", "env_kwargs": easy, "at_least": 0.95}]
    without_ice = result("FrozenLake-v1", mean=0.99, flags={"env_kwargs": easy})
    expected = {**EXPECTED, "asked": asked}
    assert maker.least_return(without_ice, expected) == (0.95, "target 0.95")
    assert maker.least_return(result("FrozenLake-v1", mean=0.7), expected) is None
    assert f"| FrozenLake-v1 {easy} | learned |" in maker.render_matrix([without_ice], [], expected)


def test_a_training_of_few_episodes_is_judged_by_its_evaluation():
    """The last 100 episodes of 100 are all of them, from the first untrained one on."""
    maker = script("make_matrix")
    evaluation = {"mean": -150.0, "std": 80.0, "episodes": 20}
    of = result("Pendulum-v1", "sac_continuous_action", mean=-465.0, total=20_000, evaluation=evaluation)
    assert "| 1 of 1 (evaluation) |" in maker.render_page([{**of, "episodes": 100}], EXPECTED)
    assert "| 0 of 1 |" in maker.render_page([{**of, "episodes": 101}], EXPECTED)
    assert "| 0 of 1 |" in maker.render_page([{**of, "episodes": 100, "evaluation": None}], EXPECTED)


def test_all_seeds_are_shown_and_a_repeated_one_replaces_the_first(tmp_path, monkeypatch):
    maker = script("make_matrix")
    for name in ("LEARNED", "EXPECTED", "RAN", "PAGE", "MATRIX"):
        monkeypatch.setattr(maker, name, tmp_path / name)
    maker.LEARNED.write_text("[]")
    maker.RAN.write_text("[]")
    maker.EXPECTED.write_text(json.dumps(EXPECTED))
    maker.MATRIX.write_text(f"before\n{maker.BEGIN}\nold\n{maker.END}\nafter\n")
    for index, (seed, mean) in enumerate([(2, 400.0), (1, 499.0), (2, 480.5)]):
        file = tmp_path / f"{index}.json"
        file.write_text(json.dumps(result(seed=seed, mean=mean)))
        maker.main([str(file)])
    assert [entry["seed"] for entry in json.loads(maker.LEARNED.read_text())] == [1, 2]
    page, matrix = maker.PAGE.read_text(), maker.MATRIX.read_text()
    assert "499.0 (1), 480.5 (2)" in page
    assert "466.6 (published 490.04 ± 6.12)" in page
    assert "| 2 of 2 |" in page
    assert "| `ppo` | CartPole-v1 | learned | 489.8 | 480.5 to 499.0 | last 100 training episodes | 466.6 " in matrix
    assert matrix.startswith("before\n")
    assert matrix.endswith("after\n")
    assert "\nold\n" not in matrix
    for entry in DEFAULT_ALGO_REGISTRY.values():
        assert f"`{entry.name}`" in matrix


def verdict_of(*results):
    (row,) = [line for line in script("make_matrix").render_matrix(results, [], EXPECTED).splitlines() if "-v" in line]
    return row.split(" | ")[2]


def test_the_verdict_follows_from_the_comparison():
    assert verdict_of(result(mean=470.0)) == "learned"
    assert verdict_of(result(mean=460.0)) == "below"
    assert verdict_of(result(mean=490.0), result(mean=460.0, seed=2)) == "learned"
    stopped = {**result("PongNoFrameskip-v4", "ppo_atari", mean=-18.4, total=20_000_000), "steps": 750_592}
    assert verdict_of(stopped) == "not shown"
    assert verdict_of(result(), {**result(seed=2), "steps": 1000}) == "not shown"
    assert verdict_of(result("Taxi-v4")) == "not shown"


def test_a_result_is_one_row_and_an_evaluation_is_called_one():
    evaluation = {"mean": -150.0, "std": 80.0, "episodes": 20}
    of = result("Pendulum-v1", "sac_continuous_action", mean=-465.0, total=20_000, evaluation=evaluation, episodes=100)
    table = script("make_matrix").render_matrix([of, result()], [], EXPECTED)
    assert (
        "| `sac_continuous_action` | Pendulum-v1 | learned | -150.0 | – | evaluation after training | -200.0 (target "
    ) in table
    assert "| `ppo` | CartPole-v1 | learned | 480.0 | – | last 100 training episodes |" in table
    assert "<br>" not in table


def test_the_pages_are_what_their_files_say():
    maker = script("make_matrix")
    learned, expected, ran = (json.loads(file.read_text()) for file in (maker.LEARNED, maker.EXPECTED, maker.RAN))
    cure = "run: python docs/workers/cleanrl/make_matrix.py"
    assert maker.PAGE.read_text() == maker.render_page(learned, expected), cure
    page = maker.MATRIX.read_text()
    assert page == maker.with_matrix(page, maker.render_matrix(learned, ran, expected)), cure


# -- speed


def test_the_page_about_speed_is_what_was_measured():
    maker = script("make_speed")
    cases = json.loads(maker.DATA.read_text())["cases"]
    assert maker.PAGE.read_text() == maker.render(cases), "run: python docs/workers/cleanrl/make_speed.py"


def test_a_ratio_is_the_median_of_its_pairs():
    maker = script("make_speed")
    case = {
        "algo": "ppo",
        "env_id": "CartPole-v1",
        "flags": ["--learning-starts", "9"],
        "own_flags": [],
        "steps": [100, 5000],
        "target": 4,
        "moonshot": 8,
        "date": "2026-01-02",
        "machine": "a machine",
        "load": [0.1, 0.2],
        "script_sha256": "ab" * 32,
        "ours": {"cpu": [5000.0, 4000.0, 9000.0], "wall": [500.0, 400.0, 900.0]},
        "upstream": {"cpu": [1000.0, 1000.0, 1000.0], "wall": [100.0, 100.0, 100.0]},
        "versions": {"ours": {"torch": "2"}, "upstream": {"torch": "1"}},
    }
    page = maker.render([case])
    assert "| `ppo` | CartPole-v1 | 1,000 | 5,000 | 5.00 × (4.00 – 9.00) | 5.00 × | 4 × | 8 × | reached |" in page
    assert "| `ppo` | `--learning-starts 9` | 5,000 less 100 | 3 | a machine | 0.1 – 0.2 | 2026-01-02 |" in page
    assert "| `ppo --bf16` | CartPole-v1 |" in maker.render([{**case, "own_flags": ["--bf16"]}])


def test_the_benchmark_says_what_it_needs(monkeypatch):
    monkeypatch.delenv("UPSTREAM", raising=False)
    program = DOCS.parent / "benchmarks" / "algorithms.py"
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("skipped: it needs a checkout of CleanRL")
    assert len(done.stdout.splitlines()) == 1
