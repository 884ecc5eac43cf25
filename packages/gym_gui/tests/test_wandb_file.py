"""The files of W&B, read without its package: what the real one wrote, while it grows, and when it is damaged."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest
from gym_gui.services.analytics.wandb_file import (
    BLOCK_BYTES,
    NotAWandbFile,
    RecordLog,
    WandbLog,
    WandbSnapshot,
    find_wandb_folders,
)
from mosaic_extras.testing import interpreter_with


@pytest.fixture(scope="module")
def file(real_wandb_folder: Path) -> Path:
    (folder,) = find_wandb_folders(real_wandb_folder)
    assert folder.is_offline
    assert not folder.is_synced
    return folder.file


def read(path: Path) -> WandbSnapshot:
    log = WandbLog([path])
    log.read()
    return log.snapshot()


def same(left: WandbSnapshot, right: WandbSnapshot) -> bool:
    """Everything but the arrays by ==, the arrays by their numbers."""
    facts = [(one.config, one.summary, one.rows, one.exit_code) for one in (left, right)]
    curves = [(dict(one.history) | dict(one.system)) for one in (left, right)]
    return (
        facts[0] == facts[1]
        and list(curves[0]) == list(curves[1])
        and all(
            np.array_equal(getattr(curves[0][key], name), getattr(curves[1][key], name), equal_nan=True)
            for key in curves[0]
            for name in ("steps", "times", "values")
        )
    )


def test_the_real_packages_file_is_read_without_it(file: Path) -> None:
    shown = read(file)
    assert (shown.project, shown.name, shown.tags, shown.exit_code) == ("demo", "hand made", ("a", "b"), 0)
    assert shown.run_id == file.stem.removeprefix("run-")
    assert shown.started_at > 1.7e9
    assert shown.skipped_bytes == shown.damaged == 0
    config = {key: value for key, value in shown.config.items() if key != "_wandb"}
    assert config == {"lr": 2.5e-4, "net": {"sizes": [64, 64], "act": "tanh"}, "none": None, "late": 1}
    assert shown.summary["best"] == 12.5
    assert shown.summary["charts/episodic_return"] == 749.5
    assert shown.rows == 1501


def test_histories_with_missing_keys_keep_their_steps(file: Path) -> None:
    shown = read(file)
    returns = shown.history["charts/episodic_return"]
    assert np.array_equal(returns.steps, 10.0 * np.arange(1500))  # against the metric that the run chose
    assert np.array_equal(returns.values, np.arange(1500) / 2)
    assert np.all(np.diff(returns.times) >= 0)
    losses = shown.history["losses/value_loss"]  # logged in every third row, against W&B's own counter
    assert np.array_equal(losses.steps, 3.0 * np.arange(500))
    assert shown.history["nested.b.c"].values.tolist() == [0.0, 1000.0, 2000.0]
    assert shown.history["flag"].values.tolist() == [1.0]
    assert len(shown.history["never"].values) == 0  # nan cannot be drawn
    assert "text" not in shown.history
    assert not any(key.startswith("_") for key in shown.history)


def test_wandbs_own_reader_agrees(file: Path) -> None:
    inspect = subprocess.run(
        [str(interpreter_with("wandb").with_name("wandb")), "leet", "inspect", "--json", str(file.parent)],
        capture_output=True,
        text=True,
        check=False,
        env={"HOME": str(file.parent), "PATH": "/usr/bin:/bin"},
    )
    assert inspect.returncode == 0, inspect.stderr
    reported = [json.loads(line) for line in inspect.stdout.splitlines()]
    ours = RecordLog(file).read()
    assert len(reported) == len(ours)
    histories = sum(record.HasField("history") for record in ours)
    assert sum(record.get("type") == "history" for record in reported) == histories == 1501


def test_a_growing_file_is_read_piece_by_piece(file: Path, tmp_path: Path) -> None:
    data = file.read_bytes()
    growing = tmp_path / file.name
    log = WandbLog([growing])
    assert not log.read()  # not there yet
    rng = np.random.default_rng(0)
    cuts = sorted({1, 6, 7, 13, *rng.integers(8, len(data), 60).tolist(), BLOCK_BYTES - 1, BLOCK_BYTES + 3, len(data)})
    begin = 0
    with growing.open("ab") as stream:
        for end in cuts:
            stream.write(data[begin:end])
            stream.flush()
            begin = end
            log.read()
            assert log.snapshot().skipped_bytes == 0  # a partial record is waited for, not given up
    assert same(log.snapshot(), read(file))


def test_a_large_file_is_read_in_portions(file: Path) -> None:
    whole, log, portions = RecordLog(file).read(), RecordLog(file), []
    while True:
        portions.append(log.read(max_bytes=1))
        if not log.has_more:
            break
    assert len(portions) > 5
    assert [record.num for portion in portions for record in portion] == [record.num for record in whole]


@pytest.mark.parametrize("place", [5 * BLOCK_BYTES + 100, 3 * BLOCK_BYTES, 7 * BLOCK_BYTES - 3])
def test_after_damage_it_continues_at_the_next_block(file: Path, tmp_path: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place : place + 40] = bytes(byte ^ 0x55 for byte in data[place : place + 40])
    damaged = tmp_path / file.name
    damaged.write_bytes(data)
    shown, whole = read(damaged), read(file)
    assert 0 < shown.skipped_bytes <= 3 * BLOCK_BYTES
    assert shown.damaged >= 1
    lost = whole.rows - shown.rows
    assert 0 < lost < 400
    assert shown.history["charts/episodic_return"].values[-1] == 749.5  # what follows is there
    assert shown.summary["best"] == 12.5
    returns = shown.history["charts/episodic_return"]
    assert np.array_equal(returns.values, returns.steps / 20)  # values stay with their steps


def test_zeros_at_the_end_are_reported_and_harmless(file: Path, tmp_path: Path) -> None:
    torn = tmp_path / file.name
    torn.write_bytes(file.read_bytes() + bytes(1000))
    shown = read(torn)
    assert shown.rows == 1501
    assert shown.skipped_bytes == 1000


def test_several_files_of_a_resumed_run_are_one(file: Path, tmp_path: Path) -> None:
    again = tmp_path / file.name
    shutil.copy(file, again)
    log = WandbLog([file, again])
    log.read()
    assert log.snapshot().rows == 2 * 1501
    assert log.snapshot().config["lr"] == 2.5e-4


def test_something_else_is_refused_and_nothing_is_nothing(tmp_path: Path) -> None:
    strange = tmp_path / "run-x.wandb"
    strange.write_bytes(b"SQLite format 3\0" * 10)
    with pytest.raises(NotAWandbFile, match="does not begin like a file of W&B"):
        WandbLog([strange]).read()
    assert not WandbLog([tmp_path / "missing.wandb"]).read()
    assert WandbLog([]).snapshot().is_empty


def test_a_file_that_became_shorter_is_another_one(file: Path, tmp_path: Path) -> None:
    copy = tmp_path / file.name
    shutil.copy(file, copy)
    log = WandbLog([copy])
    log.read()
    copy.write_bytes(copy.read_bytes()[:100])
    with pytest.raises(NotAWandbFile, match="replaced"):
        log.read()


def test_values_in_the_form_of_older_versions_are_read(tmp_path: Path) -> None:
    """Until 0.2x every value was JSON text (`value_json`); those files are still on people's disks."""

    def text(number: int, value: bytes) -> bytes:
        return bytes([*_varint(number << 3 | 2), *_varint(len(value))]) + value

    def item(key: str, value: str) -> bytes:
        return text(1, key.encode()) + text(16, value.encode())

    history = text(2, text(1, item("loss", "0.5")) + text(1, item("_step", "7")) + text(1, item("odd", "{not json")))
    path = tmp_path / "run-old.wandb"
    path.write_bytes(struct.pack("<4sHB", b":W&B", 0xBEE1, 0) + _chunk(history))
    shown = read(path)
    assert shown.history["loss"].steps.tolist() == [7.0]
    assert shown.history["loss"].values.tolist() == [0.5]
    assert "odd" not in shown.history


def _varint(number: int) -> list[int]:
    found = []
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return [*found, number]


def _chunk(body: bytes) -> bytes:
    return struct.pack("<IHB", zlib.crc32(body, zlib.crc32(b"\1")), len(body), 1) + body


def test_links_and_other_folders_are_passed_over(tmp_path: Path) -> None:
    for name in ("run-20260101_000000-bbb", "offline-run-20250101_000000-aaa", "settings", "run-nonsense"):
        (tmp_path / name).mkdir()
    (tmp_path / "latest-run").symlink_to(tmp_path / "run-20260101_000000-bbb")
    (tmp_path / "run-20270101_000000-link").symlink_to(tmp_path / "run-20260101_000000-bbb")
    (tmp_path / "offline-run-20250101_000000-aaa" / "run-aaa.wandb.synced").touch()
    found = find_wandb_folders(tmp_path)
    assert [(folder.run_id, folder.is_offline, folder.is_synced) for folder in found] == [
        ("aaa", True, True),
        ("bbb", False, False),
    ]
    assert found[1].file == tmp_path / "run-20260101_000000-bbb" / "run-bbb.wandb"
    assert find_wandb_folders(tmp_path / "nowhere") == ()
