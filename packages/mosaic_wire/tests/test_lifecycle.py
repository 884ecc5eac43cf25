"""Lifecycle events: the spool that loses nothing and counts nothing twice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mosaic_wire.lifecycle import (
    MAX_EVENT_BYTES,
    MAX_LINE_BYTES,
    LifecycleKind,
    LifecycleReader,
    LifecycleSpool,
    RunLifecycleEvent,
)

RUN_ID = "01M7F8P2TF767091SW55X7DC97"
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lifecycle.jsonl"


@given(kind=st.sampled_from(LifecycleKind), payload=st.dictionaries(st.text(), JSON_VALUES, max_size=5))
def test_an_event_survives_the_line(kind: LifecycleKind, payload: dict[str, object]) -> None:
    event = RunLifecycleEvent(kind, RUN_ID, 12.5, 3, payload, 2)
    assert RunLifecycleEvent.from_line(event.to_line()) == event
    assert event.to_line().count("\n") == 1


@given(st.binary(max_size=200))
def test_no_bytes_crash_the_parser(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        RunLifecycleEvent.from_line(data)


def test_values_that_are_not_json_do_not_lose_the_event(tmp_path: Path) -> None:
    class Scalar:
        def item(self) -> float:
            return 2.5

    payload = {"nan": float("nan"), "path": tmp_path, "scalar": Scalar(), "set": {1}, "odd": "\udc80", 3: b"x"}
    event = RunLifecycleEvent.from_line(RunLifecycleEvent(LifecycleKind.HEARTBEAT, RUN_ID, 1, 1, payload).to_line())  # type: ignore[arg-type]
    assert event.payload == {
        "nan": None,
        "path": str(tmp_path),
        "scalar": 2.5,
        "set": [1],
        "odd": "\udc80",
        "3": "b'x'",
    }


@pytest.mark.parametrize(
    "line",
    [
        '{"event":"run_started","run_id":"x","timestamp":1,"seq":0}',
        '{"event":"run_started","run_id":"x","timestamp":1,"seq":true}',
        '{"event":"run_started","run_id":"x","timestamp":1,"seq":1e3}',
        '{"event":"run_started","run_id":"x","timestamp":1,"seq":99999999999999999999}',
        '{"event":"run_started","run_id":"x","timestamp":NaN,"seq":1}',
        '{"event":"run_started","run_id":"x","timestamp":1' + "0" * 400 + ',"seq":1}',
        '{"event":"run_started","run_id":7,"timestamp":1,"seq":1}',
        '{"event":"no_such","run_id":"x","timestamp":1,"seq":1}',
        '{"event":["run_started"],"run_id":"x","timestamp":1,"seq":1}',
        '{"event":"run_started","run_id":"x","timestamp":1,"seq":1,"payload":[]}',
        '{"event":"run_started","run_id":"x","timestamp":1,"seq":1' + "0" * 5000 + "}",
        '{"event":"run_started","run_id":"x","timestamp":1,"seq":1,"checksum":"crc32:00000000"}',
    ],
)
def test_what_is_not_an_event_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        RunLifecycleEvent.from_line(line)


def test_a_line_of_another_writer_needs_no_checksum() -> None:
    event = RunLifecycleEvent.from_line('{"event":"run_started","payload":{},"run_id":"x","timestamp":1.5,"seq":4}')
    assert (event.event, event.seq, event.attempt) == (LifecycleKind.RUN_STARTED, 4, 1)


def test_the_reader_returns_only_what_is_new(path: Path) -> None:
    spool, reader = LifecycleSpool(path, RUN_ID), LifecycleReader(path)
    assert reader.read() == []
    spool.append(LifecycleKind.RUN_STARTED)
    assert [event.seq for event in reader.read()] == [1]
    spool.append(LifecycleKind.PAUSED)
    spool.append(LifecycleKind.RESUMED)
    assert [event.seq for event in reader.read()] == [2, 3]
    assert reader.read() == []
    spool.close()


def test_a_reader_that_starts_later_skips_what_was_applied(path: Path) -> None:
    spool = LifecycleSpool(path, RUN_ID)
    for _ in range(5):
        spool.append(LifecycleKind.HEARTBEAT)
    spool.close()
    assert [event.seq for event in LifecycleReader(path, after_seq=3).read()] == [4, 5]


def test_numbering_continues_in_the_next_attempt(path: Path) -> None:
    first = LifecycleSpool(path, RUN_ID)
    first.append(LifecycleKind.RUN_STARTED)
    first.close()
    second = LifecycleSpool(path, RUN_ID, attempt=2)
    event = second.append(LifecycleKind.RUN_STARTED)
    second.close()
    assert (event.seq, event.attempt) == (2, 2)


def test_a_line_still_being_written_is_left_for_later(path: Path) -> None:
    line = RunLifecycleEvent(LifecycleKind.RUN_STARTED, RUN_ID, 1, 1).to_line().encode()
    reader = LifecycleReader(path)
    for length in range(len(line)):
        path.write_bytes(line[:length])
        assert reader.read() == []
    path.write_bytes(line)
    assert [event.seq for event in reader.read()] == [1]


def test_a_torn_last_line_does_not_swallow_the_next_one(path: Path) -> None:
    path.write_bytes(RunLifecycleEvent(LifecycleKind.RUN_STARTED, RUN_ID, 1, 1).to_line().encode() + b'{"event":"che')
    spool = LifecycleSpool(path, RUN_ID)
    spool.append(LifecycleKind.RUN_COMPLETED)
    spool.close()
    reader = LifecycleReader(path)
    assert [event.seq for event in reader.read()] == [1, 2]


def test_a_disk_that_takes_half_a_line_costs_that_line_only(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = LifecycleSpool(path, RUN_ID)
    spool.append(LifecycleKind.RUN_STARTED)
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:20]))
    with pytest.raises(OSError, match="only 20 of"):
        spool.append(LifecycleKind.CHECKPOINT_SAVED)
    monkeypatch.undo()
    spool.append(LifecycleKind.RUN_FAILED)
    spool.close()
    reader = LifecycleReader(path)
    assert [(event.seq, event.event) for event in reader.read()] == [(1, "run_started"), (2, "run_failed")]


def test_a_long_foreign_line_is_skipped(path: Path) -> None:
    reader = LifecycleReader(path)
    with path.open("ab") as stream:
        for _ in range(3):  # it arrives in pieces, each of them longer than a line may be
            stream.write(b"x" * (MAX_LINE_BYTES + 5))
            stream.flush()
            assert reader.read() == []
        stream.write(b"\n" + RunLifecycleEvent(LifecycleKind.RUN_STARTED, RUN_ID, 1, 1).to_line().encode())
    assert [event.seq for event in reader.read()] == [1]


def test_a_line_of_a_million_characters_is_read(path: Path) -> None:
    text = '{"event":"heartbeat","run_id":"x","timestamp":1,"seq":1,"payload":{"log":"' + "a" * 1_000_000 + '"}}\n'
    path.write_text(text)
    assert len(LifecycleReader(path).read()[0].payload["log"]) == 1_000_000


@pytest.mark.parametrize(
    "payload",
    [
        {"error": "e" * 1_000_000, "step": 7},
        {"error": "é" * 1_000_000, "step": 7},
        {"step": 7, "list": ["x" * 9000] * 900},
        {str(number): "x" for number in range(100_000)},
        {"k" * 1_000_000: 1},
    ],
)
def test_an_ending_with_a_huge_payload_is_shortened_not_lost(path: Path, payload: dict[str, object]) -> None:
    spool = LifecycleSpool(path, RUN_ID)
    spool.append(LifecycleKind.RUN_FAILED, payload)
    spool.close()
    assert path.stat().st_size <= MAX_EVENT_BYTES
    [event] = LifecycleReader(path).read()
    assert event.event is LifecycleKind.RUN_FAILED
    assert event.payload["shortened"] is True
    assert event.payload.get("step", 7) == 7


def test_a_file_that_became_shorter_is_read_from_its_beginning(path: Path) -> None:
    reader = LifecycleReader(path)
    path.write_text("x" * 5000 + "\n")
    reader.read()
    path.write_text(RunLifecycleEvent(LifecycleKind.RUN_STARTED, RUN_ID, 1, 1).to_line())
    assert [event.seq for event in reader.read()] == [1]
