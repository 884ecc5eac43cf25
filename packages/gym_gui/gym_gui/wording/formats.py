"""Numbers, times and sizes as people read them."""

from __future__ import annotations

import math
import time
from datetime import datetime


def count(number: float) -> str:
    """12288 → 12,288"""
    return f"{number:,.0f}"


def short_count(number: float) -> str:
    """12288 → 12.3k; four or five characters, for narrow columns."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= limit:
            scaled = number / {"G": 1e9, "M": 1e6, "k": 1e3}[unit]
            return f"{scaled:.0f}{unit}" if abs(scaled) >= 100 else f"{scaled:.1f}{unit}"
    return count(number)


def quantity(number: float) -> str:
    """A return or score: as many digits as say something."""
    if not math.isfinite(number):
        return str(number)
    size = abs(number)
    if size >= 1e6:
        return f"{number:.3g}"
    return f"{number:,.0f}" if size >= 10_000 else f"{number:.1f}" if size >= 10 else f"{number:.3g}"


def duration(seconds: float) -> str:
    """75 → 1:15, 7265 → 2:01:05, two days → 2d 03h"""
    whole = max(0, int(seconds))
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days}d {hours:02}h"
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def age(then: float, now: float | None = None) -> str:
    """How long ago, in one unit: 12s, 5m, 3h, 2d."""
    if not then:
        return ""
    seconds = max(0.0, (time.time() if now is None else now) - then)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size:.0f}{unit}"
    return f"{seconds:.0f}s"


def moment(then: float) -> str:
    """A point in time on this machine's clock."""
    try:
        return datetime.fromtimestamp(then).strftime("%Y-%m-%d %H:%M:%S") if then else ""
    except (OSError, OverflowError, ValueError):  # beyond the calendar: a damaged archive
        return ""


def size(number_of_bytes: float) -> str:
    """1536 → 1.5 KiB"""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number_of_bytes < 1024:
            return f"{number_of_bytes:.0f} {unit}" if unit == "B" else f"{number_of_bytes:.1f} {unit}"
        number_of_bytes /= 1024
    return f"{number_of_bytes:.1f} TiB"


def plural(number: int, noun: str) -> str:
    """1 run, 2 runs"""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
