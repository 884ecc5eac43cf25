"""Values as people write them, on a command line or in a form: several seeds, durations, big numbers.

Each function returns the value or raises ValueError with a sentence for people.
"""

from __future__ import annotations

import re

MOST_SEEDS = 1000


def parse_steps(text: str) -> int:
    """A number of steps: 500000, 500_000, 5e5 or 500k."""
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
    """A time: a plain number is minutes; 90m, 2h, 1.5h, 30s, 1d."""
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
