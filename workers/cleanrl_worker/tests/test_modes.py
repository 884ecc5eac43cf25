"""Each mode as people start it: the worker as a process, and what it leaves."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cleanrl_worker import cli
from cleanrl_worker.modes import mode_of
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import Home
from mosaic_wire.run_request import Mode
from mosaic_wire.testing import WorkerProcess, wait_until
from mosaic_wire.worker_spec import read_script_header
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ARGV = [sys.executable, "-m", "cleanrl_worker.cli"]
SHORT, LONG = "tiny_worlds:CorridorShort-v0", "tiny_worlds:CorridorLong-v0"
SCHEDULE = [{"env_id": SHORT, "steps": 256}, {"env_id": LONG}]
PPO = {"algo": "ppo", "env_id": SHORT, "total_timesteps": 512, "seed": 3}
PATIENCE_S = 120
RUN_ID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MOSAIC_RUN_DIR", raising=False)


def start(tmp_path: Path, extras: dict | None = None, **changes) -> WorkerProcess:
    options = {name: changes.pop(name) for name in ("run_id", "attempt", "environment") if name in changes}
    config = {**PPO, **changes, "extras": {"algo_params": {"num_steps": 32}, **(extras or {})}}
    return WorkerProcess(ARGV, config, Home(tmp_path / "home"), **options)


def events_of(worker: WorkerProcess, kind: str) -> list[dict]:
    return [dict(event.payload) for event in worker.events() if str(event.event) == kind]


# -- which mode


@pytest.mark.parametrize(
    ("extras", "mode"),
    [
        ({}, "train"),
        ({"mode": "train"}, "train"),
        ({"curriculum_schedule": SCHEDULE}, "curriculum"),
        ({"mode": "resume_training", "curriculum_schedule": SCHEDULE}, "resume_training"),
        ({"mode": "policy_eval"}, "policy_eval"),
    ],
)
def test_the_mode_follows_from_the_extras(extras, mode):
    assert mode_of(extras) == mode
    assert mode in tuple(Mode)


@pytest.mark.parametrize(
    ("extras", "message"),
    [
        ({"mode": "evaluate_policy"}, "is not one of train, resume_training"),
        ({"mode": "curriculum"}, "extras.curriculum_schedule: is missing"),
        ({"mode": "policy_eval", "policy_path": "/nowhere/step-5"}, "there is no /nowhere/step-5"),
        ({"mode": "policy_eval", "policy_path": RUN_ID}, f"run {RUN_ID} is not in this home"),
        ({"mode": "policy_eval", "policy_path": "a", "checkpoint_path": "b"}, "differs from checkpoint_path"),
        ({"mode": "policy_eval", "eval_episodes": 0, "policy_path": RUN_ID}, "extras.eval_episodes"),
        ({"mode": "policy_eval", "eval_policy": "best"}, "extras.eval_policy: expected 'random'"),
        ({"mode": "policy_eval", "eval_policy": "random", "policy_path": "a"}, "name two policies"),
        ({"mode": "interactive", "checkpoint_path": "/nowhere"}, "there is no /nowhere"),
        ({"mode": "custom_script"}, "extras.script_path: is missing"),
        ({"mode": "custom_script", "script_path": "/bin/true"}, "lies in none of the folders"),
    ],
)
def test_bad_input_is_one_clear_message_and_exit_code_2(capsys, extras, message):
    arguments = ["--algo", "ppo", "--env-id", "CartPole-v1", "--total-timesteps", "600", "--dry-run"]
    assert cli.main([*arguments, "--extras", json.dumps(extras)]) == 2
    assert message in capsys.readouterr().err


# -- curriculum, resume and evaluation, one after the other on the same run


@pytest.mark.slow  # one goes through the daemon in every CI
def test_a_curriculum_is_trained_resumed_and_evaluated(tmp_path):
    extras = {"curriculum_schedule": SCHEDULE}
    with start(tmp_path, extras) as first:
        assert first.wait(PATIENCE_S) == 0, first.stderr()
    assert events_of(first, "run_started")[0]["mode"] == "curriculum"
    (change,) = events_of(first, "stage_changed")
    assert (change["stage"], change["env_id"], change["step"], change["stages"]) == (1, LONG, 256, 2)
    events = EventAccumulator(str(first.folder.tensorboard)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("curriculum/stage")] == [(256, 1.0)]

    resumed = {**extras, "mode": "resume_training", "policy_path": first.run_id}
    with start(tmp_path, resumed, total_timesteps=768) as second:
        assert second.wait(PATIENCE_S) == 0, second.stderr()
    (loaded,) = events_of(second, "checkpoint_loaded")
    assert (loaded["step"], loaded["environments"], loaded["weights_only"]) == (512, "exact", False)
    manifest = AnalyticsManifest.read(second.folder.manifest)
    assert (manifest.parent["run_id"], manifest.parent["step"]) == (first.run_id, 512)
    assert manifest.extra["loaded_from"]["step"] == 512
    assert not events_of(second, "stage_changed")  # it goes on in the stage it was in

    expected = {"mode": "policy_eval", "checkpoint_path": second.run_id, "eval_episodes": 6, "eval_repeat": 2}
    with start(tmp_path, expected, env_id=LONG, total_timesteps=1) as third:
        assert third.wait(PATIENCE_S) == 0, third.stderr()
    manifest = AnalyticsManifest.read(third.folder.manifest)
    assert (manifest.outcome, manifest.evaluation["episodes"], manifest.evaluation["batches"]) == ("completed", 12, 2)
    assert manifest.parent["run_id"] == second.run_id
    summary = Home(tmp_path / "home").evaluation_folder(third.run_id) / "eval_summary.json"
    assert json.loads(summary.read_text())["batch_index"] == 1
    assert events_of(third, "run_completed")[0]["evaluation"] == manifest.evaluation


@pytest.mark.slow  # the same reason is given without a process in every CI
def test_a_model_that_does_not_fit_is_bad_input_with_the_reason(tmp_path):
    from cleanrl_worker.algorithms.ppo import Agent

    model = tmp_path / "other.cleanrl_model"
    torch.save((Agent(4, 2).state_dict(), {}), model)
    extras = {"mode": "policy_eval", "policy_path": str(model)}
    with start(tmp_path, extras, env_id="CartPole-v1") as worker:
        assert worker.wait(PATIENCE_S) == 2
    payload = events_of(worker, "run_failed")[0]
    assert "holds 2 networks (actor and qf1, as DDPG saves them); ppo has one" in payload["error"]
    assert not (Home(tmp_path / "home").evaluations / worker.run_id).exists()


def test_a_resumed_run_continues_in_weights_and_biases(tmp_path, capsys):
    model = tmp_path / "m.cleanrl_model"
    model.write_bytes(b"\x80")  # a pickle
    arguments = ["--algo", "ppo", "--env-id", "CartPole-v1", "--total-timesteps", "600", "--dry-run", "--emit-summary"]
    extras = {"mode": "resume_training", "checkpoint_path": str(model)}
    assert cli.main([*arguments, "--extras", json.dumps(extras)]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["environment"]["WANDB_RESUME"] == "allow"
    assert summary["argv"][summary["argv"].index("--resume-from") + 1] == str(model)


# -- interactive


def test_the_interactive_protocol_over_standard_input_and_output(tmp_path):
    lines = [
        '{"cmd": "reset", "seed": 4}',
        '{"cmd": "step", "action": 1}',
        "nonsense",
        '{"cmd": "ping"}',
        '{"cmd": "stop"}',
    ]
    done = subprocess.run(
        [*ARGV, "--interactive", "--env-id", LONG, "--run-id", RUN_ID],
        input="\n".join(lines) + "\n",
        text=True,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines()]  # and nothing else
    assert [message["type"] for message in said] == ["init", "ready", "step", "error", "pong", "stopped"]
    assert said[0]["action_space"]["n"] == 2
    assert said[1]["render_payload"]["encoding"] == "png"
    folder = Home(tmp_path / "home").run_folder(RUN_ID)
    assert AnalyticsManifest.read(folder.manifest).outcome == "completed"
    assert '"event":"run_completed"' in done.stderr


# -- custom scripts

HEADER = """#!/bin/bash
# @description: two phases, one after the other
# @env_family: classic
# @phases: warm-up, main
# @total_timesteps: 1_000
"""


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    folder = Home(tmp_path / "home").custom_scripts
    folder.mkdir(parents=True)
    return folder


def script_run(tmp_path: Path, script: Path, **options) -> WorkerProcess:
    extras = {"mode": "custom_script", "script_path": str(script)}
    return start(tmp_path, extras, algo="custom_script", env_id="custom", **options)


def test_the_header_says_what_a_script_is():
    assert read_script_header(HEADER) == {
        "description": "two phases, one after the other",
        "env_family": "classic",
        "phases": "warm-up, main",
        "total_timesteps": 1000,
    }
    assert read_script_header("#\n" * 30 + HEADER) == {}
    assert read_script_header("# @total_timesteps: many") == {}


def test_a_custom_script_runs_in_the_run_folder_with_its_variables(tmp_path, scripts):
    script = scripts / "phases.sh"
    script.write_text(
        HEADER + 'echo "id $MOSAIC_RUN_ID"; pwd; ls -d "$MOSAIC_CHECKPOINT_DIR"; echo "$MOSAIC_CONFIG_FILE"\n'
    )
    with script_run(tmp_path, script) as worker:
        assert worker.wait(PATIENCE_S) == 0, worker.stderr()
    out = (worker.folder.logs / "stdout.log").read_text()
    assert out.splitlines() == [
        f"id {worker.run_id}",
        str(worker.folder.root),
        str(worker.folder.checkpoints),
        str(worker.config_file),
    ]
    manifest = AnalyticsManifest.read(worker.folder.manifest)
    reported = manifest.extra["script"]
    assert (manifest.outcome, reported["path"], reported["phases"]) == ("completed", str(script), "warm-up, main")
    assert manifest.tensorboard_dir is None  # it wrote no events
    assert reported["sha256"] == hashlib.sha256(script.read_bytes()).hexdigest()
    assert (worker.folder.root / reported["copy"]).read_bytes() == script.read_bytes()
    assert events_of(worker, "run_started")[0]["sha256"] == reported["sha256"]


def test_a_failing_script_gives_its_code_and_its_words(tmp_path, scripts):
    script = scripts / "broken.py"
    script.write_text("import sys\nprint('on the way')\nsys.exit('the data is not there')\n")
    with script_run(tmp_path, script) as worker:
        assert worker.wait(PATIENCE_S) == 1
    payload = events_of(worker, "run_failed")[0]
    assert (payload["error"], payload["return_code"]) == ("broken.py ended with exit code 1", 1)
    assert "the data is not there" in payload["stderr_tail"]
    assert AnalyticsManifest.read(worker.folder.manifest).outcome == "failed"


def test_cancelling_a_script_ends_its_whole_tree(tmp_path, scripts):
    script = scripts / "stubborn.sh"
    script.write_text(
        "trap '' TERM\nsleep 600 &\nsleep 600 &\necho started\nwait\nwait\nwhile true; do sleep 1; done\n"
    )
    with script_run(tmp_path, script, environment={"MOSAIC_GRACE_S": "2"}) as worker:
        out = worker.folder.logs / "stdout.log"
        assert wait_until(lambda: out.exists() and "started" in out.read_text(), timeout_s=PATIENCE_S)
        worker.process.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE_S) == 130, worker.stderr()
        assert wait_until(lambda: not worker.survivors())
    assert AnalyticsManifest.read(worker.folder.manifest).outcome == "cancelled"


def test_a_link_out_of_the_folder_does_not_help(tmp_path, scripts, capsys):
    outside = tmp_path / "outside.sh"
    outside.write_text("echo hello\n")
    (scripts / "inside.sh").symlink_to(outside)
    (scripts / "notes.txt").write_text("no script")
    for name, message in (("inside.sh", "lies in none of the folders"), ("notes.txt", "must be a file that ends in")):
        extras = {"mode": "custom_script", "script_path": name}
        arguments = ["--algo", "custom_script", "--env-id", "custom", "--total-timesteps", "1", "--dry-run"]
        assert cli.main([*arguments, "--extras", json.dumps(extras)]) == 2
        assert message in capsys.readouterr().err


def test_configured_folders_are_allowed_too(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "mine.py").write_text("print('hello')\n")
    monkeypatch.setenv("MOSAIC_CUSTOM_SCRIPTS_DIR", os.pathsep.join([str(tmp_path / "other"), str(folder)]))
    extras = {"mode": "custom_script", "script_path": str(folder / "mine.py")}
    arguments = [
        "--algo",
        "custom_script",
        "--env-id",
        "custom",
        "--total-timesteps",
        "1",
        "--dry-run",
        "--emit-summary",
    ]
    assert cli.main([*arguments, "--extras", json.dumps(extras)]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["argv"] == [sys.executable, "-u", str(folder / "mine.py")]
    assert summary["environment"]["MOSAIC_CUSTOM_SCRIPTS_DIR"] == str(folder)
