"""Three seeds of one algorithm and two of another, trained for real: drawn, exported, compared with a random policy."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gym_gui.services.analytics.baselines import BASELINE_TAG, baseline_of
from gym_gui.services.analytics.comparison import Verdict, compare
from gym_gui.services.analytics.curves import Axis, load_curves
from gym_gui.services.run_configs import evaluation_config
from gym_gui.testing import RunningDaemon
from mosaic_wire.event_files import EventFolderReader
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder
from mosaic_wire.proto import trainer_pb2 as pb
from PIL import Image

PATIENCE_S = 150
RETURN = "charts/episodic_return"
# Learns within these steps, whatever the seed: 22 a random policy, above 60 afterwards.
PPO = {"algo": "ppo", "total_timesteps": 8_192, "algo_params": {"num_steps": 128, "learning_rate": 1e-3}}
# Acts at random all along: it begins to learn at its very last step.
DQN = {"algo": "dqn", "total_timesteps": 3_000, "algo_params": {"learning_starts": 2_999, "start_e": 1.0, "end_e": 1.0}}


def config(choice: dict[str, Any], seed: int, **extras: Any) -> dict[str, Any]:
    worker = {
        "algo": choice["algo"],
        "env_id": "CartPole-v1",
        "seed": seed,
        "total_timesteps": choice["total_timesteps"],
        "extras": {"algo_params": choice["algo_params"], **extras},
    }
    return {
        "resources": {"cpus": {"requested": 0}},
        "tags": ["seeds"],
        "metadata": {"worker": {"type": "cleanrl", "module": "cleanrl_worker.cli", "config": worker}},
    }


@pytest.fixture(scope="module")
def daemon(shared_daemon: RunningDaemon) -> RunningDaemon:
    return shared_daemon


@pytest.fixture(scope="module")
def runs(daemon: RunningDaemon) -> list[pb.Run]:
    target = [(PPO, 1), (PPO, 2), (PPO, 3), (DQN, 1), (DQN, 2)]
    queued = [daemon.client.submit(config(choice, seed)).run for choice, seed in target]
    ended = [daemon.wait_for(run.run_id, timeout_s=PATIENCE_S) for run in queued]
    assert [run.outcome for run in ended] == ["completed"] * 5, [run.reason for run in ended]
    return ended


def test_seeds_are_drawn_as_one_line_into_every_kind_of_file(mosaic, runs, tmp_path):
    code, out, _ = mosaic("plot", "--with-tag", "seeds", "--band", "ci", "--out", str(tmp_path / "a.png"))
    assert (code, out) == (0, f"{tmp_path / 'a.png'}  2 lines of 5 runs\n")
    with Image.open(tmp_path / "a.png") as image:
        assert image.size == (960, 540)
        colors = {color for _, color in image.convert("RGB").getcolors(1 << 20)}
    assert {(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)} <= colors  # both lines are there
    ids = [run.run_id for run in runs]
    assert mosaic("plot", *ids, "--dark", "--size", "700x500", "--out", str(tmp_path / "b.svg"))[0] == 0
    text = (tmp_path / "b.svg").read_text()
    assert "ppo · CartPole-v1 (3 seeds)" in text
    assert "dqn · CartPole-v1 (2 seeds)" in text
    assert mosaic("plot", *ids[:2], "--tag", "losses/*loss", "--no-group", "--out", str(tmp_path / "c.pdf"))[0] == 0
    assert {file.name for file in tmp_path.glob("c*.pdf")} == {"c-losses-policy_loss.pdf", "c-losses-value_loss.pdf"}


def test_every_point_is_exported_as_the_run_logged_it(mosaic, daemon, runs, tmp_path):
    points = {
        run.run_id: load_curves(daemon.client, [run], RETURN, max_points=None)[run.run_id][RETURN] for run in runs
    }
    code, out, _ = mosaic("plot", "--algo", "ppo", "--out", str(tmp_path / "a.csv"))
    assert code == 0
    assert out.endswith(f"{sum(len(points[run.run_id]) for run in runs[:3]):,} points of 3 runs\n")
    with (tmp_path / "a.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    own = [row for row in rows if row["run"] == runs[1].run_id]
    assert [float(row["value"]) for row in own] == points[runs[1].run_id].values.tolist()
    assert {(row["algo"], row["env"], row["seed"]) for row in own} == {("ppo", "CartPole-v1", "2")}
    assert mosaic("plot", "--algo", "ppo", "--out", str(tmp_path / "a.parquet"))[0] == 0


def test_without_a_file_there_is_a_sketch(mosaic, runs):
    code, out, _ = mosaic("plot", "--env", "CartPole*", "--x", "episode", "--window", "50")
    assert code == 0
    assert out.startswith("Episodic return · CartPole-v1  (mean ± standard deviation · mean of 50)\n")
    assert "  1  ppo · CartPole-v1 (3 seeds), ends at " in out
    assert "  2  dqn · CartPole-v1 (2 seeds), ends at " in out


def test_other_curves_know_their_episodes_and_thinned_ones_their_length(daemon, runs):
    curves = load_curves(daemon.client, runs[:1], ["losses/value_loss"], episodes=True)[runs[0].run_id]
    assert list(curves) == ["losses/value_loss"]
    whole = load_curves(daemon.client, runs[:1], RETURN, max_points=None, episodes=True)[runs[0].run_id][RETURN]
    loss = curves["losses/value_loss"]
    ended = [int((whole.steps <= step).sum()) for step in loss.steps]
    assert np.abs(loss.axis(Axis.EPISODE) - ended).max() <= 4  # as many as there are environments end in one step
    few = load_curves(daemon.client, runs[:1], RETURN, max_points=40)[runs[0].run_id][RETURN]
    assert few.is_thinned
    assert (few.total, few.axis(Axis.EPISODE)[-1]) == (len(whole), len(whole))


def test_a_comparison_says_who_learned_and_who_is_better(mosaic, daemon, runs):
    code, out, err = mosaic("compare", "--with-tag", "seeds")
    assert code == 0
    assert "measuring a random policy in CartPole-v1" in err
    assert out.startswith("CartPole-v1: 5 runs · random policy ")
    lines = {line.split("  ")[0]: line for line in out.partition("\n\n")[0].splitlines()}
    assert "learned" in lines["ppo (3 seeds)"]
    assert "nothing" not in lines["ppo (3 seeds)"]
    assert "learned nothing" in lines["dqn (2 seeds)"]
    assert "1.00 (fewer than 3 seeds: no interval)" in out
    assert "not better than a random policy's" in err
    assert "few seeds (ppo · CartPole-v1 (3 seeds), dqn · CartPole-v1 (2 seeds)): with fewer than 5" in err

    # It is measured once: the run that did it is archived, and found again.
    (kept,) = daemon.client.list(tags=[BASELINE_TAG], include_archived=True).runs
    assert (kept.archived, kept.outcome, kept.total, kept.env_id) == (True, "completed", 100, "CartPole-v1")
    code, out, err = mosaic("compare", *(run.run_id for run in runs), "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["baselines"]["CartPole-v1"]["run_id"] == kept.run_id
    assert 15 < document["baselines"]["CartPole-v1"]["mean"] < 30  # CartPole's, known to everybody
    assert [group["learned"] for group in document["groups"]] == ["learned", "learned nothing"]
    assert set(document["differing_parameters"]) >= {"learning_rate", "learning_starts"}
    assert daemon.client.list(tags=[BASELINE_TAG], include_archived=True).matching == 1

    code, out, _ = mosaic("compare", "--with-tag", "seeds", "--no-runs")
    steps = {line.split("  ")[0]: line.split() for line in out.partition("\n\n")[0].splitlines()}
    assert ("8,192" in steps["ppo (3 seeds)"], "3,000" in steps["dqn (2 seeds)"]) == (True, True), out

    code, out, _ = mosaic("compare", "--algo", "ppo", "--csv")
    rows = list(csv.DictReader(out.splitlines()))
    assert [row["seed"] for row in rows] == ["1", "2", "3"]
    returns = load_curves(daemon.client, runs[:1], RETURN, max_points=None)[runs[0].run_id][RETURN].values
    assert float(rows[0]["final"]) == pytest.approx(returns[-100:].mean())


def test_a_seed_trained_twice_counts_once(mosaic, daemon, runs, tmp_path):
    copy = daemon.wait_for(daemon.client.submit(config(PPO, 1)).run.run_id, timeout_s=PATIENCE_S)
    ids = [runs[0].run_id, copy.run_id]
    code, out, err = mosaic("compare", *ids, "--no-baseline")
    assert code == 0
    assert "(seed 1)" in out
    group = next(line for line in out.splitlines() if line.startswith("ppo "))
    assert "[" not in group.partition("]")[0]
    assert f"1 run with a repeated seed left out ({ids[0][-8:]})" in err
    code, out, _ = mosaic("plot", *ids, "--out", str(tmp_path / "copies.png"))
    assert (code, out.split("  ")[1]) == (0, "1 line of 1 run\n")
    page = tmp_path / "copies.html"
    assert mosaic("report", *ids, "--no-baseline", "--out", str(page))[0] == 0
    assert "with a repeated seed left out" in page.read_text()
    daemon.client.delete(copy.run_id)


@pytest.mark.slow  # test_analytics_figure.py joins them in every CI
def test_what_a_run_continues_is_part_of_its_curve_also_when_it_was_not_chosen(mosaic, daemon, runs, tmp_path):
    first = runs[0]
    second = daemon.client.resume(first.run_id, additional_timesteps=1_024)
    second = daemon.wait_for(second.run_id, timeout_s=PATIENCE_S)
    daemon.client.update(second.run_id, add_tags=["whole"], remove_tags=["seeds"])

    def figures(*arguments: str) -> dict[str, Any]:
        out = mosaic("compare", *arguments, "--no-baseline", "--json")[1]
        (found,) = json.loads(out)["runs"]
        return found

    both, alone = figures(first.run_id, second.run_id), figures("--with-tag", "whole")
    assert alone == both
    assert alone["episodes"] > 100
    assert mosaic("plot", "--with-tag", "whole", "--out", str(tmp_path / "a.csv"))[0] == 0
    assert first.run_id in (tmp_path / "a.csv").read_text()
    _, out, err = mosaic("plot", "--with-tag", "whole", "--out", str(tmp_path / "a.png"))
    assert (out.split("  ")[1], err) == ("1 line of 2 runs\n", "")
    page = tmp_path / "whole.html"
    assert mosaic("report", second.run_id, "--no-baseline", "--out", str(page))[0] == 0
    assert f"episodes {both['episodes']:,}" in " ".join(re.sub(r"<[^>]+>", " ", page.read_text()).split())
    daemon.client.delete(second.run_id)


def test_several_environments_have_a_figure_each(mosaic, daemon, runs, tmp_path):
    elsewhere = config({**PPO, "total_timesteps": 1_024}, 1)
    elsewhere["metadata"]["worker"]["config"]["env_id"] = "MountainCar-v0"
    other = daemon.wait_for(daemon.client.submit(elsewhere).run.run_id, timeout_s=PATIENCE_S)
    code, out, err = mosaic("plot", runs[0].run_id, other.run_id, "--out", str(tmp_path / "a.png"))
    assert (code, err) == (0, "2 environments: a figure for each, as their axes differ (--env draws one)\n")
    assert {file.name for file in tmp_path.iterdir()} == {"a-CartPole-v1.png", "a-MountainCar-v0.png"}
    assert out.count("1 line of 1 run") == 2
    daemon.client.delete(other.run_id)


@pytest.mark.slow  # test_learning_parameters.py shows what counts in every CI
def test_a_home_with_many_kinds_of_runs_is_drawn_by_what_changes_learning(mosaic, daemon, runs, tmp_path, recwarn):
    """Bookkeeping and defaults split no group; evaluations and cancelled runs are counted and left out."""
    parameters = {**PPO["algo_params"], "gamma": 0.99, "eval_episodes": 1, "exp_name": "mine", "capture_video": False}
    book = config({**PPO, "algo_params": parameters}, 4)
    stopped = config({**PPO, "total_timesteps": 50_000_000}, 5)
    judged = evaluation_config(
        worker_type="cleanrl",
        module="cleanrl_worker.cli",
        algo="ppo",
        env_id="CartPole-v1",
        checkpoint=None,
        episodes=1,
    )
    seedless = config(PPO, 1)
    del seedless["metadata"]["worker"]["config"]["seed"]
    queued = [daemon.client.submit(each).run.run_id for each in (book, stopped, judged, seedless)]
    daemon.client.cancel(queued[1])
    ended = [daemon.wait_for(run_id, timeout_s=PATIENCE_S) for run_id in queued]
    assert [run.outcome for run in ended] == ["completed", "cancelled", "completed", "completed"], ended
    assert ended[3].seed == 1, "the seed its algorithm has when it is given none"
    out = tmp_path / "all.svg"
    code, said, err = mosaic("plot", "--env", "CartPole-v1", "--out", str(out))
    assert code == 0
    assert "ppo · CartPole-v1 (4 seeds)" in out.read_text()
    assert "2 lines of 6 runs" in said
    assert "left out: 1 evaluation, 1 cancelled run (name them, or --with-trials, --outcome failed …" in err
    code, said, err = mosaic("compare", "--env", "CartPole-v1", "--no-baseline", "--json")
    groups = json.loads(said)["groups"]
    assert sorted(group["label"] for group in groups) == ["dqn · CartPole-v1 (2 seeds)", "ppo · CartPole-v1 (4 seeds)"]
    code, said, err = mosaic("plot", "--outcome", "cancelled", "--env", "CartPole-v1")
    assert (code, "none of 1 run has a return" in err) == (1, True)
    assert not [str(each.message) for each in recwarn if "layout" in str(each.message)]
    for run in ended:
        daemon.client.delete(run.run_id)


def test_every_hyperparameter_checkpoint_and_video_is_listed(mosaic, runs, tmp_path):
    """Also those that were left to their defaults, and those that follow from others."""
    expected = {"learning_rate": 1e-3, "gamma": 0.99, "batch_size": 512, "minibatch_size": 128, "num_iterations": 16}
    out = mosaic("show", runs[0].run_id, "--json")[1]
    (document,) = json.loads(out)
    assert expected.items() <= document["hyperparameters"].items()
    (checkpoint,) = document["checkpoints"]
    assert (checkpoint["path"], checkpoint["step"], checkpoint["kind"]) == ("checkpoints/step-8192", 8192, "last")
    assert document["videos"] == []
    out = mosaic("show", runs[0].run_id)[1]
    assert "batch_size: 512" in out
    assert "step 8,192  last  checkpoints/step-8192" in out
    manifest = AnalyticsManifest.read(RunFolder(Path(runs[0].run_dir)).manifest)
    assert manifest.hyperparameters == document["hyperparameters"]
    reader = EventFolderReader(RunFolder(Path(runs[0].run_dir)).tensorboard, texts=True)
    (table,) = [text.text for batch in reader.read() for text in batch.texts]
    assert "|batch_size|512|" in table
    page = tmp_path / "one.html"
    assert mosaic("report", runs[0].run_id, "--no-baseline", "--out", str(page))[0] == 0
    shown = re.sub(r"<[^>]+>", " ", page.read_text())
    assert re.search(r"minibatch_size\s+128", shown)
    assert "checkpoints/step-8192" in shown


def test_the_baseline_is_what_a_random_policy_gets_and_another_environment_has_another(daemon, runs, monkeypatch):
    kept = baseline_of(daemon.client, "CartPole-v1")
    assert (kept.episodes, len(kept.returns)) == (100, 100)
    assert kept.mean in kept.interval
    assert baseline_of(daemon.client, "CartPole-v1", kwargs={"sutton_barto_reward": True}, measure=False) is None
    reported: list[str] = []
    assert baseline_of(daemon.client, "CartPole-v99", on_progress=reported.append) is None
    assert "CartPole-v99: no baseline, " in reported[-1]
    found = compare(daemon.client, runs, baselines={"CartPole-v1": None})
    assert {figures.learned for figures in found.runs.values()} == {Verdict.NO_BASELINE}


def test_a_random_policy_can_be_asked_for_by_name(mosaic, daemon):
    code, out, _ = mosaic("eval", "--random", "Pendulum-v1", "--episodes", "7", "--seed", "5", "--json")
    assert code == 0
    document = json.loads(out)
    daemon.client.cancel(document["run_id"])
    assert (document["env_id"], document["seed"], document["total"]) == ("Pendulum-v1", 5, 7)
    assert document["extras"]["eval_policy"] == "random"
    assert document["name"] == "eval of a random policy in Pendulum-v1"


def test_mistakes_are_one_message(mosaic, runs, tmp_path):
    for arguments, code, message in (
        (["plot"], 2, "which runs?"),
        (["compare"], 2, "which runs?"),
        (["plot", runs[0].run_id, "--algo", "ppo"], 2, "not both"),
        (["plot", "--algo", "nothing"], 2, "no run fits"),
        (["plot", runs[0].run_id, "--tag", "losses/nothing"], 1, "has a curve losses/nothing; there are charts/"),
        (["plot", runs[0].run_id, "--tag", "nothing*"], 2, "no curve is called nothing*; there are charts/"),
        (["plot", runs[0].run_id, "--out", str(tmp_path / "a.gif")], 2, "a file ends in .png, .svg, .pdf, .csv"),
        (["plot", runs[0].run_id, "--out", str(tmp_path / "no" / "a.png")], 2, "there is no folder"),
        (["plot", runs[0].run_id, "--smooth", "1"], 2, "1.0 is not in the range"),
        (["plot", runs[0].run_id, "--smooth", "0.5", "--window", "3"], 2, "choose one"),
        (["plot", runs[0].run_id, "--size", "big"], 2, "such as 960x540"),
        (["eval"], 2, "Give a RUN or CKPT, or --random ENV"),
        (["eval", runs[0].run_id, "--random", "CartPole-v1"], 2, "Give a RUN or CKPT, or --random ENV"),
    ):
        found, _, err = mosaic(*arguments)
        assert (found, message in err, err.startswith("mosaic: ")) == (code, True, True), (arguments, err)
    assert list(tmp_path.iterdir()) == []
