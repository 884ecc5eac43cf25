"""`mosaic clone` and `mosaic smoke` against a real daemon."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from gym_gui.cli.app import mosaic
from gym_gui.cli.submit import config_of, take_secrets_from
from gym_gui.services.trainer.secrets import SecretStore
from gym_gui.testing import RunningDaemon
from mosaic_wire.files import read_json_object
from mosaic_wire.paths import Home

QUICK = {"heartbeat_s": 0.2, "grace_s": 2, "min_free_disk_mb": 0}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clone")
    with RunningDaemon(Home(folder / "home"), folder / "config", settings=QUICK) as daemon:
        yield daemon


def invoke(daemon: RunningDaemon, *text: str):
    return CliRunner().invoke(mosaic, ["--home", str(daemon.home.root), *text], standalone_mode=False)


def test_a_clone_has_the_same_config_and_another_id(daemon):
    original = daemon.submit(timesteps=7, tags=("a", "b"), scheduling={"priority": 3}, extras={"notes": "why"})
    daemon.wait_for(original.run_id)
    result = invoke(daemon, "clone", original.run_id[:14])
    assert result.exception is None, result.output
    run_id = result.stdout.split()[0]
    clone = daemon.wait_for(run_id)
    assert (clone.outcome, clone.step) == ("completed", 7)
    assert run_id != original.run_id
    documents = [read_json_object(daemon.home.config_file(run.run_id)) for run in (original, clone)]
    texts = [
        json.dumps(document).replace(run.run_id, "ID")
        for document, run in zip(documents, (original, clone), strict=True)
    ]
    assert texts[0] == texts[1]
    assert (clone.name, list(clone.tags), clone.priority) == ("random walk", ["a", "b"], 3)


def test_show_prints_what_a_run_was_made_with(daemon):
    run = daemon.wait_for(daemon.submit(timesteps=5).run_id)
    manifest = daemon.manifest(run.run_id)
    facts = {"argv": ("python", "-m", "x"), "versions": {"torch": "2"}, "host": {"name": "here", "cpu": "a fast one"}}
    replace(manifest, **facts).write(daemon.home.run_folder(run.run_id).manifest)
    (document,) = json.loads(invoke(daemon, "show", "--json", run.run_id).stdout)
    assert document["provenance"].items() >= {"versions": {"torch": "2"}, "argv": ["python", "-m", "x"]}.items()
    shown = invoke(daemon, "show", run.run_id).stdout
    assert "here, a fast one" in shown
    assert "torch 2" in shown


def test_a_clone_can_be_printed_and_given_another_seed(daemon):
    run = daemon.wait_for(daemon.submit(timesteps=5).run_id)
    before = daemon.client.list().matching
    result = invoke(daemon, "clone", run.run_id, "--print", "--seed", "9", "--name", "again")
    assert result.exception is None, result.output
    document = json.loads(result.stdout)
    assert document["run_name"] == "again"
    assert document["metadata"]["worker"]["config"]["seed"] == 9
    assert document["metadata"]["worker"]["config"]["run_id"] == "${RUN_ID}"
    assert daemon.client.list().matching == before


def test_a_name_the_daemon_made_up_is_not_copied(daemon):
    config = {"algo": "random", "env_id": "none", "total_timesteps": 3}
    document = {"metadata": {"worker": {"type": "random", "config": config}}}
    run = daemon.wait_for(daemon.client.submit(document).run.run_id)
    assert "run_name" not in config_of(run)


def test_secrets_come_from_the_environment_or_stay_those_of_the_run():
    part = {"extras": {"wandb_api_key": {"secret_ref": "RUN/wandb_api_key"}, "x": 1}}
    take_secrets_from({}, part)
    assert part == {"extras": {"wandb_api_key": {"secret_ref": "RUN/wandb_api_key"}, "x": 1}}
    take_secrets_from({"WANDB_API_KEY": "k"}, part)
    assert part == {"extras": {"wandb_api_key": "k", "x": 1}}


def stored_key(daemon: RunningDaemon, run_id: str) -> str | None:
    return SecretStore(daemon.config_home).get(run_id).get("wandb_api_key")


def test_a_clone_has_the_secrets_of_its_run_until_they_are_deleted(daemon, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    original = daemon.submit(timesteps=3, extras={"wandb_api_key": "canary-8ad1c27f90"})
    daemon.wait_for(original.run_id)
    printed = json.loads(invoke(daemon, "clone", original.run_id, "--print").stdout)
    reference = {"secret_ref": f"{original.run_id}/wandb_api_key"}
    assert printed["metadata"]["worker"]["config"]["extras"]["wandb_api_key"] == reference
    clone = invoke(daemon, "clone", original.run_id).stdout.split()[0]
    assert daemon.wait_for(clone).outcome == "completed"
    assert stored_key(daemon, clone) == "canary-8ad1c27f90"
    kept = read_json_object(daemon.home.config_file(clone))["metadata"]["worker"]["config"]["extras"]
    assert kept["wandb_api_key"] == {"secret_ref": "wandb_api_key"}
    monkeypatch.setenv("WANDB_API_KEY", "canary-another-11")
    another = invoke(daemon, "clone", original.run_id).stdout.split()[0]
    assert stored_key(daemon, another) == "canary-another-11"
    daemon.wait_for(another)
    monkeypatch.delenv("WANDB_API_KEY")
    daemon.client.delete(original.run_id)  # as on a machine to which the run was brought
    orphan = daemon.client.submit(printed)
    assert list(orphan.notes) == [f"wandb_api_key is left out: run {original.run_id} has none here"]
    assert daemon.wait_for(orphan.run.run_id).outcome == "completed"
    assert stored_key(daemon, orphan.run.run_id) is None


def test_a_script_that_changed_is_taken_from_the_runs_copy(daemon, tmp_path):
    from gym_gui.services.run_configs import _use_the_copied_script

    script, copy = tmp_path / "mine.py", tmp_path / "run" / "scripts" / "mine.py"
    copy.parent.mkdir(parents=True)
    copy.write_text("print(1)\n")
    script.write_text("print(2)\n")
    extras = {"script_path": str(script), "script_sha256": hashlib.sha256(b"print(1)\n").hexdigest()}
    _use_the_copied_script(extras, tmp_path / "run", tmp_path / "run")
    assert extras["script_path"] == str(copy)
    script.write_text("print(1)\n")
    extras["script_path"] = str(script)
    _use_the_copied_script(extras, tmp_path / "run", tmp_path / "run")
    assert extras["script_path"] == str(script)


def test_a_smoke_run_leaves_its_report(daemon):
    result = invoke(daemon, "smoke", "random", "none", "--total-timesteps", "20")
    assert result.exception is None, result.output
    assert result.return_value == 0
    run = daemon.client.list(limit=1).runs[0]
    report = json.loads((Path(run.run_dir) / "smoke.json").read_text())
    assert (report["algo"], report["env_id"], report["status"], report["outcome"]) == (
        "random",
        "none",
        "TERM",
        "completed",
    )
    assert Path(report["payload"]).is_file()
    assert f"RegisterWorker of {run.run_id}: HSHK -> RDY" in report["handshake"]
    assert {"analytics.json", "lifecycle.jsonl", "exit.json"} <= set(report["artefacts"])
    assert report["steps"] == 20


def test_a_smoke_run_that_fails_reports_it_and_leaves_its_report_too(daemon):
    result = invoke(daemon, "smoke", "random", "none", "--total-timesteps", "20", "--fail-at-step", "5")
    assert result.return_value == 1
    run = daemon.client.list(limit=1).runs[0]
    report = json.loads((Path(run.run_dir) / "smoke.json").read_text())
    assert (report["outcome"], bool(report["reason"])) == ("failed", True)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        (["random"], "which environment"),
        (["random", "none", "--extras", "{"], "not JSON"),
        (["random", "none", "--extras", "[1]"], "--extras must be a JSON object, not list"),
        (["pppo", "x"], "'ppo'"),
    ],
)
def test_a_smoke_run_of_nothing_is_refused(daemon, text, reported):
    result = invoke(daemon, "smoke", *text)
    assert reported in str(result.exception)
