"""What a walk through a run's folder finds."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from mosaic_wire.checkpoints import write_checkpoint
from mosaic_wire.paths import RunFolder
from mosaic_wire.run_artifacts import artifacts_of


def put(root: Path, name: str, content: bytes = b"") -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(content)


def test_the_newest_model_videos_and_checkpoints_of_phases_are_found(tmp_path):
    for name in ("runs/a/ppo.cleanrl_model", "videos/1.mp4", "videos/2.MKV", "wandb/2.mp4", "phases/P/logs/stdout.log"):
        put(tmp_path, name)
    write_checkpoint(RunFolder(tmp_path / "phases" / "P"), 64, {"algo": "ppo"}, {})
    found = artifacts_of(RunFolder(tmp_path))
    assert (found.policy, found.videos) == ("runs/a/ppo.cleanrl_model", ("videos/1.mp4", "videos/2.MKV"))
    assert [(entry.path, entry.step) for entry in found.checkpoints] == [("phases/P/checkpoints/step-64", 64)]


@pytest.mark.parametrize(
    ("files", "place"),
    [
        ([], None),
        (["tensorboard/system"], "tensorboard"),
        (["tensorboard/system", "tensorboard/x", "runs/y"], "tensorboard"),
        (["tensorboard/system", "runs/x"], "runs"),
        (["out/x", "runs/y"], "."),
    ],
)
def test_event_files_are_where_the_curves_are(tmp_path, files, place):
    for folder in files:
        put(tmp_path, f"{folder}/events.out.tfevents.1.host.2.0")
    assert artifacts_of(RunFolder(tmp_path)).tensorboard_dir == place


def test_a_study_is_known_by_its_content(tmp_path):
    put(tmp_path, "notes.db", b"no database")
    put(tmp_path, "stdout.log", b"training\n")
    with sqlite3.connect(tmp_path / "other.db") as database:
        database.execute("CREATE TABLE studies (study_id INTEGER)")
    database.close()
    assert artifacts_of(RunFolder(tmp_path)).optuna_db_path is None
    put(tmp_path, "search/journal.log", b'{"op_code": 0, "worker_id": "x"}\n')
    assert artifacts_of(RunFolder(tmp_path)).optuna_db_path == "search/journal.log"
