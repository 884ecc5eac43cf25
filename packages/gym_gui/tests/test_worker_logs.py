"""Output files of workers: tails, coded lines, caps."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

from gym_gui.services.trainer.worker_logs import LogFollower, cap_logs, tail_text


def test_the_tail_is_bounded_redacted_and_tolerates_binary(tmp_path):
    log = tmp_path / "stderr.log"
    log.write_bytes(b"\xff\xfe" + b"x" * 1_000_000 + b"\nkey=hunter22\n" + b"last line\n")
    tail = tail_text(log, ["hunter22"])
    assert tail.endswith("last line")
    assert "hunter22" not in tail
    assert len(tail) < 10_000


def test_a_missing_log_has_an_empty_tail(tmp_path):
    assert tail_text(tmp_path / "nothing.log") == ""


def test_a_coded_line_is_reported_again_with_its_code(tmp_path, caplog):
    log = tmp_path / "stderr.log"
    log.write_text("")
    follower = LogFollower(log, "run-1")
    with log.open("a") as stream:
        stream.write('plain text\nLOG502 | a checkpoint was written | extra={"step": 10}\nLOG502 | half a li')
    with caplog.at_level(logging.INFO):
        follower.follow()
    assert [record.log_code for record in caplog.records if hasattr(record, "log_code")] == [502]
    with log.open("a") as stream:
        stream.write("ne | extra={}\n")
    with caplog.at_level(logging.INFO):
        follower.follow()
    assert "half a line" in caplog.messages[-1]


def test_a_line_of_a_million_characters_hides_no_later_line(tmp_path, caplog):
    log = tmp_path / "stdout.log"
    log.write_text("")
    follower = LogFollower(log, "run-1")
    log.write_text("LOG502 " + "y" * 900_000 + "\nLOG501 | begins | extra={}\n")
    with caplog.at_level(logging.INFO):
        follower.follow()
    assert [record.log_code for record in caplog.records if hasattr(record, "log_code")] == [501]


def test_a_flood_is_skipped_not_followed(tmp_path, caplog):
    log = tmp_path / "stdout.log"
    log.write_text("")
    follower = LogFollower(log, "run-1")
    with log.open("ab") as stream:
        stream.write(b"noise\n" * 2_000_000)
    follower.follow()
    with log.open("ab") as stream:
        stream.write(b"rest of a line\nLOG501 | begins | extra={}\n")
    with caplog.at_level(logging.INFO):
        follower.follow()
    assert [record.log_code for record in caplog.records if hasattr(record, "log_code")] == [501]


def test_a_file_over_its_cap_keeps_its_end_and_the_writer_continues(tmp_path):
    log = tmp_path / "stdout.log"
    writer = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(writer, b"old\n" * 100_000 + b"newest\n")
        assert cap_logs([tmp_path], 100_000) == [tmp_path / "stdout.log.1"]
        assert log.stat().st_size == 0
        assert (tmp_path / "stdout.log.1").read_bytes().endswith(b"newest\n")
        os.write(writer, b"after\n")
        assert log.read_bytes() == b"after\n"
        assert not cap_logs([tmp_path], 100_000)
    finally:
        os.close(writer)


def test_logs_that_are_small_each_are_cut_when_they_are_large_together(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"{number}.log").write_bytes(b"x" * 900)
    (tmp_path / "0.log.1").write_bytes(b"x" * 900)
    (tmp_path / "0.log.old").write_bytes(b"x" * 900)
    (tmp_path / "results.csv").write_bytes(b"x" * 9000)
    assert len(cap_logs([tmp_path], 8000)) == 12
    assert sum(path.stat().st_size for path in tmp_path.glob("*.log*")) <= 4000
    assert (tmp_path / "results.csv").stat().st_size == 9000
    assert not cap_logs([tmp_path], 8000)


def test_what_is_kept_of_a_flood_is_bounded_though_it_continues_while_it_is_copied(tmp_path: Path) -> None:
    log = tmp_path / "stdout.log"
    log.write_bytes(b"x" * (4 << 20))
    is_over = threading.Event()

    def write_on() -> None:
        with log.open("ab") as stream:
            while not is_over.is_set():
                stream.write(b"y" * (1 << 20))

    writer = threading.Thread(target=write_on)
    writer.start()
    try:
        assert cap_logs([tmp_path], 1 << 20)
    finally:
        is_over.set()
        writer.join()
    assert (tmp_path / "stdout.log.1").stat().st_size == 1 << 19


def test_a_log_that_is_not_appended_to_is_not_cut_for_its_hole(tmp_path: Path) -> None:
    with (tmp_path / "own.log").open("wb", buffering=0) as stream:
        stream.write(b"x" * (2 << 20))
        assert cap_logs([tmp_path], 1 << 20)
        stream.write(b"next line\n")
        assert not cap_logs([tmp_path], 1 << 20)
