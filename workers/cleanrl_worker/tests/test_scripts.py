"""Unmodified scripts through the worker: how they end, what they leave, and what is refused before they start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cleanrl_worker import cli
from cleanrl_worker.analytics import repository_state
from cleanrl_worker.scripts.checking import why_no_upload
from mosaic_wire.files import read_json_object
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import Home
from mosaic_wire.testing import WorkerProcess, wait_until

SCRIPTS = Path(__file__).with_name("scripts")
TYRO, ARGPARSE = SCRIPTS / "reinforce_tyro.py", SCRIPTS / "walk_argparse.py"
ARGV = [sys.executable, "-m", "cleanrl_worker.cli"]
PATIENCE_S = 120


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.delenv("MOSAIC_RUN_DIR", raising=False)


@pytest.fixture
def start(tmp_path):
    """Start the worker on a script; it is ended with the test."""
    started: list[WorkerProcess] = []

    def start(
        script: Path, *, attempt: int = 1, timesteps: int = 2000, env_id: str = "Walk-v0", environment=None, **extras
    ):
        config = {
            "algo": script.stem,
            "env_id": env_id,
            "total_timesteps": timesteps,
            "seed": 1,
            "extras": {"script_path": str(script), **extras},
        }
        variables = {"MOSAIC_GRACE_S": "3", **(environment or {})}
        worker = WorkerProcess(ARGV, config, Home(tmp_path / "home"), attempt=attempt, environment=variables)
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.close()


def dry_run(capsys, script: Path, *flags: str, extras: dict | None = None) -> tuple[int, dict]:
    text = [
        "--extras",
        json.dumps({"script_path": str(script), **(extras or {})}),
        "--run-id",
        "01ARZ3NDEKTSV4RRFFQ69G5FAV",
    ]
    code = cli.main([*text, "--total-timesteps", "100", *flags, "--dry-run", "--emit-summary"])
    return code, json.loads(capsys.readouterr().out)


def manifest_of(worker: WorkerProcess) -> AnalyticsManifest:
    return AnalyticsManifest.read(worker.folder.manifest)


def seen_by_script(worker: WorkerProcess) -> dict:
    return json.loads((worker.folder.root / "seen.json").read_text())


# -- endings


def test_a_tyro_script_trains_and_leaves_a_true_manifest(start):
    worker = start(TYRO, timesteps=600, env_id="CartPole-v1", save_model=True, cuda=False, wandb_run_name="mine")
    assert worker.wait(PATIENCE_S) == 0
    *_, ending = worker.events()
    assert worker.event_names() == ["run_started", "run_completed"]
    assert 0 < ending.payload["step"] <= 600
    assert ending.payload["episodic_return"] > 5
    manifest = manifest_of(worker)
    assert (manifest.outcome, manifest.seed, manifest.tensorboard_dir) == ("completed", 1, "tensorboard")
    script = manifest.extra["script"]
    copy = worker.folder.root / script["copy"]
    assert copy.read_bytes() == TYRO.read_bytes()
    assert script["arguments"] == [
        "--save-model",
        "--no-cuda",
        "--env-id",
        "CartPole-v1",
        "--total-timesteps",
        "600",
        "--seed",
        "1",
    ]
    assert ("git" in script) is (repository_state(SCRIPTS) is not None)
    assert manifest.versions["gymnasium"]
    # Saved where the script said, which is below the run folder.
    assert manifest.policy.startswith("runs/CartPole-v1__reinforce_tyro__1__")
    assert manifest.policy.endswith("/reinforce_tyro.cleanrl_model")
    (events,) = (worker.folder.root / "tensorboard").rglob("events.*")
    assert events.parent.name.startswith("CartPole-v1__reinforce_tyro__1__")


def test_an_argparse_script_gets_its_flags_in_its_own_way(start):
    worker = start(ARGPARSE, capture_video=False, algo_params={"quick": True})
    assert worker.wait(PATIENCE_S) == 0
    seen = seen_by_script(worker)
    assert seen["argv"] == [
        "--capture_video",
        "False",
        "--quick",
        "True",
        "--gym-id",
        "Walk-v0",
        "--total-timesteps",
        "2000",
        "--seed",
        "1",
    ]
    assert seen["path"][0] == str(SCRIPTS)
    assert seen["environ"].get("PYTHONPATH") == os.environ.get("PYTHONPATH")
    assert worker.events()[-1].payload["step"] == 2000
    assert worker.events()[-1].payload["sps"] == 1000
    assert manifest_of(worker).tensorboard_dir == "runs"  # its writer is not torch's, so it wrote where it wanted


def test_without_a_key_a_script_finds_wandb_offline_and_no_token_of_ours(start):
    worker = start(ARGPARSE, attempt=2, wandb_run_name="mine")
    assert worker.wait(PATIENCE_S) == 0
    environ = seen_by_script(worker)["environ"]
    assert environ["WANDB_MODE"] == "offline"
    assert environ["WANDB_DIR"] == environ["CLEANRL_RUN_DIR"] == str(worker.folder.root)
    assert environ["WANDB_RUN_ID"] == environ["CLEANRL_RUN_ID"] == worker.run_id
    assert (environ["WANDB_NAME"], environ["WANDB_RESUME"]) == ("mine", "allow")
    assert environ["CLEANRL_SEED"] == "1"
    assert not {"MOSAIC_RUN_TOKEN", "CLEANRL_CONTROL_FD", "CLEANRL_PROGRESS_FD"} & environ.keys()


def test_a_script_that_raises_fails_with_its_words(start):
    worker = start(ARGPARSE, algo_params={"fail_at": 500})
    assert worker.wait(PATIENCE_S) == 1
    failed = worker.events()[-1].payload
    assert (failed["error"], failed["error_type"]) == ("it fell into a ditch", "ValueError")
    assert (failed["return_code"], failed["step"]) == (1, 500)
    assert failed["stderr_tail"][-1] == "ValueError: it fell into a ditch"
    assert "it fell into a ditch" in worker.stderr()
    assert manifest_of(worker).outcome == "failed"


def test_the_worker_exits_with_the_scripts_code(start):
    worker = start(ARGPARSE, algo_params={"exit_code": 7})
    assert worker.wait(PATIENCE_S) == 7
    assert worker.events()[-1].payload["error"] == "walk_argparse.py ended with exit code 7"


@pytest.mark.parametrize("deaf", [False, True])
def test_cancel_sends_the_signal_and_kills_what_ignores_it(start, deaf):
    worker = start(ARGPARSE, timesteps=10**9, algo_params={"quick": False, "deaf": deaf})
    assert wait_until(lambda: (worker.folder.root / "seen.json").exists(), timeout_s=PATIENCE_S)
    os.kill(worker.process.pid, signal.SIGTERM)
    assert worker.wait(PATIENCE_S) == 130
    assert worker.event_names()[-1] == "run_cancelled"
    assert manifest_of(worker).outcome == "cancelled"
    assert not worker.survivors()


def test_a_second_attempt_does_not_count_the_steps_of_the_first(start, tmp_path):
    first = start(ARGPARSE, timesteps=3000)
    assert first.wait(PATIENCE_S) == 0
    config = json.loads(first.config_file.read_text())
    config["total_timesteps"] = 500
    with WorkerProcess(ARGV, config, Home(tmp_path / "home"), run_id=first.run_id, attempt=2) as second:
        assert second.wait(PATIENCE_S) == 0
        assert second.events()[-1].payload["step"] == 500


# -- no progress


def test_a_script_that_stands_still_is_killed_when_that_is_the_policy(start):
    worker = start(ARGPARSE, algo_params={"stand_still": True, "quick": False}, no_progress="kill", no_progress_s=3)
    assert worker.wait(PATIENCE_S) == 1
    failed = worker.events()[-1].payload
    assert failed["error_type"] == "NoProgress"
    assert "no step for more than 3 s" in failed["error"]
    assert not worker.survivors()


# -- refused before it starts


@pytest.mark.parametrize(
    ("flags", "extras", "reported"),
    [
        (["--learning-ratee", "1"], {}, "Did you mean '--learning-rate'?"),
        (["--learning-rate", "much"], {}, "expected float, got 'much'"),
        (["--optimizer", "lion"], {}, "expected one of 'sgd', 'adam'"),
        (
            [],
            {"mode": "resume_training", "checkpoint_path": "/x"},
            "a script cannot be resumed: it writes no checkpoint",
        ),
        ([], {"mode": "policy_eval"}, "a script can only be trained"),
        ([], {"script_sha256": "0" * 64}, "has changed since the run was submitted"),
        ([], {"no_progress": "panic"}, "expected leave or kill"),
        ([], {"env_kwargs": {"x": 1}}, "makes its environments itself"),
        ([], {"requirements": ["nonsense"]}, "nonsense"),
        (["--upload-model"], {}, "cannot upload: HF_HUB_OFFLINE says that this machine is offline"),
        (
            [],
            {"track_wandb": True, "requirements": ["base"], "tensorboard_dir": "../../x"},
            "must lie in the run folder",
        ),
    ],
)
def test_what_cannot_be_run_is_reported_before_it_starts(capsys, monkeypatch, flags, extras, reported):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    text = ["--extras", json.dumps({"script_path": str(TYRO), **extras}), "--env-id", "CartPole-v1"]
    assert cli.main([*text, "--total-timesteps", "100", *flags, "--dry-run"]) == 2
    assert reported in capsys.readouterr().err


def test_a_missing_set_is_reported_with_the_command_that_installs_it(capsys):
    text = ["--extras", json.dumps({"script_path": str(TYRO), "requirements": ["procgen"]}), "--env-id", "CartPole-v1"]
    assert cli.main([*text, "--total-timesteps", "100", "--dry-run"]) == 2
    reported = capsys.readouterr().err
    assert "requirement set 'procgen' is not installed" in reported
    assert "mosaic extras install procgen (about 250 MB)" in reported


def test_a_dry_run_shows_what_would_run(capsys):
    code, summary = dry_run(capsys, TYRO, "--env-id", "CartPole-v1", "--no-cuda")
    assert (code, summary["ok"]) == (0, True)
    assert summary["script"] == str(TYRO)
    assert summary["arguments"] == ["--no-cuda", "--env-id", "CartPole-v1", "--total-timesteps", "100"]
    assert summary["wandb"].startswith("offline: there is no W&B key")
    assert summary["python"] == sys.executable


def test_a_script_without_a_flag_for_the_environment_refuses_one(capsys, tmp_path):
    script = tmp_path / "own.py"
    script.write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float)\np.parse_args()\n"
    )
    code, summary = dry_run(capsys, script, "--env-id", "none", "--lr", "0.5")
    assert (code, summary["arguments"]) == (0, ["--lr", "0.5"])
    text = ["--extras", json.dumps({"script_path": str(script)}), "--env-id", "CartPole-v1", "--seed", "3"]
    assert cli.main([*text, "--total-timesteps", "100", "--dry-run"]) == 2
    assert "has no flag --env-id and decides itself; leave 'CartPole-v1' out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("environ", "reachable", "reported"),
    [
        ({"HF_HUB_OFFLINE": "1"}, True, "HF_HUB_OFFLINE"),
        ({"HF_TOKEN_PATH": "/nowhere"}, True, "no Hugging Face token"),
        ({"HF_TOKEN": "x"}, False, "cannot be reached"),
        ({"HF_TOKEN": "x"}, True, None),
    ],
)
def test_uploading_a_model_is_refused_where_it_cannot_succeed(environ, reachable, reported):
    found = why_no_upload(environ, lambda address: None if reachable else f"{address} cannot be reached")
    assert (found is None) if reported is None else (reported in found and "The model stays in the run folder" in found)


# -- a checkout of CleanRL (a stand-in of a few lines)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    place = tmp_path / "checkout"
    (place / "cleanrl").mkdir(parents=True)
    (place / "cleanrl_utils").mkdir()
    (place / "cleanrl_utils" / "__init__.py").touch()
    (place / "cleanrl" / "dqn.py").write_text(
        "import json, sys, tyro\nfrom dataclasses import dataclass\nimport cleanrl_utils\n"
        "@dataclass\nclass Args:\n    seed: int = 1\n    env_id: str = 'CartPole-v1'\n"
        "    total_timesteps: int = 500000\n"
        "tyro.cli(Args)\nprint(cleanrl_utils.__file__)\n"
    )
    return place


def test_a_name_with_a_source_means_the_file_of_the_checkout(capsys, checkout, monkeypatch):
    text = ["--env-id", "CartPole-v1", "--total-timesteps", "100", "--extras", '{"requirements": ["base"]}']
    assert cli.main(["--source", str(checkout), "--algo", "dqn", *text, "--dry-run", "--emit-summary"]) == 0
    assert json.loads(capsys.readouterr().out)["script"] == str(checkout / "cleanrl" / "dqn.py")
    monkeypatch.setenv("CLEANRL_HOME", str(checkout))
    assert cli.main(["--source", "upstream", "--algo", "dqnn", *text, "--dry-run"]) == 2
    assert "did you mean 'dqn'?" in capsys.readouterr().err
    monkeypatch.delenv("CLEANRL_HOME")
    assert cli.main(["--source", "upstream", "--algo", "dqn", *text, "--dry-run"]) == 2
    assert "Set CLEANRL_HOME" in capsys.readouterr().err


def test_upstream_scripts_want_the_upstream_set(capsys, checkout):
    assert cli.main(["--source", str(checkout), "--describe-script", "dqn"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["algorithm"]["requirement_sets"] == ["upstream"]
    text = ["--source", str(checkout), "--algo", "dqn", "--env-id", "CartPole-v1", "--total-timesteps", "100"]
    assert cli.main([*text, "--dry-run"]) == 2
    assert "mosaic extras install upstream " in capsys.readouterr().err


def test_cleanrl_utils_of_the_checkout_can_be_imported(start, checkout):
    worker = start(checkout / "cleanrl" / "dqn.py", requirements=["base"])
    assert worker.wait(PATIENCE_S) == 0
    printed = (worker.folder.logs / "stdout.log").read_text()
    assert printed.strip() == str(checkout / "cleanrl_utils" / "__init__.py")


# -- where it came from


def test_the_manifest_knows_commit_and_uncommitted_changes(tmp_path):
    def git(*text: str) -> None:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        subprocess.run(["git", *identity, *text], cwd=tmp_path, check=True, capture_output=True)

    assert repository_state(tmp_path) is None
    git("init", "-q")
    (tmp_path / "a.py").write_text("x = 1\n")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    clean = repository_state(tmp_path)
    assert (clean["is_dirty"], clean["diff"]) == (False, "")
    (tmp_path / "a.py").write_text("x = 2\n")
    (tmp_path / "b.py").touch()
    dirty = repository_state(tmp_path)
    assert dirty["commit"] == clean["commit"]
    assert dirty["changes"] == [" M a.py", "?? b.py"]
    assert "+x = 2" in dirty["diff"]


def test_the_page_on_cleanrls_scripts_is_made_from_its_results():
    from cleanrl_worker.tools.upstream_report import PAGE, RESULTS, page

    assert PAGE.read_text() == page(read_json_object(RESULTS)), (
        "run: python -m cleanrl_worker.tools.upstream_report write"
    )
