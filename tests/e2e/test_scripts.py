"""Unmodified scripts under a real daemon: refused, completed, paused by signal, resumed, cancelled, never continued."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from gym_gui.services.trainer.errors import InvalidConfig, NotPossibleNow
from gym_gui.services.trainer.process_tree import process_state
from gym_gui.testing import RunningDaemon, processes_of
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.testing import wait_until

SCRIPTS = Path(__file__).parents[2] / "workers" / "cleanrl_worker" / "tests" / "scripts"
TYRO, WALK = SCRIPTS / "reinforce_tyro.py", SCRIPTS / "walk_argparse.py"
PATIENCE_S = 120
SLOW = {"quick": False}


def config_of(script: Path, *, timesteps: int | None = None, extras: dict[str, Any] | None = None, **parameters: Any):
    config: dict[str, Any] = {"algo": script.stem, "env_id": "CartPole-v1"}
    if timesteps is not None:
        config["total_timesteps"] = timesteps
    config["extras"] = {"script_path": str(script), "algo_params": parameters, **(extras or {})}
    worker = {"type": "cleanrl", "module": "cleanrl_worker.cli", "config": config}
    return {"resources": {"cpus": {"requested": 0}}, "metadata": {"worker": worker}}


def submit(daemon: RunningDaemon, script: Path, **parameters: Any) -> pb.Run:
    return daemon.client.submit(config_of(script, **parameters)).run


def follow_to_the_end(daemon: RunningDaemon, run: pb.Run) -> pb.Run:
    return daemon.wait_for(run.run_id, "TERM", timeout_s=PATIENCE_S)


def test_scripts_of_both_styles_complete_and_tell_how_far_they_are(daemon: RunningDaemon) -> None:
    tyro = submit(daemon, TYRO, timesteps=500, save_model=True)
    walk = submit(daemon, WALK)
    failing = submit(daemon, WALK, fail_at=300)
    assert walk.total == 2000  # the script's own default
    assert walk.seed == 1
    done = follow_to_the_end(daemon, tyro)
    assert (done.outcome, done.reason) == ("completed", "completed")
    assert 0 < done.step <= 500
    assert done.episodic_return > 5
    assert json.loads(done.extras_json)["script_sha256"]
    manifest = daemon.manifest(tyro.run_id)
    assert manifest.policy is not None
    assert (daemon.home.run_folder(tyro.run_id).root / manifest.policy).is_file()
    walked = follow_to_the_end(daemon, walk)
    assert (walked.outcome, walked.step, walked.sps) == ("completed", 2000, 1000)
    failed = follow_to_the_end(daemon, failing)
    assert failed.outcome == "failed"
    assert "it fell into a ditch" in failed.reason
    assert not processes_of(tyro.run_id)


def test_a_script_is_paused_by_signal_continues_and_can_be_cancelled(daemon: RunningDaemon) -> None:
    run_id = submit(daemon, WALK, timesteps=10**8, **SLOW).run_id
    moving = daemon.wait_for_run(run_id, lambda run: run.step > 0, timeout_s=PATIENCE_S)
    assert moving.status == "EXEC"
    with pytest.raises(NotPossibleNow, match="cannot write a checkpoint"):
        daemon.client.pause(run_id, release=True)
    daemon.client.pause(run_id)
    paused = daemon.wait_for(run_id, "PAUSE")
    assert any("stopped by signal" in event.reason for event in daemon.client.history(run_id))
    assert wait_until(lambda: {process_state(pid) for pid in processes_of(run_id)} == {"T"})
    daemon.client.resume(run_id)
    daemon.wait_for_run(run_id, lambda run: run.status == "EXEC" and run.step > paused.step, timeout_s=PATIENCE_S)
    daemon.client.cancel(run_id)
    ended = daemon.wait_for(run_id, "TERM", timeout_s=PATIENCE_S)
    assert ended.outcome == "cancelled"
    assert not processes_of(run_id)
    assert daemon.manifest(run_id).outcome == "cancelled"
    with pytest.raises(NotPossibleNow, match="writes no checkpoint that MOSAIC could resume from"):
        daemon.client.resume(run_id)


IMPATIENT = """
import sys
from gym_gui.services.trainer import daemon, run_supervisor
run_supervisor._NO_PROGRESS_S = 6.0
sys.exit(daemon.main(["run"]))
"""


@pytest.mark.slow
def test_a_long_pause_is_not_called_a_lack_of_progress(make_daemon) -> None:
    daemon = make_daemon(script=IMPATIENT)
    run_id = submit(daemon, WALK, timesteps=10**8, **SLOW).run_id
    daemon.wait_for_run(run_id, lambda run: run.step > 0, timeout_s=PATIENCE_S)
    daemon.client.pause(run_id)
    paused, paused_at = daemon.wait_for(run_id, "PAUSE"), time.monotonic()
    assert wait_until(lambda: time.monotonic() - paused_at > 8)
    daemon.client.resume(run_id)
    daemon.wait_for_run(run_id, lambda run: run.step > paused.step, timeout_s=PATIENCE_S)
    assert "no_progress" not in daemon.event_kinds(run_id)
    standing = submit(daemon, WALK, timesteps=10**8, stand_still=True, **SLOW).run_id
    daemon.wait_for_run(standing, lambda run: "no_progress" in run.flags, timeout_s=PATIENCE_S)


def test_the_daemon_checks_a_script_before_it_queues_it(daemon: RunningDaemon, tmp_path: Path) -> None:
    wrong = {
        "unknown flag": (config_of(TYRO, learning_ratee=0.1), "learning_rate"),
        "wrong type": (config_of(TYRO, learning_rate="much"), "expected float"),
        "no file": (config_of(tmp_path / "nothing.py", timesteps=10), "cannot be read"),
        "no checkout": (
            config_of(WALK, timesteps=10, extras={"script_path": "", "source": "upstream"}),
            "CLEANRL_HOME",
        ),
        "resume": (config_of(WALK, extras={"mode": "resume_training"}), "a script cannot be resumed"),
        "relative": (config_of(WALK, timesteps=10, extras={"script_path": "walk.py"}), "an absolute path"),
    }
    for name, (config, reported) in wrong.items():
        with pytest.raises(InvalidConfig) as refused:
            daemon.client.submit(config)
        text = "\n".join(f"{problem} {problem.suggestion}" for problem in refused.value.problems)
        assert reported in text, name
    changed = tmp_path / "walk.py"
    changed.write_text(WALK.read_text())
    with pytest.raises(InvalidConfig, match="has changed"):
        daemon.client.submit(config_of(changed, extras={"script_sha256": "0" * 64}))


SAVES_A_MODEL = """
import argparse, os, torch
from torch import nn
parser = argparse.ArgumentParser()
for flag, default in (("--env-id", "CartPole-v1"), ("--seed", 1), ("--total-timesteps", 64)):
    parser.add_argument(flag, type=type(default), default=default)
args = parser.parse_args()
def net(out):
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, out))
os.makedirs("runs/x")
torch.save(nn.ModuleDict({"critic": net(1), "actor": net(2)}).state_dict(), "runs/x/ppo.cleanrl_model")
"""


@pytest.mark.slow  # four trainings and as many evaluations
def test_the_model_a_script_saved_is_what_an_evaluation_of_its_run_plays(daemon: RunningDaemon, tmp_path: Path) -> None:
    script = tmp_path / "ppo.py"
    script.write_text(SAVES_A_MODEL)
    run_id = submit(daemon, script, timesteps=64).run_id
    daemon.wait_for(run_id, "TERM", timeout_s=PATIENCE_S)
    assert daemon.manifest(run_id).policy == "runs/x/ppo.cleanrl_model"
    done = subprocess.run(
        [sys.executable, "-m", "gym_gui", "eval", run_id, "--episodes", "2"],
        env=daemon.variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "completed" in done.stdout


def test_mosaic_train_script_sweep_and_bench_take_a_file(daemon: RunningDaemon, tmp_path: Path) -> None:
    def mosaic(*message: str) -> subprocess.CompletedProcess[str]:
        program = Path(sys.executable).with_name("mosaic")
        return subprocess.run(
            [program, *message],
            env=daemon.variables,
            cwd=SCRIPTS,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    shown = mosaic("train", "./reinforce_tyro.py", "--help")
    assert "--learning-rate FLOAT" in shown.stdout
    assert "script" in shown.stdout
    refused = mosaic("train", "./reinforce_tyro.py", "CartPole-v1", "--learning-ratee", "1")
    assert (refused.returncode, "did you mean --learning-rate?" in refused.stderr) == (2, True)
    nowhere = mosaic("train", "dqn", "--source", "upstream")
    assert (nowhere.returncode, "Set CLEANRL_HOME" in nowhere.stderr) == (2, True)
    done = mosaic(
        "script", "./walk_argparse.py", "CartPole-v1", "--total-timesteps", "1000", "--capture-video", "False"
    )
    assert done.returncode == 0, done.stderr
    assert "1,000/1,000 (100%) steps" in done.stdout
    assert "charts/episodic_return" in mosaic("metrics", "last").stdout
    printed = mosaic(
        "sweep", "./walk_argparse.py", "--env", "CartPole-v1", "--param", "fail-at=int:3000:4000", "--print"
    )
    assert str(SCRIPTS / "walk_argparse.py") in printed.stdout, printed.stderr
    unseeded = tmp_path / "unseeded.py"
    unseeded.write_text(
        "# @total_timesteps: 100\nimport argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--lr', type=float, default=0.1)\nparser.parse_args()\n"
    )
    search = ("sweep", str(unseeded), "--param", "lr=float:0:1", "--trials", "1", "-d")
    seeded = mosaic(*search, "--seeds", "1")
    assert (seeded.returncode, "unseeded.py has no flag --seed" in seeded.stderr) == (2, True), seeded.stderr
    queued = mosaic(*search)
    assert queued.returncode == 0, queued.stderr
    daemon.wait_for(queued.stdout.strip(), "TERM", timeout_s=PATIENCE_S)
    (trial,) = json.loads(mosaic("runs", "--tag", f"sweep:{queued.stdout.strip()}", "--json").stdout)
    assert (trial["outcome"], trial["seed"], trial["env_id"]) == ("completed", None, "none")
    unsaved = mosaic("eval", trial["run_id"])
    assert (unsaved.returncode, "saved no model" in unsaved.stderr) == (2, True), unsaved.stderr
    message = ("--envs", "CartPole-v1", "--seeds", "1", "--no-follow", "--out", str(tmp_path / "report"))
    queued = mosaic("bench", "--algos", "./walk_argparse.py", *message)
    assert queued.returncode == 0, queued.stderr
    (benched,) = json.loads(mosaic("runs", "--text", "walk_argparse-CartPole", "--json").stdout)
    assert benched["extras"]["script_path"] == str(WALK)
    unknown = tmp_path / "plain.py"
    unknown.write_text("print('trains')\n")
    reported = mosaic("script", str(unknown))
    assert (reported.returncode, "how long? --total-timesteps N, or a line `# @total_timesteps" in reported.stderr) == (
        2,
        True,
    )
    assert "walk_argparse.py CartPole-v1" in done.stdout
    assert "walk_argparse.py" in mosaic("runs").stdout
