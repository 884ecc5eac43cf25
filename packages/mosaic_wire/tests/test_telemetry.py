"""The worker's end of the telemetry lane: values of any space, a daemon that is away, a backlog that is full."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from mosaic_wire.errors import TelemetryRefused
from mosaic_wire.proto import trainer_pb2 as messages
from mosaic_wire.telemetry import TelemetryPublisher, decode, encode
from mosaic_wire.testing import wait_until


class Daemon:
    """Takes what it is given, as long as it is there and has room."""

    def __init__(self, *, stored: int = 0, room: int = 10_000) -> None:
        self.steps: list[int] = []
        self.episodes: list[Any] = []
        self.away, self.room, self.stored, self.refuses = False, room, stored, False
        self.lock = threading.Lock()

    def publish_steps(self, request: messages.PublishRunStepsRequest) -> messages.PublishTelemetryResponse | None:
        with self.lock:
            if self.refuses:
                raise TelemetryRefused("not from you")
            if self.away:
                return None
            taken = [step.seq for step in request.steps][: self.room]
            self.steps += [seq for seq in taken if seq > self.stored]
            self.stored = max([self.stored, *taken])
            self.room -= len(taken)
            return messages.PublishTelemetryResponse(stored_seq=self.stored, credits=self.room)

    def publish_episodes(self, request: messages.PublishRunEpisodesRequest) -> messages.PublishTelemetryResponse | None:
        if self.away:
            return None
        self.episodes += request.episodes
        return messages.PublishTelemetryResponse(stored_seq=len(self.episodes), credits=100)


def take_steps(telemetry: TelemetryPublisher, count: int) -> None:
    for number in range(count):
        telemetry.step([number], 1, 0.5, terminated=False, truncated=False)


@pytest.mark.parametrize(
    "value",
    [
        3,
        2.5,
        None,
        "text",
        [1, [2, 3]],
        {"a": [1.5], "b": "ü"},
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.zeros((84, 84, 3), dtype=np.uint8),
        np.int64(7),
        np.array(True),
    ],
    ids=repr,
)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    payload = encode(value)
    back = decode(payload)
    if isinstance(value, np.ndarray | np.generic):
        assert back.dtype == value.dtype
        assert np.array_equal(back, value)
    else:
        assert back == value


def test_values_inside_dicts_and_tuples_become_lists() -> None:
    assert decode(encode({"seen": np.arange(3), "pair": (np.float32(1.5), 2)})) == {"seen": [0, 1, 2], "pair": [1.5, 2]}


def test_large_values_are_packed() -> None:
    payload = encode(np.zeros((210, 160, 3), dtype=np.uint8))
    assert payload.encoding == "npy+gzip"
    assert len(payload.data) < 2_000


def test_an_unknown_encoding_is_reported() -> None:
    with pytest.raises(ValueError, match="'pickle' cannot be read"):
        decode(messages.Payload(encoding="pickle", data=b"x"))


def test_numbers_continue_after_an_earlier_attempt_and_survive_a_daemon_that_is_away() -> None:
    daemon = Daemon(stored=40)
    telemetry = TelemetryPublisher("run", daemon)
    telemetry.start()
    take_steps(telemetry, 10)
    assert wait_until(lambda: len(daemon.steps) == 10)
    daemon.away = True
    take_steps(telemetry, 10)
    daemon.away = False
    assert telemetry.close() == 0
    assert daemon.steps == list(range(41, 61))


def test_a_full_backlog_slows_the_worker_and_loses_nothing() -> None:
    daemon = Daemon(room=5)
    telemetry = TelemetryPublisher("run", daemon, backlog=10)
    telemetry.start()
    worker = threading.Thread(target=take_steps, args=(telemetry, 40))
    worker.start()
    assert wait_until(lambda: len(daemon.steps) == 5)
    worker.join(0.2)
    assert worker.is_alive()  # it waits for credits
    daemon.room = 100
    telemetry.grant(100)
    worker.join(10)
    assert telemetry.close() == 0
    assert daemon.steps == list(range(1, 41))
    assert telemetry.left_out == 0


def test_a_thinning_worker_continues_and_counts_what_it_left_out() -> None:
    daemon = Daemon(room=0)
    telemetry = TelemetryPublisher("run", daemon, thin=True, backlog=10)
    telemetry.start()
    take_steps(telemetry, 100)
    telemetry.episode(1.0, 100)
    assert telemetry.left_out == 90
    daemon.room = 100
    telemetry.grant(100)
    assert telemetry.close() == 0
    assert daemon.steps == list(range(1, 11))
    assert len(daemon.episodes) == 1


def test_what_the_daemon_did_not_get_is_counted_at_the_end() -> None:
    daemon = Daemon()
    telemetry = TelemetryPublisher("run", daemon)
    telemetry.start()
    daemon.away = True
    take_steps(telemetry, 7)
    assert telemetry.close(timeout_s=0.2) == 7


def test_a_refusal_ends_the_sending() -> None:
    daemon = Daemon()
    telemetry = TelemetryPublisher("run", daemon)
    telemetry.start()
    daemon.refuses = True
    take_steps(telemetry, 3)
    assert wait_until(lambda: telemetry.refused == "not from you")
    take_steps(telemetry, 3)  # harmless
    with pytest.raises(TelemetryRefused):
        TelemetryPublisher("run", daemon).start()
