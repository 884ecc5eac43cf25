"""Configs of scripts: the client finds the file, the worker reads it, and the same content is never queried twice."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
import pytest
from gym_gui.cli.scripts import checkout_of, is_script, with_script_found
from gym_gui.services.trainer.catalog import WorkerCatalog
from gym_gui.services.trainer.errors import InvalidConfig
from gym_gui.services.trainer.validation.train_config import validate_train_run_config
from mosaic_wire.capabilities import WorkerCapabilities
from mosaic_wire.errors import SpecError
from mosaic_wire.files import write_json_atomically
from mosaic_wire.worker_spec import AlgorithmSpec, FieldSpec, ScriptSpec, WorkerSpec

FIELDS = (FieldSpec("total_timesteps", "int", 777), FieldSpec("seed", "int", 5), FieldSpec("lr", "float", 0.1))
SCRIPT = ScriptSpec("/home/me/my_ppo.py", "a" * 64, AlgorithmSpec("my_ppo", fields=FIELDS))
WORKER = WorkerSpec(
    "cleanrl",
    "CleanRL",
    "1",
    WorkerCapabilities("cleanrl"),
    "cleanrl_worker.cli",
    ("python",),
    algorithms=(AlgorithmSpec("ppo"),),
    environments=("CartPole-v1",),
    runs_scripts=True,
)


def config(algo: str = "my_ppo", env_id: str = "Somewhere-v0", worker: str = "cleanrl", **extras) -> dict:
    extras = {"script_path": SCRIPT.path, **extras}
    return {"metadata": {"worker": {"type": worker, "config": {"algo": algo, "env_id": env_id, "extras": extras}}}}


def validate(document: dict, *, worker: WorkerSpec = WORKER, script: ScriptSpec | SpecError = SCRIPT):
    def scripts(name: str, path: str) -> ScriptSpec:
        assert (name, path) == ("cleanrl", document["metadata"]["worker"]["config"]["extras"]["script_path"])
        if isinstance(script, SpecError):
            raise script
        return script

    return validate_train_run_config(document, workers=lambda name: worker, scripts=scripts)


def problems_of(*args, **kwargs) -> str:
    with pytest.raises(InvalidConfig) as refused:
        validate(*args, **kwargs)
    return "\n".join(f"{problem} {problem.suggestion}" for problem in refused.value.problems)


def test_a_script_brings_its_defaults_and_its_hash_into_the_config():
    worker = validate(config(algo_params={"lr": 0.5})).metadata.worker.config
    assert (worker["total_timesteps"], worker["seed"]) == (777, 5)
    assert worker["extras"]["script_sha256"] == SCRIPT.sha256


def test_the_parameters_of_a_script_are_checked_like_those_of_an_algorithm():
    assert "did you mean 'lr'" in problems_of(config(algo_params={"lrr": 0.5})).lower()
    assert "expected float" in problems_of(config(algo_params={"lr": "high"}))


def test_the_name_of_a_scripts_run_is_that_of_the_file():
    assert "my_ppo" in problems_of(config(algo="my_pppo"))


@pytest.mark.parametrize(
    ("extras", "reported"),
    [
        ({"mode": "resume_training"}, "a script cannot be resumed"),
        ({"mode": "policy_eval"}, "'policy_eval' is not possible with a script"),
        ({"script_sha256": "b" * 64}, "has changed"),
        ({"script_path": "my_ppo.py"}, "an absolute path"),
        ({"script_path": "", "source": "upstream"}, "CLEANRL_HOME"),
    ],
)
def test_what_cannot_be_a_script_is_reported(extras, reported):
    assert reported in problems_of(config(**extras))


def test_the_workers_own_messages_about_a_script_are_passed_on():
    assert "there is no script" in problems_of(config(), script=SpecError("there is no script /home/me/my_ppo.py"))


def test_a_worker_that_runs_no_scripts_is_not_asked():
    plain = WorkerSpec("cleanrl", "CleanRL", "1", WorkerCapabilities("cleanrl"), "cleanrl_worker.cli", ("python",))
    assert "runs no scripts" in problems_of(config(), worker=plain)


def test_a_custom_script_is_not_described():
    assert "asked" not in problems_of(config(mode="custom_script", bogus_key=1), script=SpecError("it was asked"))


# -- the catalog


def test_a_script_is_asked_about_once_per_content(home, tmp_path):
    calls = tmp_path / "calls"
    program = tmp_path / "worker.py"
    program.write_text(
        "import json, sys\n"
        f"open({str(calls)!r}, 'a').write('x')\n"
        "path = sys.argv[sys.argv.index('--describe-script') + 1]\n"
        "if 'broken' in open(path).read(): print('that is broken', file=sys.stderr); sys.exit(2)\n"
        "print(json.dumps({'spec_version': 1, 'path': path, 'sha256': 'c', 'algorithm': {'name': 'own'}}))\n"
    )
    spec = WorkerSpec(
        "mine", "Mine", "1", WorkerCapabilities("mine"), "mine.cli", (sys.executable, str(program)), runs_scripts=True
    )
    folder = home.workers / "mine"
    folder.mkdir(parents=True)
    write_json_atomically(folder / "worker.json", spec.to_json())
    script = tmp_path / "own.py"
    script.write_text("x = 1\n")
    catalog = WorkerCatalog(home)
    assert catalog.script("mine", str(script)).algorithm.name == "own"
    assert catalog.script("mine", str(script)).path == str(script)
    assert calls.read_text() == "x"
    script.write_text("broken\n")
    with pytest.raises(SpecError, match=r"^that is broken$"):
        catalog.script("mine", str(script))
    assert calls.read_text() == "xx"
    os.mkfifo(tmp_path / "pipe.py")
    for name in ("nothing.py", "pipe.py"):
        with pytest.raises(SpecError, match="cannot be read"):
            catalog.script("mine", str(tmp_path / name))


# -- the client


def test_files_and_algorithms_are_distinguished():
    assert is_script("./my_ppo.py")
    assert is_script("folder/thing")
    assert not is_script("ppo")


def test_a_checkout_is_found_by_variable_then_by_setting(tmp_path, monkeypatch):
    monkeypatch.setenv("MOSAIC_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("CLEANRL_HOME", raising=False)
    with pytest.raises(click.UsageError, match="where is the CleanRL checkout"):
        checkout_of("upstream")
    (tmp_path / "settings.toml").write_text('cleanrl_home = "/src/of/setting"\n')
    assert checkout_of("upstream") == "/src/of/setting"
    monkeypatch.setenv("CLEANRL_HOME", "/src/of/variable")
    assert checkout_of("upstream") == "/src/of/variable"
    assert checkout_of("/src/named") == "/src/named"


def test_a_submitted_config_gets_the_path_of_its_script(monkeypatch, tmp_path):
    monkeypatch.setenv("CLEANRL_HOME", "/src/cleanrl")
    monkeypatch.chdir(tmp_path)
    found = with_script_found(config(algo="dqn", script_path="", source="upstream"))
    assert found["metadata"]["worker"]["config"]["extras"]["script_path"] == "/src/cleanrl/cleanrl/dqn.py"
    relative = with_script_found(config(script_path="own.py"))
    assert relative["metadata"]["worker"]["config"]["extras"]["script_path"] == str(Path.cwd() / "own.py")
    assert with_script_found({"metadata": 3}) == {"metadata": 3}
