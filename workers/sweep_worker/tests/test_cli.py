"""The worker's command line: what it describes, what it refuses and in which words, where it keeps its study."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mosaic_wire.ids import new_run_id
from mosaic_wire.worker_config import WorkerConfig
from mosaic_wire.worker_spec import WorkerSpec
from sweep_worker import cli
from sweep_worker.cli import describe, missing_packages

X = {"kind": "float", "low": 0.0, "high": 1.0}
TRIAL = {"metadata": {"worker": {"type": "t", "config": {"algo": "ppo", "env_id": "E", "total_timesteps": 9}}}}


def config(**settings: Any) -> dict[str, Any]:
    parameters = {"parameters": {"x": X}, "trial": TRIAL, **settings}
    return {
        "run_id": new_run_id(),
        "algo": "sweep",
        "env_id": "E",
        "total_timesteps": 3,
        "seed": 1,
        "extras": {"algo_params": parameters},
    }


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Start the worker in this process; its exit code and what it printed."""

    def run(document: dict[str, Any], *flags: str) -> tuple[int, str, str]:
        file = tmp_path / "worker.json"
        file.write_text(json.dumps(document))
        code = cli.main(["--config", str(file), *flags])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_the_description_can_be_read_back() -> None:
    spec = WorkerSpec.from_json(json.loads(json.dumps(describe().to_json())))
    assert spec.capabilities.submits_runs
    assert spec.algorithms[0].unavailable == ""
    names = {field.name for field in spec.algorithms[0].fields}
    assert {"parameters", "trial", "sampler", "pruner", "seeds", "parallel", "storage", "total_timesteps"} <= names


def test_a_sweep_without_a_daemon_says_how_to_start_one(run) -> None:
    code, _, err = run(config())
    assert code == 2
    assert "mosaic sweep" in err
    assert run(config(), "--dry-run")[0] == 0


def test_everything_wrong_is_reported_at_once(run) -> None:
    code, _, err = run(config(sampler="tpee", parallel=0, seeds=[-1], parameters={"x": {**X, "low": 3}}))
    assert code == 2
    for reported in ("sampler", "parallel", "seeds", "parameters.x"):
        assert reported in err
    assert "Traceback" not in err


def test_a_sampler_whose_packages_are_missing_says_what_to_install(run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_packages("json", "sweep_worker") == ""
    reported = missing_packages("torch_of_nowhere")
    assert "pip install torch_of_nowhere" in reported
    monkeypatch.setattr("sweep_worker.cli.find_spec", lambda name: None if name == "torch" else object())
    code, _, err = run(config(sampler="gp"), "--dry-run")
    assert code == 2
    assert "gp: torch must be installed" in err
    assert "CleanRL worker's environment" in err
    assert "or choose tpe" in err
    assert run(config(sampler="tpe"), "--dry-run")[0] == 0


def test_a_secret_address_is_taken_from_the_environment(run, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = {"secret_ref": "storage"}
    code, _, err = run(config(storage=reference), "--dry-run")
    assert code == 2
    assert "its secret is not in STORAGE" in err
    monkeypatch.setenv("STORAGE", "postgresql://me:hunter2@host/db")
    assert run(config(storage=reference), "--dry-run")[0] == 0


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({}, "ppo-E"),
        ({"study_name": "mine"}, "mine"),
        ({"storage": "sqlite"}, "ppo-E"),
        ({"storage": "postgresql://host/db", "study_name": "mine"}, "mine"),
    ],
)
def test_a_study_is_called_after_what_it_studies(tmp_path: Path, settings: dict[str, Any], name: str) -> None:
    order = cli.load(WorkerConfig.from_json(config(**settings)), may_run=True)
    assert cli.place_of(order, tmp_path).name == name


def test_a_study_in_a_database_is_not_mistaken_for_anothers(tmp_path: Path) -> None:
    document = config(storage="postgresql://host/db")
    order = cli.load(WorkerConfig.from_json(document), may_run=True)
    assert cli.place_of(order, tmp_path).name == f"ppo-E-{document['run_id']}"
