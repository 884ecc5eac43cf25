"""Run by the interpreter of an overlay (`python -I overlay_check.py PLAN`): is every package really there?

pip's word is not enough. In an overlay a package that was not installed is silently found in the base, at another
version, and a half-written one still has its list of files. Standard library only; prints a JSON list of problems.
"""

from __future__ import annotations

import csv
import importlib.metadata
import json
import os
import sys
from pathlib import Path


def main() -> None:
    """Check versions of all pins, and place and sizes of the overlay's own files."""
    plan = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    site = os.path.realpath(plan["site"])
    problems: list[str] = []
    sizes: dict[str, set[int]] = {}
    for name, wanted in plan["pins"].items():
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            problems.append(f"{name}=={wanted} is missing")
            continue
        place = os.path.realpath(str(distribution.locate_file("")))
        if distribution.version.partition("+")[0] != wanted:
            problems.append(f"{name} is {distribution.version} instead of {wanted}")
        elif name in plan["own"] and place != site:
            problems.append(f"{name} comes from {place}, not from the overlay")
        elif name in plan["own"]:
            _read_record(distribution, site, sizes)
    sys.stdout.write(json.dumps(problems + _file_problems(sizes)))


def _read_record(distribution: importlib.metadata.Distribution, site: str, sizes: dict[str, set[int]]) -> None:
    """Collect the sizes a file may have; some packages write over each other's (`tests/__init__.py`)."""
    # Not distribution.files: from Python 3.12 on it leaves out what is missing.
    for row in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
        if len(row) == 3 and row[2].isdigit() and not row[0].endswith(".pyc"):  # pip compiles those anew
            sizes.setdefault(os.path.normpath(os.path.join(site, row[0])), set()).add(int(row[2]))


def _file_problems(sizes: dict[str, set[int]]) -> list[str]:
    problems = []
    for path, expected in sizes.items():
        try:
            size = os.stat(path).st_size
        except OSError:
            problems.append(f"{path} is missing")
            continue
        if size not in expected:
            problems.append(f"{path} has {size} bytes instead of {' or '.join(map(str, sorted(expected)))}")
    return problems


if __name__ == "__main__":
    main()
