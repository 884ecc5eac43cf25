"""Structured lines of a log as people read them."""

from __future__ import annotations

from mosaic_wire.lifecycle import RunLifecycleEvent

from gym_gui.wording import formats


def lifecycle_line(text: str) -> str:
    """Return a lifecycle event's line as time, event and payload; any other line as it is."""
    if not text.startswith("{"):
        return text
    try:
        event = RunLifecycleEvent.from_line(text)
    except ValueError:
        return text
    told = "  ".join(f"{key}={_short(value)}" for key, value in event.payload.items())
    return f"{formats.moment(event.timestamp)}  {event.event:<18} {told}".rstrip()


def _short(value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 120 else f"{text[:117]}…"
