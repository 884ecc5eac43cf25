"""W&B for our own algorithms: what it receives, that its trouble is not the run's, and the switches."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cleanrl_worker import cli
from cleanrl_worker.config import apply_switches, from_artifacts
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from cleanrl_worker.wandb_settings import is_tracked
from mosaic_extras.overlays import check_sets
from mosaic_extras.testing import lend_sets
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import Home, RunFolder
from mosaic_wire.testing import wait_until

RUN = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
FAKE = Path(__file__).with_name("fake_wandb")
PPO = DEFAULT_ALGO_REGISTRY["ppo"].spec()
PATIENCE_S = 120

WORKER = """
import json, sys
from pathlib import Path
from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.preflight import Preflight
from cleanrl_worker.runtime import CleanRLWorkerRuntime
from mosaic_wire.paths import RunFolder

config = CleanRLWorkerConfig.from_json(json.loads(sys.argv[1]))
sys.exit(CleanRLWorkerRuntime(config, RunFolder(Path(sys.argv[2])), target=None, found=Preflight()).run())
"""
"""The worker after its checks, so that the requirement set `wandb` need not be installed"""


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    for name in ("MOSAIC_RUN_DIR", "WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT", "WANDB_ENTITY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    root = tmp_path / "run"
    root.mkdir()
    return RunFolder(root)


def start(folder: RunFolder, extras: dict, *, timesteps: int = 1024, **variables: str) -> subprocess.Popen[bytes]:
    config = {
        "run_id": RUN,
        "algo": "ppo",
        "env_id": "CartPole-v1",
        "total_timesteps": timesteps,
        "seed": 3,
        "extras": {"track_wandb": True, **extras},
    }
    path = os.pathsep.join([str(FAKE), os.environ["PYTHONPATH"]])
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, json.dumps(config), str(folder.root)],
        env={**os.environ, "PYTHONPATH": path, **variables},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def run(folder: RunFolder, extras: dict | None = None, **variables: str) -> tuple[int, AnalyticsManifest]:
    code = start(folder, extras or {}, **variables).wait(PATIENCE_S)
    return code, AnalyticsManifest.read(folder.manifest)


def calls(folder: RunFolder) -> list[dict]:
    file = folder.root / "wandb_calls.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@contextmanager
def listening() -> Iterator[str]:
    """The address of something that accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


# -- what W&B receives


def test_a_tracked_run_reports_wandb_flags_and_scalars_and_finishes(folder):
    extras = {"wandb_run_name": "mine", "algo_params": {"wandb_project_name": "p", "wandb_entity": "me"}}
    code, manifest = run(folder, extras)
    first, *logged, last = calls(folder)
    assert code == 0
    arguments, variables = first["arguments"], first["variables"]
    assert (arguments["project"], arguments["entity"], arguments["name"]) == ("p", "me", "mine")
    assert arguments["config"]["seed"] == 3
    assert (variables["WANDB_MODE"], variables["WANDB_RUN_ID"]) == ("offline", RUN)
    assert variables["WANDB_DIR"] == str(folder.root)
    assert "WANDB_RESUME" not in variables
    tags = {tag for call in logged for tag in call["values"]}
    assert {"charts/episodic_return", "losses/value_loss", "charts/SPS", "global_step"} <= tags
    assert logged[-1]["values"]["global_step"] == 1024
    assert last == {"call": "finish", "exit_code": 0}
    assert (manifest.wandb_run_id, manifest.wandb_run_path) == (RUN, f"me/p/{RUN}")
    assert manifest.to_json()["artifacts"]["wandb"] == {
        "enabled": True,
        "run_path": f"me/p/{RUN}",
        "entity": "me",
        "project": "p",
    }


def test_the_key_reaches_wandb_through_the_environment_and_stays_out_of_every_file(folder):
    key = "a-key-of-forty-characters-that-is-no-key"
    # Something answers there, so the run is online.
    with listening() as address:
        code, manifest = run(folder, WANDB_API_KEY=key, WANDB_BASE_URL=address)
    first = calls(folder)[0]
    assert code == 0
    assert (first["variables"]["WANDB_API_KEY"], first["variables"]["WANDB_MODE"]) == (key, "online")
    assert manifest.wandb_run_path == f"me/cleanRL/{RUN}"  # as W&B itself said
    assert manifest.wandb_entity == "me"
    others = [path for path in folder.root.rglob("*") if path.is_file() and path.name != "wandb_calls.jsonl"]
    assert not [path for path in others if key.encode() in path.read_bytes()]


@pytest.mark.slow  # test_modes.py checks the variable that makes it so in every CI
def test_a_second_attempt_continues_with_the_same_wandb_run(folder):
    run(folder)
    run(folder, MOSAIC_RUN_ATTEMPT="2")
    variables = [call["variables"] for call in calls(folder) if call["call"] == "init"]
    assert [found["WANDB_RUN_ID"] for found in variables] == [RUN, RUN]
    assert [found.get("WANDB_RESUME") for found in variables] == [None, "allow"]


def test_a_cancelled_run_finishes_at_wandb_too(folder):
    worker = start(folder, {}, timesteps=100_000_000)
    try:
        wait_until(lambda: len(calls(folder)) > 1, timeout_s=PATIENCE_S)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE_S) == 130
    finally:
        worker.kill()
        worker.wait()
    assert calls(folder)[-1] == {"call": "finish", "exit_code": 0}


@pytest.mark.slow  # a cancelled one does in every CI
def test_a_failed_run_finishes_at_wandb_as_failed(folder):
    code, manifest = run(folder, {"learning_rate": 1e30, "anneal_lr": False})
    assert (code, manifest.outcome) == (1, "failed")
    assert calls(folder)[-1] == {"call": "finish", "exit_code": 1}


# -- its trouble


@pytest.mark.parametrize(
    "trouble", ["init", pytest.param("log", marks=pytest.mark.slow), pytest.param("finish", marks=pytest.mark.slow)]
)
def test_trouble_of_wandb_is_reported_once_and_training_continues(folder, trouble):
    code, manifest = run(folder, FAKE_WANDB_TROUBLE=trouble)
    assert (code, manifest.outcome) == (0, "completed")
    assert (folder.logs / "stderr.log").read_text().count("W&B failed") == 1
    assert manifest.to_json()["wandb_problem"] == f"no {trouble} today"
    assert list(folder.tensorboard.glob("events.out.tfevents.*"))


def test_a_wandb_that_hangs_does_not_hold_a_cancelled_run(folder):
    worker = start(folder, {}, timesteps=100_000_000, FAKE_WANDB_TROUBLE="init hangs")
    try:
        wait_until(lambda: calls(folder), timeout_s=PATIENCE_S)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE_S) == 130
    finally:
        worker.kill()
        worker.wait()
    manifest = AnalyticsManifest.read(folder.manifest)
    assert manifest.outcome == "cancelled"
    assert manifest.checkpoints
    assert "did not finish within" in manifest.to_json()["wandb_problem"]


def test_alone_it_asks_for_the_package(tmp_path):
    message = [sys.executable, "-m", "cleanrl_worker.algorithms", "ppo", "--track", "--total-timesteps", "512"]
    environ = {**os.environ, "PYTHONSAFEPATH": "1"}
    done = subprocess.run(message, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        pytest.skip("wandb is installed here")
    assert (done.returncode, "needs the package wandb" in done.stderr) == (2, True)


# -- switches


@pytest.mark.slow  # a training only for one line of the manifest
def test_without_event_files_the_manifest_reports_it(folder):
    code, manifest = run(folder, {"track_wandb": False, "tensorboard_dir": ""})
    assert code == 0
    assert not list(folder.root.rglob("events.out.tfevents.*"))
    assert manifest.to_json()["artifacts"]["tensorboard"] == {"enabled": False, "relative_path": None}
    assert manifest.to_json()["artifacts"]["wandb"]["enabled"] is False
    assert calls(folder) == []
    ended = [json.loads(line) for line in (folder.root / "lifecycle.jsonl").read_text().splitlines()][-1]
    assert ended["payload"]["episodic_return"] > 0  # the headline comes through the pipe


@pytest.mark.parametrize(
    ("message", "extras", "tracked"),
    [
        (["--track"], {"track_wandb": False, "algo_params": {"track": False}}, True),
        (["--no-track"], {"track_wandb": True, "track": True, "algo_params": {"track": True}}, False),
        (["--track", "false"], {"track_wandb": True}, False),
        (["--track=True", "--no-cuda"], {}, True),
        ([], {"algo_params": {"track": True}}, True),
        ([], {"track_wandb": True, "mode": "policy_eval"}, False),
    ],
)
def test_the_switch_for_tracking_wins_over_the_file(message, extras, tracked):
    left, changed = apply_switches(message, extras, PPO, is_script=False)
    assert is_tracked(changed) is tracked
    assert left == [word for word in message if word == "--no-cuda"]


@pytest.mark.parametrize(
    ("message", "before", "after"),
    [
        (["--no-tensorboard"], {"tensorboard_dir": "tb"}, {"tensorboard_dir": ""}),
        (["--tensorboard"], {"tensorboard_dir": ""}, {}),
        (["--tensorboard"], {"tensorboard_dir": "tb"}, {"tensorboard_dir": "tb"}),
    ],
)
def test_the_switch_for_event_files_wins_over_the_file(message, before, after):
    assert apply_switches(message, before, PPO, is_script=False) == ([], after)


def test_a_script_keeps_its_own_messages():
    message = ["--tensorboard", "yes", "--cuda", "0", "--track"]
    assert apply_switches(message, {}, PPO, is_script=True) == (message, {"track_wandb": True})


def test_artifacts_of_a_whole_run_config_count_as_extras():
    artifacts = {"tensorboard": {"enabled": False}, "wandb": {"enabled": True}}
    assert from_artifacts({"artifacts": artifacts}, {}) == {"track_wandb": True, "tensorboard_dir": ""}
    assert from_artifacts({"artifacts": artifacts}, {"track_wandb": False})["track_wandb"] is False
    assert from_artifacts({"artifacts": "?"}, {"x": 1}) == {"x": 1}


@pytest.mark.parametrize(("flag", "word"), [("--cpu", "--no-cuda"), ("--cuda", "--cuda"), ("--no-cuda", "--no-cuda")])
def test_the_switch_for_the_gpu_becomes_the_algorithms_flag(capsys, flag, word):
    message = ["--algo", "ppo", "--env-id", "CartPole-v1", "--total-timesteps", "1024", "--dry-run", "--emit-summary"]
    assert cli.main([*message, "--extras", json.dumps({"use_cuda": flag != "--cuda"}), flag]) == 0
    argv = json.loads(capsys.readouterr().out)["argv"]
    assert [found for found in argv if "cuda" in found] == [word]


def test_tracking_needs_its_requirement_set(capsys, tmp_path):
    if check_sets(Home(tmp_path / "home"), ["wandb"]).is_ready:
        pytest.skip("the base environment has wandb")
    message = ["--algo", "ppo", "--env-id", "CartPole-v1", "--total-timesteps", "1024", "--dry-run"]
    assert cli.main([*message, "--track"]) == 2
    assert "mosaic extras install wandb" in capsys.readouterr().err
    assert cli.main([*message, "--extras", '{"track_wandb": true}', "--no-track"]) == 0


# -- the real one


@pytest.mark.slow
def test_the_real_wandb_leaves_an_offline_run_in_the_run_folder(tmp_path):
    lend_sets(Home(tmp_path / "home"), "wandb")
    message = ["--algo", "ppo", "--env-id", "CartPole-v1", "--total-timesteps", "2048", "--track"]
    environ = {**os.environ, "MOSAIC_RUN_DIR": str(tmp_path)}
    subprocess.run(
        [sys.executable, "-m", "cleanrl_worker.cli", *message],
        env=environ,
        check=True,
        timeout=300,
        capture_output=True,
    )
    manifest = AnalyticsManifest.read(tmp_path / "analytics.json")
    assert manifest.requirements == ("wandb",)
    (left,) = (tmp_path / "wandb").glob(f"offline-run-*-{manifest.wandb_run_id}")
    assert (left / f"run-{manifest.wandb_run_id}.wandb").stat().st_size > 0
    assert "wandb_problem" not in manifest.to_json()
