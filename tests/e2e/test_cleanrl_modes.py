"""Everything a run of the CleanRL worker may be asked for, through a real daemon; each ends as it should."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gym_gui.services.trainer.errors import InvalidConfig, NotPossibleNow
from gym_gui.testing import RunningDaemon, processes_of
from mosaic_wire.checkpoints import verify_checkpoint
from mosaic_wire.paths import Home
from mosaic_wire.testing import wait_until

PATIENCE_S = 120
ENDLESS = 10**9


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """One daemon for all of them: each run is one more of its home."""
    folder = tmp_path_factory.mktemp("modes")
    (folder / "scripts").mkdir()
    settings = {"heartbeat_s": 0.2, "grace_s": 10, "min_free_disk_mb": 0, "custom_scripts": [str(folder / "scripts")]}
    with RunningDaemon(Home(folder / "home"), folder / "config", settings=settings) as daemon:
        yield daemon


def config(total: int = 1024, env_id: str = "CartPole-v1", algo: str = "ppo", **extras: Any) -> dict[str, Any]:
    parameters = {"num_steps": 32, **extras.pop("algo_params", {})} if algo == "ppo" else {}
    worker_config = {
        "algo": algo,
        "env_id": env_id,
        "seed": 1,
        "total_timesteps": total,
        "extras": {"algo_params": parameters, **extras},
    }
    return {
        "resources": {"cpus": {"requested": 0}},
        "metadata": {"worker": {"type": "cleanrl", "module": "cleanrl_worker.cli", "config": worker_config}},
    }


def ends(daemon: RunningDaemon, run_id: str, outcome: str = "completed") -> Any:
    """Wait for the end; the registry, the manifest, exit.json and the process table must agree."""
    run = daemon.wait_for(run_id, timeout_s=PATIENCE_S)
    assert run.outcome == outcome, f"{run.reason}\n{daemon.output(run_id, 'stderr')[-2000:]}"
    manifest = daemon.manifest(run_id)
    assert (manifest.run_id, manifest.outcome) == (run_id, outcome)
    assert manifest.finalised_by in ("worker", "daemon")
    for entry in manifest.checkpoints:
        assert verify_checkpoint(daemon.home.run_folder(run_id).root / entry.path, entry.sha256) is None
    assert wait_until(lambda: not processes_of(run_id))
    return run


def training_pid(run_id: str) -> int:
    for pid in processes_of(run_id):
        if b"cleanrl_worker.launcher" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise AssertionError("there is no training process")


def mosaic(daemon: RunningDaemon, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gym_gui", *arguments],
        env=daemon.variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def payloads(daemon: RunningDaemon, run_id: str, kind: str) -> list[dict[str, Any]]:
    return [json.loads(event.payload_json) for event in daemon.client.history(run_id) if event.kind == kind]


@pytest.fixture(scope="module")
def trained(daemon: RunningDaemon) -> str:
    """A run that has trained 1,024 steps."""
    run = daemon.client.submit(config(algo_params={"eval_episodes": 4})).run
    ends(daemon, run.run_id)
    return run.run_id


def test_the_logs_of_a_training_read_as_cleanrls_and_are_raw_only_when_asked(daemon, trained):
    lines = mosaic(daemon, "logs", trained).stdout.splitlines()
    episodes = [line for line in lines if re.fullmatch(r"global_step=\d+, episodic_return=\d+\.\d+", line)]
    assert episodes
    assert any(re.search(r"  run_started +worker_type=cleanrl  algo=ppo", line) for line in lines)
    assert not any(line.startswith('{"event"') for line in lines)
    raw = mosaic(daemon, "logs", trained, "--raw", "--stream", "stdout").stdout
    assert json.loads(raw.splitlines()[0])["event"] == "run_started"


def test_a_training_completes_with_everything_its_manifest_names(daemon, trained):
    manifest = daemon.manifest(trained)
    folder = daemon.home.run_folder(trained)
    assert [entry.step for entry in manifest.checkpoints] == [1024]
    assert (folder.root / manifest.policy).is_file()
    assert any((folder.root / manifest.tensorboard_dir).glob("events.out.tfevents.*"))
    assert manifest.evaluation["episodes"] == 4


def test_a_run_that_stopped_early_says_why(daemon):
    arguments = ("--total-timesteps", "100000", "--num-steps", "32", "--stop-at-return", "1", "--cpus", "0")
    done = mosaic(daemon, "train", "ppo", "CartPole-v1", *arguments)
    assert done.returncode == 0, done.stderr
    reason = "stopped early 100 episodes averaged a return of 1 (--stop-at-return)"
    assert reason in " ".join(done.stdout.split())
    assert reason in " ".join(mosaic(daemon, "show", "last").stdout.split())


@pytest.mark.slow  # the conformance suite pauses one in every CI
def test_a_training_is_paused_continues_and_is_cancelled(daemon):
    run_id = daemon.client.submit(config(ENDLESS)).run.run_id
    daemon.wait_for_run(run_id, lambda run: run.step > 0, timeout_s=PATIENCE_S)
    daemon.client.pause(run_id)
    paused = daemon.wait_for(run_id, "PAUSE", timeout_s=PATIENCE_S)
    saved = daemon.manifest(run_id).checkpoints[-1].step  # a pause writes a checkpoint first
    assert saved >= paused.step > 0
    daemon.client.resume(run_id)
    daemon.wait_for(run_id, "EXEC", timeout_s=PATIENCE_S)
    daemon.wait_for_run(run_id, lambda run: run.step > saved, timeout_s=PATIENCE_S)
    daemon.client.cancel(run_id)
    ends(daemon, run_id, "cancelled")
    assert daemon.manifest(run_id).checkpoints[-1].step > saved  # the last one, within the grace
    assert daemon.manifest(run_id).finalised_by == "worker"


def test_a_killed_trainer_fails_its_run_which_continues_from_the_checkpoint(daemon):
    run_id = daemon.client.submit(config(ENDLESS, algo_params={"checkpoint_freq": 256})).run.run_id
    saved = lambda: daemon.manifest(run_id).checkpoints  # noqa: E731
    daemon.wait_for_run(run_id, lambda run: run.step > 0 and saved(), timeout_s=PATIENCE_S)
    os.kill(training_pid(run_id), signal.SIGKILL)
    run = ends(daemon, run_id, "failed")
    assert "SIGKILL" in run.reason
    last = saved()[-1]
    child = daemon.client.resume(run_id, additional_timesteps=0, checkpoint=last.path)
    daemon.wait_for_run(child.run_id, lambda run: run.step > last.step, timeout_s=PATIENCE_S)
    (loaded,) = payloads(daemon, child.run_id, "checkpoint_loaded")
    assert (loaded["step"], loaded["environments"]) == (last.step, "exact")
    assert (child.parent.run_id, child.parent.step) == (run_id, last.step)
    daemon.client.cancel(child.run_id)
    ends(daemon, child.run_id, "cancelled")
    assert daemon.manifest(child.run_id).parent["run_id"] == run_id


def test_a_run_is_evaluated_from_the_command_line(daemon, trained):
    done = mosaic(daemon, "eval", trained[-8:], "--episodes", "4")
    assert done.returncode == 0, done.stderr
    run = next(run for run in daemon.client.list().runs if run.name.startswith("eval of"))
    ends(daemon, run.run_id)
    manifest = daemon.manifest(run.run_id)
    assert manifest.evaluation["mean_return"] == daemon.manifest(trained).evaluation["mean_return"]
    assert manifest.parent["run_id"] == trained
    assert not manifest.checkpoints
    assert manifest.hyperparameters["episodes"] == 4
    assert not {"learning_rate", "num_steps", "total_timesteps"} & {*manifest.hyperparameters}
    summary = json.loads((daemon.home.evaluation_folder(run.run_id) / "eval_summary.json").read_text())
    assert (summary["episodes"], summary["avg_return"]) == (4, manifest.evaluation["mean_return"])
    assert "mean return" in done.stdout
    assert "4/4 (100%) episodes" in done.stdout
    assert " steps" not in done.stdout
    assert json.loads(mosaic(daemon, "show", "last", "--json").stdout)[0]["run_id"] != run.run_id
    with pytest.raises(NotPossibleNow, match="its mode was policy_eval"):
        daemon.client.resume(run.run_id, additional_timesteps=100)


@pytest.mark.slow  # test_policy_statistics.py shows it in every CI
def test_a_normalized_policy_has_the_same_returns_from_its_run_and_from_its_file(daemon):
    flags = ("--num-steps", "128", "--num-minibatches", "4", "--total-timesteps", "512", "-d", "--json")
    done = mosaic(daemon, "train", "ppo_continuous_action", "Pendulum-v1", *flags)
    assert done.returncode == 0, done.stderr
    run_id = json.loads(done.stdout)[0]["run_id"]
    ends(daemon, run_id)
    file = daemon.home.run_folder(run_id).root / "ppo_continuous_action.cleanrl_model"
    returns = []
    for source in (run_id, str(file)):
        done = mosaic(daemon, "eval", source, "--episodes", "3", "--seed", "1", "-d", "--json")
        assert done.returncode == 0, done.stderr
        evaluation = json.loads(done.stdout)
        ends(daemon, (evaluation[0] if isinstance(evaluation, list) else evaluation)["run_id"])
        folder = daemon.home.evaluation_folder(
            (evaluation[0] if isinstance(evaluation, list) else evaluation)["run_id"]
        )
        returns.append(json.loads((folder / "eval_summary.json").read_text())["returns"])
    assert returns[0] == returns[1]


@pytest.mark.slow  # the worker's own tests begin from weights in every CI
def test_weights_alone_continue_as_a_new_run_that_reports_it(daemon, trained):
    model = daemon.home.run_folder(trained).root / "ppo.cleanrl_model"
    done = mosaic(daemon, "resume", "--checkpoint", str(model), "--timesteps", "512")
    assert done.returncode == 0, done.stderr
    run_id = done.stdout.strip()
    ends(daemon, run_id)
    (loaded,) = payloads(daemon, run_id, "checkpoint_loaded")
    assert loaded["weights_only"] is True
    assert daemon.manifest(run_id).extra["loaded_from"]["weights_only"] is True


class Client:
    """A client at the other end of an interactive run."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(PATIENCE_S)
        assert wait_until(lambda: self._connects(path), timeout_s=PATIENCE_S)
        self._lines = self._socket.makefile("rw")

    def _connects(self, path: str) -> bool:
        try:
            self._socket.connect(path)
        except OSError:
            return False
        return True

    def hear(self) -> dict[str, Any]:
        return json.loads(self._lines.readline())

    def ask(self, **command: Any) -> dict[str, Any]:
        self._lines.write(json.dumps(command) + "\n")
        self._lines.flush()
        return self.hear()

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


def test_an_interactive_run_is_played_to_its_end(daemon, trained):
    run_id = daemon.client.submit(config(1, mode="interactive", checkpoint_path=trained)).run.run_id
    daemon.wait_for(run_id, "EXEC", timeout_s=PATIENCE_S)
    place = payloads(daemon, run_id, "started")[0]["interactive"]["socket"]
    client = Client(place)
    try:
        assert client.hear()["policy"] is True  # init
        assert client.ask(cmd="reset", seed=3)["type"] == "ready"
        assert client.ask(cmd="step")["action_source"] == "policy"
        assert client.ask(cmd="step", action=1)["action"] == 1
        assert client.ask(cmd="jump")["type"] == "error"
        assert client.ask(cmd="stop")["type"] == "stopped"
    finally:
        client.close()
    run = ends(daemon, run_id)
    assert json.loads(run.result_json)["steps"] == 2
    assert not Path(place).exists()


def test_a_curriculum_reports_its_stages_and_continues_in_the_right_one(daemon):
    schedule = [{"env_id": "CartPole-v0", "steps": 256}, {"env_id": "CartPole-v1", "condition": "steps>=100000000"}]
    expected = config(ENDLESS, curriculum_schedule=schedule, algo_params={"checkpoint_freq": 512})
    run_id = daemon.client.submit(expected).run.run_id
    daemon.wait_for_run(run_id, lambda run: run.step > 512, timeout_s=PATIENCE_S)
    daemon.client.pause(run_id, release=True)
    daemon.wait_for_run(run_id, lambda run: run.status == "PAUSE" and "released" in run.flags, timeout_s=PATIENCE_S)
    step = daemon.manifest(run_id).checkpoints[-1].step
    daemon.client.resume(run_id)
    daemon.wait_for_run(run_id, lambda run: run.status == "EXEC" and run.step > step, timeout_s=PATIENCE_S)
    daemon.client.cancel(run_id)
    ends(daemon, run_id, "cancelled")
    (change,) = payloads(daemon, run_id, "stage_changed")  # once, not again after the pause
    assert (change["stage"], change["env_id"], change["step"]) == (1, "CartPole-v1", 256)
    assert payloads(daemon, run_id, "checkpoint_loaded")[0]["environments"] == "exact"


def test_a_custom_script_runs_from_its_folder_or_as_the_users_own_copy(daemon, tmp_path):
    folder = daemon.config_home.parent / "scripts"
    (folder / "phases.sh").write_text("# @env_family: classic\n# @total_timesteps: 64\npwd; echo $MOSAIC_RUN_ID\n")
    done = mosaic(daemon, "script", str(folder / "phases.sh"), "--detach")
    assert done.returncode == 0, done.stderr
    run_id = done.stdout.strip()
    run = ends(daemon, run_id)
    assert (run.env_id, run.total) == ("classic", 64)
    out = (daemon.home.run_folder(run_id).logs / "stdout.log").read_text().splitlines()
    assert out == [str(daemon.home.run_folder(run_id).root), run_id]
    assert daemon.manifest(run_id).extra["script"]["sha256"]

    (folder / "stubborn.sh").write_text("sleep 600 & sleep 600 & echo here; wait; wait\n")
    run_id = mosaic(daemon, "script", str(folder / "stubborn.sh"), "--detach").stdout.strip()
    log = daemon.home.run_folder(run_id).logs / "stdout.log"
    assert wait_until(lambda: log.exists() and "here" in log.read_text(), timeout_s=PATIENCE_S)
    daemon.client.pause(run_id)  # by signal: a script has no safe points
    assert "paused_by_signal" in daemon.wait_for(run_id, "PAUSE").flags
    daemon.client.resume(run_id)
    daemon.wait_for(run_id, "EXEC")
    daemon.client.cancel(run_id)
    ends(daemon, run_id, "cancelled")

    (folder / "endless.sh").write_text('echo "$@"\n')
    done = mosaic(daemon, "script", str(folder / "endless.sh"), "--detach", "--", "one", "--two")
    assert ends(daemon, done.stdout.strip()).total == 0  # its length is unknown
    assert (daemon.home.run_folder(done.stdout.strip()).logs / "stdout.log").read_text() == "one --two\n"

    elsewhere = tmp_path / "elsewhere.sh"
    elsewhere.write_text("echo hello\n")
    with pytest.raises(InvalidConfig, match="lies in none of the folders"):  # what a client on another machine asks for
        daemon.client.submit(config(1, algo="custom_script", mode="custom_script", script_path=str(elsewhere)))
    seeds = mosaic(daemon, "script", str(elsewhere), "--seeds", "1-2", "--cpus", "0", "--tag", "mine")
    assert seeds.returncode == 0, seeds.stderr
    first, second = daemon.client.list(tags=["mine"]).runs
    assert {first.name, second.name} == {"elsewhere.sh-s1", "elsewhere.sh-s2"}
    assert (daemon.home.run_folder(first.run_id).logs / "stdout.log").read_text() == "hello\n"


PHASES = """\
# @env_family: classic
# @total_timesteps: 3000
python - "$1" <<'END'
import sqlite3, sys
from pathlib import Path
from mosaic_wire.checkpoints import write_checkpoint
from mosaic_wire.event_files import ScalarEventWriter
from mosaic_wire.paths import RunFolder
write_checkpoint(RunFolder(Path("phases/main")), 256, {"algo": "ppo"})
for folder, steps in (("runs/warm-up", 1000), (sys.argv[1], 2000)):
    writer = ScalarEventWriter(Path(folder))
    for step in range(100, steps + 1, 100):
        writer.add_scalars({"charts/episodic_return": step / 10}, step)
    writer.close()
with sqlite3.connect("search.db") as database:
    database.executescript("CREATE TABLE studies (study_id INTEGER); CREATE TABLE trials (trial_id INTEGER);")
END
exit $2
"""


@pytest.mark.parametrize("writer", ["worker", "daemon"])
def test_a_shell_scripts_curves_progress_and_files_are_the_runs(daemon, writer):
    script = daemon.config_home.parent / "scripts" / "main.sh"
    script.write_text(PHASES if writer == "worker" else PHASES.replace("exit $2", "kill -9 $PPID; sleep 60"))
    extras = {"mode": "custom_script", "script_path": str(script), "script_arguments": ["out/main", "0"]}
    run_id = daemon.client.submit(config(3000, algo="custom_script", **extras)).run.run_id
    run = ends(daemon, run_id, "completed" if writer == "worker" else "failed")
    shown = mosaic(daemon, "metrics", run_id, "--json")
    tags = {curve["tag"] for curve in json.loads(shown.stdout)}
    # The phase that wrote first has the plain names, whether or not the worker read it before the second one began.
    assert {"charts/episodic_return", "out/main/charts/episodic_return"} <= tags
    assert "none of" not in (plotted := mosaic(daemon, "plot", run_id)).stdout + plotted.stderr
    manifest = daemon.manifest(run_id)
    assert manifest.finalised_by == writer
    assert manifest.optuna_db_path == "search.db"
    (entry,) = manifest.checkpoints
    assert (entry.step, entry.path.split("/")[0]) == (256, "phases")
    assert manifest.tensorboard_dir == "."
    if writer == "worker":
        assert (run.step, run.total) == (3000, 3000)


@pytest.mark.parametrize(
    ("extras", "message"),
    [
        ({"mode": "policy_evl"}, "Did you mean 'policy_eval'"),
        ({"mode": "policy_eval", "policy_path": "/a", "checkpoint_path": "/b"}, "differs from checkpoint_path"),
        ({"mode": "custom_script"}, "which script"),
        ({"eval_deterministic": "yes"}, "expected true or false"),
    ],
)
def test_a_mode_that_cannot_be_is_refused_before_it_is_queued(daemon, extras, message):
    with pytest.raises(InvalidConfig, match=message):
        daemon.client.submit(config(1024, **extras))
