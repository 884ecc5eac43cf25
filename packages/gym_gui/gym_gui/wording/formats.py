"""Numbers, times and sizes as people read them."""

from __future__ import annotations

import math
import re
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
    """Return a return or score: with its significant digits."""
    if not math.isfinite(number):
        return str(number)
    size = abs(number)
    if size >= 1e6:
        return f"{number:.3g}"
    return f"{number:,.0f}" if size >= 10_000 else f"{number:.1f}" if size >= 10 else f"{number:.3g}"


def percent(part: float) -> str:
    """0.125 → 12.5 %"""
    return f"{100 * part:.3g} %"


def duration(seconds: float) -> str:
    """75 → 1:15, 7265 → 2:01:05, two days → 2d 03h"""
    whole = max(0, int(seconds))
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days}d {hours:02}h"
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def age(then: float, now: float | None = None) -> str:
    """Return how long ago, in one unit: 12s, 5m, 3h, 2d."""
    if not then:
        return ""
    seconds = max(0.0, (time.time() if now is None else now) - then)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size:.0f}{unit}"
    return f"{seconds:.0f}s"


def moment(then: float) -> str:
    """Return a point in time on this machine's clock."""
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


# ---------------------------------------------------------------- text of others


_NOT_SHOWN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
"""Control characters, lone surrogates, and marks that change the direction of the text around them"""
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def printable(text: str) -> str:
    """Return the text with each control character replaced by `�`; line ends and tabs stay."""
    return text if text.isprintable() else _NOT_SHOWN.sub("\ufffd", text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """Return the text as one line, for a field that others stand beside."""
    return text if text.isprintable() else printable(" ".join(text.split()))


def without_escapes(text: str) -> str:
    """Return the text of a log without the colors and cursor movements it was written with."""
    return _ESCAPES.sub("", text) if "\x1b" in text else text


def json_escaped(document: str) -> str:
    """Return a JSON document in which each control character is escaped as JSON does."""
    return _NOT_SHOWN.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def is_utf8(text: str) -> bool:
    """Return whether it has a UTF-8 form: file names and arguments of undecodable bytes have none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# ---------------------------------------------------------------- values as people write them


MOST_SEEDS = 1000


def parse_steps(text: str) -> int:
    """Return a number of steps: 500000, 500_000, 5e5 or 500k."""
    plain = text.strip().replace("_", "").replace(",", "").lower()
    scale = {"k": 1_000, "m": 1_000_000, "g": 1_000_000_000}.get(plain[-1:], 1)
    try:
        number = float(plain[:-1] if scale > 1 else plain) * scale
    except ValueError:
        raise ValueError(f"expected a number of steps such as 500000, 500k or 5e5, not {text!r}") from None
    if not 0 < number < 2**53 or number != int(number):
        raise ValueError(f"expected a whole number of steps above 0, not {text!r}")
    return int(number)


def parse_minutes(text: str) -> float:
    """Return a time: a plain number is minutes; 90m, 2h, 1.5h, 30s, 1d."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", text.strip().lower())
    if match is None or float(match[1]) == 0:
        raise ValueError(f"expected a time such as 90 (minutes), 30s, 2h or 1d, not {text!r}")
    return float(match[1]) * {"s": 1 / 60, "": 1, "m": 1, "h": 60, "d": 1440}[match[2]]


def parse_seeds(text: str) -> list[int]:
    """Seeds: 1-5, 1,3,7 or a mixture."""
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,10})(?:\s*(?:-|\.\.)\s*(\d{1,10}))?\s*", part)
        if match is None:
            raise ValueError(f"expected seeds such as 1-5 or 1,3,7, not {text!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= MOST_SEEDS:
            raise ValueError(f"{part.strip()!r} is empty or more than {MOST_SEEDS} seeds")
        seeds.extend(range(first, last + 1))
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"expected every seed once, not {text!r}")
    return seeds
