"""RunBus: topics of a run, and subscribers that may be slow without holding anybody up."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from typing import Generic, TypeVar

Message = TypeVar("Message")

CREDITS = 2_000
"""Messages a subscriber may be behind; beyond that it skips, and is told how many"""


class Control(StrEnum):
    """What a subscriber is told about the flow itself."""

    STARVED = "STARVED"
    RESUMED = "RESUMED"


class Subscriber(Generic[Message]):
    """One reader of one topic. Each message costs a credit, which taking it gives back."""

    def __init__(self, topic: tuple[str, str], credits: int) -> None:
        self.topic = topic
        self._credits = credits
        self._waiting: deque[Message] = deque()
        self._control: deque[Control] = deque()
        self._news = asyncio.Event()
        self.skipped = 0
        self._is_starved = False
        self._is_over = False

    def offer(self, messages: Sequence[Message]) -> None:
        room = self._credits - len(self._waiting)
        taken = messages[: max(0, room)] if not self._is_starved else ()
        self._waiting.extend(taken)
        if missed := len(messages) - len(taken):
            self.skipped += missed
            if not self._is_starved:
                self._is_starved = True
                self._control.append(Control.STARVED)
        self._news.set()

    def end(self) -> None:
        """Nothing more will come."""
        self._is_over = True
        self._news.set()

    async def take(self) -> tuple[list[Message], int, list[Control]] | None:
        """Everything that waits, how many were skipped since, and control events; None at the end."""
        while not (self._waiting or self._control):
            if self._is_over:
                return None
            self._news.clear()
            await self._news.wait()
        messages = list(self._waiting)
        self._waiting.clear()
        control, skipped = list(self._control), self.skipped
        self._control.clear()
        self.skipped = 0
        if self._is_starved:  # it has room again
            self._is_starved = False
            self._control.append(Control.RESUMED)
        return messages, skipped, control


class RunBus(Generic[Message]):
    """Passes messages of (run, topic) on to whoever subscribed. For one event loop."""

    def __init__(self) -> None:
        self._subscribers: dict[tuple[str, str], set[Subscriber[Message]]] = {}

    def subscribe(self, run_id: str, topic: str, *, credits: int = CREDITS) -> Subscriber[Message]:
        subscriber: Subscriber[Message] = Subscriber((run_id, topic), credits)
        self._subscribers.setdefault(subscriber.topic, set()).add(subscriber)
        return subscriber

    def unsubscribe(self, subscriber: Subscriber[Message]) -> None:
        known = self._subscribers.get(subscriber.topic)
        if known is not None:
            known.discard(subscriber)
            if not known:
                del self._subscribers[subscriber.topic]

    def publish(self, run_id: str, topic: str, messages: Sequence[Message]) -> None:
        for subscriber in self._subscribers.get((run_id, topic), ()):
            subscriber.offer(messages)

    def end(self, run_id: str) -> None:
        """A run is over: its subscribers read what waits, then stop."""
        for (known, _), subscribers in self._subscribers.items():
            if known == run_id:
                for subscriber in subscribers:
                    subscriber.end()
