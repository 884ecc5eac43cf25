"""Event files of real writers, read while they grow, cut, torn, damaged, replaced and continued after a restart."""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mosaic_wire import event_bulk, event_files
from mosaic_wire.event_files import EventFileReader, EventFolderReader, ScalarEventWriter
from mosaic_wire.event_records import EventBatch, Scalar, crc32c, frame, masked, parse_event
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import (
    DT_BOOL,
    DT_DOUBLE,
    DT_FLOAT,
    DT_HALF,
    DT_INT32,
    DT_INT64,
    DT_STRING,
    DT_UINT8,
    DT_UINT64,
)
from tensorboard.summary import Writer
from tensorboard.summary.writer.event_file_writer import EventFileWriter

FIRST = "events.out.tfevents.1700000000.host.1.0"
VERSION = Event(wall_time=1.7e9, file_version="brain.Event:2")


@pytest.fixture(params=["carefully", "in bulk"])
def bulk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Both ways of reading, however little there is to read."""
    monkeypatch.setattr(event_files, "_WORTH_USING_NUMPY", 0)
    monkeypatch.setattr(event_files, "_WORTH_LOADING_NUMPY", 0)
    return bool(request.param == "in bulk")


def scalar(tag: str, value: float, step: int, wall_time: float = 1.7e9) -> Event:
    return Event(wall_time=wall_time, step=step, summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)]))


def tensor(tag: str, value: TensorProto, step: int = 1, plugin: str = "scalars") -> Event:
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin)) if plugin else None
    return Event(step=step, summary=Summary(value=[Summary.Value(tag=tag, tensor=value, metadata=metadata)]))


def text(tag: str, content: str, step: int = 0) -> Event:
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    return tensor(tag, TensorProto(dtype=DT_STRING, string_val=[content.encode()], tensor_shape=shape), step, "text")


def session_start(step: int) -> Event:
    return Event(step=step, session_log=SessionLog(status=SessionLog.START))


def histogram(tag: str, size: int) -> Event:
    histo = HistogramProto(min=0, max=1, bucket=[0.5] * size, bucket_limit=[1.0] * size)
    return Event(step=3, summary=Summary(value=[Summary.Value(tag=tag, histo=histo)]))


def records(events: Iterable[Event]) -> list[bytes]:
    return [frame(event.SerializeToString()) for event in events]


def training(count: int, *, tags: int = 3, seed: int = 1) -> list[Event]:
    """The events of a short run: steps of one to four bytes, every value another one."""
    source, step, events = random.Random(seed), 0, [VERSION]
    for index in range(count):
        step += source.randrange(1, 2000)
        events += [scalar(f"charts/{'x' * tag}", source.gauss(0, 1), step, 1.7e9 + index) for tag in range(tags)]
    return events


def points_of(events: Iterable[Event]) -> list[Scalar]:
    return [
        Scalar(value.tag, event.step, event.wall_time, value.simple_value)
        for event in events
        for value in event.summary.value
    ]


def by_tag(points: Iterable[Scalar]) -> list[Scalar]:
    """As columns have them: the tags sorted, the points of each in their order."""
    return sorted(points, key=lambda point: point.tag)


def read_all(reader: EventFileReader | EventFolderReader, max_bytes: int = 1 << 20) -> Iterator[EventBatch]:
    while True:
        batches = reader.read(max_bytes)
        yield from [batches] if isinstance(batches, EventBatch) else batches
        if not reader.has_more:
            return


class Curves:
    """A consumer that does what `EventBatch` asks for."""

    def __init__(self) -> None:
        self.points: list[Scalar] = []
        self.resets = 0
        self.problems: list[Any] = []

    def apply(self, batches: Iterable[EventBatch]) -> None:
        for batch in batches:
            if batch.is_reset:
                self.points, self.resets = [], self.resets + 1
            if batch.drop_from is not None:
                self.points = [point for point in self.points if point.step < batch.drop_from]
            self.points += batch.scalars()
            self.problems += batch.problems


# ---------------------------------------------------------------- checksums


def test_the_checksum_is_castagnolis() -> None:
    assert crc32c(b"") == 0
    assert crc32c(b"123456789") == 0xE3069283  # the check value of the catalog of CRCs
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4


def test_many_checksums_at_once_are_the_same() -> None:
    data = random.Random(2).randbytes(70_000)
    lengths = [*range(300), 1023, 1024, 1025, 4096, 65_000]
    starts = [index % 5000 for index in range(len(lengths))]
    many = event_bulk.crc32c_of_many(np.frombuffer(data, np.uint8), np.array(starts), np.array(lengths))
    expected = [crc32c(data[start : start + length]) for start, length in zip(starts, lengths, strict=True)]
    assert many.tolist() == expected
    assert event_bulk.crc32c_of(data) == crc32c(data)


# ---------------------------------------------------------------- what writers write


def test_what_tensorboards_writer_writes_is_read_back_exactly(tmp_path: Path, bulk: bool) -> None:
    events = training(100)[1:]
    writer = EventFileWriter(str(tmp_path))
    for event in events:
        writer.add_event(event)
    writer.close()
    (batch,) = EventFolderReader(tmp_path, bulk=bulk).read()
    assert by_tag(batch.scalars()) == by_tag(points_of(events))
    assert not batch.problems


def test_tensor_format_scalars_of_tensorboard_2_are_read_back(tmp_path: Path, bulk: bool) -> None:
    writer = Writer(str(tmp_path))
    values = [random.Random(3).random() for _ in range(50)]
    for step, value in enumerate(values):
        writer.add_scalar("loss", value, step)
        writer.add_scalar("count", step, step)
    writer.close()
    (batch,) = EventFolderReader(tmp_path, bulk=bulk).read()
    assert list(batch.columns["loss"].values) == [float(np.float32(value)) for value in values]
    assert list(batch.columns["count"].values) == list(range(50))
    assert list(batch.columns["loss"].steps) == list(range(50))


@pytest.mark.slow
def test_what_torchs_summary_writer_writes_is_read_back(tmp_path: Path, bulk: bool) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        for step in range(50):
            writer.add_scalar("charts/SPS", step * 0.5, step)
            writer.add_scalar("new", step * 0.25, step, new_style=True)
            writer.add_scalar("precise", step / 3, step, new_style=True, double_precision=True)
        writer.add_text("hyperparameters", "|lr|0.1|")
        writer.add_histogram("weights", np.arange(100), 1)
    (batch,) = EventFolderReader(tmp_path, bulk=bulk, texts=True).read()
    assert list(batch.columns["charts/SPS"].values) == [step * 0.5 for step in range(50)]
    assert list(batch.columns["new"].values) == [step * 0.25 for step in range(50)]
    assert list(batch.columns["precise"].values) == [step / 3 for step in range(50)]
    assert [(found.tag, found.text) for found in batch.texts] == [("hyperparameters/text_summary", "|lr|0.1|")]
    assert set(batch.columns) == {"charts/SPS", "new", "precise"}


ONE_NUMBER = {
    "float_val": (TensorProto(dtype=DT_FLOAT, float_val=[1.5]), 1.5),
    "double_val": (TensorProto(dtype=DT_DOUBLE, double_val=[0.1]), 0.1),
    "int_val": (TensorProto(dtype=DT_INT32, int_val=[-3]), -3),
    "int64_val": (TensorProto(dtype=DT_INT64, int64_val=[-(2**40)]), -(2**40)),
    "uint64_val": (TensorProto(dtype=DT_UINT64, uint64_val=[2**63]), 2.0**63),
    "bool_val": (TensorProto(dtype=DT_BOOL, bool_val=[True]), 1),
    "half_val": (TensorProto(dtype=DT_HALF, half_val=[0x3E00]), 1.5),
    "float content": (TensorProto(dtype=DT_FLOAT, tensor_content=struct.pack("<f", 2.5)), 2.5),
    "double content": (TensorProto(dtype=DT_DOUBLE, tensor_content=struct.pack("<d", 0.1)), 0.1),
    "int32 content": (TensorProto(dtype=DT_INT32, tensor_content=struct.pack("<i", -7)), -7),
    "int64 content": (TensorProto(dtype=DT_INT64, tensor_content=struct.pack("<q", 2**40)), 2**40),
    "uint8 content": (TensorProto(dtype=DT_UINT8, tensor_content=b"\xff"), 255),
    "half content": (TensorProto(dtype=DT_HALF, tensor_content=struct.pack("<e", 0.5)), 0.5),
    "shape [1]": (
        TensorProto(dtype=DT_FLOAT, float_val=[4.0], tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])),
        4.0,
    ),
}


@pytest.mark.parametrize("plugin", ["scalars", ""])
@pytest.mark.parametrize("kind", ONE_NUMBER)
def test_a_tensor_with_one_number_is_a_scalar(tmp_path: Path, bulk: bool, kind: str, plugin: str) -> None:
    value, expected = ONE_NUMBER[kind]
    path = tmp_path / FIRST
    path.write_bytes(b"".join(records(tensor("x", value, step, plugin) for step in (1, 2))))
    batch = EventFileReader(path, bulk=bulk).read()
    assert list(batch.scalars()) == [Scalar("x", 1, 0.0, expected), Scalar("x", 2, 0.0, expected)]


FOREIGN = {
    "graph": Event(graph_def=b"\x0a\x03abc" * 500),
    "small histogram": histogram("h", 2),
    "large histogram": histogram("h", 3000),
    "image": Event(summary=Summary(value=[Summary.Value(tag="i", image=Summary.Image(encoded_image_string=b"png"))])),
    "text": text("hyperparameters/text_summary", "|a|b|"),
    "several numbers": tensor("t", TensorProto(dtype=DT_FLOAT, float_val=[1, 2])),
    "hparams": tensor("_hparams_", TensorProto(dtype=DT_FLOAT, float_val=[0]), plugin="hparams"),
    "nothing": Event(),
    "end of a session": Event(session_log=SessionLog(status=SessionLog.STOP)),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_other_records_are_passed_over(tmp_path: Path, bulk: bool, kind: str) -> None:
    path = tmp_path / FIRST
    path.write_bytes(b"".join(records([VERSION, scalar("a", 1, 1), FOREIGN[kind], scalar("a", 2, 2)])))
    batch = EventFileReader(path, bulk=bulk).read()
    assert list(batch.columns) == ["a"]
    assert list(batch.columns["a"].values) == [1, 2]
    assert not batch.problems
    assert not batch.texts
    assert batch.drop_from is None


def test_texts_come_when_asked_for(tmp_path: Path, bulk: bool) -> None:
    path = tmp_path / FIRST
    path.write_bytes(b"".join(records([VERSION, text("hyperparameters/text_summary", "|lr|ü|", 4), scalar("a", 1, 5)])))
    batch = EventFileReader(path, bulk=bulk, texts=True).read()
    assert batch.texts == [("hyperparameters/text_summary", 4, 0.0, "|lr|ü|")]


@pytest.mark.expects_log("Purging expired events")
def test_event_accumulator_says_the_same(tmp_path: Path, bulk: bool) -> None:
    events = [*training(40), *FOREIGN.values(), session_start(20_000), *training(40, seed=2)[1:]]
    (tmp_path / FIRST).write_bytes(b"".join(records(events)))
    peer = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0})
    peer.Reload()
    ours = Curves()
    ours.apply(EventFolderReader(tmp_path, bulk=bulk).read())
    theirs = [
        Scalar(tag, point.step, point.wall_time, point.value)
        for tag in peer.Tags()["scalars"]
        for point in peer.Scalars(tag)
    ]
    assert len(ours.points) > 150
    assert by_tag(ours.points) == by_tag(theirs)


def test_several_values_in_one_event_are_all_read(tmp_path: Path, bulk: bool) -> None:
    events = [
        Event(step=step, summary=Summary(value=[Summary.Value(tag=tag, simple_value=step * 0.5) for tag in "abca"]))
        for step in range(300)
    ]
    (tmp_path / FIRST).write_bytes(b"".join(records(events)))
    (batch,) = EventFolderReader(tmp_path, bulk=bulk).read()
    assert by_tag(batch.scalars()) == by_tag(points_of(events))


def test_a_tag_of_its_own_for_each_record_is_no_trouble(tmp_path: Path, bulk: bool) -> None:
    events = [scalar(f"layer_{index:04}", index, index) for index in range(500)]
    (tmp_path / FIRST).write_bytes(b"".join(records(events)))
    (batch,) = EventFolderReader(tmp_path, bulk=bulk).read()
    assert by_tag(batch.scalars()) == by_tag(points_of(events))


numbers = st.floats(width=32, allow_nan=False)
steps = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300)
tags = st.text(max_size=6) | st.sampled_from(["a", "bb", "ccc"])
any_event = st.one_of(
    st.builds(scalar, tags, numbers, steps, st.floats(allow_nan=False)),
    st.builds(text, tags, st.text(max_size=20), steps),
    st.builds(session_start, st.integers(0, 300)),
    st.sampled_from([*FOREIGN.values(), *(tensor("t", value) for value, _ in ONE_NUMBER.values())]),
)


def decode_carefully(data: bytes, folder: Path) -> EventBatch:
    path = folder / FIRST
    path.write_bytes(data)
    return EventFileReader(path, bulk=False, texts=True).read()


@settings(deadline=None, max_examples=150)
@given(events=st.lists(any_event, max_size=30))
def test_both_ways_of_reading_agree(tmp_path_factory: pytest.TempPathFactory, events: list[Event]) -> None:
    data = b"".join(records(events))
    carefully = decode_carefully(data, tmp_path_factory.mktemp("events"))
    at_once = EventBatch()
    done = event_bulk.decode(data, at_once, texts=True)
    assert done == len(data)
    assert carefully.columns == at_once.columns
    assert carefully.texts == at_once.texts
    assert carefully.drop_from == at_once.drop_from
    assert not carefully.problems


@settings(deadline=None, max_examples=300)
@given(content=st.binary(max_size=60))
def test_content_that_is_no_event_is_reported_or_says_nothing(content: bytes) -> None:
    with suppress(ValueError):
        parse_event(content)


def test_a_record_without_an_event_is_reported(tmp_path: Path, bulk: bool) -> None:
    path = tmp_path / FIRST
    path.write_bytes(b"".join([*records([scalar("a", 1, 1)]), frame(b"\xff\xff\xff"), *records([scalar("a", 2, 2)])]))
    batch = EventFileReader(path, bulk=bulk).read()
    assert list(batch.columns["a"].values) == [1, 2]
    assert ["no event" in str(problem) for problem in batch.problems] == [True]


# ---------------------------------------------------------------- partial, damaged


def test_a_file_cut_at_any_byte_gives_its_whole_records_and_later_the_rest(tmp_path: Path, bulk: bool) -> None:
    events = training(4)
    parts = records(events)
    data, path = b"".join(parts), tmp_path / FIRST
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        reader = EventFileReader(path, bulk=bulk)
        before, whole, end = reader.read(), 0, 0
        while whole < len(parts) and end + len(parts[whole]) <= cut:
            end += len(parts[whole])
            whole += 1
        assert by_tag(before.scalars()) == by_tag(points_of(events[:whole]))
        assert (reader.offset, reader.waiting_bytes) == (end, cut - end)
        path.write_bytes(data)
        after = reader.read()
        assert by_tag(after.scalars()) == by_tag(points_of(events[whole:]))
        assert not before.problems + after.problems
        assert not after.is_reset


def test_a_flipped_bit_never_goes_unnoticed(tmp_path: Path, bulk: bool) -> None:
    source, events = random.Random(4), training(20)
    parts = records(events)
    data, path = b"".join(parts), tmp_path / FIRST
    ends = np.cumsum([len(part) for part in parts])
    for _ in range(1000):
        place = source.randrange(len(data) * 8)
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        reader = EventFileReader(path, bulk=bulk)
        batch = reader.read()
        hit = int(np.searchsorted(ends, place // 8, side="right"))
        assert by_tag(batch.scalars()) == by_tag(points_of(events[:hit] + events[hit + 1 :]))
        assert [problem.offset for problem in batch.problems] == [int(ends[hit]) - len(parts[hit])]
        assert not reader.read().problems  # reported once


def test_after_damage_at_the_end_the_next_record_is_found(tmp_path: Path, bulk: bool) -> None:
    parts, path = records([scalar("a", value, value) for value in range(4)]), tmp_path / FIRST
    for place in range(len(parts[1])):
        damaged = bytearray(parts[1])
        damaged[place] ^= 0x10
        path.write_bytes(parts[0] + damaged)
        reader = EventFileReader(path, bulk=bulk)
        assert len(reader.read().problems) == 1
        reader = EventFileReader(path, bulk=bulk, position=json.loads(json.dumps(reader.position())))
        path.write_bytes(parts[0] + damaged + parts[2] + parts[3])
        batch = reader.read()
        assert list(batch.columns["a"].values) == [2, 3]
        assert not batch.problems


def test_a_record_torn_by_a_full_disk_costs_only_itself(tmp_path: Path, bulk: bool) -> None:
    parts, path = records([scalar("a", value, value) for value in range(6)]), tmp_path / FIRST
    for cut in range(1, len(parts[1])):
        path.write_bytes(b"".join([parts[0], parts[1][:cut], *parts[2:]]))
        batch = EventFileReader(path, bulk=bulk).read()
        assert list(batch.columns["a"].values) == [0, 2, 3, 4, 5]
        assert len(batch.problems) == 1


def test_a_hole_of_zeros_is_reported_once_and_passed(tmp_path: Path, bulk: bool) -> None:
    parts, path = records([scalar("a", value, value) for value in range(2)]), tmp_path / FIRST
    path.write_bytes(parts[0] + bytes(5000) + parts[1])
    curves, reader = Curves(), EventFileReader(path, bulk=bulk)
    curves.apply(read_all(reader, 100))
    assert [point.value for point in curves.points] == [0, 1]
    assert len(curves.problems) == 1


def test_a_file_of_something_else_is_reported(tmp_path: Path, bulk: bool) -> None:
    (tmp_path / FIRST).write_bytes(random.Random(5).randbytes(10_000))
    reader = EventFileReader(tmp_path / FIRST, bulk=bulk)
    batch = reader.read()
    assert not batch.columns
    assert "byte 0 is damaged" in str(batch.problems[0])
    assert not reader.read()


def test_a_length_beyond_reason_is_damage(tmp_path: Path, bulk: bool) -> None:
    header = struct.pack("<Q", 2**40)
    header += struct.pack("<I", masked(crc32c(header)))
    (tmp_path / FIRST).write_bytes(header + b"".join(records([scalar("a", 1, 1)])))
    batch = EventFileReader(tmp_path / FIRST, bulk=bulk).read()
    assert len(batch) == len(batch.problems) == 1


# ---------------------------------------------------------------- growing files, folders, restarts


def test_no_file_and_an_empty_file_say_nothing(tmp_path: Path, bulk: bool) -> None:
    reader = EventFileReader(tmp_path / FIRST, bulk=bulk)
    assert not reader.read()
    (tmp_path / FIRST).touch()
    assert not reader.read()
    assert not EventFolderReader(tmp_path / "later", bulk=bulk).read()


def test_a_record_longer_than_the_limit_is_taken_whole(tmp_path: Path, bulk: bool) -> None:
    events = [scalar("a", 1, 1), histogram("h", 20_000), scalar("a", 2, 2)]
    (tmp_path / FIRST).write_bytes(b"".join(records(events)))
    curves = Curves()
    curves.apply(read_all(EventFileReader(tmp_path / FIRST, bulk=bulk), 64))
    assert [point.value for point in curves.points] == [1, 2]


def test_a_file_is_followed_while_a_writer_writes(tmp_path: Path, bulk: bool) -> None:
    writer, reader, curves = EventFileWriter(str(tmp_path)), EventFolderReader(tmp_path, bulk=bulk), Curves()
    events = training(30)[1:]
    for index, event in enumerate(events):
        writer.add_event(event)
        if index % 7 == 0:
            writer.flush()
            curves.apply(reader.read())
            assert by_tag(curves.points) == by_tag(points_of(events[: index + 1]))
    writer.close()
    curves.apply(reader.read())
    assert by_tag(curves.points) == by_tag(points_of(events))
    assert not curves.resets


def test_files_are_read_in_the_order_of_their_making_and_folders_apart(tmp_path: Path, bulk: bool) -> None:
    for number in (10, 2, 1):
        part = b"".join(records([scalar("a", number, number)]))
        (tmp_path / f"events.out.tfevents.1700000000.host.77.{number}").write_bytes(part)
    reader = EventFolderReader(tmp_path, bulk=bulk)
    (batch,) = reader.read()
    assert list(batch.columns["a"].values) == [1, 2, 10]
    (tmp_path / "loss_test" / "deep").mkdir(parents=True)
    (tmp_path / "loss_test" / "deep" / FIRST).write_bytes(b"".join(records([scalar("a", 5, 5)])))
    (tmp_path / "notes.txt").write_text("not an event file")
    (batch,) = reader.read()
    assert (batch.folder, list(batch.columns["a"].values)) == ("loss_test/deep", [5])
    assert not reader.read()


@pytest.mark.parametrize("seed", range(5))
def test_a_reader_that_restarts_all_the_time_loses_nothing_and_reports_nothing_twice(
    tmp_path: Path, bulk: bool, seed: int
) -> None:
    source, position, curves = random.Random(seed), None, Curves()
    streams = {f"{folder}{FIRST}{number}": training(60, seed=number) for folder in ("", "sub/") for number in (1, 2)}
    pending = {name: b"".join(records(events)) for name, events in streams.items()}
    (tmp_path / "sub").mkdir()
    has_more = True
    while any(pending.values()) or has_more:
        name = source.choice(list(pending))
        size = source.randrange(3000)
        with (tmp_path / name).open("ab") as stream:
            stream.write(pending[name][:size])
        pending[name] = pending[name][size:]
        reader = EventFolderReader(tmp_path, bulk=bulk, position=position)
        curves.apply(reader.read(source.randrange(50, 4000)))
        position, has_more = json.loads(json.dumps(reader.position())), reader.has_more
    expected = [point for events in streams.values() for point in points_of(events)]
    assert sorted(curves.points) == sorted(expected)
    assert not curves.resets
    assert not curves.problems


def test_a_position_of_something_else_is_refused(tmp_path: Path) -> None:
    for position in ({}, [], {"version": 2, "files": {}}, {"version": 1, "files": {FIRST: {"offset": "x"}}}):
        with pytest.raises(ValueError, match="not the position"):
            EventFolderReader(tmp_path, position=position)


def test_a_session_that_starts_again_takes_back_what_it_will_repeat(tmp_path: Path, bulk: bool) -> None:
    (tmp_path / FIRST).write_bytes(b"".join(records([VERSION, *(scalar("a", step, step) for step in range(10))])))
    reader, curves = EventFolderReader(tmp_path, bulk=bulk), Curves()
    curves.apply(reader.read())
    later = [VERSION, session_start(6), *(scalar("a", step + 100, step) for step in range(6, 9))]
    (tmp_path / FIRST.replace("17", "18")).write_bytes(b"".join(records(later)))
    curves.apply(reader.read())
    expected = [0, 1, 2, 3, 4, 5, 106, 107, 108]
    assert [point.value for point in curves.points] == expected
    afresh = Curves()
    afresh.apply(EventFolderReader(tmp_path, bulk=bulk).read())
    assert [point.value for point in afresh.points] == expected


REPLACEMENTS = {
    "shorter": lambda path, parts: path.write_bytes(b"".join(parts[:3])),
    "another one, longer": lambda path, parts: path.write_bytes(b"".join(reversed(parts)) + parts[0]),
    "empty": lambda path, parts: path.write_bytes(b""),
    "gone": lambda path, parts: path.unlink(),
}


@pytest.mark.parametrize("kind", REPLACEMENTS)
@pytest.mark.parametrize("restarted", [False, True])
def test_a_file_that_is_cut_or_replaced_is_reported_again(
    tmp_path: Path, bulk: bool, kind: str, restarted: bool
) -> None:
    parts = records([scalar("a", value, value) for value in range(8)])
    (tmp_path / FIRST).write_bytes(b"".join(parts))
    other = b"".join(records([scalar("b", 1, 1)]))
    (tmp_path / FIRST.replace("17", "18")).write_bytes(other)
    reader, curves = EventFolderReader(tmp_path, bulk=bulk), Curves()
    curves.apply(reader.read())
    REPLACEMENTS[kind](tmp_path / FIRST, parts)
    if restarted:
        reader = EventFolderReader(tmp_path, bulk=bulk, position=json.loads(json.dumps(reader.position())))
    curves.apply(reader.read())
    afresh = Curves()
    afresh.apply(EventFolderReader(tmp_path, bulk=bulk).read())
    assert curves.points == afresh.points
    assert curves.resets == 1
    assert not reader.read()


def test_a_copied_file_is_read_on(tmp_path: Path) -> None:
    """An imported run has other inodes and times; its content is what counts."""
    parts = records([scalar("a", value, value) for value in range(4)])
    (tmp_path / FIRST).write_bytes(b"".join(parts[:3]))
    reader = EventFolderReader(tmp_path)
    reader.read()
    (tmp_path / "copy").write_bytes(b"".join(parts))
    os.replace(tmp_path / "copy", tmp_path / FIRST)
    (batch,) = reader.read()
    assert list(batch.columns["a"].values) == [3]


def test_a_little_reading_does_not_load_numpy(tmp_path: Path) -> None:
    (tmp_path / FIRST).write_bytes(b"".join(records(training(20))))
    code = (
        "import sys; from pathlib import Path; from mosaic_wire.event_files import EventFolderReader; "
        "print(len(EventFolderReader(Path(sys.argv[1])).read()[0]), 'numpy' in sys.modules)"
    )
    argv = [sys.executable, "-c", code, str(tmp_path)]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split() == ["60", "False"]


@pytest.mark.expects_log("out of order event.step")  # TensorBoard says what it purges
def test_a_writer_that_resumes_lets_readers_drop_what_came_after(tmp_path: Path, bulk: bool) -> None:
    first = ScalarEventWriter(tmp_path)
    for step in range(6):
        first.add_scalars({"a": step}, step)
    first.close()
    # Another process has another file.
    (path,) = tmp_path.iterdir()
    path.rename(tmp_path / FIRST)
    second = ScalarEventWriter(tmp_path, resume_at=3)
    second.add_scalars({"a": 40}, 4)
    second.close()
    dropped = [batch.drop_from for batch in EventFolderReader(tmp_path, bulk=bulk).read()]
    assert 4 in dropped
    peer = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0}).Reload()
    assert [(point.step, point.value) for point in peer.Scalars("a")] == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 40)]
