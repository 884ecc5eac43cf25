"""The metric bridge: every point once, whatever the daemon answers, and no more often than it wants."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from mosaic_wire.bridge import BYTES_A_POINT, MetricBridge
from mosaic_wire.event_files import ScalarEventWriter
from mosaic_wire.proto import trainer_pb2 as messages
from mosaic_wire.telemetry import TelemetryPublisher, send_episodes
from mosaic_wire.testing import wait_until

Answer = messages.PublishRunMetricsResponse


class Daemon:
    """Takes batches as the real one does: those that begin where the last ended."""

    def __init__(self) -> None:
        self.position = ""
        self.values: list[float] = []
        self.batches: list[int] = []
        self.answers: list[Answer | None] = []
        """What it says instead, in this order"""
        self.credits, self.interval_s = 50_000, 0.0

    def publish_metrics(self, request: messages.PublishRunMetricsRequest) -> Answer | None:
        if self.answers:
            return self.answers.pop(0)
        if request.before_json != self.position:
            return Answer(accepted=False, position_json=self.position, credits=self.credits)
        new = [value for folder in request.folders for column in folder.columns for value in column.values]
        self.values += new
        self.batches.append(len(new))
        self.position = request.after_json
        return Answer(accepted=True, credits=self.credits, interval_s=self.interval_s)


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


@pytest.fixture
def write(tmp_path: Path):
    writer, count = ScalarEventWriter(tmp_path), 0

    def write(points: int) -> None:
        nonlocal count
        for _ in range(points):
            writer.add_scalars({"a": count}, count)
            count += 1

    yield write
    writer.close()


Write = Callable[[int], None]


def test_what_is_new_is_sent_and_silence_is_not(tmp_path: Path, daemon: Daemon, write: Write) -> None:
    bridge = MetricBridge("run", tmp_path, daemon)
    assert bridge.poll() is None
    write(5)
    assert bridge.poll() is None
    assert bridge.poll() is None
    write(2)
    bridge.poll()
    assert daemon.values == list(range(7))
    assert daemon.batches == [5, 2]


def test_what_did_not_arrive_is_sent_again(tmp_path: Path, daemon: Daemon, write: Write) -> None:
    bridge = MetricBridge("run", tmp_path, daemon)
    write(3)
    daemon.answers = [None, None]
    for _ in range(3):
        assert bridge.poll() is None
    write(1)
    bridge.poll()
    assert daemon.values == [0, 1, 2, 3]


def test_a_bridge_that_is_sent_away_comes_again_later_with_one_longer_batch(
    tmp_path: Path, daemon: Daemon, write: Write
) -> None:
    bridge = MetricBridge("run", tmp_path, daemon)
    write(3)
    bridge.poll()
    write(3)
    daemon.answers = [Answer(accepted=False, credits=0, retry_after_s=1.5)]
    assert bridge.poll() == 1.5
    write(3)
    assert bridge.poll() is None
    assert daemon.values == list(range(9))
    assert daemon.batches == [3, 6]


def test_no_batch_is_larger_than_the_credits(tmp_path: Path, daemon: Daemon, write: Write) -> None:
    daemon.credits = 10
    bridge = MetricBridge("run", tmp_path, daemon)
    daemon.answers = [Answer(accepted=False, credits=10)]  # it learns of them with its first answer
    write(1)
    bridge.poll()
    write(200)
    while bridge.poll() == 0.0:
        pass
    assert daemon.values == list(range(201))
    assert max(daemon.batches) <= 10 * BYTES_A_POINT / 30
    assert len(daemon.batches) > 10


@pytest.mark.parametrize("knows", ["nothing", "the first", "nonsense"])
def test_it_continues_where_the_daemon_stands(tmp_path: Path, daemon: Daemon, write: Write, knows: str) -> None:
    """A daemon that restarted may have less than it had acknowledged, or have lost everything."""
    bridge = MetricBridge("run", tmp_path, daemon)
    write(4)
    bridge.poll()
    first = daemon.position
    write(4)
    bridge.poll()
    daemon.position, daemon.values = {
        "nothing": ("", []),
        "the first": (first, [0, 1, 2, 3]),
        "nonsense": ('{"version": 9}', []),
    }[knows]
    write(1)
    looks = [bridge.poll() for _ in range(3)]
    if knows == "nonsense":
        assert daemon.values == []  # it never takes what we have, and we do not hammer at it
        daemon.position = ""
        while bridge.poll() == 0.0:
            pass
    else:
        assert looks[0] == 0.0
    assert daemon.values == list(range(9))


def test_it_looks_as_often_as_the_daemon_wants_to_hear(tmp_path: Path, daemon: Daemon, write: Write) -> None:
    daemon.interval_s = 30.0
    bridge = MetricBridge("run", tmp_path, daemon, interval_s=0.01)
    write(1)
    bridge.start()
    assert wait_until(lambda: daemon.values == [0])
    write(1)
    assert not wait_until(lambda: len(daemon.values) > 1, timeout_s=0.3)
    bridge.stop()  # an end does not wait
    assert daemon.values == [0, 1]


class Telemetry:
    """The end of a telemetry lane that stores everything."""

    def __init__(self) -> None:
        self.rows: list[messages.RunEpisode] = []

    def publish_steps(self, request: messages.PublishRunStepsRequest) -> messages.PublishTelemetryResponse:
        raise AssertionError("no steps are sent")

    def publish_episodes(self, request: messages.PublishRunEpisodesRequest) -> messages.PublishTelemetryResponse:
        self.rows += request.episodes
        return messages.PublishTelemetryResponse(stored_seq=len(self.rows), credits=100, next_episode=len(self.rows))


def test_episodes_in_event_files_become_rows_once_each(tmp_path: Path, daemon: Daemon) -> None:
    lane, writer = Telemetry(), ScalarEventWriter(tmp_path)
    telemetry = TelemetryPublisher("run", lane, steps=False)
    telemetry.start()
    bridge = MetricBridge("run", tmp_path, daemon, on_accepted=lambda batches: send_episodes(telemetry, batches))
    for step, (episodic_return, length) in enumerate([(9.0, 9), (12.0, 12), (12.0, 11)]):
        writer.add_scalars({"charts/episodic_return": episodic_return, "charts/episodic_length": length}, step)
    daemon.answers = [None, Answer(accepted=False, credits=100)]
    while bridge.poll() == 0.0 or not daemon.values:
        pass
    writer.add_scalars({"charts/episodic_return": 3.0}, 7)  # a script that reports no length
    bridge.poll()
    assert telemetry.close() == 0
    writer.close()
    reported = [(row.episode, row.episodic_return, row.length, json.loads(row.info_json)["step"]) for row in lane.rows]
    assert reported == [(0, 9.0, 9, 0), (1, 12.0, 12, 1), (2, 12.0, 11, 2), (3, 3.0, 0, 7)]
