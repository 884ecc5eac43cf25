"""What the manifest says about the machine, the packages and a person's own code."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
import sys

import pytest
from cleanrl_worker.analytics import (
    build_manifest,
    cpu_model,
    describe_machine,
    describe_module,
    nvidia_driver,
    nvidia_gpus,
    versions_of,
)
from cleanrl_worker.config import CleanRLWorkerConfig
from mosaic_wire.ids import new_run_id
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder


def test_the_machine_is_described():
    facts = describe_machine(threads=2)
    assert facts["name"]
    assert facts["threads"] == 2
    assert facts["cpu"]
    assert 1 <= facts["usable_cpus"] <= facts["cpus"]
    assert facts["memory_mb"] > 100
    json.dumps(facts)


def test_gpus_and_driver_are_read_from_the_kernel(tmp_path):
    card = tmp_path / "driver" / "nvidia" / "gpus" / "0000:01:00.0"
    card.mkdir(parents=True)
    (card / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 160\nGPU UUID: \t GPU-1234\n")
    version = tmp_path / "driver" / "nvidia" / "version"
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n")
    assert nvidia_driver(tmp_path) == "550.54.15"
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n")
    assert nvidia_driver(tmp_path) == "570.86.15"
    assert nvidia_gpus(tmp_path) == [{"model": "NVIDIA H200", "uuid": "GPU-1234"}]
    facts = describe_machine(threads=1, proc=tmp_path)
    assert (facts["gpu_driver"], facts["gpus"][0]["model"]) == ("570.86.15", "NVIDIA H200")
    assert nvidia_driver(tmp_path / "none") is None
    assert cpu_model(tmp_path) == platform.machine()


def test_versions_of_the_sets_win():
    versions = versions_of(from_sets={"gymnasium": "0.29.1", "ale-py": "0.8.1"})
    assert versions["python"] == platform.python_version()
    assert versions["torch"]
    assert (versions["gymnasium"], versions["ale-py"]) == ("0.29.1", "0.8.1")


def test_a_module_of_ones_own_is_recorded_with_its_repository(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    source = tmp_path / "my_world_of_levers.py"
    source.write_text("raise RuntimeError('never imported')\n")
    facts = describe_module("my_world_of_levers")
    assert facts == {
        "module": "my_world_of_levers",
        "file": str(source),
        "sha256": hashlib.sha256(source.read_bytes()).hexdigest(),
    }
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    for text in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "start"]):
        subprocess.run([*git, *text], cwd=tmp_path, check=True, capture_output=True)
    clean = describe_module("my_world_of_levers")["git"]
    assert (len(clean["commit"]), clean["is_dirty"]) == (40, False)
    source.write_text("# changed\n")
    dirty = describe_module("my_world_of_levers")["git"]
    assert (dirty["commit"], dirty["is_dirty"], len(dirty["diff_sha256"])) == (clean["commit"], True, 64)
    assert "diff" not in dirty
    assert describe_module("no_such_module_anywhere") is None


@pytest.mark.parametrize("env_id", ["CartPole-v1", "my_levers:Lever-v0"])
def test_the_manifest_has_it_all(tmp_path, monkeypatch, env_id):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_levers.py").write_text("")
    config = CleanRLWorkerConfig(new_run_id(), "ppo", env_id, 100, 1, {"notes": "why"})
    folder = RunFolder(tmp_path / "run")
    folder.root.mkdir()
    argv = [sys.executable, "-m", "cleanrl_worker.launcher", "ppo", "--seed", "1"]
    build_manifest(config, folder, argv=argv, requirements=("atari",), threads=3, versions={"ale-py": "1"}).write(
        folder.manifest
    )
    manifest = AnalyticsManifest.read(folder.manifest)
    assert manifest.argv == tuple(argv)
    assert manifest.requirements == ("atari",)
    assert manifest.versions.items() >= {"ale-py": "1", "python": platform.python_version()}.items()
    assert (manifest.host["threads"], bool(manifest.host["cpu"])) == (3, True)
    assert ("environment_source" in manifest.extra) == (":" in env_id)
