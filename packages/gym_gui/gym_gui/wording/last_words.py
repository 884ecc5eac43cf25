"""What a run that failed wrote at its end, from its story."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gym_gui.wording.run_view import parsed

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

TAIL_LINES = 20


def last_words(events: Iterable[pb.StoryEvent], *, lines: int = TAIL_LINES) -> tuple[str, list[str]]:
    """The stream (`stderr`, or `stdout` when that is empty) and its last lines; ("", []) when it wrote nothing."""
    payloads = (parsed(event.payload_json) for event in reversed(list(events)))
    tails = next(
        (tail for tail in payloads if isinstance(tail, dict) and tail.keys() & {"stderr_tail", "stdout_tail"}), {}
    )
    for name in ("stderr", "stdout"):  # what went wrong is in stderr, mostly
        kept = str(tails.get(f"{name}_tail") or "").rstrip().splitlines()
        if kept:
            return name, kept[-lines:]
    return "", []
