"""Checkpoints as a worker process keeps them: the manifest names what is there, the best one, and nothing else."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
from mosaic_wire.checkpoints import verify_checkpoint
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.testing import WorkerProcess

ARGV = [sys.executable, "-m", "cleanrl_worker.cli"]
PATIENCE_S = 180
FLAGS = {
    "learning_starts": 200,
    "buffer_size": 1500,
    "train_frequency": 10,
    "checkpoint_freq": 500,
    "keep_checkpoints": 1,
    "eval_freq": 600,
    "eval_episodes": 2,
}


def config(total: int, **extras: Any) -> dict[str, Any]:
    parameters = {**FLAGS, **extras.pop("algo_params", {})}
    return {
        "algo": "dqn",
        "env_id": "CartPole-v1",
        "total_timesteps": total,
        "seed": 1,
        "extras": {"algo_params": parameters, **extras},
    }


def check(worker: WorkerProcess) -> tuple[AnalyticsManifest, dict[int, str]]:
    """The manifest, and its checkpoints' kinds by step, after comparing both with the disk."""
    manifest = AnalyticsManifest.read(worker.folder.manifest)
    on_disk = {f"checkpoints/{path.name}" for path in worker.folder.checkpoints.glob("step-*")}
    assert {entry.path for entry in manifest.checkpoints} == on_disk
    for entry in manifest.checkpoints:
        assert verify_checkpoint(worker.folder.root / entry.path, entry.sha256) is None
    return manifest, {entry.step: entry.kind for entry in manifest.checkpoints}


def test_the_manifest_names_the_last_few_the_last_and_the_best(home):
    with WorkerProcess(ARGV, config(3000), home) as worker:
        assert worker.wait(PATIENCE_S) == 0, worker.stderr()
        manifest, kinds = check(worker)
        reported = [event.payload for event in worker.events() if str(event.event) == "checkpoint_saved"]
    best = manifest.extra["best"]
    assert best["by"] == "evaluation"
    assert best["path"] == f"checkpoints/step-{best['step']}"
    assert best["step"] in kinds
    assert best["step"] % 600 == 0
    # The last one, one other, and the best, which may be one of the two.
    assert len(kinds) <= 3
    assert sum(kind == "best" for kind in kinds.values()) <= 1
    assert kinds[3000] == ("best" if best["step"] == 3000 else "last")
    assert {entry["step"] for entry in reported} > set(kinds)  # others were there and went
    assert manifest.evaluation is not None
    assert manifest.policy == "dqn.cleanrl_model"
    assert (worker.folder.root / "best.cleanrl_model").exists()

    # The same run continues: what it had counts, and its best is still its best unless a better one comes.
    # It was killed right after its newest one was written: no process listed it or named the best.
    unlisted = tuple(entry for entry in manifest.checkpoints if entry.step != 3000)
    others = {key: value for key, value in manifest.extra.items() if key != "best"}
    replace(manifest, checkpoints=unlisted, extra=others).write(worker.folder.manifest)
    newest = str(worker.folder.checkpoints / "step-3000")
    resumed = config(3600, mode="resume_training", checkpoint_path=newest)
    with WorkerProcess(ARGV, resumed, home, run_id=worker.run_id, attempt=2) as again:
        assert again.wait(PATIENCE_S) == 0, again.stderr()
        later, kinds = check(again)
    assert later.extra["best"]["score"] >= best["score"]
    assert later.extra["best"]["step"] in kinds
    assert 3600 in kinds
    assert len(kinds) <= 3


def test_a_gpu_that_was_asked_for_and_is_not_there_is_one_clear_line(home):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    with WorkerProcess(ARGV, config(1000, use_cuda=True), home) as worker:
        assert worker.wait(PATIENCE_S) == 2
        failure = worker.events()[-1].payload
    assert failure["error"].startswith("a GPU was requested and there is none to use: ")
    assert failure["error"].endswith("; leave --cuda out to train without one")
    assert failure["error_type"] == "BadInput"


def test_by_default_a_run_trains_without_a_gpu_unless_its_reservation_insists(monkeypatch):
    from types import SimpleNamespace

    import torch
    from cleanrl_worker.errors import BadInput
    from cleanrl_worker.training.run import device_for

    if torch.cuda.is_available():
        pytest.skip("there is one")
    expected, unwanted = (SimpleNamespace(cuda=cuda, torch_deterministic=True) for cuda in (True, False))
    for value in (None, "", "0"):
        if value is not None:
            monkeypatch.setenv("MOSAIC_GPUS_MANDATORY", value)
        assert device_for(expected).type == "cpu"
    monkeypatch.setenv("MOSAIC_GPUS_MANDATORY", "2")
    with pytest.raises(BadInput, match="a GPU was requested"):
        device_for(expected)
    assert device_for(unwanted).type == "cpu"
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(BadInput, match="none is reserved for this run"):
        device_for(expected)
