"""`mosaic bench` and `mosaic report`: interrupted and resumed, with failures, and read by another user."""

from __future__ import annotations

import csv
import os
import signal
import statistics
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import pytest
from gym_gui.testing import RunningDaemon, install_scripted_worker
from mosaic_wire.files import read_json_object, write_json_atomically
from mosaic_wire.testing import wait_until

from tests.e2e.conftest import Mosaic

TWO = """
from mosaic_wire.event_files import ScalarEventWriter
session = open_session()
session.started()
session.progress(1, config.total_timesteps)
session.stop_requested.wait(0.3)
writer = ScalarEventWriter(session.run_folder.tensorboard)
for episode in range(150):
    grown = episode * config.seed if config.algo == "good" else episode % 7
    values = {"charts/episodic_return": 20.0 + grown, "charts/episodic_length": 20.0 + grown, "charts/SPS": 1000.0}
    writer.add_scalars({**values, "losses/value_loss": 150.0 - episode}, episode * 10)
writer.close()
session.progress(config.total_timesteps, config.total_timesteps, 1.0, 1000.0)
session.finish(ExitOutcome.COMPLETED, exit_code=0)
"""


@dataclass(frozen=True)
class Benched:
    """A benchmark of two algorithms with three seeds, and the folder of its report."""

    name: str
    algos: tuple[str, str]
    words: tuple[str, ...]
    folder: Path


@pytest.fixture(scope="module", params=["scripted", pytest.param("cleanrl", marks=pytest.mark.slow)])
def benched(
    request: pytest.FixtureRequest, shared_daemon: RunningDaemon, tmp_path_factory: pytest.TempPathFactory
) -> Benched:
    """Whoever asked for it pressed Ctrl-C and asked again. Real trainings, or (quicker) processes that play them."""
    name, folder = f"two-{request.param}", tmp_path_factory.mktemp("bench") / "report"
    algos, more = ("ppo", "dqn"), ["--total-timesteps", "2500", "--set", "dqn.learning_starts=500"]
    if request.param == "scripted":
        algos, more = ("good", "bad"), ["--worker", "two", "--total-timesteps", "1490"]
        install_two_algorithms(shared_daemon)
    words = (
        "bench",
        "--algos",
        ",".join(algos),
        "--envs",
        "CartPole-v1",
        "--seeds",
        "1-3",
        "--parallel",
        *more,
        "--name",
        name,
        "--out",
        str(folder),
    )
    log = folder.parent / "first.log"
    command = [sys.executable, "-m", "gym_gui", *words]
    with log.open("wb") as stream:
        first = subprocess.Popen(command, env=shared_daemon.variables, stdout=stream, stderr=subprocess.STDOUT)
        assert wait_until(lambda: ": running" in log.read_text() or first.poll() is not None, timeout_s=120)
        first.send_signal(signal.SIGINT)
        assert first.wait(60) == 130, log.read_text()
    reported = log.read_text()
    assert "queued 6 runs" in reported
    assert f"--name {name}" in reported.partition("resume and report")[2]
    assert not folder.exists()
    again = subprocess.run(
        command, env=shared_daemon.variables, capture_output=True, text=True, timeout=300, check=False
    )
    assert again.returncode == 0, again.stdout + again.stderr
    assert "6 runs of it were there already" in again.stderr
    assert "6 of 6 done" in again.stdout
    return Benched(name, algos, words, folder)


def install_two_algorithms(daemon: RunningDaemon) -> None:
    install_scripted_worker(daemon.home, "two", TWO)
    file = daemon.home.workers / "two" / "worker.json"
    spec = read_json_object(file)
    (known,) = spec["algorithms"]
    write_json_atomically(file, {**spec, "algorithms": [{**known, "name": name} for name in ("good", "bad")]})


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


class Loads(HTMLParser):
    """Everything a page would load or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self.tags: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            inside = (value or "").startswith(("#", "data:"))
            if name.startswith("on") or (name in ("src", "href", "xlink:href", "srcset") and not inside):
                self.found.append((tag, f"{name}={value}"))

    def handle_data(self, data: str) -> None:
        self.words += data


# ---------------------------------------------------------------- two algorithms, three seeds


def test_an_interrupted_benchmark_continues_with_the_same_runs(benched: Benched, shared_daemon: RunningDaemon) -> None:
    runs = shared_daemon.client.list(tags=[f"bench:{benched.name}"]).runs
    assert len(runs) == 6
    assert {(run.algo, run.seed) for run in runs} == {(algo, seed) for algo in benched.algos for seed in (1, 2, 3)}
    assert {run.outcome for run in runs} == {"completed"}


def test_its_tables_agree_with_each_other_and_with_the_curves(benched: Benched) -> None:
    runs, groups, points = (rows(benched.folder / name) for name in ("runs.csv", "groups.csv", "curves.csv"))
    assert {row["algo"] for row in groups} == set(benched.algos)
    for group in groups:
        own = [row for row in runs if row["algo"] == group["algo"]]
        finals = [float(row["final"]) for row in own]
        assert len(finals) == 3
        assert float(group["final"]) == pytest.approx(statistics.fmean(finals))
        assert float(group["final_std"]) == pytest.approx(statistics.stdev(finals))
        assert float(group["final_low"]) <= float(group["final"]) <= float(group["final_high"])
        assert float(group["random_mean"]) == pytest.approx(22, abs=6)
        for row in own:
            curve = [float(point["value"]) for point in points if point["run"] == row["run_id"]]
            assert len(curve) == int(row["episodes"])
            assert float(row["final"]) == pytest.approx(statistics.fmean(curve[-100:]))
            assert float(row["wall_s"]) > 0
            assert float(row["sps"]) > 0
    if benched.name == "two-scripted":
        assert {row["algo"]: row["learned"] for row in groups} == {"good": "learned", "bad": "learned nothing"}
        # Episodes 50 to 149 of a return that grows by the seed.
        assert {row["seed"]: float(row["final"]) for row in runs if row["algo"] == "good"} == {
            str(seed): 20 + 99.5 * seed for seed in (1, 2, 3)
        }
    else:
        assert all(group["against_published"].startswith("not comparable: 2,") for group in groups)


def test_its_report_names_the_figures_and_shows_plots_that_are_there(benched: Benched) -> None:
    text = (benched.folder / "report.md").read_text()
    expected = [
        "6 runs: 6 completed",
        "## CartPole-v1",
        "final return: IQM",
        "A policy that acts at random reaches",
        "probability of improvement",
        "## Compared with published returns",
        "## Every run",
        f"mosaic bench --report-only {benched.name}",
    ]
    real, played = ["490.0 ± 6.12", "488.7 ± 16.1"], ["Nothing was published", "**Learned nothing**"]
    expected += real if "ppo" in benched.algos else played
    assert [words for words in expected if words not in text] == []
    assert "## Failures" not in text
    for axis in ("steps", "time"):
        image = benched.folder / "plots" / f"return-{axis}-CartPole-v1.png"
        assert f"(plots/{image.name})" in text
        assert image.read_bytes().startswith(b"\x89PNG")
        drawing = ElementTree.parse(image.with_suffix(".svg"))
        assert f"{benched.algos[0]} · CartPole-v1 (3 seeds)" in "".join(drawing.getroot().itertext())


def test_the_report_is_written_again_without_the_command_that_made_it(
    benched: Benched, mosaic: Mosaic, tmp_path: Path
) -> None:
    code, out, _ = mosaic("bench", "--report-only", benched.name, "--out", str(tmp_path / "again"))
    assert code == 0
    assert out.splitlines()[-1] == str(tmp_path / "again" / "report.md")
    for name in ("runs.csv", "groups.csv", "curves.csv"):
        assert (tmp_path / "again" / name).read_text() == (benched.folder / name).read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["again"]  # nothing half-written beside it


def test_a_page_of_the_runs_can_be_read_offline(benched: Benched, mosaic: Mosaic, tmp_path: Path) -> None:
    target = tmp_path / "bench.html"
    words = ("report", "--with-tag", f"bench:{benched.name}", "--out", str(target))
    code, out, err = mosaic(*words)
    assert (code, err) == (0, "")
    assert str(target) in out
    page = Loads(target.read_text())
    assert page.found == []
    assert page.tags.count("svg") >= 4
    assert "script" not in page.tags
    first, second = benched.algos
    for expected in (f"6 runs: {first}, {second} on CartPole-v1", f"mosaic train {second} CartPole-v1", "SPS"):
        assert expected in page.words, expected
    code, _, err = mosaic(*words)
    assert code == 2
    assert "--force replaces it" in err


def test_an_archive_has_events_the_wandb_folder_a_report_and_plots(
    benched: Benched, mosaic: Mosaic, shared_daemon: RunningDaemon, tmp_path: Path
) -> None:
    run = shared_daemon.client.list(tags=[f"bench:{benched.name}"]).runs[0]
    offline = Path(run.run_dir, "wandb", "offline-run-20260101_000000-abc")
    offline.mkdir(parents=True)
    (offline / "run-abc.wandb").write_bytes(b":W&B")
    os.symlink(offline.name, offline.parent / "latest-run")
    code, _, err = mosaic("export", run.run_id, "--report", "--output", str(tmp_path / "run.tar.gz"))
    assert (code, err) == (0, "")
    with tarfile.open(tmp_path / "run.tar.gz") as archive:
        names = archive.getnames()
    assert any(name.startswith("run/tensorboard/") and ".tfevents." in name for name in names)
    plots = {f"run/plots/return-steps-CartPole-v1.{kind}" for kind in ("png", "svg")}
    assert {f"run/wandb/{offline.name}/run-abc.wandb", "run/report.html", *plots} <= {*names}


# ---------------------------------------------------------------- failures

FLAKY = """
from mosaic_wire.event_files import ScalarEventWriter
session = open_session()
session.started()
if config.seed == 2 and not Path(os.environ["MOSAIC_HOME"], "repaired").exists():
    print("the second seed is broken", file=sys.stderr)
    sys.exit(3)
writer = ScalarEventWriter(session.run_folder.tensorboard)
for episode in range(120):
    writer.add_scalars({"charts/episodic_return": 10.0 * config.seed}, episode * 10)
writer.close()
session.progress(1200, 1200)
session.finish(ExitOutcome.COMPLETED, exit_code=0)
"""


def test_a_failed_run_is_listed_the_others_continue_and_it_can_be_tried_again(
    mosaic: Mosaic, shared_daemon: RunningDaemon, tmp_path: Path
) -> None:
    install_scripted_worker(shared_daemon.home, "flaky", FLAKY)
    folder = tmp_path / "report"
    words = (
        "bench",
        "--worker",
        "flaky",
        "--algos",
        "script",
        "--envs",
        "Home-v0",
        "--seeds",
        "1-3",
        "--parallel",
        "--total-timesteps",
        "1200",
        "--name",
        "flaky",
        "--out",
        str(folder),
    )
    code, _, err = mosaic(*words)
    assert code == 1
    assert "script Home-v0 seed 2 failed" in err
    text = (folder / "report.md").read_text()
    assert "3 runs: 2 completed, 1 failed or cancelled" in text
    assert "**script Home-v0 seed 2** failed" in text
    assert "the second seed is broken" in text
    assert {row["seed"]: row["final"] for row in rows(folder / "runs.csv")} == {"1": "10.0", "2": "", "3": "30.0"}
    assert rows(folder / "groups.csv")[0]["final"] == "20.0"

    alone = tmp_path / "alone"
    assert mosaic(*words[:8], "2", *words[9:-3], "broken", "--out", str(alone))[0] == 1
    assert "1 run: 1 failed or cancelled" in (alone / "report.md").read_text()

    (shared_daemon.home.root / "repaired").touch()
    code, _, err = mosaic(*words, "--retry-failed")
    assert code == 0, err
    assert "queued 1 run, 2 runs of it were there already" in err
    assert "3 runs: 3 completed" in (folder / "report.md").read_text()
    # From now on the second try is the run of that seed, and there is nothing left to try again.
    code, _, err = mosaic(*words, "--retry-failed")
    assert code == 0
    assert "3 runs of it were there already" in err
    assert {row["seed"]: row["final"] for row in rows(folder / "runs.csv")} == {"1": "10.0", "2": "20.0", "3": "30.0"}
    assert mosaic("bench", "--report-only", "flaky", "--out", str(folder))[0] == 0
    assert len(rows(folder / "runs.csv")) == 3
    runs = shared_daemon.client.list(tags=["bench:flaky"]).runs
    assert len(runs) == 4
    failed = next(run for run in runs if run.outcome == "failed")
    assert [tag for run in runs for tag in run.tags if tag.startswith("retry-of:")] == [f"retry-of:{failed.run_id}"]

    code, _, _ = mosaic("report", failed.run_id, "--no-baseline", "--out", str(tmp_path / "failed.html"))
    page = Loads((tmp_path / "failed.html").read_text())
    assert code == 0
    assert page.found == []
    assert "the second seed is broken" in page.words


def test_a_cell_that_the_daemon_refuses_is_named_and_the_others_are_queued(
    mosaic: Mosaic, shared_daemon: RunningDaemon
) -> None:
    install_two_algorithms(shared_daemon)
    code, out, err = mosaic(
        "bench",
        "--worker",
        "two",
        "--algos",
        "good",
        "--envs",
        f"Kept-v0,{'x' * 257}",
        "--seeds",
        "1",
        "--total-timesteps",
        "10",
        "--name",
        "refused",
        "--no-follow",
    )
    assert code == 1
    assert "was not queued" in err
    assert "expected a name of 1 to 256 characters" in err
    (run,) = shared_daemon.client.list(tags=["bench:refused"]).runs
    assert (run.env_id, out.split()) == ("Kept-v0", [run.run_id])
    # Alone on the machine, unless --parallel is asked for.
    assert run.cpus == shared_daemon.client.health().cpus_total
    shared_daemon.wait_for(run.run_id)


# ---------------------------------------------------------------- mistakes


def test_a_benchmark_that_is_refused_as_a_whole_names_its_setting_and_writes_nothing(
    mosaic: Mosaic, shared_daemon: RunningDaemon, tmp_path: Path
) -> None:
    words = ("--worker", "llm", "--models", "good", "--envs", "FrozenLake-v1", "--seeds", "1", "--total-timesteps", "9")
    code, out, err = mosaic("bench", *words, "--out", str(tmp_path / "report"))
    assert (code, out) == (1, "")
    assert "was not queued: --model: 'good' is served by an endpoint: name it with --base-url" in err
    assert "--base-url X, is written --set base_url=X here" in err
    assert "metadata.worker" not in err
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--envs", "CartPole-v1"], "what is to be compared? --algos"),
        (["--algos", "pppo", "--envs", "CartPole-v1"], "there is no algorithm 'pppo'; did you mean 'ppo'?"),
        (["--algos", "ppo", "--envs", "CartPol-v1"], "unknown environment 'CartPol-v1'; did you mean 'CartPole-v1'?"),
        (["--algos", "ppo", "--envs", "CartPole-v1", "--set", "x=1"], "'ppo' has no parameter 'x'"),
        (["--algos", "ppo", "--envs", "CartPole-v1", "--name", "a/b"], "a benchmark's name is"),
        (
            ["--algos", "dqn,c51", "--envs", "Pendulum-v1"],
            "none of these algorithms can play any of these environments",
        ),
        (["--report-only", "nobody"], "no run has the tag bench:nobody"),
        (
            ["--algos", "random", "--envs", "none", "--total-timesteps", "9", "--out", "/dev/null/x"],
            "cannot be written to",
        ),
    ],
)
def test_a_mistake_is_one_message_and_nothing_is_queued(
    mosaic: Mosaic, shared_daemon: RunningDaemon, words: list[str], said: str
) -> None:
    before = shared_daemon.client.list(include_archived=True).matching
    code, out, err = mosaic("bench", *words)
    assert code == 2
    assert said in err
    assert "Traceback" not in err
    assert not out
    assert shared_daemon.client.list(include_archived=True).matching == before


def test_a_report_needs_runs_and_a_folder(mosaic: Mosaic, tmp_path: Path) -> None:
    assert mosaic("report")[0] == 2
    assert "no run fits" in mosaic("report", "--with-tag", "nothing-has-this")[2]
