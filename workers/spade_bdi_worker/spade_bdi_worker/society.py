"""The agents of a behaviour and the mail between them: who thinks when, and when a message arrives.

The agents think in turns until all are idle; then every message that they have sent arrives, in the order of sending.
So a behaviour does the same with any mail.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from agentspeak import GoalType, Literal, Trigger

from spade_bdi_worker.reasoner import BehaviourError, Interrupted, Mind, normalized

_SLICE = 1_000
"""Instructions between two looks at whether the run is to stop"""
_TURN_COST = 1_000
"""Instructions that an agent's turn without an action counts as, so that doing nothing is found soon, too"""
_WAIT_S = 0.2
FORCES: Mapping[str, tuple[Trigger, GoalType]] = {
    "tell": (Trigger.addition, GoalType.belief),
    "untell": (Trigger.removal, GoalType.belief),
    "achieve": (Trigger.addition, GoalType.achievement),
    "unachieve": (Trigger.removal, GoalType.achievement),
}


@dataclass(frozen=True)
class Message:
    """What one agent sends to another."""

    sender: str
    receiver: str
    force: str
    content: Literal


class Mail(Protocol):
    """Carries messages between agents."""

    def exchange(self, messages: Sequence[Message]) -> list[Message]:
        """Send messages; return those that have arrived, all between agents of this society included, in order."""

    def wait(self, timeout_s: float) -> list[Message]:
        """Return messages from outside, after waiting for one."""

    @property
    def expects_answer(self) -> str:
        """Return the agent outside that has not answered yet, or an empty text."""

    def close(self) -> None:
        """End every connection."""


class LocalMail:
    """Agents of one process; nobody is outside."""

    expects_answer = ""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def exchange(self, messages: Sequence[Message]) -> list[Message]:
        for message in messages:
            if message.receiver not in self._names:
                known = ", ".join(self._names)
                raise BehaviourError(f"{message.sender} sends to {message.receiver!r}, but the agents are {known}")
        return list(messages)

    def wait(self, timeout_s: float) -> list[Message]:
        return []

    def close(self) -> None: ...


class Society:
    """The agents; one of them acts."""

    def __init__(
        self,
        minds: Mapping[str, Mind],
        actor: Mind,
        mail: Mail,
        outbox: list[Message],
        *,
        max_deliberations: int,
        answer_s: float,
        should_stop: Callable[[], bool],
        pause: Callable[[float], object],
    ) -> None:
        self.minds, self.actor = minds, actor
        self._mail, self._outbox = mail, outbox
        self._most, self._answer_s = max_deliberations, answer_s
        self._should_stop, self._pause = should_stop, pause
        self._thought = 0
        self._waits_since: float | None = None

    @property
    def is_idle(self) -> bool:
        """Return whether no agent has an intention or a message on its way."""
        return not self._outbox and not any(mind.intentions for mind in self.minds.values())

    def note_action(self) -> None:
        """Note that the environment was stepped."""
        self._thought = 0
        self._waits_since = None

    def deliberate(self) -> None:
        """Let the agents think until all are idle or wait; an action may interrupt them."""
        try:
            while not self._should_stop():
                busy = False
                for mind in self.minds.values():
                    count = mind.think(_SLICE)
                    self._thought += count
                    busy = busy or count == _SLICE
                if self._outbox:
                    messages = self._outbox[:]
                    self._outbox.clear()
                    self._deliver(self._mail.exchange(messages))
                elif not busy:
                    self._thought += _TURN_COST * (self._thought > 0)
                    self._wait()
                    return
                self._check()
        except Interrupted:
            self.actor.intentions.clear()

    def _wait(self) -> None:
        """Wait a moment where agents wait: for a time, or for an answer from outside."""
        deadlines = [at for mind in self.minds.values() if (at := mind.shortest_deadline()) is not None]
        if self._mail.expects_answer:
            self._waits_since = self._waits_since or time.monotonic()
            if time.monotonic() - self._waits_since > self._answer_s:
                raise BehaviourError(f"{self._mail.expects_answer} has not answered within {self._answer_s:g} s")
            self._thought = 0
            self._deliver(self._mail.wait(_WAIT_S))
        elif deadlines:
            self._thought = 0
            self._pause(max(0.0, min(_WAIT_S, min(deadlines) - time.time())))
        else:
            self._check()

    def _deliver(self, messages: Sequence[Message]) -> None:
        for message in messages:
            source = Literal("source", (Literal(message.sender),))
            trigger, kind = FORCES[message.force]
            content = normalized(message.content).with_annotation(source)
            self.minds[message.receiver].receive(trigger, kind, content)

    def _check(self) -> None:
        if self._thought <= self._most:
            return
        waits = [f"{mind.name} waits for {each.event}" for mind in self.minds.values() for each in mind.waiters()]
        unhandled = [f"{event} of {mind.name}" for mind in self.minds.values() for event in mind.unhandled]
        clues = [*waits, *(f"there is no plan for {event}" for event in unhandled)]
        raise BehaviourError(
            f"{self.actor.source.path.name}: +!act leads to no action: {self._most} deliberations without a step"
            f"{'; ' if clues else ''}{'; '.join(clues)}. A plan has to call .act"
        )
