"""The contents of a run's folders, without a window: roles, checkpoints, what is missing, damaged or closed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from gym_gui.ui.presenters import run_files
from gym_gui.ui.presenters.run_files import (
    ManifestTrouble,
    PreviewKind,
    Role,
    find_places,
    list_folder,
    missing_artifacts,
    preview_of,
    read_manifest,
)
from mosaic_wire.checkpoints import write_checkpoint
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder

RUN = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run that left two checkpoints, a policy and its events; one video is only in the manifest."""
    folder = RunFolder(tmp_path / "trainer" / "runs" / RUN)
    folder.tensorboard.mkdir(parents=True)
    (folder.tensorboard / "events.out.tfevents.1.x").write_bytes(b"12345")
    state = {"values": {"episodes": {"recent": [10.0, 20.0]}}}
    first = write_checkpoint(folder, 500, state, {"weights": b"w" * 100})
    last = write_checkpoint(folder, 1000, {"algo": "ppo"}, kind="last")
    (folder.root / "ppo.cleanrl_model").write_bytes(b"\0\1\2")
    AnalyticsManifest(
        RUN,
        tensorboard_dir="tensorboard",
        checkpoints=(first, last),
        videos=("videos/one.mp4",),
        policy="ppo.cleanrl_model",
    ).write(folder.manifest)
    return folder


def test_files_are_known_by_what_they_are_for(folder: RunFolder) -> None:
    manifest = read_manifest(str(folder.root)).manifest
    entries = {entry.name: entry for entry in list_folder(folder.root, folder.root, manifest).entries}
    assert {name: entry.role for name, entry in entries.items()} == {
        "checkpoints": Role.CHECKPOINTS,
        "tensorboard": Role.EVENTS,
        "analytics.json": Role.MANIFEST,
        "ppo.cleanrl_model": Role.POLICY,
    }
    assert entries["ppo.cleanrl_model"].is_listed
    assert not entries["analytics.json"].is_listed
    assert entries["tensorboard"].size == 5


def test_checkpoints_tell_step_kind_and_return_newest_first(folder: RunFolder) -> None:
    manifest = read_manifest(str(folder.root)).manifest
    found = list_folder(folder.checkpoints, folder.root, manifest).entries
    assert [entry.name for entry in found] == ["step-1000", "step-500"]
    newest, oldest = (entry.checkpoint for entry in found)
    assert newest is not None
    assert oldest is not None
    assert (newest.step, newest.kind, newest.mean_return, newest.is_listed) == (1000, "last", None, True)
    assert (oldest.step, oldest.kind, oldest.mean_return) == (500, "periodic", 15.0)


def test_a_damaged_checkpoint_reports_it_and_the_others_stay(folder: RunFolder) -> None:
    (folder.checkpoints / "step-500" / "state.json").write_text('{"step": 5')
    (folder.checkpoints / "step-1000" / "state.json").unlink()
    found = list_folder(folder.checkpoints, folder.root, None).entries
    assert all(entry.checkpoint is not None and entry.checkpoint.problem for entry in found)
    assert not any(entry.checkpoint is not None and entry.checkpoint.is_listed for entry in found)


def test_what_the_manifest_names_and_is_not_there(folder: RunFolder) -> None:
    manifest = read_manifest(str(folder.root)).manifest
    assert manifest is not None
    assert missing_artifacts(folder.root, manifest) == ["videos/one.mp4"]


@pytest.mark.parametrize(
    ("content", "trouble"),
    [
        (None, ManifestTrouble.MISSING),
        ("{", ManifestTrouble.DAMAGED),
        ('{"run_id": 3}', ManifestTrouble.DAMAGED),
        ("[]", ManifestTrouble.DAMAGED),
    ],
)
def test_a_manifest_that_cannot_be_read_is_an_answer(
    tmp_path: Path, content: str | None, trouble: ManifestTrouble
) -> None:
    if content is not None:
        (tmp_path / "analytics.json").write_text(content)
    reading = read_manifest(str(tmp_path))
    assert reading.manifest is None
    assert reading.problem is not None
    assert reading.problem.trouble is trouble


def test_a_folder_that_is_missing_is_an_answer(tmp_path: Path) -> None:
    listing = list_folder(tmp_path / "gone", tmp_path, None)
    assert listing.problem is not None
    assert listing.problem.trouble is ManifestTrouble.MISSING
    places = find_places(str(tmp_path / "gone"), "", RUN)
    assert [place.is_there for place in places.places] == [False]


def test_a_huge_folder_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_files, "MAX_ENTRIES", 20)
    for number in range(23):
        (tmp_path / str(number)).touch()
    listing = list_folder(tmp_path, tmp_path, None)
    assert (len(listing.entries), listing.left_out) == (20, 3)


def test_links_are_reported_and_not_followed(tmp_path: Path) -> None:
    os.symlink("/", tmp_path / "everything")
    (entry,) = list_folder(tmp_path, tmp_path, None).entries
    assert (entry.link_target, entry.is_folder) == ("/", False)


def test_the_configs_are_found_beside_the_runs(folder: RunFolder) -> None:
    configs = folder.root.parent.parent / "configs"
    configs.mkdir()
    (configs / f"config-{RUN}.json").write_text("{}")
    places = find_places(str(folder.root), str(folder.root / "nowhere"), RUN)
    assert [(place.kind, place.is_there) for place in places.places] == [
        ("run", True),
        ("logs", False),
        ("config", True),
    ]
    assert places.missing == ("videos/one.mp4",)


def test_previews(tmp_path: Path) -> None:
    def of(name: str, content: bytes) -> tuple[PreviewKind, str, bool]:
        path = tmp_path / name
        path.write_bytes(content)
        preview = preview_of(path)
        return preview.kind, preview.text, preview.is_cut

    assert of("a.json", b'{"b":[1]}') == (PreviewKind.TEXT, json.dumps({"b": [1]}, indent=2), False)
    assert of("broken.json", b"{") == (PreviewKind.TEXT, "{", False)
    assert of("a.txt", "grüß".encode()) == (PreviewKind.TEXT, "grüß", False)
    assert of("a.bin", b"\0\1\2")[0] is PreviewKind.BINARY
    assert of("noise", bytes(range(128, 256)) * 50)[0] is PreviewKind.BINARY
    assert of("a.png", b"x")[0] is PreviewKind.IMAGE
    assert of("a.mp4", b"x")[0] is PreviewKind.VIDEO
    assert of("empty", b"")[0] is PreviewKind.EMPTY
    kind, text, is_cut = of("long.log", b"line\n" * 100_000)
    assert (kind, is_cut) == (PreviewKind.TEXT, True)
    assert len(text) < 300_000
    assert preview_of(tmp_path / "gone").kind is PreviewKind.UNREADABLE
    assert preview_of(tmp_path).kind is PreviewKind.FOLDER
    os.mkfifo(tmp_path / "pipe")
    assert preview_of(tmp_path / "pipe").kind is PreviewKind.BINARY  # reading it would never end
