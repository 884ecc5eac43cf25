"""Run by the interpreter of an overlay (`python -I overlay_check.py PLAN`): is every package really there?

What pip reports is not enough. In an overlay a package that was not installed is silently found in the base, at another
version, and a half-written one still has its list of files. Standard library only; prints a JSON list of problems.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path


def main() -> None:
    """Check versions of all pins, and place and content of the overlay's own files."""
    plan = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    site = os.path.realpath(plan["site"])
    problems: list[str] = []
    records: list[str] = []
    for name, version in plan["pins"].items():
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            problems.append(f"{name}=={version} is missing")
            continue
        place = os.path.realpath(str(distribution.locate_file("")))
        if distribution.version.partition("+")[0] != version:
            problems.append(f"{name} is {distribution.version} instead of {version}")
        elif name in plan["own"] and place != site:
            problems.append(f"{name} comes from {place}, not from the overlay")
        elif name in plan["own"]:
            # Not distribution.files: from Python 3.12 on it leaves out what is missing.
            records.append(distribution.read_text("RECORD") or "")
    sys.stdout.write(json.dumps(problems + damaged_files(site, records)))


def damaged_files(site: str, records: Iterable[str]) -> list[str]:
    """Compare the files below `site` with these RECORD texts: name each that is missing, or has another content."""
    # Some packages write over each other's files (`tests/__init__.py`): any of their contents is right.
    expected: dict[str, set[str]] = {}
    for row in csv.reader(line for record in records for line in record.splitlines()):
        if len(row) == 3 and row[1].startswith("sha256=") and not row[0].endswith(".pyc"):  # pip compiles those anew
            expected.setdefault(os.path.normpath(os.path.join(site, row[0])), set()).add(row[1].rstrip("="))
    return [problem for path, digests in expected.items() if (problem := _problem_with(path, digests))]


def _problem_with(path: str, digests: set[str]) -> str:
    try:
        with open(path, "rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").digest()
    except OSError as error:
        return f"{path} is missing" if isinstance(error, FileNotFoundError) else f"{path} cannot be read"
    found = f"sha256={base64.urlsafe_b64encode(digest).decode().rstrip('=')}"
    return "" if found in digests else f"{path} was changed"


if __name__ == "__main__":
    main()
