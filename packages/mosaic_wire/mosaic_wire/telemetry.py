"""The worker's end of the telemetry lane: steps and episodes are numbered, sent in batches and kept until stored.

    telemetry = session.telemetry()
    telemetry.step(observation, action, reward, terminated=False, truncated=False)
    telemetry.episode(episodic_return, length)

A daemon that is away, or has no credits left, makes the backlog grow. When that is full the worker either waits (the
default: nothing is lost, training slows down) or, with `thin=True`, leaves steps out and counts them.
"""

from __future__ import annotations

import gzip
import io
import json
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from mosaic_wire.errors import TelemetryRefused
from mosaic_wire.proto import trainer_pb2 as messages

if TYPE_CHECKING:
    from mosaic_wire.event_records import EventBatch

BACKLOG = 20_000
"""Messages that may wait for the daemon"""
_BATCH = 2_000
_LARGE_BYTES = 1024
"""Values from this size are compressed"""
_PAUSE_S = 0.05
_RETRY_S = 0.5


class TelemetryLink(Protocol):
    """Sends batches to the daemon; None means that a batch was not delivered."""

    def publish_steps(self, request: messages.PublishRunStepsRequest) -> messages.PublishTelemetryResponse | None:
        """Send a batch of steps."""

    def publish_episodes(self, request: messages.PublishRunEpisodesRequest) -> messages.PublishTelemetryResponse | None:
        """Send a batch of episodes."""


def encode(value: Any) -> messages.Payload:
    """Return a value of any space as bytes: an array in numpy's format, anything else as JSON."""
    if type(value) is int:  # most actions, and the states of toy text
        return messages.Payload(encoding="json", data=b"%d" % value)
    if hasattr(value, "__array_interface__") or type(value).__module__ == "numpy":
        import numpy as np

        stream = io.BytesIO()
        np.lib.format.write_array(stream, np.asarray(value), allow_pickle=False)
        encoding, data = "npy", stream.getvalue()
    else:
        encoding, data = "json", _JSON.encode(value).encode()
    if len(data) >= _LARGE_BYTES:
        encoding, data = f"{encoding}+gzip", gzip.compress(data, 1, mtime=0)
    return messages.Payload(encoding=encoding, data=data)


def decode(payload: messages.Payload) -> Any:
    """Return the value that was encoded; tuples become lists."""
    encoding, _, packed = payload.encoding.partition("+")
    data = gzip.decompress(payload.data) if packed == "gzip" else payload.data
    if encoding == "json":
        return json.loads(data) if data else None
    if encoding == "npy":
        import numpy as np

        return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    raise ValueError(f"a payload of encoding {payload.encoding!r} cannot be read")


def _plain(value: Any) -> Any:
    """Return numpy arrays and scalars as JSON values."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


_JSON = json.JSONEncoder(default=_plain)  # `dumps` would make one for every value
_RETURN_TAG, _LENGTH_TAG = "charts/episodic_return", "charts/episodic_length"


def send_episodes(telemetry: TelemetryPublisher, batches: Sequence[EventBatch]) -> None:
    """Send the episodes in event files (as CleanRL's scripts and MOSAIC's write them) as rows."""
    for batch in batches:
        returns, lengths = batch.columns.get(_RETURN_TAG), batch.columns.get(_LENGTH_TAG)
        if returns is None:
            continue
        # Several may end at one step; their order assigns lengths to returns.
        pairs = lengths.values if lengths is not None and lengths.steps == returns.steps else [0.0] * len(returns)
        for step, episodic_return, length in zip(returns.steps, returns.values, pairs, strict=True):
            telemetry.episode(episodic_return, int(length), info={"step": step})


class _Lane:
    """The queue of one kind of message, with the last stored number."""

    def __init__(self) -> None:
        self.waiting: deque[Any] = deque()
        self.seq = 0
        self.credits = _BATCH


class TelemetryPublisher:
    """Sends steps and episodes in its own thread; `step` and `episode` may be called from any thread."""

    def __init__(
        self, run_id: str, publisher: TelemetryLink, *, steps: bool = True, thin: bool = False, backlog: int = BACKLOG
    ) -> None:
        self._with_steps = steps
        self.refused = ""
        """Why the daemon refuses messages, or empty"""
        self._run_id, self._publisher, self._thin, self._backlog = run_id, publisher, thin, backlog
        self._steps, self._episodes = _Lane(), _Lane()
        self._changed = threading.Condition()
        self._closing = False
        self._episode, self._index = 0, 0
        self.left_out = 0
        """Number of steps that were dropped by thinning"""
        self._thread = threading.Thread(target=self._send, name="mosaic-telemetry", daemon=True)

    def start(self) -> None:
        """Fetch the last numbers of an earlier attempt, then start sending."""
        lanes = [(self._steps, self._publish_steps), (self._episodes, self._publish_episodes)]
        if not self._with_steps:
            del lanes[0]
        for lane, publish in lanes:
            while (answer := publish([])) is None:
                time.sleep(_RETRY_S)
            lane.seq, lane.credits = answer.stored_seq, answer.credits
            # An episode that an earlier attempt did not finish is not continued.
            self._episode = max(self._episode, answer.next_episode)
        self._thread.start()

    # ------------------------------------------------------------------ recording

    def step(
        self,
        observation: Any,
        action: Any,
        reward: float,
        *,
        terminated: bool,
        truncated: bool,
        info: Mapping[str, Any] | None = None,
        agent_id: str = "",
        place: tuple[int, int] | None = None,
    ) -> None:
        """Queue one step, and count the end of an episode.

        `place` is the number of a `begin_episode` and the index in it, for episodes that are played at the same time.
        """
        if not self._with_steps:
            raise TelemetryRefused("this run sends episodes only")
        episode, index = (self._episode, self._index) if place is None else place
        message = messages.RunStep(
            episode=episode,
            index=index,
            agent_id=agent_id,
            observation=encode(observation),
            action=encode(action),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            info_json=_JSON.encode(info) if info else "",
            timestamp=time.time(),
        )
        if place is None:
            self._index += 1
            if terminated or truncated:
                self._episode, self._index = self._episode + 1, 0
        self._add(self._steps, message)

    def begin_episode(self) -> int:
        """Return the number of a new episode, for episodes that are played at the same time."""
        number, self._episode = self._episode, self._episode + 1
        return number

    def leave_episode(self) -> None:
        """End the episode early: the next step begins another one."""
        if self._index:
            self._episode, self._index = self._episode + 1, 0

    def episode(
        self,
        episodic_return: float,
        length: int,
        *,
        terminated: bool = True,
        truncated: bool = False,
        info: Mapping[str, Any] | None = None,
        agent_id: str = "",
        number: int | None = None,
    ) -> None:
        """Queue an ended episode, which is never thinned; its number is that of its steps, or of `begin_episode`."""
        if number is None:
            if not self._with_steps:
                self._episode += 1
            is_over = not self._with_steps or self._index == 0  # its last step has begun the next one
            number = max(0, self._episode - is_over)
        message = messages.RunEpisode(
            episode=number,
            agent_id=agent_id,
            episodic_return=episodic_return,
            length=length,
            terminated=terminated,
            truncated=truncated,
            timestamp=time.time(),
            info_json=_JSON.encode(info) if info else "",
        )
        self._add(self._episodes, message)

    def _add(self, lane: _Lane, message: Any) -> None:
        with self._changed:
            if len(lane.waiting) >= self._backlog:
                if self._thin and lane is self._steps:
                    self.left_out += 1
                    return
                self._changed.wait_for(lambda: len(lane.waiting) < self._backlog or self._closing)
            lane.seq += 1
            message.seq = lane.seq
            lane.waiting.append(message)
            self._changed.notify_all()

    # ------------------------------------------------------------------ sending

    def grant(self, credits: int) -> None:
        """Set the credits granted by the daemon."""
        with self._changed:
            self._steps.credits = self._episodes.credits = credits
            self._changed.notify_all()

    def _send(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._can_send())
                if self._closing and not self._can_send():
                    return
            try:
                arrived = [
                    self._send_lane(self._steps, self._publish_steps),
                    self._send_lane(self._episodes, self._publish_episodes),
                ]
            except TelemetryRefused as error:
                with self._changed:
                    self.refused, self._closing = str(error), True
                    self._changed.notify_all()
                return
            # Wait shortly to fill a batch, longer while the daemon is unreachable.
            time.sleep(_PAUSE_S if all(arrived) else _RETRY_S)

    def _can_send(self) -> bool:
        return any(lane.waiting and lane.credits > 0 for lane in (self._steps, self._episodes))

    def _send_lane(self, lane: _Lane, publish: Any) -> bool:
        """Send until the queue is empty or credits are used up; return False when the daemon did not answer."""
        while True:
            with self._changed:
                count = min(len(lane.waiting), lane.credits, _BATCH)
                batch = [lane.waiting[index] for index in range(count)]
            if not batch:
                return True
            answer = publish(batch)
            if answer is None:
                return False
            with self._changed:
                lane.credits = answer.credits
                while lane.waiting and lane.waiting[0].seq <= answer.stored_seq:
                    lane.waiting.popleft()
                self._changed.notify_all()

    def _publish_steps(self, batch: list[Any]) -> messages.PublishTelemetryResponse | None:
        return self._publisher.publish_steps(messages.PublishRunStepsRequest(run_id=self._run_id, steps=batch))

    def _publish_episodes(self, batch: list[Any]) -> messages.PublishTelemetryResponse | None:
        return self._publisher.publish_episodes(messages.PublishRunEpisodesRequest(run_id=self._run_id, episodes=batch))

    def close(self, timeout_s: float = 10.0) -> int:
        """Send the rest within `timeout_s`; return how many messages were not delivered."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._changed.wait_for(
                lambda: not (self._steps.waiting or self._episodes.waiting), timeout=max(0.0, timeout_s)
            )
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(max(0.0, deadline - time.monotonic()))
        return len(self._steps.waiting) + len(self._episodes.waiting)
