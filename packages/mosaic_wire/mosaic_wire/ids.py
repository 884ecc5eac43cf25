"""Run ids: ULIDs, checked before they come near a path or a query."""

from __future__ import annotations

import re

from mosaic_wire.errors import InvalidRunId

_ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}", re.ASCII)


def new_run_id() -> str:
    """Return a fresh run id; ids made later sort later."""
    from ulid import ULID  # here, because workers check ids and never make one: their start is not charged for it

    return str(ULID())


def is_run_id(text: object) -> bool:
    """Return whether this is a full, canonical run id."""
    return isinstance(text, str) and _ULID.fullmatch(text) is not None


def check_run_id(text: object) -> str:
    """Return the run id unchanged, or raise InvalidRunId."""
    if not isinstance(text, str) or _ULID.fullmatch(text) is None:
        raise InvalidRunId(text)
    return text
