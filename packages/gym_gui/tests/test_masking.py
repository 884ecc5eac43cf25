"""Secrets that a worker wrote itself are blotted out of its files, whatever else is in them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from gym_gui.services.trainer.worker_logs import SecretMask
from mosaic_wire.exit_record import ExitOutcome, ExitRecord
from mosaic_wire.ids import new_run_id
from mosaic_wire.lifecycle import LifecycleKind, LifecycleReader, LifecycleSpool
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.redaction import redact_text, spellings_of

SECRET = "s3cret-0123456789"
BLOT = b"*" * len(SECRET)


def test_a_secret_is_known_in_every_spelling() -> None:
    quoted = 'pa"ss\\wörd'
    assert set(spellings_of([quoted])) == {
        quoted,
        json.dumps(quoted)[1:-1],
        json.dumps(quoted, ensure_ascii=False)[1:-1],
    }
    found = spellings_of(["https://me:p%40ss-word@host/x?y"])
    assert {"https://me:p%40ss-word@host/x?y", "p%40ss-word", "p@ss-word"} <= set(found)
    assert found == sorted(found, key=len, reverse=True)  # else a part of one would be replaced first
    assert spellings_of(["", "abc", "http://[broken"]) == ["http://[broken"]


def test_a_long_text_costs_no_more_than_its_length() -> None:
    # With a cost of the square this takes hours, and the daemon with it.
    for text in ("x" * 1_000_000, "x" * 1_000_000 + "://", "a://u:" * 200_000, "bearer " * 100_000):
        assert redact_text(text, [SECRET]) == text


@pytest.mark.parametrize("before", [0, 1, (1 << 20) - 5, 1 << 20, (1 << 20) + 5])
def test_a_secret_is_found_wherever_a_piece_ends(tmp_path: Path, before: int) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"a" * before + SECRET.encode() + b"z" * 100)
    SecretMask([SECRET]).follow(file)
    assert file.read_bytes() == b"a" * before + BLOT + b"z" * 100


def test_a_secret_that_is_written_in_two_parts_is_found_when_it_is_whole(tmp_path: Path) -> None:
    file, mask = tmp_path / "log", SecretMask([SECRET])
    for length in range(1, len(SECRET)):
        with file.open("ab") as stream:
            stream.write(b"line\n" + SECRET[:length].encode())
        mask.follow(file)
        with file.open("ab") as stream:
            stream.write(SECRET[length:].encode() + b"\n")
        mask.follow(file)
    assert file.read_bytes() == (b"line\n" + BLOT + b"\n") * (len(SECRET) - 1)


def test_a_file_that_was_cut_is_looked_at_from_its_start_again(tmp_path: Path) -> None:
    file, mask = tmp_path / "log", SecretMask([SECRET])
    file.write_bytes(b"x" * 1000)
    mask.follow(file)
    file.write_bytes(SECRET.encode())
    mask.follow(file)
    assert file.read_bytes() == BLOT


def test_links_pipes_and_what_is_not_there_are_passed_over(tmp_path: Path) -> None:
    target = tmp_path / "somebody's"
    target.write_text(SECRET)
    (tmp_path / "link").symlink_to(target)
    os.mkfifo(tmp_path / "pipe")
    mask = SecretMask([SECRET])
    for name in ("link", "pipe", "nothing"):
        mask.follow(tmp_path / name)
    mask.follow(tmp_path)
    assert target.read_text() == SECRET


def test_checksums_fit_after_the_cleaning_and_checkpoints_are_left_alone(home) -> None:
    run_id = new_run_id()
    folder = home.run_folder(run_id)
    checkpoint = folder.checkpoints / "step-1" / "state.json"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_text(SECRET)
    spool = LifecycleSpool(folder.lifecycle, run_id)
    spool.append(LifecycleKind.RUN_STARTED, {"plain": 1})
    spool.append(LifecycleKind.RUN_FAILED, {"error": f"no entry with {SECRET}", "api_key": "else"})
    spool.close()
    with folder.lifecycle.open("ab") as stream:
        stream.write(f'{{"torn": "{SECRET}'.encode())
    ExitRecord.now(run_id, 1, ExitOutcome.FAILED, reason=SECRET, exit_code=1, last_seq=2).write(folder.exit_record)
    AnalyticsManifest(run_id, notes=SECRET, extra={SECRET: 1}).write(folder.manifest)
    logs = home.run_logs(run_id)
    logs.mkdir(parents=True)
    (logs / "stdout.log.1").write_text(SECRET)
    (folder.root / "model.bin").write_text(SECRET)

    SecretMask([SECRET]).clean_run(home, run_id)

    events = LifecycleReader(folder.lifecycle).read()
    assert [event.event for event in events] == ["run_started", "run_failed"]
    assert events[1].payload["error"] == "no entry with •••"
    record = ExitRecord.read(folder.exit_record)
    assert record is not None
    assert record.reason == "•••"
    holding = {path.name for path in home.root.rglob("*") if path.is_file() and SECRET in path.read_text()}
    assert holding == {"state.json", "model.bin"}  # hashes and binaries are not for us to change
