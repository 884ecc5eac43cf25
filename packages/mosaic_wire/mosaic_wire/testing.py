"""What tests of MOSAIC and of third-party workers share."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(predicate: Callable[[], object], *, timeout_s: float = 10, poll_s: float = 0.02) -> bool:
    """Poll until the predicate holds; False when it did not within the time (assert on it)."""
    deadline = time.monotonic() + timeout_s
    while not predicate():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll_s)
    return True
