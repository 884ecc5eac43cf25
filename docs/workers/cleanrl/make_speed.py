"""Makes speed.md out of speed.json, which `make bench` measures; no figure of it is ever typed.

.venv/bin/python benchmarks/algorithms.py --upstream ~/cleanrl --json docs/workers/cleanrl/speed.json
.venv/bin/python docs/workers/cleanrl/make_speed.py
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DATA, PAGE = HERE / "speed.json", HERE / "speed.md"

INTRODUCTION = """# How fast the algorithms are

Made by `make_speed.py` from `speed.json`, which `make bench UPSTREAM=<a checkout of CleanRL>` measures: our algorithm
against CleanRL's unmodified script, the same network and hyper-parameters, one process and one thread each, taking
turns. Each measurement is two runs of different length with the shorter one subtracted, so that starting up does not
count. Figures are medians, in brackets the smallest and the largest. CPU seconds are what matters: on a shared machine
the clock measures the others, too. A flag after an algorithm's name is one that only ours has.
"""
NOTHING = "\nNothing was measured yet.\n"
COLUMNS = (
    "algorithm",
    "environment",
    "CleanRL, steps per CPU second",
    "ours",
    "ratio",
    "by the clock",
    "to reach",
    "moonshot",
    "",
)


def main() -> None:
    PAGE.write_text(render(json.loads(DATA.read_text())["cases"]))


def render(cases: Sequence[dict[str, Any]]) -> str:
    """The page."""
    if not cases:
        return INTRODUCTION + NOTHING
    lines = [INTRODUCTION, _line(COLUMNS), "| --- | --- |" + " ---: |" * 6 + " --- |"]
    lines += [_line(_cells(case)) for case in cases]
    lines += [
        "",
        "How each was measured:",
        "",
        _line(("algorithm", "flags", "steps", "pairs", "machine", "load", "when")),
    ]
    lines += ["|" + " --- |" * 7, *(_line(_circumstances(case)) for case in cases)]
    lines += ["", *_versions(cases), ""]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cells(case: dict[str, Any]) -> tuple[str, ...]:
    by_cpu, by_clock = _ratios(case, "cpu"), _ratios(case, "wall")
    ratio = statistics.median(by_cpu)
    verdict = "moonshot" if ratio >= case["moonshot"] else "reached" if ratio >= case["target"] else "missed"
    return (
        _name(case),
        case["env_id"],
        f"{statistics.median(case['upstream']['cpu']):,.0f}",
        f"{statistics.median(case['ours']['cpu']):,.0f}",
        f"{ratio:.2f} × ({min(by_cpu):.2f} – {max(by_cpu):.2f})",
        f"{statistics.median(by_clock):.2f} ×",
        f"{case['target']:g} ×",
        f"{case['moonshot']:g} ×",
        verdict,
    )


def _name(case: dict[str, Any]) -> str:
    return f"`{' '.join((case['algo'], *case['own_flags']))}`"


def _ratios(case: dict[str, Any], unit: str) -> list[float]:
    return [ours / theirs for ours, theirs in zip(case["ours"][unit], case["upstream"][unit], strict=True)]


def _circumstances(case: dict[str, Any]) -> tuple[str, ...]:
    short, long = case["steps"]
    return (
        _name(case),
        f"`{' '.join(case['flags'])}`" if case["flags"] else "defaults",
        f"{long:,} less {short:,}",
        str(len(case["ours"]["cpu"])),
        case["machine"],
        " – ".join(str(load) for load in case["load"]),
        case["date"],
    )


def _versions(cases: Sequence[dict[str, Any]]) -> list[str]:
    """What both sides ran with; said once where all cases agree."""
    lines = []
    for side, name in (("ours", "Ours"), ("upstream", "CleanRL's")):
        for text in dict.fromkeys(_text(case["versions"][side]) for case in cases):
            lines.append(f"{name}: {text}.  ")
    hashes = ", ".join(dict.fromkeys(f"`{case['algo']}.py` {case['script_sha256'][:12]}" for case in cases))
    return [*lines, f"The scripts (sha256): {hashes}."]


def _text(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))


if __name__ == "__main__":
    main()
