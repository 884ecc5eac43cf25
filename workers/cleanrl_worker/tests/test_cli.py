"""The worker's command line: what it prints, refuses and runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cleanrl_worker import cli
from cleanrl_worker.config import CleanRLWorkerConfig, flags_of, read_flags
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import Home
from mosaic_wire.testing import WorkerProcess, wait_until
from safetensors.numpy import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ARGV = [sys.executable, "-m", "cleanrl_worker.cli"]
BASE = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 4096, "seed": 3}
PATIENCE_S = 120


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MOSAIC_RUN_DIR", raising=False)


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "worker.json"
    path.write_text(json.dumps({**BASE, "run_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV"}))
    return path


def summary_of(capsys, *flags: str) -> dict:
    assert cli.main([*flags, "--dry-run", "--emit-summary"]) == 0
    return json.loads(capsys.readouterr().out)


# -- dry run and flags


def test_flags_win_over_the_file(capsys, config_file):
    summary = summary_of(
        capsys, "--config", str(config_file), "--seed", "9", "--total-timesteps", "1024", "--num-envs=8"
    )
    assert (summary["seed"], summary["total_timesteps"], summary["run_id"]) == (9, 1024, "01ARZ3NDEKTSV4RRFFQ69G5FAV")
    assert summary["argv"][summary["argv"].index("--num-envs") + 1] == "8"
    assert summary["environment"]["CLEANRL_NUM_ENVS"] == "8"


def test_extras_become_flags_also_when_false(capsys, config_file):
    extras = {"algo_params": {"anneal_lr": False, "gamma": 0.9}, "norm_adv": False, "eval_episodes": 5, "notes": "x"}
    argv = summary_of(capsys, "--config", str(config_file), "--extras", json.dumps(extras))["argv"]
    assert {"--no-anneal-lr", "--no-norm-adv"} <= set(argv)
    assert argv[argv.index("--gamma") + 1] == "0.9"
    assert argv[argv.index("--eval-episodes") + 1] == "5"
    assert "--notes" not in argv


def test_placeholders_of_a_file_are_the_runs_own_id_and_folder(capsys, tmp_path):
    extras = {"tensorboard_dir": "${VAR_TENSORBOARD_DIR}/${RUN_ID}", "wandb_run_name": "${RUN_ID}"}
    file = tmp_path / "draft.json"
    file.write_text(json.dumps({**BASE, "run_id": "${RUN_ID}", "extras": extras}))
    summary = summary_of(capsys, "--config", str(file))
    assert Path(summary["tensorboard_dir"]) == Path(summary["run_dir"], "tensorboard", summary["run_id"])
    assert "${" not in json.dumps(summary)


def test_fastlane_settings_reach_the_training_process(capsys, config_file):
    extras = {"fastlane_video_mode": "grid", "fastlane_interval_ms": 100, "fastlane_max_dim": 320}
    variables = summary_of(capsys, "--config", str(config_file), "--extras", json.dumps(extras))["environment"]
    assert variables["GYM_GUI_FASTLANE_VIDEO_MODE"] == "grid"
    assert (variables["CLEANRL_FASTLANE_INTERVAL_MS"], variables["CLEANRL_FASTLANE_MAX_DIM"]) == ("100", "320")


def test_typed_flags_are_read_as_the_algorithm_declares_them():
    spec = DEFAULT_ALGO_REGISTRY["ppo"].spec()
    text = ["--learning_rate", "1e-3", "--no-anneal-lr", "--norm-adv", "false", "--target-kl=none", "--track"]
    values = {"learning_rate": 1e-3, "anneal_lr": False, "norm_adv": False, "target_kl": None, "track": True}
    assert read_flags(text, spec) == (values, [])
    assert flags_of({"a_b": True, "c": False, "d": 1.5}) == ["--a-b", "--no-c", "--d", "1.5"]


def test_every_wrong_flag_is_named_at_once():
    spec = DEFAULT_ALGO_REGISTRY["ppo"].spec()
    _, problems = read_flags(["--lerning-rate", "1", "--num-envs", "many"], spec)
    assert [problem.suggestion for problem in problems] == ["--learning-rate", None]
    assert "expected int, got 'many'" in problems[1].message


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--algo", "pppo"], "Did you mean 'ppo'"),
        (["--algo", "dqn_jax"], "not there yet"),
        (["--env-id", "CartPol-v1"], "Did you mean 'CartPole-v1'"),
        (["--learning-rat", "1"], "Did you mean '--learning-rate'"),
        (["--extras", "{"], "--extras is not JSON"),
        (["--extras", '{"mode": "policy_evl"}'], "Did you mean 'policy_eval'"),
        (["--extras", '{"mode": "resume_training"}'], "extras.checkpoint_path"),
        (["--extras", '{"tensorboard_dir": "../elsewhere"}'], "must lie in the run folder"),
        (["--extras", '{"curriculum_schedule": [{"env_id": "CartPole-v1", "setps": 5}]}'], "Did you mean 'steps'"),
        (["--extras", '{"fastlane_video_mode": "gird"}'], "Did you mean 'grid'"),
        (["--extras", '{"fastlane_intervall_ms": 5}'], "Did you mean 'fastlane_interval_ms'"),
        (["--extras", '{"checkpoint_dir": "elsewhere"}'], "a run keeps its checkpoints in the folder 'checkpoints'"),
        (["--config", "/nowhere/worker.json"], "cannot be read"),
    ],
)
def test_bad_input_is_one_clear_message_and_exit_code_2(capsys, config_file, flags, message):
    assert cli.main(["--config", str(config_file), "--dry-run", *flags]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags", [["--describe"], ["--dry-run", "--algo", "ppo", "--env-id", "CartPole-v1", "--total-timesteps", "1000"]]
)
def test_describe_and_dry_run_do_not_import_torch(flags):
    check = (
        "import sys; from cleanrl_worker.cli import main; code = main(sys.argv[1:]); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", f"{check}; sys.exit(code)", *flags], check=True, capture_output=True)


def test_the_config_keeps_its_names():
    config = CleanRLWorkerConfig("01ARZ3NDEKTSV4RRFFQ69G5FAV", "ppo", "CartPole-v1", 100)
    assert (config.seed, config.extras, config.worker_id, config.raw) == (None, {}, None, {})


# -- runs


def start(tmp_path: Path, config: dict, **options) -> WorkerProcess:
    return WorkerProcess(ARGV, config, Home(tmp_path / "home"), **options)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    tags = [tag for tag in events.Tags()["scalars"] if tag != "charts/SPS"]  # depends on the clock
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags}


def training_pid(worker: WorkerProcess) -> int | None:
    others = [pid for pid in worker.survivors() if pid != worker.process.pid]
    return others[0] if others else None


def test_a_run_leaves_everything_its_manifest_names(tmp_path):
    import torch

    config = {**BASE, "extras": {"algo_params": {"eval_episodes": 3, "checkpoint_freq": 2048}, "notes": "a note"}}
    with start(tmp_path, config) as worker:
        assert worker.wait(PATIENCE_S) == 0, worker.stderr()
        manifest = AnalyticsManifest.read(worker.folder.manifest)
        assert [entry.step for entry in manifest.checkpoints] == [2048, 4096]
        assert (manifest.policy, manifest.tensorboard_dir, manifest.notes) == (
            "ppo.cleanrl_model",
            "tensorboard",
            "a note",
        )
        weights = torch.load(worker.folder.root / manifest.policy, weights_only=True)  # a bare state_dict
        assert (weights["actor.4.weight"].shape, weights["critic.0.weight"].shape) == ((2, 64), (64, 4))
        assert weights["actor.4.weight"].untyped_storage().nbytes() == 2 * 64 * 4  # not the whole parameter block
        assert manifest.versions["torch"]
        evaluation = worker.events()[-1].payload["evaluation"]
        assert evaluation == manifest.evaluation
        assert set(evaluation) == {"episodes", "mean_return", "std_return", "min_return", "max_return"}
        tags = scalars(worker.folder.tensorboard)
        assert {"charts/episodic_return", "charts/episodic_length", "charts/learning_rate"} <= set(tags)
        assert {"losses/value_loss", "losses/policy_loss", "losses/entropy", "losses/approx_kl"} <= set(tags)


@pytest.mark.expects_log("Purging expired events")  # what the killed process wrote after its checkpoint
@pytest.mark.slow  # a killed run of dqn goes on in every CI
@pytest.mark.parametrize("num_envs", [8, 4])
def test_a_killed_run_continues_to_the_bit(tmp_path, num_envs):
    """Native (8) and replayed (4) environments: some steps, kill -9, the rest, against all at once.

    Replayed ones are killed in every CI too, through the daemon: tests/e2e/test_cleanrl_checkpoints.py.
    """
    parameters = {"num_envs": num_envs, "checkpoint_freq": 2048, "anneal_lr": False}
    config = {**BASE, "total_timesteps": 10**9, "extras": {"algo_params": parameters}}
    with start(tmp_path, config) as killed:
        assert wait_until(lambda: "checkpoint_saved" in killed.event_names(), timeout_s=PATIENCE_S)
        os.kill(training_pid(killed), signal.SIGKILL)
        assert killed.wait(PATIENCE_S) == 1
        failure = killed.events()[-1]
        assert (str(failure.event), failure.payload["return_code"]) == ("run_failed", -9)
        assert "SIGKILL" in failure.payload["error"]
        assert {"error_type", "command", "stderr_log", "stderr_tail"} <= set(failure.payload)
    entry = AnalyticsManifest.read(killed.folder.manifest).checkpoints[-1]
    config["total_timesteps"] = end = entry.step + 4096
    extras = {**config["extras"], "mode": "resume_training", "checkpoint_path": str(killed.folder.root / entry.path)}
    with start(tmp_path, {**config, "extras": extras}, run_id=killed.run_id, attempt=2) as resumed:
        assert resumed.wait(PATIENCE_S) == 0, resumed.stderr()
        loaded = next(event for event in resumed.events() if str(event.event) == "checkpoint_loaded")
        assert (loaded.payload["step"], loaded.payload["environments"]) == (entry.step, "exact")
    with start(tmp_path, config) as whole:
        assert whole.wait(PATIENCE_S) == 0, whole.stderr()
    ends = [load_file(run.folder.checkpoints / f"step-{end}" / "state.safetensors") for run in (whole, resumed)]
    assert ends[0].keys() == ends[1].keys()
    assert [name for name in ends[0] if ends[0][name].tobytes() != ends[1][name].tobytes()] == []
    assert scalars(resumed.folder.tensorboard) == scalars(whole.folder.tensorboard)


@pytest.mark.slow  # one is extended through the daemon in every CI
def test_an_extended_run_names_its_parent_and_continues_from_there(tmp_path):
    with start(tmp_path, {**BASE, "total_timesteps": 1024}) as parent:
        assert parent.wait(PATIENCE_S) == 0, parent.stderr()
    entry = AnalyticsManifest.read(parent.folder.manifest).checkpoints[-1]
    extras = {"mode": "resume_training", "checkpoint_path": str(parent.folder.root / entry.path)}
    with start(tmp_path, {**BASE, "total_timesteps": 2048, "extras": extras}) as child:
        assert child.wait(PATIENCE_S) == 0, child.stderr()
    manifest = AnalyticsManifest.read(child.folder.manifest)
    assert manifest.parent == {"run_id": parent.run_id, "step": 1024, "sha256": entry.sha256}
    assert [entry.step for entry in manifest.checkpoints] == [2048]
    assert min(step for step, _ in scalars(child.folder.tensorboard)["losses/entropy"]) > 1024


def test_a_signal_to_the_whole_tree_leaves_a_last_checkpoint(tmp_path):
    with start(tmp_path, {**BASE, "total_timesteps": 10**9, "extras": {"checkpoint_freq": 512}}) as worker:
        assert wait_until(lambda: "checkpoint_saved" in worker.event_names(), timeout_s=PATIENCE_S)
        for pid in (training_pid(worker), worker.process.pid):
            os.kill(pid, signal.SIGTERM)
        assert worker.wait(PATIENCE_S) == 130
        ending = worker.events()[-1]
        assert str(ending.event) == "run_cancelled"
        newest = AnalyticsManifest.read(worker.folder.manifest).checkpoints[-1]
        assert newest.step == ending.payload["step"]


def test_training_does_not_outlive_its_worker(tmp_path):
    with start(tmp_path, {**BASE, "total_timesteps": 10**9, "extras": {"checkpoint_freq": 512}}) as worker:
        assert wait_until(lambda: "checkpoint_saved" in worker.event_names(), timeout_s=PATIENCE_S)
        worker.process.kill()
        worker.process.wait()
        assert wait_until(lambda: not worker.survivors(), timeout_s=PATIENCE_S)


def test_an_environment_that_raises_fails_the_run_with_its_words(tmp_path):
    source = tmp_path / "broken_world.py"
    source.write_text(
        "import gymnasium as gym\n"
        "class Broken(gym.Env):\n"
        "    observation_space = gym.spaces.Box(0, 1, (2,))\n"
        "    action_space = gym.spaces.Discrete(2)\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        super().reset(seed=seed)\n"
        "        return self.observation_space.sample(), {}\n"
        "    def step(self, action):\n"
        "        raise RuntimeError('the world ended')\n"
        "gym.register('Broken-v0', Broken)\n"
    )
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    config = {**BASE, "env_id": "broken_world:Broken-v0"}
    with start(tmp_path, config, environment={"PYTHONPATH": paths}) as worker:
        assert worker.wait(PATIENCE_S) == 1
        payload = worker.events()[-1].payload
    assert (payload["error"], payload["error_type"], payload["return_code"]) == ("the world ended", "RuntimeError", 1)
    assert any("RuntimeError: the world ended" in line for line in payload["stderr_tail"])


def test_an_environment_the_algorithm_cannot_play_is_bad_input(tmp_path):
    with start(tmp_path, {**BASE, "env_id": "Pendulum-v1"}) as worker:
        assert worker.wait(PATIENCE_S) == 2
        assert "discrete actions" in worker.events()[-1].payload["error"]
