"""Every file of the wire, cut at every byte and with bits flipped: never a crash, never a wrong value believed."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mosaic_wire import checkpoints
from mosaic_wire.checkpoints import (
    SharedFile,
    good_checkpoints,
    last_good_checkpoint,
    read_checkpoint,
    shared_files,
    verify_checkpoint,
    write_checkpoint,
)
from mosaic_wire.errors import ConfigProblems, DamagedCheckpoint
from mosaic_wire.exit_record import ExitOutcome, ExitRecord
from mosaic_wire.files import read_json_object, write_json_atomically
from mosaic_wire.lifecycle import LifecycleKind, LifecycleReader, LifecycleSpool, RunLifecycleEvent
from mosaic_wire.manifest import AnalyticsManifest, CheckpointEntry
from mosaic_wire.paths import RunFolder
from mosaic_wire.worker_config import WorkerConfig

RUN_ID = "01M7F8P2TF767091SW55X7DC97"
CONFIG = {
    "run_id": RUN_ID,
    "algo": "ppo",
    "env_id": "CartPole-v1",
    "total_timesteps": 500,
    "seed": 3,
    "extras": {"a": 1},
}


def _read_exit_record(path: Path) -> Any:
    return ExitRecord.read(path)


def _read_manifest(path: Path) -> Any:
    try:
        read = AnalyticsManifest.read(path)
    except ValueError:
        return None
    # A flipped letter in the checksum's own name leaves an unknown key and every value as it was.
    return {key: value for key, value in read.to_json().items() if key not in read.extra}


def _read_worker_config(path: Path) -> Any:
    try:
        config = WorkerConfig.load(path)
    except ConfigProblems:
        return None
    return config.run_id, config.algo, config.env_id, config.total_timesteps, config.seed, config.extras


def _read_event(path: Path) -> Any:
    events = LifecycleReader(path).read()
    assert len(events) <= 1
    return events[0] if events else None


def _write_exit_record(path: Path) -> None:
    ExitRecord(RUN_ID, 2, ExitOutcome.COMPLETED, "done", 0, 17, 1794735016.5).write(path)


def _write_manifest(path: Path) -> None:
    entry = CheckpointEntry("checkpoints/step-5", 5, "ab" * 32)
    AnalyticsManifest(RUN_ID, "random", "ppo", "CartPole-v1", 3, checkpoints=(entry,), notes="é").write(path)


def _write_worker_config(path: Path) -> None:
    write_json_atomically(path, CONFIG, sealed=True)


def _write_event(path: Path) -> None:
    event = RunLifecycleEvent(LifecycleKind.RUN_COMPLETED, RUN_ID, 1794735016.5, 9, {"mean": 487.5, "é": [1, None]})
    path.write_text(event.to_line())


FILES: dict[str, tuple[Callable[[Path], None], Callable[[Path], Any]]] = {
    "exit.json": (_write_exit_record, _read_exit_record),
    "analytics.json": (_write_manifest, _read_manifest),
    "worker.json": (_write_worker_config, _read_worker_config),
    "lifecycle.jsonl": (_write_event, _read_event),
}


@pytest.mark.parametrize("name", FILES)
def test_a_whole_file_is_read(tmp_path: Path, name: str) -> None:
    write, read = FILES[name]
    write(tmp_path / name)
    assert read(tmp_path / name)


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_at_any_byte_is_refused(tmp_path: Path, name: str) -> None:
    write, read = FILES[name]
    path = tmp_path / name
    write(path)
    whole = path.read_bytes()
    for length in range(len(whole.rstrip())):
        path.write_bytes(whole[:length])
        assert read(path) is None, f"cut after {length} bytes: {whole[:length][-30:]!r}"


@pytest.mark.parametrize("most", [1_000, pytest.param(10**9, marks=pytest.mark.slow)], ids=["some", "all"])
@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_refused_or_changes_nothing(tmp_path: Path, name: str, most: int) -> None:
    write, read = FILES[name]
    path = tmp_path / name
    write(path)
    whole, meaning = path.read_bytes(), read(path)
    for bit in random.Random(1).sample(range(8 * len(whole)), min(most, 8 * len(whole))):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        assert read(path) in (None, meaning), f"bit {bit}: {bytes(damaged[max(0, bit // 8 - 20) : bit // 8 + 20])!r}"


@pytest.mark.parametrize("name", FILES)
@given(data=st.data())
def test_any_json_in_its_place_does_no_harm(tmp_path_factory: pytest.TempPathFactory, name: str, data: Any) -> None:
    write, read = FILES[name]
    path = tmp_path_factory.mktemp("foreign") / name
    write(path)
    document = json.loads(path.read_text())
    document.pop("checksum")
    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=5,
    )
    key = data.draw(st.sampled_from(sorted(document)))
    document[key] = data.draw(values)
    path.write_text(json.dumps(document) + "\n")
    read(path)  # whatever it answers, it answers


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b"1" * 5000])
def test_what_is_no_object_is_refused_with_its_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "odd.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"odd\.json"):
        read_json_object(path)


def test_a_file_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    path.write_bytes(b'{"a": "' + b"x" * 100 + b'"}')
    with pytest.raises(ValueError, match="larger than 50 bytes"):
        read_json_object(path, max_bytes=50)


# -- checkpoints


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    entries = [write_checkpoint(folder, step, {"w": step}, {"weights.bin": b"\1\2\3" * 9}) for step in (10, 20)]
    AnalyticsManifest(RUN_ID, checkpoints=tuple(entries)).write(folder.manifest)
    assert last_good_checkpoint(folder) == entries[1]
    newest = tmp_path / entries[1].path
    for name in ("state.json", "weights.bin"):
        whole = (newest / name).read_bytes()
        bits = range(0, 8 * len(whole), 7)
        for damaged in (*(whole[:length] for length in range(len(whole))), *(_flipped(whole, bit) for bit in bits)):
            (newest / name).write_bytes(damaged)
            assert verify_checkpoint(newest, entries[1].sha256)
            assert last_good_checkpoint(folder) == entries[0]
        (newest / name).unlink()
        assert last_good_checkpoint(folder) == entries[0]
        (newest / name).write_bytes(whole)
    assert last_good_checkpoint(folder) == entries[1]


def test_without_a_manifest_the_folders_themselves_are_asked(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    entries = [write_checkpoint(folder, step, {"w": step}) for step in (9, 10, 20)]
    AnalyticsManifest(RUN_ID, checkpoints=tuple(entries)).write(folder.manifest)
    whole = folder.manifest.read_bytes()
    state = (tmp_path / entries[2].path / "state.json").read_bytes()
    for length in range(0, len(whole.rstrip()), 13):
        folder.manifest.write_bytes(whole[:length])
        assert last_good_checkpoint(folder) == entries[2]
    rng = random.Random(1)
    for bit in rng.sample(range(8 * len(state)), 300):
        (tmp_path / entries[2].path / "state.json").write_bytes(_flipped(state, bit))
        found = last_good_checkpoint(folder)
        assert found is not None
        if found.step == 20:  # the checksum's own name, or a blank: every value is as it was
            document = read_json_object(tmp_path / found.path / "state.json")
            assert (document["w"], document["step"]) == (20, 20)
        else:
            assert found == entries[1]


def test_a_listed_checkpoint_that_was_exchanged_stays_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    entry = write_checkpoint(folder, 10, {"w": 1})
    AnalyticsManifest(RUN_ID, checkpoints=(entry,)).write(folder.manifest)
    write_checkpoint(folder, 10, {"w": 2})  # fits itself, not the manifest
    assert last_good_checkpoint(folder) is None


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", ".hidden", "a/b", ""])
def test_a_checkpoint_naming_files_outside_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    write_json_atomically(tmp_path / "state.json", {"step": 1, "files": {name: "00"}}, sealed=True)
    assert "outside its folder" in (verify_checkpoint(tmp_path, _sha(tmp_path / "state.json")) or "")
    with pytest.raises(ValueError, match="plain file names"):
        write_checkpoint(RunFolder(tmp_path), 1, {}, {name: b""})


# -- files that several checkpoints share


def _share(folder: RunFolder, content: bytes) -> SharedFile:
    digest = hashlib.sha256(content).hexdigest()
    (folder.checkpoints / "replay").mkdir(parents=True, exist_ok=True)
    (folder.checkpoints / "replay" / digest).write_bytes(content)
    return SharedFile(f"replay/{digest}", digest, len(content))


def test_a_damaged_shared_file_spoils_every_checkpoint_that_refers_to_it_and_no_other(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    old, both, new = (_share(folder, bytes([number]) * 50) for number in range(3))
    entries = [
        write_checkpoint(folder, 10, {}, shared=[old]),
        write_checkpoint(folder, 20, {}, shared=[old, both]),
        write_checkpoint(folder, 30, {}, shared=[both, new]),
    ]
    AnalyticsManifest(RUN_ID, checkpoints=tuple(entries)).write(folder.manifest)
    assert list(good_checkpoints(folder)) == entries[::-1]
    assert shared_files(read_checkpoint(tmp_path / entries[1].path)) == (old, both)
    for file, good in ((new, [20, 10]), (both, [10]), (old, [30])):
        path = folder.checkpoints / file.path
        whole = path.read_bytes()
        bits = range(0, 8 * len(whole), 7)
        lengths = (*range(len(whole)), len(whole) + 1)
        for damaged in (*((whole + b"x")[:n] for n in lengths if n != 50), *(_flipped(whole, bit) for bit in bits)):
            path.write_bytes(damaged)
            assert [entry.step for entry in good_checkpoints(folder)] == good
        path.unlink()
        assert [entry.step for entry in good_checkpoints(folder)] == good
        elsewhere = tmp_path / "elsewhere"
        elsewhere.write_bytes(whole)
        path.symlink_to(elsewhere)
        assert [entry.step for entry in good_checkpoints(folder)] == good  # not through a link
        path.unlink()
        path.write_bytes(whole)
    assert list(good_checkpoints(folder)) == entries[::-1]


def test_each_shared_file_is_hashed_once_however_many_refer_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path)
    files = [_share(folder, bytes([number])) for number in range(5)]
    for step in range(10):
        write_checkpoint(folder, step, {}, shared=files)
    hashed: list[Path] = []
    real = checkpoints.sha256_of_file
    monkeypatch.setattr(checkpoints, "sha256_of_file", lambda path: (hashed.append(path), real(path))[1])
    assert len(list(good_checkpoints(folder))) == 10
    assert sum("replay" in path.parts for path in hashed) == 5
    hashed.clear()
    read_checkpoint(tmp_path / "checkpoints" / "step-3", hash_shared=False)
    assert not any("replay" in path.parts for path in hashed)
    (folder.checkpoints / files[0].path).write_bytes(b"")
    with pytest.raises(DamagedCheckpoint, match="it has 0 bytes instead of 1"):
        read_checkpoint(tmp_path / "checkpoints" / "step-3", hash_shared=False)


@pytest.mark.parametrize(
    "shared",
    [
        [{"path": "../replay/x", "sha256": "0", "bytes": 0}],
        [{"path": "/etc/passwd", "sha256": "0", "bytes": 0}],
        [{"path": "replay", "sha256": "0", "bytes": 0}],
        [{"path": "replay/../../x", "sha256": "0", "bytes": 0}],
        [{"path": "step-1/state.json", "sha256": "0", "bytes": 0}],
        [{"path": "replay/x", "sha256": None, "bytes": 0}],
        [{"path": "replay/x", "sha256": "0", "bytes": "many"}],
        [{"sha256": "0"}],
        ["replay/x"],
        {"path": "replay/x"},
        "replay/x",
    ],
)
def test_odd_shared_files_are_refused(tmp_path: Path, shared: Any) -> None:
    place = tmp_path / "checkpoints" / "step-1"
    place.mkdir(parents=True)
    write_json_atomically(place / "state.json", {"step": 1, "files": {}, "shared": shared}, sealed=True)
    assert verify_checkpoint(place, _sha(place / "state.json"))
    assert last_good_checkpoint(RunFolder(tmp_path)) is None


def test_a_failed_write_leaves_the_earlier_checkpoint_and_no_litter(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    entry = write_checkpoint(folder, 10, {"w": 1})
    with pytest.raises(TypeError):
        write_checkpoint(folder, 10, {"w": object()}, {"weights.bin": b"x"})
    assert [path.name for path in folder.checkpoints.iterdir()] == ["step-10"]
    assert verify_checkpoint(tmp_path / entry.path, entry.sha256) is None


def _flipped(data: bytes, bit: int) -> bytes:
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def _sha(path: Path) -> str:
    from mosaic_wire.manifest import sha256_of_file

    return sha256_of_file(path)


# -- the spool


def test_a_damaged_line_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "lifecycle.jsonl"
    spool = LifecycleSpool(path, RUN_ID)
    for step in range(3):
        spool.append(LifecycleKind.CHECKPOINT_SAVED, {"step": step})
    spool.close()
    lines = path.read_bytes().splitlines(keepends=True)
    for cut in range(1, len(lines[1])):
        path.write_bytes(lines[0] + lines[1][:cut].rstrip(b"\n") + b"\n" + lines[2])
        assert [event.seq for event in LifecycleReader(path).read()] in ([1, 3], [1, 2, 3])
