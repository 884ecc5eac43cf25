"""Records of a known form are read without parsing: the same numbers, the same doubt about every byte."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
from mosaic_wire import event_records
from mosaic_wire.event_files import EventFileReader
from mosaic_wire.event_records import EventBatch, frame, parse_event
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary


def event(step: int, values: dict[str, float], wall_time: float = 1.7e9) -> bytes:
    summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
    return Event(wall_time=wall_time, step=step, summary=summary).SerializeToString()


def scalars(batch: EventBatch) -> dict[str, list[tuple[int, float, float]]]:
    return {
        tag: list(zip(column.steps, column.wall_times, column.values, strict=True))
        for tag, column in batch.columns.items()
    }


def expected(events: list[bytes]) -> dict[str, list[tuple[int, float, float]]]:
    """What parsing each one by itself gives."""
    found: dict[str, list[tuple[int, float, float]]] = {}
    for data in events:
        parsed = parse_event(data)
        for scalar in parsed.scalars:
            found.setdefault(scalar.tag.decode(), []).append((parsed.step, parsed.wall_time, scalar.value))
    return found


def read(path: Path) -> EventBatch:
    return EventFileReader(path, bulk=False).read()


def training(count: int, seed: int = 1) -> list[bytes]:
    """What ppo writes: episodes of two values, updates of nine, steps that grow by a byte now and then."""
    dice = random.Random(seed)
    events, step = [], 0
    for number in range(count):
        step += dice.randrange(1, 400)
        if number % 4 == 0:
            values = {f"losses/loss_{index}": dice.random() for index in range(9)}
        else:
            values = {"charts/episodic_return": dice.random() * 500, "charts/episodic_length": dice.randrange(500)}
        events.append(event(step, values, 1.7e9 + number + dice.random()))
    return events


@pytest.mark.parametrize("steps", [(0, 1, 127, 128), (2**14 - 1, 2**14, 2**35, -1, -(2**63), 2**63 - 1)])
def test_every_length_of_a_step_is_read(tmp_path: Path, steps: tuple[int, ...]) -> None:
    events = [event(step, {"a": float(index)}) for _ in range(3) for index, step in enumerate(steps)]
    (tmp_path / "f").write_bytes(b"".join(map(frame, events)))
    assert scalars(read(tmp_path / "f")) == expected(events)


def test_a_training_is_read_as_it_was_written_and_hardly_parsed(tmp_path: Path, monkeypatch) -> None:
    events = training(1_000)
    (tmp_path / "f").write_bytes(b"".join(map(frame, events)))
    target = expected(events)
    parsed = []
    monkeypatch.setattr("mosaic_wire.event_files.parse_event", lambda data: parsed.append(data) or parse_event(data))
    assert scalars(read(tmp_path / "f")) == target
    assert len(parsed) < 10


def test_no_flipped_bit_in_a_known_form_goes_unnoticed(tmp_path: Path) -> None:
    events = training(40)
    whole, dice = b"".join(map(frame, events)), random.Random(2)
    target = expected(events)
    for _ in range(600):
        damaged = bytearray(whole)
        damaged[dice.randrange(len(whole))] ^= 1 << dice.randrange(8)
        (tmp_path / "f").write_bytes(damaged)
        batch = read(tmp_path / "f")
        for tag, points in scalars(batch).items():
            assert set(points) <= set(target[tag])
        lost = sum(map(len, target.values())) - len(batch)
        # Damage at the very end looks like a record that is still being written.
        assert batch.problems or lost <= 9
        assert lost


def test_a_tag_for_every_record_costs_no_memory(tmp_path: Path, monkeypatch) -> None:
    made = []
    form = event_records._Form
    monkeypatch.setattr(event_records, "_Form", lambda *arguments: made.append(1) or form(*arguments))
    events = [event(step, {f"tag_{step:05d}": 1.0}) for step in range(1, 2_000)]
    (tmp_path / "f").write_bytes(b"".join(map(frame, events)))
    assert len(read(tmp_path / "f")) == 1_999
    assert len(made) == event_records.FIRST_FORMS


def test_other_numbers_than_floats_and_odd_values_are_read(tmp_path: Path) -> None:
    from tensorboard.compat.proto.tensor_pb2 import TensorProto

    def tensor(step: int, kind: int, content: bytes) -> bytes:
        value = Summary.Value(tag="t", tensor=TensorProto(dtype=kind, tensor_content=content))
        return Event(wall_time=1.0, step=step, summary=Summary(value=[value])).SerializeToString()

    events = [
        *(tensor(step, 2, struct.pack("<d", step * 0.1)) for step in range(1, 5)),
        *(tensor(step, 9, struct.pack("<q", -step)) for step in range(5, 9)),
        *(event(step, {"t": value}) for step, value in enumerate((float("nan"), float("inf"), -0.0), 9)),
    ]
    (tmp_path / "f").write_bytes(b"".join(map(frame, events)))
    assert repr(scalars(read(tmp_path / "f"))) == repr(expected(events))
