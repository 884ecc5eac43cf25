"""`mosaic sweep`: every mistake before anything is queued, files and flags, and what is submitted."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from gym_gui.cli import main
from gym_gui.services.sweeps import (
    SweepDocument,
    SweepUnreadable,
    config_of_trial,
    settings_of,
    study_of,
    trial_of,
    use_trials_script,
)
from mosaic_wire.capabilities import WorkerCapabilities
from mosaic_wire.files import write_json_atomically
from mosaic_wire.ids import new_run_id
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.sweep_settings import read_settings, sweep_fields
from mosaic_wire.worker_spec import AlgorithmSpec, WorkerSpec

SWEEP = WorkerSpec(
    "sweep",
    "Sweep",
    "1",
    WorkerCapabilities("sweep", submits_runs=True),
    "sweep_worker.cli",
    algorithms=(AlgorithmSpec("sweep", fields=sweep_fields()),),
)
PLAIN = ("sweep", "--algo", "ppo", "--env", "CartPole-v1")
LR = ("--param", "learning_rate=log:1e-5:1e-2")


@pytest.fixture
def mosaic(home: Home, fake_trainer, capsys: pytest.CaptureFixture[str]):
    """Run a command in this process; returns (exit code, stdout, stderr)."""
    fake_trainer.workers.append(SWEEP)

    def run(*message: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            main(message)
        captured = capsys.readouterr()
        return exit_.value.code, captured.out, captured.err

    return run


def submitted(fake_trainer: Any) -> dict[str, Any]:
    (request,) = (request for request in fake_trainer.asked if isinstance(request, pb.SubmitRunRequest))
    config: dict[str, Any] = json.loads(request.config_json)
    return config


def test_flags_become_a_sweep(mosaic, fake_trainer) -> None:
    code, out, err = mosaic(
        *PLAIN,
        *LR,
        "--param",
        "num-envs=int:4:16:4",
        "--param",
        "anneal_lr=choice:yes,no",
        "--set",
        "activation=relu",
        "--total-timesteps",
        "50k",
        "--trials",
        "20",
        "--parallel",
        "2",
        "--sampler",
        "cmaes",
        "--pruner",
        "median",
        "--seeds",
        "1-3",
        "--aggregate",
        "iqm",
        "--cpus",
        "0.5",
        "--tag",
        "mine",
        "--timeout",
        "2h",
        "-d",
    )
    assert (code, err.count("queued")) == (0, 1)
    config = submitted(fake_trainer)
    assert out.strip() == fake_trainer.runs[0].run_id
    worker = config["metadata"]["worker"]
    assert (worker["type"], config["tags"], config["run_name"]) == ("sweep", ["mine"], "sweep-ppo-CartPole-v1")
    part = worker["config"]
    assert (part["algo"], part["env_id"], part["total_timesteps"]) == ("sweep", "CartPole-v1", 20)
    settings = part["extras"]["algo_params"]
    assert settings["parameters"] == {
        "learning_rate": {"kind": "float", "low": 1e-5, "high": 1e-2, "log": True},
        "num_envs": {"kind": "int", "low": 4, "high": 16, "step": 4},
        "anneal_lr": {"kind": "categorical", "choices": [True, False]},
    }
    assert (settings["seeds"], settings["aggregate"], settings["timeout_minutes"]) == ([1, 2, 3], "iqm", 120)
    trial = settings["trial"]
    assert trial["resources"] == {"cpus": 0.5}
    assert trial["metadata"]["worker"] == {
        "type": "cleanrl",
        "config": {
            "algo": "ppo",
            "env_id": "CartPole-v1",
            "total_timesteps": 50_000,
            "extras": {"algo_params": {"activation": "relu"}},
        },
    }
    read, problems = read_settings(settings)
    assert (read is not None, problems) == (True, [])


def test_everything_wrong_is_reported_at_once_and_nothing_is_queued(mosaic, fake_trainer) -> None:
    code, _, err = mosaic(
        "sweep",
        "--algo",
        "ppo",
        "--env",
        "CartPole-v2",
        "--param",
        "lerning_rate=log:1e-5:1e-2",
        "--param",
        "num_envs=float:1:2",
        "--param",
        "gamma",
        "--param",
        "seed=int:1:3",
        "--param",
        "target_kl=log:0:1",
        "--set",
        "activation=gelu",
        "--set",
        "num_env=3",
    )
    assert code == 2
    for reported in (
        "did you mean 'learning_rate'",
        "whole numbers: int:1:2",
        "--param gamma: write NAME=RANGE",
        "seed cannot be searched",
        "above 0",
        "'gelu'",
        "did you mean 'num_envs'",
        "did you mean 'CartPole-v1'",
    ):
        assert reported in err
    assert not [request for request in fake_trainer.asked if isinstance(request, pb.SubmitRunRequest)]


@pytest.mark.parametrize(
    ("message", "reported"),
    [
        (("sweep",), "which algorithm?"),
        (("sweep", "--algo", "pppo", "--env", "CartPole-v1", *LR), "did you mean 'ppo'"),
        (PLAIN, "which parameters?"),
        ((*PLAIN, *LR, "--sampler", "grid"), "a grid needs"),
        ((*PLAIN, *LR, "--set", "learning_rate=0.1"), "also fixed"),
        ((*PLAIN, *LR, "--trials", "many"), "a number of trials"),
        ((*PLAIN, *LR, "--seeds", "3-1"), "seeds"),
        (("sweep", "nowhere.toml"), "cannot read nowhere.toml"),
    ],
)
def test_a_mistake_is_reported_clearly(mosaic, message: tuple[str, ...], reported: str) -> None:
    code, _, err = mosaic(*message)
    assert code == 2
    assert reported in err
    assert "Traceback" not in err


def test_without_its_worker_a_sweep_says_what_to_install(mosaic, fake_trainer) -> None:
    fake_trainer.workers.remove(SWEEP)
    code, _, err = mosaic(*PLAIN, *LR)
    assert code == 1
    assert "pip install -r requirements/sweep_worker.txt" in err


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_a_file_is_read_and_flags_win_over_it(mosaic, fake_trainer, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"search.{suffix}"
    if suffix == "toml":
        file.write_text(
            'algo = "ppo"\nenv = "Acrobot-v1"\ntrials = 5\nseeds = "1-2"\ntotal_timesteps = 1000\n'
            '[parameters]\nlearning_rate = "log:1e-4:1e-2"\nnum_envs = {kind = "int", low = 1, high = 4}\n'
            '[fixed]\nactivation = "relu"\n'
        )
    else:
        document = {
            "algo": "ppo",
            "env_id": "Acrobot-v1",
            "trials": 5,
            "seeds": [1, 2],
            "total_timesteps": 1000,
            "parameters": {"learning_rate": "log:1e-4:1e-2", "num_envs": {"kind": "int", "low": 1, "high": 4}},
            "fixed": {"activation": "relu"},
        }
        file.write_text(json.dumps(document))
    code, _, err = mosaic("sweep", str(file), "--trials", "9", "--param", "learning_rate=log:1e-3:1e-2", "-d")
    assert code == 0, err
    part = submitted(fake_trainer)["metadata"]["worker"]["config"]
    settings = part["extras"]["algo_params"]
    assert (part["env_id"], part["total_timesteps"], settings["seeds"]) == ("Acrobot-v1", 9, [1, 2])
    assert settings["parameters"]["learning_rate"]["low"] == 1e-3
    assert settings["parameters"]["num_envs"]["high"] == 4


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        (
            'algo = "ppo"\nenv_id = "CartPole-v1"\ntrails = 5\n[parameters]\nnum_envs = "int:1:4"',
            "did you mean 'trials'",
        ),
        ("algo = ppo", "not valid TOML"),
        ('algo = "ppo"\nenv_id = "CartPole-v1"\nparallel = "two"\n[parameters]\nnum_envs = "int:1:4"', "parallel"),
        ('algo = "ppo"\nenv_id = "CartPole-v1"\nseeds = "one"\n[parameters]\nnum_envs = "int:1:4"', "seeds"),
    ],
)
def test_a_wrong_file_is_reported_clearly(mosaic, tmp_path: Path, text: str, reported: str) -> None:
    (tmp_path / "search.toml").write_text(text)
    code, _, err = mosaic("sweep", str(tmp_path / "search.toml"))
    assert code == 2
    assert reported in err


def test_a_sweep_can_be_printed_instead_of_queued(mosaic, fake_trainer) -> None:
    code, out, _ = mosaic(*PLAIN, *LR, "--storage", "postgresql://me:hunter2@host/db", "--print")
    assert code == 0
    assert json.loads(out)["metadata"]["worker"]["config"]["extras"]["algo_params"]["parameters"]
    assert "hunter2" not in out
    assert not [request for request in fake_trainer.asked if isinstance(request, pb.SubmitRunRequest)]


def test_a_sweep_is_resumed_with_more_trials(mosaic, fake_trainer) -> None:
    run = fake_trainer.add(worker_type="sweep", algo="sweep", step=5, total=5)
    code, _, err = mosaic("sweep", "--resume", run.run_id)
    assert code == 2
    assert "--trials +20" in err
    assert mosaic("sweep", "--resume", run.run_id, "--trials", "+7", "-d")[0] == 0
    assert fake_trainer.asked[-1].additional_timesteps == 7
    assert mosaic("sweep", "--resume", run.run_id, "--trials", "12", "-d")[0] == 0
    assert fake_trainer.asked[-1].additional_timesteps == 7, "12 in all"
    other = fake_trainer.add(worker_type="cleanrl")
    assert "is no sweep" in mosaic("sweep", "--resume", other.run_id)[2]
    assert "keeps its settings" in mosaic("sweep", "--resume", run.run_id, "--sampler", "tpe")[2]


def test_order_takes_ranges_as_objects_too() -> None:
    spec = WorkerSpec("w", "W", "1", WorkerCapabilities("w"), "w", algorithms=(AlgorithmSpec("a", open_flags=True),))
    values = {"env_id": "E", "total_timesteps": 5, "parameters": {"x": {"kind": "float", "low": 0.0, "high": 1.0}}}
    config, problems = SweepDocument(values).config(spec, spec.algorithms[0])
    assert problems == []
    assert config["metadata"]["worker"]["config"]["extras"]["algo_params"]["parameters"]["x"]["high"] == 1.0


# ---------------------------------------------------------------- what is stored of a sweep


JOURNAL = """\
{"op_code":0,"worker_id":"w","study_name":"s","directions":[2]}
{"op_code":4,"worker_id":"w","study_id":0,"datetime_start":"2026-01-01T00:00:00.000000+00:00"}
{"op_code":5,"worker_id":"w","trial_id":0,"param_name":"learning_rate","param_value_internal":0.01,"distribution":"{\\"name\\": \\"FloatDistribution\\", \\"attributes\\": {\\"step\\": null, \\"low\\": 1e-05, \\"high\\": 0.01, \\"log\\": true}}"}
{"op_code":6,"worker_id":"w","trial_id":0,"state":1,"values":[7.0],"datetime_complete":"2026-01-01T00:00:09.000000+00:00"}
"""  # noqa: E501


@pytest.fixture
def stored(home: Home) -> pb.Run:
    """A sweep with one trial that has completed."""
    run = pb.Run(run_id=new_run_id(), worker_type="sweep", algo="sweep")
    folder = home.run_folder(run.run_id)
    folder.root.mkdir(parents=True)
    run.run_dir = str(folder.root)
    trial = {
        "resources": {"cpus": 2},
        "metadata": {
            "worker": {
                "type": "cleanrl",
                "config": {
                    "algo": "ppo",
                    "env_id": "CartPole-v1",
                    "total_timesteps": 100,
                    "extras": {"algo_params": {"num_envs": 2}},
                },
            }
        },
    }
    config = {"algo": "sweep", "env_id": "CartPole-v1", "extras": {"algo_params": {"trial": trial}}}
    home.configs.mkdir(parents=True)
    write_json_atomically(
        home.config_file(run.run_id), {"metadata": {"worker": {"type": "sweep", "config": config}}}, sealed=True
    )
    AnalyticsManifest(run.run_id, "sweep", optuna_db_path="study.journal").write(folder.manifest)
    (folder.root / "study.journal").write_text(JOURNAL)
    return run


def test_a_trial_becomes_a_run_config(stored: pb.Run) -> None:
    assert trial_of(stored).number == 0
    config = config_of_trial(stored, trial_of(stored, 0))
    part = config["metadata"]["worker"]["config"]
    assert part["extras"]["algo_params"] == {"num_envs": 2, "learning_rate": 0.01}
    assert config["resources"] == {"cpus": 2}
    assert f"from:{stored.run_id}" in config["tags"]


def test_a_trial_of_a_script_trains_the_code_of_the_trial_also_from_the_window(stored: pb.Run, home: Home) -> None:
    script, run_id = home.root / "my_q.py", new_run_id()
    copy = home.run_folder(run_id).root / "scripts" / "my_q.py"
    copy.parent.mkdir(parents=True)
    copy.write_text("print(1)\n")
    script.write_text("print(2)\n")
    extras = {"script_path": str(script), "script_sha256": hashlib.sha256(b"print(1)\n").hexdigest()}
    document = {"metadata": {"worker": {"type": "cleanrl", "config": {"algo": "my_q", "extras": extras}}}}
    write_json_atomically(home.config_file(run_id), document, sealed=True)
    trial = trial_of(stored)
    trial.user_attrs["mosaic_runs"] = [run_id]
    config = config_of_trial(stored, trial)
    part = config["metadata"]["worker"]["config"]["extras"]
    part["script_path"] = str(script)
    notices = use_trials_script(stored, trial, config)
    assert (part["script_path"], part["script_sha256"]) == (str(copy), extras["script_sha256"])
    assert notices == (f"{script} has changed since; the new run runs the copy {copy}",)
    for odd in (new_run_id(), "../other"):
        trial.user_attrs["mosaic_runs"] = [odd]
        assert "the run of the trial is missing" in use_trials_script(stored, trial, config)[0]


def test_what_cannot_be_read_of_a_sweep_is_reported(stored: pb.Run) -> None:
    with pytest.raises(SweepUnreadable, match="has no trial 4"):
        trial_of(stored, 4)
    with pytest.raises(SweepUnreadable, match="is no sweep"):
        settings_of(pb.Run(run_id=stored.run_id, worker_type="cleanrl", algo="ppo"))
    folder = Path(stored.run_dir)
    AnalyticsManifest(stored.run_id, "sweep", optuna_db_path="postgresql://•••@db/studies").write(
        folder / "analytics.json"
    )
    with pytest.raises(SweepUnreadable, match="lies in a database"):
        study_of(stored)
    (folder / "analytics.json").unlink()
    (folder / "study.journal").unlink()
    with pytest.raises(SweepUnreadable, match="not written its study yet"):
        study_of(stored)
